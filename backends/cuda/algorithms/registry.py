"""The registry: one function per operator that returns a recipe or the reason why it has none."""

from __future__ import annotations

from collections.abc import Callable, Container
from inspect import Parameter, signature
from typing import TypeVar

from ....runtime.base.record import record
from ....runtime.ir.custom import Custom
from ....runtime.ir.dtypes import DType, float32, name_of
from ....runtime.ir.graph import Node
from ....runtime.ir.op import Op
from ....runtime.plan.format import Format
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Recipe
from ..recipe.operands import Tensor
from ..recipe.setting import PLAIN, Setting, Stored

Answer = Recipe | str
Function = TypeVar("Function", bound=Callable[..., Answer])


@record
class RecipeContext:
    """What a recipe is made for.

    Attributes:
        op: the operator with its attributes.
        y: the first output; None if it is unused.
        inputs: the operands, None for omitted ones.
        setting: the GPU and the user's options.
        more: the other outputs; None for unused ones.
        epilogue: the fused elementwise nodes; None if the kernel has no epilogue.
        stored: how the result is stored.
    """

    op: Op
    y: Tensor | None
    inputs: tuple[Tensor | None, ...]
    setting: Setting
    more: tuple[Tensor | None, ...] = ()
    epilogue: Epilogue | None = None
    stored: Stored = PLAIN


#: Returns a recipe, or the reason why there is none.
Build = Callable[[RecipeContext], Answer]
#: Returns the physical formats of the first input and of the first output.
FormatRule = Callable[[RecipeContext], tuple[Format, Format]]


@record
class Kernel:
    """How recipes for an operator are made.

    Attributes:
        build: makes the recipe.
        follows: whether it accepts any format, the same for all its tensors; possibly depending on
            the node.
        contiguous: indices of inputs that are contiguous whatever format the others have.
        formats: the formats it requests, unless contiguous.
        epilogue: whether it applies an elementwise epilogue before storing results; possibly
            depending on the node.
        outputs: maximum number of outputs.
        in_place: index of the input whose memory the first output may take.
        widens: whether it reads 16-bit floats as float32, where a Cast would do so before it.
    """

    build: Build
    follows: bool | Callable[[Node], bool] = False
    contiguous: tuple[int, ...] = ()
    formats: FormatRule | None = None
    epilogue: bool | Callable[[Node], bool] = False
    outputs: int = 1
    in_place: int | None = None
    widens: bool = False

    def follows_for(self, node: Node) -> bool:
        """Return `follows` for one node."""
        return self.follows(node) if callable(self.follows) else self.follows

    def chains_for(self, node: Node) -> bool:
        """Return `epilogue` for one node."""
        return self.epilogue(node) if callable(self.epilogue) else self.epilogue


KERNELS: dict[type[Op], Kernel] = {}


def kernel_of(op: Op) -> Kernel | None:
    """Return how recipes for an operator are made, or None if it has no kernel.

    Custom operators share one entry, which calls the function that their user registered for
    "cuda"; one without such a function has no kernel.
    """
    if isinstance(op, Custom):
        return KERNELS[Custom] if "cuda" in op.definition.kernels else None
    return KERNELS.get(type(op))


def register(kernel: Kernel, *operators: type[Op]) -> None:
    """Add a kernel to the table.

    Raises:
        TypeError: one of the operators has one already.
    """
    for operator in operators:
        if operator in KERNELS:
            raise TypeError(f"{operator.__name__} has two kernels")
        KERNELS[operator] = kernel


def kernel(
    *operators: type[Op],
    follows: bool | Callable[[Node], bool] = False,
    contiguous: tuple[int, ...] = (),
    formats: FormatRule | None = None,
    outputs: int = 1,
    in_place: int | None = None,
    widens: bool = False,
    chains: Callable[[Node], bool] | None = None,
) -> Callable[[Function], Function]:
    """Register a function that makes recipes; see `Kernel`.

    It is called with the operator, the first output and the inputs, and with those of the keywords
    ``more``, ``setting``, ``epilogue`` and ``stored`` that it declares; see `RecipeContext`. With
    ``epilogue``, `chains` tells for which nodes it is ready for elementwise ones behind them.
    """

    def registered(make: Function) -> Function:
        wanted = _keywords(make)
        if ("more" in wanted) != (outputs > 1):
            raise TypeError(f"{make.__name__}: `more` is for kernels of several outputs")

        def build(context: RecipeContext) -> Answer:
            given = {name: getattr(context, name) for name in wanted}
            return make(context.op, context.y, *context.inputs, **given)

        chained = chains if chains and "epilogue" in wanted else "epilogue" in wanted
        made = Kernel(build, follows, contiguous, formats, chained, outputs, in_place, widens)
        register(made, *operators)
        return make

    return registered


def _keywords(make: Callable[..., Answer]) -> tuple[str, ...]:
    """Return the fields of `RecipeContext` that a function takes besides operator and operands."""
    parameters = signature(make).parameters.values()
    names = tuple(p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY)
    unknown = set(names) - {"more", "setting", "epilogue", "stored"}
    if unknown:
        raise TypeError(f"{make.__name__}: a recipe has no {', '.join(sorted(unknown))}")
    return names


def need_dtypes(allowed: Container[DType], *operands: Tensor | None) -> str:
    """Return which operand has an unsupported dtype; empty if none has."""
    for operand in operands:
        if operand is not None and operand.dtype not in allowed:
            return f"dtype {name_of(operand.dtype)}"
    return ""


def need_float32(*operands: Tensor | None) -> str:
    """Return why operands do not suit kernels computing in float32; empty if they do."""
    refused = need_dtypes((float32,), *operands)
    return f"{refused}; only float32 is supported" if refused else ""


def need_known(**values: Tensor | None) -> str:
    """Return which value is computed at run time; empty if none is."""
    for name, value in values.items():
        if value is not None and value.known is None:
            return f"{name} is computed at run time"
    return ""
