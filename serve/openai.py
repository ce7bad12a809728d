"""OpenAI's chat completions and completions: requests by field name, answers and chunks."""

import dataclasses
import os
import time

from serve import engine
from serve.errors import invalid
from serve.reading import ARGUMENTS, CALL, CALL_CUT, CONTENT, REASONING

MOST_CHOICES, MOST_STOPS, MOST_BIAS, MOST_TOP = 16, 16, 1024, 20
STOP_BYTES = 2048  # of all stop strings: what they begin is held back
_ANY = 1 << 63

# How other servers are told what an answer has to be, or where it has to end.
OTHER_SERVERS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar",
                 "structured_outputs", "min_tokens", "ignore_eos", "stop_token_ids")


@dataclasses.dataclass
class Options:
    """What every dialect can say about how to answer."""
    stream: bool = False
    usage_chunk: bool = False
    progress: bool = False
    n: int = 1
    max_tokens: int = None
    stops: tuple = ()
    settings: dict = dataclasses.field(default_factory=dict)
    logprobs: int = None  # how many alternatives; None: no log-probabilities at all
    timeout: float = None
    thinking_budget: int = None  # tokens of reasoning
    limited_by: str = None  # the member that the answer's grammar comes from


def identifier(prefix):
    return prefix + os.urandom(12).hex()


def sampling(f, default_temperature):
    """Members of engine.Sampling. Without a seed one is drawn, so that it can be told."""
    s = {"temperature": f.number("temperature", 0, 2, default_temperature),
         "seed": f.integer("seed", -_ANY, 2 * _ANY - 1)}
    s["seed"] = int.from_bytes(os.urandom(6), "little") if s["seed"] is None \
        else s["seed"] % (2 * _ANY)  # 48 bits: whole in JavaScript's numbers, too
    for name, names, low, high in (("top_p", ("top_p",), 0, 1), ("min_p", ("min_p",), 0, 1),
                                   ("repeat_penalty", ("repeat_penalty", "repetition_penalty"),
                                    0.01, 100),
                                   ("presence_penalty", ("presence_penalty",), -2, 2),
                                   ("frequency_penalty", ("frequency_penalty",), -2, 2)):
        for member in names:
            value = f.number(member, low, high)
            if value is not None and name not in s:
                s[name] = value
    top_k = f.integer("top_k", -1, 2**31 - 1)
    if top_k is not None:
        s["top_k"] = max(top_k, 0)
    window = f.integer("repeat_last_n", 0, 2**31 - 1)
    if window is not None:
        s["repeat_window"] = window
    bias = f.object("logit_bias")
    if bias and bias.value:
        if len(bias.value) > MOST_BIAS:
            raise invalid(bias.path, f"{len(bias.value)} biases, at most {MOST_BIAS}")
        s["logit_bias"] = [_bias(bias, member) for member in bias.value]
    return s


def _bias(bias, member):
    if not (member.isascii() and member.isdigit() and len(member) < 10):
        raise invalid(bias.path, f"{bias.path}: {member!r} is no token id")
    return int(member), bias.number(member, -100, 100, 0.0)


def stop_strings(f, member="stop"):
    value = f.get(member)
    value = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(s, str) for s in value):
        raise invalid(member, f"{member} is neither a string nor an array of strings")
    if len(value) > MOST_STOPS:
        raise invalid(member, f"{len(value)} stop strings, at most {MOST_STOPS}")
    n_bytes = sum(len(engine.utf8(s)) for s in value)
    if n_bytes > STOP_BYTES:
        raise invalid(member, f"{member} has {n_bytes} bytes in all, at most {STOP_BYTES}")
    return tuple(s for s in value if s)


def common(f, default_temperature):
    """What both endpoints have."""
    stream_options = f.object("stream_options")
    seconds = f.number("timeout", 0.001, 1e6)
    return Options(
        stream=f.boolean("stream"),
        usage_chunk=bool(stream_options and stream_options.boolean("include_usage")),
        progress=f.boolean("return_progress"),
        n=f.integer("n", 1, MOST_CHOICES, 1), stops=stop_strings(f),
        settings=sampling(f, default_temperature), timeout=seconds)


def refuse(f, members):
    """Members that change the meaning of a request, and that we do not have: these, and those that
    no dialect here has."""
    for member in (*members, *OTHER_SERVERS):
        if f.get(member) not in (None, [], {}, False, ""):
            raise invalid(member, f"{member} is not supported here")


def chat_options(f, default_temperature):
    o = common(f, default_temperature)
    refuse(f, ("audio", "functions", "function_call", "web_search_options", "prediction",
               "json_schema", "continue_final_message"))
    _check_tools(f)
    if f.get("modalities") not in (None, ["text"]):
        raise invalid("modalities", "modalities: only text comes out of this server")
    o.max_tokens = f.integer("max_completion_tokens", 1, 2**31 - 1)
    if o.max_tokens is None:  # an explicit null hides nothing
        o.max_tokens = f.integer("max_tokens", 1, 2**31 - 1)
    top = f.integer("top_logprobs", 0, MOST_TOP)
    if f.boolean("logprobs"):
        o.logprobs = top or 0
    elif top:
        raise invalid("top_logprobs", "top_logprobs needs logprobs: true")
    o.thinking_budget = thinking_budget(f)
    f.boolean("parallel_tool_calls")  # the grammar's business, as tools are
    return o


def _check_tools(f):
    """That they are functions, which alone can be called. What a function lacks, the library says."""
    for i, tool in enumerate(f.array("tools") or ()):
        kind, path = tool.get("type") if isinstance(tool, dict) else None, f"tools[{i}].type"
        if kind not in (None, "function"):
            raise invalid(path, f"{path}: tools of the type {kind!r} do not run here")
    choice = f.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in (None, "function"):
        raise invalid("tool_choice.type", f"tool_choice.type: {kind!r} is not supported here, "
                                          "only function")


def thinking_budget(f):
    """Most tokens of reasoning, 0: none; None: as many as there are. Of models that do not reason,
    or were told not to, it asks nothing."""
    budget = f.integer("thinking_budget", 0, 2**31 - 1)
    if budget is None and isinstance(f.get("thinking"), dict):
        budget = f.object("thinking").integer("budget_tokens", 0, 2**31 - 1)
    return budget


def completion_options(f, default_temperature):
    o = common(f, default_temperature)
    refuse(f, ("suffix", "response_format", "tools"))
    if f.integer("best_of", 1, MOST_CHOICES, o.n) != o.n:
        raise invalid("best_of", "best_of other than n is not supported here")
    o.max_tokens = f.integer("max_tokens", 1, 2**31 - 1)
    if f.get("logprobs") is not False:
        o.logprobs = f.integer("logprobs", 0, MOST_TOP)
    return o


def check_messages(f):
    """That there are some. What is in them is the chat format's business."""
    messages = f.array("messages")
    if not messages:
        raise invalid("messages", "messages has to be an array that is not empty")
    return messages


def leading_system(messages):
    """The last of the system messages that a conversation begins with: its index, or -1."""
    n = 0
    while n < len(messages) and isinstance(messages[n], dict) \
            and messages[n].get("role") in ("system", "developer"):
        n += 1
    return n - 1


# ---- answers -------------------------------------------------------------------------------------


def usage(ended):
    """Sums over the choices of a request; the prompt counts once."""
    u = [e.usage for e in ended]
    generated = sum(x.generated for x in u)
    return {"prompt_tokens": u[0].prompt, "completion_tokens": generated,
            "total_tokens": u[0].prompt + generated,
            "prompt_tokens_details": {"cached_tokens": u[0].cached},
            "completion_tokens_details": {"reasoning_tokens": sum(x.reasoning for x in u)}}


def extension(ended, effort=""):
    """What only this server has to say, of one choice."""
    u = ended.usage
    out = {"seed": u.seed, "queued_ms": round(u.queued_ms, 1),
           "prefill_ms": round(u.prefill_ms, 1), "decode_ms": round(u.decode_ms, 1),
           "experts_hit": u.experts_hit, "experts_missed": u.experts_missed,
           "bytes_read": u.bytes_read}
    if effort:
        out["reasoning_effort"] = effort
    if u.matched is not None:
        out["stop_string"] = u.matched
    return out


def finish_reason(ended):
    u = ended.usage
    if ended.reason == "length":
        return "length"
    return "tool_calls" if u.calls else "stop"


def token_text(tokenizer, token):
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def chat_logprobs(tokenizer, choices):
    def one(token, logprob):
        data = tokenizer.token_bytes(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": max(logprob, -9999.0),
                "bytes": list(data)}

    return {"content": [{**one(c.token, c.logprob),
                         "top_logprobs": [one(t, p) for t, p in c.top]} for c in choices],
            "refusal": None}


class Answer:
    """One request's answer, as it is told in chunks and as it is told at once. Each method returns
    the objects to send now if the answer is streamed."""

    prefix = object_name = chunk_name = None

    def __init__(self, model, tokenizer, options, effort=""):
        self.id, self.created = identifier(self.prefix), int(time.time())
        self.model, self.tokenizer, self.options, self.effort = model, tokenizer, options, effort
        self.choices = [self._new_choice(i) for i in range(options.n)]
        self.ended = [None] * options.n

    def _envelope(self, object_name, choices):
        return {"id": self.id, "object": object_name, "created": self.created,
                "model": self.model, "system_fingerprint": "waste-" + engine.version(),
                "choices": choices}

    def _chunk(self, choice):
        chunk = self._envelope(self.chunk_name, [choice])
        if self.options.usage_chunk:
            chunk["usage"] = None
        return chunk

    def begin(self):
        return []

    def done(self):
        """After the last choice has ended."""
        if not self.options.usage_chunk:
            return []
        return [{**self._envelope(self.chunk_name, []), "usage": usage(self.ended)}]

    def progress(self, fed):
        """Only for those who asked for it: others index choices[0]."""
        return [{**self._envelope(self.chunk_name, []),
                 "prompt_progress": {"total": fed.total, "cache": fed.cached,
                                     "processed": fed.done, "time_ms": round(fed.ms)}}]

    def queued(self, position):
        return [{**self._envelope(self.chunk_name, []), "queue": {"position": position}}]

    def whole(self):
        return {**self._envelope(self.object_name, self.choices), "usage": usage(self.ended),
                "waste": extension(self.ended[0], self.effort)}


REASONING_MEMBERS = {"reasoning_content": ("reasoning_content",), "reasoning": ("reasoning",),
                     "both": ("reasoning_content", "reasoning"), "none": ()}


class ChatAnswer(Answer):
    prefix, object_name, chunk_name = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, model, tokenizer, options, effort="", reasoning="reasoning_content"):
        """reasoning: a key of REASONING_MEMBERS."""
        super().__init__(model, tokenizer, options, effort)
        self.reasoning = REASONING_MEMBERS[reasoning]

    def _new_choice(self, index):
        return {"index": index, "message": {"role": "assistant", "content": None, "refusal": None},
                "logprobs": None if self.options.logprobs is None else
                {"content": [], "refusal": None}, "finish_reason": None}

    def _delta(self, index, delta, logprobs=None, reason=None):
        return self._chunk({"index": index, "delta": delta, "logprobs": logprobs,
                            "finish_reason": reason})

    def begin(self):
        return [self._delta(i, {"role": "assistant", "content": ""})
                for i in range(self.options.n)]

    def more(self, index, d):
        choice = self.choices[index]
        message = choice["message"]
        if d.kind == CONTENT:
            message["content"] = (message["content"] or "") + d.text
            logprobs = None
            if self.options.logprobs is not None:
                logprobs = chat_logprobs(self.tokenizer, d.choices)
                choice["logprobs"]["content"] += logprobs["content"]
            return [self._delta(index, {"content": d.text}, logprobs)]
        if d.kind == REASONING:
            for member in self.reasoning:
                message[member] = message.get(member, "") + d.text
            return [self._delta(index, dict.fromkeys(self.reasoning, d.text))] \
                if self.reasoning else []
        return self._call(index, message, d)

    def _call(self, index, message, d):
        if d.kind == CALL:
            call = {"id": d.id, "type": "function", "function": {"name": d.text, "arguments": ""}}
            message.setdefault("tool_calls", []).append(call)
            call = {"index": d.call, **call, "function": dict(call["function"])}
        elif d.kind == ARGUMENTS:
            message["tool_calls"][-1]["function"]["arguments"] += d.text
            call = {"index": d.call, "function": {"arguments": d.text}}
        else:
            if d.kind == CALL_CUT:  # it must not be carried out: an answer told at once lacks it
                message["tool_calls"].pop()
                if not message["tool_calls"]:
                    del message["tool_calls"]
            return []
        return [self._delta(index, {"tool_calls": [call]})]

    def end(self, index, ended):
        self.ended[index] = ended
        reason = self.choices[index]["finish_reason"] = finish_reason(ended)
        message = self.choices[index]["message"]
        if message["content"] is None and not message.get("tool_calls"):
            message["content"] = ""  # null is for calls alone: clients strip() it
        chunk = self._delta(index, {}, None, reason)
        chunk["waste"] = extension(ended, self.effort)
        return [chunk]


class CompletionAnswer(Answer):
    prefix, object_name, chunk_name = "cmpl-", "text_completion", "text_completion"

    def __init__(self, model, tokenizer, options, echo=""):
        self.echo = echo
        super().__init__(model, tokenizer, options)

    def _new_choice(self, index):
        return {"index": index, "text": self.echo, "logprobs": None, "finish_reason": None}

    def begin(self):
        if not self.echo:
            return []
        return [self._chunk(self._new_choice(i)) for i in range(self.options.n)]

    def more(self, index, d):
        choice, logprobs = self.choices[index], None
        if self.options.logprobs is not None:
            logprobs = self._logprobs(d.choices, len(choice["text"]))
            if choice["logprobs"] is None:
                choice["logprobs"] = {k: [] for k in logprobs}
            for k, values in logprobs.items():
                choice["logprobs"][k] += values
        choice["text"] += d.text
        return [self._chunk({"index": index, "text": d.text, "logprobs": logprobs,
                             "finish_reason": None})]

    def _logprobs(self, choices, offset):
        tokens = [token_text(self.tokenizer, c.token) for c in choices]
        offsets = [offset]
        for token in tokens[:-1]:
            offsets.append(offsets[-1] + len(token))
        return {"tokens": tokens, "token_logprobs": [max(c.logprob, -9999.0) for c in choices],
                "top_logprobs": [{token_text(self.tokenizer, t): max(p, -9999.0) for t, p in c.top}
                                 for c in choices], "text_offset": offsets[:len(tokens)]}

    def end(self, index, ended):
        self.ended[index] = ended
        reason = "length" if ended.reason == "length" else "stop"
        self.choices[index]["finish_reason"] = reason
        chunk = self._chunk({"index": index, "text": "", "logprobs": None, "finish_reason": reason})
        chunk["waste"] = extension(ended)
        return [chunk]
