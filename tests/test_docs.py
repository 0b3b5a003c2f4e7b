"""Every page: its links lead somewhere, and what it names exists: files, targets, code, options."""

from __future__ import annotations

import re
from functools import cache
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
#: An identifier, as code and pages write it.
_WORD = re.compile(r"[A-Za-z_]\w{2,}")
#: Files that readers are told to make, or that a tool writes where there is such a device.
TO_BE_MADE = {
    "backends/cuda/kernels/norm/row_energy.cu",
    "runtime/passes/elementwise/fuse_softsign.py",
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


#: In code, and what it runs: the names that pages may speak of.
_SOURCES = ("*.py", "*.cu", "*.cuh", "*.toml", "*.yml")
#: Pages that people write; results are a tool's.
WRITTEN = [page for page in PAGES if page != "docs/conformance.md"]
#: Names of other programs, of examples, and of what a user gives.
FOREIGN = {
    *("FORM", "Conv_0", "identifier", "state_in", "memory_out", "conformance_BACKEND"),
    *("cudnnConvolutionFwdAlgo_t", "IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "FFT_TILING"),
    *("WINOGRAD_NONFUSED", "BAD_PARAM", "eng44_", "_k13", "cudaMalloc", "evict_last"),
    *("setbufsize", "convnext_zepto_rms_ols", "telemetry", "session_options", "run_options"),
    *("prompt_templates", "_int8", "_uint8"),
}


@cache
def _vocabulary() -> frozenset[str]:
    """Every word of the project's sources, and the names of its files."""
    here = Path(__file__).resolve()
    files = [
        file
        for folder in ("tercet", "runtime", "importers", "backends", "tools", "tests", "examples")
        for pattern in _SOURCES
        for file in (ROOT / folder).rglob(pattern)
        if file != here
    ]
    files += [ROOT / "pyproject.toml", ROOT / "Makefile", *(ROOT / ".github").rglob("*.yml")]
    names = {word for file in (*files, *map(Path, PAGES)) for word in _WORD.findall(file.stem)}
    return frozenset(names.union(*(_WORD.findall(f.read_text(encoding="utf-8")) for f in files)))


@pytest.mark.parametrize("page", WRITTEN)
def test_names_are_those_of_the_code(page: str) -> None:
    """Renamed functions, options and variables are renamed in the text, too."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    named = {word for code in re.findall(r"`([^`\n]+)`", text) for word in _WORD.findall(code)}
    assert named <= _vocabulary() | FOREIGN


def test_foreign_names_are_needed() -> None:
    pages = " ".join((ROOT / page).read_text(encoding="utf-8") for page in WRITTEN)
    assert set(_WORD.findall(pages)) - _vocabulary() >= FOREIGN


@pytest.mark.parametrize("page", PAGES)
def test_tools_for_developers_have_the_options_that_pages_give(page: str) -> None:
    """The module is there, and one of the workshop's files declares the option."""
    lines = re.findall(
        r"python -m tercet\.tools\.workshop\.([\w.]+)((?: [^#`\n]*)?)",
        (ROOT / page).read_text(encoding="utf-8"),
    )
    workshop = ROOT / "tools" / "workshop"
    declared = set(re.findall(r'"(?:--)?([a-z][a-z-]*)"', _texts(workshop)))
    for name, rest in lines:
        place = workshop / Path(*name.split("."))
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), name
        assert set(re.findall(r"(?<!\S)--([a-z-]+)", rest)) <= declared, name


def _texts(folder: Path) -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.py")))


@pytest.mark.parametrize("folder", ["tests", "docs"])
def test_nothing_cites_a_table_that_is_not_here(folder: str) -> None:
    """A code such as a letter and two digits at the head of a text tells a reader nothing."""
    codes = re.compile(r'("""|\b[Rr]ows? )[A-H]\d{2}\b')
    files = [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).glob("*.md")]
    assert not [file.name for file in files if codes.search(file.read_text(encoding="utf-8"))]
