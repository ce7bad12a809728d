"""What the tests of conversions share: a small checkpoint and its container, copies to be spoilt."""

import filecmp
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import BINARY, clean_env, preload, waste

pytest.importorskip("numpy")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import oracle_checkpoint as och  # noqa: E402
import oracle_container as oc  # noqa: E402

STATE, SHARDS = "waste-convert.json", "waste_convert_shards"


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """A directory with a checkpoint that converts in no time; do not change it."""
    top = tmp_path_factory.mktemp("small")
    och.write_checkpoint("k3", top / "k3")
    waste("convert", "--src", top / "k3", "--out", top / "k3.waste", check=0)
    return top


@pytest.fixture
def source(small, tmp_path):
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(small / "k3", tmp_path / "k3"))


def manifest(path):
    return json.loads((path / "manifest.json").read_text("ascii"))


def same_files(a, b, same_shards=True):
    names = sorted(p.name for p in Path(a).iterdir())
    assert names == sorted(p.name for p in Path(b).iterdir())
    if not same_shards:  # the list of them is all that may differ
        names.remove("manifest.json")
        one, other = manifest(a), manifest(b)
        assert one.pop(SHARDS) != other.pop(SHARDS) and one == other
    _, different, errors = filecmp.cmpfiles(a, b, names, shallow=False)
    assert not different and not errors, different + errors


def mount_namespace(at):
    """The command before one that may mount file systems that nobody else sees, or None."""
    for way in (["unshare", "-m"], ["unshare", "-rm"], ["sudo", "-n", "unshare", "-m"]):
        try:
            done = subprocess.run([*way, "mount", "-t", "tmpfs", "none", at], capture_output=True)
        except FileNotFoundError:
            continue
        if done.returncode == 0:
            return way
    return None


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory):
    top = tmp_path_factory.mktemp("two_layers")
    linear = oc.FAMILIES["kimi-linear"]["config"]["linear_attn_config"]
    och.write_checkpoint("kimi-linear", top / "src", overrides={
        "num_hidden_layers": 3,
        "linear_attn_config": {**linear, "kda_layers": [1, 2], "full_attn_layers": [3]}})
    waste("convert", "--src", top / "src", "--out", top / "x.waste", check=0)
    return top


def shard_of(source, name):
    index = json.loads((source / "model.safetensors.index.json").read_text())
    return index["weight_map"][name]


def add_sparse(source, name, dtype, shape, n_bytes):
    """One more shard, with a tensor that takes no room on the disk."""
    header = json.dumps({name: {"dtype": dtype, "shape": shape,
                                "data_offsets": [0, n_bytes]}}).encode()
    with open(source / "sparse.safetensors", "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header)
        f.truncate(8 + len(header) + n_bytes)
    path = source / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][name] = "sparse.safetensors"
    path.write_text(json.dumps(index))


def stop_in_layer(source, layer):
    """Make a value of this layer not finite."""
    name = f"language_model.model.layers.{layer}.block_sparse_moe.experts.0.w1.weight_scale"
    shard = source / shard_of(source, name)
    before = shard.read_bytes()
    n = int.from_bytes(before[:8], "little")
    at = 8 + n + json.loads(before[8:8 + n])[name]["data_offsets"][0]
    shard.write_bytes(before[:at] + b"\xff" + before[at + 1:])


def unfinished(source, out, *args):
    """A conversion that ended in layer 6."""
    stop_in_layer(source, 6)
    waste("convert", "--src", source, "--out", out, *args, check=4)
    assert (out / STATE).exists() and (out / "experts-L1.bin").exists()


def preloaded(source, out, *args, **env):
    """A conversion that is watched, as it starts."""
    return subprocess.Popen([BINARY, "convert", "--src", source, "--out", out, "--quiet", *args],
                            env=clean_env({"LD_PRELOAD": preload("power_cut"), **env}),
                            stderr=subprocess.PIPE, text=True)
