"""The second reader, which was written from docs/FORMAT.md alone, and the engine's own make the same
of a container, and refuse the same.

Run with: python3 -m pytest tests/test_read_container.py"""
import ctypes
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("WASTE_BUILD", ROOT / "build" / "gcc")).resolve()
BINARY = os.path.abspath(os.environ.get("WASTE_BIN", BUILD / "cli" / "waste"))
LIB = os.path.abspath(os.environ.get("WASTE_LIB", BUILD / "include" / "libwaste.so"))
READER = ROOT / "scripts" / "read_container.py"
GOLDEN = ROOT / "tests" / "golden"
DEMO = ROOT / "share" / "demo.waste"
ENV = {k: v for k, v in os.environ.items() if not k.startswith("WASTE_")}

sys.path.insert(0, str(ROOT / "scripts"))

import oracle_container as oc  # noqa: E402
import read_container as rc  # noqa: E402


def made(where, name):
    """A container of this name: committed, made of arithmetic, or synthetic."""
    if name == "demo":
        return DEMO
    if (GOLDEN / f"{name}.waste").exists():
        return GOLDEN / f"{name}.waste"
    out = where / name
    if name.startswith("mini"):
        oc.golden_mini(out, name.endswith("vq4p"))
    else:
        shape, *options = name.split()
        subprocess.run([BINARY, "synth", out, "--shape", shape, *options, "-q"], check=True,
                       env=ENV)
    return out


CONTAINERS = ["demo", "kimi-linear", "k3", "deepseek", "k2", "mini-vq3r", "mini-vq4p",
              "tiny-kimi", "tiny-k3 --vision", "tiny-deepseek --layers 2"]


@pytest.fixture(scope="session", params=CONTAINERS)
def container(request, tmp_path_factory):
    return made(tmp_path_factory.mktemp("c"), request.param)


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(GOLDEN / "kimi-linear.waste", tmp_path / "copy")
    for path in (tmp_path / "copy").iterdir():
        path.chmod(0o644)
    return tmp_path / "copy"


def engine_dump(path, experts):
    """{name: values} as the engine decodes them."""
    out = subprocess.run([BUILD / "tests" / "container_dump", path, *experts], check=True,
                         stdout=subprocess.PIPE).stdout
    at, found = 0, {}
    while at < len(out):
        end = out.index(b"\n", at)
        name, n = out[at:end].decode().rsplit(" ", 1)
        found[name.replace(":", ".")] = np.frombuffer(out, "<f4", int(n), end + 1)
        at = end + 1 + 4 * int(n)
    return found


def test_both_readers_decode_the_same_values(container):
    c = rc.Container(str(container))
    some = sorted({0, c.shape.experts // 2, c.shape.experts - 1})
    experts = [f"{layer}:{e}" for layer in c.shape.moe for e in some]
    found = engine_dump(container, experts)
    books = 3 * c.shape.stages * len(c.shape.moe)
    assert len(found) == len(c.tensors) + books + 3 * len(experts)
    for name, theirs in found.items():
        ours = c.named(name).reshape(-1)
        if name.startswith("expert"):  # the order of a sum is free
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * abs(theirs).max())
        else:
            assert ours.tobytes() == theirs.tobytes(), name


def test_every_format_there_is_was_among_them(tmp_path_factory):
    formats, stages, bits, vision = set(), set(), set(), 0
    for name in CONTAINERS:
        c = rc.Container(str(made(tmp_path_factory.mktemp("all"), name)))
        formats |= {t.fmt for t in c.tensors.values()}
        stages.add(c.shape.stages)
        bits.add(c.shape.bits)
        vision += any(n.startswith("vision_tower.") for n in c.tensors)
    assert formats == set(rc.FORMATS) and bits == {6, 8} and {2, 3, 4} <= stages and vision


def test_a_sound_container_is_called_sound(container):
    done = reader(container, "--check")
    assert done.returncode == 0 and done.stdout.endswith("\nsound\n") and not done.stderr


def test_the_oracle_s_reader_agrees(container):
    c, o = rc.Container(str(container)), oc.Container(container)
    for layer in c.shape.moe[:1]:
        for ours, theirs in zip(c.expert(layer, 0), o.expert(layer, 0)):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)
    for name in list(c.tensors)[:40]:
        if not name.startswith(("vision_tower", "mm_projector")):
            theirs = o.tensor(name.removeprefix(c.prefix)).reshape(c.tensors[name].shape)
            np.testing.assert_allclose(c.named(name), theirs, rtol=1e-6)


def test_the_published_figures_come_out(tmp_path):
    """Section 11 of the page."""
    c = rc.Container(str(made(tmp_path, "mini-vq3r")))
    gate, up, down = c.expert(1, 0)
    for w, norm, total in ((gate, 3.477533407, 6.910607), (up, 3.427515266, -10.181421),
                           (down, 3.502262635, 3.203329)):
        assert abs(np.linalg.norm(w.astype(float)) - norm) < 1e-6
        assert abs(w.astype(float).sum() - total) < 1e-4
    subnormal = c.named("model.layers.0.mlp.down_proj.weight")[3]
    np.testing.assert_allclose(subnormal[:3], [-2.0325e-05, 1.21951e-04, 1.42276e-04], rtol=1e-4)


def test_tokens_are_the_library_s(tmp_path):
    lib = ctypes.CDLL(LIB)
    lib.waste_token_bytes.argtypes = [ctypes.c_void_p, ctypes.c_int32,
                                      ctypes.POINTER(ctypes.c_void_p),
                                      ctypes.POINTER(ctypes.c_size_t)]
    lib.waste_token_is_control.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    t, text, n = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    assert lib.waste_tokenizer_open(str(DEMO).encode(), ctypes.byref(t)) == 0
    lines = [x.split("\t") for x in reader(DEMO, "--tokens").stdout.splitlines()]
    assert len(lines) == 4096 + 13
    for i, kind, spelt in lines:
        assert lib.waste_token_bytes(t, int(i), ctypes.byref(text), ctypes.byref(n)) == 0
        assert ctypes.string_at(text, n.value).hex() == spelt
        assert lib.waste_token_is_control(t, int(i)) == (kind == "control")


def test_a_matrix_is_written_for_numpy(tmp_path):
    out = tmp_path / "w.npy"
    done = reader(DEMO, "--dump", "expert.7.31.down", out)
    assert done.returncode == 0, done.stderr
    w, want = np.load(out), rc.Container(str(DEMO)).expert(7, 31)[2]
    assert w.dtype == np.float32 and w.tobytes() == want.tobytes()


def test_experts_on_several_drives_are_found(tmp_path):
    shutil.copytree(DEMO, tmp_path / "m")
    want = rc.Container(str(DEMO)).expert(3, 17)
    drive = tmp_path / "drive"
    drive.mkdir()
    subprocess.run([BINARY, "place", tmp_path / "m", "--drives", f".=1,{drive}=2", "-q"],
                   check=True, env=ENV)
    assert not (tmp_path / "m" / "experts-L3.bin").exists()
    c = rc.Container(str(tmp_path / "m"))
    c.check()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(c.expert(3, 17), want))


@pytest.mark.parametrize("member, value, wrong", [
    ("fmt", "VQ9", True), ("fmt", "VQ2R", True), ("fmt", 3, True), ("fmt", None, False),
    ("bits_per_weight", 1.5, True), ("bits_per_weight", "3", True),
    ("bits_per_weight", 3, False), ("bits_per_weight", None, False)])
def test_both_note_a_description_that_is_wrong(copy, member, value, wrong):
    edit(copy, lambda m: m["expert_quant"].update({member: value}))
    done = reader(copy, "--check")
    assert done.returncode == 0 and done.stdout.endswith("\nsound\n")
    assert (f"expert_quant.{member}" in done.stdout) is wrong
    engine = subprocess.run([BINARY, "verify", copy], capture_output=True, text=True, env=ENV)
    assert engine.returncode == 0 and (f"expert_quant.{member}" in engine.stdout) is wrong


def test_both_read_a_trunk_that_something_was_appended_to(copy):
    with open(copy / "trunk.bin", "ab") as f:
        f.write(bytes(100))
    assert reader(copy, "--check").returncode == 0
    assert subprocess.run([BINARY, "verify", copy, "-q"], env=ENV).returncode == 0


# ---- damage: one clear sentence from each, and never from one alone ----------------------------


def reader(path, *args):
    return subprocess.run([sys.executable, READER, path, *args], capture_output=True, text=True,
                          env=ENV)


def both_refuse(path, *words):
    done = reader(path, "--check")
    assert done.returncode == 1 and done.stdout.count("sound") == 0
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    engine = subprocess.run([BINARY, "verify", path], capture_output=True, text=True, env=ENV)
    assert engine.returncode not in (0, 2), (words, engine.stdout, engine.stderr)


def edit(path, change):
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


MANIFESTS = {
    "J7": ["manifest.json", lambda m: m.update(format_version=1)],
    "J8": ["config", lambda m: m.pop("config")],
    "F1": ["hidden_size", lambda m: m["config"].update(hidden_size=0)],
    "F3": ["num_experts_per_token", lambda m: m["config"].update(num_experts_per_token=65)],
    "F4": ["moe_renormalize", lambda m: m["config"].update(moe_renormalize="yes")],
    "F5": ["named twice", lambda m: m["config"]["linear_attn_config"]["kda_layers"].append(1)],
    "J6": ["hidden_size", lambda m: m["config"].update(hidden_size=8.5)],
    "F8": ["index_block", lambda m: m["expert_quant"].pop("index_block")],
    "T2": ["twice", lambda m: m["trunk"].append(m["trunk"][0])],
    "T3": ["format 1", lambda m: m["trunk"][3].update(fmt=1)],
    "T4": ["shape", lambda m: m["trunk"][3].update(shape=[])],
    "T5": ["group 64", lambda m: next(t for t in m["trunk"] if t["fmt"]).update(group=64)],
    "T6": ["of a file of", lambda m: m["trunk"][0].update(off=10 ** 9)],
    "T8": ["bytes", lambda m: m["trunk"][0].update(bytes=m["trunk"][0]["bytes"] + 1)],
    "T9": ["overlap", lambda m: m["trunk"][1].update(off=m["trunk"][0]["off"])],
    "T10": ["missing", lambda m: m["trunk"].pop()],
    "B1": ["layer", lambda m: m["layers"].popitem()],
    "B2": ["..", lambda m: next(iter(m["layers"].values())).update(file="../experts-L1.bin")],
    "B4": ["experts", lambda m: next(iter(m["layers"].values())).update(experts=1)],
    "C6": ["codebooks", lambda m: next(iter(m["layers"].values())).update(codebook_base=60000)],
}


@pytest.mark.parametrize("rule", MANIFESTS)
def test_a_damaged_manifest_is_refused_by_both(copy, rule):
    word, change = MANIFESTS[rule]
    edit(copy, change)
    both_refuse(copy, word)


@pytest.mark.parametrize("text, word", [
    (b"", "0 bytes"), (b"{", "manifest.json"), (b"[]", "no object"), (b'{"a":1,"a":2}', "twice"),
    (b"[" * 100000, "nested"), (b'{"format_version":0,"x":1e999}', "finite"),
    (b'{"format_version":0,"x":NaN}', "NaN"), (b'{"a":"\xff"}', "manifest.json")])
def test_what_is_no_json_of_this_version_is_refused_by_both(copy, text, word):
    (copy / "manifest.json").write_bytes(text)
    both_refuse(copy, word)


FILES = {
    "a bank cut by a page": ("experts-L1.bin", lambda b: b[:-4096], "did not finish"),
    "a bank cut by a byte": ("experts-L1.bin", lambda b: b[:-1], "did not finish"),
    "a trunk cut": ("trunk.bin", lambda b: b[:-1], "of a file of"),
    "codebooks cut": ("codebooks.bin", lambda b: b[:-1], "multiple"),
    "a codebook of another id": ("codebooks.bin", lambda b: b[:4] + b"\x09" + b[5:], "record 0"),
    "a payload's bit": ("experts-L1.bin", lambda b: b[:100] + bytes([b[100] ^ 1]) + b[101:],
                        "checksum"),
    "an offset's bit": ("experts-L1.bin", lambda b: b[:24] + bytes([b[24] ^ 1]) + b[25:],
                        "offsets"),
    "a magic": ("experts-L1.bin", lambda b: b"WEXQ" + b[4:], "magic"),
    "a tokenizer of another kind": ("tokenizer.model", lambda b: b"\x0a\x0e\n" + b, "line 2"),
    "specials of another kind": ("specials.json", lambda b: b"{}", "specials.json"),
}


@pytest.mark.parametrize("what", FILES)
def test_a_damaged_file_is_refused_by_both(copy, what):
    name, change, word = FILES[what]
    path = copy / name
    if not path.exists():
        shutil.copy(DEMO / name, path)
        edit(copy, lambda m: None)
    path.write_bytes(change(path.read_bytes()))
    both_refuse(copy, name if "bit" not in what and "magic" not in what else "layer 1 expert 0",
                word)


def test_swapped_banks_are_refused_by_both(copy):
    (copy / "experts-L1.bin").rename(copy / "x")
    (copy / "experts-L2.bin").rename(copy / "experts-L1.bin")
    (copy / "x").rename(copy / "experts-L2.bin")
    both_refuse(copy, "layer 1 expert 0", "header says layer 2")


def test_a_scale_that_is_not_finite_is_refused_by_both(copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    t = next(t for t in manifest["trunk"] if t["fmt"])
    data = bytearray((copy / "trunk.bin").read_bytes())
    data[t["scale_off"]:t["scale_off"] + 2] = b"\x00\x7c"
    (copy / "trunk.bin").write_bytes(data)
    both_refuse(copy, t["name"], "finite")


def test_a_container_that_is_none_is_refused_by_both(tmp_path):
    both_refuse(tmp_path, "manifest.json")
    both_refuse(tmp_path / "nowhere", "no such directory")


def test_an_unknown_name_is_named(tmp_path):
    for name in ("nothing", "expert.7.31.left", "expert.7.32.down", "expert.0.0.gate", "codebook.x",
                 "codebook.9999"):
        done = reader(DEMO, "--dump", name, tmp_path / "x.npy")
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
        assert not (tmp_path / "x.npy").exists()


# ---- chance: whatever a number in the manifest becomes, both say the same ----------------------

VALUES = [None, 0, 1, 2, 3, 7, 8, 16, 64, 65, 128, -1, 1.5, 8.0, "x", "", True, False, [], {}, [1],
          2 ** 31, 2 ** 53, 1e300, 1e-40, -80.5, "situ", "yarn"]
KEYS = ["num_key_value_heads", "n_group", "topk_group", "moe_layer_freq", "scoring_func",
        "topk_method", "attention_bias", "rope_interleave", "rope_scaling", "hidden_act",
        "norm_topk_prob", "latent_moe_use_norm", "q_lora_rank", "routed_expert_hidden_size",
        "attn_res_block_size", "eos_token_id", "n_shared_experts", "mla_use_nope", "rope_theta",
        "n_routed_experts", "waste_latent_norm_eps", "text_config", "_outer", "architectures"]


def spoilt(manifest, draw):
    """A member of the manifest gone, another number, or a value of any kind."""
    config = manifest["config"]
    places = [manifest, config, config.get("linear_attn_config") or config,
              manifest["expert_quant"], draw.choice(manifest["trunk"]),
              manifest["layers"][draw.choice(list(manifest["layers"]))]]
    where = draw.choice(places)
    if where is config and draw.random() < 0.5:
        key = draw.choice(KEYS)
        where[key] = draw.choice(VALUES)
        return key
    key = draw.choice(list(where))
    how = draw.random()
    if how < 0.2:
        del where[key]
    elif how < 0.5 and type(where[key]) in (int, float):
        where[key] += draw.choice([-1, 1, 128, -128, 4096, 0.5])
    else:
        where[key] = draw.choice(VALUES)
    return key


def test_chance_damage_to_a_manifest_is_judged_alike(tmp_path):
    lib = ctypes.CDLL(LIB)
    lib.waste_error_detail.restype = ctypes.c_char_p
    lib.waste_close.argtypes = [ctypes.c_void_p]
    draw, refused = random.Random(11), 0
    for n in range(400):
        source = GOLDEN / f"{draw.choice(['kimi-linear', 'k3', 'deepseek', 'k2'])}.waste"
        where = tmp_path / str(n)
        where.mkdir()
        for path in source.iterdir():
            (where / path.name).symlink_to(path)
        manifest = json.loads((source / "manifest.json").read_text())
        key = spoilt(manifest, draw)
        (where / "manifest.json").unlink()
        (where / "manifest.json").write_text(json.dumps(manifest))
        ours = None
        try:
            rc.Container(str(where))
        except rc.Refused as why:
            ours = str(why)
        context = ctypes.c_void_p()
        theirs = lib.waste_open(str(where).encode(), None, ctypes.byref(context))
        assert (ours is None) == (theirs == 0), (n, source.name, key, ours,
                                                 lib.waste_error_detail(None))
        lib.waste_close(context)
        refused += ours is not None
    assert 100 < refused < 350
