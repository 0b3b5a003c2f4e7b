"""Commands that measure, and the HTML report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from ...runtime.errors import UsageError
from .groups import Common, DecoderInputOptions, Group, InputOptions, RunOptions, Timed
from .help import MEASUREMENT
from .option_values import integers, split
from .options import (
    Backend,
    SkipUnavailable,
    Threads,
    exit_code,
    several_backends,
    show,
    written_file,
)

if TYPE_CHECKING:
    from ..bench.bench import Schedule
    from ..bench.bench_check import BenchLimits


@dataclass(frozen=True)
class BenchRunOptions(RunOptions):
    """The options of runs, with several precisions."""

    precision: Annotated[
        str,
        typer.Option(metavar="A,B", help="Compute precisions: float32, tf32, float16, bfloat16."),
    ] = "float32"

    def as_options(self) -> dict[str, Any]:
        options = RunOptions.as_options(self)
        del options["precision"]
        return options


@dataclass(frozen=True)
class ScheduleOptions(Group):
    """What a benchmark measures, and how long."""

    title: ClassVar[str] = MEASUREMENT
    batch: Annotated[
        str, typer.Option(metavar="1,8", help="Batch sizes; default: that of the model, or 1.")
    ] = ""
    concurrency: Annotated[
        str,
        typer.Option(
            metavar="1,4",
            help="Numbers of concurrent callers: 1 measures latency, more measure throughput.",
        ),
    ] = "1"
    pipeline: Annotated[
        bool,
        typer.Option("--pipeline", help="Also measure a stream of batches with overlapped copies."),
    ] = False
    passes: Annotated[
        bool,
        typer.Option("--passes", help="Also measure the model without each graph pass."),
    ] = False
    duration: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Duration of the measured runs of each backend."),
    ] = 2.0
    warm_up: Annotated[
        float,
        typer.Option(
            "--warm-up", metavar="SECONDS", help="Duration of the warm-up runs before them."
        ),
    ] = 0.5
    accuracy: Annotated[
        bool, typer.Option("--accuracy/--no-accuracy", help="Measure errors against a float64 run.")
    ] = True

    def of(self, precisions: str) -> Schedule:
        """Return the schedule, with comma-separated precisions."""
        from ..bench.bench import Schedule

        return Schedule(
            batches=integers("--batch", self.batch) or (None,),
            precisions=split(precisions),
            concurrency=integers("--concurrency", self.concurrency),
            duration=self.duration,
            warm_up=self.warm_up,
            accuracy=self.accuracy,
            pipeline=self.pipeline,
            passes=self.passes,
        )


@dataclass(frozen=True)
class LimitOptions(Group):
    """Limits of a benchmark."""

    title: ClassVar[str] = "Assertions"
    assert_p50: Annotated[
        list[str] | None,
        typer.Option(
            "--assert-p50",
            metavar="[BACKEND=]5ms",
            help="Maximum median latency, of tercet's backends or of one runner; repeatable.",
        ),
    ] = None
    assert_ops: Annotated[
        int | None,
        typer.Option("--assert-ops", metavar="N", help="Maximum number of steps in a plan."),
    ] = None
    assert_error: Annotated[
        float | None,
        typer.Option(
            "--assert-error", metavar="X", help="Maximum relative L2 error against float64."
        ),
    ] = None
    assert_ratio: Annotated[
        float | None,
        typer.Option(
            "--assert-ratio",
            metavar="X",
            help="With --compare: maximum ratio of new to old median.",
        ),
    ] = None

    @property
    def limits(self) -> BenchLimits:
        """The given limits."""
        from ..bench.bench_check import BenchLimits, latency_limits

        p50 = latency_limits(self.assert_p50 or ())
        return BenchLimits(p50, self.assert_ops, self.assert_error, self.assert_ratio)


def profile(
    *,
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MODEL]", help="An ONNX file; none with --diff.", show_default=False
        ),
    ] = None,
    backend: Backend = "numpy",
    options: RunOptions,
    inputs: DecoderInputOptions,
    timed: Timed,
    top: Annotated[
        int, typer.Option(metavar="N", help="Maximum number of table rows; 0 for all.", min=0)
    ] = 15,
    peaks: Annotated[
        bool,
        typer.Option(
            "--peaks/--no-peaks", help="Measure the machine's peak throughput and bandwidth, too."
        ),
    ] = True,
    trace: Annotated[
        Path | None,
        written_file("FILE", "Write a trace of one run for Perfetto or chrome://tracing."),
    ] = None,
    diff: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="A.json B.json",
            help="Compare the JSON of two profiles instead of running a model.",
        ),
    ] = None,
    common: Common,
) -> None:
    """Show where time is spent, against the machine's roofline.

    Examples:
        tercet profile model.onnx --dim batch=8
        tercet profile model.onnx --top 5 --no-peaks --repeat 10 --trace trace.json
        tercet profile --diff before.json after.json
    """
    from ..common.console import progress
    from ..common.measure import Repeat
    from ..profile.profiling import profile as profile_model
    from ..profile.profiling_diff import diff_profiles
    from ..profile.profiling_view import show_difference, show_profile
    from ..profile.trace_events import write_trace

    if (model is None) == (diff is None):
        raise UsageError("give a model, or --diff with two saved profiles")
    if diff is not None:
        show(diff_profiles(*diff), lambda c, f: show_difference(c, f, top), json=common.json)
        return
    given = inputs.of(model or Path())
    with progress() as say, timed.used():
        found = profile_model(
            model or "",
            backend,
            given,
            repeat=None if timed.repeat is None else Repeat(timed.repeat),
            peaks=peaks,
            timeout=common.timeout,
            say=say,
            **options.as_options(),
        )
    show(
        found,
        lambda c, f: show_profile(c, f, top),
        json=common.json,
        write=None if trace is None else lambda: write_trace(found, trace),
    )
    raise typer.Exit(exit_code(True, found.stopped))


def bench(
    *,
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="ONNX files.", show_default=False),
    ],
    backends: Annotated[
        list[str] | None,
        several_backends(
            "A runner to measure; repeatable: a backend, onnxruntime or onnx.reference; "
            "default: all backends that can run here, and onnxruntime (without it, onnx.reference)."
        ),
    ] = None,
    schedule: ScheduleOptions,
    options: BenchRunOptions,
    inputs: InputOptions,
    threads: Threads = None,
    skip_unavailable: SkipUnavailable = False,
    old: Annotated[
        Path | None,
        typer.Option(
            "--compare", metavar="OLD.json", help="Compare with the JSON of an older benchmark."
        ),
    ] = None,
    limits: LimitOptions,
    common: Common,
) -> None:
    """Measure latency, throughput and accuracy; check them against limits or an older run.

    Examples:
        tercet bench model.onnx --batch 1,8 --duration 0.2
        tercet bench model.onnx -b numpy -b onnxruntime --concurrency 1,2
        tercet bench model.onnx -b numpy --assert-p50 1s --assert-error 1e-5
    """
    from ..bench.bench import bench as bench_models
    from ..bench.bench_view import show_bench
    from ..common.console import progress
    from ..common.threads import use_threads

    if limits.assert_ratio is not None and old is None:
        raise UsageError("--assert-ratio needs --compare OLD.json")
    with progress() as say, use_threads(threads):
        found = bench_models(
            models,
            backends,
            inputs.wanted,
            schedule=schedule.of(options.precision),
            limits=limits.limits,
            old=old,
            skip_unavailable=skip_unavailable,
            timeout=common.timeout,
            say=say,
            **options.as_options(),
        )
    show(found, show_bench, json=common.json)
    raise typer.Exit(exit_code(found.ok, found.stopped))


def report(
    *,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE.json...",
            help="What compare, profile or bench printed with --json.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, written_file("FILE", "The HTML file to write.", "--output", "-o")] = Path(
        "report.html"
    ),
    title: Annotated[
        str, typer.Option(metavar="TEXT", help="Title of the page; default: the models' names.")
    ] = "",
    common: Common,
) -> None:
    """Write comparisons, profiles and benchmarks as one self-contained HTML file.

    Examples:
        tercet report compare.json layers.json profile.json bench.json -o report.html
    """
    from ..common.deadline import all_or_nothing
    from ..report.report import report as make_report
    from ..report.report import show_report

    with all_or_nothing(common.timeout):
        found = make_report(files, title)
        found.write(out)
    show(found, lambda console, made: show_report(console, out, made), json=common.json)
