"""The Grafana dashboard in docs/: every name in its expressions is one that /metrics has, and the
other way round."""

import json
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving import ROOT, Server

BOARD = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
PANELS = [p for p in BOARD["panels"] if p["type"] != "row"]
EXPRESSIONS = [(p["title"], t["expr"], t["legendFormat"]) for p in PANELS for t in p["targets"]]
FROM_PROMETHEUS = {"instance"}  # a label that whoever scrapes adds
SELECTOR = re.compile(r"(waste_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|=|!=|!~)"([^"]*)"')


@pytest.fixture(scope="module")
def scrape(tmp_path_factory):
    """{name of a sample: {label: values}} of a server that has done a little of everything, and
    {name: family}."""
    with Server("--state-dir", tmp_path_factory.mktemp("states")) as s:
        s.ready()
        s.chat("Hello!", 4)
        text = s.get("/metrics").body.decode()
    families = list(text_string_to_metric_families(text))
    labels, family_of = {}, {}
    for family in families:
        for sample in family.samples:
            family_of[sample.name] = family.name
            own = labels.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                own.setdefault(label, set()).add(value)
    return labels, family_of


def test_the_board_is_one_that_grafana_can_import():
    ids = [p["id"] for p in BOARD["panels"]]
    assert len(ids) == len(set(ids)) and len(PANELS) > 20
    variables = {v["name"]: v for v in BOARD["templating"]["list"]}
    assert variables["DS_PROMETHEUS"]["type"] == "datasource"
    for panel in PANELS:
        for source in (panel, *panel["targets"]):
            assert source["datasource"] == {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
        refs = [t["refId"] for t in panel["targets"]]
        assert len(refs) == len(set(refs)) and panel["title"]


def test_no_panel_lies_on_another():
    taken = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


@pytest.mark.parametrize("title, expression, legend", EXPRESSIONS)
def test_what_a_panel_asks_for_is_there(scrape, title, expression, legend):
    labels, _ = scrape
    known = set(FROM_PROMETHEUS)
    found = SELECTOR.findall(expression)
    assert found, expression
    for name, matchers in found:
        assert name in labels, f"{title}: no metric {name}"
        known |= labels[name].keys()
        for label, operator, value in MATCHER.findall(matchers):
            if label not in FROM_PROMETHEUS:
                assert operator == "=" and value in labels[name][label], f"{title}: {label}={value}"
        assert 'instance=~"$instance"' in matchers, f"{title}: all servers, whichever was chosen"
    grouped = re.findall(r"(?:by|ignoring|on) \(([^)]*)\)", expression)
    used = {l.strip() for group in grouped for l in group.split(",")}
    used |= set(re.findall(r"\{\{(\w+)\}\}", legend))
    assert used <= known, f"{title}: no label {used - known}"
    assert set(re.findall(r"\$\w+", expression)) <= {"$instance", "$__rate_interval"}


def test_counters_are_shown_as_rates(scrape):
    for title, expression, _ in EXPRESSIONS:
        for name, _ in SELECTOR.findall(expression):
            counts = name.endswith(("_total", "_bucket"))
            assert counts == (f"rate({name}{{" in expression), f"{title}: {name}"


def test_every_metric_is_shown(scrape):
    labels, family_of = scrape
    shown = {family_of.get(name, name) for _, expression, _ in EXPRESSIONS
             for name, _ in SELECTOR.findall(expression)}
    # When a counter began is nothing to look at.
    exposed = {family_of[name] for name in labels if not name.endswith("_created")}
    assert exposed - shown == set()
