"""OpenAI's responses, without memory: a request has the whole conversation in `input`."""

from serve import openai
from serve.anthropic import MessagesSse
from serve.blocks import BlockAnswer
from serve.errors import invalid
from serve.fields import Fields
from serve.images import Part
from serve.reading import CALL, CONTENT
from serve.translated import RESPONSES, Translated


# Members of a request that are told again in its answer.
ECHOED = ("instructions", "parallel_tool_calls", "text", "tool_choice", "tools", "metadata")


def options(f, default_temperature):
    openai.refuse(f, ("previous_response_id", "conversation", "background", "prompt",
                      "top_logprobs", "max_tool_calls"))
    if f.get("truncation") not in (None, "disabled"):
        raise invalid("truncation", "truncation: only disabled: nothing is ever dropped")
    o = openai.Options(stream=f.boolean("stream"), settings=openai.sampling(f, default_temperature),
                       timeout=f.number("timeout", 0.001, 1e6))
    o.max_tokens = f.integer("max_output_tokens", 1, 2**31 - 1)
    o.thinking_budget = openai.thinking_budget(f)
    return o


def conversation(f):
    """The request as chat formats know it: {"messages", "tools", "tool_choice", ...}."""
    messages, origins = [], []
    if f.string("instructions"):
        messages.append({"role": "system", "content": f.string("instructions")})
        origins.append("instructions")
    given = f.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
        origins.append("input")
    elif isinstance(given, list) and given:
        _items(messages, origins, [Fields(item, f"input[{i}]") for i, item in enumerate(given)])
    else:
        raise invalid("input", "input has to be a text, or an array that is not empty")
    out = {"messages": messages, "grammar": f.get("grammar")}
    tools = [_tool(Fields(t, f"tools[{i}]")) for i, t in enumerate(f.array("tools") or ())]
    if tools:
        out["tools"] = tools
    out["parallel_tool_calls"] = f.boolean("parallel_tool_calls", True)
    choice = f.get("tool_choice")
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    if choice is not None:
        out["tool_choice"] = choice
    reasoning = f.object("reasoning")
    if reasoning and reasoning.string("effort"):
        out["reasoning_effort"] = reasoning.string("effort")
    text = f.object("text")
    answer_format = text and text.object("format")
    if answer_format:
        out["response_format"] = _format(answer_format.value)
    return Translated(out, origins, RESPONSES)


def _format(value):
    if value.get("type") != "json_schema":
        return value
    return {"type": "json_schema",
            "json_schema": {k: v for k, v in value.items() if k != "type"}}


def _items(messages, origins, items):
    """origins: where each of the messages stood."""
    reasoning = ""
    for item in items:
        kind = item.string("type", "message")
        if kind == "message":
            message = {"role": item.string("role", "user"), "content": _content(item, "content")}
            if message["role"] == "assistant" and reasoning:
                message["reasoning_content"], reasoning = reasoning, ""
            messages.append(message)
        elif kind == "function_call":
            reasoning = _call(messages, item, reasoning)
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.string("call_id", ""),
                             "content": _content(item, "output")})
        elif kind == "reasoning":
            reasoning += "".join(p.string("text", "") for p in _parts(item, "content"))
        else:
            raise invalid(item.name("type"), f"{item.name('type')}: {kind!r} is not supported here")
        origins += [item.path] * (len(messages) - len(origins))


def _call(messages, item, reasoning):
    """Calls belong to the assistant's message before them."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    message = messages[-1]
    if reasoning:
        message["reasoning_content"] = reasoning
    message.setdefault("tool_calls", []).append(
        {"id": item.string("call_id", ""), "type": "function",
         "function": {"name": item.string("name", ""), "arguments": item.string("arguments", "")}})
    return ""


def _parts(item, member):
    return [Fields(p, f"{item.name(member)}[{j}]") for j, p in enumerate(item.array(member) or ())]


def _content(item, member):
    if isinstance(item.get(member), str):
        return item.get(member)
    if item.get(member) is None:
        raise invalid(item.name(member), f"{item.name(member)} is missing")
    out = []
    for part in _parts(item, member):
        kind = part.get("type")
        if kind == "input_image":
            out.append(Part(part.path, part.value.pop("image_url", None)))  # it may be large
            continue
        if kind not in ("input_text", "output_text", "text", "refusal"):
            raise invalid(part.name("type"), f"{part.name('type')}: {kind!r} is not supported here")
        out.append({"type": "text", "text": part.string("text", part.string("refusal", ""))})
    return out


def _tool(tool):
    if tool.get("type") != "function":
        raise invalid(tool.name("type"), f"{tool.name('type')}: tools of the type "
                                         f"{tool.get('type')!r} do not run here")
    return {"type": "function", "function": {k: v for k, v in tool.value.items()
                                             if k != "type" and v is not None}}


class ResponsesSse(MessagesSse):
    def alive(self, status):
        return f": {status}\n\n".encode()

    def error(self, error):
        return self.frame({"type": "error", "code": error.code, "message": error.message,
                           "param": error.param})


class ResponsesAnswer(BlockAnswer):
    prefix = "resp_"

    def __init__(self, model, request, choices, n_prompt, effort=""):
        super().__init__(model, choices, n_prompt, effort)
        self.request = {member: request.get(member) for member in ECHOED}
        self.sequence = 2  # begin() has the first two

    def _event(self, kind, **members):
        self.sequence += 1
        return {"type": "response." + kind, "sequence_number": self.sequence - 1, **members}

    def begin(self):
        response = self._response("in_progress", [])
        return [{"type": "response.created", "sequence_number": 0, "response": response},
                {"type": "response.in_progress", "sequence_number": 1, "response": response}]

    def _response(self, status, output, usage=None):
        get = self.request.get
        return {"id": self.id, "object": "response", "created_at": self.created, "status": status,
                "error": None, "incomplete_details":
                {"reason": "max_output_tokens"} if status == "incomplete" else None,
                "instructions": get("instructions"), "max_output_tokens": self.options.max_tokens,
                "model": self.model, "output": output,
                "parallel_tool_calls": get("parallel_tool_calls") is not False,
                "previous_response_id": None,
                "reasoning": {"effort": self.effort or None, "summary": None}, "store": False,
                "temperature": self.options.settings["temperature"],
                "text": get("text") or {"format": {"type": "text"}},
                "tool_choice": get("tool_choice") or "auto", "tools": get("tools") or [],
                "top_p": self.options.settings.get("top_p", 1.0), "truncation": "disabled",
                "usage": usage, "metadata": get("metadata") or {}}

    @staticmethod
    def _part(block, text):
        if block.kind == CONTENT:
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {"type": "reasoning_text", "text": text}

    def _item(self, block, status):
        done = status != "in_progress"
        if block.kind == CALL:
            return {"id": block.id, "type": "function_call", "status": status, "name": block.name,
                    "call_id": block.call_id, "arguments": block.text if done else ""}
        parts = [self._part(block, block.text)] if done else []
        if block.kind == CONTENT:
            return {"id": block.id, "type": "message", "status": status, "role": "assistant",
                    "content": parts}
        return {"id": block.id, "type": "reasoning", "status": status, "summary": [],
                "content": parts}

    def opened(self, block):
        out = [self._event("output_item.added", output_index=block.index,
                           item=self._item(block, "in_progress"))]
        if block.kind != CALL:
            out.append(self._event("content_part.added", item_id=block.id, content_index=0,
                                   output_index=block.index, part=self._part(block, "")))
        return out

    def _where(self, block):
        where = {"item_id": block.id, "output_index": block.index}
        return where if block.kind == CALL else {**where, "content_index": 0}

    def added(self, block, text):
        kind = {CONTENT: "output_text", CALL: "function_call_arguments"}.get(block.kind,
                                                                             "reasoning_text")
        more = {"logprobs": []} if block.kind == CONTENT else {}
        return [self._event(kind + ".delta", delta=text, **self._where(block), **more)]

    def closed(self, block):
        where = self._where(block)
        if block.kind == CALL:
            out = [self._event("function_call_arguments.done", arguments=block.text,
                               name=block.name, **where)]
        else:
            kind = "output_text" if block.kind == CONTENT else "reasoning_text"
            more = {"logprobs": []} if block.kind == CONTENT else {}
            out = [self._event(kind + ".done", text=block.text, **where, **more),
                   self._event("content_part.done", part=self._part(block, block.text), **where)]
        item = self._item(block, "completed" if block.whole else "incomplete")
        return out + [self._event("output_item.done", output_index=block.index, item=item)]

    def finished(self, ended):
        response = self.whole()
        return [self._event(response["status"], response=response)]

    def whole(self):
        u = self.ended[0].usage
        status = "incomplete" if self.ended[0].reason == "length" else "completed"
        output = [self._item(b, "completed") for b in self.blocks if b.whole]
        usage = {"input_tokens": u.prompt, "input_tokens_details": {"cached_tokens": u.cached},
                 "output_tokens": u.generated,
                 "output_tokens_details": {"reasoning_tokens": u.reasoning},
                 "total_tokens": u.prompt + u.generated}
        return {**self._response(status, output, usage),
                "waste": openai.extension(self.ended[0], self.effort)}
