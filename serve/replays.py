"""Idempotency-Key: who asks for the same thing again gets the same answer, also one in the making.

Clients repeat a request by themselves after a broken connection or a gateway's time-out. An answer
may take an hour; it is not computed twice.
"""

import hashlib
import time

from serve.errors import ApiError, invalid

MOST, SECONDS, GRACE, KEY_BYTES = 64, 600.0, 60.0, 256


class Replays:
    def __init__(self):
        self.found = {}  # (whose, key): (fingerprint, exchange, when)

    @staticmethod
    def name(request):
        """What a request is called, whose body is still here; None: it has no such key."""
        key = request.http.headers.get("Idempotency-Key")
        if key is not None and not 0 < len(key) <= KEY_BYTES:
            raise invalid("Idempotency-Key", f"Idempotency-Key has 1 to {KEY_BYTES} characters")
        if key is None:
            return None
        if not request.fingerprint:
            request.fingerprint = _fingerprint(request)
        return request.key, key

    def get(self, name, request):
        """The exchange of an earlier request, or None."""
        self._sweep()
        if name not in self.found:
            return None
        fingerprint, exchange, _ = self.found[name]
        if fingerprint != request.fingerprint:
            raise ApiError(400, "this Idempotency-Key was used for another request",
                           "Idempotency-Key", "idempotency_key_reused")
        return exchange

    def put(self, name, request, exchange):
        self.found[name] = (request.fingerprint, exchange, time.monotonic())

    def _sweep(self):
        """Without failures, what is old, and the oldest of too many; never what is being made."""
        now = time.monotonic()
        for name, (_, exchange, when) in list(self.found.items()):
            old = exchange.over and (now - when > SECONDS or len(self.found) > MOST)
            if exchange.error or old:
                del self.found[name]


def _fingerprint(request):
    return hashlib.sha256(request.path.encode() + b"\0" + request.body).digest()
