"""Ids as they are chosen, into what a client is told: deltas.

A reader belongs to the engine's thread from the moment its job is submitted. Stop strings are
looked for in the answer, never in reasoning or in the arguments of a call; what can still become
one is held back, and nothing else.
"""

import dataclasses

from serve import engine

CONTENT, REASONING, CALL, ARGUMENTS, CALL_END, CALL_CUT = (
    "content", "reasoning", "call", "arguments", "call_end", "call_cut")

_KINDS = {engine.REASONING: REASONING, engine.CALL_BEGIN: CALL, engine.CALL_ARGUMENTS: ARGUMENTS,
          engine.CALL_END: CALL_END, engine.CALL_CUT: CALL_CUT}


@dataclasses.dataclass
class Choice:
    """One token as it was chosen. top: [(id, logprob)], likeliest first."""
    token: int
    logprob: float
    top: list


@dataclasses.dataclass
class Delta:
    """More of an answer. CALL: text is the tool's name. choices: the tokens this text is of, where
    log-probabilities were asked for."""
    kind: str
    text: str = ""
    call: int = 0
    id: str = None
    choices: list = dataclasses.field(default_factory=list)


class Reader:
    """What both kinds have in common: stop strings, and which tokens a text is of."""

    def __init__(self, stops, logprobs):
        self.stops = engine.Stops(stops) if stops else None
        self.stop_texts = stops
        self.logprobs = logprobs
        self.held = []  # choices that may turn out to be of the answer's text
        self.texts = []  # that are, but their text is held back
        self.matched = -1
        self.n_reasoning = self.n_calls = self.n_cut = 0
        self.complete = False  # the model ended the message itself

    def _content(self, text, end=False):
        """Deltas of a piece of the answer's text."""
        if self.matched >= 0:
            return []
        self.texts += self.held
        self.held = []
        if self.stops:
            text, self.matched = self.stops.feed(text, end)
        if not text:
            return []
        delta = Delta(CONTENT, text, choices=self.texts)
        self.texts = []
        return [delta]

    @property
    def satisfied(self):
        """Nothing more is wanted of the model."""
        return self.matched >= 0

    def _hold(self, choice, is_text):
        if self.logprobs and is_text:
            self.held.append(choice)

    def close(self):
        if self.stops:
            self.stops.close()
            self.stops = None


class TextReader(Reader):
    """A text that is continued."""

    def __init__(self, tokenizer, stops=(), logprobs=False):
        super().__init__(stops, logprobs)
        self.tokenizer = tokenizer
        self.utf8 = engine.Utf8()

    def feed(self, choice, ends_turn):
        if ends_turn:  # the marker is no part of the text
            self.complete = True
            return []
        self._hold(choice, True)
        return self._content(self.utf8.feed(self.tokenizer.token_bytes(choice.token)))

    def end(self):
        return self._content(self.utf8.feed(b"", True), True)


class ChatReader(Reader):
    """A reply in a chat format: reasoning, an answer, calls."""

    def __init__(self, tokenizer, prompt, stops=(), logprobs=False):
        super().__init__(stops, logprobs)
        self.tokenizer = tokenizer
        self.reply = engine.Reply(prompt)
        self.thinks = prompt.begins == engine.REASONING

    def feed(self, choice, ends_turn):
        self.n_reasoning += self.thinks
        control = self.tokenizer.is_control(choice.token)
        self._hold(choice, not control)
        deltas = self._deltas(self.reply.feed(choice.token))
        if control:
            self.held = []  # words of a header
        return deltas

    def end(self):
        deltas = self._deltas(self.reply.end())
        if self.stops:
            deltas += self._content("", True)
        return deltas

    def _deltas(self, events):
        deltas = []
        for kind, text, call, identity, complete in events:
            if kind == engine.RESPONSE:
                self.thinks = False
                deltas += self._content(text)
            elif kind == engine.MESSAGE_END:
                self.complete = complete
            else:
                self.held = []
                self.thinks = self.thinks and kind == engine.REASONING
                self.n_calls += kind == engine.CALL_END
                self.n_cut += kind == engine.CALL_CUT
                deltas.append(Delta(_KINDS[kind], text, call, identity))
        return deltas

    def close(self):
        super().close()
        if self.reply:
            self.reply.close()
            self.reply = None
