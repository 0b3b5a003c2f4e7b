r"""Make files with every producer that is installed, and write how they run, by producer.

    python -m tercet.tools.workshop.produced_page build/produced --output docs/results \
        --python jax=envs/jax/bin/python --python tensorflow=envs/tf/bin/python

The options are those of `produced`. With ``--made`` the files are there already. Producers that
are not made, or not installed, keep their rows of the page that is there.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...api import load
from ...runtime.errors import TercetError
from ...runtime.text import printable
from ..common.environment import environment
from ..common.markdown import head, table
from ..common.onnxruntime_errors import onnxruntime_errors
from ..common.results import write
from ..compare.compare import compare
from .arguments import RESULTS
from .arguments import parser as make_parser
from .produced import REPORT, add_options, make
from .producers_page import TARGET, inputs_of, unplanned

PAGE = "produced.md"
#: Of a reason on the page, in characters.
_LENGTH = 240
_TITLES = ("producer", "environment", "files", "right", "inconclusive", "wrong", "no reference",
           "refused", "cuda", "own errors", "tercet")  # fmt: skip
#: Runs every node of a file as it is.
REFERENCE = "onnxruntime:cpu:none"
_TEXT = """\
Written by `python -m tercet.tools.workshop.produced_page FOLDER --python NAME=PATH ... --output
docs/results`, which makes the files and tries them: the networks of converters, and what
optimizers, quantizers and converters of precision make of networks of tests/producers. Each
producer runs in the first environment that has it. *right*: `tercet compare` calls numpy's results
ok beside those of onnxruntime's CPU provider without graph optimisations; *inconclusive*: it
cannot tell which is right, for the reason below; *no reference*: only tercet runs the file;
*refused*: neither does, and tercet's error is a typed one. *cuda*: planned wholly for {target}
without a GPU. *own errors*: files that the producer could not make. *tercet*: the version that
tried them."""


@dataclass(slots=True)
class Tried:
    """What became of the files of one producer; names of files with the reason where there is one.

    Attributes:
        right: how many of them are.
        no_reference: how many onnxruntime does not run, but tercet does.
        refused: how many neither of them runs.
        planned: how many are planned wholly on cuda.
        wrong: results that differ, or files that only onnxruntime runs.
        inconclusive: results that may differ by rounding.
        unplanned: what is not planned on cuda.
    """

    right: int = 0
    no_reference: int = 0
    refused: int = 0
    planned: int = 0
    wrong: dict[str, str] = field(default_factory=dict[str, str])
    inconclusive: dict[str, str] = field(default_factory=dict[str, str])
    unplanned: dict[str, str] = field(default_factory=dict[str, str])


def files_of(folder: Path) -> list[Path]:
    """Return the files of a producer that have inputs; some producers leave others next to them."""
    return [path for path in sorted(folder.glob("*.onnx")) if path.with_suffix(".npz").exists()]


def tried(folder: Path) -> Tried:
    """Run and plan every file of a producer."""
    found = Tried()
    for path in files_of(folder):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _try(path, found)
    return found


def _try(path: Path, found: Tried) -> None:
    feeds = inputs_of(path)
    try:
        missing = "; ".join(unplanned(path))
    except TercetError as error:
        missing = _first(error)
    found.planned += not missing
    if missing:
        found.unplanned[path.stem] = missing
    runs = _runs_on_onnxruntime(path, feeds)
    try:
        if not runs:
            with load(path) as model:
                model.run(feeds)
            found.no_reference += 1
            return
        result = compare(path, (REFERENCE, "numpy"), feeds, repeat=0)
    except TercetError as error:
        if runs:
            found.wrong[path.stem] = _first(error)
        found.refused += not runs
        return
    if result.ok:
        found.right += 1
        return
    reasons = [each.reason for row in result.results for each in row.agreements if each.reason]
    kind = found.inconclusive if result.verdict == "inconclusive" else found.wrong
    kind[path.stem] = reasons[0]


def _first(error: TercetError) -> str:
    return printable(str(error).splitlines()[0])


def brief(why: str, folder: Path) -> str:
    """Return a reason with paths as they are in the folder, and each of its parts once."""
    prefix = rf"(?<![\w./-]){re.escape(str(folder))}/"
    parts = dict.fromkeys(re.sub(prefix, "", why).split("; "))
    return "; ".join(parts)[:_LENGTH]


def _runs_on_onnxruntime(path: Path, feeds: dict[str, Any]) -> bool:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        session.run(None, {name: np.asarray(x) for name, x in feeds.items()})
    except onnxruntime_errors():
        return False
    return True


@dataclass(slots=True)
class Section:
    """What the page says of one producer.

    Attributes:
        cells: its row of the table.
        notes: lines on files that are not right, or not planned.
    """

    cells: tuple[str, ...]
    notes: list[str] = field(default_factory=list[str])


def _section(name: str, entry: Mapping[str, Any], folder: Path, version: str) -> Section:
    """Try the files of one producer, or say why there are none."""
    if entry["skipped"]:
        return Section((name, "", entry["skipped"], *("",) * (len(_TITLES) - 3)))
    found = tried(folder / name)
    packages = ", ".join(" ".join(pair) for pair in entry["versions"].items())
    counts = (len(files_of(folder / name)), found.right, len(found.inconclusive), len(found.wrong),
              found.no_reference, found.refused, found.planned, len(entry["failed"]))  # fmt: skip
    where = entry.get("environment", "")
    notes = [
        f"- {name}, {file}, {kind}: {brief(why, folder)}"
        for kind in ("wrong", "inconclusive", "unplanned")
        for file, why in getattr(found, kind).items()
    ]
    return Section((f"{name} ({packages})", where, *map(str, counts), version), notes)


def sections(text: str) -> dict[str, Section]:
    """Return what a page says, by producer; rows without a version are of unknown ones."""
    found: dict[str, Section] = {}
    for line in text.splitlines():
        if row := re.match(r"\| (?!producer |---)(\S+) ", line):
            cells = [x.replace("\\|", "|") for x in re.split(r" (?<!\\)\| ", line[2:-2])]
            found[row[1]] = Section((*cells, *("unknown",) * (len(_TITLES) - len(cells))))
        elif (note := re.match(r"- (\S+?), ", line)) and note[1] in found:
            found[note[1]].notes.append(line)
    return found


def page(folder: Path, earlier: str = "", version: str = "") -> Iterator[str]:
    """Yield the lines of the page on a folder that `produced` filled.

    Args:
        folder: the folder.
        earlier: a page whose rows stay where the folder has no files of a producer.
        version: of tercet, as new rows say.
    """
    known: Mapping[str, Any] = json.loads((folder / REPORT).read_text("utf-8"))
    found = sections(earlier)
    for name, entry in known.items():
        if not entry["skipped"] or name not in found:
            found[name] = _section(name, entry, folder, version)
    yield from head("Files made by producers that are installed", _TEXT.format(target=TARGET))
    ordered = [found[name] for name in sorted(found)]
    yield from (*table(_TITLES, [each.cells for each in ordered]), "")
    yield from (note for each in ordered for note in each.notes)


def main() -> None:
    """Make and try every file, and write the page."""
    parser = make_parser("produced_page", __doc__, RESULTS)
    add_options(parser)
    parser.add_argument("--made", action="store_true", help="try the files of an earlier run")
    given = parser.parse_args()
    if not given.made:
        make(given)
    there = given.output / PAGE
    earlier = there.read_text("utf-8") if there.exists() else ""
    version = environment((), given.commit)["tercet"]
    write(given.output, {PAGE: "\n".join(page(given.folder, earlier, version)) + "\n"})


if __name__ == "__main__":
    main()
