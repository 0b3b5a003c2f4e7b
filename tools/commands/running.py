"""Commands that run a model, and compare what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...runtime.errors import UsageError
from .options import (
    Bgr,
    Convolution,
    Crop,
    Debug,
    Dims,
    Fallback,
    File,
    Files,
    Folder,
    Json,
    Mean,
    Outputs,
    Precision,
    Repeats,
    Scale,
    Seed,
    Shapes,
    Std,
    Threads,
    Tune,
    show,
    split,
    wanted_inputs,
)


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
    from ..arrays import check_archive_name, write_archive
    from ..console import progress
    from ..measure import Repeat
    from ..run import run_model, show_run
    from ..threads import use_threads

    check_archive_name(save)
    wanted = wanted_inputs(files, inputs_from, seed, shapes, dims, (scale, mean, std, crop, bgr))
    with progress() as say, use_threads(threads):
        found = run_model(
            model,
            backend,
            wanted,
            split(outputs),
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
    show(found, show_run, json=json)


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
    from ..compare import compare as compare_all
    from ..compare_view import show_comparison
    from ..console import progress
    from ..layers import compare_layers
    from ..layers_view import show_layers
    from ..measure import Repeat
    from ..threads import use_threads

    wanted = wanted_inputs(files, inputs_from, seed, shapes, dims, (scale, mean, std, crop, bgr))
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
        show(steps, show_layers, json=json)
        raise typer.Exit(0 if steps.ok else 1)
    with progress() as say, use_threads(threads):
        found = compare_all(
            model,
            backends,
            wanted,
            outputs=split(outputs),
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
    show(found, show_comparison, json=json)
    raise typer.Exit(0 if found.ok else 1)


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
    from ..bisection import bisect as bisect_model
    from ..bisection_view import show_bisection
    from ..console import progress
    from ..reduction import write_reduced
    from ..threads import use_threads

    wanted = wanted_inputs(files, inputs_from, seed, shapes, dims)
    chosen = {"fallback": fallback, "precision": precision, "tune": tune, "conv": conv}
    with progress() as say, use_threads(threads):
        found = bisect_model(model, backends, wanted, say=say, **chosen)
    if reduce is not None and found.reduced is not None:
        names = found.reference, found.contestant
        given = {name: value for name, value in chosen.items() if value}
        write_reduced(found.reduced, reduce, model=str(model), contestants=names, options=given)
    show(found, show_bisection, json=json)
    raise typer.Exit(0 if found.ok else 1)
