"""The command line: `tercet run`, `compare` and all the others.

Commands import what they need when they run, so that help is there at once.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .. import __version__
from ..runtime.errors import DeviceError, TercetError, UsageError

if TYPE_CHECKING:
    from .inputs import Wanted

app = typer.Typer(
    name="tercet",
    epilog=(
        "Exit codes: 0 ok, 1 mismatch, 2 usage, 3 unsupported, 4 bad model, "
        "5 backend unavailable, 6 device fault."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
Fallback = Annotated[
    str | None,
    typer.Option(metavar="BACKEND", help="Runs the nodes that the other backend does not."),
]
Precision = Annotated[
    str, typer.Option(metavar="KIND", help="Arithmetic of float32 tensors: float32 or tf32.")
]
Tune = Annotated[
    bool, typer.Option("--tune", help="Measure cuDNN's algorithms and keep the fastest, once.")
]
Convolution = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="naive: convolutions of cuda with one thread an output."),
]
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="[NAME=]FILE",
        help="A .npy, .npz, .pb or picture file for an input; repeat it for more.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--inputs-from",
        metavar="PATH",
        help="A folder of ONNX test data (input_0.pb, ...), or an .npz file of all inputs.",
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="N", help="Seed of the random inputs used where none are given.")
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="[NAME=]1x3x224x224", help="Shape of an input."),
]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Size of a symbolic dimension, 1 if not set."),
]
Outputs = Annotated[
    str,
    typer.Option(metavar="A,B", help="Tensors wanted, intermediate ones too; else the outputs."),
]
Repeats = Annotated[
    int | None,
    typer.Option("--repeat", metavar="N", help="Measured runs; else about a second of them."),
]
Threads = Annotated[
    int | None, typer.Option(metavar="N", help="CPU threads, of each contestant; else numpy's.")
]
Scale = Annotated[float, typer.Option(metavar="X", help="Divide pixels of pictures by this.")]
Mean = Annotated[str, typer.Option(metavar="R,G,B", help="Then subtract this from them.")]
Std = Annotated[str, typer.Option(metavar="R,G,B", help="Then divide them by this.")]
Crop = Annotated[
    bool,
    typer.Option("--crop", help="Cut the middle out of pictures; else stretch them."),
]
Bgr = Annotated[
    bool,
    typer.Option("--bgr", help="Channels in the order blue, green, red, as Caffe's networks."),
]
Target = Annotated[
    Path, typer.Argument(metavar="OUT", help="The .onnx file to write.", show_default=False)
]
Opset = Annotated[
    int | None,
    typer.Option(metavar="N", help="Opset to write; else the file's, or what its nodes need."),
]
External = Annotated[
    int | None,
    typer.Option(metavar="BYTES", help="Constants of so many bytes go to a file beside it."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Print the traceback of an error, too.")]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and end the process with its exit code.

    Args:
        arguments: those after the program's name; the process's own where None.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        app(given, prog_name="tercet")
        code = 0
    except TercetError as error:
        code = _fail(error, str(error), error.exit_code, debug=debug)
    except OSError as error:
        code = _fail(error, _os_error_text(error), UsageError.exit_code, debug=debug)
    except MemoryError as error:
        text = f"the host has too little memory: {error}"
        code = _fail(error, text, DeviceError.exit_code, debug=debug)
    raise SystemExit(code)


def _fail(error: BaseException, text: str, code: int, *, debug: bool) -> int:
    """Print an error, with the traceback if it is wanted; return the exit code."""
    if debug:
        traceback.print_exception(error)
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(text + notes, err=True)
    return code


def _os_error_text(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tercet {__version__}")
        raise typer.Exit


@app.callback()
def tercet(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Import an ONNX model, run it on numpy, CUDA or cuDNN, and compare them."""


@app.command()
def run(
    model: File,
    backend: Annotated[
        str, typer.Option("--backend", "-b", metavar="BACKEND", help="Who runs it.")
    ] = "numpy",
    fallback: Fallback = None,
    precision: Precision = "float32",
    tune: Tune = False,
    conv: Convolution = None,
    files: Files = None,
    inputs_from: Folder = None,
    seed: Seed = 0,
    shapes: Shapes = None,
    dims: Dims = None,
    scale: Scale = 255,
    mean: Mean = "0",
    std: Std = "1",
    crop: Crop = False,
    bgr: Bgr = False,
    outputs: Outputs = "",
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the outputs to an .npz file.")
    ] = None,
    repeat: Repeats = None,
    threads: Threads = None,
    trace_shapes: Annotated[
        bool, typer.Option("--trace-shapes", help="List the shapes of every node, in order.")
    ] = False,
    check_each: Annotated[
        bool,
        typer.Option("--check-each", help="Wait after every step, so that a fault names its node."),
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a model; show its outputs and how long it takes."""
    from .arrays import check_archive_name, write_archive
    from .console import progress
    from .measure import Repeat
    from .run import run_model, show_run
    from .threads import use_threads

    check_archive_name(save)
    wanted = _wanted(files, inputs_from, seed, shapes, dims, (scale, mean, std, crop, bgr))
    with progress() as say, use_threads(threads):
        found = run_model(
            model,
            backend,
            wanted,
            _split(outputs),
            repeat=Repeat(repeat),
            trace_shapes=trace_shapes,
            say=say,
            fallback=fallback,
            precision=precision,
            tune=tune,
            conv=conv,
            check_each=check_each,
        )
    if save is not None:
        write_archive(save, found.outputs)
    _show(found, show_run, json=json)


@app.command()
def compare(
    model: File,
    backends: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            "-b",
            metavar="BACKEND",
            help=(
                "Who takes part, the reference first: a backend, onnxruntime or onnx.reference. "
                "Without any: every backend that can run here, and onnxruntime."
            ),
        ),
    ] = None,
    fallback: Fallback = None,
    precision: Precision = "float32",
    tune: Tune = False,
    conv: Convolution = None,
    files: Files = None,
    inputs_from: Folder = None,
    seed: Seed = 0,
    shapes: Shapes = None,
    dims: Dims = None,
    scale: Scale = 255,
    mean: Mean = "0",
    std: Std = "1",
    crop: Crop = False,
    bgr: Bgr = False,
    outputs: Outputs = "",
    rtol: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Difference allowed, as a share of max |reference|; float32: 1e-4.",
            show_default=False,
        ),
    ] = None,
    atol: Annotated[
        float | None, typer.Option(metavar="X", help="Difference allowed besides.")
    ] = None,
    repeat: Repeats = None,
    threads: Threads = None,
    skip_unavailable: Annotated[
        bool,
        typer.Option("--skip-unavailable", help="Leave out who cannot run the model here."),
    ] = False,
    layers: Annotated[
        bool,
        typer.Option("--layers", help="Compare two contestants node by node, each by itself."),
    ] = False,
    cumulative: Annotated[
        bool, typer.Option("--cumulative", help="With --layers: in one run of the whole model.")
    ] = False,
    twice: Annotated[
        bool, typer.Option("--twice", help="With --layers: run everything twice, compare the bits.")
    ] = False,
    other: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --layers: the second contestant runs this model."),
    ] = None,
    as_it_is: Annotated[
        bool, typer.Option("--no-optimise", help="With --layers: leave out the graph passes.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a model on several backends; compare outputs and latencies, or all tensors in between."""
    from .compare import compare as compare_all
    from .compare_view import show_comparison
    from .console import progress
    from .layers import compare_layers
    from .layers_view import show_layers
    from .measure import Repeat
    from .threads import use_threads

    wanted = _wanted(files, inputs_from, seed, shapes, dims, (scale, mean, std, crop, bgr))
    if not layers and (cumulative or twice or other or as_it_is):
        raise UsageError("--cumulative, --twice, --other and --no-optimise belong to --layers")
    if layers:
        with progress() as say, use_threads(threads):
            steps = compare_layers(
                model,
                backends,
                wanted,
                other=other,
                cumulative=cumulative,
                twice=twice,
                optimise=not as_it_is,
                fallback=fallback,
                precision=precision,
                tune=tune,
                conv=conv,
                say=say,
            )
        _show(steps, show_layers, json=json)
        raise typer.Exit(0 if steps.ok else 1)
    with progress() as say, use_threads(threads):
        found = compare_all(
            model,
            backends,
            wanted,
            outputs=_split(outputs),
            rtol=rtol,
            atol=atol,
            repeat=Repeat(repeat),
            fallback=fallback,
            precision=precision,
            tune=tune,
            conv=conv,
            skip_unavailable=skip_unavailable,
            say=say,
        )
    _show(found, show_comparison, json=json)
    raise typer.Exit(0 if found.ok else 1)


@app.command()
def bisect(
    model: File,
    backends: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            "-b",
            metavar="BACKEND",
            help="The reference, then the contestant; one alone is held against itself.",
        ),
    ] = None,
    fallback: Fallback = None,
    precision: Precision = "float32",
    tune: Tune = False,
    conv: Convolution = None,
    files: Files = None,
    inputs_from: Folder = None,
    seed: Seed = 0,
    shapes: Shapes = None,
    dims: Dims = None,
    reduce: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the smallest part that is wrong, and a script, there."
        ),
    ] = None,
    threads: Threads = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Find the graph rewrite, or the nodes, that make a model's outputs wrong."""
    from .bisection import bisect as bisect_model
    from .bisection_view import show_bisection
    from .console import progress
    from .reduction import write_reduced
    from .threads import use_threads

    wanted = _wanted(files, inputs_from, seed, shapes, dims)
    chosen = {"fallback": fallback, "precision": precision, "tune": tune, "conv": conv}
    with progress() as say, use_threads(threads):
        found = bisect_model(model, backends, wanted, say=say, **chosen)
    if reduce is not None and found.reduced is not None:
        names = found.reference, found.contestant
        given = {name: value for name, value in chosen.items() if value}
        write_reduced(found.reduced, reduce, model=str(model), contestants=names, options=given)
    _show(found, show_bisection, json=json)
    raise typer.Exit(0 if found.ok else 1)


@app.command()
def export(
    model: File,
    out: Target,
    as_it_is: Annotated[
        bool, typer.Option("--no-optimise", help="Write the graph as it was read.")
    ] = False,
    stop_at: Annotated[
        int | None, typer.Option(metavar="N", help="Stop after so many graph rewrites.")
    ] = None,
    opset: Opset = None,
    external: External = None,
    shapes: Shapes = None,
    dims: Dims = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the optimised graph as an ONNX model."""
    from .export import export as export_model
    from .export_view import show_exported

    found = export_model(
        model,
        out,
        optimise=not as_it_is,
        opset=opset,
        external=external,
        shapes=shapes or (),
        dims=dims or (),
        stop_at=stop_at,
    )
    _show(found, show_exported, json=json)


@app.command()
def simplify(
    model: File,
    out: Target,
    files: Files = None,
    inputs_from: Folder = None,
    seed: Seed = 0,
    opset: Opset = None,
    external: External = None,
    shapes: Shapes = None,
    dims: Dims = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the optimised graph as an ONNX model, and check it against the original."""
    from .console import progress
    from .export import simplify as simplify_model
    from .export_view import show_exported

    wanted = _wanted(files, inputs_from, seed, shapes, dims)
    with progress() as say:
        found = simplify_model(
            model,
            out,
            wanted,
            opset=opset,
            external=external,
            shapes=shapes or (),
            dims=dims or (),
            say=say,
        )
    _show(found, show_exported, json=json)
    raise typer.Exit(0 if found.ok else 1)


@app.command()
def extract(
    model: File,
    out: Target,
    inputs: Annotated[
        str, typer.Option(metavar="A,B", help="Tensors that become the inputs; else the model's.")
    ] = "",
    outputs: Annotated[
        str, typer.Option(metavar="A,B", help="Tensors that become the outputs; else the model's.")
    ] = "",
    opset: Opset = None,
    external: External = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the part of a model between some tensors as a model of its own."""
    from .export import extract as extract_part
    from .export_view import show_exported

    found = extract_part(
        model,
        out,
        inputs=_split(inputs),
        outputs=_split(outputs),
        opset=opset,
        external=external,
    )
    _show(found, show_exported, json=json)


@app.command()
def inspect(
    model: File,
    passes: Annotated[
        bool, typer.Option("--passes", help="What the graph passes do: nodes and bytes.")
    ] = False,
    placement: Annotated[
        str | None,
        typer.Option(metavar="BACKEND", help="Which backend and kernel run each node, and why."),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="The memory plan, on numpy or the --placement backend.")
    ] = False,
    fallback: Fallback = None,
    precision: Precision = "float32",
    tune: Tune = False,
    conv: Convolution = None,
    shapes: Shapes = None,
    dims: Dims = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what is in a model, its cost, placement and memory."""
    from .console import progress
    from .inspection import inspect as inspect_model
    from .inspection_view import show_inspection

    with progress() as say:
        found = inspect_model(
            model,
            passes=passes,
            placement=placement,
            memory=memory,
            fallback=fallback,
            precision=precision,
            tune=tune,
            conv=conv,
            shapes=shapes or (),
            dims=dims or (),
            say=say,
        )
    _show(found, show_inspection, json=json)


@app.command()
def profile(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="An ONNX file; none with --diff."),
    ] = None,
    backend: Annotated[
        str, typer.Option("--backend", "-b", metavar="BACKEND", help="Who runs it.")
    ] = "numpy",
    fallback: Fallback = None,
    precision: Precision = "float32",
    tune: Tune = False,
    conv: Convolution = None,
    files: Files = None,
    inputs_from: Folder = None,
    seed: Seed = 0,
    shapes: Shapes = None,
    dims: Dims = None,
    repeat: Repeats = None,
    threads: Threads = None,
    top: Annotated[
        int, typer.Option(metavar="N", help="Most lines of a table; 0 for all.", min=0)
    ] = 15,
    peaks: Annotated[
        bool, typer.Option("--peaks/--no-peaks", help="Measure the machine's peaks, too.")
    ] = True,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one run for Perfetto or Chrome's tracing page."),
    ] = None,
    diff: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.json B.json", help="Compare two saved profiles; runs nothing."),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show where the time of a run goes, beside what the machine could do."""
    from .console import progress
    from .measure import Repeat
    from .profiling import profile as profile_model
    from .profiling_diff import diff_profiles
    from .profiling_view import show_difference, show_profile
    from .threads import use_threads
    from .trace_events import write_trace

    if (model is None) == (diff is None):
        raise UsageError("either a model, or --diff with two saved profiles")
    if diff is not None:
        _show(diff_profiles(*diff), lambda c, f: show_difference(c, f, top), json=json)
        return
    wanted = _wanted(files, inputs_from, seed, shapes, dims)
    with progress() as say, use_threads(threads):
        found = profile_model(
            model or "",
            backend,
            wanted,
            repeat=None if repeat is None else Repeat(repeat),
            peaks=peaks,
            fallback=fallback,
            precision=precision,
            say=say,
            tune=tune,
            conv=conv,
        )
    if trace is not None:
        write_trace(found, trace)
    _show(found, lambda c, f: show_profile(c, f, top), json=json)


@app.command()
def bench(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="ONNX files.", show_default=False),
    ],
    backends: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            "-b",
            metavar="BACKEND",
            help=(
                "Who takes part: a backend, onnxruntime or onnx.reference. "
                "Without any: every backend that can run here, and onnxruntime."
            ),
        ),
    ] = None,
    fallback: Fallback = None,
    batch: Annotated[
        str, typer.Option(metavar="1,8", help="Batches; else what the model says, 1 if nothing.")
    ] = "",
    precision: Annotated[
        str, typer.Option(metavar="A,B", help="Arithmetics of float32 tensors: float32, tf32.")
    ] = "float32",
    streams: Annotated[
        str, typer.Option(metavar="1,4", help="Callers at a time: 1 for latency, more for rate.")
    ] = "1",
    duration: Annotated[
        float, typer.Option(metavar="SECONDS", help="Steady runs of each contestant.")
    ] = 2.0,
    warm_up: Annotated[
        float, typer.Option("--warm-up", metavar="SECONDS", help="Runs before that do not count.")
    ] = 0.5,
    accuracy: Annotated[
        bool, typer.Option("--accuracy/--no-accuracy", help="Run in float64, too, for the errors.")
    ] = True,
    tune: Tune = False,
    conv: Convolution = None,
    files: Files = None,
    inputs_from: Folder = None,
    seed: Seed = 0,
    shapes: Shapes = None,
    dims: Dims = None,
    threads: Threads = None,
    skip_unavailable: Annotated[
        bool,
        typer.Option("--skip-unavailable", help="Leave out who cannot run a model here."),
    ] = False,
    old: Annotated[
        Path | None,
        typer.Option("--compare", metavar="OLD.json", help="Compare with an older benchmark."),
    ] = None,
    assert_p50: Annotated[
        list[str] | None,
        typer.Option("--assert-p50", metavar="[WHO=]5ms", help="Most that a median may be."),
    ] = None,
    assert_ops: Annotated[
        int | None, typer.Option("--assert-ops", metavar="N", help="Most steps of a plan.")
    ] = None,
    assert_error: Annotated[
        float | None,
        typer.Option("--assert-error", metavar="X", help="Most that an error may be."),
    ] = None,
    assert_ratio: Annotated[
        float | None,
        typer.Option("--assert-ratio", metavar="X", help="Most of median by older median."),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure latency, throughput and accuracy; hold them against limits or an older benchmark."""
    from .bench import Schedule
    from .bench import bench as bench_models
    from .bench_check import Limits, latency_limits
    from .bench_view import show_bench
    from .console import progress
    from .threads import use_threads

    if assert_ratio is not None and old is None:
        raise UsageError("--assert-ratio belongs to --compare")
    schedule = Schedule(
        batches=_integers("--batch", batch) or (None,),
        precisions=_split(precision),
        streams=_integers("--streams", streams),
        duration=duration,
        warm_up=warm_up,
        accuracy=accuracy,
    )
    with progress() as say, use_threads(threads):
        found = bench_models(
            models,
            backends,
            _wanted(files, inputs_from, seed, shapes, dims),
            schedule=schedule,
            limits=Limits(latency_limits(assert_p50 or ()), assert_ops, assert_error, assert_ratio),
            old=old,
            fallback=fallback,
            skip_unavailable=skip_unavailable,
            say=say,
            tune=tune,
            conv=conv,
        )
    _show(found, show_bench, json=json)
    raise typer.Exit(0 if found.ok else 1)


@app.command()
def doctor(
    require: Annotated[
        str | None,
        typer.Option(metavar="BACKEND", help="Exit with 5 unless this backend can run here."),
    ] = None,
    peaks: Annotated[
        bool, typer.Option("--peaks", help="Measure bytes and FLOP a second, on every device.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what is here, what is missing, and how to install it."""
    from .console import progress
    from .doctor import diagnose, show_diagnosis

    with progress() as say:
        found = diagnose(peaks=peaks, say=say)
    _show(found, show_diagnosis, json=json)
    if require is not None:
        found.require(require)


@app.command()
def conformance(
    backend: Annotated[
        str, typer.Option("--backend", "-b", metavar="BACKEND", help="Who runs the cases.")
    ] = "numpy",
    fallback: Fallback = None,
    pattern: Annotated[
        str,
        typer.Option(
            "-k", metavar="PATTERN", help="Only cases whose category/name has this expression."
        ),
    ] = "",
    categories: Annotated[
        list[str] | None,
        typer.Option("--category", metavar="NAME", help="Only this category; repeat it for more."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="What a case may take at most.")
    ] = 60,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes; else one for each CPU, 8 at most."),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the page on all backends that were measured."),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run ONNX's own test suite; show the score and what is not passed."""
    from .conformance.page import check_whole, write_page
    from .conformance.run import run_suite
    from .conformance.view import progress_bar, show_report

    check_whole(write, pattern, categories)
    with progress_bar() as tell:
        found = run_suite(
            backend,
            fallback,
            pattern=pattern,
            categories=categories or (),
            timeout=timeout,
            jobs=jobs,
            tell=tell,
        )
    if write is not None:
        write_page(write, found)
    _show(found, show_report, json=json)
    raise typer.Exit(0 if found.ok else 1)


@app.command()
def demo(
    backends: Annotated[
        list[str] | None,
        typer.Option("--backend", "-b", metavar="BACKEND", help="Who reads; else all that can."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Read handwritten digits on every backend that this machine has."""
    from .console import open_console
    from .demo import run_demo

    raise typer.Exit(run_demo(open_console(), backends))


def _wanted(
    files: Sequence[str] | None,
    folder: Path | None,
    seed: int,
    shapes: Sequence[str] | None,
    dims: Sequence[str] | None,
    pixels: tuple[float, str, str, bool, bool] = (255, "0", "1", False, False),
) -> Wanted:
    from .images import Pixels
    from .inputs import Wanted

    scale, mean, std, crop, bgr = pixels
    chosen = Pixels(scale, _numbers("--mean", mean), _numbers("--std", std), crop, bgr)
    return Wanted(files or (), folder, seed, shapes or (), dims or (), chosen)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"{option} {text}: one number, or one for each channel with commas between"
        ) from error


def _integers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in _split(text))
    except ValueError as error:
        raise UsageError(f"{option} {text}: whole numbers with commas between") from error


def _split(names: str) -> tuple[str, ...]:
    return tuple(name for name in names.split(",") if name)


def _show(found: Any, view: Any, *, json: bool) -> None:
    from .console import open_console, print_json

    console = open_console()
    if json:
        print_json(console, found.to_dict())
    else:
        view(console, found)
