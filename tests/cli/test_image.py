"""waste image, --image of run and plan: pictures on the command line."""
import io
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import GOLDEN, run_lines, waste, waste_error, waste_json

Image = pytest.importorskip("PIL.Image")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import oracle_image  # noqa: E402
import oracle_vision  # noqa: E402


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    where = tmp_path_factory.mktemp("vision") / "k3v.waste"
    oracle_vision.make(where)
    return where


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.jpg"
    pixels = np.random.default_rng(5).integers(0, 256, (70, 100, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path, "JPEG")
    return path


@pytest.mark.parametrize("name", ["seen.png", "seen.ppm"])
def test_image_writes_what_the_tower_is_shown(photo, tmp_path, name):
    out = tmp_path / name
    said = waste_json("image", photo, "--out", out)
    want = oracle_image.preprocess(photo.read_bytes())[2]
    assert np.array_equal(np.asarray(Image.open(out)), want)
    assert (said["width"], said["height"], said["tokens"]) == (100, 70, 12)
    assert said["padded"] == [112, 84] and said["format"] == "JPEG" and said["tower_macs"] == 0


def test_image_follows_the_rule_of_a_model(photo, seeing):
    whole, few = (waste_json("image", photo, seeing, *more) for more in ([], ["--image-patches", 8]))
    assert whole["resized"] == [100, 70] and whole["tower_macs"] > few["tower_macs"] > 0
    assert tuple(few["resized"]) == oracle_image.fit(100, 70, 8)
    assert b"12, and the markers" in waste("image", photo).stdout


def test_run_puts_pictures_before_the_text(photo, seeing):
    prompt = waste_json("tokenize", seeing, "--markup", "<|media_begin|>image 100x70<|media_content|>"
                        + "<|media_pad|>" * 12 + "<|media_end|>", "--json")["ids"]
    text = waste_json("tokenize", seeing, "--content", "he in the")["ids"]
    summary = run_lines(seeing, "he in the", "--image", photo, "-n", 4)[-1]
    assert summary["prompt_tokens"] == len(prompt) + len(text)
    places = " ".join(str(i) for i in prompt + text).replace(
        " ".join([str(oracle_vision.MEDIA_PAD)] * 12), str(oracle_vision.MEDIA_PAD))
    again = waste("run", seeing, "--ids", places, "--image", photo, "-n", 4)
    assert again.stdout == waste("run", seeing, "he in the", "--image", photo, "-n", 4).stdout


def test_plan_prices_a_picture(photo, seeing):
    plain = waste_json("plan", seeing)
    priced = waste_json("plan", seeing, "--image", photo, "--drive", "1GB/s", "--ram", "10GB/s")
    assert plain["vision_bytes"] == 0 and "images" not in plain
    assert priced["floor_bytes"] == plain["floor_bytes"] + priced["vision_bytes"]
    image, = priced["images"]
    assert image["positions"] == 12 and image["tower_macs"] > 0 and image["disk_s"] > 0
    assert b"12 positions" in waste("plan", seeing, "--image", photo).stdout


def test_what_cannot_be_seen_is_refused_before_anything_is_loaded(photo, seeing, tmp_path):
    cut = tmp_path / "cut.png"
    out = io.BytesIO()
    Image.open(photo).save(out, "PNG")
    cut.write_bytes(out.getvalue()[:20])
    for words, check, *args in (
            (["vision.json"], 6, "run", GOLDEN / "k3.waste", "he", "--image", photo),
            ([str(cut), "PNG"], 4, "run", seeing, "he", "--image", cut),
            (["0 places", "1 images"], 2, "run", seeing, "--ids", "3 7", "--image", photo),
            (["67108864"], 6, "image", "/dev/zero"),
            (["No such file"], 1, "image", tmp_path / "nothing.jpg")):
        said = waste_error(*args, check=check)
        assert all(w in said["error"] + ": " + said["detail"] for w in words), said
