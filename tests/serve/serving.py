"""Helpers of the server's tests: a server process, clients that are as simple as sockets, and a
scripted engine for what must not depend on a model."""

import base64
import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "share" / "demo.waste"
GOLDEN = ROOT / "tests" / "golden"
BINARY = os.environ.get("WASTE_BIN", "")
sys.path.insert(0, str(ROOT))
# Seconds until a test gives up; none passes or fails by time before that.
PATIENCE = float(os.environ.get("SERVE_TEST_PATIENCE", 60))


def node_major():
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    return int(version.stdout.lstrip("v").split(".")[0])


def clean_env(**more):
    """WASTE_LIB and nothing else of WASTE_*."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("WASTE_") or k == "WASTE_LIB"}
    return {**env, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **more}


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


class Server:
    """python3 -m serve on a port of its own, or on a Unix socket."""

    def __init__(self, *options, model=DEMO, env=None, unix=None, command=None):
        self.unix = unix
        where = ["--unix", unix] if unix else ["--port", "0"]
        command = command or [sys.executable, "-m", "serve"]
        self.process = subprocess.Popen(
            [*command, str(model), *where, *map(str, options)], env=clean_env(**(env or {})),
            stderr=subprocess.PIPE, text=True, cwd="/")
        self.lines, self.changed = [], threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        listening = self.wait_for_event("listening")
        self.port = None if unix else int(listening["url"].rsplit(":", 1)[1])

    def _read(self):
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()
        with self.changed:
            self.lines.append(None)
            self.changed.notify_all()

    def events(self, name=None):
        with self.changed:
            found = [json.loads(line) for line in self.lines if line and line.startswith("{")]
        return [e for e in found if name in (None, e["event"])]

    def wait_for_event(self, name, n=1):
        """The n-th event of this name."""
        with self.changed:
            done = self.changed.wait_for(
                lambda: len(self.events(name)) >= n or self.lines[-1:] == [None], PATIENCE)
        found = self.events(name)
        assert done and len(found) >= n, f"no event {name}:\n" + "".join(filter(None, self.lines))
        return found[n - 1]

    def ready(self):
        self.wait_for_event("ready")
        return self

    def connect(self):
        if self.unix:
            s = socket.socket(socket.AF_UNIX)
            s.connect(self.unix)
        else:
            s = socket.create_connection(("127.0.0.1", self.port))
        s.settimeout(PATIENCE)
        return s

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("localhost")
        connection.sock = self.connect()
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def post(self, path, body, **headers):
        return self.ask("POST", path, body, {k.replace("_", "-"): v for k, v in headers.items()})

    def get(self, path, **headers):
        return self.ask("GET", path, None, {k.replace("_", "-"): v for k, v in headers.items()})

    def chat(self, text, max_tokens=16, **more):
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        answer = self.post("/v1/chat/completions",
                           {"messages": messages, "max_tokens": max_tokens, **more})
        assert answer.status == 200, answer.body
        return answer.json

    def stream(self, path, body, **headers):
        return Stream(self, path, {**body, "stream": True}, headers)

    def health(self):
        return self.get("/health").json

    def wait_for_health(self, member):
        """Until there is one of these."""
        deadline = time.monotonic() + PATIENCE
        while not self.health()[member]:
            assert time.monotonic() < deadline, self.health()
            time.sleep(0.005)

    def wait_idle(self):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            h = self.health()
            if not h["queued"] + h["prefilling"] + h["answering"]:
                return
            time.sleep(0.02)
        raise AssertionError(f"still busy: {h}")

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        self.process.stderr.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop(signal.SIGKILL)


class Stream:
    """An event stream, read line by line."""

    def __init__(self, server, path, body, headers):
        self.socket = server.connect()
        data = json.dumps(body).encode()
        more = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
        self.socket.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                            f"{more}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        self.response = http.client.HTTPResponse(self.socket, method="POST")
        self.response.begin()
        self.status, self.headers = self.response.status, self.response.headers
        self.comments, self.done = [], False

    def __iter__(self):
        """The objects of its events; comments are collected, [DONE] ends it."""
        for line in self.response:
            line = line.rstrip(b"\n")
            if line.startswith(b":"):
                self.comments.append(line.decode())
            elif line == b"data: [DONE]":
                self.done = True
            elif line.startswith(b"data: "):
                assert not self.done
                yield json.loads(line[6:])

    def until_text(self):
        """The chunks up to the first that has some of the answer; the rest can still be read."""
        chunks = []
        for chunk in self:
            chunks.append(chunk)
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                return chunks
        raise AssertionError(f"no text: {chunks[-1:]}")

    def close(self):
        self.response.close()
        self.socket.close()

    def abort(self):
        """As when a process dies."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.close()


def text_of(chunks):
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


@pytest.fixture(scope="module")
def server():
    with Server() as s:
        yield s.ready()


@pytest.fixture(scope="session")
def xtml_model(tmp_path_factory):
    """The demonstration model with Kimi K3's control tokens in the place of its own: it speaks
    nonsense in a format that thinks."""
    path = tmp_path_factory.mktemp("models") / "thinker.waste"
    shutil.copytree(DEMO, path)
    (path / "chat.json").unlink()
    texts = ["<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>"]
    specials = [{"id": i, "text": t} for i, t in zip((4098, 4099, 4100, 4106), texts)]
    (path / "specials.json").write_text(json.dumps(specials))
    return path


@pytest.fixture(scope="session")
def mute_model(tmp_path_factory):
    """The demonstration model without the tokens that any chat format needs."""
    path = tmp_path_factory.mktemp("models") / "mute.waste"
    shutil.copytree(DEMO, path)
    (path / "chat.json").unlink()
    (path / "specials.json").write_text('[{"id": 4098, "text": "[EOS]"}]')
    return path


@pytest.fixture(scope="session")
def seeing_model(tmp_path_factory):
    """Noise in the shape of a small Kimi K3, with a tower: what it says depends on every pixel."""
    path = tmp_path_factory.mktemp("models") / "seeing.waste"
    subprocess.run([BINARY, "synth", path, "--shape", "tiny-k3", "--layers", "4", "--experts", "8",
                    "--top-k", "2", "--vision"], check=True, env=clean_env(), capture_output=True)
    return path


def png_of(width, height, lines):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + \
            struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines, 1)) \
        + chunk(b"IEND", b"")


def png(width=100, height=70, seed=0):
    """A picture of noise. 100 x 70 has 12 rows."""
    noise = random.Random(seed)
    return png_of(width, height,
                  b"".join(b"\0" + noise.randbytes(3 * width) for _ in range(height)))


def data_url(picture, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(picture).decode()}"


def shown(text, *pictures):
    """A message of OpenAI's with pictures, and a text behind them."""
    parts = [{"type": "image_url", "image_url": {"url": data_url(p)}} for p in pictures]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


CLOSES_SOON = {"4100": 5}  # <|close|>: nobody trained it to end its reasoning


def run_waste(*args, model=DEMO):
    """The command's answer to the same question."""
    env = {k: v for k, v in clean_env().items() if not k.startswith("WASTE_")}
    done = subprocess.run([BINARY, "run", str(model), *map(str, args), "--json"], check=True,
                          env={**env, "XDG_CONFIG_HOME": "/nonexistent"}, capture_output=True)
    return json.loads(done.stdout.splitlines()[-1])


# ---- a scripted engine ---------------------------------------------------------------------------


class FakeSession:
    def __init__(self, number):
        self.number, self.handle, self.pos = number, number + 1, 0
        self.cancelled = False
        self.settings = None

    def reset(self):
        self.pos = 0

    def sampling(self, settings):
        self.settings = settings

    def add_image(self, data):
        return 1

    def image_ids(self, ids):
        return ids

    def clear_images(self):
        pass

    def cancel(self):
        self.cancelled = True


class FakeContext:
    """Passes that are made when the test says so. Chooses the token 7 everywhere."""

    class Model:
        ctx_max = 1000

    class Engine:
        max_rows = 100

    model, engine = Model, Engine

    def __init__(self):
        self.gate, self.passes, self.fail = threading.Semaphore(0), [], []
        self.made = threading.Condition()

    def sessions(self, n):
        self.all = [FakeSession(i) for i in range(n)]
        return self.all

    def step(self, items, n):
        from serve import engine
        assert self.gate.acquire(timeout=PATIENCE)
        rows = [(self.all[i.session - 1], i.n_ids, i.want) for i in items[:n]]
        status = self.fail.pop(0)(rows) if self.fail else engine.OK
        for item, (session, n_ids, want) in zip(items, rows):
            if status != engine.OK or session.cancelled:
                item.status = engine.E_CANCELLED if session.cancelled else status
                session.cancelled, item.token = False, -1
                continue
            item.n_done, item.token = n_ids, 7 if want else -1
            session.pos += n_ids
        with self.made:
            self.passes.append([(s.number, n_ids) for s, n_ids, _ in rows])
            self.made.notify_all()
        return status, "it failed"

    def counters(self):
        from serve import engine
        return engine.sized(engine.Counters)

    def close(self):
        pass


class FakeStore:
    def info(self):
        from serve import engine
        return engine.sized(engine.StoreInfo)


class FakePrefixes:
    """Finds nothing, keeps nothing, cuts nowhere."""

    failed, store = 0, FakeStore()

    def __init__(self, ctx, *_):
        self.kept = []

    def choose(self, slots, job):
        return slots[0]

    def resume(self, slot, job):
        slot.session.pos = 0
        return 0

    def next_place(self, job):
        n = len(job.ids)
        return n - 1 if job.forks and job.at < n - 1 else n

    def keep(self, slot, job):
        self.kept.append((job, slot.session.pos))

    def close(self):
        pass


class FakeCheckpoint:
    def __init__(self, session):
        self.pos = session.pos

    def restore(self, session):
        session.pos = self.pos

    def close(self):
        pass


class FakeReader:
    """Says a letter per token; satisfied after so many."""

    def __init__(self, until=10**9):
        self.until, self.n, self.closed = until, 0, 0
        self.matched, self.n_calls, self.n_cut, self.n_reasoning = -1, 0, 0, 0
        self.stop_texts = ()

    @property
    def satisfied(self):
        return self.n >= self.until

    def feed(self, choice, ends):
        from serve.reading import CONTENT, Delta
        self.n += 1
        return [Delta(CONTENT, "x")]

    def end(self):
        return []

    def close(self):
        self.closed += 1


class Heard:
    """A sink that can be waited for."""

    def __init__(self):
        self.events, self.changed = [], threading.Condition()

    def __call__(self, event):
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def of(self, kind):
        return [e for e in self.events if isinstance(e, kind)]

    def wait(self, kind, n=1):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.of(kind)) >= n, PATIENCE), self.events
        return self.of(kind)[n - 1]


def ids(n):
    return (ctypes.c_int32 * n)(*range(n))


@contextlib.contextmanager
def scheduler_with(monkeypatch, **options):
    """A Scheduler on a FakeContext, ready."""
    import logging
    from serve import scheduler
    monkeypatch.setattr(scheduler, "Prefixes", FakePrefixes)
    monkeypatch.setattr(scheduler.engine, "Checkpoint", FakeCheckpoint)
    ctx = FakeContext()
    s = scheduler.Scheduler(lambda: ctx, **{
        "sessions": 2, "queue": 4, "chunk": 10, "max_tokens": 50, "states": (),
        "log": logging.getLogger("test"), **options})
    s.start()
    deadline = time.monotonic() + PATIENCE
    while s.phase == scheduler.LOADING and time.monotonic() < deadline:
        time.sleep(0.001)
    assert s.phase == scheduler.READY, s.failure
    try:
        yield s, ctx
    finally:
        for _ in range(10000):
            ctx.gate.release()
        s.close()
