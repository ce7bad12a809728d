"""What an answer may be: response_format and tools, as grammars for the engine.

`plan` is the one place that decides. It says what stays in the request for the chat format to put
into words, and what is enforced, token by token, by waste_sampling.grammar. A grammar that knows the
markup of a format (thinking first, calls with typed arguments) can only be made by the library from
a rendered prompt; until there is such a function, a schema is enforced where an answer is nothing
but its text, and tools that ask for enforcement are refused by name.
"""

import dataclasses
import json

from serve import engine
from serve.errors import invalid
from serve.fields import Fields

ANY_OBJECT = {"type": "object"}


@dataclasses.dataclass
class Constraint:
    schema: dict = None    # the answer is JSON that satisfies it
    grammar: str = None    # or a text of this grammar: docs/CONSTRAINED.md
    hidden: tuple = ()     # members of the request that the format has no words for

    def settings(self):
        """Members of engine.Sampling."""
        if self.grammar is not None:
            return {"grammar": engine.utf8(self.grammar), "grammar_kind": engine.GRAMMAR_TEXT}
        if self.schema is None:
            return {}
        return {"grammar": json.dumps(self.schema).encode(),
                "grammar_kind": engine.GRAMMAR_JSON_SCHEMA}


def schema_of(f):
    """The schema of a request's response_format, or None."""
    response_format = f.object("response_format")
    if not response_format:
        return None
    kind = response_format.one_of("type", ("text", "json_object", "json_schema"))
    if kind is None:
        raise invalid("response_format.type", "response_format.type is missing")
    if kind == "text":
        return None
    if kind == "json_object":
        return ANY_OBJECT
    outer = response_format.object("json_schema")
    schema = outer and outer.object("schema")
    if not schema:
        raise invalid("response_format.json_schema.schema",
                      "response_format.json_schema.schema is missing")
    return schema.value


def check_tools(f):
    """Tools as far as nothing but the prompt's words enforces them."""
    for i, tool in enumerate(f.array("tools") or ()):
        tool = Fields(tool, f"tools[{i}]")
        function = tool.object("function")
        if tool.boolean("strict") or function and function.boolean("strict"):
            raise invalid(f"tools[{i}].function.strict",
                          "strict tools are not in this version: leave strict out, and check the "
                          "arguments of calls", "unsupported_strict")


def text_plan(f):
    """The Constraint of a completion: `grammar`, or `json_schema`."""
    schema, grammar = f.object("json_schema"), f.string("grammar")
    if schema and grammar is not None:
        raise invalid("grammar", "grammar and json_schema together make no sense")
    return Constraint(schema=schema and schema.value, grammar=grammar)


def plan(f, chat_info):
    """The Constraint of a chat request."""
    schema, grammar = schema_of(f), f.string("grammar")
    check_tools(f)
    if grammar is not None:
        if schema is not None:
            raise invalid("grammar", "grammar and response_format together make no sense")
        return Constraint(grammar=grammar)
    hidden = () if chat_info.has_answer_formats else ("response_format",)
    if schema is None:
        return Constraint(hidden=hidden)
    if chat_info.has_thinking:
        return Constraint()  # words only: where the answer begins is the format's secret
    if f.array("tools"):
        raise invalid("response_format", "response_format and tools together are not in this "
                                         "version for this chat format")
    return Constraint(schema, hidden=hidden)
