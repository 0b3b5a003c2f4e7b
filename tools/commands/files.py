"""Commands that look into a file, and write others."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import (
    Convolution,
    Debug,
    Dims,
    External,
    Fallback,
    File,
    Files,
    Folder,
    Json,
    Opset,
    Precision,
    Seed,
    Shapes,
    Target,
    Tune,
    show,
    split,
    wanted_inputs,
)


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
    from ..export import export as export_model
    from ..export_view import show_exported

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
    show(found, show_exported, json=json)


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
    from ..console import progress
    from ..export import simplify as simplify_model
    from ..export_view import show_exported

    wanted = wanted_inputs(files, inputs_from, seed, shapes, dims)
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
    show(found, show_exported, json=json)
    raise typer.Exit(0 if found.ok else 1)


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
    from ..export import extract as extract_part
    from ..export_view import show_exported

    found = extract_part(
        model,
        out,
        inputs=split(inputs),
        outputs=split(outputs),
        opset=opset,
        external=external,
    )
    show(found, show_exported, json=json)


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
    from ..console import progress
    from ..inspection import inspect as inspect_model
    from ..inspection_view import show_inspection

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
    show(found, show_inspection, json=json)
