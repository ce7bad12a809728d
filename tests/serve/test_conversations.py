"""Answers: equal to the command's, to each other whatever the company, kept across requests and
restarts, ended when nobody listens."""

import json
import os
import shutil
import socket
import sys
import threading

import pytest

from serving import (BINARY, DEMO, PATIENCE, CLOSES_SOON, Server, mute_model, run_waste,  # noqa: F401
                     server, text_of, xtml_model)
from serve import engine

CHAT = "/v1/chat/completions"
QUESTION = "What is the capital of France?"
NEVER_ENDS = {"4098": -100}
LONG = "The whale and the sea. " * 120  # most of a thousand tokens


def user(text):
    return {"role": "user", "content": text}


def chunks_of(server, **body):
    return list(server.stream(CHAT, {"messages": [user(QUESTION)], "max_tokens": 12, **body}))


# ---- greedy answers are the command's ----


def test_a_greedy_answer_is_that_of_the_command(server):
    said = run_waste(QUESTION, "-n", 40)
    answer = server.chat(QUESTION, 40)
    assert answer["choices"][0]["message"]["content"] == said["text"]
    assert answer["usage"]["prompt_tokens"] == said["prompt_tokens"]
    completion = server.post("/v1/completions", {"prompt": "Once upon a", "max_tokens": 30}).json
    assert completion["choices"][0]["text"] == run_waste("Once upon a", "--raw", "-n", 30)["text"]


def test_every_dialect_gives_the_same_answer(server):
    want = server.chat(QUESTION, 20)["choices"][0]["message"]["content"]
    message = server.post("/v1/messages", {"messages": [user(QUESTION)], "max_tokens": 20}).json
    assert message["content"] == [{"type": "text", "text": want}]
    response = server.post("/v1/responses", {"input": QUESTION, "max_output_tokens": 20}).json
    assert response["output"][0]["content"][0]["text"] == want
    assert response["status"] == "incomplete"


def test_a_seed_gives_the_same_answer_again(server):
    first = server.chat(QUESTION, 20, temperature=1)
    again = server.chat(QUESTION, 20, temperature=1, seed=first["waste"]["seed"])
    other = server.chat(QUESTION, 20, temperature=1)
    assert first["choices"] == again["choices"] != other["choices"]


def test_alternatives_differ_and_the_first_is_the_only_one(server):
    three = server.chat(QUESTION, 12, temperature=1, seed=3, n=3)
    one = server.chat(QUESTION, 12, temperature=1, seed=3)
    texts = [c["message"]["content"] for c in three["choices"]]
    assert len(set(texts)) == 3 and texts[0] == one["choices"][0]["message"]["content"]
    assert [c["index"] for c in three["choices"]] == [0, 1, 2]
    assert three["usage"]["completion_tokens"] == 36


# ---- streams ----


def test_a_stream_says_what_an_answer_at_once_says(server):
    at_once = server.chat(QUESTION, 12)
    chunks = chunks_of(server)
    assert text_of(chunks) == at_once["choices"][0]["message"]["content"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len({c["id"] for c in chunks}) == 1


def test_t26_every_chunk_has_a_choice_unless_usage_was_asked_for(server):
    chunks = chunks_of(server)
    assert all(len(c["choices"]) == 1 for c in chunks) and "usage" not in chunks[-1]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    *chunks, last = chunks_of(server, stream_options={"include_usage": True})
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 12
    assert all(c["usage"] is None for c in chunks)


def test_t25_numbers_are_of_this_request(server):
    assert server.chat(QUESTION, 2)["waste"]["experts_hit"] > 0
    busy = server.chat(QUESTION, 100, logit_bias=NEVER_ENDS)["waste"]
    calm = chunks_of(server, max_tokens=2)[-1]["waste"]
    uses = [w["experts_hit"] + w["experts_missed"] for w in (busy, calm)]
    assert uses[1] < uses[0] / 10
    assert 0 < calm["prefill_ms"] < 1e5 and calm["seed"] >= 0


def test_t30_completions_are_streamed(server):
    body = {"prompt": "Once upon a", "max_tokens": 8}
    at_once = server.post("/v1/completions", body).json
    stream = server.stream("/v1/completions", body)
    chunks = list(stream)
    assert stream.headers["Content-Type"].startswith("text/event-stream") and stream.done
    assert "".join(c["choices"][0]["text"] for c in chunks) == at_once["choices"][0]["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_completions_echo_and_tell_logprobs(server):
    body = {"prompt": "Once upon a", "max_tokens": 5, "echo": True, "logprobs": 2}
    choice = server.post("/v1/completions", body).json["choices"][0]
    assert choice["text"].startswith("Once upon a")
    p = choice["logprobs"]
    assert "".join(p["tokens"]) == choice["text"][len("Once upon a"):]
    assert all(choice["text"][o:].startswith(t) for o, t in zip(p["text_offset"], p["tokens"]))
    assert all(top[t] == lp for t, lp, top in
               zip(p["tokens"], p["token_logprobs"], p["top_logprobs"])), "greedy: the likeliest"


def test_logprobs_of_a_chat_are_its_tokens(server):
    answer = server.chat(QUESTION, 12, logprobs=True, top_logprobs=3)["choices"][0]
    content = answer["logprobs"]["content"]
    assert "".join(c["token"] for c in content) == answer["message"]["content"]
    assert b"".join(bytes(c["bytes"]) for c in content).decode() == answer["message"]["content"]
    for c in content:
        assert len(c["top_logprobs"]) == 3 and c["top_logprobs"][0]["logprob"] == c["logprob"] <= 0
    streamed = [c for chunk in chunks_of(server, logprobs=True, top_logprobs=3)
                for c in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content


def test_an_answer_of_nothing_is_a_text(server):
    """Clients strip() it. null says that there are calls instead."""
    choice = server.chat("Hello!", logit_bias={"4098": 100})["choices"][0]
    assert choice["message"]["content"] == "" and choice["finish_reason"] == "stop"


def test_stop_strings_end_an_answer_before_themselves(server):
    whole = server.chat(QUESTION, 40)["choices"][0]["message"]["content"]
    words = whole.split()
    stop = f"{words[3]} {words[4]}"
    cut = server.chat(QUESTION, 40, stop=["nowhere", stop])
    assert cut["choices"][0]["message"]["content"] == whole[:whole.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop" and cut["waste"]["stop_string"] == stop
    assert text_of(chunks_of(server, max_tokens=40, stop=stop)) == whole[:whole.index(stop)]


def test_r4_a_stream_shows_progress_to_those_who_ask(server):
    chunks = chunks_of(server, messages=[user(LONG)], max_tokens=2, return_progress=True)
    progress = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
    assert progress[0]["processed"] == progress[0]["cache"]
    assert progress[-1]["processed"] == progress[-1]["total"]
    assert progress == sorted(progress, key=lambda p: p["processed"]) and len(progress) > 2


def test_r4_silence_is_filled_with_comments():
    """One session, and a request that waits for it: headers and comments at once."""
    with Server("--sessions", 1, "--keep-alive", 0.05) as s:
        s.ready()
        first = s.stream(CHAT, {"messages": [user(QUESTION)], "max_tokens": 3900,
                                "logit_bias": NEVER_ENDS})
        first.until_text()
        second = s.stream(CHAT, {"messages": [user("And you?")], "max_tokens": 3900})
        assert second.status == 200, "while it waits"
        lines = iter(second.response)
        comments = [line for line, _ in zip((x for x in lines if x.startswith(b":")), range(3))]
        assert all(b"queued behind 0" in c for c in comments)
        first.abort()
        for line in lines:
            if b'"content": "' in line and b'"role"' not in line:
                break
        else:
            raise AssertionError("the second was never answered")
        second.abort()


# ---- calls and schemas ----


CITY = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"],
        "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": CITY, "strict": True}}
         for name in ("weather", "time")]


def calls_of(chunks):
    calls = {}
    for c in chunks:
        for part in c["choices"][0]["delta"].get("tool_calls", []):
            call = calls.setdefault(part["index"], {"arguments": "", **part["function"]})
            call["arguments"] += part["function"].get("arguments", "")
            call.setdefault("id", part.get("id"))
    return calls


def test_calls_are_told_at_once_and_in_parts(server):
    body = {"messages": [user("Weather?")], "tools": TOOLS, "tool_choice": "required",
            "parallel_tool_calls": False, "max_tokens": 200}
    answer = server.post(CHAT, body).json["choices"][0]
    assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None
    (call,) = calls = answer["message"]["tool_calls"]
    assert call["type"] == "function" and call["function"]["name"] in ("weather", "time")
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}
    chunks = list(server.stream(CHAT, body))
    told = calls_of(chunks)
    assert [told[i]["id"] for i in sorted(told)] == [c["id"] for c in calls]
    assert [told[i]["arguments"] for i in sorted(told)] == \
        [c["function"]["arguments"] for c in calls]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("name", ["weather", "time"])
def test_a_named_tool_is_the_one_that_is_called(server, name):
    answer = server.chat("Hm.", 200, tools=TOOLS, parallel_tool_calls=False,
                         tool_choice={"type": "function", "function": {"name": name}})
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == name


def test_no_tool_is_called_where_none_may_be(server):
    answer = server.chat("Weather?", 200, tools=TOOLS, tool_choice="none",
                         logit_bias={"4107": 100, "4098": -100})
    assert "tool_calls" not in answer["choices"][0]["message"]


def test_calls_may_be_several(server):
    answer = server.chat("Weather?", 200, tools=TOOLS, tool_choice="required",
                         logit_bias={"4109": 30})
    assert len(answer["choices"][0]["message"]["tool_calls"]) > 1


def test_the_results_of_calls_go_back(server):
    call = {"id": "call_1", "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    answer = server.post(CHAT, {"tools": TOOLS, "max_tokens": 4, "messages": [
        user("Weather?"), {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]})
    assert answer.status == 200


def test_r8_a_cut_call_ends_by_length_and_is_not_in_the_message(server):
    body = {"messages": [user("Weather?")], "tools": TOOLS, "tool_choice": "required",
            "max_tokens": 16}
    answer = server.post(CHAT, body).json["choices"][0]
    assert answer["finish_reason"] == "length" and "tool_calls" not in answer["message"]


def test_calls_in_the_other_dialects(server):
    body = {"messages": [user("Weather?")], "max_tokens": 200,
            "tools": [{"name": "weather", "input_schema": CITY}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    message = server.post("/v1/messages", body).json
    assert message["stop_reason"] == "tool_use"
    (use,) = message["content"]
    assert use["type"] == "tool_use" and use["input"] == {"city": "Rome"}
    events = [e for e in server.stream("/v1/messages", body)]
    parts = "".join(e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta")
    assert json.loads(parts) == {"city": "Rome"}
    assert [e["type"] for e in events][-2:] == ["message_delta", "message_stop"]
    response = server.post("/v1/responses", {
        "input": "Weather?", "max_output_tokens": 200, "tool_choice": "required",
        "parallel_tool_calls": False,
        "tools": [{"type": "function", "name": "weather", "parameters": CITY}]}).json
    (item,) = response["output"]
    assert item["type"] == "function_call" and json.loads(item["arguments"]) == {"city": "Rome"}


def test_responses_events_are_numbered_and_end_with_the_whole(server):
    events = list(server.stream("/v1/responses", {"input": QUESTION, "max_output_tokens": 5}))
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created" and events[-1]["type"] == "response.incomplete"
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text


def test_an_answer_satisfies_its_schema(server):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
                                               "age": {"type": "integer", "maximum": 99}},
              "required": ["name", "age"], "additionalProperties": False}
    answer = server.chat("Who?", 200, response_format={
        "type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}})
    value = json.loads(answer["choices"][0]["message"]["content"])
    assert set(value) == {"name", "age"} and answer["choices"][0]["finish_reason"] == "stop"


def test_reasoning_is_told_apart(xtml_model):
    """And is free, while the answer behind it satisfies its schema."""
    with Server(model=xtml_model) as s:
        s.ready()
        body = {"messages": [user("?")], "max_tokens": 300, "logit_bias": CLOSES_SOON,
                "response_format": {"type": "json_schema", "json_schema": {"schema": CITY}}}
        answer = s.post(CHAT, {**body, "reasoning_effort": "high"}).json
        message = answer["choices"][0]["message"]
        assert message["reasoning_content"] and json.loads(message["content"]) == {"city": "Rome"}
        assert answer["waste"]["reasoning_effort"] == "high"
        details = answer["usage"]["completion_tokens_details"]
        assert 0 < details["reasoning_tokens"] < answer["usage"]["completion_tokens"]
        chunks = list(s.stream(CHAT, {**body, "reasoning_effort": "high"}))
        assert "".join(c["choices"][0]["delta"].get("reasoning_content", "") for c in chunks) == \
            message["reasoning_content"]
        assert text_of(chunks) == message["content"]
        other = {"max_tokens": 300, "grammar": "root ::= [A-Z]{3}", "logit_bias": CLOSES_SOON}
        blocks = s.post("/v1/messages", {**other, "messages": body["messages"],
                                         "thinking": {"type": "enabled"}}).json["content"]
        assert [b["type"] for b in blocks] == ["thinking", "text"]
        items = s.post("/v1/responses", {**other, "input": "?"}).json["output"]
        assert [i["type"] for i in items] == ["reasoning", "message"]
        refused = s.post(CHAT, {**body, "reasoning_effort": "medium"})
        assert refused.status == 400 and refused.error["param"] == "reasoning_effort"


def test_reasoning_has_a_budget(xtml_model):
    """And the answer, which begins behind it, satisfies its schema all the same."""
    def reasoning(**more):
        answer = s.post(CHAT, {**body, **more}).json
        assert answer["choices"][0]["finish_reason"] == "stop"
        message = answer["choices"][0]["message"]
        assert json.loads(message["content"]) == {"city": "Rome"}
        return message.get("reasoning_content", ""), \
            answer["usage"]["completion_tokens_details"]["reasoning_tokens"]

    with Server(model=xtml_model) as s:
        s.ready()
        body = {"messages": [user("?")], "max_tokens": 300, "logit_bias": CLOSES_SOON,
                "response_format": {"type": "json_schema", "json_schema": {"schema": CITY}}}
        free, n_free = reasoning()
        ample, n_ample = reasoning(thinking_budget=250)
        assert (ample, n_ample) == (free, n_free), "it closed in time"
        del body["logit_bias"]
        short, n_short = reasoning(thinking_budget=6)
        shorter, n_shorter = reasoning(thinking={"type": "enabled", "budget_tokens": 4})
        none, n_none = reasoning(thinking_budget=0)
        assert short.startswith(shorter) and len(short) > len(shorter) > len(none) == 0
        assert all(n < 40 for n in (n_short, n_shorter, n_none)), "the rest is markup"
        said = s.post("/v1/messages", {
            "messages": [user("?")], "max_tokens": 20,
            "thinking": {"type": "enabled", "budget_tokens": 4}}).json
        assert said["content"][0]["type"] == "thinking"
        assert 0 < len(said["content"][0]["thinking"]) < 60


@pytest.mark.parametrize("option, members", [("both", {"reasoning_content", "reasoning"}),
                                             ("reasoning", {"reasoning"}), ("none", set())])
def test_reasoning_has_the_member_that_clients_know(xtml_model, option, members):
    body = {"messages": [user("?")], "max_tokens": 300, "logit_bias": CLOSES_SOON,
            "grammar": "root ::= [A-Z]{3}"}
    with Server("--reasoning", option, model=xtml_model) as s:
        s.ready()
        message = s.post(CHAT, body).json["choices"][0]["message"]
        assert {m for m in message if m.startswith("reasoning")} == members
        deltas = [c["choices"][0]["delta"] for c in s.stream(CHAT, body)]
        assert {m for d in deltas for m in d if m.startswith("reasoning")} == members


def test_a_container_without_a_chat_format_continues_texts(mute_model):
    with Server(model=mute_model) as s:
        s.ready()
        assert s.post("/v1/completions", {"prompt": "Once upon a"}).json["choices"][0]["text"]
        refused = s.post(CHAT, {"messages": [user("?")]})
        assert refused.status == 400 and refused.error["code"] == "unsupported_chat_format"


# ---- several at once ----


def test_two_conversations_at_once_are_each_as_if_alone(server):
    """With their prompts in the same passes, and while each is answered."""
    questions = ["What is the sea?", LONG + "Why?"]
    with Server() as fresh:
        fresh.ready()
        alone = [fresh.chat(q, 60, logit_bias=NEVER_ENDS) for q in questions]
    with Server() as fresh:
        fresh.ready()
        streams = [fresh.stream(CHAT, {"messages": [user(q)], "max_tokens": 60,
                                       "logit_bias": NEVER_ENDS}) for q in questions]
        got = [None, None]

        def read(i):
            got[i] = text_of(list(streams[i]))

        threads = [threading.Thread(target=read, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(PATIENCE)
    assert got == [a["choices"][0]["message"]["content"] for a in alone]


def test_t28_r3_the_next_turn_reads_only_what_is_new(server):
    talk = [{"role": "system", "content": "You are a whale. " * 20}, user("Who are you? " * 10)]
    first = server.chat(talk, 12)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    talk += [first["choices"][0]["message"] | {"refusal": None}, user("And then?")]
    second = server.chat(talk, 12)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"]
    with Server("--sessions", 1, "--checkpoints", 0) as cold:
        cold.ready()
        again = cold.chat(talk, 12)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["choices"] == second["choices"], "the same to the token"
    other = server.chat([talk[0], user("Something else entirely, please.")], 4)
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] > 40, "the system prompt"


def test_r6_requests_beside_the_main_one_leave_its_prefix(server):
    """Open WebUI asks for a title and tags while the main answer runs; the next turn is to find
    what the main request left."""
    talk = [user("Tell me of the sea, the wind and the ships. " * 8)]
    main = server.stream(CHAT, {"messages": talk, "max_tokens": 80, "logit_bias": NEVER_ENDS})
    head = main.until_text()
    for task in ("a title", "tags", "three follow-up questions"):
        side = server.chat(f"Generate {task} for: {talk[0]['content']}", 8)
        assert side["usage"]["completion_tokens"] <= 8
    text = text_of(head + list(main))
    turn = server.chat([*talk, {"role": "assistant", "content": text}, user("Go on.")], 8)
    assert turn["usage"]["prompt_tokens_details"]["cached_tokens"] >= 100


# ---- clients that go, and that do not read ----


@pytest.mark.parametrize("phase", ["prefill", "answer"])
@pytest.mark.parametrize("stream", [True, False])
def test_r5_t29_a_client_that_goes_frees_its_slot(phase, stream):
    with Server("--sessions", 1, "--max-rows", 16) as s:
        s.ready()
        text = LONG * 3 if phase == "prefill" else QUESTION
        body = {"messages": [user(text)], "max_tokens": 900, "logit_bias": NEVER_ENDS}
        if stream:
            client = s.stream(CHAT, body)
            if phase == "answer":
                client.until_text()
            client.abort()
        else:
            client = s.connect()
            data = json.dumps(body).encode()
            client.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
                           .encode() + data)
            wanted = "prefilling" if phase == "prefill" else "answering"
            s.wait_for_health(wanted)
            client.close()
        s.wait_idle()
        assert s.chat("Hello!", 2)["usage"]["completion_tokens"] == 2
        s.stop()  # whose last line is read, too
        gone = [e for e in s.events("request") if e["status"] == 499]
        assert len(gone) == 1 and gone[0]["error"] == "the client has gone"


def test_a_client_that_does_not_read_is_given_up():
    with Server("--write-timeout", 0.3) as s:
        s.ready()
        client = s.connect()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        data = json.dumps({"messages": [user(QUESTION)], "max_tokens": 3900, "stream": True,
                           "logit_bias": NEVER_ENDS, "logprobs": True, "top_logprobs": 20}).encode()
        client.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
                       .encode() + data)
        s.wait_for_health("answering")
        s.wait_idle()
        s.wait_for_event("request")
        gone = [e for e in s.events("request") if e["status"] == 499]
        assert gone and gone[0]["error"] == "the client does not read"


def test_r6_a_request_has_a_deadline(server):
    late = server.post(CHAT, {"messages": [user(LONG)], "max_tokens": 3000, "timeout": 0.05,
                              "logit_bias": NEVER_ENDS})
    assert late.status == 504 and late.error["code"] == "deadline"
    chunks = list(server.stream(CHAT, {"messages": [user(QUESTION)], "max_tokens": 3900,
                                       "timeout": 0.6, "logit_bias": NEVER_ENDS}))
    assert chunks[-1]["error"]["code"] == "deadline"


def test_r6_a_full_queue_is_a_503_before_any_work():
    with Server("--sessions", 1, "--queue", 1) as s:
        s.ready()
        body = {"messages": [user(QUESTION)], "max_tokens": 3900, "logit_bias": NEVER_ENDS}
        streams = [s.stream(CHAT, body)]
        streams[0].until_text()
        streams.append(s.stream(CHAT, body))
        refused = s.post(CHAT, body)
        assert refused.status == 503 and int(refused.headers["Retry-After"]) >= 1
        assert refused.error["code"] == "overloaded"
        too_long = {"messages": [user("the sea " * 9000)]}
        assert s.post(CHAT, too_long).status == 503, "it was rendered, and that is work"
        for x in streams:
            x.abort()
        s.wait_idle()
        assert s.post(CHAT, too_long).status == 400


def test_t27_an_error_in_a_stream_is_an_event_and_its_end(server):
    """No second response head: the connection goes on with the next request."""
    s = server.connect()
    body = json.dumps({"messages": [user(QUESTION)], "max_tokens": 3900, "stream": True,
                       "timeout": 0.6, "logit_bias": NEVER_ENDS}).encode()
    s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    got = b""
    while not got.endswith(b"0\r\n\r\n"):
        got += s.recv(65536)
    assert got.count(b"HTTP/1.1") == 1 and b'data: {"error"' in got
    assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert s.recv(100).startswith(b"HTTP/1.1 200 ")


# ---- Idempotency-Key ----


def test_a_repeated_request_gets_the_same_answer(server):
    body = {"messages": [user(QUESTION)], "max_tokens": 6, "temperature": 1}
    headers = {"Idempotency_Key": "once"}
    first, again = (server.post(CHAT, body, **headers).json for _ in range(2))
    assert first == again
    other = server.post(CHAT, {**body, "max_tokens": 7}, **headers)
    assert other.status == 400 and other.error["code"] == "idempotency_key_reused"
    assert server.post(CHAT, body, Idempotency_Key="x" * 300).status == 400


def test_a_request_that_is_repeated_while_it_runs_joins_it():
    """The first client is cut off in the middle, as by a gateway; the second gets all of it."""
    with Server() as s:
        s.ready()
        body = json.dumps({"messages": [user(QUESTION)], "max_tokens": 300, "temperature": 1,
                           "stream": True, "logit_bias": NEVER_ENDS}).encode()
        head = (f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode()
        first = s.connect()
        first.sendall(head + body)
        assert b"200" in first.recv(20)
        first.close()
        answer = s.ask("POST", CHAT, body, {"Idempotency-Key": "k"}).body
        assert answer.count(b'"finish_reason": "length"') == 1 and b"[DONE]" in answer
        again = s.ask("POST", CHAT, body, {"Idempotency-Key": "k"}).body
        assert again == answer
        s.wait_idle()
        ended = [l for l in s.get("/metrics").body.decode().splitlines()
                 if l.startswith("waste_outcomes_total")]
        assert ended == ['waste_outcomes_total{outcome="length"} 1.0'], "computed once"


# ---- states ----


def test_after_kill_9_what_was_read_is_not_read_again(tmp_path):
    talk = [user("The sea is wide and the ships are few. " * 12)]
    with Server("--state-dir", tmp_path / "states") as s:
        s.ready()
        first = s.chat(talk, 12)
        stream = s.stream(CHAT, {"messages": [user(LONG)], "max_tokens": 3000,
                                 "logit_bias": NEVER_ENDS})
        stream.until_text()
        s.process.kill()
        s.process.wait(PATIENCE)
    with Server("--state-dir", tmp_path / "states") as s:
        s.ready()
        second = s.chat(talk, 12)
        assert second["choices"] == first["choices"]
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 80
        interrupted = s.chat(LONG, 4)
        assert interrupted["usage"]["prompt_tokens_details"]["cached_tokens"] >= 512


def test_damaged_states_are_of_no_use_and_no_harm(tmp_path):
    states = tmp_path / "states"
    with Server("--state-dir", states) as s:
        s.ready()
        first = s.chat(LONG, 6)
    for path in states.iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    with Server("--state-dir", states) as s:
        s.ready()
        second = s.chat(LONG, 6)
        assert second["choices"] == first["choices"]
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


# ---- the command ----


def test_waste_serve_is_the_server():
    with Server(model="demo", command=[BINARY, "serve"], env={"PYTHON": sys.executable}
                ) as s:
        s.ready()
        assert s.chat("Hello!", 2)["model"] == "demo"


# ---- a drive that fails ----


def test_a_failed_drive_ends_an_answer_and_not_the_server(tmp_path):
    path = tmp_path / "demo.waste"
    shutil.copytree(DEMO, path)
    bank = path / "experts-L5.bin"
    whole = bank.read_bytes()
    cfg, opts = engine.defaults()
    cfg.ctx_tokens = 1024
    floor = engine.plan(path, cfg, opts).mem.floor_bytes  # with few experts in memory
    with Server("--budget", floor, "--sessions", 1, "--checkpoints", 0, "--ctx", 1024,
                model=path) as s:
        s.ready()
        want = s.chat(QUESTION, 40)
        stream = s.stream(CHAT, {"messages": [user("Go on and on.")], "max_tokens": 900,
                                 "logit_bias": NEVER_ENDS})
        stream.until_text()
        os.truncate(bank, 4096)
        last = list(stream)[-1]
        assert "experts-L5" in last["error"]["message"] or "layer 5" in last["error"]["message"]
        assert stream.done and last["error"]["type"] == "engine_error"
        bank.write_bytes(whole)
        assert s.chat(QUESTION, 40)["choices"] == want["choices"]
