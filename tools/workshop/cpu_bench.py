"""How fast the numpy backend and onnxruntime are, and how exact, in one run.

    python -m tercet.tools.workshop.cpu_bench
    python -m tercet.tools.workshop.cpu_bench resnet50 squeezenet --reference
    python -m tercet.tools.workshop.cpu_bench --threads 1 --cpu-time

Models get seeded random weights (see `bench_models`) and a batch of one. Everybody has the same
number of threads, runs in turn, and is judged by the median; times of a busy machine mean nothing,
their ratio means more, and that of CPU times of one thread most: other programs only take caches
away. Errors are against the same model in float64 (see `accuracy`).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from onnx import ModelProto

from ...backends.numpy.numerics import blas
from ...runtime.errors import TercetError, UnsupportedError, did_you_mean
from ...runtime.ir.types import Array, HostValue
from ..common.console import grid, open_console, progress
from ..common.environment import environment
from ..common.measure import Clock, Repeat, Timing, interleave, timed
from ..common.threads import use_threads
from ..runners.onnxruntime_runner import ONNXRUNTIME
from ..runners.runners import REFERENCE, Runner, RunnerSettings, open_runner
from ..verdict.accuracy import distance, exact_outputs
from ..verdict.agreement import RELATIVE
from .bench_models import NAMES, bench_inputs, bench_model

OWN = "numpy"


@dataclass(frozen=True, slots=True)
class CpuTiming:
    """One model.

    Attributes:
        name: the model.
        times: latencies by runner.
        errors: by runner the difference from the result in float64, by that (Euclidean norms).
    """

    name: str
    times: Mapping[str, Timing] = field(default_factory=dict[str, Timing])
    errors: Mapping[str, float] = field(default_factory=dict[str, float])

    def milliseconds(self, who: str) -> float:
        """Return the median of one runner."""
        return self.times[who].median * 1e3

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain types."""
        times = {who: timing.to_dict() for who, timing in self.times.items()}
        return {"model": self.name, "errors": dict(self.errors), "milliseconds": times}


def measure(
    name: str, repeat: Repeat, *, reference: bool = False, clock: Clock = perf_counter
) -> CpuTiming:
    """Run one model on numpy and onnxruntime in turn, and on onnx.reference once if asked."""
    model = bench_model(name)
    feeds = bench_inputs(model)
    with progress() as say:
        say(f"{name}: in float64")
        exact = _exact(model, feeds)
        say(f"{name}: loading")
        runners = {who: open_runner(who, model, RunnerSettings()) for who in (OWN, ONNXRUNTIME)}
        try:
            calls = {who: _call(runner, feeds) for who, runner in runners.items()}
            errors = {who: distance(call(), exact) for who, call in calls.items()}
            times = interleave(calls, repeat, say, clock=clock)
        finally:
            for runner in runners.values():
                runner.close()
        if reference:
            say(f"{REFERENCE}: run 1")
            slow = open_runner(REFERENCE, model, RunnerSettings())
            with suppress(UnsupportedError):
                times[REFERENCE] = Timing((timed(_call(slow, feeds), clock),))
    return CpuTiming(name, times, errors)


def _exact(model: ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the first output in float64."""
    return dict(islice(exact_outputs(model, feeds).items(), 1))


def _call(runner: Runner, feeds: Mapping[str, Array]) -> Callable[[], dict[str, HostValue]]:
    return partial(runner.run, feeds)


def _titles(reference: bool) -> list[str]:
    more = ["reference", "speed-up"] if reference else []
    return ["model", "onnxruntime", "numpy", "ratio", "its error", "error", *more]


def _cells(row: CpuTiming, reference: bool) -> list[str]:
    own, other = row.milliseconds(OWN), row.milliseconds(ONNXRUNTIME)
    errors = [f"{row.errors[who]:.0e}" for who in (ONNXRUNTIME, OWN)]
    cells = [row.name, f"{other:.1f}", f"{own:.1f}", f"{own / other:.2f}", *errors]
    if reference:
        slow = row.milliseconds(REFERENCE) if REFERENCE in row.times else None
        cells += ["–", "–"] if slow is None else [f"{slow:.0f}", f"{slow / own:.1f}"]
    return cells


def _show(rows: list[CpuTiming], reference: bool) -> None:
    console = open_console()
    table = grid(*_titles(reference))
    for row in rows:
        table.add_row(*_cells(row, reference))
    console.print("Milliseconds of one run, medians; ratio: numpy / onnxruntime;")
    console.print("errors: onnxruntime's and numpy's, against float64")
    console.print(table)


def markdown(
    rows: list[CpuTiming], about: Mapping[str, str], reference: bool, options: Sequence[str]
) -> str:
    """Return the report as a Markdown page, which names the options that it was made with."""
    titles = _titles(reference)
    lines = [
        "# The numpy backend and onnxruntime",
        "",
        f"Written by `python -m tercet.tools.workshop.cpu_bench {shlex.join(options)}`. Batch 1, "
        "float32, seeded random weights, everybody on the same number of threads, in turn in one "
        "process. Milliseconds of one run, medians; *ratio* is numpy by onnxruntime, *its error* "
        "onnxruntime's and *error* numpy's difference from the same model in float64 (Euclidean "
        "norms), *speed-up* onnx.reference (run once) by numpy. inception_v1 is GoogLeNet.",
        "",
        *(f"- {name}: {text}" for name, text in about.items()),
        "",
        f"| {' | '.join(titles)} |",
        f"|---|{'---:|' * (len(titles) - 1)}",
        *(f"| {' | '.join(_cells(row, reference))} |" for row in rows),
        "",
    ]
    return "\n".join(lines)


def _save(rows: list[CpuTiming], about: Mapping[str, str], reference: bool, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = {"environment": about, "results": [row.to_dict() for row in rows]}
    (folder / "cpu_bench.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    page = markdown(rows, about, reference, sys.argv[1:])
    (folder / "cpu_bench.md").write_text(page, encoding="utf-8")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tercet.tools.workshop.cpu_bench",
        description="Measure the numpy backend and onnxruntime.",
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--reference", action="store_true", help="run onnx.reference, too, once")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each model; default: 3")
    parser.add_argument("--threads", type=int, help="for everybody; default: as numpy has them")
    parser.add_argument("--cpu-time", action="store_true", help="of the process; with --threads 1")
    parser.add_argument("--json", action="store_true", help="print JSON, no table")
    parser.add_argument("--output", type=Path, help="folder for a Markdown page and JSON, too")
    arguments = parser.parse_args()
    for name in arguments.models:
        if name not in NAMES:
            parser.error(f"there is no model '{name}'{did_you_mean(name, NAMES)}")
    if arguments.cpu_time and arguments.threads != 1:
        parser.error("--cpu-time needs --threads 1: threads that wait take CPU time, too")
    return arguments


def main() -> int:
    """Measure and print; return 1 where a result is wrong."""
    arguments = _parse()
    repeat = Repeat(seconds=arguments.seconds / 2, minimum=5)
    rows: list[CpuTiming] = []
    try:
        with use_threads(arguments.threads):
            for name in arguments.models or NAMES:
                clock = process_time if arguments.cpu_time else perf_counter
                rows.append(measure(name, repeat, reference=arguments.reference, clock=clock))
    except TercetError as error:
        open_console(stderr=True).print(str(error))
        return error.exit_code
    if arguments.json:
        print(json.dumps([row.to_dict() for row in rows], indent=2))
    else:
        _show(rows, arguments.reference)
    if arguments.output is not None:
        threads = f"{blas.threads() or '?'} by default"
        about = environment(("numpy", "onnx", "onnxruntime"))
        about["threads"] = str(arguments.threads or threads)
        about["time"] = "CPU time of the process" if arguments.cpu_time else "elapsed"
        _save(rows, about, arguments.reference, arguments.output)
    return int(any(row.errors[OWN] > RELATIVE["float32"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
