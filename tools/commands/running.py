"""Commands that run a model and compare its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn

import typer

from ...runtime.errors import UsageError
from .groups import (
    Common,
    DecoderInputOptions,
    FrozenModelOptions,
    Group,
    ImageInputOptions,
    RunOptions,
    Timed,
)
from .option_values import split
from .options import (
    AllowInconclusive,
    Backend,
    File,
    Outputs,
    RunnerTimeout,
    SkipUnavailable,
    Threads,
    exit_code,
    several_backends,
    show,
    written_file,
    written_folder,
)

if TYPE_CHECKING:
    from ..common.inputs import InputRequest, Inputs


@dataclass(frozen=True)
class LayerOptions(Group):
    """Layer-by-layer comparison."""

    title: ClassVar[str] = "Node by node"
    layers: Annotated[
        bool,
        typer.Option("--layers", help="Compare node by node, each on the reference's tensors."),
    ] = False
    cumulative: Annotated[
        bool,
        typer.Option(
            "--cumulative",
            help="With --layers: each backend runs the whole graph on its own tensors.",
        ),
    ] = False
    runs: Annotated[
        int,
        typer.Option(
            metavar="N", help="With --layers: run everything N times and compare the bits.", min=1
        ),
    ] = 1
    twice: Annotated[bool, typer.Option("--twice", help="With --layers: the same as --runs 2.")] = (
        False
    )
    other: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --layers: the model that the second backend runs."),
    ] = None
    as_it_is: Annotated[
        bool, typer.Option("--no-optimise", help="With --layers: skip all graph passes.")
    ] = False

    def check(self) -> bool:
        """Return whether to compare layers; raises UsageError for options that require it."""
        chosen = self.cumulative, self.all_runs > 1, self.other, self.as_it_is
        if not self.layers and any(chosen):
            raise UsageError("--cumulative, --runs, --other and --no-optimise need --layers")
        return self.layers

    @property
    def all_runs(self) -> int:
        """How often everything runs."""
        return max(self.runs, 1 + self.twice)

    def as_options(self) -> dict[str, Any]:
        """Return the options by their Python names."""
        return {
            "other": self.other,
            "cumulative": self.cumulative,
            "runs": self.all_runs,
            "optimise": not self.as_it_is,
        }


@dataclass(frozen=True)
class ToleranceOptions(Group):
    """Tolerances for all outputs, or per output or dtype."""

    title: ClassVar[str] = "Verdict"
    rtol: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]X",
            help="Relative tolerance, a fraction of max |reference|; default: from float64 runs.",
            show_default=False,
        ),
    ] = None
    atol: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]X",
            help="Absolute tolerance. Both take NAME=X for one output or dtype; repeatable.",
            show_default=False,
        ),
    ] = None

    def as_options(self) -> dict[str, Any]:
        """Return the options by their Python names."""
        from ..verdict.tolerances import parse_tolerances

        return {
            "rtol": parse_tolerances("rtol", self.rtol),
            "atol": parse_tolerances("atol", self.atol),
        }


def run(
    model: File,
    *,
    backend: Backend = "numpy",
    options: RunOptions,
    inputs: ImageInputOptions,
    reading: FrozenModelOptions,
    outputs: Outputs = "",
    save: Annotated[Path | None, written_file("FILE", "Write the outputs to an .npz file.")] = None,
    timed: Timed,
    trace_shapes: Annotated[
        bool,
        typer.Option("--trace-shapes", help="List the shapes of every node, in execution order."),
    ] = False,
    check_each: Annotated[
        bool,
        typer.Option(
            "--check-each",
            help="Synchronize after every step, so that a device fault names its node.",
        ),
    ] = False,
    common: Common,
) -> None:
    """Run a model; show its outputs and latency.

    Examples:
        tercet run model.onnx
        tercet run model.onnx --backend cuda --fallback numpy
        tercet run model.onnx --outputs r,scores --save out.npz
    """
    from ..common.archives import write_archive
    from ..common.arrays import check_archive_name
    from ..common.console import progress
    from ..common.measure import Repeat
    from ..common.nested import flat
    from ..run.run import run_model, show_run

    check_archive_name(save)
    given = inputs.of(model)
    with progress() as say, timed.used():
        found = run_model(
            model,
            backend,
            given,
            split(outputs),
            repeat=Repeat(timed.repeat),
            trace_shapes=trace_shapes,
            say=say,
            **options.as_options(),
            check_each=check_each,
            freeze=reading.frozen,
            timeout=common.timeout,
        )
    show(
        found,
        show_run,
        json=common.json,
        write=None if save is None else lambda: write_archive(save, flat(found.outputs)),
    )
    raise typer.Exit(exit_code(True, found.stopped))


def compare(
    model: File,
    *,
    backends: Annotated[
        list[str] | None,
        several_backends(
            "A runner to compare, reference first; repeatable: a backend, onnxruntime, "
            "onnx.reference, an .npz file of outputs or a folder of ONNX test data; default: "
            "all backends that can run here, and onnxruntime (without it, onnx.reference)."
        ),
    ] = None,
    options: RunOptions,
    inputs: ImageInputOptions,
    outputs: Outputs = "",
    tolerance: ToleranceOptions,
    stats: Annotated[
        bool,
        typer.Option("--stats", help="Also show quantiles, cosine, PSNR, ulp, top-1 and top-5."),
    ] = False,
    save: Annotated[
        Path | None,
        written_file("FILE", "Write inputs and all outputs to an .npz file."),
    ] = None,
    load: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also compare with the results in a file written by --save."
        ),
    ] = None,
    timed: Timed,
    skip_unavailable: SkipUnavailable = False,
    layers: LayerOptions,
    allow: AllowInconclusive = False,
    runner_timeout: RunnerTimeout = None,
    common: Common,
) -> None:
    """Run a model on several backends; compare outputs and latency, or every tensor.

    Examples:
        tercet compare model.onnx --backend numpy --backend onnxruntime
        tercet compare model.onnx --layers -b numpy -b onnxruntime -b onnx.reference
    """
    from ..common.arrays import check_archive_name
    from ..common.console import progress
    from ..common.measure import Repeat
    from ..compare.compare import compare as compare_all
    from ..compare.compare_view import show_comparison

    check_archive_name(save)
    chosen = options.as_options() | {"allow_inconclusive": allow, "runner_timeout": runner_timeout}
    given = inputs.of(model)
    if layers.check():
        with timed.used():
            _compare_layers(model, backends, given, common, **layers.as_options(), **chosen)
    with progress() as say, timed.used():
        found = compare_all(
            model,
            backends,
            given,
            outputs=split(outputs),
            **tolerance.as_options(),
            repeat=Repeat(timed.repeat),
            skip_unavailable=skip_unavailable,
            load=load,
            timeout=common.timeout,
            say=say,
            **chosen,
        )
    show(
        found,
        lambda console, each: show_comparison(console, each, stats=stats),
        json=common.json,
        write=None if save is None else lambda: found.save(save),
    )
    raise typer.Exit(found.exit_code)


def _compare_layers(
    model: Path,
    backends: Sequence[str] | None,
    given: InputRequest | Inputs,
    common: Common,
    **options: Any,
) -> NoReturn:
    """Compare every tensor, and show the steps that differ."""
    from ..common.console import progress
    from ..compare.layers import compare_layers
    from ..compare.layers_view import show_layers

    with progress() as say:
        steps = compare_layers(model, backends, given, timeout=common.timeout, say=say, **options)
    show(steps, show_layers, json=common.json)
    raise typer.Exit(steps.exit_code)


def bisect(
    model: File,
    *,
    backends: Annotated[
        list[str] | None,
        several_backends(
            "The reference, then the runner to check; one alone is checked against itself; "
            "default: numpy."
        ),
    ] = None,
    options: RunOptions,
    inputs: DecoderInputOptions,
    runs: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Run what is right the first time N times, to find a fault of chance.",
            min=1,
        ),
    ] = 2,
    reduce: Annotated[
        Path | None,
        written_folder("Write the smallest failing subgraph and a script there."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="With --precision float16 or bfloat16: find the nodes that must stay float32 for "
            "errors against float64 of at most X × max |output|.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        written_file("FILE", "With --tolerance: write the names of these nodes, one per line."),
    ] = None,
    threads: Threads = None,
    allow: AllowInconclusive = False,
    runner_timeout: RunnerTimeout = None,
    common: Common,
) -> None:
    """Find the rewrite or node that makes outputs wrong, or the nodes that must stay float32.

    Examples:
        tercet bisect model.onnx -b numpy -b cuda --reduce fault
        tercet bisect model.onnx --precision float16 --tolerance 1e-4 --save keep.txt
    """
    from ..bisect.bisection import bisect as bisect_model
    from ..bisect.bisection_view import show_bisection
    from ..bisect.reduction import write_reduced
    from ..common.console import progress
    from ..common.threads import use_threads

    given = inputs.of(model)
    chosen = options.as_options()
    if tolerance is None and save is not None:
        raise UsageError("--save needs --tolerance")
    if tolerance is not None:
        _check_tolerance(options, backends, reduce)
        backend = (backends or ["numpy"])[0]
        with use_threads(threads):
            _find_kept(model, tolerance, options, backend, given, save, common)
    with progress() as say, use_threads(threads):
        found = bisect_model(
            model,
            backends,
            given,
            runs=runs,
            allow_inconclusive=allow,
            runner_timeout=runner_timeout,
            timeout=common.timeout,
            say=say,
            **chosen,
        )

    def write() -> None:
        if reduce is not None and found.reduced is not None:
            names = found.reference, found.runner
            said = {name: value for name, value in chosen.items() if value}
            write_reduced(found.reduced, reduce, model=str(model), runners=names, options=said)

    show(found, show_bisection, json=common.json, write=write)
    raise typer.Exit(found.exit_code)


def _check_tolerance(
    options: RunOptions, backends: Sequence[str] | None, reduce: Path | None
) -> None:
    """Raise UsageError for what does not go with --tolerance."""
    from ..bisect.precision import HALVES

    if options.precision not in HALVES:
        own = options.precision
        raise UsageError(f"--tolerance needs --precision: {own} is not one of {', '.join(HALVES)}")
    if reduce is not None or options.keep or len(backends or ()) > 1:
        raise UsageError("--tolerance takes one --backend, and neither --reduce nor --keep-float32")


def _find_kept(
    model: Path,
    tolerance: float,
    options: RunOptions,
    backend: str,
    given: InputRequest | Inputs,
    save: Path | None,
    common: Common,
) -> NoReturn:
    """Find the nodes that must stay float32 at half precision, and show them."""
    from ..bisect.precision import keep_float32
    from ..bisect.precision_view import show_kept
    from ..common.console import progress

    chosen = options.as_options()
    del chosen["keep_float32"]
    half = chosen.pop("precision")
    with progress() as say:
        kept = keep_float32(
            model, tolerance, half, backend, given, timeout=common.timeout, say=say, **chosen
        )
    write = None if save is None else lambda: kept.save(save)
    show(kept, show_kept, json=common.json, write=write)
    raise typer.Exit(exit_code(kept.ok, kept.stopped))
