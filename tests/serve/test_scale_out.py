"""Several servers of one container behind nginx, by the configuration in share/: a conversation stays
where its state is, a server may die or be stopped, and nothing is computed twice unasked.

nginx is the real one; only addresses and paths of share/waste-nginx.conf are replaced.
"""

import contextlib
import http.client
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from serving import DEMO, PATIENCE, ROOT, Server, text_of

NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
CONF = ROOT / "share" / "waste-nginx.conf"
CHAT = "/v1/chat/completions"
NEVER_ENDS = {"4098": -100}
ENDLESS = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3000,
           "logit_bias": NEVER_ENDS}

pytestmark = pytest.mark.skipif(not NGINX, reason="no nginx here (Debian: nginx-light)")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Nginx(Server):
    """What a client sees: one address."""

    def __init__(self, tmp, ports):
        self.unix, self.port, self.log = None, free_port(), tmp / "error.log"
        (tmp / "waste.conf").write_text(self._shipped(tmp, ports))
        user = f"user {pwd.getpwuid(0).pw_name};" if os.geteuid() == 0 else ""
        paths = "".join(f"{kind}_temp_path {tmp}/{kind};\n"
                        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (tmp / "nginx.conf").write_text(
            f"{user} daemon off; worker_processes 1; pid {tmp}/pid;\n"
            f"events {{ worker_connections 256; }}\n"
            f"http {{\n{paths}include {tmp}/waste.conf;\n}}\n")
        self.process = subprocess.Popen(
            [NGINX, "-e", self.log, "-p", tmp, "-c", tmp / "nginx.conf"])
        self._wait()

    def _shipped(self, tmp, ports):
        text = CONF.read_text()
        for i, port in enumerate(ports, 1):
            text = text.replace(f"10.0.0.{i}:8000", f"127.0.0.1:{port}")
        text = text.replace("127.0.0.1:8080", f"127.0.0.1:{self.port}")
        text = text.replace("/var/log/nginx", str(tmp))
        assert "10.0.0." not in text and ":8080" not in text
        return text

    def _wait(self):
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                return self.connect().close()
            assert self.process.poll() is None and time.monotonic() < deadline, \
                self.log.read_text()
            time.sleep(0.02)

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)  # the worker goes with the master
        return self.process.wait(PATIENCE)


class Cluster:
    def __init__(self, tmp, stack, options):
        self.stack, self.options = stack, options
        self.servers = [stack.enter_context(Server(*options)) for _ in range(2)]
        for server in self.servers:
            server.ready()
        self.front = stack.enter_context(Nginx(tmp, [s.port for s in self.servers]))

    def restart(self, i):
        server = Server(*self.options, "--port", self.servers[i].port)
        self.servers[i] = self.stack.enter_context(server).ready()

    def who_had(self, headers):
        """The server whose log has this answer's id."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for i, server in enumerate(self.servers):
                if any(e["id"] == headers["X-Request-Id"] for e in server.events("request")):
                    return i
            time.sleep(0.01)
        raise AssertionError(f"nobody's: {headers}")

    def home(self, name):
        """The server that a conversation of this name goes to."""
        return self.who_had(self.front.get("/v1/models", X_Conversation_Id=name).headers)

    def named(self, i):
        """A conversation of server i."""
        return next(n for n in map("talk-{}".format, range(1000)) if self.home(n) == i)

    def n_answers(self, i):
        """POSTs that server i has ended."""
        return sum(e["method"] == "POST" for e in self.servers[i].events("request"))

    def chat(self, name, messages, **more):
        answer = self.front.post(CHAT, {"messages": messages, "max_tokens": 16, **more},
                                 X_Conversation_Id=name)
        assert answer.status == 200, answer.body
        return answer.json, self.who_had(answer.headers)


@contextlib.contextmanager
def cluster(tmp, *options):
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp, stack, options)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("nginx"), "--sessions", 1) as c:
        yield c


def user(text):
    return {"role": "user", "content": text}


def text(answer):
    return answer["choices"][0]["message"]["content"]


# ---- while all is well ----


def test_a_stream_is_passed_on_as_it_comes(two):
    """Its first chunk is here while its server still answers somebody else."""
    name = two.named(0)
    before = two.servers[0].stream(CHAT, ENDLESS)
    before.until_text()
    stream = two.front.stream(CHAT, ENDLESS, X_Conversation_Id=name)
    first = next(iter(stream))
    health = two.servers[0].health()
    assert not text_of([first]) and health["queued"] == 1 and health["answering"] == 1
    before.abort()
    assert text_of(stream.until_text())
    stream.abort()
    two.servers[0].wait_idle()  # that a client has gone is passed on, too


def test_a_stream_has_an_end(two):
    for i in range(2):
        stream = two.front.stream(CHAT, {**ENDLESS, "max_tokens": 20},
                                  X_Conversation_Id=two.named(i))
        assert list(stream)[-1]["choices"][0]["finish_reason"] == "length" and stream.done
        assert two.who_had(stream.headers) == i


@pytest.mark.parametrize("i", (0, 1))
def test_a_conversation_comes_back_to_where_its_state_is(two, i):
    name = two.named(i)
    talk = [user(f"The ship number {i} leaves the harbour. " * 8)]
    first, had = two.chat(name, talk)
    talk += [{"role": "assistant", "content": text(first)}, user("And then?")]
    second, had_then = two.chat(name, talk)
    assert had == had_then == i
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= \
        first["usage"]["prompt_tokens"] - 8
    other, had = two.chat(two.named(1 - i), talk)
    assert had == 1 - i and text(other) == text(second)


def test_a_client_that_does_not_read_is_given_up_by_its_server(tmp_path):
    """nginx does not read in its place. The answer is larger than what sockets on the way hold."""
    with cluster(tmp_path, "--write-timeout", 1) as c:
        data = json.dumps({**ENDLESS, "max_tokens": 3900, "stream": True, "n": 4,
                           "logprobs": True, "top_logprobs": 20}).encode()
        client = c.front.connect()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nX-Conversation-Id: {c.named(0)}\r\n"
                       f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        c.servers[0].wait_for_health("answering")
        c.servers[0].wait_idle()
        wait_until(lambda: c.n_answers(0))
        last = c.servers[0].events("request")[-1]
        assert last["status"] == 499 and last["error"] == "the client does not read"
        client.close()


@pytest.mark.parametrize("header", ("Authorization", "X_Api_Key"))
def test_without_a_name_a_key_decides(two, header):
    homes = [{two.who_had(two.front.get("/v1/models", **{header: f"Bearer {n}"}).headers)
              for _ in range(3)} for n in range(20)]
    assert all(len(h) == 1 for h in homes), "a key has one home"
    assert set.union(*homes) == {0, 1}, "and keys have several"


def test_metrics_are_asked_of_each_server_and_not_of_the_balancer(two):
    assert two.front.get("/metrics").status == 404
    assert all(s.get("/metrics").status == 200 for s in two.servers)


def test_a_large_body_and_the_page_pass(two):
    assert two.front.get("/").body == two.servers[0].get("/").body
    words = "word " * (1 << 18)
    assert two.front.post("/tokenize", {"content": words}).json["count"] > 1 << 18


# ---- a server is lost ----


def test_a_stream_of_a_killed_server_breaks_and_the_other_says_the_same(tmp_path):
    with cluster(tmp_path) as c:
        name, said = c.named(0), {"temperature": 1, "seed": 7, "max_tokens": 1000,
                                  "logit_bias": NEVER_ENDS}
        talk = [user("Tell me of the sea.")]
        whole, _ = c.chat(name, talk, **said)
        stream = c.front.stream(CHAT, {"messages": talk, **said}, X_Conversation_Id=name)
        chunks = stream.until_text()
        c.servers[0].stop(signal.SIGKILL)
        rest = bytearray()
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            while piece := stream.response.read1(1 << 16):
                rest += piece
        assert b"[DONE]" not in rest and text(whole).startswith(text_of(chunks))
        assert c.n_answers(1) == 0, "nothing is repeated unasked"
        again, had = c.chat(name, talk, **said)
        assert had == 1 and text(again) == text(whole)
        c.restart(0)
        wait_until(lambda: c.home(name) == 0)


def test_an_answer_of_a_killed_server_is_an_error_and_not_computed_again(tmp_path):
    with cluster(tmp_path) as c:
        name, answers = c.named(0), []
        client = threading.Thread(target=lambda: answers.append(
            c.front.post(CHAT, ENDLESS, X_Conversation_Id=name)))
        client.start()
        c.servers[0].wait_for_health("answering")
        c.servers[0].stop(signal.SIGKILL)
        client.join(PATIENCE)
        assert answers[0].status == 502 and answers[0].headers["Retry-After"]
        assert answers[0].error["code"] == "bad_gateway"
        assert c.n_answers(1) == 0 and not c.servers[1].health()["answering"]


def test_when_nobody_is_there_the_client_is_told_so(tmp_path):
    with cluster(tmp_path) as c:
        for server in c.servers:
            server.stop(signal.SIGKILL)
        for _ in range(5):
            answer = c.front.post(CHAT, ENDLESS)
            assert answer.status == 502 and answer.error["code"] == "bad_gateway"
        c.restart(0)
        c.restart(1)
        wait_until(lambda: c.front.get("/health").status == 200)


def wait_until(holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


# ---- a server refuses ----


def test_a_draining_server_ends_its_answers_and_the_other_takes_new_ones(tmp_path):
    with cluster(tmp_path, "--drain-timeout", PATIENCE) as c:
        name, server = c.named(0), c.servers[0]
        stream = c.front.stream(CHAT, {**ENDLESS, "max_tokens": 600}, X_Conversation_Id=name)
        stream.until_text()
        server.process.terminate()
        server.wait_for_event("draining")
        assert server.get("/health").status == 503
        assert c.front.get("/health", X_Conversation_Id=name).status == 200
        for _ in range(3):
            assert c.chat(name, [user("Hello!")])[1] == 1
        assert server.health()["answering"] == 1, "the stream was too short for this test"
        assert list(stream)[-1]["choices"][0]["finish_reason"] == "length" and stream.done
        assert server.stop() == 0
        assert c.chat(name, [user("Hello!")])[1] == 1
        c.restart(0)
        wait_until(lambda: c.home(name) == 0)


def test_what_a_full_server_refuses_goes_to_the_other_and_a_503_to_the_client_when_all_are(tmp_path):
    with cluster(tmp_path, "--sessions", 1, "--queue", 0) as c:
        name = c.named(0)
        first = c.servers[0].stream(CHAT, ENDLESS)
        first.until_text()
        assert c.chat(name, [user("Hello!")])[1] == 1
        second = c.servers[1].stream(CHAT, ENDLESS)
        second.until_text()
        for _ in range(4):
            refused = c.front.post(CHAT, ENDLESS, X_Conversation_Id=name)
            assert refused.status == 503 and int(refused.headers["Retry-After"]) >= 1
            assert refused.error["code"] == "overloaded"
        c.servers[1].stop(signal.SIGKILL)
        answer = c.front.post(CHAT, ENDLESS, X_Conversation_Id=name)
        assert answer.status in (502, 503) and answer.headers["Retry-After"] and answer.error
        first.abort()
        second.abort()
        c.servers[0].wait_idle()
        assert c.chat(name, [user("Hello!")])[1] == 0, "a refusal puts nobody aside"


# ---- states ----


def test_servers_may_share_a_directory_of_states(tmp_path):
    """What one has kept, another finds when it starts, and not before; either way it says the same."""
    states = tmp_path / "states"
    options = "--state-dir", states
    talk = [user("The harbour is full of ships. " * 20)]
    cached = lambda a: a["usage"]["prompt_tokens_details"]["cached_tokens"]  # noqa: E731
    with cluster(tmp_path, *options) as c:
        here, there = c.named(0), c.named(1)
        first, _ = c.chat(here, talk)
        second, had = c.chat(there, talk)
        assert had == 1 and cached(second) == 0 and text(second) == text(first)
        other = [user("Another harbour, another ship. " * 20)]
        alone, _ = c.chat(here, other)
        c.servers[1].stop(signal.SIGKILL)
        c.restart(1)
        wait_until(lambda: c.home(there) == 1)
        third, had = c.chat(there, other)
        assert had == 1 and cached(third) > 80 and text(third) == text(alone)


READ_ONLY = ["unshare", "--mount", "sh", "-c", """
    mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && ! touch "$1/x" 2>/dev/null &&
    exec "$0" -m serve "$@" """, sys.executable]


def test_a_container_may_be_mounted_read_only(tmp_path):
    model = tmp_path / "demo.waste"
    shutil.copytree(DEMO, model)
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces for us here")
    before = sorted(p.name for p in model.iterdir())
    with Server("--learn", model=model, command=READ_ONLY) as s:
        s.ready().chat("Hello!", 4)
        assert s.stop() == 0
        assert s.wait_for_event("not_learned")["level"] == "warning"
    assert sorted(p.name for p in model.iterdir()) == before


# ---- the configuration ----


def test_the_document_shows_the_configuration_as_it_is():
    document = (ROOT / "docs" / "SCALE-OUT.md").read_text()
    shown = re.findall(r"```nginx\n(.*?)```", document, re.S)
    assert shown and all(part in CONF.read_text() for part in shown)
