"""Measure the openvino backend against numpy and onnxruntime on a folder of models.

    python -m tercet.tools.workshop.openvino_bench FOLDER
    python -m tercet.tools.workshop.openvino_bench FOLDER yolox-nano --output docs/results

Each model has its own folder with ``model.onnx`` and ``inputs.npz`` (or ``real_inputs.npz``).
All runners use the same number of threads and take turns in one process; results are medians. Other
work on the machine affects times, and ratios less.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.errors import TercetError
from ...runtime.ir.types import Array
from ..common.console import open_console, print_table, progress
from ..common.environment import environment
from ..common.markdown import head, table
from ..common.measure import Repeat, interleave
from ..common.results import to_json, write
from ..runners.onnxruntime_runner import ONNXRUNTIME
from ..runners.runners import Runner, RunnerSettings, open_runner
from .arguments import parser as make_parser
from .model_table import read_index

#: Runners: who runs the model, with which options. *finite* leaves NaN to luck, as others do.
WHO: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "onnxruntime": (ONNXRUNTIME, {}),
    "numpy": ("numpy", {}),
    "openvino": ("openvino", {}),
    "finite": ("openvino", {"finite": True}),
}
_TITLES = ("model", "on openvino", *WHO, "by numpy", "by onnxruntime")


@dataclass(frozen=True, slots=True)
class ModelTiming:
    """One model.

    Attributes:
        model: its folder.
        steps: computing rows of the plans that OpenVINO runs, and all of them.
        milliseconds: medians by runner.
    """

    model: str
    steps: tuple[int, int]
    milliseconds: Mapping[str, float]

    def cells(self) -> list[str]:
        """Return the row of a table."""
        times = self.milliseconds
        shares = [times["openvino"] / times[who] for who in ("numpy", "onnxruntime")]
        taken, everything = self.steps
        return [
            self.model,
            f"{taken} of {everything}",
            *(f"{times[who]:.2f}" for who in WHO),
            *(f"{share:.2f}" for share in shares),
        ]


def measure(folder: Path, repeat: Repeat) -> ModelTiming:
    """Run one model on all runners in turn.

    Args:
        folder: the model's own.
        repeat: how often.

    Raises:
        TercetError: a runner cannot run it.
    """
    files = (folder / f"{name}.npz" for name in ("inputs", "real_inputs"))
    feeds: dict[str, Array] = dict(np.load(next(file for file in files if file.exists())))
    runners: dict[str, Runner] = {}
    with progress() as say:
        try:
            for who, (name, options) in WHO.items():
                say(f"{folder.name}: loading on {who}")
                settings = RunnerSettings(options=options)
                runners[who] = open_runner(name, folder / "model.onnx", settings)
            calls = {who: _call(each, feeds) for who, each in runners.items()}
            times = interleave(calls, repeat, say)
            steps = _steps(runners["openvino"])
        finally:
            for each in runners.values():
                each.close()
    medians = {who: timing.median * 1e3 for who, timing in times.items()}
    return ModelTiming(folder.name, steps, medians)


def _call(runner: Runner, feeds: Mapping[str, Array]) -> Any:
    return lambda: runner.run(feeds)


def _steps(runner: Any) -> tuple[int, int]:
    """Return of how many nodes OpenVINO computes how many; views are not counted."""
    rows = [row for row in runner.model.placement() if row.kind in ("step", "host")]
    by = [(row.backend, row.operators.count(" + ") + 1) for row in rows]
    return sum(n for who, n in by if who == "openvino"), sum(n for _, n in by)


def markdown(rows: Sequence[ModelTiming], about: Mapping[str, str]) -> str:
    """Return the report as a Markdown page."""
    text = (
        "Written by `python -m tercet.tools.workshop.openvino_bench FOLDER --output docs/results`. "
        "float32; all runners use the same number of threads and take turns in one process. Times "
        "are medians of one run in milliseconds. *On openvino* is the number of nodes that "
        "OpenVINO computes, of all. *finite* is the openvino backend with `finite=True`, where NaN "
        "and infinities need not propagate. The last columns are openvino's time divided by that "
        "of numpy and of onnxruntime. Other work on the machine slows all runners down, so the "
        "ratios say more than the times."
    )
    rows_of_cells = (row.cells() for row in rows)
    lines = [
        *head("The openvino backend against numpy and onnxruntime", text, about),
        *table(_TITLES, rows_of_cells, range(1, len(_TITLES))),
    ]
    return "\n".join([*lines, ""])


def _measured(names: Sequence[str], arguments: argparse.Namespace) -> Iterator[ModelTiming]:
    for name in names:
        try:
            yield measure(arguments.folder / name, Repeat(seconds=arguments.seconds))
        except (TercetError, StopIteration) as error:
            print(f"{name}: {str(error).splitlines()[0] if str(error) else 'no inputs'}")


def main() -> int:
    """Measure, print, and write if asked."""
    parser = make_parser("openvino_bench", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="names; default: all")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="duration per runner; default: 1"
    )
    arguments = parser.parse_intermixed_args()
    about = environment(("numpy", "openvino", "onnxruntime", "onnx"), arguments.commit)
    rows: list[ModelTiming] = []
    for row in _measured(arguments.models or list(read_index(arguments.folder)), arguments):
        rows.append(row)
        if arguments.output:
            data = [asdict(each) for each in rows]
            texts = {"openvino_bench.json": to_json(about, results=data)}
            write(arguments.output, {**texts, "openvino_bench.md": markdown(rows, about)})
    print_table(open_console(), _TITLES, (row.cells() for row in rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
