"""Commands that run a model and compare its results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ...runtime.errors import UsageError
from .options import (
    Algorithms,
    AllowInconclusive,
    BackendOptions,
    Bgr,
    Convolution,
    Crop,
    Debug,
    DecodeStep,
    Device,
    Dims,
    Fallback,
    File,
    Files,
    Folder,
    Freeze,
    Json,
    KeepFloat32,
    Mean,
    Outputs,
    Precision,
    Repeats,
    Scale,
    Seed,
    Shapes,
    SkipPasses,
    Std,
    Threads,
    Timeout,
    Tokens,
    Tune,
    algorithms_of,
    backend_options_of,
    decoded,
    exit_code,
    names_of,
    show,
    split,
    wanted_inputs,
)


def run(
    model: File,
    backend: Annotated[
        str, typer.Option("--backend", "-b", metavar="BACKEND", help="Backend to run on.")
    ] = "numpy",
    fallback: Fallback = None,
    precision: Precision = "float32",
    keep: KeepFloat32 = "",
    device: Device = 0,
    tune: Tune = False,
    conv: Convolution = None,
    algorithm: Algorithms = None,
    backend_option: BackendOptions = None,
    skip_passes: SkipPasses = "",
    files: Files = None,
    inputs_from: Folder = None,
    seed: Seed = 0,
    shapes: Shapes = None,
    dims: Dims = None,
    tokens: Tokens = "",
    decode_step: DecodeStep = None,
    scale: Scale = 255,
    mean: Mean = "0",
    std: Std = "1",
    crop: Crop = False,
    bgr: Bgr = False,
    freeze: Freeze = None,
    outputs: Outputs = "",
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the outputs to an .npz file.")
    ] = None,
    repeat: Repeats = None,
    threads: Threads = None,
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
    timeout: Timeout = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a model; show its outputs and latency."""
    from ..common.archives import write_archive
    from ..common.arrays import check_archive_name, read_named
    from ..common.console import progress
    from ..common.measure import Repeat
    from ..common.nested import flat
    from ..common.threads import use_threads
    from ..run.run import run_model, show_run

    check_archive_name(save)
    pixels = (scale, mean, std, crop, bgr)
    wanted = wanted_inputs(files, inputs_from, seed, shapes, dims, pixels)
    inputs = decoded(model, wanted, tokens, decode_step)
    with progress() as say, use_threads(threads):
        found = run_model(
            model,
            backend,
            inputs,
            split(outputs),
            repeat=Repeat(repeat),
            trace_shapes=trace_shapes,
            say=say,
            fallback=fallback,
            precision=precision,
            keep_float32=names_of(keep),
            device=device,
            tune=tune,
            conv=conv,
            algorithms=algorithms_of(algorithm),
            backend_options=backend_options_of(backend_option),
            skip=split(skip_passes),
            check_each=check_each,
            freeze=read_named("--freeze-input", freeze or ()),
            timeout=timeout,
        )
    if save is not None:
        write_archive(save, flat(found.outputs))
    show(found, show_run, json=json)
    raise typer.Exit(exit_code(True, found.stopped))


def compare(
    model: File,
    backends: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            "-b",
            metavar="BACKEND",
            help=(
                "What to compare, reference first: a backend, onnxruntime, onnx.reference, an "
                ".npz file of outputs or a folder of test data. Without any: every backend that "
                "can run here, and onnxruntime."
            ),
        ),
    ] = None,
    fallback: Fallback = None,
    precision: Precision = "float32",
    keep: KeepFloat32 = "",
    device: Device = 0,
    tune: Tune = False,
    conv: Convolution = None,
    algorithm: Algorithms = None,
    backend_option: BackendOptions = None,
    skip_passes: SkipPasses = "",
    files: Files = None,
    inputs_from: Folder = None,
    seed: Seed = 0,
    shapes: Shapes = None,
    dims: Dims = None,
    tokens: Tokens = "",
    decode_step: DecodeStep = None,
    scale: Scale = 255,
    mean: Mean = "0",
    std: Std = "1",
    crop: Crop = False,
    bgr: Bgr = False,
    outputs: Outputs = "",
    rtol: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]X",
            help="Relative tolerance, a fraction of max |reference|; default: from a float64 run.",
            show_default=False,
        ),
    ] = None,
    atol: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]X",
            help="Absolute tolerance. Both may be given per output or dtype.",
            show_default=False,
        ),
    ] = None,
    stats: Annotated[
        bool,
        typer.Option("--stats", help="Also show quantiles, cosine, PSNR, ulp, top-1 and top-5."),
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write inputs and all outputs to an .npz file."),
    ] = None,
    load: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also compare with the results in a file written by --save."
        ),
    ] = None,
    repeat: Repeats = None,
    threads: Threads = None,
    skip_unavailable: Annotated[
        bool,
        typer.Option("--skip-unavailable", help="Skip backends that cannot run the model here."),
    ] = False,
    layers: Annotated[
        bool,
        typer.Option("--layers", help="Compare node by node, each on the reference's inputs."),
    ] = False,
    cumulative: Annotated[
        bool,
        typer.Option(
            "--cumulative", help="With --layers: in one run, with each backend's own inputs."
        ),
    ] = False,
    twice: Annotated[
        bool,
        typer.Option("--twice", help="With --layers: run everything twice and compare bit by bit."),
    ] = False,
    other: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --layers: the model that the second backend runs."),
    ] = None,
    as_it_is: Annotated[
        bool, typer.Option("--no-optimise", help="With --layers: skip the graph passes.")
    ] = False,
    allow: AllowInconclusive = False,
    timeout: Timeout = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a model on several backends; compare outputs and latency, or every tensor."""
    from ..common.arrays import check_archive_name
    from ..common.console import progress
    from ..common.measure import Repeat
    from ..common.threads import use_threads
    from ..compare.compare import compare as compare_all
    from ..compare.compare_view import show_comparison
    from ..compare.layers import compare_layers
    from ..compare.layers_view import show_layers
    from ..verdict.tolerances import parse_tolerances

    check_archive_name(save)
    pixels = (scale, mean, std, crop, bgr)
    wanted = wanted_inputs(files, inputs_from, seed, shapes, dims, pixels)
    inputs = decoded(model, wanted, tokens, decode_step)
    if not layers and (cumulative or twice or other or as_it_is):
        raise UsageError("--cumulative, --twice, --other and --no-optimise belong to --layers")
    if layers:
        with progress() as say, use_threads(threads):
            steps = compare_layers(
                model,
                backends,
                inputs,
                other=other,
                cumulative=cumulative,
                twice=twice,
                optimise=not as_it_is,
                fallback=fallback,
                precision=precision,
                keep_float32=names_of(keep),
                device=device,
                tune=tune,
                conv=conv,
                algorithms=algorithms_of(algorithm),
                backend_options=backend_options_of(backend_option),
                skip=split(skip_passes),
                allow_inconclusive=allow,
                timeout=timeout,
                say=say,
            )
        show(steps, show_layers, json=json)
        raise typer.Exit(steps.exit_code)
    with progress() as say, use_threads(threads):
        found = compare_all(
            model,
            backends,
            inputs,
            outputs=split(outputs),
            rtol=parse_tolerances("--rtol", rtol),
            atol=parse_tolerances("--atol", atol),
            repeat=Repeat(repeat),
            fallback=fallback,
            precision=precision,
            keep_float32=names_of(keep),
            device=device,
            tune=tune,
            conv=conv,
            algorithms=algorithms_of(algorithm),
            backend_options=backend_options_of(backend_option),
            skip=split(skip_passes),
            skip_unavailable=skip_unavailable,
            load=load,
            allow_inconclusive=allow,
            timeout=timeout,
            say=say,
        )
    if save is not None:
        found.save(save)
    show(found, lambda console, each: show_comparison(console, each, stats=stats), json=json)
    raise typer.Exit(found.exit_code)


def bisect(
    model: File,
    backends: Annotated[
        list[str] | None,
        typer.Option(
            "--backend",
            "-b",
            metavar="BACKEND",
            help="The reference, then the backend to check; one alone is checked against itself.",
        ),
    ] = None,
    fallback: Fallback = None,
    precision: Precision = "float32",
    keep: KeepFloat32 = "",
    device: Device = 0,
    tune: Tune = False,
    conv: Convolution = None,
    algorithm: Algorithms = None,
    backend_option: BackendOptions = None,
    skip_passes: SkipPasses = "",
    files: Files = None,
    inputs_from: Folder = None,
    seed: Seed = 0,
    shapes: Shapes = None,
    dims: Dims = None,
    tokens: Tokens = "",
    decode_step: DecodeStep = None,
    reduce: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write the smallest failing subgraph and a script there."
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="With --precision float16 or bfloat16: find nodes that must stay float32 to keep "
            "errors against float64 within X, as a fraction of max |output|.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --tolerance: write the names of these nodes, one per line."
        ),
    ] = None,
    threads: Threads = None,
    allow: AllowInconclusive = False,
    timeout: Timeout = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Find the rewrite or node that makes outputs wrong, or the nodes that must stay float32."""
    from ..bisect.bisection import bisect as bisect_model
    from ..bisect.bisection_view import show_bisection
    from ..bisect.precision import keep_float32 as find_kept
    from ..bisect.precision_view import show_kept
    from ..bisect.reduction import write_reduced
    from ..common.console import progress
    from ..common.threads import use_threads

    wanted = wanted_inputs(files, inputs_from, seed, shapes, dims)
    inputs = decoded(model, wanted, tokens, decode_step)
    options: dict[str, Any] = {
        "device": device,
        "tune": tune,
        "conv": conv,
        "algorithms": algorithms_of(algorithm),
        "backend_options": backend_options_of(backend_option),
        "skip": split(skip_passes),
    }
    if tolerance is None and save is not None:
        raise UsageError("--save belongs to --tolerance")
    if tolerance is not None:
        if reduce is not None or keep or len(backends or ()) > 1:
            raise UsageError("--tolerance takes one --backend, and neither --reduce nor a list")
        with progress() as say, use_threads(threads):
            kept = find_kept(
                model,
                tolerance,
                cast("Any", precision),  # which the function checks
                (backends or ["numpy"])[0],
                inputs,
                fallback=fallback,
                timeout=timeout,
                say=say,
                **options,
            )
        if save is not None:
            kept.save(save)
        show(kept, show_kept, json=json)
        raise typer.Exit(exit_code(kept.ok, kept.stopped))
    chosen: dict[str, Any] = {"fallback": fallback, "precision": precision, **options}
    chosen["keep_float32"] = names_of(keep)
    with progress() as say, use_threads(threads):
        found = bisect_model(
            model, backends, inputs, allow_inconclusive=allow, timeout=timeout, say=say, **chosen
        )
    if reduce is not None and found.reduced is not None:
        names = found.reference, found.runner
        given = {name: value for name, value in chosen.items() if value}
        write_reduced(found.reduced, reduce, model=str(model), runners=names, options=given)
    show(found, show_bisection, json=json)
    raise typer.Exit(found.exit_code)
