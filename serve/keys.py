"""Who may ask: bearer keys, compared in constant time."""

import hashlib
import hmac
import re


def read(path):
    """A key a line; blank lines and what begins with # mean nothing. Raises OSError, also if there
    is none. Bytes that are not UTF-8 are kept, as aiohttp keeps those of headers."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.strip() for line in file]
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise OSError("no key in it")
    return found


class Keys:
    def __init__(self, keys):
        self.digests = [_digest(k) for k in dict.fromkeys(keys)]

    def __bool__(self):
        return bool(self.digests)

    def find(self, headers):
        """The number of the key a request brings, or None. All are looked at, whichever fits."""
        given = headers.get("x-api-key", "")
        bearer = re.fullmatch(r"(?i:bearer) +(.*\S) *", headers.get("Authorization", ""))
        digest, found = _digest(bearer.group(1) if bearer else given), None
        for i, own in enumerate(self.digests):
            if hmac.compare_digest(own, digest):
                found = i
        return found

    def tag(self, number):
        """What a key's states are kept under: 32 characters that do not give it away."""
        return hashlib.sha256(b"tag" + self.digests[number]).hexdigest()[:32].encode()


def _digest(key):
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
