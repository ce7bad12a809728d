"""`waste plan` and `waste info`."""

import json
import math

import pytest

from conftest import BUDGET, FAMILIES, GOLDEN, waste, waste_error, waste_json


PLAN_FIELDS = ["ctx", "trunk_bytes", "state_bytes", "scratch_bytes", "min_expert_cache",
               "floor_bytes", "recommended_bytes", "working_set_bytes", "physical_ram_bytes",
               "usable_ram_bytes", "vision_bytes", "budget_bytes", "expert_cache_bytes"]


def test_plan_has_the_published_fields(family):
    plan = waste_json("plan", family, "--ctx", 1000, "--budget", BUDGET)
    assert list(plan)[:len(PLAN_FIELDS)] == PLAN_FIELDS
    assert plan["ctx"] == 1000 and plan["budget_bytes"] == 96 << 20 and plan["fits"]
    parts = ["trunk_bytes", "state_bytes", "scratch_bytes", "min_expert_cache"]
    assert sum(plan[p] for p in parts) == plan["floor_bytes"]
    assert 0 < plan["expert_cache_bytes"] <= plan["expert_bytes"]


def test_plan_below_the_floor_fails_under_json_only(kimi):
    plan = waste_json("plan", kimi, "--budget", "1M", check=3)
    assert plan["expert_cache_bytes"] == -1 and plan["fits"] is False
    assert b"Does not fit" in waste("plan", kimi, "--budget", "1M", check=0).stdout


def test_plan_of_what_no_machine_holds_does_not_fit(copy, tmp_path):
    config = tmp_path / "config.json"
    model = copy.manifest["config"]
    model.update(kv_lora_rank=1 << 16)
    config.write_text(json.dumps(model))
    args = [config, "--ctx", 1 << 24]
    plan = waste_json("plan", *args, check=3)
    assert plan["floor_bytes"] > 1 << 40
    assert plan["fits"] is False and plan["expert_cache_bytes"] == -1
    out = waste("plan", *args, check=0).stdout.decode()
    assert "Does not fit: needs " in out and ", this machine offers " in out


def test_the_rows_of_a_plan_add_up(family):
    plan = waste_json("plan", family, "--ctx", 64, "--budget", "1G", "--max-rows", 4096)
    assert plan["max_rows"] > 64 and plan["scratch_growth_bytes"] > 0
    taken = (plan["floor_bytes"] - plan["min_expert_cache"] + plan["scratch_growth_bytes"] +
             plan["expert_cache_bytes"])
    assert taken <= plan["budget_bytes"]
    assert (plan["expert_cache_bytes"] == plan["expert_bytes"] or
            plan["budget_bytes"] - taken < plan["record_bytes"])
    out = waste("plan", family, "--budget", "1G", "--max-rows", 4096, check=0).stdout.decode()
    assert "longer passes" in out and "passes of 64 rows" in out


def test_plan_prints_both_kinds_of_units(kimi):
    done = waste("plan", kimi, check=0)
    assert b"MiB" in done.stdout and b" MB" in done.stdout and done.stderr == b""
    assert b"floor" in done.stdout and b"chosen" in done.stdout


def test_plan_reads_a_release_before_it_is_downloaded(copy, tmp_path):
    config = tmp_path / "release" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(copy.manifest["config"]))
    for path in [config, config.parent]:
        plan = waste_json("plan", path)
        assert plan["from_config"] is True and plan["layers"] == 5 and plan["floor_bytes"] > 0
    waste_error("plan", config, "--measure", check=2)


def test_plan_estimates_from_a_rate_and_from_measuring(kimi):
    plan = waste_json("plan", kimi, "--drive", "7GB/s", "--ram", "50GB/s")
    e = plan["estimate"]
    assert e["drive_bytes_per_s"] == 7e9 and e["ram_bytes_per_s"] == 5e10
    assert e["hit_rate"] == 1 and e["disk_s_per_token"] == 0 and e["tok_per_s"] > 0
    assert math.isclose(e["ram_s_per_token"],
                        (plan["trunk_bytes"] + plan["working_set_bytes"]) / 5e10, rel_tol=1e-6)
    e = waste_json("plan", kimi, "--measure", "--no-direct-io")["estimate"]
    assert e["ram_from"] == "measured" and e["ram_bytes_per_s"] > 1e8
    assert e["drive_from"] == "measured" and e["drive_bytes_per_s"] > 1e6
    assert e["direct_io"] is False
    out = waste("plan", kimi, "--drive", "7GB/s", check=0).stdout
    assert b"Estimate" in out and b"disk floor" in out and b"RAM floor" in out
    assert b"tok/s" not in waste("plan", kimi, check=0).stdout
    waste("plan", kimi, "--drive", "7GB/s", "--measure", check=2)
    waste("plan", kimi, "--ram", "7GB/s", check=2)


INFO_FIELDS = ["engine", "arch", "layers", "experts", "top_k", "hidden", "params_total",
               "params_active", "quantization", "expert_cache_bytes"]


def test_info_has_the_published_fields_and_needs_no_weights(copy):
    info = waste_json("info", copy)
    assert list(info)[:len(INFO_FIELDS)] == INFO_FIELDS
    assert info["arch"] == "kimi-linear" and info["layers"] == 5 and info["experts"] == 5
    assert info["top_k"] == 2 and "VQ3R" in info["quantization"]
    assert info["audit"]["model"] is None and info["params_active"] < info["params_total"]
    out = waste("info", copy, check=0).stdout
    assert b"kimi-linear" in out and b"0 MB" not in out


@pytest.mark.parametrize("name, quant", zip(FAMILIES, ["VQ3R", "VQ4P", "VQ3R", "VQ2R"]))
def test_info_names_the_experts_format(name, quant):
    assert quant in waste_json("info", GOLDEN / f"{name}.waste")["quantization"]


def test_info_notes_an_incomplete_copy(copy):
    with open(copy.bank(2), "r+b") as f:
        f.truncate(4096)
    notes = waste_json("info", copy)["audit"]["notes"]
    assert any("incomplete" in n and copy.bank(2).name in n for n in notes)
    with open(copy.bank(2), "ab") as f:
        f.write(bytes(copy.manifest["layers"]["2"]["bytes"]))
    notes = waste_json("info", copy)["audit"]["notes"]
    assert any("appended" in n and copy.bank(2).name in n and "incomplete" not in n for n in notes)


@pytest.mark.parametrize("member, value, told", [
    ("fmt", "VQ9", '"VQ9" is not used: 3 stages of 8 bits are read, which is VQ3R'),
    ("fmt", "VQ2R", '"VQ2R" is not used'), ("fmt", 3, "fmt 3 is not used"),
    ("bits_per_weight", 1.5, "1.5 is not used: 3 stages of 8 bits are read, which is 3"),
    ("bits_per_weight", "3", 'bits_per_weight "3" is not used')])
def test_a_description_that_is_wrong_is_noted_everywhere(copy, member, value, told):
    copy.manifest["expert_quant"][member] = value
    copy.write_manifest()
    assert any(told in n for n in waste_json("info", copy)["audit"]["notes"])
    assert any(told in n for n in waste_json("verify", copy)["notes"])
    assert told in waste("verify", copy, check=0).stdout.decode()
    done = waste("run", copy, "--ids", "3 7", "-n", "1", check=0)
    assert told in done.stderr.decode()


def test_a_description_that_is_absent_or_right_is_not(copy):
    for quant in ({"fmt": None}, {"bits_per_weight": 3}, {"bits_per_weight": None}):
        copy.manifest["expert_quant"].update(quant)
        copy.write_manifest()
        assert waste_json("verify", copy)["notes"] == []
