"""What an answer may be, token by token: response formats, tools and grammars, for
waste_sampling.grammar.

Of a conversation the library knows it all, markup included: `of_prompt` asks it. A completion is
nothing but its text.
"""

import re

from serve import engine
from serve.errors import ApiError, invalid
from serve.translated import told


def refusal(failure, body):
    """What the library says of a request, as an error of the interface."""
    if failure.status not in (engine.E_ARG, engine.E_UNSUPPORTED, engine.E_LIMIT, engine.E_FORMAT):
        return ApiError(500, str(failure))
    text = str(failure)
    return invalid(told(body, _param(text, body)), told(body, text))


def limited_by(body):
    """The member that a conversation's grammar comes from, as the client calls it."""
    for member in ("grammar", "response_format", "tools"):
        if body.get(member):
            return told(body, member)
    return None


def _param(text, body):
    """The library begins a sentence about a member with its path."""
    path = re.match(r"[a-z_]+(?:\[\d+\]|\.[A-Za-z_]+)*(?=[: ])", text)
    if not path:
        return None
    root = re.match(r"[a-z_]+", path[0])[0]
    if root in body:
        return path[0]
    return next((member for member in body if member.startswith(root)), None)


def _grammar(f):
    """The member `grammar`, as bytes that end at no NUL."""
    text = f.string("grammar")
    if text is not None and "\0" in text:
        raise invalid(f.name("grammar"), f"{f.name('grammar')} has a NUL at {text.index(chr(0))}, "
                                         "where the text of a grammar ends")
    return None if text is None else engine.utf8(text)


def of_prompt(prompt, f):
    """Members of engine.Sampling for the answers to a rendered request. `grammar` is one of the
    response alone."""
    response = _grammar(f)
    try:
        text = prompt.grammar(response)
    except engine.Failure as e:
        raise refusal(e, f.value) from None
    return {} if text is None else {"grammar": text, "grammar_kind": engine.GRAMMAR_TEXT}


def of_text(f):
    """The same for a completion: `grammar`, or `json_schema`."""
    schema, grammar = f.object("json_schema"), _grammar(f)
    if schema and grammar is not None:
        raise invalid("grammar", "grammar and json_schema together make no sense")
    if grammar is not None:
        return {"grammar": grammar, "grammar_kind": engine.GRAMMAR_TEXT}
    if schema:
        return {"grammar": schema.bytes(), "grammar_kind": engine.GRAMMAR_JSON_SCHEMA}
    return {}
