"""waste image, pictures of run, chat, batches and plan: pictures on the command line."""
import io
import json
import resource
import shutil
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


@pytest.mark.parametrize("name, why", [("no/seen.png", "No such file"), ("/dev/full", "No space left")])
def test_image_says_why_it_cannot_write(name, why, photo, tmp_path):
    error = waste_error("image", photo, "--out", tmp_path / name, check=1)
    assert "cannot be written" in error["detail"] and why in error["detail"]


def test_image_leaves_no_half_of_a_picture(photo, tmp_path):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    for name in ("seen.png", "seen.ppm"):
        waste_error("image", photo, "--out", tmp_path / name, check=1, preexec_fn=small_files)
        assert not (tmp_path / name).exists()


def test_image_does_not_write_over_what_it_reads(photo, tmp_path):
    before = photo.read_bytes()
    (tmp_path / "other").symlink_to(photo)
    for out in (photo, tmp_path / "other"):
        assert "that is to be read" in waste_error("image", photo, "--out", out, check=2)["detail"]
    assert photo.read_bytes() == before


def test_image_follows_the_rule_of_a_model(photo, seeing):
    whole, few = (waste_json("image", photo, seeing, *more) for more in ([], ["--image-patches", 8]))
    assert whole["resized"] == [100, 70] and whole["tower_macs"] > few["tower_macs"] > 0
    assert tuple(few["resized"]) == oracle_image.fit(100, 70, 8)
    assert b"12, and the markers" in waste("image", photo).stdout


def test_a_continued_text_has_its_pictures_in_front(photo, seeing):
    prompt = waste_json("tokenize", seeing, "--markup", "<|media_begin|>image 100x70<|media_content|>"
                        + "<|media_pad|>" * 12 + "<|media_end|>", "--json")["ids"]
    text = waste_json("tokenize", seeing, "--content", "he in the")["ids"]
    summary = run_lines(seeing, "he in the", "--raw", "--image", photo, "-n", 4)[-1]
    assert summary["prompt_tokens"] == len(prompt) + len(text)
    places = " ".join(str(i) for i in prompt + text).replace(
        " ".join([str(oracle_vision.MEDIA_PAD)] * 12), str(oracle_vision.MEDIA_PAD))
    again = waste("run", seeing, "--ids", places, "--image", photo, "-n", 4)
    assert again.stdout == waste("run", seeing, "he in the", "--raw", "--image", photo, "-n", 4).stdout


def asked(photo, text):
    """A message with a picture, as requests have it."""
    picture = {"type": "image_url", "image_url": {"url": str(photo)}}
    return {"role": "user", "content": [picture, {"type": "text", "text": text}]}


def batch(model, tmp_path, *requests, check=0, args=("--vision",)):
    lines, out = tmp_path / "asked.jsonl", tmp_path / "answers.jsonl"
    out.unlink(missing_ok=True)
    lines.write_text("".join(json.dumps(r) + "\n" for r in requests))
    waste("run", model, "--file", lines, "--out", out, "-n", 6, "-q", *args, check=check)
    return [json.loads(line) for line in out.read_text().splitlines()]


def chat(model, home, *lines, args=("--vision",), check=0):
    """Answers, and what was said besides."""
    done = waste("chat", model, *args, "--no-learn", "--json", "-n", 6, check=check, env=home,
                 stdin="".join(f"{line}\n" for line in lines).encode())
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


@pytest.fixture
def home(tmp_path):
    return {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("CACHE", "STATE", "DATA")}


def test_a_message_with_a_picture_is_the_same_in_run_batch_and_chat(photo, seeing, tmp_path, home):
    run = run_lines(seeing, "he in the", "--image", photo, "-n", 6)[-1]
    line, = batch(seeing, tmp_path, {"messages": [asked(photo, "he in the")]})
    answer, = chat(seeing, home, "he in the", args=("--image", photo))[0]
    attached, = chat(seeing, home, f"/image {photo}", "he in the")[0]
    blind = run_lines(seeing, "he in the", "-n", 6)[-1]
    assert run["prompt_tokens"] > blind["prompt_tokens"] + 12
    for other in (answer, attached):
        assert (other["prompt_tokens"], other["reasoning"]) == (run["prompt_tokens"], run["reasoning"])
    assert line["usage"]["prompt_tokens"] == run["prompt_tokens"]
    assert line["reasoning"] == run["reasoning"]


def test_what_the_tower_took_is_told_apart_from_the_prompt(photo, seeing, home, monkeypatch, tmp_path):
    done = waste("run", seeing, "he in the", "--image", photo, "-n", 2, "--no-learn")
    said = done.stderr.decode()
    assert f"{photo}: 100 x 70, seen as 100 x 70, 12 positions" in said
    assert "images   1 seen" in said and "in the vision tower" in said
    summary = run_lines(seeing, "he in the", "--image", photo, "-n", 2)[-1]
    assert summary["images"] == 1 and 0 < summary["tower_s"] < summary["prefill_s"]
    passes = summary["prefill_s"] - summary["tower_s"]
    assert summary["prefill_tok_per_s"] == pytest.approx(summary["prompt_tokens"] / passes)
    assert "tower_s" not in run_lines(seeing, "he in the", "-n", 2)[-1]


def test_a_saved_conversation_finds_its_picture_from_elsewhere(photo, seeing, home, monkeypatch, tmp_path):
    file = tmp_path / "talk.state"
    monkeypatch.chdir(photo.parent)
    first, = chat(seeing, home, "he", f"/save {file}", args=("--image", photo.name))[0]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    second, = chat(seeing, home, f"/load {file}", "in")[0]
    assert second["prompt_tokens"] > first["prompt_tokens"]


def test_a_description_of_another_tower_is_not_believed(photo, seeing, tmp_path):
    liar = tmp_path / "liar.waste"
    shutil.copytree(seeing, liar)
    text = json.loads((liar / "vision.json").read_text()) | {"vt_intermediate_size": 81}
    (liar / "vision.json").write_text(json.dumps(text))
    assert "vision.json makes it [81," in waste_error("image", photo, liar, check=4)["detail"]


def test_a_blind_batch_is_not_gone_on_with_by_one_that_sees(photo, seeing, tmp_path):
    """A line refused for want of --vision was taken for answered when it came with --vision."""
    assert "--vision" in batch(seeing, tmp_path, {"messages": [asked(photo, "he")]}, args=(), check=1)[0]["error"]
    lines, out = tmp_path / "asked.jsonl", tmp_path / "answers.jsonl"
    done = waste("run", seeing, "--file", lines, "--out", out, "-n", 6, "--vision", check=2)
    assert b"line 1 answers no request" in done.stderr


def test_a_conversation_with_the_same_picture_is_not_read_again(photo, seeing, tmp_path, home):
    """The same file, and another with the same pixels: reused past the picture. Others: not."""
    same, other = tmp_path / "same.png", tmp_path / "other.png"
    pixels = np.asarray(Image.open(photo).convert("RGB"))
    Image.fromarray(pixels).save(same)
    Image.fromarray(255 - pixels).save(other)
    first, second = chat(seeing, home, f"/image {photo}", "he", "in")[0]
    assert first["reused_tokens"] == 0 and second["reused_tokens"] >= first["prompt_tokens"] - 40
    for picture, args in ((same, ()), (photo, ("--free-vision",))):
        again, = chat(seeing, home, f"/image {picture}", "he", args=("--vision", *args))[0]
        assert again["reused_tokens"] > first["prompt_tokens"] - 40
        assert again["reasoning"] == first["reasoning"]
    changed, = chat(seeing, home, f"/image {other}", "he")[0]
    assert changed["prompt_tokens"] == first["prompt_tokens"]
    assert changed["reused_tokens"] < first["prompt_tokens"] - 40


def test_pictures_survive_save_edit_and_retry(photo, seeing, tmp_path, home):
    file = tmp_path / "talk.state"
    answers, said = chat(seeing, home, f"/image {photo}", "he", "/retry", "/edit the", f"/save {file}",
                         "/tokens", "/reset", "/tokens", f"/load {file}", "in")
    assert answers[0]["prompt_tokens"] == answers[1]["prompt_tokens"]
    one, two = batch(seeing, tmp_path, {"messages": [asked(photo, "the")]},
                     {"messages": [{"role": "user", "content": "the"}]})
    assert answers[2]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert one["usage"]["prompt_tokens"] > two["usage"]["prompt_tokens"] + 12
    assert answers[3]["reused_tokens"] > one["usage"]["prompt_tokens"] - 40
    assert "0 of" in said


def test_a_synthetic_model_sees(photo, tmp_path):
    model = tmp_path / "noise.waste"
    args = ("synth", model, "--shape", "tiny-k3", "--layers", 4, "--experts", 8, "--top-k", 2)
    assert waste_json(*args, "--vision")["was_complete"] is False
    assert waste_json("verify", model)["bad"] == 0
    tokens, summary = run_lines(model, "he", "--image", photo, "-n", 3)
    assert len(tokens) == 3 and summary["prompt_tokens"] > 12
    assert waste_json("plan", model, "--vision")["vision_bytes"] > 0
    assert waste_json(*args, "--vision")["was_complete"] is True
    for other in (args, ("synth", tmp_path / "blind.waste", *args[2:], "--vision")):
        waste("synth", tmp_path / "blind.waste", *args[2:], check=0)
        assert "vision" in waste_error(*other, check=2)["detail"]  # another container is there
    error = waste_error("synth", tmp_path / "b", "--shape", "tiny-kimi", "--vision", check=2)
    assert "tower" in error["detail"] + error["error"]


def test_pictures_that_cannot_be_shown_are_named(photo, seeing, tmp_path, home):
    request = {"messages": [asked(photo, "he")]}
    assert "--vision" in batch(seeing, tmp_path, request, args=(), check=1)[0]["error"]
    request["messages"][0]["content"][0] |= {"width": 99, "height": 70}
    assert "99 x 70" in batch(seeing, tmp_path, request, check=1)[0]["error"]
    for url, words in (("nowhere.png", "nowhere.png"), ("http://h/x.png", "files alone"),
                       ("data:image/png;base64,", "files alone")):
        error = batch(seeing, tmp_path, {"messages": [asked(url, "he")]}, check=1)[0]["error"]
        assert words in error and "messages[0].content[0]" in error, error
    assert "--vision" in chat(seeing, home, f"/image {photo}", args=(), check=6)[1]
    assert "nowhere" in chat(seeing, home, "/image nowhere", check=1)[1]
    many = [f"/image {photo}"] * 33
    assert "32 pictures" in chat(seeing, home, *many, check=2)[1]
    error = waste_error("run", seeing, "--file", photo, "--out", tmp_path / "o", "--image", photo, check=2)
    assert "--image" in error["detail"] or "--image" in error["error"]
    error = waste_error("run", seeing, "he", "--image", photo, "--ctx", 64, check=2)
    assert "64 positions" in error["detail"] + error["error"]


def test_plan_prices_a_picture(photo, seeing):
    plain = waste_json("plan", seeing)
    priced = waste_json("plan", seeing, "--image", photo, "--drive", "1GB/s", "--ram", "10GB/s")
    assert plain["vision_bytes"] == 0 and "images" not in plain
    assert priced["floor_bytes"] == plain["floor_bytes"] + priced["vision_bytes"]
    image, = priced["images"]
    assert image["positions"] == 12 and image["tower_macs"] > 0 and image["disk_s"] > 0
    assert abs(image["tower_s"] * image["macs_per_s"] / image["tower_macs"] - 1) < 1e-6
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
