"""The requests that scripts/load_server sends, and what of their answers may never differ.

A case is a path and a body. Whatever is sampled has a seed, so each case has one right answer,
whoever else is served, wherever its prompt was found, and whether it comes at once or as events.
The prompts share beginnings, so that kept states are taken up, cut and thrown out all the time.
"""

import base64
import dataclasses
import json
import random
import struct
import zlib

CHAT, TEXT, MESSAGES, RESPONSES = ("/v1/chat/completions", "/v1/completions", "/v1/messages",
                                   "/v1/responses")
_SYSTEMS = (
    "You are the keeper of a lighthouse. " + "The lamp is lit at dusk, and the log is kept. " * 12,
    "You are the keeper of a lighthouse. " + "The lamp is lit at dusk, and the log is kept. " * 6
    + "Ships that pass are counted, and their names are written down. " * 20,
)
_QUESTIONS = ("Who came by today?", "How far can the light be seen?", "Tell me of the storm.",
              "What is there for supper, and who shall cook it?")
_STORY = ("It was late in the year when the old gentleman returned to the house by the river. The "
          "windows were dark, and nobody had swept the leaves from the steps. ") * 12
_WEATHER = {"name": "get_weather", "description": "The weather of a town.", "parameters": {
    "type": "object", "required": ["town", "days"], "additionalProperties": False, "properties": {
        "town": {"type": "string", "enum": ["Oslo", "Lima", "Cork"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9}}}}
_CLOCK = {"name": "get_time", "parameters": {
    "type": "object", "required": ["zone"], "additionalProperties": False, "properties": {
        "zone": {"type": "string", "enum": ["UTC", "CET"]}}}}
_PERSON = {"type": "object", "required": ["name", "age", "tall"], "additionalProperties": False,
           "properties": {"name": {"enum": ["Ann", "Bob", "Eve"]}, "tall": {"type": "boolean"},
                          "age": {"type": "integer", "minimum": 0, "maximum": 99}}}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    path: str
    body: dict

    def bytes(self, **more):
        return json.dumps({**self.body, **more}).encode()


def _user(text):
    return {"role": "user", "content": text}


def _chats():
    for i, system in enumerate(_SYSTEMS):
        for j, question in enumerate(_QUESTIONS):
            messages = [{"role": "system", "content": system}, _user(question)]
            yield f"system {i}, question {j}", {"messages": messages, "max_tokens": 12 + 5 * j}
    turns = []
    for i, question in enumerate(_QUESTIONS):
        turns.append(_user(question))
        yield f"turn {i}", {"messages": list(turns), "max_tokens": 16}
        turns.append({"role": "assistant", "content": f"That was asked before, {i} times. " * 8})
    for seed in range(4):
        yield f"sampled {seed}", {"messages": [_user("Tell me of the sea.")], "max_tokens": 24,
                                  "seed": seed, "temperature": 0.9, "top_p": 0.95}
    hello = {"messages": [_user("Hello, and who are you?")], "seed": 7}
    yield "three choices", {**hello, "n": 3, "temperature": 1.0, "max_tokens": 12}
    yield "log-probabilities", {**hello, "logprobs": True, "top_logprobs": 3, "max_tokens": 10}
    yield "penalties", {**hello, "frequency_penalty": 0.8, "presence_penalty": 0.3,
                        "logit_bias": {"300": 2.5}, "max_tokens": 20}
    yield "stop string", {**hello, "stop": ["the", "and"], "max_tokens": 40}
    yield "schema", {**hello, "max_tokens": 64, "response_format": {
        "type": "json_schema", "json_schema": {"name": "person", "schema": _PERSON,
                                               "strict": True}}}
    yield "long", {"messages": [_user(_STORY + _QUESTIONS[2])], "max_tokens": 120,
                   "logit_bias": {"4098": -100}}  # never the end of the message
    tools = [{"type": "function", "function": f} for f in (_WEATHER, _CLOCK)]
    for i, choice in enumerate(("required", {"type": "function",
                                             "function": {"name": "get_weather"}})):
        for question in ("And in Oslo?", "What time is it?"):
            yield f"tools {i}, {question}", {
                "messages": [_user(question)], "max_tokens": 96, "tools": tools,
                "tool_choice": choice, "parallel_tool_calls": False}


def _texts():
    for i in range(4):  # beginnings of one another
        yield f"story {i}", {"prompt": _STORY[:300 * (i + 1)], "max_tokens": 16}
    yield "story with echo", {"prompt": _STORY[:200], "max_tokens": 8, "echo": True}
    yield "story with log-probabilities", {"prompt": _STORY[:250], "max_tokens": 8, "logprobs": 2}
    yield "two stories", {"prompt": _STORY[:400], "max_tokens": 12, "n": 2, "seed": 3,
                          "temperature": 0.8}
    yield "a story's schema", {"prompt": _STORY[:100], "max_tokens": 64, "json_schema": _PERSON}


def _messages():
    for i, question in enumerate(_QUESTIONS[:3]):
        yield f"question {i}", {"system": _SYSTEMS[i % 2], "messages": [_user(question)],
                                "max_tokens": 14}
    yield "tool", {"messages": [_user("And in Lima?")], "max_tokens": 96, "tools": [
        {"name": "get_weather", "input_schema": _WEATHER["parameters"]}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}


def _responses():
    for i, question in enumerate(_QUESTIONS[1:]):
        yield f"input {i}", {"input": question, "instructions": _SYSTEMS[0],
                             "max_output_tokens": 15}
    yield "sampled", {"input": "Sing!", "max_output_tokens": 20, "temperature": 1.0, "seed": 11}
    yield "schema", {"input": "Who?", "max_output_tokens": 64, "text": {"format": {
        "type": "json_schema", "name": "person", "schema": _PERSON, "strict": True}}}


def _png(width, height, seed):
    """A picture of noise, in base64."""
    noise = random.Random(seed)
    lines = b"".join(b"\0" + noise.randbytes(3 * width) for _ in range(height))
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
              (b"IDAT", zlib.compress(lines, 1)), (b"IEND", b""))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks)).decode()


def _pictures():
    """Conversations that begin with the same picture, or with another at its place."""
    shown = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + _png(*size)}}
             for size in ((100, 70, 0), (100, 70, 1), (300, 200, 2))]
    for i, picture in enumerate(shown):
        turn = {"role": "user", "content": [picture, {"type": "text", "text": "What is this?"}]}
        yield CHAT, f"picture {i}", {"messages": [turn], "max_tokens": 6}
        yield CHAT, f"picture {i}, later", {"max_tokens": 6, "messages": [
            turn, {"role": "assistant", "content": "A picture."}, _user(_QUESTIONS[i])]}
    yield CHAT, "two pictures, two choices", {"max_tokens": 6, "n": 2, "temperature": 0.9, "seed": 5,
                                              "messages": [{"role": "user", "content": shown[:2]}]}
    yield MESSAGES, "picture", {"max_tokens": 6, "messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                     "data": _png(90, 90, 3)}}]}]}


CASES = [Case(f"{path} {name}", path, body)
         for path, made in ((CHAT, _chats), (TEXT, _texts), (MESSAGES, _messages),
                            (RESPONSES, _responses))
         for name, body in made()]
PICTURES = [Case(f"{path} {name}", path, body) for path, name, body in _pictures()]


def fitting(case, n_vocab):
    """Without biases of ids that a model of so many does not have."""
    bias = case.body.get("logit_bias") or {}
    kept = {token: value for token, value in bias.items() if int(token) < n_vocab}
    return dataclasses.replace(case, body={**case.body, "logit_bias": kept}) if bias else case


def cases_for(model):
    """Those that a server is asked, which tells this of its model (/v1/models)."""
    cases = CASES + PICTURES if (model.get("waste_chat") or {}).get("images") else CASES
    return [fitting(case, model["meta"]["n_vocab"]) for case in cases]
ENDLESS = Case("endless", CHAT, {"messages": [_user("Go on.")], "max_tokens": 3900,
                                 "logit_bias": {"4098": -100}})


# ---- what must not differ ------------------------------------------------------------------------


def essence(case, value):
    """Of an answer at once: all that does not depend on time, place and company."""
    return {CHAT: _of_chat, TEXT: _of_text, MESSAGES: _of_message,
            RESPONSES: _of_response}[case.path](value)


def essence_of_events(case, events):
    """The same of an event stream. Raises AssertionError where the stream contradicts itself."""
    return {CHAT: _chat_of_chunks, TEXT: _text_of_chunks, MESSAGES: _message_of_events,
            RESPONSES: _response_of_events}[case.path](events)


def _usage(value):
    return value["usage"]["prompt_tokens"], value["usage"]["completion_tokens"]


def _call(call):
    return call["id"], call["function"]["name"], call["function"]["arguments"]


def _of_chat(value):
    return [_usage(value)] + [
        (c["message"].get("content") or "", c["message"].get("reasoning_content") or "",
         [_call(call) for call in c["message"].get("tool_calls") or ()],
         (c["logprobs"] or {}).get("content") or [], c["finish_reason"])
        for c in value["choices"]]


def _chat_of_chunks(chunks):
    choices, usage = {}, None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for c in chunk["choices"]:
            texts, calls, logprobs, reasons = choices.setdefault(c["index"], ([], [], [], []))
            assert not reasons, "a chunk behind the finish_reason"
            delta = c["delta"]
            texts.append((delta.get("content") or "", delta.get("reasoning_content") or ""))
            for call in delta.get("tool_calls") or ():
                if "id" in call:
                    calls.append([call["id"], call["function"]["name"], ""])
                calls[call["index"]][2] += call["function"].get("arguments") or ""
            logprobs += (c.get("logprobs") or {}).get("content") or []
            reasons += [c["finish_reason"]] if c["finish_reason"] else []
    assert usage, "no usage, and it was asked for"
    return [_usage({"usage": usage})] + [
        ("".join(a for a, _ in texts), "".join(b for _, b in texts), [tuple(c) for c in calls],
         logprobs, *reasons) for _, (texts, calls, logprobs, reasons) in sorted(choices.items())]


def _of_text(value):
    return [_usage(value)] + [(c["text"], (c["logprobs"] or {}), c["finish_reason"])
                              for c in value["choices"]]


def _text_of_chunks(chunks):
    choices, usage = {}, None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for c in chunk["choices"]:
            got = choices.setdefault(c["index"], ["", {}, None])
            assert got[2] is None, "a chunk behind the finish_reason"
            got[0] += c["text"]
            for member, values in (c["logprobs"] or {}).items():
                got[1].setdefault(member, []).extend(values)
            got[2] = c["finish_reason"]
    assert usage, "no usage, and it was asked for"
    return [_usage({"usage": usage})] + [tuple(got) for _, got in sorted(choices.items())]


def _block(block):
    content = block.get("text") or block.get("thinking") or ""
    return (block["type"], content, block.get("id"), block.get("name"), block.get("input"))


def _of_message(value):
    u = value["usage"]
    return [(u["input_tokens"] + u["cache_read_input_tokens"], u["output_tokens"]),
            [_block(b) for b in value["content"]], value["stop_reason"]]


def _message_of_events(events):
    blocks, parts, last = {}, {}, None
    for e in events:
        if e["type"] == "content_block_start":
            blocks[e["index"]], parts[e["index"]] = e["content_block"], ""
        elif e["type"] == "content_block_delta":
            parts[e["index"]] += next(v for k, v in e["delta"].items() if k != "type")
        elif e["type"] == "message_delta":
            last = e
    assert events[-1]["type"] == "message_stop", "no message_stop"
    for i, block in blocks.items():
        if block["type"] == "tool_use":
            block["input"] = json.loads(parts[i])
        else:
            block["thinking" if block["type"] == "thinking" else "text"] = parts[i]
    value = {"usage": last["usage"], "stop_reason": last["delta"]["stop_reason"],
             "content": [b for _, b in sorted(blocks.items())]}
    return _of_message(value)


def _item(item):
    parts = [p["text"] for p in item.get("content") or ()]
    return item["type"], parts, item.get("name"), item.get("arguments"), item["status"]


def _of_response(value):
    u = value["usage"]
    return [(u["input_tokens"], u["output_tokens"]), [_item(i) for i in value["output"]],
            value["status"]]


def _response_of_events(events):
    texts = {}
    for number, e in enumerate(events):
        assert e["sequence_number"] == number, f"event {e['sequence_number']} is the {number}th"
        if e["type"] == "response.output_text.delta":
            texts[e["output_index"]] = texts.get(e["output_index"], "") + e["delta"]
    value = events[-1]["response"]
    for i, text in texts.items():
        assert value["output"][i]["content"][0]["text"] == text, "deltas make another text"
    return _of_response(value)
