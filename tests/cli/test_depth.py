"""How many reads are in flight: measured once for each drive, kept in a file, never in the output."""

import re
import shutil

import pytest

from conftest import waste

HEAD = "waste drives 1\n"


@pytest.fixture(scope="module", name="large")
def make_large(tmp_path_factory):
    """A container just large enough to be measured."""
    parent = tmp_path_factory.mktemp("large")
    if shutil.disk_usage(parent).free < 2 << 30:
        pytest.skip("less than 2 GiB free for a container of 300 MB")
    model = parent / "large.waste"
    waste("synth", model, "--shape", "tiny-kimi", "--experts", 1400, check=0)
    yield model
    shutil.rmtree(parent)


def run(model, cache, *args, **env):
    done = waste("run", model, "--ids", "3 7 11", "-n", 4, *args, check=0,
                 env={"XDG_CACHE_HOME": str(cache), **env})
    reads = re.search(r"^reads +\w+, (\d+) in flight( \(.*?\))?, (\d+) of (\d+) banks direct",
                      done.stderr.decode(), re.M)
    assert reads, done.stderr
    return done.stdout, int(reads[1]), (reads[2] or "").strip(" ()"), reads[3] == reads[4]


def test_a_drive_is_measured_once(large, tmp_path):
    notes = tmp_path / "waste" / "drives"
    out, depth, how, direct = run(large, tmp_path)
    if not direct:
        pytest.skip("no direct reads in the directory for temporary files")
    if how == "":
        pytest.skip("the file system of temporary files names no device")
    assert how == "measured" and 2 <= depth <= 32
    text = notes.read_text()
    assert text.startswith(HEAD) and text.count("\n") == 2
    assert run(large, tmp_path) == (out, depth, "measured before", True)
    notes.write_text(re.sub(r" \d+ (\d+)\n$", r" 5 \1\n", text))
    assert run(large, tmp_path) == (out, 5, "measured before", True)
    for damage in (HEAD + "nonsense\n", "", text[:-1], text * 2):
        notes.write_text(damage)
        again, _, how, _ = run(large, tmp_path)
        assert (again, how) == (out, "measured")
        assert notes.read_text().count("\n") == 2
    assert [p.name for p in notes.parent.iterdir()] == ["drives"]
    notes.unlink()
    waste("run", large, "--ids", "3", "-n", 1, "--quiet", check=0,
          env={"XDG_CACHE_HOME": str(tmp_path)})
    assert notes.exists()


def test_it_is_not_measured_when_it_would_mean_nothing(large, tmp_path):
    for args in (["--io-depth", 7], ["--no-direct-io"], ["--io", "sync"]):
        assert run(large, tmp_path, *args)[2] == ""
    assert run(large, tmp_path, "--io-depth", 7)[1] == 7
    assert not (tmp_path / "waste").exists()


def test_a_cache_that_cannot_be_written_is_no_error(large, tmp_path):
    (tmp_path / "waste").write_text("a file where a directory would be")
    out, _, how, _ = run(large, tmp_path)
    assert how in ("measured", "")
    assert run(large, "not/absolute", HOME="nor/this")[0::2] == (out, "")
