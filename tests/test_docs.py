"""Every page: its links lead somewhere, and the files and make targets that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tercet.runtime.passes import STATIC_PASSES, SYMBOLIC_PASSES

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (ROOT, ROOT / ".github", ROOT / "docs")
    for path in folder.glob("*.md")
)
#: Targets of links, those of pictures among them; not `[x](https://…)`.
_LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([\w-]+))?\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
#: `folder/file.py`, as text names the files of the project; ... and * stand for any.
_FILE = re.compile(
    r"`((?:runtime|importers|backends|tools|tercet|tests|docs|examples|\.github)/[\w./-]+?)`"
)
#: Files that readers are told to make, or that a tool writes where there is such a device.
TO_BE_MADE = {
    "backends/cuda/kernels/norm/row_energy.cu",
    "runtime/passes/fuse_softsign.py",
}


def test_there_are_pages() -> None:
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    here = ROOT / page
    for path, anchor in _LINK.findall(here.read_text(encoding="utf-8")):
        target = (here.parent / path).resolve() if path else here
        if target.relative_to(ROOT).as_posix() in TO_BE_MADE:
            continue
        assert target.exists(), path
        if anchor:
            headings = _HEADING.findall(target.read_text(encoding="utf-8"))
            assert anchor in {_anchor(heading) for heading in headings}, f"{path}#{anchor}"


def _anchor(heading: str) -> str:
    """The name that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    named = set(_FILE.findall((ROOT / page).read_text(encoding="utf-8"))) - TO_BE_MADE
    assert not {path for path in named if not (ROOT / path).exists()}


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`| {4})make ([a-z][a-z-]+)", text))
    assert named <= targets


def test_passes_are_listed_in_their_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index("| pass | what it does |") :].partition("\n\n")[0]
    passes = dict.fromkeys(each.name for each in (*SYMBOLIC_PASSES, *STATIC_PASSES))
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [*passes]


@pytest.mark.parametrize("folder", ["tests", "docs"])
def test_nothing_cites_a_table_that_is_not_here(folder: str) -> None:
    """A code such as a letter and two digits at the head of a text tells a reader nothing."""
    codes = re.compile(r'("""|\b[Rr]ows? )[A-H]\d{2}\b')
    files = [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).glob("*.md")]
    assert not [file.name for file in files if codes.search(file.read_text(encoding="utf-8"))]
