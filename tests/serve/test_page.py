"""The page: its files over HTTP, what /live tells, and all of it in a real browser.

The checks in the browser are page/drive.mjs's; each is a test here. They need node, npm (which
fetches the two modules that page/package.json pins) and Chromium; without one they are skipped.
"""

import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest

from serving import PATIENCE, ROOT, Server, clean_env, node_major, seeing_model, xtml_model  # noqa: F401

HERE = pathlib.Path(__file__).parent / "page"
PAGE = ROOT / "serve" / "page"
KEY = "sesame"
THINKS = {"grammar": "root ::= [A-Z]{3}", "logit_bias": {"4100": 9}}  # some thoughts, and their end
# Not room for all experts, so that there is something to read; and two conversations at a time.
SMALL = ("--budget", "44M", "--sessions", "2", "--checkpoints", "1")


@pytest.fixture(scope="module")
def server():
    with Server(*SMALL) as s:
        yield s.ready()


@pytest.fixture(scope="module")
def keyed():
    with Server(*SMALL, "--api-key", KEY) as s:
        yield s.ready()


# ---- files ---------------------------------------------------------------------------------------


def test_every_file_is_served_with_its_kind_and_policy(server):
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript",
             ".svg": "image/svg+xml"}
    for file in PAGE.iterdir():
        path = "/" if file.name == "index.html" else f"/page/{file.name}"
        answer = server.get(path)
        assert answer.status == 200 and answer.body == file.read_bytes(), path
        assert answer.headers["Content-Type"] == kinds[file.suffix] + "; charset=utf-8"
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy


def test_a_file_that_has_not_changed_is_not_sent_again(server):
    answer = server.get("/page/app.js")
    tag = answer.headers["ETag"]
    assert hashlib.sha256(answer.body).hexdigest().startswith(tag.strip('"'))
    for known, status in ((tag, 304), (f'"x", W/{tag}', 304), ('"x"', 200)):
        assert server.get("/page/app.js", If_None_Match=known).status == status


@pytest.mark.parametrize("path", ["/page/", "/page/none.js", "/page/../routes.py",
                                  "/page/%2e%2e/routes.py", "/page/index.html"])
def test_nothing_else_is_a_file(server, path):
    assert server.get(path).status == 404


def test_the_page_asks_nothing_of_other_origins_and_brings_no_scripts_inline():
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8")
        addresses = set(re.findall(r"https?://[\w.-]+", text)) - {"http://www.w3.org"}
        assert not addresses, file.name
        for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert sink not in text, (file.name, sink)
    index = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", index)


# ---- /live ---------------------------------------------------------------------------------------


class Viewer:
    """A stream of samples."""

    def __init__(self, server):
        self.connection = http.client.HTTPConnection("localhost")
        self.connection.sock = server.connect()
        self.connection.request("GET", "/live", headers={"Accept": "text/event-stream"})
        self.response = self.connection.getresponse()
        assert self.response.headers["Content-Type"].startswith("text/event-stream")

    def sample(self):
        for line in self.response:
            if line.startswith(b"data: "):
                return json.loads(line[6:])
        raise AssertionError("the stream is over")

    def close(self):
        self.response.close()
        self.connection.close()


@pytest.fixture
def viewer(server):
    v = Viewer(server)
    yield v
    v.close()


def test_one_sample_has_every_layer_and_its_sums(server):
    server.chat("Good morning.")
    answer = server.get("/live")
    sample = answer.json
    assert answer.status == 200 and answer.headers["Cache-Control"] == "no-store"
    assert [layer["layer"] for layer in sample["layers"]] == list(range(1, 8))
    counters = sample["totals"]["counters"]
    for member in ("hits_resident", "hits_prefetch", "misses"):
        assert sum(layer[member] for layer in sample["layers"]) == counters[member]
    for layer in sample["layers"]:
        assert len(layer["map"]) == layer["experts"] == 32
        assert layer["map"].count("2") == layer["resident"] > 0
        assert layer["map"].count("1") == layer["reading"]
    assert sample["engine"]["n_frames"] < 7 * 32  # or nothing had to be read
    assert counters["misses"] > 0


def test_a_stream_tells_each_pass_once_and_where_its_time_went(server, viewer):
    first = viewer.sample()
    server.chat("Good morning.", max_tokens=12)
    passes, until = [], time.monotonic() + PATIENCE
    while sum(row[3] for row in passes) < 11 and time.monotonic() < until:
        passes += viewer.sample()["passes"]
    rows = [dict(zip(first["columns"], row)) for row in passes]
    numbers = [row["n"] for row in rows]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert sum(row["decode_rows"] for row in rows) == 11  # the first token comes of the prompt
    assert sum(row["prefill_rows"] for row in rows) > 0
    parts = first["columns"][first["columns"].index("io"):]
    for row in rows:
        assert sum(row[part] for part in parts) == pytest.approx(row["ms"], rel=0.02, abs=0.05)


def test_a_stream_sends_maps_only_after_something_was_used(server, viewer):
    assert len(viewer.sample()["layers"]) == 7
    assert [viewer.sample()["layers"] for _ in range(3)] == [[], [], []]
    server.chat("Good evening.")
    until = time.monotonic() + PATIENCE
    while not (layers := viewer.sample()["layers"]) and time.monotonic() < until:
        pass
    assert len(layers) == 7


def test_only_the_page_itself_needs_no_key(keyed):
    for path in ("/", "/page/app.js"):
        assert keyed.get(path).status == 200
    assert keyed.get("/live").status == 401
    assert keyed.get("/live", Authorization=f"Bearer {KEY}").status == 200


def test_the_head_of_a_stream_has_an_end(server):
    answer = server.ask("HEAD", "/live", None, {"Accept": "text/event-stream"})
    assert answer.status == 200 and answer.body == b""


def test_a_page_of_another_origin_is_not_answered(server):
    assert server.get("/live", Origin="http://elsewhere.test").status == 403


def test_a_viewer_does_not_hold_up_the_end_of_the_server():
    """Connections may take a minute to end, and a stream of samples would never."""
    with Server(*SMALL) as s:
        viewer = Viewer(s.ready())
        viewer.sample()
        assert s.stop() == 0
        with pytest.raises(AssertionError, match="over"):
            while True:
                viewer.sample()
        viewer.close()


# ---- the looking itself --------------------------------------------------------------------------


def test_nothing_is_looked_at_while_nobody_watches():
    sys.path.insert(0, str(ROOT))
    from serve.live import Watch

    class Context:
        def __getattr__(self, name):
            raise AssertionError(f"{name} was asked for")

    class Scheduler:
        pass

    watch = Watch(Scheduler())
    watch.look(Context())
    with watch.watching():
        with pytest.raises(AssertionError):
            watch.look(Context())
    watch.look(Context())


# ---- in a browser --------------------------------------------------------------------------------

CHECKS = re.findall(r'^    async "(.*)"\(browser\)', (HERE / "drive.mjs").read_text(), re.M)
CHECKS += [f"axe finds nothing at {size} width, {light}" for size in ("desktop", "phone")
           for light in ("light", "dark")]


def modules(directory):
    """playwright-core and axe-core: WASTE_TEST_CLIENTS', or fetched; or a skip."""
    there = pathlib.Path(os.environ.get("WASTE_TEST_CLIENTS", "/nonexistent"))
    if (there / "node_modules" / "playwright-core").is_dir():
        return there
    shutil.copy(HERE / "package.json", directory)
    done = subprocess.run(["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit",
                           "--no-fund"], cwd=directory, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"npm install: {done.stderr.strip()[-200:]}")
    return directory


def browser():
    found = [p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p]
    if not found:
        pytest.skip("no chromium")
    return found[0]


@pytest.fixture(scope="module")
def driven(server, keyed, xtml_model, seeing_model, tmp_path_factory):  # noqa: F811
    """What failed, by check; None: it passed. WASTE_SHOTS: a directory for pictures of the page."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("no node, or no npm")
    if node_major() < 20:
        pytest.skip(f"Playwright wants Node.js 20, and this is {node_major()}")
    env = clean_env(CHROMIUM=browser(), MODULES=str(modules(tmp_path_factory.mktemp("npm"))),
                    SHOTS=os.environ.get("WASTE_SHOTS", ""), KEY=KEY, THINKS=json.dumps(THINKS))
    with Server("--sessions", "1", model=xtml_model) as thinking, \
            Server("--vision", model=seeing_model) as seeing:
        ports = [s.port for s in (server, keyed, thinking.ready(), seeing.ready())]
        done = subprocess.run(["node", HERE / "drive.mjs", *map(str, ports)], env=env,
                              capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {t["name"] for t in told} == set(CHECKS)
    return {t["name"]: t["failed"] for t in told}


@pytest.mark.parametrize("check", CHECKS)
def test_in_a_browser(driven, check):
    assert not driven[check], driven[check]
