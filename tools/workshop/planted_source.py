r"""Errors planted in the source of importers, operators and passes: what the tools say of them.

    python -m tercet.tools.workshop.planted_source --where importers --samples FILE \
        --seed 1 --seconds 600
    python -m tercet.tools.workshop.planted_source --where passes --samples FILE \
        --seed 1 --only 17

An error is one small change of a line that a sample runs: another number, comparison, operator or
branch, two arguments swapped, an element left out. It is planted in a process of its own, where
functions get other code. Samples that run the line are loaded and run there. If a result differs,
`compare` must not call it right, `compare --layers` must name the node that computes it, and
`bisect` the pass: what none of them sees is printed. Samples are ONNX's operator test cases, also
as files of older opsets (importers, operators), and motifs of the random graphs (passes).
"""

from __future__ import annotations

import argparse
import os
import pickle
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from ...api import load
from ...runtime.errors import TercetError
from ...runtime.ir.types import Array
from ..bisect.bisection import bisect
from ..common.console import open_console
from ..common.nested import flat
from ..compare.compare import compare
from ..compare.layers import compare_layers
from ..conformance.suite import all_cases
from ..export.export import export
from .fuzz.graphs import EVERYTHING, MOTIFS_OF_ALL_KINDS, motif_model
from .fuzz.numbering import add_numbering, numbers_of, until
from .source_errors import ROOT, Error, Line, error_at

#: Folders that are changed, by what `--where` names.
PLACES = {
    "importers": ("importers/onnx/upgrading", "importers/onnx/contrib", "importers/onnx/reading"),
    "operators": ("runtime/ops", "backends/numpy/ops"),
    "passes": ("runtime/passes",),
}
#: What becomes of an error: none is a result of its own only if no sample shows it.
FOUND, FOOLED, UNSEEN, REFUSED = "found", "FOOLED", "without effect", "refused"
_OPSETS = (7, 9, 11, 13, 17)
#: Test cases of an operator, samples that an error is tried on, and seconds for one.
_CASES, _SAMPLES, _SECONDS = 3, 12, 60
#: What is more than rounding, as a share of the largest element.
_FAR = 1e-3


# ── samples ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Sample:
    """A model that runs some lines.

    Attributes:
        name: what it is called.
        proto: the serialized model.
        feeds: its inputs.
        results: its outputs without rewrites and errors.
        lines: files and lines that run while it is loaded and run.
    """

    name: str
    proto: bytes
    feeds: Mapping[str, Any]
    results: Mapping[str, Array]
    lines: frozenset[Line]


def samples_of(where: str) -> Iterator[Sample]:
    """Yield what runs the lines of a place; see `PLACES`."""
    folders = tuple(str(ROOT / folder) for folder in PLACES[where])
    models = _motifs() if where == "passes" else _operators()
    for name, proto, feeds in models:
        lines: set[Line] = set()
        try:
            with _noted(folders, lines):
                results = _run(proto, feeds, rewritten=where == "passes")
        except (TercetError, ValueError):
            continue
        yield Sample(name, proto.SerializeToString(), feeds, results, frozenset(lines))


def _operators() -> Iterator[tuple[str, ModelProto, Mapping[str, Any]]]:
    cases = sorted((c for c in all_cases() if c.category == "node"), key=lambda c: c.operator)
    for operator, some in groupby(cases, key=lambda c: c.operator):
        dice = Random(operator)
        several = list(some)
        for case in dice.sample(several, min(_CASES, len(several))):
            proto, data = case.content.read()
            names = [value.name for value in proto.graph.input]
            feeds = dict(zip(names, data[0][0], strict=False))
            yield case.name, proto, feeds
            opset = dice.choice(_OPSETS)
            with suppress(TercetError):
                older = export(proto, opset=opset, optimise=False).proto
                yield f"{case.name}, opset {opset}", older, feeds


def _motifs() -> Iterator[tuple[str, ModelProto, Mapping[str, Any]]]:
    for name, maker in (MOTIFS_OF_ALL_KINDS | EVERYTHING).items():
        for number in range(4 if name in MOTIFS_OF_ALL_KINDS else 1):
            with suppress(ValueError):
                yield f"{name} {number}", *motif_model(Random(f"{name} {number}"), maker)


def _run(proto: ModelProto, feeds: Mapping[str, Any], *, rewritten: bool) -> dict[str, Array]:
    if rewritten:
        with load(proto) as model:
            model.run(feeds)
    with load(proto, stop_at=0) as model:
        if not all(node.op.deterministic for node in model.imported.walk()):
            raise ValueError("results are random")
        return flat(model.run(feeds))


class _noted:
    """Notes the lines of some folders that run."""

    def __init__(self, folders: tuple[str, ...], lines: set[Line]) -> None:
        self._folders, self._lines = folders, lines

    def __enter__(self) -> None:
        sys.settrace(self._called)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, _: object) -> Any:
        return self._note if frame.f_code.co_filename.startswith(self._folders) else None

    def _note(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self._lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._note


# ── what is said of them ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Said:
    """What became of an error.

    Attributes:
        kind: `FOUND`, `FOOLED`, `UNSEEN` or `REFUSED`.
        error: the error.
        sample: that shows it.
        lines: what the tools say.
    """

    kind: str
    error: str
    sample: str = ""
    lines: tuple[str, ...] = ()


def said_of(error: Error, samples: Sequence[Sample], *, is_pass: bool) -> Said:
    """Plant an error in this process and ask the tools about the first sample that shows it."""
    error.plant()
    refused = False
    for sample in samples:
        proto = onnx.load_from_string(sample.proto)
        try:
            with load(proto, stop_at=None if is_pass else 0) as model:
                found = flat(model.run(sample.feeds))
                names = {rewrite.name for rewrite in model.rewrites}
        except Exception:  # what is planted may raise anything; samples that ran still count
            refused = True
            continue
        if not _differ(sample.results, found):
            continue
        lines = _of_pass(error, sample, proto, names) if is_pass else _of_node(sample, proto)
        return Said(FOOLED if lines else FOUND, str(error), sample.name, tuple(lines))
    return Said(REFUSED if refused else UNSEEN, str(error))


def _differ(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    """Whether results differ by more than rounding; an error might mislead a judge."""
    if a.keys() != b.keys():
        return True
    for x, y in ((np.asarray(a[name]), np.asarray(b[name])) for name in a):
        if x.shape != y.shape or x.dtype != y.dtype:
            return True
        if x.dtype.kind not in "fcV":
            if not np.array_equal(x, y):
                return True
            continue
        x, y = (each.astype(np.complex128) for each in (x, y))
        known = np.isfinite(x)
        far = np.abs(x[known] - y[known]).max(initial=0) if known.any() else 0.0
        if (known != np.isfinite(y)).any() or far > _FAR * np.abs(x[known]).max(initial=0):
            return True
    return False


def _of_node(sample: Sample, proto: ModelProto) -> list[str]:
    """Return how `compare` is fooled by an importer or operator."""
    pair = ["onnxruntime", "numpy"]
    whole = _word(lambda: compare(proto, pair, sample.feeds, repeat=0, stop_at=0).verdict)

    def by_layers() -> str:
        found = compare_layers(proto, pair, sample.feeds, optimise=False)
        return "" if found.unread else found.verdict  # which says what it has not compared

    said = {"compare": whole, "compare --layers": _word(by_layers)}
    return [f"{tool}: {word}" for tool, word in said.items() if word in ("ok", "inconclusive")]


def _of_pass(error: Error, sample: Sample, proto: ModelProto, names: set[str]) -> list[str]:
    """Return how the tools are fooled by a pass."""
    pair, module = ["onnxruntime", "numpy"], Path(error.file).stem
    whole = _word(lambda: compare(proto, pair, sample.feeds, repeat=0).verdict)
    layers = _word(lambda: compare_layers(proto, pair, sample.feeds).verdict)
    said = {"compare": whole, "compare --layers": layers}
    lines = [f"{tool}: {word}" for tool, word in said.items() if word == "ok"]

    def named() -> str:
        found = bisect(proto, ["numpy"], sample.feeds, reduce=False)
        wrong = found.rewrite is None or (module in names and found.rewrite.name != module)
        return f"bisect: {found.rewrite or found.fault}" if wrong else ""

    return [*lines, *filter(None, [_word(named)])]


def _word(ask: Callable[[], str]) -> str:
    """Return what a tool says; nothing where it ends in an error of tercet, which says enough."""
    try:
        return ask()
    except TercetError:
        return ""


def _try(error: Error, samples: Sequence[Sample], is_pass: bool, connection: Connection) -> None:
    os.setsid()  # what it starts ends with it
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with np.errstate(all="ignore"):
        try:
            connection.send(said_of(error, samples, is_pass=is_pass))
        except Exception as caught:  # whatever a tool lets through unnamed has fooled it
            connection.send(Said(FOOLED, str(error), "", (f"{type(caught).__name__}: {caught}",)))


def tried(error: Error, samples: Sequence[Sample], *, is_pass: bool) -> Said:
    """Plant an error in a process of its own; see `said_of`."""
    ours, theirs = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=_try, args=(error, samples, is_pass, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(_SECONDS) else Said(REFUSED, str(error), "", ("too long",))
    except EOFError:
        return Said(REFUSED, str(error), "", ("the process ended",))
    finally:
        assert process.pid
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


def _collect(where: str, file: Path) -> None:
    warnings.simplefilter("ignore")
    file.write_bytes(pickle.dumps(list(samples_of(where))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 where no tool was fooled, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--where", choices=list(PLACES), default="passes", help="what is changed")
    parser.add_argument("--samples", type=Path, required=True, help="file of samples; made if new")
    add_numbering(parser, "errors", 100, "the number of one error")
    given = parser.parse_args(arguments)
    if not given.samples.exists():  # nothing runs in this process, so that caches are empty
        maker = get_context("spawn").Process(target=_collect, args=(given.where, given.samples))
        maker.start()
        maker.join()
    samples: list[Sample] = pickle.loads(given.samples.read_bytes())
    console, counted = open_console(), Counter[str]()
    lines = sorted(set[Line]().union(*(sample.lines for sample in samples)))
    for number in until(given.seconds, numbers_of(given)):
        dice = Random(f"{given.seed} {number}")
        error = error_at(lines, dice)
        if error is None:
            continue
        able = [sample for sample in samples if (error.file, error.line) in sample.lines]
        some = dice.sample(able, min(_SAMPLES, len(able)))
        said = tried(error, some, is_pass=given.where == "passes")
        counted[said.kind] += 1
        if said.lines:
            text = f"{number}: {said.kind}: {said.error}; {said.sample}; {'; '.join(said.lines)}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(", ".join(f"{count} {kind}" for kind, count in counted.items()))
    return int(counted[FOOLED] > 0)


if __name__ == "__main__":
    sys.exit(main())
