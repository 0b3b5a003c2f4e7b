"""The registry: one function per operator, which gives a recipe or says why it has none."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeVar

from ....runtime.ir.dtypes import DType, float32, name_of
from ....runtime.ir.graph import Node
from ....runtime.ir.op import Op
from ....runtime.options import Options
from ....runtime.plan.backend import Format
from ..recipe.launch import Recipe
from ..recipe.operands import Tensor
from ..recipe.targets import Target

if TYPE_CHECKING:
    from ..codegen.epilogue import Epilogue
    from .selection import Selector

Answer = Recipe | str
Function = TypeVar("Function", bound=Callable[..., Answer])


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm of a selector that was measured to be the fastest.

    Attributes:
        algorithm: its name.
        variant: its form, such as the size of a tile; empty for its own choice.
        microseconds: what it took.
    """

    algorithm: str
    variant: str = ""
    microseconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a recipe may depend on besides its operands.

    Attributes:
        target: the GPU that it is sized for.
        options: the user's choices.
        asked: algorithms that the user wants for this node, the first that can be used.
        algorithm: the algorithm that a recipe must be of, once one is chosen; empty for any.
        form: its variant, such as the size of a tile; empty for the best guess.
        choices: what was measured, by the signature of a task; empty where nothing was.
        picks: what selectors have taken so far, so that nothing is compared twice.
    """

    target: Target
    options: Options
    asked: tuple[str, ...] = ()
    algorithm: str = ""
    form: str = ""
    choices: Mapping[str, Choice] = field(default_factory=dict[str, Choice], hash=False)
    picks: dict[tuple[str, ...], tuple[str, str, str]] = field(
        default_factory=dict[tuple[str, ...], tuple[str, str, str]], compare=False, repr=False
    )

    def takes(self, algorithm: str) -> bool:
        """Whether a recipe may be of this algorithm."""
        return self.algorithm in ("", algorithm)

    def for_node(self, node: Node) -> Setting:
        """Return the setting for one node, with the algorithms that the user asked for."""
        names = self.options.algorithms_for(node.kind, (node.name, *node.origin))
        asked = tuple(name for name in names if name != "cuda")
        return replace(self, asked=asked) if asked != self.asked else self


@dataclass(frozen=True, slots=True)
class RecipeContext:
    """What a recipe is made for.

    Attributes:
        op: the operator with its attributes.
        y: the first output; None if it is unused.
        inputs: the operands, None where one is left out.
        setting: the GPU and the user's choices.
        more: the other outputs; None for those that are not used.
        epilogue: the elementwise nodes after it; None where nothing can follow.
    """

    op: Op
    y: Tensor | None
    inputs: tuple[Tensor | None, ...]
    setting: Setting
    more: tuple[Tensor | None, ...] = ()
    epilogue: Epilogue | None = None


#: Makes a recipe, or says in words why there is none.
Build = Callable[[RecipeContext], Answer]
#: Returns the physical formats of the first input and of the first output.
FormatRule = Callable[[RecipeContext], tuple[Format, Format]]


@dataclass(frozen=True, slots=True)
class Kernel:
    """How an operator becomes a recipe.

    Attributes:
        build: makes the recipe.
        follows: whether it takes its tensors in any format, the same one for all of them; perhaps
            only for some nodes.
        formats: the formats that it wants, where they are not plain.
        epilogue: it applies an elementwise chain to its results before it stores them.
        outputs: how many outputs it computes at most.
        selector: the algorithms that users and the tuner may choose from.
        in_place: the input whose memory the first output may take, by its position.
    """

    build: Build
    follows: bool | Callable[[Node], bool] = False
    formats: FormatRule | None = None
    epilogue: bool = False
    outputs: int = 1
    selector: Selector[Any] | None = None
    in_place: int | None = None

    def follows_for(self, node: Node) -> bool:
        """Return `follows` for one node."""
        return self.follows(node) if callable(self.follows) else self.follows


KERNELS: dict[type[Op], Kernel] = {}


def register(kernel: Kernel, *operators: type[Op]) -> None:
    """Enter a kernel into the table.

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
    formats: FormatRule | None = None,
    outputs: int = 1,
    in_place: int | None = None,
) -> Callable[[Function], Function]:
    """Register a function that makes recipes; see `Kernel`.

    It is called with the operator, the first output and the inputs, and with those of the keywords
    ``more``, ``setting`` and ``epilogue`` that it has; see `RecipeContext`.
    """

    def registered(make: Function) -> Function:
        wanted = _keywords(make)
        if ("more" in wanted) != (outputs > 1):
            raise TypeError(f"{make.__name__}: `more` is for kernels of several outputs")

        def build(context: RecipeContext) -> Answer:
            given = {name: getattr(context, name) for name in wanted}
            return make(context.op, context.y, *context.inputs, **given)

        chained = "epilogue" in wanted
        made = Kernel(build, follows, formats, chained, outputs, in_place=in_place)
        register(made, *operators)
        return make

    return registered


def _keywords(make: Callable[..., Answer]) -> tuple[str, ...]:
    """Return the fields of `RecipeContext` that a function wants beside operator and operands."""
    parameters = signature(make).parameters.values()
    names = tuple(p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY)
    unknown = set(names) - {"more", "setting", "epilogue"}
    if unknown:
        raise TypeError(f"{make.__name__}: a recipe has no {', '.join(sorted(unknown))}")
    return names


def need_dtypes(allowed: Container[DType], *operands: Tensor | None) -> str:
    """Return which operand has a dtype that a kernel does not take; empty where none has."""
    for operand in operands:
        if operand is not None and operand.dtype not in allowed:
            return f"dtype {name_of(operand.dtype)}"
    return ""


def need_float32(*operands: Tensor | None) -> str:
    """Return why operands do not suit kernels that compute in float32; empty where they do."""
    refused = need_dtypes((float32,), *operands)
    return f"{refused}; float32 is what there is" if refused else ""


def need_known(**values: Tensor | None) -> str:
    """Return which of the values is only known in a run; empty where none is (or is left out)."""
    for name, value in values.items():
        if value is not None and value.known is None:
            return f"{name} is computed at run time"
    return ""
