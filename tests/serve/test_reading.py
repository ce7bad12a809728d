"""Ids into deltas, with the demonstration model's tokenizer and formats."""

import json

import pytest

from serving import DEMO, xtml_model  # noqa: F401
from serve import engine
from serve.reading import (ARGUMENTS, CALL, CALL_CUT, CALL_END, CONTENT, REASONING, ChatReader, Choice,
                           TextReader)


@pytest.fixture(scope="module")
def tokenizer():
    return engine.Tokenizer(DEMO)


@pytest.fixture(scope="module")
def chat(tokenizer):
    return engine.Chat(tokenizer, DEMO)


def control(tokenizer, text):
    (token,) = tokenizer.encode(text, engine.MARKUP)
    return token


def feed(reader, tokens, end=None):
    deltas = []
    for t in tokens:
        deltas += reader.feed(Choice(t, -1.0, []), t == end)
    return deltas + reader.end()


def text(deltas, kind=CONTENT):
    return "".join(d.text for d in deltas if d.kind == kind)


def test_t31_a_completion_ends_before_the_end_marker(tokenizer):
    end = control(tokenizer, "<|im_end|>")
    reader = TextReader(tokenizer)
    assert text(feed(reader, [*tokenizer.encode("All is well."), end], end)) == "All is well."
    assert reader.complete


def test_r8_characters_come_whole(tokenizer):
    tokens = tokenizer.encode("a🎉b")
    assert len(tokens) > 3, "the vocabulary has the character in pieces"
    pieces = [d.text for d in feed(TextReader(tokenizer), tokens)]
    assert "".join(pieces) == "a🎉b" and "🎉" in pieces


def test_what_never_becomes_a_character_is_replaced_once(tokenizer):
    tokens = tokenizer.encode("a🎉")[:-1]
    assert text(feed(TextReader(tokenizer), tokens)) == "a\ufffd"


def test_stop_strings_across_tokens_hold_back_only_what_can_match(tokenizer):
    reader = TextReader(tokenizer, ("well, no", "zzz"))
    deltas = []
    for t in tokenizer.encode("All is well, nobody knows."):
        if reader.satisfied:
            break
        deltas += reader.feed(Choice(t, 0, []), False)
    assert text(deltas) == "All is " and reader.matched == 0
    reader = TextReader(tokenizer, ("well, no",))
    assert text(feed(reader, tokenizer.encode("All is well, yes"))) == "All is well, yes"
    assert reader.matched == -1


def prompt(chat, **more):
    body = {"messages": [{"role": "user", "content": "Weather?"}],
            "tools": [{"type": "function", "function": {"name": "weather"}}], **more}
    return chat.render(json.dumps(body).encode())


def call_tokens(tokenizer, arguments, number=0, closed=True):
    tokens = [control(tokenizer, "<|tool_call_begin|>"),
              *tokenizer.encode(f"functions.weather:{number}"),
              control(tokenizer, "<|tool_call_argument_begin|>"), *tokenizer.encode(arguments)]
    return tokens + [control(tokenizer, "<|tool_call_end|>")] * closed


def test_calls_are_told_as_they_come(tokenizer, chat):
    reader = ChatReader(tokenizer, prompt(chat))
    tokens = [*tokenizer.encode("Let me see."), control(tokenizer, "<|tool_calls_section_begin|>"),
              *call_tokens(tokenizer, '{"city": "Rome"}'),
              *call_tokens(tokenizer, '{"city": "Oslo"}', 1),
              control(tokenizer, "<|tool_calls_section_end|>"), control(tokenizer, "<|im_end|>")]
    deltas = feed(reader, tokens)
    assert text(deltas) == "Let me see."
    calls = [d for d in deltas if d.kind == CALL]
    assert [d.text for d in calls] == ["weather"] * 2 and calls[0].id != calls[1].id
    assert json.loads("".join(d.text for d in deltas if d.kind == ARGUMENTS and d.call == 1)) == \
        {"city": "Oslo"}
    assert reader.n_calls == 2 and reader.n_cut == 0 and reader.complete
    assert sum(d.kind == ARGUMENTS for d in deltas) > 2, "arguments come in pieces"


def test_r8_a_cut_call_is_told_from_a_complete_one(tokenizer, chat):
    reader = ChatReader(tokenizer, prompt(chat))
    tokens = [control(tokenizer, "<|tool_calls_section_begin|>"),
              *call_tokens(tokenizer, '{"city": "Ro', closed=False)]
    deltas = feed(reader, tokens)
    assert deltas[-1].kind == CALL_CUT and not any(d.kind == CALL_END for d in deltas)
    assert reader.n_cut == 1 and reader.n_calls == 0 and not reader.complete


def test_logprobs_are_those_of_the_answers_tokens(tokenizer, chat):
    reader = ChatReader(tokenizer, prompt(chat), logprobs=True)
    answer = tokenizer.encode("Let me see 🎉.")
    tokens = [*answer, control(tokenizer, "<|tool_calls_section_begin|>"),
              *call_tokens(tokenizer, "{}"), control(tokenizer, "<|im_end|>")]
    told = [c.token for d in feed(reader, tokens) for c in d.choices]
    assert told == answer, "neither markup nor arguments, and no token of the text is missing"


def test_reasoning_is_told_apart_and_counted(xtml_model):
    tokenizer = engine.Tokenizer(xtml_model)
    think = engine.Chat(tokenizer, xtml_model)

    def markup(s):
        return [t for part in s.split(" ") for t in tokenizer.encode(part, engine.MARKUP)]

    reader = ChatReader(tokenizer, think.render(b'{"messages": [{"role": "user", "content": "?"}]}'),
                        ("NO",), logprobs=True)
    thought, answer = tokenizer.encode("NO way"), tokenizer.encode("Yes.")
    tokens = [*thought, *markup("<|close|> think <|sep|> <|open|> response <|sep|>"), *answer,
              *markup("<|close|> response <|sep|> <|close|> message <|sep|> <|end_of_msg|>")]
    deltas = feed(reader, tokens)
    assert text(deltas, REASONING) == "NO way", "stop strings are not looked for in reasoning"
    assert text(deltas) == "Yes." and reader.matched == -1 and reader.complete
    assert [c.token for d in deltas for c in d.choices] == answer
    assert len(thought) <= reader.n_reasoning < len(tokens) - len(answer)
