"""The clients of scripts/load_server: those that want answers, and those that want trouble.

Each client has its own random numbers and does one thing after the other until the time is up. What
may not happen is noted as a violation; what did happen is counted by (who, what).
"""

import asyncio
import collections
import contextlib
import json
import time

from load_cases import CASES, ENDLESS, essence, essence_of_events
from load_wire import Cut, Wire, ask

SHOWN = 20  # violations in full


class Load:
    """What all clients share: where, how long, the right answers, what they found."""

    def __init__(self, url, limits):
        self.url, self.limits, self.right = url, limits, {}
        self.cases, self.endless = CASES, ENDLESS
        self.counts, self.violations = collections.Counter(), []
        self.phases = collections.defaultdict(list)  # seconds of answers, by kind
        self.until = 0.0

    @property
    def over(self):
        return time.monotonic() >= self.until

    def count(self, who, what):
        self.counts[who, what] += 1

    def violation(self, text):
        self.violations.append(text)

    def compare(self, case, got, how):
        right = self.right[case.name]
        if got != right:
            self.violation(f"{case.name} ({how}): another answer than alone:\n"
                           f"      got   {got}\n      alone {right}")

    def open(self, **how):
        return Wire.open(self.url, **how)


@contextlib.asynccontextmanager
async def feeding(wire, parts, pause=0.0):
    """parts are written meanwhile, pause seconds apart, until the caller or the server has enough."""
    async def feed():
        with contextlib.suppress(OSError):
            for part in parts:
                wire.send_raw(part)
                await wire.writer.drain()
                await asyncio.sleep(pause)

    task = asyncio.ensure_future(feed())
    try:
        yield
    finally:
        task.cancel()


class Client:
    def __init__(self, load, number, random):
        self.load, self.number, self.random = load, number, random
        self.wire = None  # kept for the next request
        self.again, self.rest = None, 0.0  # what was refused, and until when to wait with it

    async def run(self):
        kinds = [do for do, weight in KINDS for _ in range(weight)]
        while not self.load.over:
            await asyncio.sleep(min(self.rest, max(0.0, self.load.until - time.monotonic())))
            self.rest = 0.0
            do = Client.normal if self.again else self.random.choice(kinds)
            name = do.__name__
            try:
                await asyncio.wait_for(do(self), self.load.limits.patience)
            except asyncio.TimeoutError:
                self.drop()
                self.load.violation(f"{name}: no end in {self.load.limits.patience:g} s")
            except (Cut, OSError) as e:
                self.drop()
                self.load.violation(f"{name}: {type(e).__name__}: {e}")
            except (AssertionError, KeyError, ValueError, IndexError, TypeError) as e:
                self.drop()
                self.load.violation(f"{name}: {type(e).__name__}: {e}")
        self.drop()

    def drop(self):
        if self.wire:
            self.wire.close()
            self.wire = None

    async def nap(self, most):
        await asyncio.sleep(self.random.uniform(0, most))

    # ---- who wants an answer ----

    async def connect(self):
        """A connection, now and then the one that is left of the last request, unless the server
        has found it idle for too long."""
        if self.wire and self.wire.reader.at_eof():
            self.drop()
        if not self.wire:
            self.wire = await self.load.open()
        return self.wire

    def done(self, wire):
        if wire is self.wire and (not wire.reusable or self.random.random() < 0.4):
            self.drop()

    async def refused(self, wire):
        """The same again, as the 503 says."""
        body = json.loads(await wire.body())
        after = float(wire.headers["retry-after"])
        assert body.get("error") and 0 < after <= 600, f"503 with {body}, {after}"
        self.load.count("normal", "503")
        self.rest = after * self.random.uniform(1, 1.5)

    def request(self, case, stream):
        more = {"stream": stream}
        if stream and case.path.endswith("completions"):
            more["stream_options"] = {"include_usage": True}
            more["return_progress"] = self.random.random() < 0.3
        return case.bytes(**more)

    async def answer(self, case, wire, stream, who, **how):
        """Read the rest of a 200 and compare it; the answer's id."""
        if stream:
            events = [e async for e in wire.events(**how)]
            failed = [e for e in events if "error" in e and e["error"]]
            assert not failed, f"{case.name}: {failed}"
            got = essence_of_events(case, events)
            name = events[0].get("id")
        else:
            value = json.loads(await wire.body(**how))
            got, name = essence(case, value), value["id"]
        self.load.compare(case, got, f"{who}, {'stream' if stream else 'at once'}")
        self.load.count(who, "right")
        return name

    async def normal(self):
        case, stream = self.again or (self.random.choice(self.load.cases), self.random.random() < 0.5)
        self.again = None
        wire, begun = await self.connect(), time.monotonic()
        wire.send("POST", case.path, self.request(case, stream))
        status = await wire.head()
        if status == 503:
            self.again = case, stream
            await self.refused(wire)
        else:
            assert status == 200, f"{case.name}: {status} {await wire.body()}"
            await self.answer(case, wire, stream, "normal")
            self.load.phases["answer"].append(time.monotonic() - begun)
            self.rest = self.random.uniform(0, 0.2)
        self.done(wire)

    async def slow(self):
        """A small window, a few bytes now and then; the answer is whole for all that."""
        case, stream = self.random.choice(self.load.cases), self.random.random() < 0.8
        wire, left = await self.load.open(receive_bytes=2048), [40]

        async def pause():
            left[0] -= 1
            await asyncio.sleep(self.random.uniform(0, 0.3) if left[0] > 0 else 0)

        try:
            wire.send("POST", case.path, self.request(case, stream))
            if await wire.head() == 503:
                return self.load.count("slow", "503")
            assert wire.status == 200, wire.status
            await self.answer(case, wire, stream, "slow", most=self.random.choice((1, 16, 200)),
                              pause=pause)
        finally:
            wire.close()

    async def deaf(self):
        """Asks for a long stream and never reads."""
        wire = await self.load.open(receive_bytes=2048)
        wire.send("POST", self.load.endless.path, self.load.endless.bytes(
            stream=True, max_tokens=400, logprobs=True, top_logprobs=20))
        await self.nap(8)
        (wire.abort if self.random.random() < 0.5 else wire.close)()
        self.load.count("deaf", "gone")

    async def repeating(self):
        """The same Idempotency-Key: twice at once, again behind an abort, again later."""
        case, stream = self.random.choice(self.load.cases), self.random.random() < 0.5
        key = [f"Idempotency-Key: {self.number}-{self.random.random()}"]
        body = self.request(case, stream)
        how = self.random.choice(("together", "behind an abort", "later"))

        async def once():
            wire = await self.load.open()
            try:
                wire.send("POST", case.path, body, key)
                if await wire.head() == 503:
                    return None
                assert wire.status == 200, wire.status
                return await self.answer(case, wire, stream, "repeating")
            finally:
                wire.close()

        if how == "behind an abort":
            wire = await self.load.open()
            wire.send("POST", case.path, body, key)
            await self.nap(0.3)
            wire.abort()
            names = {await once()}
        else:
            names = set(await asyncio.gather(once(), once())) if how == "together" \
                else {await once(), await once()}
        names.discard(None)
        assert len(names) <= 1, f"{how}: one key, and the answers {names}"
        self.load.count("repeating", how if names else "503")

    # ---- who goes before the end ----

    async def leaving(self):
        """In any phase: in the head, in the body, waiting, while the prompt is read, while text
        comes."""
        case = self.load.endless if self.random.random() < 0.3 else self.random.choice(self.load.cases)
        stream = self.random.random() < 0.7
        wire, body = await self.load.open(), self.request(case, stream)
        phase = self.random.choice(("head", "body", "sent", "soon", "text", "text"))
        if phase == "head":
            wire.send_raw(f"POST {case.path} HTTP/1.1\r\nHost: lo".encode())
        elif phase == "body":
            wire.send_raw(f"POST {case.path} HTTP/1.1\r\nHost: load\r\nContent-Length: "
                          f"{len(body)}\r\n\r\n".encode() + body[:len(body) // 2])
        else:
            wire.send("POST", case.path, body)
        if phase == "text" and stream:
            wanted = self.random.randrange(1, 12)
            if await wire.head() == 200:
                async for _ in wire.events():
                    wanted -= 1
                    if not wanted:
                        break
        elif phase != "sent":
            await self.nap(0.5)
        (wire.abort if self.random.random() < 0.5 else wire.close)()
        self.load.count("leaving", phase)

    async def hurried(self):
        """A deadline that may be too short."""
        case = self.random.choice(self.load.cases)
        status, _, body = await ask(self.load.url, "POST", case.path, case.bytes(
            timeout=self.random.choice((0.001, 0.1, 0.5))))
        if status == 200:
            self.load.compare(case, essence(case, json.loads(body)), "hurried")
        assert status in (200, 503, 504), f"{status} {body}"
        self.load.count("hurried", str(status))

    # ---- who sends what nobody should ----

    async def large(self):
        """Bodies above the limit, with and without a length; below it, and of no use."""
        limit, kind = self.load.limits.max_body, self.random.randrange(6)
        if kind == 0:
            head, parts, right = f"Content-Length: {limit + 1}", [b"x" * 65536], (413,)
        elif kind == 1:
            chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
            head, parts, right = ("Transfer-Encoding: chunked", [chunk] * (limit // 65536 + 2),
                                  (413, 503))
        else:
            bodies = (
                b'{"messages": [' + b"1," * (limit // 2 - 20) + b"1]}",
                b'{"messages": [' + b"{}," * (limit // 3 - 20) + b"{}]}",
                b'{"messages": [{"role": "user", "content": "' + b"sea " * (limit // 4 - 40)
                + b'"}]}',
                b'{"messages": [], "x": "' + b"\\u0041" * (limit // 6 - 20) + b'"}')
            body = bodies[kind - 2]
            head, right = f"Content-Length: {len(body)}", (400, 413, 503)
            parts = [body[i:i + 65536] for i in range(0, len(body), 65536)]
        wire = await self.load.open()
        try:
            wire.send_raw(f"POST {self.random.choice(CASES[:30]).path} HTTP/1.1\r\nHost: load\r\n"
                          f"{head}\r\n\r\n".encode())
            async with feeding(wire, parts):
                await wire.head()
                assert wire.status in right, f"large {kind}: {wire.status} {await wire.body()}"
                self.load.count("large", str(wire.status))
        except Cut:  # refused while we still wrote: the reset overtook the answer
            assert kind < 2, f"large {kind}: no answer"
            self.load.count("large", "cut")
        finally:
            wire.abort()

    async def hostile(self):
        """Bytes of BAD. 4xx, JSON if anything, or an end; and no other request suffers."""
        name, data = self.random.choice(BAD)
        wire = await self.load.open()
        try:
            wire.send_raw(data)
            try:
                await wire.head()
            except Cut:
                return self.load.count("hostile", "cut")
            body = await wire.body()
            assert 400 <= wire.status < 500 or wire.status == 503, f"{name}: {wire.status} {body}"
            assert "error" in json.loads(body), f"{name}: {body}"
            self.load.count("hostile", str(wire.status))
        finally:
            wire.close()

    async def lingering(self):
        """Heads and bodies that come a byte at a time, or not at all: the server ends it."""
        kind, limits = self.random.randrange(3), self.load.limits
        within = (limits.body if kind == 2 else limits.head) + limits.slack
        if self.load.until - time.monotonic() < within - limits.slack:
            return await self.normal()
        text = b"" if kind == 0 else b"GET /health HTTP/1.1\r\nX-Much: " + b"y" * 100000
        wire, begun = await self.load.open(), time.monotonic()
        try:
            if kind == 2:
                wire.send_raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                              b"Content-Length: 100000\r\n\r\n{")
            async with feeding(wire, (bytes([byte]) for byte in text), 0.5):
                await asyncio.wait_for(wire.gone(), within)
            took = time.monotonic() - begun
            assert took > within - limits.slack - 1, f"{took:.0f} s for {kind}"
            self.load.count("lingering", ("silent", "head", "body")[kind])
        except asyncio.TimeoutError:
            took = time.monotonic() - begun
            self.load.violation(f"lingering {kind}: still connected after {took:.0f} s")
        finally:
            wire.close()

    # ---- who looks ----

    async def looking(self):
        kind = self.random.randrange(5)
        if kind == 0:
            status, _, body = await ask(self.load.url, "GET", "/metrics")
            assert status == 200 and b"waste_answers" in body, status
        elif kind == 1:
            status, _, body = await ask(self.load.url, "GET", "/v1/models")
            assert status == 200 and json.loads(body)["data"], status
        elif kind == 2:
            text = f"client {self.number}, {self.random.random()} \u0000 \U0001f389 <|im_end|>"
            _, _, body = await ask(self.load.url, "POST", "/tokenize",
                                   json.dumps({"content": text}).encode())
            _, _, back = await ask(self.load.url, "POST", "/detokenize", body)
            assert json.loads(back)["content"] == text, f"{text!r} became {back!r}"
        elif kind == 3:
            case = self.random.choice([c for c in self.load.cases if "/messages " in c.name])
            status, _, body = await ask(self.load.url, "POST", case.path + "/count_tokens",
                                        case.bytes())
            n = json.loads(body)["input_tokens"]
            assert n == self.load.right[case.name][0][0], f"{n} tokens counted"
        else:
            await self._watch()
        self.load.count("looking", ("metrics", "models", "tokens", "count", "live")[kind])

    async def _watch(self):
        wire = await self.load.open()
        try:
            wire.send("GET", "/live", headers=["Accept: text/event-stream"])
            assert await wire.head() == 200, wire.status
            wanted = self.random.randrange(1, 6)
            async for value in wire.events():
                assert {"queued", "passes", "layers"} <= value.keys()
                wanted -= 1
                if not wanted:
                    break
        finally:
            wire.abort()


KINDS = ((Client.normal, 60), (Client.leaving, 14), (Client.slow, 6), (Client.repeating, 5),
         (Client.hurried, 3), (Client.large, 2), (Client.hostile, 6), (Client.lingering, 1),
         (Client.deaf, 1), (Client.looking, 4))


def _post(body, head="", path="/v1/chat/completions", length=None):
    length = len(body) if length is None else length
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{head}\r\n"
            .encode() + body)


_OK = b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}'
BAD = [
    ("deep arrays", _post(b"[" * 100000)),
    ("deep objects", _post(b'{"a":' * 50000 + b"1" + b"}" * 50000)),
    ("deep message", _post(b'{"messages": [{"role": "user", "content": ' + b"[" * 3000
                           + b"]" * 3000 + b"}]}")),
    ("deep schema", _post(b'{"messages": [{"role": "user", "content": "x"}], "response_format": '
                          b'{"type": "json_schema", "json_schema": {"name": "x", "schema": '
                          + b'{"properties": {"a": ' * 300 + b"{}" + b"}}" * 300 + b"}}}")),
    ("a huge integer", _post(b'{"max_tokens": ' + b"9" * 5000 + b"}")),
    ("a large integer", _post(_OK[:-1] + b', "seed": ' + b"9" * 400 + b"}")),
    ("a huge exponent", _post(_OK[:-1] + b', "temperature": 1e99999}')),
    ("NaN", _post(_OK[:-1] + b', "top_p": NaN}')),
    ("not UTF-8", _post(b'{"messages": [{"role": "user", "content": "\xff\xfe\xc0\x80"}]}')),
    ("cut JSON", _post(_OK[:-7])),
    ("JSON and more", _post(_OK + b"{}")),
    ("UTF-16", _post('{"messages": []}'.encode("utf-16"))),
    ("wrong types", _post(b'{"messages": {"0": 1}, "stream": "yes"}')),
    ("a role of its own", _post(b'{"messages": [{"role": {"a": []}, "content": 3}]}')),
    ("many stops", _post(_OK[:-1] + b', "stop": [' + b'"x",' * 5000 + b'"y"]}')),
    ("biases of nothing", _post(_OK[:-1] + b', "logit_bias": {"-1": 1, "99999999999": 2}}')),
    ("a bad grammar", _post(_OK[:-1] + b', "grammar": "root ::= ' + b"(" * 2000 + b'"}')),
    ("a pattern that explodes", _post(
        _OK[:-1] + b', "response_format": {"type": "json_schema", "json_schema": {"name": "p", '
        b'"schema": {"type": "string", "pattern": "((a{0,1000}){0,1000}){0,1000}"}}}}')),
    ("too long a prompt", _post(b'{"prompt": "' + b"the sea " * 9000 + b'"}',
                                path="/v1/completions")),
    ("ids out of range", _post(b'{"prompt": [99999999]}', path="/v1/completions")),
    ("ids that are none", _post(b'{"tokens": [1e300, -1, true]}', path="/detokenize")),
    ("two lengths", _post(_OK, "Content-Length: 3\r\n")),
    ("length and chunks", _post(_OK, "Transfer-Encoding: chunked\r\n")),
    ("chunks by another name", _post(b"0\r\n\r\n", "Transfer-Encoding: xchunked\r\n")),
    ("a negative length", _post(_OK, length=-5)),
    ("a length in words", _post(_OK, length="many")),
    ("a length with a plus", _post(_OK, length="+60")),
    ("junk for chunks", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
                        b"chunked\r\n\r\nzz\r\nhello\r\n"),
    ("a chunk of 2^64", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
                        b"chunked\r\n\r\nffffffffffffffff0\r\nhello"),
    ("a blank before a colon", b"GET /health HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n"),
    ("two hosts", b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"),
    ("chunks in other clothes", _post(b"", "X: y\r\n", length=0).replace(
        b"Content-Length: 0", b"Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n"),
    ("chunks in HTTP/1.0", b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"
                           b"0\r\n\r\n"),
    ("a header with NUL", b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n"),
    ("many headers", b"GET /nowhere HTTP/1.1\r\nHost: x\r\n"
     + b"".join(b"X-%d: y\r\n" % i for i in range(20000)) + b"\r\n"),
    ("a long header", b"GET /nowhere HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200000 + b"\r\n\r\n"),
    ("a long path", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("a path that climbs", b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("a path of percents", b"GET /%00%ff%2e%2e/%zz HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("another protocol", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("HTTP/9", b"GET /health HTTP/9.9\r\n\r\n"),
    ("a method of its own", b"BREW /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("a proxy's request", b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n"),
    ("compressed", _post(b"\x1f\x8b" + b"\0" * 50, "Content-Encoding: gzip\r\n")),
    ("a page of strangers", _post(_OK, "Origin: https://example.org\r\n")),
    ("a key of 10000 characters", _post(_OK, f"Idempotency-Key: {'k' * 7000}\r\n")),
]
