"""The documents hold together: links and anchors lead somewhere, paths exist, the index is whole,
lines are short enough to read in a terminal."""
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md"),
                *ROOT.glob("*/*/README.md")])
DOCS = ROOT / "docs"

# In backticks and with a slash, but not of this tree: of the system, of releases, of examples.
FOREIGN = re.compile(r"/|build/|PREFIX/|(?:waste-bench/1|tokens/s|MB/token|text/event-stream"
                     r"|text/heldout\.txt)$")


def named(page):
    return str(page.relative_to(ROOT)).replace("/", "_")


def anchors(page):
    """As the usual hosts make them of headings."""
    out = set()
    text = re.sub(r"^(```|~~~)[\s\S]*?^\1", "", page.read_text(), flags=re.M)
    for title in re.findall(r"^#+ (.*)$", text, re.M):
        title = re.sub(r"`|\[|\]\([^)]*\)|\*", "", title).strip().lower()
        out.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return out


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_and_anchors_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?:|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_paths_in_backticks_exist(page):
    for text in set(re.findall(r"`([\w./*{}-]+/[\w./*{}-]+)`", page.read_text())):
        if FOREIGN.match(text) or re.search(r"NAME|FAMILY", text):
            continue
        places = [base / text for base in (ROOT, page.parent, ROOT / "tests")]
        globbed = any(list(base.glob(text)) for base in (ROOT, page.parent, ROOT / "tests")) \
            if "*" in text else False
        assert globbed or any(p.exists() for p in places), f"{page.name}: `{text}`"


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent == DOCS], ids=named)
def test_c_files_in_backticks_exist(page):
    """Also those named without their folder: file names are unique in the tree."""
    names = {p.name for p in ROOT.rglob("*.[ch]")} | {p.name for p in ROOT.rglob("*.py")}
    text = page.read_text()
    for name in set(re.findall(r"`([a-z]\w*\.(?:[ch]|py))`", text)):
        assert name in names or name in ("hello.c", "two.c"), f"{page.name}: `{name}`"


def test_the_index_has_every_page_and_no_other():
    listed = set(re.findall(r"\]\(([\w.-]+\.md)\)", (DOCS / "README.md").read_text()))
    assert listed == {p.name for p in DOCS.glob("*.md")} - {"README.md"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_prose_is_wrapped(page):
    """Tables and what is printed cannot be."""
    for number, line in enumerate(page.read_text().split("\n"), 1):
        if not line.startswith(("|", "    ")):
            shown = re.sub(r"\]\([^)]*\)|https?:\S+", "", line)
            assert len(shown) <= 150, f"{page.name}:{number}: {len(shown)} characters"
