"""The page: its files over HTTP, what /live tells, and all of it in a real browser.

The checks in the browser are page/drive.mjs's; each is a test here. They need node, npm (which
fetches the two modules that page/package.json pins) and Chromium; without one they are skipped.
"""

import contextlib
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

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent / "page"
PAGE = ROOT / "serve" / "page"
MODEL = ROOT / "share" / "demo.waste"
KEY = "sesame"
# Room for about a third of the experts, so that there is something to read.
SMALL = ("--budget", "44M", "--sessions", "2", "--checkpoints", "1")


@contextlib.contextmanager
def serving(log, *options):
    """A server's port, once it is ready."""
    if "WASTE_LIB" not in os.environ:
        pytest.skip("WASTE_LIB names no library to serve with")
    with open(log, "wb") as file:
        server = subprocess.Popen([sys.executable, "-m", "serve", MODEL, "--port", "0", *SMALL, *options],
                                  cwd=ROOT, stderr=file)
    try:
        yield wait_ready(server, log)
    finally:
        server.terminate()
        server.wait(60)


def wait_ready(server, log):
    until = time.monotonic() + 60
    while time.monotonic() < until and server.poll() is None:
        said = [json.loads(line) for line in log.read_text().splitlines()]
        ready = [line for line in said if line["event"] == "ready"]
        if ready:
            return int(ready[0]["url"].rsplit(":", 1)[1])
        time.sleep(0.05)
    raise AssertionError(f"no server: {log.read_text()}")


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("open") / "log") as number:
        yield number


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("keyed") / "log", "--api-key", KEY) as number:
        yield number


def ask(port, path, method="GET", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def speak(port, n=16):
    body = {"messages": [{"role": "user", "content": "Good morning."}], "max_tokens": n}
    response, _ = ask(port, "/v1/chat/completions", "POST", json.dumps(body),
                      **{"Content-Type": "application/json"})
    assert response.status == 200


# ---- files ---------------------------------------------------------------------------------------


def test_every_file_is_served_with_its_kind_and_policy(port):
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript",
             ".svg": "image/svg+xml"}
    for file in PAGE.iterdir():
        path = "/" if file.name == "index.html" else f"/page/{file.name}"
        response, body = ask(port, path)
        assert response.status == 200 and body == file.read_bytes(), path
        assert response.headers["Content-Type"] == kinds[file.suffix] + "; charset=utf-8"
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy


def test_a_file_that_has_not_changed_is_not_sent_again(port):
    response, body = ask(port, "/page/app.js")
    tag = response.headers["ETag"]
    assert hashlib.sha256(body).hexdigest().startswith(tag.strip('"'))
    for known, status in ((tag, 304), (f'"x", W/{tag}', 304), ('"x"', 200)):
        assert ask(port, "/page/app.js", **{"If-None-Match": known})[0].status == status


@pytest.mark.parametrize("path", ["/page/", "/page/none.js", "/page/../routes.py",
                                  "/page/%2e%2e/routes.py", "/page/index.html"])
def test_nothing_else_is_a_file(port, path):
    assert ask(port, path)[0].status == 404


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


def test_one_sample_has_every_layer_and_its_sums(port):
    speak(port)
    response, body = ask(port, "/live")
    sample = json.loads(body)
    assert response.status == 200 and response.headers["Cache-Control"] == "no-store"
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


def test_a_stream_tells_each_pass_once_and_where_its_time_went(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/live", headers={"Accept": "text/event-stream"})
    response = connection.getresponse()
    assert response.headers["Content-Type"].startswith("text/event-stream")
    first = next_sample(response)
    speak(port, n=12)
    passes, until = [], time.monotonic() + 20
    while len(passes) < 12 and time.monotonic() < until:
        passes += next_sample(response)["passes"]
    connection.close()
    rows = [dict(zip(first["columns"], row)) for row in passes]
    numbers = [row["n"] for row in rows]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert sum(row["decode_rows"] for row in rows) == 11  # the first token comes of the prompt
    assert sum(row["prefill_rows"] for row in rows) > 0
    parts = first["columns"][first["columns"].index("io"):]
    for row in rows:
        assert sum(row[part] for part in parts) == pytest.approx(row["ms"], rel=0.02, abs=0.05)


def next_sample(response):
    line = b""
    while not line.startswith(b"data: "):
        line = response.readline()
        assert line, "the stream is over"
    return json.loads(line[6:])


def test_a_stream_sends_the_map_of_a_layer_only_when_it_was_looked_at_anew(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/live", headers={"Accept": "text/event-stream"})
    response = connection.getresponse()
    assert len(next_sample(response)["layers"]) == 7
    assert [next_sample(response)["layers"] for _ in range(3)] == [[], [], []]
    connection.close()


def test_only_the_page_itself_needs_no_key(keyed):
    for path in ("/", "/page/app.js"):
        assert ask(keyed, path)[0].status == 200
    assert ask(keyed, "/live")[0].status == 401
    assert ask(keyed, "/live", Authorization=f"Bearer {KEY}")[0].status == 200


def test_a_page_of_another_origin_is_not_answered(port):
    assert ask(port, "/live", Origin="http://elsewhere.test")[0].status == 403


def test_a_viewer_does_not_hold_up_the_end_of_the_server(tmp_path):
    log = tmp_path / "log"
    with serving(log) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/live", headers={"Accept": "text/event-stream"})
        next_sample(connection.getresponse())
        began = time.monotonic()
    assert time.monotonic() - began < 15  # of the 60 that a connection may take to end
    assert '"stopped"' in log.read_text()
    connection.close()


# ---- the looking itself --------------------------------------------------------------------------


def test_nothing_is_looked_at_while_nobody_watches():
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
    """playwright-core and axe-core, fetched; or a skip."""
    shutil.copy(HERE / "package.json", directory)
    done = subprocess.run(["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit",
                           "--no-fund"], cwd=directory, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"npm cannot fetch what page/package.json pins: {done.stderr.strip()[-300:]}")
    return directory


@pytest.fixture(scope="module")
def driven(port, keyed, tmp_path_factory):
    """What failed, by check; None: it passed."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    missing = [name for name in ("node", "npm") if not shutil.which(name)]
    if missing or not chromium:
        pytest.skip(f"not installed: {', '.join(missing + ['chromium'] * (not chromium))}")
    env = {**os.environ, "CHROMIUM": chromium, "MODULES": modules(tmp_path_factory.mktemp("npm"))}
    done = subprocess.run(["node", HERE / "drive.mjs", f"http://127.0.0.1:{port}",
                           f"http://127.0.0.1:{keyed}", KEY, os.environ.get("WASTE_SHOTS", "")],
                          env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {t["name"] for t in told} == set(CHECKS)
    return {t["name"]: t["failed"] for t in told}


@pytest.mark.parametrize("check", CHECKS)
def test_in_a_browser(driven, check):
    assert not driven[check], driven[check]
