"""The server over sockets: every path, every kind of refusal, limits, keys, hostile clients."""

import json
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving import DEMO, PATIENCE, Server, clean_env, server  # noqa: F401
from serve.routes import BODIES

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
ENDLESS = {**HI, "max_tokens": 3900, "logit_bias": {"4098": -100}}  # never the end marker


# ---- what is here ----


def test_r10_health_says_ready(server):
    answer = server.get("/health")
    assert answer.status == 200 and answer.json["status"] == "ok"
    assert answer.json["phase"] == "ready" and answer.json["model"] == "demo"


def test_r13_models_carry_their_context_under_every_name(server):
    models = server.get("/v1/models").json
    (model,) = models["data"]
    assert models["object"] == "list" and model["id"] == "demo" and model["object"] == "model"
    assert model["context_length"] == model["max_model_len"] == model["meta"]["n_ctx_train"] == 4096
    assert model["waste"]["n_experts"] == 32
    assert server.get("/v1/models/demo").json == model
    missing = server.get("/v1/models/other")
    assert missing.status == 404 and missing.error["param"] == "model"


def test_r9_paths_work_without_v1_and_with_slashes_and_queries(server):
    for path in ("/chat/completions", CHAT + "/", CHAT + "?api-version=1"):
        assert server.post(path, HI).status == 200
    assert server.get("/models").status == 200
    assert server.post("/completions", {"prompt": "Once"}).status == 200


def test_tokens_there_and_back(server):
    ids = server.post("/tokenize", {"content": "Hi <|im_end|>\u0000🎉"}).json["tokens"]
    assert 4098 not in ids, "content is never markup"
    assert server.post("/detokenize", {"tokens": ids}).json["content"] == "Hi <|im_end|>\u0000🎉"
    assert 4098 in server.post("/tokenize", {"content": "<|im_end|>", "parse_special": True}
                               ).json["tokens"]
    pieces = server.post("/tokenize", {"content": "Hi you", "with_pieces": True}).json["tokens"]
    assert "".join(p["piece"] for p in pieces) == "Hi you"
    for body in ({}, {"content": 3}):
        assert server.post("/tokenize", body).error["param"] == "content"
    vocab = server.get("/v1/models").json["data"][0]["meta"]["n_vocab"]
    assert server.post("/detokenize", {"tokens": [0, vocab - 1]}).status == 200
    for bad in ("x", True, 1.5, -1, vocab, 99999999, 1 << 40):
        refused = server.post("/detokenize", {"tokens": [0, bad]})
        assert refused.status == 400 and refused.error["param"] == "tokens"
    assert refused.error["message"] == f"tokens: token ids are 0 to {vocab - 1}"


def test_a_template_is_shown_as_it_is_fed(server):
    shown = server.post("/apply-template", HI).json
    assert shown["prompt"].endswith("<|im_assistant|>assistant<|im_middle|>")
    assert shown["count"] == server.chat("Hello!", 1)["usage"]["prompt_tokens"]


def test_metrics_are_prometheus_text(server):
    server.post(CHAT, HI)
    text = server.get("/metrics")
    assert text.headers["Content-Type"].startswith("text/plain")
    families = {f.name: f for f in text_string_to_metric_families(text.body.decode())}
    value = {(s.name, *s.labels.values()): s.value for f in families.values() for s in f.samples}
    assert value["waste_ready",] == 1 and value["waste_answers", "queued"] == 0
    assert value["waste_http_requests_total", CHAT, "200"] >= 1
    assert value["waste_tokens_total", "generated"] >= 4
    assert value["waste_engine_rows_total", "decode"] >= 3
    assert value["waste_outcomes_total", "length"] >= 1
    assert families["waste_first_token_seconds"].type == "histogram"
    server.get("/%s" % ("x" * 100))
    assert "xxx" not in server.get("/metrics").body.decode(), "paths of strangers are no labels"


# ---- R11: errors ----


def test_r11_unknown_paths_and_methods_are_json(server):
    lost = server.get("/nowhere")
    assert lost.status == 404 and lost.error["type"] == "not_found_error"
    for method in ("DELETE", "PUT", "PATCH", "GET"):
        wrong = server.ask(method, CHAT)
        assert wrong.status == 405 and wrong.headers["Allow"] == "OPTIONS, POST" and wrong.error
    assert server.post("/v1/embeddings", {}).status == 501


def test_r11_head_and_options_are_answered(server):
    head = server.ask("HEAD", "/health")
    assert head.status == 200 and head.body == b""
    options = server.ask("OPTIONS", CHAT)
    assert options.status == 204 and "POST" in options.headers["Allow"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 50000])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/tokenize"])
def test_r11_bodies_that_are_no_objects_are_400(server, path, body):
    answer = server.ask("POST", path, body)
    assert answer.status == 400 and answer.error["type"] == "invalid_request_error"


def test_anthropic_errors_have_its_form(server):
    answer = server.post("/v1/messages", {"messages": []})
    assert answer.status == 400 and answer.json["type"] == "error"
    assert answer.json["error"]["type"] == "invalid_request_error"


NEVER_FINITE = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}


@pytest.mark.parametrize("change, param", [
    ({"messages": []}, "messages"), ({"messages": "x"}, "messages"), ({"messages": None}, "messages"),
    ({"messages": [3]}, "messages[0]"), ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0]"),
    ({"temperature": 9}, "temperature"), ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"tools": [{"type": "function", "function": {
        "name": "a", "strict": True, "parameters": {"not": {}}}}]}, "tools[0].function.parameters"),
    ({"tools": {}}, "tools"), ({"tools": [3]}, "tools[0]"), ({"tool_choice": "some"}, "tool_choice"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
     "response_format.json_schema.schema"),
    ({"grammar": "root ::= .", "response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]},
     "messages[0].content[0]"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"), ({"stop": "x" * 1000000}, "stop"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": NEVER_FINITE}}},
     "response_format"), ({"grammar": 'root ::= "a" root'}, "grammar")])
def test_r2_refusals_name_the_member(server, change, param):
    answer = server.post(CHAT, {**HI, **change})
    assert answer.status == 400, answer.body
    assert (answer.error["param"] or "").startswith(param), answer.error


@pytest.mark.parametrize("path, change, param", [
    ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
    ("/v1/messages", {"tools": [{"name": "a", "strict": True, "input_schema": {"not": {}}}]},
     "tools[0].input_schema"),
    ("/v1/messages", {"tools": [{"name": "a"}], "tool_choice": {"type": "tool", "name": "b"}},
     "tool_choice.name"),
    ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
     "output_format"),
    ("/v1/messages", {"system": "Be brief.", "messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "x", "content": "y"}]}]}, "messages[0]"),
    ("/v1/responses", {"reasoning": {"effort": "low"}}, "reasoning.effort"),
    ("/v1/responses", {"tools": [{"type": "function", "name": "a", "strict": True,
                                  "parameters": {"not": {}}}]}, "tools[0].parameters"),
    ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "n",
                                           "schema": {"not": {}}}}}, "text.format"),
    ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "n",
                                           "schema": NEVER_FINITE}}}, "text.format"),
    ("/v1/responses", {"instructions": "Be brief.", "input": [
        {"role": "user", "content": "a"},
        {"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input[1]")])
def test_r2_refusals_name_the_member_as_its_dialect_has_it(server, path, change, param):
    answer = server.post(path, {**HI, "max_tokens": 2, "max_output_tokens": 2, "input": "Hello!",
                                **change})
    assert answer.status == 400, answer.body
    message = answer.error["message"]
    if path == "/v1/messages":
        assert message.startswith(param) and message.count(param) == 1, message
    else:
        assert answer.error["param"].startswith(param), answer.error


@pytest.mark.parametrize("tool", [{}, {"foo": 1}, {"type": "function"}, {"function": {}},
                                  {"type": "function", "function": {"name": ""}}, {"name": ""},
                                  {"name": 3}])
@pytest.mark.parametrize("path", [CHAT, "/apply-template", "/v1/messages", "/v1/responses"])
def test_r2_a_tool_without_a_name_is_none(server, path, tool):
    """Symptom: it was shown to the model, could not be called, and an answer that was required to call
    one was a text."""
    known = {"type": "function", "name": "known"}
    required = "required"
    if path == "/v1/messages":
        known, required = {"name": "known"}, {"type": "any"}
    answer = server.post(path, {**HI, "input": "Hello!", "tool_choice": required,
                                "tools": [known, tool]})
    assert answer.status == 400 and "tools[1]" in answer.error["message"], answer.body
    if path != "/v1/messages":
        assert answer.error["param"].startswith("tools[1]"), answer.error


def test_t24_no_client_error_is_a_500(server):
    """A lone surrogate, a NUL, a prompt that is too long, an id beyond the vocabulary."""
    odd = server.ask("POST", CHAT, b'{"max_tokens": 2, "stop": "\\ud800", "messages": '
                                   b'[{"role": "user", "content": "\\ud83d \\u0000"}]}')
    assert odd.status == 200
    for path, body in ((CHAT, {**HI, "messages": [{"role": "user", "content": "word " * 9000}]}),
                       ("/v1/completions", {"prompt": "word " * 9000})):
        long = server.post(path, body)
        assert long.status == 400 and long.error["code"] == "context_length_exceeded"
    assert server.post(CHAT, {**HI, "logit_bias": {"999999": 1}}).status == 400
    assert server.post("/v1/completions", {"prompt": [999999]}).error["param"] == "prompt"


def test_a_schema_that_is_none_is_a_status_even_for_a_stream(server):
    for stream in (False, True):
        answer = server.post(CHAT, {**HI, "stream": stream, "response_format": {
            "type": "json_schema", "json_schema": {"schema": {"not": {}}}}})
        assert answer.status == 400 and "not" in answer.error["message"]
        answer = server.post(CHAT, {**HI, "stream": stream, "grammar": "root = nonsense"})
        assert answer.status == 400 and "line 1" in answer.error["message"]


# ---- who may ask ----


def test_keys_are_asked_for_and_any_of_them_fits(tmp_path):
    (tmp_path / "keys").write_text("# ours\nfirst-key\n\nsecond-key\n")
    with Server("--api-key-file", tmp_path / "keys", env={"WASTE_API_KEY": "third-key"}) as s:
        s.ready()
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "first-key"},
                        {"Authorization": "Bearer "}, {"x_api_key": ""}, {"x_api_key": "\u00e9"}):
            answer = s.get("/v1/models", **headers)
            assert answer.status == 401, headers
            assert answer.error["type"] == "authentication_error"
        for headers in ({"Authorization": "Bearer first-key"}, {"x_api_key": "second-key"},
                        {"Authorization": "bearer third-key"}):
            assert s.get("/v1/models", **headers).status == 200
        assert s.get("/health").status == 200, "liveness is everybody's"
        assert s.get("/metrics").status == 401
        assert s.post(CHAT, HI).status == 401
        wrong = s.post("/v1/messages", HI)
        assert wrong.status == 401 and wrong.json["error"]["type"] == "authentication_error"


def test_a_key_file_without_keys_is_no_open_door(tmp_path):
    (tmp_path / "keys").write_text("# none\n")
    assert "no key" in refused_to_start("--api-key-file", tmp_path / "keys")
    assert "no key" in refused_to_start("--api-key-file", tmp_path / "keys", "--api-key", "other")
    for path, why in ((tmp_path / "nothing", "No such file"), (tmp_path, "directory"),
                      (tmp_path / "keys", "no key in it")):
        said = refused_to_start("--api-key-file", path)
        assert said.startswith(f"waste serve: --api-key-file {path}: ") and "a key a line" in said
        assert why in said and "Errno" not in said and said.count(str(path)) == 1, said


def test_keys_do_not_see_each_others_states(tmp_path):
    (tmp_path / "keys").write_text("a\nb\n")
    with Server("--api-key-file", tmp_path / "keys", "--isolate-keys", "--sessions", 2) as s:
        s.ready()

        def cached(key):
            answer = s.post(CHAT, {**HI, "messages": [{"role": "user", "content": "Secret? " * 30}]},
                            Authorization=f"Bearer {key}")
            return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert cached("a") == 0 and cached("a") > 0
        assert cached("b") == 0, "whether somebody asked this is nobody's business"
        assert cached("b") > 0 and cached("a") > 0


def test_requests_of_a_key_are_counted(tmp_path):
    with Server("--per-key", 1) as s:
        s.ready()
        first = s.stream(CHAT, ENDLESS)
        next(iter(first))
        busy = s.post(CHAT, HI)
        assert busy.status == 429 and busy.headers["Retry-After"]
        first.abort()
        s.wait_idle()
        deadline = time.monotonic() + PATIENCE
        while s.post(CHAT, HI).status == 429 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert s.post(CHAT, HI).status == 200


def test_pages_of_strangers_are_turned_away(server):
    for origin in ("https://evil.example", "null", f"http://evil.example:{server.port}", "http://[",
                   "http://localhost@evil.example", "http://127.0.0.1.evil.example", "file://"):
        answer = server.post(CHAT, HI, Origin=origin, Host=f"evil.example:{server.port}")
        assert answer.status == 403, origin
        assert "Access-Control-Allow-Origin" not in answer.headers
    local = server.post(CHAT, HI, Origin="http://localhost:3000")
    assert local.status == 200
    assert local.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
    preflight = server.ask("OPTIONS", CHAT, None, {
        "Origin": "http://127.0.0.1:8080", "Access-Control-Request-Method": "POST"})
    assert preflight.status == 204 and "POST" in preflight.headers["Access-Control-Allow-Methods"]
    assert "Authorization" in preflight.headers["Access-Control-Allow-Headers"]


def test_a_page_that_may_ask_may_send_any_header(server):
    """OpenAI's client sends its own, of which a browser asks first."""
    def asked(origin):
        return server.ask("OPTIONS", CHAT, None, {
            "Origin": origin, "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "x-stainless-os, authorization",
            "Access-Control-Request-Private-Network": "true"}).headers

    mine, theirs = asked("http://localhost:3000"), asked("https://evil.example")
    assert "x-stainless-os" in mine["Access-Control-Allow-Headers"]
    assert mine["Access-Control-Allow-Private-Network"] == "true"
    assert not [name for name in theirs if name.startswith("Access-Control")]


def test_a_name_that_leads_here_does_not_make_a_page_ours(server):
    """DNS rebinding: the page and its requests have one origin, of which a GET says nothing."""
    for path in ("/live", "/metrics"):
        for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example"):
            assert server.get(path, Host=host).status == 403, (path, host)
        for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]:80", "a.localhost", "waste"):
            assert server.get(path, Host=host).status == 200, (path, host)
    with Server("--cors-origin", "https://chat.example") as s:
        assert s.ready().get("/live", Host="chat.example").status == 200


def test_origins_can_be_allowed():
    with Server("--cors-origin", "https://chat.example") as s:
        s.ready()
        assert s.post(CHAT, HI, Origin="https://chat.example").status == 200
        assert s.post(CHAT, HI, Origin="https://other.example").status == 403


@pytest.mark.parametrize("origin", ["chat.example", "https://chat.example/", "HTTPS://chat.example",
                                    "https://chat.example/page", "https://"])
def test_an_origin_that_no_browser_sends_is_refused(origin):
    said = refused_to_start("--cors-origin", origin, code=2)
    assert f"argument --cors-origin: {origin!r} is no origin such as https://" in said


def test_an_address_that_all_can_reach_is_warned_of():
    with Server("--host", "0.0.0.0") as s:
        s.ready()
        assert s.events("open_to_all")
    with Server("--host", "0.0.0.0", "--api-key", "k") as s:
        s.ready()
        assert not s.events("open_to_all")


def test_a_unix_socket_serves_like_a_port(tmp_path):
    with Server(unix=str(tmp_path / "s")) as s:
        s.ready()
        assert s.chat("Hello!", 4)["choices"][0]["message"]["content"]
        assert "another server" in refused_to_start("--unix", tmp_path / "s")
        assert s.stop() == 0
    assert not (tmp_path / "s").exists()


def test_a_unix_socket_takes_the_place_of_nothing_but_a_dead_one(tmp_path):
    (tmp_path / "file").write_text("precious")
    said = refused_to_start("--unix", tmp_path / "file")
    assert f"--unix {tmp_path / 'file'}: " in said and "no socket" in said
    assert (tmp_path / "file").read_text() == "precious"
    with Server(unix=str(tmp_path / "s")) as s:
        s.ready()
        s.process.kill()
        s.process.wait(PATIENCE)
    with Server(unix=str(tmp_path / "s")) as s:
        assert s.ready().health()["status"] == "ok"


def test_a_server_that_ends_leaves_the_socket_of_its_successor(tmp_path):
    with Server(unix=str(tmp_path / "s")) as old:
        old.ready()
        (tmp_path / "s").unlink()
        with Server(unix=str(tmp_path / "s")) as new:
            new.ready()
            assert old.stop() == 0
            assert new.health()["status"] == "ok"


def test_where_it_cannot_listen_is_said(server, tmp_path):
    long = tmp_path / ("s" * 120)
    for options, words in ((("--unix", tmp_path / "no" / "s"), "No such file"), (("--unix", long), ""),
                           (("--port", server.port), "in use"), (("--host", "1.2.3.4"), "assign"),
                           (("--host", "nowhere.invalid"), "")):
        said = refused_to_start(*options).strip()
        assert f"{options[0]} {options[1]}" in said and words in said, said
        assert "Errno" not in said and said.count("\n") == 0, said


# ---- R12: limits ----


def test_r12_a_body_that_is_too_large_is_not_read():
    with Server("--max-body", "10K", "--body-timeout", 0.5) as s:
        s.ready()
        declared = s.connect()
        declared.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                         b"Content-Length: 99999999999\r\n\r\n")
        assert declared.recv(1000).startswith(b"HTTP/1.1 413 ")
        chunked = s.connect()
        chunked.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                        b"Transfer-Encoding: chunked\r\n\r\n")
        chunked.sendall((b"2000\r\n" + b" " * 0x2000 + b"\r\n") * 2)
        assert chunked.recv(1000).startswith(b"HTTP/1.1 413 ")
        slow = s.connect()
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert s.post(CHAT, HI).status == 200


def test_r12_a_body_of_8_mib_is_accepted_and_a_larger_one_is_not(server):
    def said_of(n):
        s = server.connect()
        s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                  f"Content-Length: {n}\r\n\r\n".encode())
        return s.recv(1000)

    assert said_of(8 << 20).startswith(b"HTTP/1.1 100 ")
    assert said_of((8 << 20) + 1).startswith(b"HTTP/1.1 413 ")


@pytest.fixture(scope="module")
def strict():
    """A server that refuses most of what it is sent."""
    with Server("--max-body", "1M", "--api-key", "ours", "--body-timeout", PATIENCE) as s:
        yield s.ready()


def answers(s):
    """Heads of what comes until the server says that there is no more."""
    got = b""
    while part := s.recv(1 << 16):
        got += part
    return got.split(b"\r\n\r\n")[0].split(b"\r\n")


AUTHORIZED = b"Authorization: Bearer ours\r\n"


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("status, line, fields", [
    (413, b"POST /v1/chat/completions HTTP/1.1", AUTHORIZED),
    (401, b"POST /v1/chat/completions HTTP/1.1", b"Authorization: Bearer theirs\r\n"),
    (403, b"POST /v1/messages HTTP/1.1", AUTHORIZED + b"Origin: https://example.org\r\n"),
    (404, b"POST /nowhere HTTP/1.1", AUTHORIZED), (405, b"PUT /health HTTP/1.1", AUTHORIZED),
    (415, b"POST /tokenize HTTP/1.1", AUTHORIZED + b"Content-Encoding: gzip\r\n"),
    (400, b"POST /tokenize HTTP/1.1", AUTHORIZED + b"Host: y\r\n"),
    (400, b"POST /tokenize HTTP/1.1", AUTHORIZED + b"X: " + b"y" * 9000 + b"\r\n"),
    (400, b"POST http://[ HTTP/1.1", AUTHORIZED), (200, b"GET /health HTTP/1.1", b"")])
def test_r12_who_writes_everything_first_is_told_why_it_was_for_nothing(strict, framing, status, line,
                                                                       fields):
    """Symptom: the answer was sent, and the connection reset in the middle of what still came."""
    n, part = 20, b" " * (1 << 20)
    s = strict.connect()
    s.sendall(line + b"\r\nHost: x\r\n" + fields + (b"Transfer-Encoding: chunked\r\n\r\n"
              if framing == "chunked" else b"Content-Length: %d\r\n\r\n" % (n * len(part))))
    for _ in range(n):
        s.sendall(b"%x\r\n%s\r\n" % (len(part), part) if framing == "chunked" else part)
    if framing == "chunked":
        s.sendall(b"0\r\n\r\n")
    head = answers(s)
    assert head[0].split(b" ")[1] == b"%d" % status and b"Connection: close" in head, head


@pytest.mark.parametrize("target", [b"/nowhere", b"/v1/chat/completions", b"http://["])
def test_r12_what_nobody_reads_may_not_come_for_ever(strict, target):
    s = strict.connect()
    s.sendall(b"POST " + target + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
    part = b" " * (1 << 20)
    with pytest.raises(ConnectionError):
        for _ in range(200):
            s.sendall(part)
    assert strict.health()["status"] == "ok"


def test_r12_who_writes_nothing_more_is_not_waited_for():
    """Told at once that there is no more, and gone soon: its place is another's."""
    with Server("--connections", 2) as s:
        s.ready()
        held = [s.connect(), s.connect()]
        for c, target in zip(held, (b"/nowhere", b"http://[")):
            c.sendall(b"POST " + target + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            assert answers(c)[0].split(b" ")[1][:1] == b"4"
        deadline = time.monotonic() + PATIENCE
        while s.get("/health").status != 200:
            assert time.monotonic() < deadline


def test_r12_chunked_bodies_are_accepted(server):
    body = json.dumps(HI).encode()
    s = server.connect()
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for i in range(0, len(body), 10):
        part = body[i:i + 10]
        s.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
    s.sendall(b"0\r\n\r\n")
    assert s.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_a_large_body_is_answered_like_a_small_one(server):
    """Large ones are worked on in a thread, and their lists written in slices."""
    small, large = "the sea", "the sea, " * 20000
    few = server.post("/tokenize", {"content": small, "with_pieces": True}).json
    assert "".join(p["piece"] for p in few["tokens"]) == small and few["count"] == len(few["tokens"])
    many = server.post("/tokenize", {"content": large}).json
    assert many["count"] == len(many["tokens"]) > 2 * 4096
    pieces = server.post("/tokenize", {"content": large, "with_pieces": True}).json["tokens"]
    assert [p["id"] for p in pieces] == many["tokens"]
    assert "".join(p["piece"] for p in pieces) == large
    assert server.post("/detokenize", {"tokens": many["tokens"]}).json["content"] == large
    conversation = {"messages": [{"role": "user", "content": large}], "max_tokens": 4}
    shown = server.post("/apply-template", conversation).json
    assert large in shown["prompt"] and len(shown["tokens"]) == shown["count"]
    for path in (CHAT, "/v1/messages"):
        assert f"the prompt has {shown['count']} tokens" in server.post(path, conversation).json[
            "error"]["message"]
    assert server.post("/v1/messages/count_tokens", conversation).json == {
        "input_tokens": shown["count"]}
    too_long = server.post("/v1/completions", {"prompt": many["tokens"]})
    assert too_long.status == 400 and too_long.error["code"] == "context_length_exceeded"


def test_r12_heads_have_to_come_in_time_and_connections_are_counted():
    with Server("--head-timeout", 0.3, "--connections", 3) as s:
        s.ready()
        silent, dribbling = s.connect(), s.connect()
        dribbling.sendall(b"GET /health HT")
        assert silent.recv(10) == b"" and dribbling.recv(10) == b"", "both were closed"
        held = [s.connect() for _ in range(3)]
        refused = s.connect()
        assert refused.recv(1000).startswith(b"HTTP/1.1 503 ")
        for h in held:
            assert h.recv(10) == b""
        assert s.health()["status"] == "ok"


def limited_to(descriptors):
    return ["sh", "-c", f'ulimit -n {descriptors} && exec "$0" "$@"', sys.executable, "-m", "serve"]


def test_r12_descriptors_do_not_run_out_before_connections_do():
    """Symptom: nobody was answered, and a thousand traces a second were in the log."""
    with Server(command=limited_to(256 + 3)) as s:
        s.ready()
        warned = s.wait_for_event("fewer_connections")
        assert warned["connections"] == 3 and "259" in warned["why"] and "ulimit" in warned["why"]
        held = [s.connect() for _ in range(3)]
        for _ in range(20):
            assert s.get("/health").status == 503
        for other in held:
            other.close()
        deadline = time.monotonic() + PATIENCE
        while s.get("/health").status != 200:
            assert time.monotonic() < deadline
        assert not [e for e in s.events() if e["level"] == "error"]


def test_r12_too_few_descriptors_are_said_before_a_model_is_read():
    done = subprocess.run([*limited_to(200), str(DEMO), "--port", "0"], env=clean_env(),
                          capture_output=True, text=True, timeout=PATIENCE, cwd="/")
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "--connections 512" in done.stderr and "200" in done.stderr and "ulimit" in done.stderr


def test_r12_the_soft_limit_is_raised_for_the_connections_that_were_asked_for():
    command = limited_to(2000)
    command[2] = command[2].replace("&&", "&& ulimit -Sn 300 &&", 1)
    with Server("--connections", 700, command=command) as s:
        s.ready()
        limits = pathlib.Path(f"/proc/{s.process.pid}/limits").read_text()
        assert re.search(r"Max open files +956 +2000 ", limits), limits
        assert not s.events("fewer_connections")


def test_r12_many_bodies_at_once_do_not_fill_memory():
    """Four of the largest size may be on their way; the next is told to come again."""
    with Server("--max-body", "100K", "--connections", 50) as s:
        s.ready()
        held = [s.connect() for _ in range(20)]
        answers = []
        for c in held:
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
                      + b" " * 90000)
        deadline = time.monotonic() + PATIENCE
        while not answers and time.monotonic() < deadline:
            for c in held:
                c.settimeout(0.05)
                try:
                    answers.append(c.recv(100))
                except TimeoutError:
                    pass
        assert answers and all(a.startswith(b"HTTP/1.1 503 ") for a in answers)
        assert BODIES <= 20 - len(answers), "those who came first were not refused"
        for c in held:
            c.close()


def test_r12_texts_of_grammars_have_a_place_of_their_own_until_their_answers_are_over():
    """That of a server with room for one and a half."""
    narrow = [sys.executable, "-c", "import runpy, serve.routes; serve.routes.GRAMMARS = 30; "
              "runpy.run_module('serve', run_name='__main__')"]
    with Server("--sessions", 2, "--drain-timeout", 0, command=narrow) as s:
        s.ready()
        body = {"prompt": "a", "max_tokens": 3000, "grammar": "root ::= [a-z]{3000}"}
        first = s.stream("/v1/completions", body)
        s.wait_for_health("answering")
        refused = s.post("/v1/completions", body)
        assert refused.status == 503 and "schemas and grammars" in refused.error["message"]
        assert refused.headers["Retry-After"] and s.post(CHAT, HI).status == 200
        assert s.health()["answering"] == 1, "the answer was too short for this test"
        first.abort()
        s.wait_idle()
        assert s.post("/v1/completions", {**body, "max_tokens": 2}).status == 200


def test_expect_100_continue_is_answered(server):
    body = json.dumps(HI).encode()
    s = server.connect()
    s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
              f"Content-Length: {len(body)}\r\n\r\n".encode())
    assert s.recv(1000).startswith(b"HTTP/1.1 100 ")
    s.sendall(body)
    assert s.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_expect_means_nothing_in_http_1_0(server):
    s = server.connect()
    s.sendall(b'POST /tokenize HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 16\r\n\r\n'
              b'{"content": "a"}')
    assert s.recv(4096).split(b" ")[1] == b"200"


def test_compressed_bodies_are_refused(server):
    answer = server.ask("POST", CHAT, b"\x1f\x8b" + b"0" * 100, {"Content-Encoding": "gzip"})
    assert answer.status == 415


@pytest.mark.parametrize("data", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"y" * 9000 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    # Heads that two programs may read in two ways, of which one stands before us.
    b"GET /health HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",
    b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nHost: x\r\n: y\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"])
def test_what_is_not_http_gets_json_or_nothing(server, data):
    s = server.connect()
    s.sendall(data)
    s.shutdown(socket.SHUT_WR)
    got = b""
    while part := s.recv(4096):
        got += part
    if got:
        head, _, body = got.partition(b"\r\n\r\n")
        assert head.split(b" ")[1][:1] == b"4" and b"json" in head, got
    assert server.health()["status"] == "ok"


@pytest.mark.parametrize("line", [b"GET /health", b"GET /nowhere", b"OPTIONS /tokenize", b"POST /"])
@pytest.mark.parametrize("odd", [b"A : b\r\n", b"Host: y\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
                                 b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip, chunked\r\n"])
def test_what_can_be_read_in_two_ways_is_the_last_on_its_connection(server, line, odd):
    """Whatever was asked: what is behind it may be a request to one reader and a body to the other."""
    body = b"0\r\n\r\n" if b"Transfer" in odd else b""
    s = server.connect()
    s.sendall(line + b" HTTP/1.1\r\nHost: x\r\n" + odd + b"\r\n" + body +
              b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    got = b""
    while part := s.recv(4096):
        got += part
    assert got.split(b" ")[1] == b"400" and got.count(b"Content-Length: ") == 1, got


@pytest.mark.parametrize("line, status, body", [
    (b"POST /tokenize", 200, b'{"content": "a"}'), (b"GET /health", 200, b"x"),
    (b"OPTIONS /tokenize", 204, b"x"), (b"POST /nowhere", 404, b"x"),
    (b"POST /v1/completions", 200, b'{"prompt": "a", "max_tokens": 2, "stream": true}')])
def test_trailers_never_become_fields_of_the_next_request(server, line, status, body):
    """Symptom, with aiohttp 3.8: the next head had an Authorization that its client never sent."""
    s = server.connect()
    s.sendall(line + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
              + b"%x\r\n%s\r\n0\r\nA: b\r\nAuthorization: Bearer theirs\r\n\r\n" % (len(body), body)
              + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    got = b""
    while part := s.recv(4096):
        got += part
    assert got.split(b" ")[1] == b"%d" % status and got.count(b"HTTP/1.1 ") == 1, got
    assert b"\r\nConnection: close\r\n" in got


def test_a_request_behind_another_waits_its_turn(server):
    one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    s = server.connect()
    s.sendall(one * 3)
    got = b""
    while got.count(b'"phase"') < 3:
        part = s.recv(4096)
        assert part
        got += part


def test_requests_that_do_not_wait_for_answers_are_cut_off(server):
    s = server.connect()
    body = json.dumps(ENDLESS).encode()
    s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
              .encode() + body)
    server.wait_for_health("answering")
    with pytest.raises(ConnectionError):
        for _ in range(100):
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 5000)
    server.wait_idle()


# ---- start and stop ----


def refused_to_start(*options, model=DEMO, code=1):
    """What a server that does not start says."""
    done = subprocess.run([sys.executable, "-m", "serve", str(model), "--port", "0",
                           *map(str, options)], env=clean_env(), capture_output=True, text=True,
                          timeout=PATIENCE, cwd="/")
    assert done.returncode == code and done.stdout == ""
    return done.stderr


def test_what_cannot_be_served_is_said_before_anybody_asks(tmp_path):
    assert "nothing" in refused_to_start(model=tmp_path / "nothing")
    said = refused_to_start("--budget", "1M")
    assert re.search(r"needs \d+\.\d MiB at least, and the budget is 1\.0 MiB \(--budget\)", said), said
    (tmp_path / "file").touch()
    for bad in (tmp_path / "file", tmp_path / "no" / "states"):
        said = refused_to_start("--state-dir", bad)
        assert f"--state-dir {bad}: " in said and said.count("\n") == 1


def test_a_port_that_is_taken_is_named_with_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refused_to_start("--port", port)
    assert said == (f"waste serve: --host 127.0.0.1 --port {port}: Address already in use; another program "
                    "listens there: a different --port, 0 for any\n")
    assert "--host no.such.host.invalid --port 0: " in refused_to_start("--host", "no.such.host.invalid")


@pytest.mark.parametrize("option", ["--usage", "--cpus", "--think", "--unix", "--state-dir",
                                    "--api-key", "--host"])
def test_an_option_whose_text_is_empty_is_refused(option):
    """An empty key would let in whoever brings none; an empty path would be no path at all."""
    assert f"argument {option}: it is empty" in refused_to_start(option, "", code=2)


@pytest.mark.parametrize("option, value", [
    ("--ctx", "-5"), ("--queue", "many"), ("--chunk", "0"), ("--temperature", "2.5"),
    ("--temperature", "nan"), ("--timeout", "-1"), ("--keep-alive", "0"), ("--body-timeout", "inf"),
    ("--image-patches", "3")])
def test_a_number_that_is_none_of_the_possible_is_refused_as_it_was_written(option, value):
    assert f"argument {option}: '{value}'" in refused_to_start(f"{option}={value}", code=2)


@pytest.mark.parametrize("option, value", [("--ctx", "99999999"), ("--threads", "9999"),
                                           ("--sessions", "9999"), ("--cpus", "some"),
                                           ("--think", "hard")])
def test_what_the_library_says_of_an_option_is_said_in_its_name(option, value):
    said = refused_to_start(option, value)
    assert said.startswith(f"waste serve: {option}") and value in said and said.count("\n") == 1, said


def test_r10_a_model_that_cannot_be_opened_ends_the_server(tmp_path):
    with Server("--exclusive-open") as first:
        first.ready()
        with Server("--exclusive-open") as second:
            assert second.process.wait(PATIENCE) == 1
            assert "sole use" in second.wait_for_event("cannot_open")["why"]


def test_sigterm_drains():
    with Server("--drain-timeout", 30) as s:
        s.ready()
        stream = s.stream(CHAT, {**ENDLESS, "max_tokens": 200})
        chunks = iter(stream)
        next(chunks)
        s.process.terminate()
        s.wait_for_event("draining")
        assert s.get("/health").status == 503
        refused = s.post(CHAT, HI)
        assert refused.status == 503 and refused.headers["Retry-After"]
        assert list(chunks)[-1]["choices"][0]["finish_reason"] == "length" and stream.done
        assert s.stop() == 0


def test_draining_has_an_end():
    with Server("--drain-timeout", 0.2) as s:
        s.ready()
        stream = s.stream(CHAT, ENDLESS)
        chunks = iter(stream)
        next(chunks)
        s.process.terminate()
        assert list(chunks)[-1]["error"]["code"] == "overloaded"
        assert s.stop() == 0


def test_a_request_is_found_in_the_log_by_its_id(server):
    name = server.get("/v1/models").headers["X-Request-Id"]
    stream = server.stream(CHAT, HI)
    list(stream)
    names = {name, stream.headers["X-Request-Id"]}
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and names - {e["id"] for e in server.events("request")}:
        time.sleep(0.01)
    assert not names - {e["id"] for e in server.events("request")}


def test_what_was_used_is_learned_where_that_is_asked_for(tmp_path):
    with Server("--usage", tmp_path / "hot", "--learn") as s:
        s.ready()
        s.chat("Hello!", 4)
        assert s.stop() == 0
    assert (tmp_path / "hot").stat().st_size > 0
    for bad in (tmp_path, tmp_path / "no" / "hot"):
        said = refused_to_start("--usage", bad, "--learn")
        assert said.startswith(f"waste serve: --usage {bad}: ") and said.count("\n") == 1


def test_logs_are_json_without_texts(server):
    secret = "xyzzy plugh"
    server.chat(secret, 4, stop=["frotz"])
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not any(
            e.get("prompt_tokens") for e in server.events("request")):
        time.sleep(0.01)
    assert "plugh" not in "".join(filter(None, server.lines))
    last = [e for e in server.events("request") if e.get("prompt_tokens")][-1]
    assert last["status"] == 200 and last["path"] == CHAT and last["completion_tokens"] == 4


def test_what_is_wrong_with_a_request_is_logged_without_its_words(server):
    """Symptom without it: who confuses two members has a prompt in the log."""
    for change in ({"messages": [{"role": "xyzzy plugh", "content": "user"}]},
                   {"logit_bias": {"xyzzy plugh": 1}}, {"tool_choice": "xyzzy plugh"},
                   {"logit_bias": {"999999": 1}}):
        answer = server.post(CHAT, {**HI, **change})
        assert answer.status == 400
        name = answer.headers["X-Request-Id"]
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and name not in {
                e["id"] for e in server.events("request")}:
            time.sleep(0.01)
        logged = [e for e in server.events("request") if e["id"] == name][0]
        assert logged["error"] and logged["param"] == answer.error["param"]
    assert "plugh" not in "".join(filter(None, server.lines))


def test_twenty_clients_at_once_get_their_own_answers(server):
    alone = {i: server.chat(f"Tell me about {i} ships.", 8, seed=i) for i in range(5)}
    got, threads = {}, []

    def ask(i):
        got[i] = server.chat(f"Tell me about {i % 5} ships.", 8, seed=i % 5)

    for i in range(20):
        threads.append(threading.Thread(target=ask, args=(i,)))
        threads[-1].start()
    for t in threads:
        t.join(PATIENCE)
    for i in range(20):
        assert got[i]["choices"] == alone[i % 5]["choices"]
