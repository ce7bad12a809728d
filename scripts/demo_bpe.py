"""demo_bpe.py - byte-pair ranks in tiktoken's form: train, write, read, encode.

Pieces never cross a boundary of the pre-tokenisation pattern. Python's re knows no classes of
Unicode categories, so the pattern is built from the characters that a text really holds.
"""
import base64
import re
import unicodedata
from collections import Counter, defaultdict

WHITE = ("\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
         "\u200a\u2028\u2029\u202f\u205f\u3000")


def pattern(text):
    """The pre-tokenisation pattern, right for the characters of text. Han is not handled."""
    kinds = defaultdict(str)
    for c in sorted(set(text)):
        kind = unicodedata.category(c)
        upper = kind in ("Lu", "Lt", "Lm", "Lo") or kind[0] == "M"
        lower = kind in ("Ll", "Lm", "Lo") or kind[0] == "M"
        for name, inside in (("U", upper), ("D", lower), ("L", kind[0] == "L"),
                             ("N", kind[0] == "N")):
            if inside:
                kinds[name] += re.escape(c)
    up, down = (f"[{kinds[k]}]" if kinds[k] else "(?!)" for k in "UD")
    number = f"[{kinds['N']}]{{1,3}}" if kinds["N"] else "(?!)"
    known, white = kinds["L"] + kinds["N"], re.escape(WHITE)
    lead, short = f"[^\r\n{known}]?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    return re.compile("|".join([
        f"{lead}{up}*{down}+{short}", f"{lead}{up}+{down}*{short}", number,
        f" ?[^{white}{known}]+[\r\n]*", f"[{white}]*[\r\n]+", f"[{white}]+(?![^{white}])",
        f"[{white}]+"]))


def pieces(text):
    return pattern(text).findall(text)


def train(documents, n_ranks):
    """n_ranks byte strings: the 256 bytes, then the merges in order of frequency."""
    counts = Counter(p for d in documents for p in pieces(d))
    words = [[[bytes([b]) for b in p.encode("utf-8")], n] for p, n in sorted(counts.items())]
    pairs, holders = Counter(), defaultdict(set)
    for i, (w, n) in enumerate(words):
        for pair in zip(w, w[1:]):
            pairs[pair] += n
            holders[pair].add(i)
    ranks = [bytes([b]) for b in range(256)]
    known = set(ranks)
    while len(ranks) < n_ranks:
        best = max(pairs, key=lambda p: (pairs[p], p))
        joined = best[0] + best[1]
        if joined not in known:  # two pairs may spell the same token
            known.add(joined)
            ranks.append(joined)
        for i in holders.pop(best):
            w, n = words[i]
            for pair in zip(w, w[1:]):
                pairs[pair] -= n
            at = 0
            while at < len(w) - 1:
                if (w[at], w[at + 1]) == best:
                    w[at : at + 2] = [joined]
                at += 1
            for pair in zip(w, w[1:]):
                pairs[pair] += n
                holders[pair].add(i)
        del pairs[best]
    return ranks


def write(path, ranks):
    path.write_bytes(b"".join(base64.b64encode(r) + b" %d\n" % i for i, r in enumerate(ranks)))


def read(path):
    return [base64.b64decode(line.split()[0]) for line in path.read_bytes().splitlines()]


class Encoder:
    def __init__(self, ranks):
        self.ranks, self.ids, self.seen = ranks, {r: i for i, r in enumerate(ranks)}, {}

    def piece(self, raw):
        if raw in self.ids:
            return [self.ids[raw]]
        parts = [raw[i : i + 1] for i in range(len(raw))]
        while True:
            ranked = [(self.ids.get(a + b, len(self.ids)), i)
                      for i, (a, b) in enumerate(zip(parts, parts[1:]))]
            rank, i = min(ranked, default=(len(self.ids), 0))
            if rank == len(self.ids):
                return [self.ids[p] for p in parts]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]

    def encode(self, text):
        out = []
        for p in pieces(text):
            if p not in self.seen:
                self.seen[p] = self.piece(p.encode("utf-8"))
            out += self.seen[p]
        return out

    def decode(self, ids):
        return b"".join(self.ranks[i] for i in ids if i < len(self.ranks)).decode("utf-8",
                                                                                  "replace")
