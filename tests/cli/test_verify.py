"""`waste verify` names everything that is wrong."""


import pytest

from conftest import BUDGET, waste, waste_error, waste_json


def test_verify_passes_what_is_sound(family):
    value = waste_json("verify", family)
    assert list(value)[:4] == ["records", "bad", "bytes", "seconds"]
    assert value["bad"] == 0 and value["errors"] == [] and value["complete"] is True
    assert value["records"] > 0 and value["bytes"] > 0 and value["notes"] == []
    assert waste_json("verify", family, "--headers")["records"] == value["records"]
    done = waste("verify", family, check=0)
    assert b"records: all good" in done.stdout and done.stderr == b""
    # only the experts have checksums
    assert value["unchecked"] == ["trunk.bin", "codebooks.bin"] and value["trunk_tensors"] > 0
    assert b"trunk and codebooks: no checksum" in done.stdout
    assert f"{value['trunk_tensors']} trunk tensors" in done.stdout.decode()
    done = waste("verify", family, "--headers", check=0)
    assert b"all good" not in done.stdout and b"checksums not looked at" in done.stdout


@pytest.mark.parametrize("threads", ["1", "3", "16"])
def test_verify_names_every_bad_record(copy, threads):
    copy.flip(1, 3, 100)   # payload
    copy.flip(3, 0, 4)     # layer in the header
    copy.flip(4, 4, 0)     # magic
    value = waste_json("verify", copy, "--threads", threads, check=4)
    assert value["bad"] == 3 and value["records"] == 20
    where = [(e["layer"], e["expert"], e["kind"]) for e in value["errors"]]
    assert where == [(1, 3, "corrupt"), (3, 0, "format"), (4, 4, "format")]
    assert all(f"layer {e['layer']} expert {e['expert']}" in e["detail"] for e in value["errors"])
    headers = waste_json("verify", copy, "--headers", check=4)
    assert headers["bad"] == 2 and headers["headers_only"] is True
    out = waste("verify", copy, check=4).stdout.decode()
    assert "layer 1 expert 3" in out and "3 bad" in out


def test_verify_looks_at_trunk_and_codebooks(copy):
    name = copy.spoil_scale()
    value = waste_json("verify", copy, check=4)
    assert value["bad"] == 1 and name in value["errors"][0]["detail"]
    assert "layer" not in value["errors"][0]
    with open(copy.path / "codebooks.bin", "r+b") as f:
        f.write(b"XXXX")
    assert waste_json("verify", copy, check=4)["bad"] == 2
    assert "codebooks.bin" in waste_json("verify", copy, "--headers", check=4)["errors"][0]["detail"]


def test_verify_goes_on_past_what_is_missing_or_cut_off(copy):
    with open(copy.bank(1), "r+b") as f:
        f.truncate(2 * copy.record_bytes(1) + 100)
    copy.bank(3).unlink()
    copy.flip(1, 1, 100)
    copy.flip(4, 2, 100)
    value = waste_json("verify", copy, check=4)
    assert value["bad"] == 4 and value["records"] == 2 + 5 + 5 and value["complete"] is False
    assert [(e["layer"], e.get("expert"), e["kind"]) for e in value["errors"]] == [
        (1, None, "format"), (1, 1, "corrupt"), (3, None, "io"), (4, 2, "corrupt")]
    assert "incomplete" in value["errors"][0]["detail"]
    assert copy.bank(3).name in value["errors"][2]["detail"]
    out = waste("verify", copy, check=4).stdout.decode()
    assert "4 bad\n" in out and "not looked at, because the container does not open" in out


def test_verify_of_a_missing_bank_is_exit_1(copy):
    copy.bank(3).unlink()
    value = waste_json("verify", copy, check=1)
    assert value["bad"] == 1 and value["records"] == 15 and value["errors"][0]["layer"] == 3


def test_options_of_one_of_the_two_ways_are_refused_with_the_other(kimi, tmp_path):
    for args in (["--sample", 2], ["--all"], ["--headers", "--against", tmp_path]):
        assert "--against" in waste_error("verify", kimi, *args, check=2)["detail"]


@pytest.mark.parametrize("name", ["trunk.bin", "codebooks.bin"])
@pytest.mark.parametrize("cut", [True, False])
def test_verify_looks_at_the_experts_even_without_the_rest(copy, name, cut):
    if cut:
        with open(copy.path / name, "r+b") as f:
            f.truncate(100)
    else:
        (copy.path / name).unlink()
    copy.flip(2, 2, 100)
    value = waste_json("verify", copy, check=4)
    assert value["bad"] == 2 and value["records"] == 20
    assert name in value["errors"][0]["detail"] and value["errors"][1]["expert"] == 2


@pytest.mark.parametrize("name", ["tokenizer.model", "specials.json"])
def test_what_run_calls_damaged_verify_finds_in_the_tokenizer(copy, name):
    (copy.path / name).write_bytes(b"\x00junk\n")
    error = waste_error("run", copy, "Hello", "--budget", BUDGET, check=4)
    assert "verify" in error["hint"]
    value = waste_json("verify", copy, check=4)
    assert value["bad"] == 1 and name in value["errors"][0]["detail"]
    (copy.path / name).unlink()
    waste("verify", copy, check=0)


@pytest.mark.parametrize("name", ["chat.json", "vision.json"])
@pytest.mark.parametrize("content", [b"", b"\x00junk\n", b"{"])
def test_what_only_some_commands_read_is_verified_too(copy, name, content):
    (copy.path / name).write_bytes(content)
    value = waste_json("verify", copy, check=4)
    assert value["bad"] == 1 and name in value["errors"][0]["detail"]


@pytest.mark.parametrize("name", ["tokenizer.model", "specials.json", "chat.json", "vision.json", "drives.json",
                                  "codebooks.bin", "manifest.json"])
def test_a_link_to_nothing_is_not_taken_for_an_absent_file(copy, name):
    (copy.path / name).unlink(missing_ok=True)
    (copy.path / name).symlink_to("/nonexistent/file")
    for json in ([], ["--json"]):
        done = waste("verify", copy, *json, check=1)
        assert f"{name}: a link to what is not there".encode() in done.stdout + done.stderr


def test_what_run_calls_damaged_verify_finds_in_the_manifest(copy):
    entry = next(t for t in copy.manifest["trunk"] if t["name"].endswith("o_proj.weight"))
    entry["name"] += "x"
    copy.write_manifest()
    waste_error("run", copy, "--ids", "1", "--budget", BUDGET, check=4)
    value = waste_json("verify", copy, check=4)
    assert value["bad"] == 1 and "o_proj.weight" in value["errors"][0]["detail"]


def test_an_unknown_format_version_is_refused_by_all(copy):
    copy.manifest["format_version"] = 1
    copy.write_manifest()
    for args in [["run", copy, "x"], ["eval", copy, "x"], ["plan", copy], ["info", copy],
                 ["verify", copy]]:
        error = waste_error(*args, check=4)
        assert "version 1" in error["detail"] or "version" in error["detail"]
