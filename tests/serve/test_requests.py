"""Members of requests: what is accepted, and what a refusal names."""

import json

import pytest

import serving  # noqa: F401  # the path to the package
from serve import anthropic, constrain, engine, fields, openai, responses
from serve.errors import ApiError, busy
from serve.fields import Fields, parse


def refused(call, *args):
    with pytest.raises(ApiError) as e:
        call(*args)
    assert e.value.status == 400
    return e.value


def chat(**members):
    return openai.chat_options(Fields(members), 0.0)


# ---- bodies ----


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b"\xff{}", b'{"a": NaN}', b"[" * 50000,
                                  b'{"a": ' + b"9" * 5000 + b"}", b'{"a": Infinity}'])
def test_t24_a_body_that_is_no_object_is_the_clients_fault(body):
    refused(parse, body)


@pytest.mark.parametrize("body", [
    b'{"a": [' + b"1," * fields.MOST_VALUES + b"1, 1]}",
    b'{"a": [' + b"{}," * fields.MOST_CONTAINERS + b"1]}",
    b'{"a": [' + b"[]," * fields.MOST_CONTAINERS + b"1]}",
    b'{"a": [' + b'"",' * fields.MOST_STRINGS + b"1]}",
    b'{"a": "' + b'\\"' * fields.MOST_STRINGS + b'", "b": [' + b'"\\\\",' * fields.MOST_STRINGS
    + b"1]}"], ids=("values", "objects", "arrays", "strings", "strings behind a text"))
def test_a_body_of_very_many_values_is_refused_before_it_is_parsed(body):
    """Symptom without it: 32 MiB become a gigabyte of objects, and nobody else is heard meanwhile."""
    with pytest.raises(ApiError) as e:
        parse(body)
    assert e.value.status == 413 and "more than" in e.value.message


@pytest.mark.parametrize("text", [",[{", '"', "\\", '\\"', '",["', '[{\\\\"'])
def test_a_text_may_have_any_number_of_any_characters(text):
    value = {"a": text * fields.MOST_VALUES, "b": [text, {}]}
    assert parse(json.dumps(value).encode()) == value


def test_a_string_without_an_end_is_no_string():
    refused(parse, b'{"a": [' + b"[]," * 3 + b'"' + b"\\\"" * 100)


def test_half_a_surrogate_pair_is_read():
    value = parse(b'{"a": "\\ud800"}')["a"]
    assert engine.utf8(value).decode() == "\ufffd"
    assert engine.utf8("ok \U0001f389").decode() == "ok \U0001f389"


# ---- chat completions ----


def test_t23_null_hides_nothing():
    assert chat(max_completion_tokens=None, max_tokens=3).max_tokens == 3
    assert chat(max_completion_tokens=5, max_tokens=3).max_tokens == 5
    nulls = dict.fromkeys(("temperature", "top_p", "n", "stop", "seed", "logit_bias", "logprobs",
                           "stream", "stream_options", "top_logprobs", "tools", "user"))
    assert chat(**nulls).n == 1


@pytest.mark.parametrize("member, value", [
    ("temperature", 3), ("temperature", "1"), ("temperature", True), ("top_p", -0.1), ("top_k", 1.5),
    ("seed", "x"), ("max_tokens", 0), ("max_completion_tokens", -1), ("n", 0), ("n", 99),
    ("stop", 5), ("stop", [5]), ("stop", ["x"] * 17), ("stream", "yes"), ("stream_options", []),
    ("logit_bias", [1]), ("logit_bias", {"x": 1}), ("logit_bias", {"-1": 1}),
    ("logit_bias", {"7": 101}), ("top_logprobs", 21), ("logprobs", 3), ("min_p", 2),
    ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0),
    ("audio", {"voice": "x"}), ("modalities", ["audio"]), ("functions", [{}]),
    ("function_call", "auto"), ("web_search_options", {"a": 1}), ("timeout", 0),
    ("parallel_tool_calls", 1), ("stop", "x" * 2049), ("stop", ["\u00e9" * 600, "y" * 900]),
    ("guided_json", {"type": "object"}), ("json_schema", {"type": "object"}), ("ignore_eos", True),
    ("min_tokens", 5), ("tools", [{"type": "custom", "custom": {"name": "x"}}]),
    ("tools", [{"type": "web_search"}]),
    ("tool_choice", {"type": "allowed_tools", "allowed_tools": {}})])
def test_r2_a_refusal_names_the_member(member, value):
    e = refused(lambda: chat(**{"logprobs": True, member: value}))
    assert e.param.startswith(member) and member in e.message


def test_top_logprobs_alone_are_refused():
    assert refused(lambda: chat(top_logprobs=3)).param == "top_logprobs"
    assert chat(logprobs=True, top_logprobs=3).logprobs == 3
    assert chat(logprobs=True).logprobs == 0 and chat().logprobs is None


def test_r7_a_seed_is_drawn_and_can_be_given():
    drawn = {chat().settings["seed"] for _ in range(4)}
    assert len(drawn) == 4 and max(drawn) < 2**53, "JavaScript reads it back whole"
    assert chat(seed=0).settings["seed"] == 0
    assert chat(seed=-1).settings["seed"] == 2**64 - 1


def test_unknown_members_are_let_be():
    assert chat(service_tier="auto", store=True, user="u", metadata={"a": "b"}).n == 1


def test_members_that_ask_for_nothing_are_let_be():
    assert chat(min_tokens=0, ignore_eos=False, stop_token_ids=[], guided_json=None).n == 1
    assert chat(stop=["x" * 128] * 16).stops
    assert openai.completion_options(Fields({"suffix": ""}), 0.0).n == 1


def test_empty_stop_strings_are_dropped():
    assert chat(stop=["", "x"]).stops == ("x",) and chat(stop="y").stops == ("y",)


def test_sampling_reaches_the_library_by_its_names():
    from serve.scheduler import sampling_of
    s = chat(temperature=1.5, top_p=0.5, top_k=-1, min_p=0.1, repetition_penalty=1.25, seed=9,
             presence_penalty=1, frequency_penalty=0.5, repeat_last_n=7,
             logit_bias={"7": -100}).settings
    s["logit_bias"] = [engine.Bias(t, v) for t, v in s["logit_bias"]]
    p = sampling_of(s)
    assert (p.temperature, p.top_p, p.top_k, p.seed) == (1.5, 0.5, 0, 9)
    assert p.repeat_penalty == 1.25 and p.repeat_window == 7 and p.presence_penalty == 1
    assert p.n_logit_bias == 1 and (p.logit_bias[0].id, p.logit_bias[0].value) == (7, -100)
    assert sampling_of({}).repeat_window == 64, "what is not said is the library's default"


def test_a_grammar_does_not_end_at_a_nul():
    """What stood behind it was left out without a word."""
    for made in (constrain.of_text, lambda f: constrain.of_prompt(None, f)):
        error = refused(made, Fields({"grammar": 'root ::= "a"\0 | "b"'}))
        assert error.param == "grammar" and "NUL at 12" in error.message


def test_a_budget_of_thinking_has_several_names():
    assert chat(thinking_budget=0).thinking_budget == 0
    assert chat(thinking={"type": "enabled", "budget_tokens": 9}).thinking_budget == 9
    assert chat(thinking=True).thinking_budget is None
    assert refused(lambda: chat(thinking_budget=-1)).param == "thinking_budget"


def test_leading_system_messages_are_found():
    roles = ["system", "developer", "user", "system"]
    assert openai.leading_system([{"role": r} for r in roles]) == 1
    assert openai.leading_system([{"role": "user"}]) == -1


def test_completions_know_what_they_cannot_do():
    options = openai.completion_options
    assert refused(options, Fields({"suffix": "x"}), 0.0).param == "suffix"
    assert refused(options, Fields({"best_of": 3}), 0.0).param == "best_of"
    assert refused(options, Fields({"response_format": {"type": "json_object"}}),
                   0.0).param == "response_format"
    assert options(Fields({"best_of": 2, "n": 2, "logprobs": 3}), 0.0).logprobs == 3


# ---- constraints ----


def test_a_completion_is_held_to_a_schema_or_a_grammar():
    of_text = constrain.of_text
    assert of_text(Fields({"json_schema": {"type": "integer"}})) == {
        "grammar": b'{"type": "integer"}', "grammar_kind": engine.GRAMMAR_JSON_SCHEMA}
    assert of_text(Fields({"grammar": "root ::= ."}))["grammar_kind"] == engine.GRAMMAR_TEXT
    assert of_text(Fields({})) == {}
    assert refused(of_text, Fields({"grammar": "x", "json_schema": {"a": 1}})).param == "grammar"


def test_the_librarys_sentences_name_the_member():
    def param(text, body):
        return constrain.refusal(engine.Failure(engine.E_ARG, text), body).param

    assert param("tools[0].function.name: no", {"tools": []}) == "tools[0].function.name"
    assert param("messages[3] must be an object", {"messages": []}) == "messages[3]"
    assert param("reasoning: no words for it", {"reasoning_effort": "low"}) == "reasoning_effort"
    assert param("out of words", {"messages": []}) is None
    assert constrain.refusal(engine.Failure(engine.E_OOM, "no memory"), {}).status == 500


# ---- Anthropic's messages ----


def test_anthropic_conversations_become_ours():
    body = anthropic.conversation(Fields({
        "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [
                    {"type": "text", "text": "rain"}]},
                {"type": "text", "text": "And?"}]}],
        "tools": [{"name": "weather", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"}, "thinking": {"type": "enabled", "budget_tokens": 9000}}))
    assert body == {
        "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "Let me see.", "reasoning_content": "hm",
             "tool_calls": [{"id": "t1", "type": "function", "function": {
                 "name": "weather", "arguments": {"city": "Rome"}}}]},
            {"role": "tool", "tool_call_id": "t1", "content": "rain"},
            {"role": "user", "content": "And?"}],
        "tools": [{"type": "function", "function": {
            "name": "weather", "description": "d", "parameters": {"type": "object"}}}],
        "tool_choice": "required", "parallel_tool_calls": True, "reasoning_effort": "high",
        "grammar": None}


@pytest.mark.parametrize("body, param", [
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]},
     "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [], "tools": [{"type": "bash_20250124"}]}, "tools[0].type"),
    ({"messages": [3]}, "messages[0]"), ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [], "output_format": {"type": "text"}}, "output_format.type")])
def test_anthropic_refusals_name_the_member(body, param):
    assert refused(anthropic.conversation, Fields(body)).param == param


def test_anthropic_needs_max_tokens():
    assert refused(anthropic.options, Fields({})).param == "max_tokens"


def test_anthropic_turns_without_words_are_kept():
    body = anthropic.conversation(Fields({"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": []},
        {"role": "user", "content": []}]}))
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user"]


def test_anthropic_structured_outputs_are_a_response_format():
    schema = {"type": "object"}
    wanted = {"type": "json_schema", "schema": schema}
    for members in ({"output_format": wanted}, {"output_config": {"format": wanted}}):
        body = anthropic.conversation(Fields({"messages": [], **members}))
        assert body["response_format"]["json_schema"]["schema"] == schema


@pytest.mark.parametrize("thinking, thinks, want", [
    ({"type": "enabled", "budget_tokens": 1024}, True, {"reasoning_effort": "low"}),
    ({"type": "enabled", "budget_tokens": 90000}, True, {"reasoning_effort": "max"}),
    ({"type": "adaptive"}, True, {"thinking": True}), ({"type": "disabled"}, True, {"thinking": False}),
    ({"type": "adaptive"}, False, {}), ({"type": "disabled"}, False, {"thinking": False})])
def test_anthropic_thinking_is_as_much_as_the_model_can(thinking, thinks, want):
    body = anthropic.conversation(Fields({"messages": [], "thinking": thinking}), thinks)
    assert {k: v for k, v in body.items() if k in ("thinking", "reasoning_effort")} == want


@pytest.mark.parametrize("thinking", [{"type": "enabled", "budget_tokens": 1024}, {"type": "enabled"}])
def test_anthropic_thinking_that_cannot_be_is_refused_with_what_helps(thinking):
    error = refused(anthropic.conversation, Fields({"messages": [], "thinking": thinking}), False)
    assert error.param == "thinking" and "does not reason" in error.message
    assert "leave it out" in error.message and '"disabled"' in error.message


@pytest.mark.parametrize("member, value", [
    ("stop_sequences", ["x" * 3000]), ("mcp_servers", [{"url": "http://x"}]), ("container", "c"),
    ("guided_regex", "a+")])
def test_anthropic_knows_what_it_cannot_do(member, value):
    assert refused(anthropic.options, Fields({"max_tokens": 1, member: value})).param == member


# ---- responses ----


def test_responses_input_becomes_a_conversation():
    body = responses.conversation(Fields({
        "instructions": "Be brief.", "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": None}],
        "tool_choice": {"type": "function", "name": "f"},
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "d", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "1"}]}))
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "", "reasoning_content": "hm",
         "tool_calls": [{"id": "c", **call}, {"id": "d", **call}]},
        {"role": "tool", "tool_call_id": "c", "content": "1"}]
    assert body["tools"] == [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert body["response_format"] == {"type": "json_schema", "json_schema": {
        "name": "n", "schema": {"type": "object"}}}
    assert body["reasoning_effort"] == "low"


@pytest.mark.parametrize("body, param", [
    ({"input": 5}, "input"), ({"input": []}, "input"),
    ({"input": [{"type": "item_reference"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
     "input[0].content[0].type"),
    ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type")])
def test_responses_refusals_name_the_member(body, param):
    assert refused(responses.conversation, Fields(body)).param == param


@pytest.mark.parametrize("item, param", [
    ({"role": "user"}, "input[0].content"),
    ({"type": "function_call_output", "call_id": "c"}, "input[0].output")])
def test_responses_items_without_content_are_refused(item, param):
    assert refused(responses.conversation, Fields({"input": [item]})).param == param


@pytest.mark.parametrize("member", ["previous_response_id", "conversation", "background",
                                    "guided_grammar"])
def test_responses_have_no_memory_and_say_so(member):
    assert refused(responses.options, Fields({member: "x"}), 0.0).param == member


# ---- errors ----


def test_errors_have_each_dialects_form():
    e = ApiError(400, "too hot", "temperature", "c")
    assert e.body() == {"error": {"message": "too hot", "type": "invalid_request_error",
                                  "param": "temperature", "code": "c"}}
    assert e.body("anthropic") == {"type": "error", "error": {
        "type": "invalid_request_error", "message": "temperature: too hot"}}
    e = ApiError(400, "max_tokens is missing", "max_tokens")
    assert e.body("anthropic")["error"]["message"] == "max_tokens is missing", "not twice"
    assert busy("full", 7).headers == {"Retry-After": "7"}
