"""The commands that measure the algorithms of a model's nodes, and compile its kernels."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from ...runtime.errors import UsageError
from .groups import AlgorithmOptions, Common, Group, ShapeOptions
from .option_values import names_of, split
from .options import (
    Fallback,
    File,
    Finite,
    Integers,
    KeepFloat32,
    PrefillChunk,
    SkipPasses,
    Variant,
    show,
    size_option,
)


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


@dataclass(frozen=True)
class StepOptions(Group):
    """The steps of a decoder, whose folder is given instead of a model."""

    title: ClassVar[str] = "With the folder of a decoder, as of tercet generate"
    variant: Variant = None
    batch: Annotated[
        int, typer.Option(metavar="N", help="Number of sequences that are generated together.")
    ] = 1
    capacity: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Capacity of the caches in tokens; default: what they have at first."
        ),
    ] = None
    prefill_chunk: PrefillChunk = 1024

    def as_options(self) -> dict[str, Any]:
        """Return the options by their Python names."""
        return asdict(self)


def compile(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="An ONNX file, or the folder of a decoder.",
            show_default=False,
        ),
    ],
    *,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="ARCH[:N]",
            help="The GPU to compile for, such as sm_90a; it need not be present. Default: the "
            "one that is.",
        ),
    ] = None,
    fallback: Fallback = None,
    keep: KeepFloat32 = "",
    skip_passes: SkipPasses = "",
    finite: Finite = False,
    integers: Integers = None,
    options: AlgorithmOptions,
    shapes: ShapeOptions,
    steps: StepOptions,
    common: Common,
) -> None:
    """Compile a model's kernels for a GPU that need not be present, and keep them in the cache.

    Of a folder, they are those of tercet generate.

    Examples:
        tercet compile model.onnx --target sm_90a --precision float16
        tercet compile model.onnx --target sm_86:46 --dim batch=8
        tercet compile llama --target sm_90a --capacity 64
    """
    from ..common.console import progress
    from ..tune.compilation import compile as compile_model
    from ..tune.compilation_view import show_compilation
    from ..tune.generation import compile_generation

    chosen = {
        **{**options.as_options(), "fallback": fallback, "target": target},
        **{"keep_float32": names_of(keep), "skip": split(skip_passes), "finite": finite},
        "integers": integers,
        "timeout": common.timeout,
    }
    is_folder = model.is_dir()
    if not is_folder and steps != StepOptions():
        raise UsageError(
            f"--variant, --batch, --capacity and --prefill-chunk are for the folder of a decoder, "
            f"and {model} is a model"
        )
    chosen |= shapes.as_options()
    with progress() as say:
        if is_folder:
            found = compile_generation(model, say=say, **steps.as_options(), **chosen)
        else:
            found = compile_model(model, say=say, **chosen)
    show(found, show_compilation, json=common.json)
