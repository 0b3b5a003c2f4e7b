"""Which files of real producers load, where, and whether their results are right.

    python -m tercet.tools.workshop.producers_page tests/producers --output docs/results

Every subfolder of the given folder holds models, each next to an .npz file with its inputs
(``input/…``) and the outputs of onnxruntime's CPU provider (``output/…``). A file is named after
its network and how it was made, in either order. Every model gets a row, so that adding a producer
takes no more than its files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tercet

from ...runtime.errors import TercetError, UnsupportedError
from ...runtime.text import printable
from ..common.markdown import head, table
from ..common.onnxruntime_errors import onnxruntime_errors
from ..common.results import write
from .arguments import RESULTS
from .arguments import parser as make_parser

TARGET = "sm_90a"
#: Maximum error as a fraction of the largest element, by a part of the file's name.
#: Numbers near a tie may be rounded to either side, which becomes one step of eight bits.
TOLERANCES = {"fp16": 1e-2, "O4": 1e-2, "qdq": 2e-2, "qoperator": 2e-2}
TOLERANCE = 2e-5

_TEXT = """\
Written by `python -m tercet.tools.workshop.producers_page tests/producers --output docs/results`.
The files are in tests/producers; tools in tools/workshop wrote them. *numpy*: maximum error against
onnxruntime's CPU provider, as a fraction of the largest element, with all passes / without passes
(files of Brevitas, MindSpore and Model Optimizer: against those, as onnxruntime does not load all).
*cuda*: planned for sm_90a without a GPU, which shows whether every node has a kernel; nothing was
run there. *onnxruntime*: whether its CPU provider loads and runs the file. There are more files in
[produced.md](produced.md), of what happened to be installed."""


@dataclass(frozen=True, slots=True)
class ProducedFile:
    """One file.

    Attributes:
        folder: which producers it is of.
        name: the file's.
        operators: those of other domains than ONNX's.
        numpy: the errors, or why there are none.
        cuda: ``plans``, or what is not planned.
        onnxruntime: ``runs``, or why not.
        right: whether numpy's results are within the tolerance.
    """

    folder: str
    name: str
    operators: str
    numpy: str
    cuda: str
    onnxruntime: str
    right: bool


def tolerance(path: Path) -> float:
    """Return what results of a file may be off by, as a share of the largest element."""
    return max((v for k, v in TOLERANCES.items() if k in path.stem), default=TOLERANCE)


def inputs_of(path: Path, kind: str = "input") -> dict[str, Any]:
    """Return the inputs in the folder of a model, or its outputs."""
    with np.load(path.with_suffix(".npz")) as file:
        return {k[len(kind) + 1 :]: file[k] for k in file.files if k.startswith(f"{kind}/")}


def error_of(path: Path, **options: Any) -> float:
    """Return numpy's largest error, as a share of the largest element of each output.

    Maps are held against the columns of a matrix; texts are right or not at all.
    """
    with tercet.load(path, **options) as model:
        found = model.run(inputs_of(path))
    wanted = inputs_of(path, "output")
    worst = 0.0
    for name, theirs in wanted.items():
        if name.endswith("[keys]"):
            continue
        mine = found[name]
        if isinstance(mine, list):
            keys = wanted[f"{name}[keys]"].tolist()
            mine = np.array([[each[key] for key in keys] for each in mine])
        worst = max(worst, _apart(mine, theirs))
    return worst


def _apart(mine: Any, theirs: Any) -> float:
    if theirs.dtype.kind in "OUS":
        return 0.0 if np.array_equal(mine.astype(str), theirs.astype(str)) else float("inf")
    wide = theirs.astype(np.float64)
    scale = max(float(np.abs(wide).max(initial=0)), float(np.finfo(np.float32).tiny))
    apart = np.where(mine == theirs, 0, np.abs(wide - mine.astype(np.float64)))
    return float(apart.max(initial=0)) / scale


def unplanned(path: Path) -> list[str]:
    """Return the operators that the cuda backend would not run, each with the reason."""
    shapes = {name: x.shape for name, x in inputs_of(path).items()}
    try:
        found = tercet.inspect(path, placement="cuda", target=TARGET, shapes=shapes).placement
    except UnsupportedError as error:
        if not error.refusals:
            raise
        return [f"{each.operator}: {each.reason}" for each in error.refusals]
    return [
        f"{row.operators}: {row.reason}"
        for row in found or ()
        if row.backend != "plan" and not row.backend.startswith("cuda")
    ]


def _onnxruntime(path: Path) -> str:
    import onnxruntime

    feeds = inputs_of(path)
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        session.run(None, feeds)
    except onnxruntime_errors() as error:
        return printable((str(error).splitlines() or [type(error).__name__])[0][:80])
    return "runs"


def row_of(path: Path) -> ProducedFile:
    """Try one file everywhere."""
    domains = {n.op_type for n in onnx.load(path).graph.node if n.domain not in ("", "ai.onnx")}
    try:
        errors = [error_of(path), error_of(path, stop_at=0)]
        numpy, right = " / ".join(f"{e:.1e}" for e in errors), max(errors) <= tolerance(path)
    except TercetError as error:
        numpy, right = printable(str(error).splitlines()[0][:80]), False
    try:
        cuda = "; ".join(unplanned(path)) or "plans"
    except TercetError as error:
        cuda = printable(str(error).splitlines()[0][:80])
    found = ", ".join(sorted(domains))
    return ProducedFile(path.parent.name, path.stem, found, numpy, cuda, _onnxruntime(path), right)


def page(rows: list[ProducedFile]) -> str:
    """Return the page of all rows."""
    right = sum(row.right for row in rows)
    planned = sum(row.cuda == "plans" for row in rows)
    titles = ("producers", "file", "operators beyond ONNX's", "numpy", "cuda", "onnxruntime")
    cells: list[tuple[str, ...]] = []
    for row in rows:
        mark = "" if row.right else "**wrong**: "
        run = mark + row.numpy, row.cuda, row.onnxruntime
        cells.append((row.folder, row.name, row.operators, *run))
    lines = [
        *head("Files of real producers", _TEXT),
        f"{len(rows)} files: {right} are right on numpy, {planned} plan wholly on cuda.",
        "",
        *table(titles, cells),
    ]
    return "\n".join(lines) + "\n"


def files_in(folder: Path) -> list[Path]:
    """Return the models below a folder that have inputs next to them."""
    found = sorted(folder.glob("*/*.onnx"))
    return [path for path in found if path.with_suffix(".npz").exists()]


def main() -> None:
    """Try every file, and write the page."""
    parser = make_parser("producers_page", __doc__, RESULTS, commit=False)
    parser.add_argument("folder", type=Path, help="folder of one folder per producer")
    arguments = parser.parse_args()
    rows = [row_of(path) for path in files_in(arguments.folder)]
    write(arguments.output, {"producers.md": page(rows)})


if __name__ == "__main__":
    main()
