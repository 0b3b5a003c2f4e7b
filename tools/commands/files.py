"""Commands that inspect and write model files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...runtime.errors import UsageError
from .groups import (
    Common,
    FixedShapeOptions,
    FrozenModelOptions,
    InputOptions,
    RunOptions,
    ShapeOptions,
    WrittenFile,
)
from .option_values import figures, names_of, split
from .options import (
    AllowInconclusive,
    File,
    Finite,
    Integers,
    KeepFloat32,
    Precision,
    SkipPasses,
    Target,
    show,
    written_file,
    written_folder,
)


def export(
    model: File,
    out: Target,
    *,
    as_it_is: Annotated[bool, typer.Option("--no-optimise", help="Skip all graph passes.")] = False,
    stop_at: Annotated[
        int | None, typer.Option(metavar="N", help="Stop after N rewrites of graph passes.")
    ] = None,
    skip_passes: SkipPasses = "",
    finite: Finite = False,
    integers: Integers = None,
    precision: Precision = "float32",
    keep: KeepFloat32 = "",
    reading: FrozenModelOptions,
    written: WrittenFile,
    shapes: FixedShapeOptions,
    common: Common,
) -> None:
    """Write the optimised graph as an ONNX model.

    Examples:
        tercet export model.onnx out.onnx
        tercet export model.onnx out.onnx --opset 17 --dim batch=4
        tercet export model.onnx out.onnx --precision float16
    """
    from ..export.export import export as export_model
    from ..export.export_view import show_exported

    found = export_model(
        model,
        out,
        optimise=not as_it_is,
        **written.as_options(),
        **shapes.as_options(),
        freeze=reading.frozen,
        timeout=common.timeout,
        stop_at=stop_at,
        skip=split(skip_passes),
        finite=finite,
        integers=integers,
        precision=precision,
        keep_float32=names_of(keep),
    )
    show(found, show_exported, json=common.json)


def simplify(
    model: File,
    out: Target,
    *,
    inputs: InputOptions,
    reading: FrozenModelOptions,
    written: WrittenFile,
    allow: AllowInconclusive = False,
    finite: Finite = False,
    precision: Precision = "float32",
    keep: KeepFloat32 = "",
    common: Common,
) -> None:
    """Write the optimised graph as an ONNX model, and check it against the original.

    Examples:
        tercet simplify model.onnx out.onnx
        tercet simplify model.onnx half.onnx --precision float16
    """
    from ..common.console import progress
    from ..export.export import simplify as simplify_model
    from ..export.export_view import show_exported

    with progress() as say:
        found = simplify_model(
            model,
            out,
            inputs.wanted,
            **written.as_options(),
            **inputs.as_options(),
            freeze=reading.frozen,
            allow_inconclusive=allow,
            finite=finite,
            precision=precision,
            keep_float32=names_of(keep),
            timeout=common.timeout,
            say=say,
        )
    show(found, show_exported, json=common.json)
    raise typer.Exit(found.exit_code)


def extract(
    model: File,
    out: Target,
    *,
    inputs: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="Tensors that become inputs; default: the model's inputs."
        ),
    ] = "",
    outputs: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="Tensors that become outputs; default: the model's outputs."
        ),
    ] = "",
    written: WrittenFile,
    shapes: FixedShapeOptions,
    common: Common,
) -> None:
    """Write the subgraph between given tensors as a model.

    Examples:
        tercet extract model.onnx tail.onnx --inputs r --outputs scores
    """
    from ..export.export import extract as extract_part
    from ..export.export_view import show_exported

    found = extract_part(
        model,
        out,
        inputs=split(inputs),
        outputs=split(outputs),
        **written.as_options(),
        **shapes.as_options(),
        timeout=common.timeout,
    )
    show(found, show_exported, json=common.json)


def compress(
    model: File,
    out: Target,
    *,
    sparsity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]X",
            help="Fraction of the weights to set to zero, of all tensors or of a weight, node or "
            "operator; repeatable.",
        ),
    ] = None,
    bits: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]N",
            help="Bits per code of shared values, 1 to 8, of all tensors or of one as above; "
            "repeatable.",
        ),
    ] = None,
    min_elements: Annotated[
        int, typer.Option(metavar="N", help="Leave tensors with fewer elements unchanged.")
    ] = 1024,
    inputs: InputOptions,
    reading: FrozenModelOptions,
    written: WrittenFile,
    common: Common,
) -> None:
    """Prune weights and share their values; write a smaller model.

    Examples:
        tercet compress model.onnx small.onnx --sparsity 0.5 --bits 5 --min-elements 100
    """
    from ..common.console import progress
    from ..compress.compress import compress as compress_model
    from ..compress.compress_view import show_compression

    with progress() as say:
        found = compress_model(
            model,
            out,
            inputs.wanted,
            sparsity=figures("--sparsity", sparsity),
            bits=figures("--bits", bits, whole=True),
            min_elements=min_elements,
            **written.as_options(),
            freeze=reading.frozen,
            timeout=common.timeout,
            say=say,
        )
    show(found, show_compression, json=common.json)


def inspect(
    model: File,
    *,
    passes: Annotated[
        bool, typer.Option("--passes", help="Show what each graph pass does, in nodes and bytes.")
    ] = False,
    diff: Annotated[
        bool,
        typer.Option("--diff", help="With --passes: show each pass as a diff of the graph's text."),
    ] = False,
    ir: Annotated[
        Path | None,
        written_folder("With --passes: write the graph's text after each pass."),
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Show MACs, parameters and bytes of each node.")
    ] = False,
    capability: Annotated[
        str | None,
        typer.Option(
            metavar="BACKEND",
            help="Show which operators this backend runs, which it does not, and why.",
        ),
    ] = None,
    graph: Annotated[
        Path | None,
        written_file("FILE", "Draw the graph to an .svg, .html or .dot file."),
    ] = None,
    placement: Annotated[
        str | None,
        typer.Option(
            metavar="BACKEND", help="Show the backend and kernel of each node, and the reason."
        ),
    ] = None,
    algorithms: Annotated[
        bool,
        typer.Option(
            "--algorithms",
            help="Show the algorithms of each node on --backend, or why one does not apply.",
        ),
    ] = False,
    backend: Annotated[
        str,
        typer.Option(
            "--backend", "-b", metavar="BACKEND", help="With --algorithms: cuda or cudnn."
        ),
    ] = "cuda",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="ARCH[:N]",
            help="With cuda or tensorrt: the GPU to plan for, such as sm_86, with N "
            "multiprocessors; it need not be present.",
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="Show the memory plan for the --placement backend, also with --target; default: "
            "numpy.",
        ),
    ] = False,
    lint: Annotated[
        bool,
        typer.Option(
            "--lint",
            help="Show patterns that cost time or memory, and what to do; with --placement, also "
            "those of its steps.",
        ),
    ] = False,
    options: RunOptions,
    shapes: ShapeOptions,
    common: Common,
) -> None:
    """Show a model's contents, cost, placement and memory.

    Examples:
        tercet inspect model.onnx
        tercet inspect model.onnx --placement cuda --target sm_90a
        tercet inspect model.onnx --passes --diff --ir texts
    """
    from ..common.console import progress
    from ..inspect.graph_file import check_graph_name, write_graph
    from ..inspect.inspection import inspect as inspect_model
    from ..inspect.inspection_view import show_inspection
    from ..inspect.pass_texts import write_texts

    if (diff or ir) and not passes:
        raise UsageError("--diff and --ir need --passes")
    if algorithms and (passes or graph is not None):
        raise UsageError("--algorithms shows nothing else: leave out --passes and --graph")
    if graph is not None:
        check_graph_name(graph)
    if algorithms:
        chosen = {**options.as_options(), **shapes.as_options()}
        del chosen["fallback"], chosen["keep_float32"]
        _inspect_algorithms(
            model,
            backend,
            json=common.json,
            timeout=common.timeout,
            target=target,
            **chosen,
        )
        return
    with progress() as say:
        found = inspect_model(
            model,
            passes=passes,
            placement=placement,
            memory=memory,
            cost=cost,
            capability=capability,
            lint=lint,
            target=target,
            **options.as_options(),
            **shapes.as_options(),
            timeout=common.timeout,
            say=say,
        )

    def write() -> None:
        if ir is not None and found.passes is not None:
            write_texts(ir, found.passes.texts)
        if graph is not None and found.graph is not None:
            write_graph(graph, found.graph, str(model))

    show(
        found,
        lambda console, each: show_inspection(console, each, diff=diff),
        json=common.json,
        write=write,
    )


def _inspect_algorithms(
    model: Path,
    backend: str,
    *,
    json: bool,
    timeout: float | None,
    target: str | None,
    **options: Any,
) -> None:
    from ..common.console import progress
    from ..common.deadline import all_or_nothing
    from ..tune.algorithms import algorithms
    from ..tune.algorithms_view import show_algorithms
    from ..tune.cudnn_algorithms import engine_lists, show_engine_lists

    if backend not in ("cuda", "cudnn"):
        raise UsageError(f"--algorithms needs --backend cuda or cudnn, not '{backend}'")
    if backend == "cudnn" and target is not None:
        raise UsageError(
            "--target needs --backend cuda: cuDNN lists engines only on a GPU that is present"
        )
    if backend == "cudnn":
        with progress() as say, all_or_nothing(timeout, say) as tell:
            lists = engine_lists(model, say=tell, **options)
        show(lists, show_engine_lists, json=json)
        return
    with progress() as say, all_or_nothing(timeout, say) as tell:
        menus = algorithms(model, target=target, say=tell, **options)
    show(menus, show_algorithms, json=json)
