"""`waste convert` and `waste verify --against`, on tiny checkpoints of every family. The trunk is
recomputed here from its published recipe alone."""

import base64
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from zlib import crc32

import pytest

from conftest import (BINARY, BUDGET, FAMILIES, clean_env, preload, waste, waste_error,
                      waste_json)

np = pytest.importorskip("numpy")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import oracle_checkpoint as och  # noqa: E402
import oracle_container as oc  # noqa: E402
from conversions import (SHARDS, STATE, add_sparse, manifest, mount_namespace, preloaded,  # noqa: E402, F401
                         same_files, small, source, two_layers, unfinished)

PATCH = "vision_tower.patch_embed.proj.weight"
# Large enough for every format of the trunk, with partial groups.
WIDE = {"kimi-linear": {"hidden_size": 264, "intermediate_size": 320},
        "k3": {"hidden_size": 264, "intermediate_size": 320},
        "deepseek": {"hidden_size": 264, "intermediate_size": 320},
        "k2": {"hidden_size": 264, "intermediate_size": 320}}


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """{family: directory}; do not change them."""
    top = tmp_path_factory.mktemp("sources")
    for family in FAMILIES:
        och.write_checkpoint(family, top / family, overrides=WIDE[family])
    return {family: top / family for family in FAMILIES}


@pytest.fixture(scope="session")
def converted(sources, tmp_path_factory):
    top = tmp_path_factory.mktemp("converted")
    out = {}
    for family, release in sources.items():
        out[family] = top / f"{family}.waste"
        waste_json("convert", "--src", release, "--out", out[family])
    return out


@pytest.fixture(scope="session")
def packed(sources, tmp_path_factory):
    """The same in VQ4P."""
    top = tmp_path_factory.mktemp("packed")
    for family, release in sources.items():
        waste("convert", "--src", release, "--out", top / family, "--format", "vq4p", check=0)
    return {family: top / family for family in sources}


# ---- the trunk, from its recipe ----

F32, Q8G, Q4G = 0, 2, 3


def tensor_format(name, shape, bits=4, router=0):
    n = int(np.prod(shape))
    vision = name.startswith(("vision_tower.", "mm_projector."))
    if vision and len(shape) > 2:
        return Q8G
    if len(shape) == 1 or n < 65536 or name.endswith(("_conv1d.weight", "A_log", "dt_bias")):
        return F32
    if vision or name.endswith(("embed_tokens.weight", "lm_head.weight")):
        return Q8G
    if router == 8 and name.endswith(("block_sparse_moe.gate.weight", ".b_proj.weight")):
        return Q8G
    return Q8G if bits == 8 else Q4G


def tensor_bytes(x, fmt):
    x = np.ascontiguousarray(x, np.float32).reshape(-1, x.shape[-1])
    if fmt == F32:
        return x.tobytes()
    most, low = {Q8G: (127, -127), Q4G: (7, -8)}[fmt]
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % 128))).reshape(len(x), -1, 128)
    scale = np.maximum(np.abs(padded).max(axis=2), np.float32(1e-8)) / np.float32(most)
    q = np.clip(np.rint(padded / scale[:, :, None]), low, most).astype(np.int8).reshape(len(x), -1)
    codes = q.view(np.uint8)
    if fmt == Q4G:
        u = (q + 8).astype(np.uint8)
        codes = u[:, ::2] | u[:, 1::2] << 4
    return codes.tobytes() + scale.astype(np.float16).tobytes()


def container_name(name, deepseek):
    if deepseek and (name.endswith((".mlp.gate.weight", ".mlp.gate.e_score_correction_bias")) or
                     ".mlp.shared_experts." in name):
        return name.replace(".mlp.", ".block_sparse_moe.", 1)
    return name


def flat(name, x):
    if name.startswith(("vision_tower.", "mm_projector.")):
        if x.ndim == 4:
            return x.reshape(len(x), -1)
        if x.ndim == 3:
            return x.reshape(-1, x.shape[2])
    return x


def expected_trunk(family, source, **widths):
    c = och.Checkpoint(source)
    n_layers, entries, data = c.config["num_hidden_layers"], [], b""
    for name in sorted(c.logical):
        parts = name.removeprefix(c.prefix).split(".")
        if parts[:2] == ["model", "layers"] and int(parts[2]) >= n_layers or ".experts." in name:
            continue
        ours = container_name(name, family in ("deepseek", "k2"))
        x = c.logical[name]
        fmt = tensor_format(ours, x.shape, **widths)
        x = flat(ours, x)
        piece = tensor_bytes(x, fmt)
        entries.append((ours, fmt, list(x.shape), len(data), len(piece)))
        data += piece
    return entries, data


def trunk_list(path):
    return [(t["name"], t["fmt"], t["shape"], t["off"], t["bytes"]) for t in manifest(path)["trunk"]]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_trunk_is_the_published_recipes_to_the_byte(sources, converted, family):
    entries, data = expected_trunk(family, sources[family])
    assert trunk_list(converted[family]) == entries
    assert (converted[family] / "trunk.bin").read_bytes() == data
    assert {Q8G, Q4G, F32} == {t[1] for t in entries}


def test_widths_on_request(sources, tmp_path):
    for i, (args, widths) in enumerate([(["--trunk-bits", "8"], {"bits": 8}),
                                        (["--router-bits", "8"], {"router": 8})]):
        out = tmp_path / str(i)
        waste("convert", "--src", sources["k3"], "--out", out, *args, check=0)
        entries, data = expected_trunk("k3", sources["k3"], **widths)
        assert trunk_list(out) == entries and (out / "trunk.bin").read_bytes() == data


# ---- what comes out ----

@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_checkpoint_verifies_and_runs(sources, converted, family):
    assert waste_json("verify", converted[family])["bad"] == 0
    got = waste_json("verify", converted[family], "--against", sources[family], "--all")
    assert got["good"] and got["over_limit"] == 0 and got["trunk_different"] == 0
    assert got["trunk_tensors"] == len(manifest(converted[family])["trunk"])
    m = manifest(converted[family])
    assert got["errors"]["gate"]["n"] == len(m["layers"]) * m["config"]["num_experts"]
    ids = waste_json("eval", converted[family], "--ids", "3 7 11", "--budget", BUDGET, "--logits")
    assert all(abs(v) < 1e4 for v in ids["logits"])


@pytest.mark.parametrize("family", FAMILIES)
def test_each_expert_is_itself_to_readers_that_share_no_code(sources, converted, family):
    """Source and container, both read by the oracle: w1, w3, w2 are gate, up, down, each expert is in
    its place. Another matrix of the same shape would be off by 1.4."""
    source, made = och.Checkpoint(sources[family]), oc.Container(converted[family])
    for layer in map(int, made.manifest["layers"]):
        for want, got in zip(source.experts(layer), made.experts(layer), strict=True):
            for w, g in zip(want, got, strict=True):
                assert w.shape == g.shape
                assert np.linalg.norm(w - g) < 0.3 * np.linalg.norm(w)


@pytest.mark.parametrize("family", FAMILIES)
def test_four_packed_stages_are_read_by_all_readers(sources, converted, packed, family):
    """The oracle, which shares no code; verify; each numeric profile. Of the rest of the container
    nothing has changed."""
    made, source = packed[family], och.Checkpoint(sources[family])
    quant = manifest(made)["expert_quant"]
    assert quant == {"fmt": "VQ4P", "stages": 4, "vec_dim": 8, "entries": 64, "index_block": 64,
                     "index_bits": 6, "bits_per_weight": 3.0}
    assert (made / "trunk.bin").read_bytes() == (converted[family] / "trunk.bin").read_bytes()
    oracle, most = oc.Container(made), 0
    for layer in map(int, oracle.manifest["layers"]):
        for want, got in zip(source.experts(layer), oracle.experts(layer), strict=True):
            for w, g in zip(want, got, strict=True):
                most = max(most, np.linalg.norm(w - g) / np.linalg.norm(w))
    got = waste_json("verify", made, "--against", sources[family], "--all")
    assert got["good"] and waste_json("verify", made)["bad"] == 0
    errors = [got["errors"][kind]["max"] for kind in ("gate", "up", "down")]
    assert max(errors) == pytest.approx(most, rel=1e-4)
    assert "VQ4P, 4 stages of 64" in waste("info", made, check=0).stdout.decode()
    ids = ["eval", made, "--ids", "3 7 11", "--budget", BUDGET, "--logits", "--numeric"]
    exact = np.array(waste_json(*ids, "f32")["logits"])
    for profile, near in (("direct", 1e-4), ("i16", 1e-3), ("i8", 0.2)):  # i8 turns close choices
        off = np.linalg.norm(np.array(waste_json(*ids, profile)["logits"]) - exact)
        assert off < near * np.linalg.norm(exact), profile


def test_a_format_has_one_name_too_many_only_if_they_disagree(small, tmp_path):
    args = ["convert", "--src", small / "k3", "--out", tmp_path / "x", "--stages"]
    for stages, fmt in (("2", "vq3r"), ("3", "vq4p")):
        detail = waste_error(*args, stages, "--format", fmt, check=2)["detail"]
        assert fmt in detail and stages in detail
    assert not (tmp_path / "x").exists()
    waste(*args, "3", "--format", "vq3r", check=0)
    same_files(small / "k3.waste", tmp_path / "x")
    done = waste("convert", "--src", small / "k3", "--out", tmp_path / "y", "--format", "vq4p",
                 check=0)
    assert b"2026-08-04" in done.stderr
    other = waste_error("convert", "--src", small / "k3", "--out", tmp_path / "y", check=2)
    assert "other parameters" in other["detail"]


@pytest.mark.parametrize("family", FAMILIES)
def test_other_readers_rules_are_kept(converted, family):
    m = manifest(converted[family])
    config, quant = m["config"], m["expert_quant"]
    assert m["format_version"] == 0
    assert m["tensor_prefix"] == ("language_model." if family == "k3" else "")
    assert quant == {"fmt": "VQ3R", "stages": 3, "vec_dim": 8, "entries": 256, "index_block": 64,
                     "index_bits": 8, "bits_per_weight": 3.0}
    for at in (config, config.get("linear_attn_config", {})):
        for flag in ("moe_renormalize", "latent_moe_use_norm", "mla_use_output_gate",
                     "use_full_rank_gate"):
            assert at.get(flag, True) is True
    assert config["num_experts"] and config["num_experts_per_token"]
    assert isinstance(config["eos_token_id"], int)
    assert list(m["layers"]) == sorted(m["layers"], key=int)
    for entry in json.loads((converted[family] / "specials.json").read_text("utf-8")):
        assert list(entry) == ["id", "text"]
    files = {p.name for p in converted[family].iterdir()}
    assert STATE not in files and not [f for f in files if f.endswith(".tmp") or "codebooks-L" in f]
    assert ("chat.json" in files) == (family in ("kimi-linear", "k3"))
    assert ("vision.json" in files) == (family == "k3")
    assert ("tokenizer.model" in files) == (family != "deepseek")
    assert "_outer" in config if family == "k3" else "_outer" not in config


def test_the_vision_towers_geometry(sources, converted):
    vision = json.loads((converted["k3"] / "vision.json").read_text("utf-8"))
    release = json.loads((sources["k3"] / "config.json").read_text("utf-8"))
    assert release["vision_config"].items() <= vision.items()
    assert vision["media_placeholder_token_id"] == release["media_placeholder_token_id"]
    assert vision["image_mean"] == [0.5] * 3 and vision["max_patches"] == 1024
    patch = next(t for t in manifest(converted["k3"])["trunk"] if t["name"] == PATCH)
    assert patch["fmt"] == Q8G and patch["shape"] == [32, 588]


@pytest.mark.parametrize("fmt,low,high", [("vq3r", 0.18, 0.215), ("vq2r", 0.30, 0.36),
                                          ("vq4p", 0.195, 0.23)])
def test_relative_errors_on_gaussian_weights(tmp_path, fmt, low, high):
    """Fitted on one expert of few weights; the largest error is one of the others'."""
    och.write_checkpoint("kimi-linear", tmp_path / "src",
                         overrides={"hidden_size": 512, "moe_intermediate_size": 384})
    waste("convert", "--src", tmp_path / "src", "--out", tmp_path / "x", "--format", fmt,
          "--sample", 1, check=0)
    errors = waste_json("verify", tmp_path / "x", "--against", tmp_path / "src",
                        "--sample", 2)["errors"]
    for kind in ("gate", "up", "down"):
        assert low < errors[kind]["max"] < high, errors


def test_verify_against_finds_what_was_changed(small, tmp_path):
    broken = Path(shutil.copytree(small / "k3.waste", tmp_path / "x"))
    entry = next(t for t in manifest(broken)["trunk"] if t["name"].endswith("layers.0.mlp.up_proj"
                                                                            ".weight"))
    data = bytearray((broken / "trunk.bin").read_bytes())
    data[entry["off"]] ^= 1
    (broken / "trunk.bin").write_bytes(data)
    got = waste_json("verify", broken, "--against", small / "k3", check=4)
    assert got["trunk_different"] == 1 and got["first_different"] == entry["name"]
    assert got["config_different"] == ""
    text = json.loads((small / "k3.waste" / "manifest.json").read_text())
    text["config"]["rms_norm_eps"] *= 2
    turned = Path(shutil.copytree(small / "k3.waste", tmp_path / "y"))
    (turned / "manifest.json").write_text(json.dumps(text))
    got = waste_json("verify", turned, "--against", small / "k3", check=4)
    assert got["config_different"] == "rms_norm_eps" and got["trunk_different"] == 0
    assert b"configuration: rms_norm_eps is not" in waste(
        "verify", turned, "--against", small / "k3", check=4).stdout
    text["config"]["rms_norm_eps"] /= 2
    for name in ("activation_situ_beta", "latent_moe_use_norm"):
        del text["config"][name]  # what is left out stands for its default
    text["config"]["num_experts_per_token"] -= 1
    (turned / "manifest.json").write_text(json.dumps(text))
    got = waste_json("verify", turned, "--against", small / "k3", check=4)
    source = manifest(small / "k3.waste")["config"]
    top_k, beta = source["num_experts_per_token"], source["activation_situ_beta"]
    assert [(d["name"], d["container"], d["source"]) for d in got["computed_with"]] == [
        ("num_experts_per_token", top_k - 1, top_k), ("latent_moe_use_norm", 0, 1),
        ("activation_situ_beta", 1, beta)]
    said = waste("verify", turned, "--against", small / "k3", check=4).stdout.decode()
    assert f"configuration: num_experts_per_token is not what the source has: {top_k - 1}, there {top_k}\n" in said
    assert said.count("num_experts_per_token") == 1
    other = tmp_path / "other"
    och.write_checkpoint("k3", other, seed=99)
    got = waste_json("verify", small / "k3.waste", "--against", other, check=4)
    assert got["over_limit"] > 0 and got["errors"]["gate"]["mean"] > 1


# ---- the same bytes, whatever happens ----

def test_threads_and_one_file_make_no_difference(small, tmp_path):
    och.write_checkpoint("k3", tmp_path / "single", n_shards=0)
    for i, (src, jobs) in enumerate([(small / "k3", 1), (small / "k3", 5),
                                     (tmp_path / "single", 2)]):
        waste("convert", "--src", src, "--out", tmp_path / str(i), "--jobs", jobs, check=0)
        same_files(small / "k3.waste", tmp_path / str(i), same_shards=src == small / "k3")


def test_killed_anywhere_and_run_again_it_ends_the_same(small, tmp_path):
    out, rng, alive = tmp_path / "x", random.Random(20), 0
    args = [BINARY, "convert", "--src", small / "k3", "--out", out, "--jobs", "2", "--quiet"]
    begun = time.monotonic()
    waste(*args[1:], check=0)
    whole = time.monotonic() - begun
    same_files(small / "k3.waste", out)
    shutil.rmtree(out)
    for _ in range(20):
        child = subprocess.Popen(args, env=clean_env(), stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(0, 0.6 * whole))
        child.kill()
        alive += child.wait() == -signal.SIGKILL
        if not (out / "manifest.json").exists():
            waste("info", out, check=1)
            if rng.random() < 0.5:
                continue  # killed again where it goes on
            waste(*args[1:], check=0)
        waste(*args[1:], check=0)
        same_files(small / "k3.waste", out)
        shutil.rmtree(out)
    assert alive > 5
    waste(*args[1:], check=0)
    same_files(small / "k3.waste", out)


@pytest.mark.parametrize("env", [[], ["NO_FALLOCATE=1"]])
def test_a_full_disk_leaves_what_is_finished_and_says_what_it_needs(two_layers, tmp_path, env):
    """Volumes of every size: each file meets the end of one."""
    way = mount_namespace(tmp_path)
    if not way:
        pytest.skip("no right to mount: as root, in a user namespace or by sudo")
    done = subprocess.run([*way, sys.executable, Path(__file__).with_name("full_disk.py"), BINARY,
                           preload("full_disk"), two_layers / "src", two_layers / "x.waste", tmp_path, *env],
                          capture_output=True, timeout=250)
    assert done.returncode == 0, done.stderr
    runs, full = [json.loads(line) for line in done.stdout.splitlines()], set()
    for run in runs[:-1]:
        assert run["exit"] == 1 and not run["opens"], run
        found = re.search(r"x\.waste: (?:.*: )?([\w-]+\.(?:bin|json|model|jinja)): [\w ]+: No space left on "
                          r"device: need [\d.]+ KiB on (\S+), [\d.]+ KiB free; make room and run it again",
                          run["detail"])
        assert found and found[2] == str(tmp_path), run
        full.add(found[1])
        assert not [name for name in run["left"] if name.endswith(".tmp")], run
        assert run["begun"] == (STATE in run["left"])
    for run in runs:
        assert run["resumed"] == [0, ""] and run["different"] == [], run
        if "checked" in run:
            assert run["checked"][0] == 1 and re.search(r"x\.waste: need [\d.]+ KiB on \S+, [\d.]+ KiB "
                                                        r"free", run["checked"][1]), run
    assert runs[-1]["exit"] == 0 and any("checked" in run for run in runs)
    assert {STATE, "tokenizer.model", "specials.json", "trunk.bin", "codebooks-L2.bin",
            "experts-L2.bin", "codebooks.bin", "manifest.json"} <= full


def test_codebooks_without_their_bank_and_a_bank_without_its_codebooks(small, tmp_path):
    out = tmp_path / "x"
    shutil.copytree(small / "k3.waste", out)
    state = {key: manifest(out)[key] for key in ("waste_convert", SHARDS)}
    codebooks = (out / "codebooks.bin").read_bytes()
    part = 9 * (16 + 2 * 256 * 8)
    (out / STATE).write_text(json.dumps(state))
    for name in ("manifest.json", "codebooks.bin", "experts-L2.bin"):
        (out / name).unlink()
    for layer in (2, 3):
        piece = codebooks[(layer - 1) * part:layer * part]
        (out / f"codebooks-L{layer}.bin").write_bytes(piece + crc32(piece).to_bytes(4, "little"))
    done = waste_json("convert", "--src", small / "k3", "--out", out)
    assert done["banks_kept"] == 1 and not done["was_complete"]
    same_files(small / "k3.waste", out)


def test_again_it_is_complete(small, tmp_path):
    out = Path(shutil.copytree(small / "k3.waste", tmp_path / "x"))
    (out / STATE).write_text("{}")  # killed between the last two steps
    (out / "codebooks-L1.bin").write_bytes(b"x")
    done = waste_json("convert", "--src", small / "k3", "--out", out)
    assert done["was_complete"] and done["bytes_written"] == 0
    same_files(small / "k3.waste", out)


def test_a_file_that_the_file_system_has_no_room_for_says_so(two_layers, tmp_path):
    """FAT ends at 4 GiB; here a limit of the process does."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))

    done = waste("convert", "--src", two_layers / "src", "--out", tmp_path / "x", preexec_fn=limit)
    assert done.returncode == 1 and b"trunk.bin: reserving: File too large" in done.stderr
    assert b"smaller files only" in done.stderr


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: os.truncate(path, 4096)])
@pytest.mark.parametrize("name", ["experts-L3.bin", "trunk.bin", "codebooks.bin"])
def test_complete_is_not_said_of_what_does_not_open(small, tmp_path, name, spoil):
    out = Path(shutil.copytree(small / "k3.waste", tmp_path / "x"))
    spoil(out / name)
    done = waste("convert", "--src", small / "k3", "--out", out)
    assert done.returncode in (1, 4)
    assert b"does not open now" in done.stderr and name.encode() in done.stderr


def test_a_finished_container_that_was_spread_is_complete(small, tmp_path):
    out = Path(shutil.copytree(small / "k3.waste", tmp_path / "x"))
    (tmp_path / "drive").mkdir()
    waste("place", out, "--drives", f".=1,{tmp_path}/drive=1", check=0)
    assert waste_json("convert", "--src", small / "k3", "--out", out)["was_complete"]


@pytest.mark.parametrize("command", ["convert", "synth"])
def test_what_another_run_did_before_the_lock_is_not_written_over(source, tmp_path, command):
    """The second looks at the directory, the first works there and is killed, the second gets the
    lock."""
    out = tmp_path / "x"
    words = {"convert": (["convert", "--src", source, "--out", out], ["--stages", "2"]),
             "synth": (["synth", out, "--shape", "tiny-k3"], ["--seed", "5"])}[command]
    env = clean_env({"LD_PRELOAD": preload("power_cut")})
    late = subprocess.Popen([BINARY, *words[0], *words[1], "--json"], env={**env, "ORDER_STOP": "flock"},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert os.WIFSTOPPED(os.waitpid(late.pid, os.WUNTRACED)[1])
    first = subprocess.run([BINARY, *words[0], "--quiet"], env={**env, "ORDER_KILL": "20"})
    assert first.returncode == -signal.SIGKILL
    before = {p.name: p.read_bytes() for p in out.iterdir() if p.suffix != ".tmp"}
    assert before
    late.send_signal(signal.SIGCONT)
    _, said = late.communicate()
    assert late.returncode == 2 and "other parameters" in json.loads(said)["detail"]
    assert before == {p.name: p.read_bytes() for p in out.iterdir() if p.suffix != ".tmp"}
    waste(*words[0], check=0)


def test_a_state_that_has_moved_on_before_the_lock_is_looked_at_again(source, small, tmp_path):
    out = tmp_path / "x"
    late = preloaded(source, out, ORDER_STOP="flock")
    assert os.WIFSTOPPED(os.waitpid(late.pid, os.WUNTRACED)[1])
    first = preloaded(source, out, ORDER_KILL="30")
    first.communicate()
    assert first.returncode == -signal.SIGKILL and json.loads((out / STATE).read_text())["trunk_sum"]
    late.send_signal(signal.SIGCONT)
    _, said = late.communicate()
    assert late.returncode == 5 and "another run was at work there until now" in said
    assert json.loads((out / STATE).read_text())["trunk_sum"]
    waste("convert", "--src", source, "--out", out, check=0)
    same_files(small / "k3.waste", out)


# ---- what is refused ----

def test_somebody_elses_directory_is_left_alone(small, tmp_path):
    args = ["convert", "--src", small / "k3", "--out"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    assert "is not empty (x)" in waste_error(*args, tmp_path / "full", check=2)["detail"]
    other = waste_error(*args, small / "k3.waste", "--stages", "2", check=2)
    assert "other parameters" in other["detail"]
    assert "no unfinished" in waste_error(*args, tmp_path / "new", "--resume", check=2)["detail"]
    assert not (tmp_path / "new").exists()
    assert "go only with --against" in waste_error("verify", small / "k3.waste", "--all",
                                                   check=2)["detail"]
    for missing in ("--src", "--out"):
        given = "--out" if missing == "--src" else "--src"
        assert missing in waste_error("convert", given, "x", check=2)["detail"]


def refused(source, tmp_path, *names, check):
    detail = waste_error("convert", "--src", source, "--out", tmp_path / "x", check=check)["detail"]
    for name in names:
        assert name in detail, detail
    assert not (tmp_path / "x").exists()


def test_a_missing_or_short_shard_is_named_at_once(source, tmp_path):
    shard = sorted(source.glob("*.safetensors"))[1]
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    refused(source, tmp_path, shard.name, "finish the download", check=1)
    shard.unlink()
    refused(source, tmp_path, shard.name, check=1)


def without(source, *gone, rename=None):
    """Rewrite the checkpoint without some of its tensors, or with another name for one."""
    stored = och.Checkpoint(source).stored
    for name in gone:
        stored.pop(name)
    for old, new in (rename or {}).items():
        stored[new] = stored.pop(old)
    for path in source.glob("*.safetensors"):
        path.unlink()
    och.write_tensors(source, stored, 3)


MOE = "language_model.model.layers.2.block_sparse_moe."


def test_a_missing_tensor_is_named(source, tmp_path):
    without(source, "language_model.model.norm.weight")
    refused(source, tmp_path, '"language_model.model.norm.weight" is missing', check=4)


def test_a_missing_expert_is_named(source, tmp_path):
    without(source, MOE + "experts.3.w2.weight_packed", MOE + "experts.3.w2.weight_scale")
    refused(source, tmp_path, "layer 2: expert 3 down is missing", MOE + "experts.3.w2.weight",
            check=4)


def test_half_a_pair_is_named(source, tmp_path):
    without(source, MOE + "experts.3.w2.weight_scale")
    refused(source, tmp_path, MOE + "experts.3.w2.weight", check=4)


def test_an_expert_too_many_is_named(source, tmp_path):
    old, new = MOE + "experts.3.w2.weight", MOE + "experts.77.w2.weight"
    without(source, rename={old + s: new + s for s in ("_packed", "_scale")})
    refused(source, tmp_path, new, check=4)


def test_a_router_of_deepseek_is_asked_for_by_its_own_name(tmp_path):
    source = tmp_path / "deepseek"
    och.write_checkpoint("deepseek", source)
    without(source, "model.layers.3.mlp.gate.weight")
    refused(source, tmp_path, '"model.layers.3.mlp.gate.weight" is missing', check=4)


def test_another_shape_is_named(source, tmp_path):
    config = json.loads((source / "config.json").read_text())
    config["text_config"]["moe_intermediate_size"] = 64
    (source / "config.json").write_text(json.dumps(config))
    refused(source, tmp_path, "configuration says [64,", check=4)


def test_a_value_that_is_not_finite_is_named(tmp_path):
    source = tmp_path / "src"
    och.write_checkpoint("kimi-linear", source)
    stored = och.Checkpoint(source).stored
    name = "model.layers.2.block_sparse_moe.experts.1.w1.weight"
    dtype, shape, data = stored[name]
    stored[name] = dtype, shape, data[:20] + b"\xc0\x7f" + data[22:]
    och.write_tensors(source, stored, 3)
    detail = waste_error("convert", "--src", source, "--out", tmp_path / "x", check=4)["detail"]
    assert name in detail and "non-finite" in detail
    assert not (tmp_path / "x" / "manifest.json").exists()


@pytest.mark.parametrize("shape", [[1, 1, 65536, 65536], [1, 3, 65536, 43691], [65536, 65536, 1],
                                   [1 << 27, 8]])
def test_dimensions_whose_product_has_no_room_are_refused(source, tmp_path, shape):
    name = "vision_tower.patch_embed.extra.weight"
    try:
        add_sparse(source, name, "F16", shape, 2 * math.prod(shape))
    except OSError:
        pytest.skip("the file system has no room for a sparse file of 17 GB")
    refused(source, tmp_path, name, ",".join(map(str, shape)), check=6)


# ---- the small files ----

@pytest.mark.parametrize("name", ["tiktoken.model", "tokenizer_config.json", "generation_config.json",
                                  "preprocessor_config.json", "chat_template.jinja", "config.json"])
def test_a_fifo_in_a_files_place_is_named_and_hangs_nothing(source, tmp_path, name):
    (source / name).unlink(missing_ok=True)
    os.mkfifo(source / name)
    detail = waste_error("convert", "--src", source, "--out", tmp_path / "x", check=1)["detail"]
    assert f"{name}: not a regular file" in detail


def test_a_chat_format_is_never_overwritten(small, tmp_path):
    out = tmp_path / "x"
    out.mkdir()
    (out / "chat.json").write_text("{}")
    waste("convert", "--src", small / "k3", "--out", out, check=0)
    assert (out / "chat.json").read_text() == "{}"


def test_a_chat_format_needs_its_markers(source, tmp_path):
    tokenizer = json.loads((source / "tokenizer_config.json").read_text())
    added = tokenizer["added_tokens_decoder"]
    tokenizer["added_tokens_decoder"] = {k: v for k, v in added.items()
                                         if v["content"] != "<|sep|>"}
    assert len(tokenizer["added_tokens_decoder"]) == len(added) - 1
    (source / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    done = waste_json("convert", "--src", source, "--out", tmp_path / "x")
    assert not (tmp_path / "x" / "chat.json").exists()
    assert any("chat.json" in text for text in done["notices"])


def test_a_release_may_lack_everything_but_weights(source, tmp_path):
    for name in ("tiktoken.model", "tokenizer_config.json", "preprocessor_config.json",
                 "generation_config.json"):
        (source / name).unlink()
    done = waste("convert", "--src", source, "--out", tmp_path / "x", check=0)
    assert b"no tokenizer.model" in done.stderr and b"preprocessor_config" in done.stderr
    assert waste_json("verify", tmp_path / "x")["bad"] == 0
    assert (tmp_path / "x" / "chat.json").exists()  # no list: believed


def edit_json(path, change):
    value = json.loads(path.read_text("utf-8"))
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("key", ["0275", "+275", " 275", "275x", "", "-1", "1e3", "12345678901234567890"])
def test_an_id_that_is_no_plain_decimal_is_refused(source, tmp_path, key):
    edit_json(source / "tokenizer_config.json",
              lambda c: c["added_tokens_decoder"].update({key: {"content": "<|twice|>"}}))
    refused(source, tmp_path, "added_tokens_decoder", f'"{key}" is not an id', check=4)


def test_a_list_of_control_tokens_is_an_object(source, tmp_path):
    path = source / "tokenizer_config.json"
    for text, words in (("[1]", "tokenizer_config.json: must be an object"),
                        ('{"added_tokens_decoder": []}', "added_tokens_decoder must be an object")):
        path.write_text(text)
        refused(source, tmp_path, words, check=4)
    path.write_text('{"added_tokens_decoder": null}')
    waste("convert", "--src", source, "--out", tmp_path / "x", check=0)
    assert not (tmp_path / "x" / "specials.json").exists()


def test_of_two_ids_with_one_text_the_first_stays(source, tmp_path):
    config = json.loads((source / "config.json").read_text("utf-8"))["text_config"]
    again = config["vocab_size"] - 1

    def change(c):
        added = c["added_tokens_decoder"]
        assert str(again) not in added
        added[str(again)] = {"content": added[min(added, key=int)]["content"]}

    edit_json(source / "tokenizer_config.json", change)
    done = waste_json("convert", "--src", source, "--out", tmp_path / "x")
    ids = [s["id"] for s in json.loads((tmp_path / "x" / "specials.json").read_text("utf-8"))]
    assert again not in ids and len(ids) == len(set(ids))
    assert any("have one text" in text for text in done["notices"])
    waste("eval", tmp_path / "x", "--budget", BUDGET, "--ids", "3", check=0)  # opens its tokenizer


@pytest.mark.parametrize("value", [0, "x", {"a": 1}, [1], True])
def test_a_manifest_that_its_reader_would_refuse_is_never_begun(source, tmp_path, value):
    edit_json(source / "config.json", lambda c: c.update(architectures=value))
    refused(source, tmp_path, "architectures", check=4)


@pytest.mark.parametrize("name", ["tiktoken.model", "tokenizer.model"])
@pytest.mark.parametrize("text", [b"", b"IQ== 0\nxx", b"IQ== 1\n"])
def test_a_rank_file_that_is_none_is_an_error_by_its_name(source, tmp_path, name, text):
    (source / "tiktoken.model").unlink()
    (source / name).write_bytes(text)
    refused(source, tmp_path, name + ":", check=4)


def test_a_sentencepiece_model_is_left_out_with_a_notice(source, tmp_path):
    (source / "tiktoken.model").rename(source / "tokenizer.model")
    waste("convert", "--src", source, "--out", tmp_path / "ranks", check=0)
    assert (tmp_path / "ranks" / "tokenizer.model").exists()
    (source / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02")
    done = waste_json("convert", "--src", source, "--out", tmp_path / "x")
    assert any("SentencePiece" in text for text in done["notices"])
    assert not (tmp_path / "x" / "tokenizer.model").exists()


def test_more_tokens_than_the_vocabulary_are_refused_before_work(source, tmp_path):
    ranks = (source / "tiktoken.model").read_bytes()
    n = ranks.count(b"\n")
    with open(source / "tiktoken.model", "ab") as f:
        for i in range(n, 20000):
            f.write(base64.b64encode(f"token {i}".encode()) + f" {i}\n".encode())
    refused(source, tmp_path, "20000 tokens", "vocab_size", check=4)


@pytest.mark.parametrize("name", [PATCH, "vision_tower.encoder.blocks.1.mlp.fc0.weight",
                                  "mm_projector.post_norm.weight"])
def test_a_tower_that_lacks_a_tensor_is_refused_by_its_name(source, tmp_path, name):
    without(source, name)
    refused(source, tmp_path, f'"{name}" is missing', check=4)


def test_a_release_without_its_tower_is_text_only_and_says_so(source, tmp_path):
    without(source, *[name for name in och.Checkpoint(source).stored
                      if name.startswith(("vision_tower.", "mm_projector."))])
    done = waste_json("convert", "--src", source, "--out", tmp_path / "x")
    assert any("without a vision tower" in text for text in done["notices"])
    assert not (tmp_path / "x" / "vision.json").exists()
    assert waste_json("verify", tmp_path / "x")["bad"] == 0


def test_a_value_beyond_f16_is_named_with_the_limit(tmp_path):
    source = tmp_path / "src"
    och.write_checkpoint("kimi-linear", source)
    stored = och.Checkpoint(source).stored
    name = "model.layers.2.block_sparse_moe.experts.1.w1.weight"
    dtype, shape, data = stored[name]
    stored[name] = dtype, shape, b"\x80\x47" + data[2:]  # 65536 in BF16
    och.write_tensors(source, stored, 3)
    detail = waste_error("convert", "--src", source, "--out", tmp_path / "x", check=4)["detail"]
    assert name in detail and "65536" in detail and "65504" in detail


# ---- another release of the same shape ----

@pytest.fixture(scope="session")
def other_release(tmp_path_factory):
    """Of the configuration, names and shapes of `small`, with other weights."""
    top = tmp_path_factory.mktemp("other")
    och.write_checkpoint("k3", top / "k3", seed=99)
    return top / "k3"


def test_a_finished_container_is_not_another_releases(small, other_release):
    detail = waste_error("convert", "--src", other_release, "--out", small / "k3.waste",
                         "--reclaim", "on", check=2)["detail"]
    assert "another release" in detail and "model-00001-of-00003.safetensors" in detail
    prints = manifest(small / "k3.waste")[SHARDS]
    assert prints["model-00001-of-00003.safetensors"]["crc"] in detail
    assert len(list(other_release.glob("*.safetensors"))) == 3


def test_an_unfinished_container_goes_on_with_its_own_release_only(source, small, other_release,
                                                                   tmp_path):
    out, whole = tmp_path / "x", Path(shutil.copytree(source, tmp_path / "whole"))
    unfinished(source, out)
    kept = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    for src in (other_release, whole):  # the second: one shard has changed
        detail = waste_error("convert", "--src", src, "--out", out, "--reclaim", "on",
                             check=2)["detail"]
        assert "another release" in detail and ".safetensors has" in detail
        assert len(list(src.glob("*.safetensors"))) == 3
    assert kept == {p.name: p.stat().st_mtime_ns for p in out.iterdir()}


@pytest.mark.parametrize("reclaim", ["off", "on"])
@pytest.mark.parametrize("name", ["experts-L2.bin", "trunk.bin", "codebooks-L3.bin"])
def test_what_an_earlier_run_left_is_read_before_it_is_kept(source, small, tmp_path, name, reclaim):
    """One byte in the middle has changed: the file is made again, before a shard is deleted."""
    out = tmp_path / "x"
    unfinished(source, out)
    data, others = (out / name).read_bytes(), {p: p.stat().st_mtime_ns for p in out.glob("*.bin")}
    half = len(data) // 2
    (out / name).write_bytes(data[:half] + bytes([data[half] ^ 1]) + data[half + 1:])
    args = ["--reclaim", "on"] if reclaim == "on" else []
    waste("convert", "--src", source, "--out", out, "--resume", *args, check=4)  # layer 6 again
    assert (out / name).read_bytes() == data
    again = {p.name for p, then in others.items() if p.stat().st_mtime_ns != then}
    assert again == {name} | ({"experts-L3.bin"} if name == "codebooks-L3.bin" else set())


def test_a_shard_that_agrees_at_both_ends_only_is_another_one(source, tmp_path):
    add_sparse(source, "language_model.model.extra.weight", "F32", [1024, 1024], 4 << 20)
    args = ["convert", "--src", source, "--out", tmp_path / "x"]
    waste(*args, check=0)
    waste(*args, check=0)
    with open(source / "sparse.safetensors", "r+b") as f:
        f.seek(2 << 20)
        f.write(b"\x3f" * (1 << 19))
    detail = waste_error(*args, check=2)["detail"]
    assert "another release: its sparse.safetensors has" in detail


def test_a_list_of_shards_is_asked_for(small, tmp_path):
    out = Path(shutil.copytree(small / "k3.waste", tmp_path / "x"))
    m = manifest(out)
    for shards, words in ((None, "does not say"), ({"a": {}, "b": {}, "c": {}}, "without a shard"),
                          ({**m[SHARDS], "d": {}}, "of 4 shards")):
        (out / "manifest.json").write_text(json.dumps({**m, SHARDS: shards}))
        assert words in waste_error("convert", "--src", small / "k3", "--out", out,
                                    check=2)["detail"]


def test_each_parameter_that_differs_is_named_with_both_values(small):
    args = ["convert", "--src", small / "k3", "--out", small / "k3.waste"]
    for more, words in ((["--stages", "2"], "stages is 3 there and 2 here"),
                        (["--sample", "5"], "sample is 12 there and 5 here"),
                        (["--trunk-bits", "8"], "trunk_bits is 4 there and 8 here")):
        assert words in waste_error(*args, *more, check=2)["detail"]


def test_killed_before_its_first_bank_it_is_called_unfinished(tmp_path):
    (tmp_path / STATE).write_text("{}")
    assert "unfinished conversion" in waste_error("info", tmp_path, check=1)["detail"]
