"""Answers that are told as a list of blocks, one after the other: text, reasoning, calls. What
Anthropic's messages and OpenAI's responses have in common."""

import dataclasses
import time

from serve.openai import identifier
from serve.reading import ARGUMENTS, CALL, CALL_CUT, CONTENT, REASONING


@dataclasses.dataclass
class Block:
    kind: str  # reading.CONTENT, REASONING or CALL
    index: int
    id: str
    name: str = ""   # of a call, with call_id
    call_id: str = ""
    text: str = ""   # or arguments
    whole: bool = True  # False: a call that was cut, which must not be carried out


class BlockAnswer:
    """Subclasses say what opening, adding to and closing a block is in their words."""

    prefix = None

    def __init__(self, model, options, n_prompt, effort=""):
        self.id, self.created, self.model = identifier(self.prefix), int(time.time()), model
        self.options, self.n_prompt, self.effort = options, n_prompt, effort
        self.blocks, self.open_block = [], None
        self.ended = [None]

    def more(self, _index, d):
        out, block = [], self.open_block
        if d.kind == ARGUMENTS:
            return self._add(d.text)
        if d.kind not in (CONTENT, REASONING, CALL):
            block.whole = d.kind != CALL_CUT
            return self._close()
        if not block or block.kind != d.kind or d.kind == CALL:
            out += self._close() + self._open(d)
        if d.kind != CALL:
            out += self._add(d.text)
        return out

    def _open(self, d):
        prefix = {CONTENT: "msg_", REASONING: "rs_", CALL: "fc_"}[d.kind]
        block = Block(d.kind, len(self.blocks), identifier(prefix))
        if d.kind == CALL:
            block.name, block.call_id, block.whole = d.text, d.id, False
        self.blocks.append(block)
        self.open_block = block
        return self.opened(block)

    def _add(self, text):
        self.open_block.text += text
        return self.added(self.open_block, text)

    def _close(self):
        block, self.open_block = self.open_block, None
        return self.closed(block) if block else []

    def end(self, _index, ended):
        self.ended = [ended]
        return self._close() + self.finished(ended)

    def done(self):
        return []

    def progress(self, _fed):
        return []

    def queued(self, _position):
        return []
