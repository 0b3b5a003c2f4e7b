"""The command that measures the algorithms of a model's nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from ...runtime.errors import UsageError
from .groups import AlgorithmOptions, Common, ShapeOptions
from .options import File, show, size_option


def tune(
    model: File,
    *,
    show_space: Annotated[
        bool,
        typer.Option("--show-space", help="List the algorithms to measure; run none."),
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Show all measured algorithms, not only the best.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--force", help="Measure again what has been measured before.")
    ] = False,
    workspace: Annotated[
        int | None, size_option("--workspace", "Maximum scratch memory per node.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="ARCH[:N]",
            help="With --show-space: the GPU to plan for, such as sm_86; it need not be present.",
        ),
    ] = None,
    options: AlgorithmOptions,
    shapes: ShapeOptions,
    common: Common,
) -> None:
    """Find faster algorithms for each Conv, Gemm and MatMul in the network on the GPU, for --tune.

    Examples:
        tercet tune model.onnx --report --dim batch=8
        tercet tune model.onnx --show-space
    """
    from ..common.console import progress
    from ..common.deadline import all_or_nothing
    from ..tune.algorithms import algorithms as list_algorithms
    from ..tune.algorithms_view import show_algorithms, show_report, show_tuned
    from ..tune.tuning import tune as tune_model

    chosen = {"workspace": workspace, **options.as_options(), **shapes.as_options()}
    if target is not None and not show_space:
        raise UsageError(
            "--target needs --show-space: algorithms are measured on a GPU that is present"
        )
    if show_space:
        with progress() as say, all_or_nothing(common.timeout, say) as tell:
            listed = list_algorithms(model, target=target, say=tell, tune=True, **chosen)
        show(listed, show_algorithms, json=common.json)
        return
    with progress() as say, all_or_nothing(common.timeout, say) as tell:
        found = tune_model(model, again=again, say=tell, **chosen)
    show(found, show_report if report else show_tuned, json=common.json)
