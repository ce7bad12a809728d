"""Anthropic's messages: requests into the conversation that chat formats know, and answers."""

import json

from serve import openai
from serve.blocks import BlockAnswer
from serve.errors import invalid
from serve.fields import Fields
from serve.images import Part
from serve.reading import CALL, CONTENT
from serve.stream import Sse
from serve.translated import ANTHROPIC, Translated

# budget_tokens up to here asks for this effort; more, for "max"
BUDGETS = ((4096, "low"), (16384, "high"))


def options(f):
    openai.refuse(f, ("mcp_servers", "container"))
    o = openai.Options(stream=f.boolean("stream"))
    o.max_tokens = f.integer("max_tokens", 1, 2**31 - 1)
    if o.max_tokens is None:
        raise invalid("max_tokens", "max_tokens is missing")
    o.stops = openai.stop_strings(f, "stop_sequences")
    o.timeout = f.number("timeout", 0.001, 1e6)
    o.thinking_budget = openai.thinking_budget(f)
    return o


def conversation(f, thinks=True):
    """The request as chat formats know it: {"messages", "tools", "tool_choice", ...}. thinks: the
    model can."""
    messages = _system(f)
    origins = ["system"] * len(messages)
    for i, message in enumerate(f.array("messages") or ()):
        message = Fields(message, f"messages[{i}]")
        role = message.one_of("role", ("user", "assistant", "system"))
        if role is None:
            raise invalid(message.name("role"), f"{message.name('role')} is missing")
        if message.get("content") is None:
            raise invalid(message.name("content"), f"{message.name('content')} is missing")
        parts = _blocks(message)
        messages += _assistant(parts) if role == "assistant" else _user(role, parts)
        origins += [message.path] * (len(messages) - len(origins))
    out = {"messages": messages, "grammar": f.get("grammar")}
    tools = [_tool(Fields(t, f"tools[{i}]")) for i, t in enumerate(f.array("tools") or ())]
    if tools:
        out["tools"] = tools
    choice = f.object("tool_choice")
    if choice:
        out["tool_choice"] = _choice(choice)
        out["parallel_tool_calls"] = not choice.boolean("disable_parallel_tool_use")
    out.update(_thinking(f, thinks))
    out.update(_format(f))
    return Translated(out, origins, ANTHROPIC)


def _system(f):
    system = f.get("system")
    if system is None:
        return []
    if not isinstance(system, str):
        system = "".join(b.string("text", "") for b in _list(f, "system"))
    return [{"role": "system", "content": system}]


def _list(f, member):
    return [Fields(b, f"{f.name(member)}[{j}]") for j, b in enumerate(f.array(member) or ())]


def _blocks(f):
    """The content of a message or of a tool's result, as blocks."""
    if isinstance(f.get("content"), str):
        return [Fields({"type": "text", "text": f.get("content")}, f.name("content"))]
    return _list(f, "content")


def _text(block):
    if block.get("type") != "text":
        raise invalid(block.name("type"), f"{block.name('type')}: {block.get('type')!r} is not "
                                          "supported here")
    return {"type": "text", "text": block.string("text", "")}


def _part(block):
    """A text, or an image, whose bytes leave the request: they may be many."""
    if block.get("type") == "image":
        return Part(block.path, block.value.pop("source", None))
    return _text(block)


def _content(parts):
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _user(role, blocks):
    out, parts = [], []
    for block in blocks:
        if block.get("type") == "tool_result":
            result = [_part(b) for b in _blocks(block)]
            if all(part["type"] == "text" for part in result):
                result = "".join(part["text"] for part in result)
            out.append({"role": "tool", "tool_call_id": block.string("tool_use_id", ""),
                        "content": result})
        else:
            parts.append(_part(block))
    if parts or not blocks:
        out.append({"role": role, "content": _content(parts) if parts else ""})
    return out


def _assistant(blocks):
    message = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
    for block in blocks:
        kind = block.get("type")
        if kind == "tool_use":
            arguments = block.object("input")
            message["tool_calls"].append(
                {"id": block.string("id", ""), "type": "function",
                 "function": {"name": block.string("name", ""),
                              "arguments": arguments.value if arguments else {}}})
        elif kind == "thinking":
            message["reasoning_content"] += block.string("thinking", "")
        elif kind != "redacted_thinking":
            message["content"] += _text(block)["text"]
    return [{k: v for k, v in message.items() if v or k in ("role", "content")}]


def _tool(tool):
    if tool.get("type") not in (None, "custom"):
        raise invalid(tool.name("type"), f"{tool.name('type')}: tools of the type "
                                         f"{tool.get('type')!r} do not run here")
    function = {"name": tool.string("name"), "description": tool.string("description"),
                "parameters": tool.get("input_schema"), "strict": tool.get("strict")}
    return {"type": "function",
            "function": {k: v for k, v in function.items() if v is not None}}


def _choice(choice):
    kind = choice.one_of("type", ("auto", "any", "tool", "none"), "auto")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.string("name", "")}}
    return {"any": "required"}.get(kind, kind)


def _thinking(f, thinks):
    thinking = f.object("thinking")
    if not thinking:
        return {}
    kind = thinking.one_of("type", ("enabled", "disabled", "adaptive"), "enabled")
    budget = thinking.integer("budget_tokens", 1, 2**31 - 1)
    if kind == "disabled":
        return {"thinking": False}
    if not thinks and kind == "adaptive":
        return {}  # as much as it wants, and that is none
    if not thinks:
        raise invalid("thinking", "thinking: this model does not reason: leave it out, or let its "
                                  'type be "adaptive" or "disabled"')
    if budget is None:
        return {"thinking": True}
    return {"reasoning_effort": next((e for most, e in BUDGETS if budget <= most), "max")}


def _format(f):
    """Structured outputs, under the older name and the newer."""
    config = f.object("output_config")
    wanted = f.object("output_format") or config and config.object("format")
    if not wanted:
        return {}
    wanted.one_of("type", ("json_schema",))
    return {"response_format": {"type": "json_schema", "json_schema": {
        "schema": wanted.get("schema")}}}


class MessagesSse(Sse):
    """Every event has its name, and nothing follows the last one."""

    last = b""

    def frame(self, value):
        return b"event: " + value["type"].encode() + b"\n" + super().frame(value)

    def alive(self, status):
        return self.frame({"type": "ping"})

    def error(self, error):
        return self.frame(error.body("anthropic"))


class MessagesAnswer(BlockAnswer):
    prefix = "msg_"

    def _message(self, content, usage, reason=None, stop=None):
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model,
                "content": content, "stop_reason": reason, "stop_sequence": stop, "usage": usage}

    def _usage(self, cached, generated):
        return {"input_tokens": self.n_prompt - cached, "cache_read_input_tokens": cached,
                "cache_creation_input_tokens": 0, "output_tokens": generated}

    def begin(self):
        return [{"type": "message_start", "message": self._message([], self._usage(0, 0))}]

    @staticmethod
    def _content(block, empty=False):
        text = "" if empty else block.text
        if block.kind == CONTENT:
            return {"type": "text", "text": text}
        if block.kind == CALL:
            return {"type": "tool_use", "id": block.call_id, "name": block.name,
                    "input": json.loads(text) if text and block.whole else {}}
        return {"type": "thinking", "thinking": text, "signature": ""}

    def opened(self, block):
        return [{"type": "content_block_start", "index": block.index,
                 "content_block": self._content(block, empty=True)}]

    def added(self, block, text):
        kind, member = {CONTENT: ("text_delta", "text"), CALL: ("input_json_delta", "partial_json")
                        }.get(block.kind, ("thinking_delta", "thinking"))
        return [{"type": "content_block_delta", "index": block.index,
                 "delta": {"type": kind, member: text}}]

    def closed(self, block):
        return [{"type": "content_block_stop", "index": block.index}]

    def _reason(self):
        ended = self.ended[0]
        if ended.reason == "length":
            return "max_tokens"
        if ended.usage.matched is not None:
            return "stop_sequence"
        return "tool_use" if ended.usage.calls else "end_turn"

    def finished(self, ended):
        u = ended.usage
        return [{"type": "message_delta",
                 "delta": {"stop_reason": self._reason(), "stop_sequence": u.matched},
                 "usage": self._usage(u.cached, u.generated)}, {"type": "message_stop"}]

    def whole(self):
        u = self.ended[0].usage
        content = [self._content(b) for b in self.blocks if b.whole]
        return self._message(content, self._usage(u.cached, u.generated), self._reason(), u.matched)
