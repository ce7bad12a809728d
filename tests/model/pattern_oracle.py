#!/usr/bin/env python3
"""The split pattern a second time, by hand and without a regular expression.

    pattern_oracle.py [--quick | --full] TOK_SPLIT

TOK_SPLIT is the program built from tok_split.c. Character classes come from Python's unicodedata
and a list of Han ranges, the rules from the pattern's description; where the splitter and this
script disagree, the text is printed and the exit status is 1. --full compares every code point in
seven contexts and 400,000 random strings built to be nasty (some minutes); --quick, the default,
every code point around which a class changes, and fewer strings. Code points that the two Unicode
versions see differently are left out.
"""

import argparse
import array
import random
import subprocess
import sys
import unicodedata

CHUNK, RUN = 400_000, 25_000
W, NL, L, N, H, U, D = (1 << i for i in range(7))

WHITE_SPACE = [(0x9, 0xD), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680),
               (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F),
               (0x3000, 0x3000)]

# Script=Han, with the Unicode version since when.
HAN = [(0x2E80, 0x2E99, 3.0), (0x2E9B, 0x2EF3, 3.0), (0x2F00, 0x2FD5, 3.0), (0x3005, 0x3005, 3.0),
       (0x3007, 0x3007, 3.0), (0x3021, 0x3029, 3.0), (0x3038, 0x303B, 3.2), (0x3400, 0x4DB5, 3.0),
       (0x4DB6, 0x4DBF, 13.0), (0x4E00, 0x9FA5, 3.0), (0x9FA6, 0x9FFC, 13.0),
       (0x9FFD, 0x9FFF, 14.0), (0xF900, 0xFA6D, 6.1), (0xFA70, 0xFAD9, 4.1),
       (0x16FE2, 0x16FE3, 14.0), (0x16FF0, 0x16FF1, 13.0), (0x16FF2, 0x16FF6, 17.0),
       (0x20000, 0x2A6D6, 3.1), (0x2A6D7, 0x2A6DD, 13.0), (0x2A6DE, 0x2A6DF, 14.0),
       (0x2A700, 0x2B734, 5.2), (0x2B735, 0x2B738, 14.0), (0x2B739, 0x2B739, 15.0),
       (0x2B73A, 0x2B73F, 17.0), (0x2B740, 0x2B81D, 6.0), (0x2B820, 0x2CEA1, 8.0),
       (0x2CEA2, 0x2CEAD, 17.0), (0x2CEB0, 0x2EBE0, 10.0), (0x2EBF0, 0x2EE5D, 15.1),
       (0x2F800, 0x2FA1D, 3.1), (0x30000, 0x3134A, 13.0), (0x31350, 0x323AF, 15.0),
       (0x323B0, 0x33479, 17.0)]

NUMBER = {"Nd", "Nl", "No"}
MARK_OR_UNCASED = {"Lm", "Lo", "Mn", "Mc", "Me"}


def classes(version):
    """The bits of every code point, as tables of the Unicode version give them."""
    bits = bytearray(0x110000)
    for first, last in WHITE_SPACE:
        for c in range(first, last + 1):
            bits[c] |= W
    for c in b"\r\n":
        bits[c] |= NL
    for first, last, since in HAN:
        for c in range(first, last + 1):
            if since <= version:
                bits[c] |= H
    for c in range(0x110000):
        category = unicodedata.category(chr(c))
        if category[0] == "L":
            bits[c] |= L
        elif category in NUMBER:
            bits[c] |= N
        if not bits[c] & H:
            if category in MARK_OR_UNCASED:
                bits[c] |= U | D
            elif category in ("Lu", "Lt"):
                bits[c] |= U
            elif category == "Ll":
                bits[c] |= D
    return bits


def run_of(b, p, mask):
    """The end of the longest run of characters with one of these bits."""
    while p < len(b) and b[p] & mask:
        p += 1
    return p


def word(b, p):
    """The end of a word that begins at p, perhaps with one other character; None if none does."""
    starts = [p + 1, p] if not b[p] & (NL | L | N) else [p]
    for start in starts:
        u = run_of(b, start, U)
        if u < len(b) and b[u] & D:
            return run_of(b, u, D)
        while u > start and not b[u - 1] & D:
            u -= 1
        if u > start:
            return u
    for start in starts:
        u = run_of(b, start, U)
        if u > start:
            return u
    return None


def contraction(text, p):
    """The end of 's, 't, 're, 've, 'm, 'll or 'd at p, if one is there."""
    if text[p:p + 1] == "'":
        rest = text[p + 1:p + 3].lower().replace("\u017f", "s")
        if rest[:1] in ("s", "t", "m", "d"):
            return p + 2
        if rest in ("re", "ve", "ll"):
            return p + 3
    return p


def piece_end(text, b, p):
    if b[p] & H:
        return run_of(b, p, H)
    end = word(b, p)
    if end is not None:
        return contraction(text, end)
    if b[p] & N:
        return min(run_of(b, p, N), p + 3)
    start = p + (text[p] == " ")
    end = start
    while end < len(b) and not b[end] & (W | L | N):
        end += 1
    if end > start:
        return run_of(b, end, NL)
    end = run_of(b, p, W)
    for last in range(end, p, -1):
        if b[last - 1] & NL:
            return last
    return end if end == len(b) or end == p + 1 else end - 1


def cuts(text):
    """The parts that are split by themselves: chunks, and long runs of one class broken."""
    for c in range(0, len(text), CHUNK):
        chunk = text[c:c + CHUNK]
        begin, run, space = 0, 0, None
        for i, character in enumerate(chunk):
            run = run + 1 if character.isspace() == space else 1
            space = character.isspace()
            if run > RUN:
                yield chunk[begin:i]
                begin, run = i, 1
        yield chunk[begin:]


def split(text, bits):
    """The pieces' lengths in bytes."""
    lengths = []
    for part in cuts(text) if len(text) > RUN else (text,):
        b = [bits[ord(c)] for c in part]
        p = 0
        while p < len(part):
            end = piece_end(part, b, p)
            lengths.append(len(part[p:end].encode()))
            p = end
    return lengths


def split_by_program(program, texts):
    blob = bytearray()
    for text in texts:
        encoded = text.encode()
        blob += len(encoded).to_bytes(4, sys.byteorder) + encoded
    done = subprocess.run([program], input=blob, stdout=subprocess.PIPE, check=True)
    numbers = array.array("I", done.stdout)
    at = 0
    for _ in texts:
        yield list(numbers[at + 1:at + 1 + numbers[at]])
        at += 1 + numbers[at]
    assert at == len(numbers)


def compare(program, texts, bits, shown):
    wrong = 0
    for text, got in zip(texts, split_by_program(program, texts)):
        want = split(text, bits)
        if got != want:
            wrong += 1
            if shown + wrong <= 20:
                points = " ".join(f"{ord(c):04x}" for c in text[:40])
                print(f"{text[:40]!a} ({points}): splitter {got[:40]}, oracle {want[:40]}")
    return wrong


def known(program, theirs, ours):
    """The code points, surrogates excluded, that both sides put into the same general category."""
    same = bytearray(0x110000)
    if theirs == ours:
        for c in range(0x110000):
            same[c] = unicodedata.category(chr(c)) != "Cs"
        return same
    listing = subprocess.run([program, "--categories"], stdout=subprocess.PIPE, check=True)
    for line in listing.stdout.decode().splitlines():
        category, first, last = line.split()
        for c in range(int(first, 16), int(last, 16) + 1):
            same[c] = category != "Cs" and unicodedata.category(chr(c)) == category
    return same


CONTEXTS = [
    lambda c: c,
    lambda c: "a" + c + "b",
    lambda c: "A" + c + "B" + c,
    lambda c: " " + c + " " + c + c,
    lambda c: "好" + c + "1" + c,
    lambda c: c + "\n" + c + "\r" + c + ".",
    lambda c: "Aa" + c + "'s" + c + "'" + c + "アB",
]

POOL = list("aAbBzZsStTdDmMlLrReEvV") + list("''’\" \t\r\n.,;!?()<|>_-/0123456789") + [
    " ", " ", "\n", "\r\n", "'", "'s", "'S", "'re", "'LL", "'ſ", "ſ", "K", "好", "的", "々", "〇", "〡",
    "。", "、", "「", "」", "⺀", "ア", "ー", "の", "한", "ไ", "ั", "क", "ि", "א", "ع", "é", "É", "ß", "ǅ",
    "ǆ", "ʰ", "ª", "\u0301", "\u20dd", "\u0903", "½", "²", "Ⅻ", "①", "٣", "๓", "×", "÷", "€",
    "🎉", "\U0001f468\u200d", "\u200b", "\u200d", "\ufe0f", "\x00", "\x1c", "\x85", "\xa0",
    "\u1680", "\u180e", "\u2009", "\u2028", "\u3000", "\ufeff", "\ufffd", "\U00016fe2",
    "\U00016ff0", "\U00020000", "\U0001d400", "\U0001d41a", "\U000e0100", "\U0010ffff"]


def nasty(rng):
    few = rng.sample(POOL, rng.randint(2, 9)) if rng.random() < 0.7 else POOL
    return "".join(rng.choice(few) for _ in range(rng.randint(1, 24)))


def long_texts():
    yield "a" * 25_001 + " " + "B" * 50_001
    yield "\x1c" * 20_000 + " " * 20_000 + "\x1f\x85\u3000" * 9_000
    yield "ア" * 25_000 + "BC'll"
    yield "é好" * 13_000 + "\u200b" * 25_001
    yield "".join("ab c" for _ in range(100_050))[:8_000] + "x" * 24_000 + "\n" * 30_000


def cases(full, usable, bits):
    if full:
        points = [c for c in range(0x110000) if usable[c]]
    else:
        points = [c for c in range(0x110000) if usable[c] and
                  (c < 0x250 or c % 1009 == 0 or bits[c] != bits[c - 1] or
                   bits[c] != bits[min(c + 1, 0x10FFFF)])]
    rng = random.Random(1)
    for context in CONTEXTS:
        for c in points:
            yield context(chr(c))
    for _ in range(400_000 if full else 20_000):
        text = nasty(rng)
        if all(usable[ord(c)] for c in text):
            yield text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a few seconds (the default)")
    size.add_argument("--full", action="store_true", help="every code point")
    parser.add_argument("program", metavar="TOK_SPLIT")
    args = parser.parse_args()

    theirs = subprocess.run([args.program, "--unicode"], stdout=subprocess.PIPE, check=True)
    theirs = float(".".join(theirs.stdout.decode().split(".")[:2]))
    ours = float(".".join(unicodedata.unidata_version.split(".")[:2]))
    usable = known(args.program, theirs, ours)
    bits = classes(min(theirs, ours))
    for first, last, since in HAN:
        for c in range(first, last + 1):
            usable[c] = usable[c] and since <= min(theirs, ours)

    n_wrong = compare(args.program, list(long_texts()), bits, 0)
    n_done, batch = 0, []
    for text in cases(args.full, usable, bits):
        batch.append(text)
        if len(batch) == 100_000:
            n_wrong += compare(args.program, batch, bits, n_wrong)
            n_done, batch = n_done + len(batch), []
    n_wrong += compare(args.program, batch, bits, n_wrong)
    n_done += len(batch)
    print(f"{n_done} texts, {sum(map(bool, usable))} code points, Unicode {theirs} and {ours}: "
          f"{n_wrong} differ")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
