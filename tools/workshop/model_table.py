"""Compare a backend with the expected outputs of a folder of models.

    python -m tercet.tools.workshop.model_table FOLDER
    python -m tercet.tools.workshop.model_table FOLDER --backend cuda --output docs/results
    python -m tercet.tools.workshop.model_table FOLDER --backend cuda --precision float16

Each model has its own folder with ``model.onnx``, and pairs of ``inputs.npz`` and
``expected_ort.npz``, and of ``real_inputs.npz`` and ``real_expected_ort.npz``: what onnxruntime
computes without graph optimisation. The folder's INDEX.tsv says about every model how far
onnxruntime is from itself once it optimises the graph (column ``ort``: "maxdiff" for the first
pair, "diff" for the second). The largest error allowed is a multiple of that, never less than what
another order of summation makes:

- floats: 4 times that figure, or 64 units in the last place of the largest element;
- half floats: twice the distance between the model and the float32 model that it was made of, for
  two that round in different places may each be that far from it;
- quantized models: one step of 8 bits over the output's range. Numbers next to a tie fall to either
  side of it, and what follows may be farther off: then `compare` runs the model in float64 with the
  decisions of the backend, and with those of onnxruntime, and both must be right by their own;
- integers and strings: that figure, which is mostly 0.

In half precision (``--precision float16`` or ``bfloat16``) the numpy backend runs the same model in
the same precision, next to it. What it is off by is what the format costs. 4 times that is allowed,
because other kernels draw other rounding errors, or what float32 may be off by where that is more.
Its errors may happen to cancel, in an output of two elements for example; so the cost is never less
than one rounding to that format: half a unit in the last place of the largest element.
Quantized models are left out; one whose numbers overflow on numpy, too, cannot be had in it.

Results are printed and written model by model; those of earlier calls stay in the files if they are
of the same commit and the same machine.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from ml_dtypes import finfo

from ...api import load
from ...backends import open_backends
from ...runtime.errors import InputError, TercetError, UsageError, did_you_mean
from ...runtime.ir.dtypes import bfloat16, float16
from ...runtime.ir.types import Array
from ...runtime.options import Options, Precision
from ...runtime.session.model import Model
from ..common.console import open_console, print_table, progress
from ..common.environment import device_environment
from ..common.markdown import head, table
from ..common.results import earlier, to_json, write
from ..compare.compare import compare
from .arguments import parser as make_parser

#: Files of inputs, files of outputs, and the figure in INDEX.tsv that belongs to them.
SETS = (("inputs", "expected_ort", "maxdiff"), ("real_inputs", "real_expected_ort", "diff"))

#: Models with a step that other orders of summation change by more than that: units in the last
#: place of the largest element. The logarithm of a short-time spectrum, here, whose bins are 2e-6
#: where terms of 1 cancel. Four random orders of that sum of 256 put the outputs off by up to 1e-2.
CANCELLING = {"silero-vad-v3-transformer": 4096}

#: Models whose input is resized in bytes, for which onnxruntime has weights of 10 bits: that puts
#: up to 5 % of the resized pixels a step off, and the network sharpens a step to the number here.
RESIZED = {"cut-superres-prepost-op16": 5.0}
#: Share of their outputs that may be beyond the usual limit.
SHARE = 0.03


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One output of one model for one set of inputs.

    Attributes:
        model: its folder.
        inputs: the file of inputs, without its suffix.
        output: the tensor.
        error: maximum absolute difference from what is expected.
        limit: largest difference that is allowed.
        problem: what else is wrong; empty if nothing is.
        decided: whether it is right given what it has decided next to ties, however far it is off.
    """

    model: str
    inputs: str
    output: str
    error: float
    limit: float
    problem: str = ""
    decided: bool = False

    @property
    def ok(self) -> bool:
        """Whether the output is as expected."""
        return not self.problem and (self.decided or self.error <= self.limit)

    def __str__(self) -> str:
        what = self.problem or f"off by {self.error:.2g}, {self.limit:.2g} is allowed"
        return f"{self.model}: {self.inputs}: '{self.output}' {what}"


def read_index(folder: Path) -> dict[str, dict[str, str]]:
    """Return the rows of INDEX.tsv by the model's name.

    Raises:
        InputError: the folder has no such file.
    """
    try:
        with (folder / "INDEX.tsv").open(newline="", encoding="utf-8") as file:
            return {row["name"]: row for row in csv.DictReader(file, delimiter="\t")}
    except OSError as error:
        raise InputError(f"{folder} is not a folder of models: {error}") from error


def check(
    folder: Path,
    about: Mapping[str, str],
    model: Model,
    rounded: Model | None = None,
    decisions: Callable[[Mapping[str, Array]], Mapping[str, str]] | None = None,
) -> Iterator[OutputRow]:
    """Run a model on its inputs and compare every output.

    Args:
        folder: the model's own.
        about: its row of INDEX.tsv.
        model: loaded from there.
        rounded: the numpy backend in the same half precision, which says what that costs.
        decisions: returns why outputs for some inputs are wrong by their own decisions, by name;
            empty where they are right. Asked of a quantized model that is beyond its limit.
    """
    for inputs, outputs, column in SETS:
        if not (folder / f"{inputs}.npz").exists():
            continue
        feeds = dict(np.load(folder / f"{inputs}.npz"))
        found = model.run(feeds)
        expected = dict(np.load(folder / f"{outputs}.npz"))
        if list(found) != list(expected):
            names = f"{', '.join(found)} instead of {', '.join(expected)}"
            yield OutputRow(folder.name, inputs, "", 0, 0, f"the outputs are {names}")
            continue
        cost = rounded.run(feeds) if rounded else {}
        by_decisions: Mapping[str, str] | None = None
        for name, want in expected.items():
            limit = allowed(about, column, want)
            if name in cost and want.dtype.kind in "fiu":
                own = _distance(cost[name], want)
                if not np.isfinite(own):
                    problem = f"has numbers beyond {model.precision}, on numpy, too"
                    yield OutputRow(folder.name, inputs, name, 0, limit, problem)
                    continue
                limit = max(limit, 4 * max(own, one_rounding(want, model.precision)))
            row = _compare(folder.name, inputs, name, (found[name], want), limit)
            if decisions and not row.problem and not row.ok and "quantized" in about["features"]:
                by_decisions = decisions(feeds) if by_decisions is None else by_decisions
                problem = by_decisions.get(name, "is no output of both runners")
                row = replace(row, problem=problem, decided=not problem)
            yield row


def by_decisions(
    file: Path, backend: str, fallback: str | None, feeds: Mapping[str, Array]
) -> dict[str, str]:
    """Return what is wrong with outputs of a quantized model by its own decisions; see `check`."""
    runners = ["onnxruntime:cpu:none", backend]
    found = compare(file, runners, feeds, fallback=fallback, repeat=0)[backend]
    return {
        each.output: "" if each.ok else f"{each.verdict}: {each.reason}"
        for each in found.agreements
    }


def _figure(about: Mapping[str, str], name: str) -> float:
    found = re.search(rf"\b{name} ([\d.e+-]+)", about["ort"])
    return float(found[1]) if found else 0.0


def allowed(about: Mapping[str, str], column: str, expected: Array) -> float:
    """Return the largest error that an output may have; see the module."""
    itself = _figure(about, column)
    if expected.dtype.kind not in "f":
        return itself
    if "quantized" in about["features"]:
        return float(np.ptp(expected)) / 255
    if expected.dtype == np.float16:
        return 2 * _figure(about, "max abs diff")
    units = CANCELLING.get(about["name"], 64)
    return max(4 * itself, units * 2.0**-23 * float(np.abs(expected).max(initial=0)))


def one_rounding(expected: Array, precision: str) -> float:
    """Return half a unit in the last place of the largest element in a half precision.

    0 for integers, which have no last place, and where there is nothing but zeros.
    """
    largest = float(np.abs(expected.astype(np.float64)).max(initial=0))
    if expected.dtype.kind != "f" or not largest or not np.isfinite(largest):
        return 0.0
    dtype = float16 if precision == "float16" else bfloat16
    return float(np.ldexp(0.5, np.frexp(largest)[1] - 1 - finfo(dtype).nmant))


def _distance(a: Array, b: Array) -> float:
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0))


def _compare(
    model: str, inputs: str, output: str, pair: tuple[Array, Array], limit: float
) -> OutputRow:
    got, want = pair
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        problem = f"is {got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
        return OutputRow(model, inputs, output, 0, limit, problem)
    if want.dtype.kind in "OUST":
        problem = "" if got.tolist() == want.tolist() else "has other texts"
        return OutputRow(model, inputs, output, 0, 0, problem)
    error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    if not np.isfinite(error).all():
        return OutputRow(model, inputs, output, 0, limit, "is not finite")
    if model in RESIZED:
        share = float((error > limit).mean())
        problem = "" if share <= SHARE else f"is off in {share:.1%} of its elements"
        maximum = max(limit, RESIZED[model])
        return OutputRow(model, inputs, output, float(error.max()), maximum, problem)
    return OutputRow(model, inputs, output, float(error.max(initial=0)), limit)


# ── the table ────────────────────────────────────────────────────────────────────────────────────


def measure(
    folder: Path, names: Sequence[str], precision: Precision = "float32", **options: Any
) -> Iterator[list[OutputRow]]:
    """Yield the results of one model after the other; what cannot run at all is one, too."""
    index = read_index(folder)
    is_half = precision in ("float16", "bfloat16")
    if is_half:
        index = {n: row for n, row in index.items() if "quantized" not in row["features"]}
    with progress() as say:
        for name in names or index:
            if name not in index:
                hint = did_you_mean(name, index)
                raise UsageError(f"there is no model '{name}' in {folder}{hint}")
            say(name)
            file = folder / name / "model.onnx"
            results: list[OutputRow] = []
            try:
                with ExitStack() as stack:
                    model = stack.enter_context(load(file, precision=precision, **options))
                    rounded = None
                    if is_half:
                        rounded = stack.enter_context(load(file, "numpy", precision=precision))
                    given = options.get("backend", "numpy"), options.get("fallback")
                    decisions = partial(by_decisions, file, *given)
                    row = index[name]
                    results.extend(check(folder / name, row, model, rounded, decisions))
            except TercetError as error:
                results.append(OutputRow(name, "", "", 0, 0, str(error).partition("\n")[0]))
            yield results


def _rows(results: Sequence[OutputRow]) -> Iterator[list[str]]:
    """Yield one line per model: the output of each set of inputs that is nearest to its limit."""
    for name in dict.fromkeys(result.model for result in results):
        mine = [result for result in results if result.model == name]
        cells = [name]
        for inputs, _, _ in SETS:
            worst = max((r for r in mine if r.inputs == inputs), key=_strain, default=None)
            by_own = ", right by its decisions" if worst and worst.decided else ""
            cells.append(f"{worst.error:.1e} of {worst.limit:.1e}{by_own}" if worst else "")
        yield [*cells, "; ".join(str(r) for r in mine if not r.ok) or "ok"]


def _strain(result: OutputRow) -> float:
    return result.error / result.limit if result.limit else result.error


_TITLES = ("model", "seeded inputs", "real sample", "verdict")


def markdown(results: Sequence[OutputRow], about: Mapping[str, str]) -> str:
    """Return the report as a Markdown page."""
    text = (
        "Written by `python -m tercet.tools.workshop.model_table FOLDER --output docs/results`. "
        "Each cell is the maximum absolute error of the output that comes closest to its limit, "
        "*of* that limit. The limit is derived from the difference between onnxruntime's results "
        "with and without graph optimisation, and in half precision from the error of the numpy "
        "backend in that precision, which is never less than one rounding of the largest "
        "element; the module describes it. An output of a quantized model may be beyond it where "
        "it is right given the decisions next to ties that its runner has taken."
    )
    lines = [*head("Real models against onnxruntime", text, about), *table(_TITLES, _rows(results))]
    return "\n".join([*lines, ""])


def main() -> int:
    """Check, print, and write if asked; return 1 where an output is wrong."""
    parser = make_parser("model_table", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names; default: all")
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--fallback", help="backend for nodes that the first one declines")
    parser.add_argument("--precision", default="float32", choices=get_args(Precision))
    arguments = parser.parse_intermixed_args()
    try:
        results = _measured(arguments)
    except TercetError as error:
        parser.error(str(error))
    print_table(open_console(), _TITLES, _rows(results))
    return 0 if all(result.ok for result in results) else 1


def _measured(arguments: argparse.Namespace) -> list[OutputRow]:
    """Return the results, of this call and of earlier ones; print and write them one by one."""
    backend, precision, fallback = arguments.backend, arguments.precision, arguments.fallback
    device = open_backends(backend, Options())[0].device
    about = {
        "backend": f"{backend}, then {fallback}" if fallback else backend,
        "precision": precision,
        **device_environment(device, ("numpy", "onnx"), arguments.commit),
    }
    name = f"models_{backend}" + ("" if precision == "float32" else f"_{precision}")
    models: dict[str, list[OutputRow]] = {}
    if arguments.output:
        file = arguments.output / f"{name}.json"
        for result in earlier(file, about, lambda entry: OutputRow(**entry)):
            models.setdefault(result.model, []).append(result)
    options = {"backend": backend, "fallback": fallback}
    for results in measure(arguments.folder, arguments.models, precision, **options):
        models |= {result.model: results for result in results}
        for row in _rows(results):
            print(*row, sep="  ", flush=True)
        if arguments.output:
            everything = [result for found in models.values() for result in found]
            data = [asdict(result) for result in everything]
            texts = {f"{name}.json": to_json(about, results=data)}
            texts[f"{name}.md"] = markdown(everything, about)
            write(arguments.output, texts)
    return [result for found in models.values() for result in found]


if __name__ == "__main__":
    raise SystemExit(main())
