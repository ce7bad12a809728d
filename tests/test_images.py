"""Images as a host of libwaste meets them: pictures into prompts of a tiny K3 with a vision tower,
against the oracle; how prompts are cut, what is refused, and whose states are shared.

    WASTE_LIB=build/include/libwaste.so python3 -m pytest tests/test_images.py
"""
import ctypes
import io
import json
import os
import shutil
import struct
import sys
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, \
    c_void_p
from pathlib import Path

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")
ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("WASTE_BUILD", ROOT / "build" / "gcc"))
SHARED = Path(os.environ.get("WASTE_LIB", BUILD / "include" / "libwaste.so"))
sys.path.insert(0, str(ROOT / "scripts"))

import oracle_image  # noqa: E402
import oracle_vision  # noqa: E402

PAD = oracle_vision.MEDIA_PAD
OK, E_FORMAT, E_BUDGET, E_ARG, E_UNSUPPORTED, E_CORRUPT, E_LIMIT = 0, -2, -3, -5, -6, -9, -10
E_CANCELLED = -7
SIZES = [(100, 70), (30, 40)]  # 12 rows, and 4


class Cfg(ctypes.Structure):
    _fields_ = [("ram_budget_bytes", c_uint64), ("ctx_tokens", c_uint32), ("n_threads", c_int),
                ("cpu_list", c_char_p), ("cache_policy", c_int), ("use_direct_io", c_int),
                ("vision", c_int), ("verify_records", c_int), ("usage_path", c_char_p),
                ("exclusive_open", c_int)]


class Opts(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("max_sessions", c_uint32), ("max_rows", c_uint32),
                ("lookahead", c_int32), ("io_engine", c_char_p), ("numeric", c_char_p),
                ("cpu_level", c_char_p), ("policy", c_char_p), ("io_depth", c_uint32),
                ("checkpoints", c_uint32), ("route_trace", c_char_p), ("progress", c_void_p),
                ("log", c_void_p), ("user", c_void_p), ("drive_notes", c_char_p),
                ("image_patches", c_uint32), ("vision_free", c_uint32)]


class MemPlan(ctypes.Structure):
    _fields_ = [(n, c_uint64) for n in ("trunk", "state", "scratch", "cache", "floor", "recommended",
                                        "vision", "working_set")]


class Item(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("want", c_uint32), ("session", c_void_p),
                ("ids", POINTER(c_int32)), ("n_ids", c_size_t), ("n_done", c_size_t),
                ("status", c_int), ("token", c_int32), ("logprob", c_float), ("stop", c_uint32),
                ("logits", POINTER(c_float)), ("next_ids", c_void_p), ("id_logprobs", c_void_p),
                ("n_next", c_size_t)]


class Info(ctypes.Structure):
    _fields_ = [("size", c_uint32)] + [(n, c_uint32) for n in (
        "width", "height", "fit_width", "fit_height", "padded_width", "padded_height", "patches_x",
        "patches_y", "n_rows", "max_patches", "side_patches", "reserved0", "reserved1")] + [
            ("decode_bytes", c_uint64), ("tower_macs", c_uint64), ("format", ctypes.c_char * 8)]


class StoreCfg(ctypes.Structure):
    _fields_ = [("size", c_uint32), ("every", c_uint32), ("dir", c_char_p), ("dir_bytes", c_uint64)]


@pytest.fixture(scope="module")
def lib():
    lib = ctypes.CDLL(str(SHARED))
    lib.waste_error_detail.restype = c_char_p
    for name in ("waste_session_default",):
        getattr(lib, name).restype = c_void_p
    for name in ("waste_error_detail", "waste_session_default", "waste_close", "waste_image_clear", "waste_session_image_clear",
                 "waste_session_reset", "waste_state_reset"):
        getattr(lib, name).argtypes = [c_void_p]
    lib.waste_step.argtypes = [c_void_p, POINTER(Item), c_size_t]
    lib.waste_image_add.argtypes = [c_void_p, c_char_p, POINTER(c_uint32)]
    lib.waste_session_image_add.argtypes = [c_void_p, c_char_p, c_size_t, POINTER(c_uint32)]
    lib.waste_image_expand.argtypes = [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_int32),
                                       c_size_t, POINTER(c_size_t)]
    lib.waste_session_ids.argtypes = [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_size_t)]
    lib.waste_generate.argtypes = [c_void_p, POINTER(c_int32), c_size_t, c_void_p, c_void_p, c_void_p]
    lib.waste_image_look.argtypes = [c_char_p, c_uint32, c_char_p, c_size_t, POINTER(Info)]
    lib.waste_memory_used.argtypes = [c_void_p, POINTER(MemPlan)]
    return lib


@pytest.fixture(scope="module", params=["stored", "rewritten"])
def box(request, tmp_path_factory):
    where = tmp_path_factory.mktemp("k3") / request.param
    oracle_vision.make(where, request.param)
    return where


def picture(w, h, seed=0, form="PNG"):
    rng = np.random.default_rng(w * 4099 + h + seed)
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (h, w, 3)).astype(np.uint8)).save(out, form)
    return out.getvalue()


class Opened:
    """A model that sees, or not."""

    def __init__(self, lib, path, vision=1, threads=1, budget=0, free=0, sessions=1, patches=0):
        self.lib, self.ctx = lib, c_void_p()
        cfg = Cfg()
        lib.waste_cfg_init(byref(cfg))
        cfg.vision, cfg.n_threads, cfg.ctx_tokens, cfg.ram_budget_bytes = vision, threads, 128, budget
        cfg.usage_path = b""
        opts = Opts()
        lib.waste_opts_init(byref(opts))
        assert opts.size == ctypes.sizeof(opts)
        opts.numeric = b"f32"  # what the oracle computes
        opts.vision_free, opts.max_sessions, opts.image_patches = free, sessions, patches
        self.status = lib.waste_open_ex(str(path).encode(), byref(cfg), byref(opts), byref(self.ctx))
        self.session = lib.waste_session_default(self.ctx)

    def __enter__(self):
        assert self.status == OK, self.why(None)
        return self

    def __exit__(self, *_):
        self.lib.waste_close(self.ctx)

    def why(self, ctx=0):
        return (self.lib.waste_error_detail(self.ctx if ctx == 0 else ctx) or b"").decode()

    def add(self, data):
        n = c_uint32()
        status = self.lib.waste_session_image_add(self.session, data, len(data), byref(n))
        return status, n.value

    def expand(self, ids, room=1000):
        out, n = (c_int32 * room)(), c_size_t()
        status = self.lib.waste_image_expand(self.ctx, (c_int32 * len(ids))(*ids), len(ids), out, room,
                                             byref(n))
        return status, list(out[:n.value]), n.value

    def feed(self, ids, vocab=0):
        item = Item(size=ctypes.sizeof(Item), want=2 if vocab else 0, session=self.session,
                    ids=(c_int32 * len(ids))(*ids), n_ids=len(ids))
        status = self.lib.waste_step(self.ctx, byref(item), 1)
        return np.array(item.logits[:vocab], np.float32) if vocab and status == OK else status

    def ids(self):
        out, n = (c_int32 * 1000)(), c_size_t()
        assert self.lib.waste_session_ids(self.session, out, 1000, byref(n)) == OK
        return list(out[:n.value])

    def whole(self, ids, cuts, vocab):
        self.lib.waste_state_reset(self.ctx)
        at = 0
        for n in cuts:
            assert self.feed(ids[at:at + n]) == OK, self.why()
            at += n
        return self.feed(ids[at:], vocab)


PROMPT = [38, 222, PAD, 256, PAD, 67, 84]
LAST = [38, 222, PAD, 256, 67, PAD]  # a picture's last row is what the logits follow


def wanted(box, prompt, pictures):
    """(ids with every row, logits after the last one) by the oracle."""
    tower, model = oracle_vision.Tower(box), oracle_vision.Seeing(box)
    rows = [tower.encode(oracle_image.preprocess(p, tower.c["max_patches"])[2]) for p in pictures]
    ids, left = [], list(rows)
    for i in prompt:
        ids += [PAD] * len(left.pop(0)) if i == PAD else [i]
    trace = model.forward_rows(ids, np.vstack(rows))
    return ids, trace


@pytest.mark.parametrize("prompt", [PROMPT, LAST])
def test_pictures_and_text_give_the_oracles_logits_however_they_are_cut(lib, box, prompt):
    pictures = [picture(*s) for s in SIZES]
    ids, trace = wanted(box, prompt, pictures)
    assert trace.margin > 1e-4, "a router is undecided: take other pictures"
    want = trace.logits[-1]
    first = None
    for threads, cuts in ((1, []), (2, [5]), (1, [2, 4, 9]), (2, [1] * (len(ids) - 1))):
        with Opened(lib, box, threads=threads) as m:
            for p in pictures:
                assert m.add(p)[0] == OK, m.why()
            status, expanded, _ = m.expand(prompt)
            assert status == OK and expanded == ids
            got = m.whole(ids, cuts, len(want))
            assert np.linalg.norm(got - want) / np.linalg.norm(want) < 3e-6
            first = got if first is None else first
            assert got.tobytes() == first.tobytes()
            assert m.feed([PAD]) == E_ARG  # all rows were used
            there = m.ids()
            assert [PAD if i < 0 else i for i in there] == ids
            assert len({i for i in there if i < 0}) == ids.count(PAD)  # each row has a name


def test_the_order_of_pictures_is_the_order_of_places(lib, box):
    pictures = [picture(*s) for s in SIZES]
    ids, trace = wanted(box, PROMPT, pictures[::-1])
    with Opened(lib, box) as m:
        for p in pictures[::-1]:
            assert m.add(p)[0] == OK
        got = m.whole(ids, [], trace.logits.shape[1])
    assert np.linalg.norm(got - trace.logits[-1]) / np.linalg.norm(trace.logits[-1]) < 3e-6


def test_a_file_is_a_picture_whatever_it_is_called(lib, box, tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(picture(50, 60, form="JPEG"))
    w, h, n = c_uint32(), c_uint32(), c_uint32()
    assert lib.waste_image_dimensions(str(path).encode(), byref(w), byref(h)) == OK
    assert (w.value, h.value) == (50, 60)
    with Opened(lib, box) as m:
        assert lib.waste_image_add(m.ctx, str(path).encode(), byref(n)) == OK
        assert n.value == 6
        assert lib.waste_image_add(m.ctx, b"/nowhere", byref(n)) != OK
        assert "/nowhere" in m.why()
        assert lib.waste_image_add(m.ctx, str(tmp_path).encode(), byref(n)) != OK
        assert "regular" in m.why()
        assert m.expand([PAD])[2] == 6


def test_what_a_picture_costs_is_known_before(lib, box):
    lib.waste_abi.restype = c_size_t
    assert lib.waste_abi(25) == ctypes.sizeof(Info)
    info = Info(size=ctypes.sizeof(Info))
    data = picture(640, 480)
    assert lib.waste_image_look(None, 0, data, len(data), byref(info)) == OK
    assert (info.fit_width, info.fit_height, info.n_rows, info.format) == (523, 392, 266, b"PNG")
    assert lib.waste_image_look(str(box).encode(), 0, data, len(data), byref(info)) == OK
    assert info.n_rows == len(oracle_vision.Tower(box).encode(
        oracle_image.preprocess(data, 64)[2]))
    assert lib.waste_image_look(None, 65536, data, len(data), byref(info)) == OK
    assert info.n_rows == 414


def test_places_are_expanded_where_they_are(lib, box):
    with Opened(lib, box) as m:
        for p in [picture(*s) for s in SIZES]:
            assert m.add(p)[0] == OK
        want, n = m.expand(PROMPT)[1], c_size_t()
        ids = (c_int32 * 100)(*PROMPT)
        assert lib.waste_image_expand(m.ctx, ids, len(PROMPT), ids, 100, byref(n)) == OK
        assert list(ids[:n.value]) == want


def test_places_and_rows_that_do_not_agree_are_refused(lib, box):
    with Opened(lib, box) as m:
        assert m.feed([3, PAD, 7]) == E_ARG and "0 rows wait" in m.why()
        assert m.add(picture(30, 40))[0] == OK
        assert m.expand([3, 7])[0] == E_ARG
        assert m.expand([PAD, PAD])[0] == E_ARG
        status, _, need = m.expand([3, PAD], room=3)
        assert status == E_ARG and need == 5
        ids = (c_int32 * 2)(3, 7)  # an answer begins although a picture waits
        assert lib.waste_generate(m.ctx, ids, 2, None, None, None) == E_ARG
        assert lib.waste_image_clear(m.ctx) == OK
        assert m.expand([3, 7])[0] == OK
        assert m.feed([3, 7]) == OK


def test_bad_pictures_are_named_and_leave_nothing(lib, box):
    with Opened(lib, box) as m:
        for data, status, words in ((b"GIF89a", E_UNSUPPORTED, "a GIF"),
                                    (b"hello", E_FORMAT, "5 bytes"),
                                    (picture(90, 80)[:-40], E_CORRUPT, "ends early"),
                                    (picture(90, 80, form="JPEG")[:-40], E_CORRUPT, "90 x 80")):
            assert m.add(data)[0] == status
            assert words in m.why()
        for _ in range(32):
            assert m.add(picture(1, 1))[0] == OK
        assert m.add(picture(1, 1))[0] == E_ARG and "32" in m.why()


def test_more_rows_than_were_planned_are_refused_by_the_plan(lib, box):
    with Opened(lib, box) as m:
        statuses = [m.add(picture(300, 300, i))[0] for i in range(20)]
        assert OK in statuses and set(statuses) <= {OK, E_BUDGET}
        assert m.feed([3, PAD, 7]) == OK


def resident():
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_session_that_is_closed_keeps_no_picture(lib, box):
    """Those that waited were kept until somebody opened the session again."""
    lib.waste_session_open.argtypes = [c_void_p, POINTER(c_void_p)]
    lib.waste_session_close.argtypes = [c_void_p]
    data = picture(448, 448)
    with Opened(lib, box, sessions=5, patches=1024) as m:
        before, others = resident(), [c_void_p() for _ in range(4)]
        for other in others:
            assert lib.waste_session_open(m.ctx, byref(other)) == OK
            for _ in range(32):
                assert lib.waste_session_image_add(other, data, len(data), None) == OK
        waiting = resident() - before
        assert waiting > 4 * 32 * 448 * 448 * 3
        for other in others:
            lib.waste_session_close(other)
        assert resident() - before < waiting / 4


def test_a_tower_that_a_closed_session_needed_is_given_back(lib, box, tmp_path):
    lib.waste_session_open.argtypes = [c_void_p, POINTER(c_void_p)]
    lib.waste_session_close.argtypes = [c_void_p]
    mine = tmp_path / "mine.waste"
    shutil.copytree(box, mine)
    data, ids = picture(30, 40), [3] + [PAD] * 4 + [7]
    with Opened(lib, mine, free=1, sessions=2) as m:
        first, other = m.session, c_void_p()
        assert lib.waste_session_open(m.ctx, byref(other)) == OK
        for _ in range(2):
            assert lib.waste_session_image_add(other, data, len(data), None) == OK
        m.session = other
        assert m.feed(ids) == OK, m.why()  # the second waits, and the tower for it
        lib.waste_session_close(other)
        spoil_tower(mine)
        m.session = first
        assert m.add(data)[0] == OK
        assert m.feed(ids) == E_CORRUPT, "it was read again"


def test_without_being_asked_nothing_is_seen(lib, box):
    with Opened(lib, box, vision=0) as m:
        assert m.add(picture(30, 40))[0] == E_UNSUPPORTED and "--vision" in m.why()
        assert m.feed([3, PAD]) == E_UNSUPPORTED
        assert m.feed([3, 7]) == OK
        blind = MemPlan()
        assert lib.waste_memory_used(m.ctx, byref(blind)) == OK and blind.vision == 0
    with Opened(lib, box) as m:
        seeing = MemPlan()
        assert lib.waste_memory_used(m.ctx, byref(seeing)) == OK
        assert seeing.vision > 1 << 20 and seeing.floor == blind.floor + seeing.vision


def spoil_tower(path):
    """A value that is not finite into the tower of a container that is open. Returns how to undo it."""
    manifest = json.loads((path / "manifest.json").read_text("ascii"))
    at = next(t["off"] for t in manifest["trunk"] if t["name"].endswith("final_layernorm.weight"))
    trunk, was = path / "trunk.bin", (path / "trunk.bin").stat()
    with open(trunk, "r+b") as f:
        f.seek(at)
        kept = f.read(4)
        f.seek(at)
        f.write(struct.pack("<f", float("nan")))
    os.utime(trunk, ns=(was.st_atime_ns, was.st_mtime_ns))

    def undo():
        with open(trunk, "r+b") as f:
            f.seek(at)
            f.write(kept)
        os.utime(trunk, ns=(was.st_atime_ns, was.st_mtime_ns))
    return undo


@pytest.mark.parametrize("free", [0, 1])
def test_the_tower_is_kept_or_read_for_each_prompt(lib, box, tmp_path, free):
    """What is in memory does not care what becomes of the file."""
    mine = tmp_path / "mine.waste"
    shutil.copytree(box, mine)
    p = picture(30, 40)
    ids = [3] + [PAD] * 4 + [7]
    with Opened(lib, mine, free=free) as m:
        undo = spoil_tower(mine)
        assert m.add(p)[0] == OK
        assert m.feed(ids) == (E_CORRUPT if free else OK), m.why()
        undo()
        lib.waste_image_clear(m.ctx)
        lib.waste_state_reset(m.ctx)
        assert m.add(p)[0] == OK
        got = m.feed(ids, 100)
        spoil_tower(mine)
        lib.waste_state_reset(m.ctx)
        assert m.add(p)[0] == OK
        assert m.feed(ids) == (E_CORRUPT if free else OK)
    with Opened(lib, box) as m:
        assert m.add(p)[0] == OK
        assert m.feed(ids, 100).tobytes() == got.tobytes()


def opened_store(lib, m, directory=None):
    """A store of states, in this directory or in memory alone; close it before m."""
    lib.waste_store_open.argtypes = [c_void_p, c_void_p, POINTER(c_void_p)]
    lib.waste_store_find.argtypes = [c_void_p, c_void_p, POINTER(c_int32), c_size_t, c_char_p]
    lib.waste_store_find.restype = c_size_t
    lib.waste_store_resume.argtypes = [c_void_p, c_void_p, POINTER(c_int32), c_size_t, c_char_p,
                                       POINTER(c_size_t)]
    lib.waste_store_keep.argtypes = [c_void_p, c_void_p, c_char_p, c_uint32]
    lib.waste_store_close.argtypes = [c_void_p]
    store, cfg = c_void_p(), StoreCfg(size=ctypes.sizeof(StoreCfg), dir=directory)
    assert lib.waste_store_open(m.ctx, byref(cfg), byref(store)) == OK, m.why()
    return store


def test_a_picture_that_is_in_the_state_costs_no_tower(lib, box, tmp_path):
    mine = tmp_path / "mine.waste"
    shutil.copytree(box, mine)
    prompt = [3] + [PAD] * 4 + [7, 11]
    ids = (c_int32 * len(prompt))(*prompt)
    with Opened(lib, mine, free=1) as m:
        store, n = opened_store(lib, m, str(tmp_path / "states").encode()), c_size_t()
        assert m.add(picture(30, 40))[0] == OK
        assert m.feed(prompt[:-1]) == OK and lib.waste_store_keep(store, m.session, b"", 0) == OK
        spoil_tower(mine)
        lib.waste_state_reset(m.ctx)
        assert m.add(picture(30, 40))[0] == OK
        assert lib.waste_store_resume(store, m.session, ids, len(prompt), b"", byref(n)) == OK
        assert n.value == len(prompt) - 1
        assert m.feed(prompt[-1:]) == OK
        lib.waste_state_reset(m.ctx)
        assert m.add(picture(30, 40, seed=1))[0] == OK
        assert m.feed(prompt) == E_CORRUPT and "tower" in m.why()
        lib.waste_store_close(store)


@pytest.mark.parametrize("whose", ["context", "session"])
def test_a_picture_that_nobody_waits_for_is_not_seen(lib, box, tmp_path, whose):
    """A cancel before the tower, which would fail if it ran; the picture waits for the next try."""
    lib.waste_cancel.argtypes = lib.waste_session_cancel.argtypes = [c_void_p]
    mine = tmp_path / "mine.waste"
    shutil.copytree(box, mine)
    ids = [3] + [PAD] * 4 + [7]
    with Opened(lib, mine, free=1) as m:
        undo = spoil_tower(mine)
        assert m.add(picture(30, 40))[0] == OK
        if whose == "context":
            lib.waste_cancel(m.ctx)
        else:
            lib.waste_session_cancel(m.session)
        item = Item(size=ctypes.sizeof(Item), session=m.session, ids=(c_int32 * 6)(*ids), n_ids=6)
        status = lib.waste_step(m.ctx, byref(item), 1)
        assert (status if whose == "context" else item.status) == E_CANCELLED
        assert status == OK or whose == "context"
        assert item.n_done == 0
        assert m.feed(ids) == E_CORRUPT
        undo()
        lib.waste_session_image_clear(m.session)  # a tower that was read is kept while pictures wait
        assert m.add(picture(30, 40))[0] == OK
        assert m.feed(ids) == OK and m.feed([PAD]) == E_ARG


def test_a_budget_without_the_tower_in_it_is_refused(lib, box):
    plan = MemPlan()
    with Opened(lib, box, vision=0) as m:
        assert lib.waste_memory_used(m.ctx, byref(plan)) == OK
    m = Opened(lib, box, budget=plan.floor)
    assert m.status == E_BUDGET


def test_a_container_without_a_tower_says_so(lib, box, tmp_path):
    m = Opened(lib, ROOT / "tests" / "golden" / "k3.waste")
    assert m.status == E_UNSUPPORTED and "vision.json" in m.why(None)
    broken = tmp_path / "broken.waste"
    shutil.copytree(box, broken)
    text = (broken / "vision.json").read_text("ascii")
    (broken / "vision.json").write_text(text.replace('"patch_size": 14', '"patch_size": 16'))
    assert Opened(lib, broken).status == E_UNSUPPORTED
    (broken / "vision.json").write_text(text.replace(str(PAD), str(PAD - 1)))
    m = Opened(lib, broken)
    assert m.status == E_FORMAT and "<|media_pad|>" in m.why(None)
    (broken / "vision.json").write_text(text.replace('"qkv_hidden_size": 48', '"qkv_hidden_size": 96'))
    m = Opened(lib, broken)
    assert m.status == E_FORMAT and "wqkv" in m.why(None)


def test_a_state_is_only_taken_up_for_the_same_pictures(lib, box, tmp_path):
    """A store finds the prefix with this picture, not the one with another of the same size."""
    mine, other = picture(30, 40), picture(30, 40, seed=1)
    prompt = [3, 7] + [PAD] * 4 + [11, 5]
    with Opened(lib, box) as m:
        store, n = opened_store(lib, m, str(tmp_path / "states").encode()), c_size_t()
        ids = (c_int32 * len(prompt))(*prompt)

        def resume(data):
            lib.waste_state_reset(m.ctx)
            lib.waste_image_clear(m.ctx)
            assert m.add(data)[0] == OK
            assert lib.waste_store_resume(store, m.session, ids, len(prompt), b"", byref(n)) == OK
            return n.value

        assert resume(mine) == 0
        assert m.feed(prompt[:-1]) == OK
        assert lib.waste_store_keep(store, m.session, b"", 0) == OK, m.why()
        fresh = m.feed(prompt[-1:], 100)
        assert resume(other) == 0
        assert m.feed(prompt) == OK
        assert resume(mine) == len(prompt) - 1
        assert m.feed([PAD]) == E_ARG  # the rows of what was taken up are not waiting any more
        again = m.feed(prompt[-1:], 100)
        assert again.tobytes() == fresh.tobytes()
        lib.waste_store_close(store)


def test_a_prompt_by_the_names_of_its_rows_is_found_without_them(lib, box, tmp_path):
    """A host of several sessions asks which of them has the pictures; they wait in one."""
    lib.waste_session_image_ids.argtypes = [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_int32)]
    prompt = [3, 7] + [PAD] * 4 + [11, 5]
    ids, named = (c_int32 * len(prompt))(*prompt), (c_int32 * len(prompt))()
    with Opened(lib, box) as m:
        store, n = opened_store(lib, m), c_size_t()
        assert lib.waste_session_image_ids(m.session, ids, len(ids), named) == E_ARG
        assert m.add(picture(30, 40))[0] == OK
        assert lib.waste_session_image_ids(m.session, ids, len(ids) - 3, named) == E_ARG
        assert lib.waste_session_image_ids(m.session, ids, len(ids), named) == OK
        assert m.feed(prompt[:-1]) == OK
        assert list(named[:-1]) == m.ids() and min(named) < 0 and named[-1] == 5
        for given, found in ((ids, 2), (named, len(prompt) - 1)):
            assert lib.waste_store_find(store, m.session, given, len(given), b"") in (0, found)
        assert lib.waste_store_find(store, m.session, named, len(named), b"") == len(prompt) - 1
        assert lib.waste_store_resume(store, m.session, named, len(named), b"", byref(n)) == OK
        assert n.value == len(prompt) - 1 and m.feed([5]) == OK
        lib.waste_store_close(store)
