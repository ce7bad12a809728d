"""docs/SECURITY.md against the tree: the tests that it leans on exist, and its limits are those of
the program."""
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "SECURITY.md").read_text()
TESTS = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("test_*")
                  if p.suffix in (".c", ".py") and p != pathlib.Path(__file__))


NAMED = sorted(set(re.findall(r"`((?:test|no|a)_[a-z_]+_[a-z_]+)`", PAGE)))


@pytest.mark.parametrize("name", NAMED)
def test_what_it_leans_on_is_a_test(name):
    assert re.search(rf"(?:def|static void) {name}\(", TESTS), name


def test_every_fuzz_target_is_listed():
    listed = set(re.findall(r"^\| `(fuzz_\w+)` \|", PAGE, re.M))
    assert listed == {p.stem for p in (ROOT / "tests" / "fuzz").glob("fuzz_*.c")}
    for name in listed:
        assert any((ROOT / "tests/fuzz/corpus" / name.removeprefix("fuzz_")).iterdir()), name


def test_the_server_s_limits_are_those():
    sys.path.insert(0, str(ROOT))
    main = pytest.importorskip("serve.__main__")
    options = vars(main.arguments().parse_args(["model"]))
    rows = re.findall(r"^\| `--([a-z-]+)` \| (\d+) \|", PAGE, re.M)
    assert len(rows) >= 8
    for name, value in rows:
        assert options[name.replace("-", "_")] == int(value), name


@pytest.mark.parametrize("where, what", [
    ("expertfs/manifest.c", "MANIFEST_BYTES_MAX ((size_t)64 << 20)"),
    ("base/json.h", "JSON_VALUES_MAX = 1 << 22"), ("base/json.h", "JSON_DEPTH_MAX = 64"),
    ("model/specials.c", "JSON_BYTES_MAX (4u << 20)"),
    ("model/vision_shape.c", "JSON_BYTES = 1 << 20"),
    ("expertfs/hotlist.c", "FILE_BYTES_MAX = 16 << 20"), ("expertfs/out_dir.c", "0600"),
    ("model/image.h", "IMAGE_SIDE_MAX = 65535"), ("model/image.h", "IMAGE_PIXELS_MAX = 64 << 20"),
    ("model/image.h", "IMAGE_FILE_MAX = 64 << 20"), ("model/image.h", "IMAGE_MS_MAX = 10000"),
    ("include/waste.h", "WASTE_IMAGES_MAX 32"),
    ("serve/keys.py", "hmac.compare_digest"), ("serve/page.py", "require-trusted-types-for")])
def test_the_figures_are_the_source_s(where, what):
    assert what in (ROOT / where).read_text()


def test_no_weights_are_mapped_from_files():
    """A file cut short under a mapping would be a signal."""
    layers = ("base", "storage", "expertfs", "model")
    for path in [p for layer in layers for p in ROOT.glob(f"{layer}/*.c")]:
        for call in re.findall(r"\bmmap\([^;]*;", path.read_text()):
            assert "MAP_ANON" in call or "PROT_NONE" in call, path
