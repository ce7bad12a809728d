"""Prefix reuse: which session a request gets, where its prompt is cut to keep a state, and whose
states it may find. docs/STATE.md says what a state is. Engine's thread only."""

import ctypes

from serve import engine

NEAR = 8  # positions: a state so close behind a kept one is not worth a pass of its own


class Prefixes:
    """The store of a context, and what of it stands in its sessions."""

    def __init__(self, ctx, directory, directory_bytes, every, log):
        self.store = engine.Store(ctx, directory, directory_bytes, every)
        self.log = log
        self.failed = 0  # states that could not be kept

    def choose(self, slots, job):
        """The free slot that has most of the prompt; else the one whose loss costs least. Images
        are found by their names, once the job has them."""
        ids = job.named or job.ids

        def gain(slot):
            own = slot.tag == job.tag
            return self.store.find(slot.session, ids, job.tag) if own else 0

        return max(slots, key=lambda s: (gain(s), -s.session.pos, -s.used))

    def resume(self, slot, job):
        """Bring the slot's session to the longest kept beginning of the prompt; how long it is."""
        if slot.tag != job.tag:
            slot.session.reset()
        slot.tag = job.tag
        return self.store.resume(slot.session, job.ids, job.tag)

    def next_place(self, job):
        """Where the next passes of this prompt are to end."""
        n, to = len(job.ids), job.at
        while True:
            to = self.store.cut(to, job.ends, n)
            if to >= n or to - job.kept_at >= NEAR:
                break
        if job.forks and job.at < n - 1 < to:
            return n - 1
        return to

    def keep(self, slot, job):
        """Keep what the session has now. That it cannot be is no reason to fail a request."""
        try:
            self.store.keep(slot.session, job.tag, slot.session.pos == job.system_end)
            job.kept_at = slot.session.pos
        except engine.Failure as e:
            if e.status == engine.E_IO:
                self.failed += 1
                self.log.warning("state_not_kept", extra={"why": str(e)})

    def close(self):
        self.store.close()


def ends_array(ends):
    return (ctypes.c_size_t * len(ends))(*ends)
