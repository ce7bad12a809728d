"""Grammars are compiled beside the engine's thread, which would stop for everybody meanwhile: by one
thread, for the jobs that wait, in their order, and ahead of the slots only as far as memory allows.

Jobs with the same grammar share one, and it is found again as long as a job or a slot has it: the
alternatives of an answer, and the next turn of a conversation with tools, compile nothing.
"""

import threading
import weakref

AHEAD = 64 << 20  # bytes of grammars that wait for a slot; the one that exceeds it is the last


class Compiler:
    """The thread. compiled(text, kind) makes a grammar, or raises; take() waits for a job that wants
    one, and is None at the end; give(job, grammar, error) is told what became of it."""

    def __init__(self, compiled, take, give):
        self.compiled, self.take, self.give = compiled, take, give
        self.known = weakref.WeakValueDictionary()
        self.thread = threading.Thread(target=self._run, name="grammars", daemon=True)

    def start(self):
        self.thread.start()

    def _run(self):
        while job := self.take():
            self._make(job)
            del job  # its text, too, goes once it is over, however long nothing comes

    def _make(self, job):
        grammar = error = None
        try:
            grammar = self.known.get(job.wants)
            if not grammar:
                grammar = self.known[job.wants] = self.compiled(*job.wants)
        except Exception as e:  # pylint: disable=broad-except  # whatever it was, the job is told
            error = e
        self.give(job, grammar, error)


def waiting_bytes(jobs):
    """Of the grammars that these have, each counted once."""
    return sum(g.n_bytes for g in {id(j.grammar): j.grammar for j in jobs if j.grammar}.values())
