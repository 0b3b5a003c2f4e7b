"""The registry: one function per operator, which gives a recipe or says why it has none."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TypeVar

from ...runtime.backend import Format
from ...runtime.dtypes import DType, float32, name_of
from ...runtime.op import Op
from ...runtime.options import Options
from .compile import Target
from .launch import Recipe, Tensor

Answer = Recipe | str
Function = TypeVar("Function", bound=Callable[..., Answer])
#: Physical formats of (the first input, the first output), given operator, output and inputs.
FormatRule = Callable[..., tuple[Format, Format]]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a recipe may depend on besides its operands.

    Attributes:
        target: the GPU that it is sized for.
        options: the user's choices.
    """

    target: Target
    options: Options


@dataclass(frozen=True, slots=True)
class Kernel:
    """How an operator becomes a recipe.

    Attributes:
        make: called with the operator, the first output and the inputs (None where left out);
            returns a recipe, or a reason in words. With `tail` it also gets the keywords ``tail``
            and ``setting``, with `outputs` more than 1 the keyword ``more``: the other outputs,
            None where nobody reads one.
        follows: it takes its tensors in any format, the same one for all of them.
        formats: the formats that it wants, where they are not plain.
        tail: it applies an elementwise chain to its results before it stores them.
        outputs: how many outputs it computes at most.
    """

    make: Callable[..., Answer]
    follows: bool = False
    formats: FormatRule | None = None
    tail: bool = False
    outputs: int = 1


KERNELS: dict[type[Op], Kernel] = {}


def kernel(
    *operators: type[Op],
    follows: bool = False,
    formats: FormatRule | None = None,
    tail: bool = False,
    outputs: int = 1,
) -> Callable[[Function], Function]:
    """Register a function for operators; see `Kernel`."""

    def register(make: Function) -> Function:
        for operator in operators:
            if operator in KERNELS:
                raise TypeError(f"{operator.__name__} has two kernels")
            KERNELS[operator] = Kernel(make, follows, formats, tail, outputs)
        return make

    return register


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
