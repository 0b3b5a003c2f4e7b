"""The two kinds of implementation that the backend knows, and the decorators that declare them.

A *kernel* is a plain function ``f(op, *arrays)`` that returns an array, or a tuple of them; inputs
that are left out arrive as None. Where it has a keyword-only parameter `out` it fills that array
instead and returns nothing.

A *builder* ``f(chain, site, options)`` returns a `HostStep`, or the reason why it does not run the
node. It packs weights, asks for scratch, and applies to each block of its result, while that is
hot in the cache, the elementwise nodes that the chain has after its head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, TypeVar

from ....runtime.ir.op import Op
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from .chain import Chain
from .step import HostStep

Builder = Callable[[Chain, BuildContext, Options], HostStep | str]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Kernel:
    """A plain function that runs an operator.

    Attributes:
        function: takes the operator and arrays.
        writes: whether it fills `out`.
        in_place: whether `out` may be the first input itself.
    """

    function: Callable[..., Any]
    writes: bool
    in_place: bool


@dataclass(frozen=True, slots=True)
class Built:
    """A builder of steps.

    Attributes:
        function: makes the step of a chain.
        fuses: whether it takes elementwise nodes after the operator.
        in_place: whether the result may lie in the operator's first input.
    """

    function: Builder
    fuses: bool
    in_place: bool


KERNELS: dict[type[Op], Kernel] = {}
BUILDERS: dict[type[Op], Built] = {}


def kernel(*operators: type[Op], in_place: bool = False) -> Callable[[F], F]:
    """Declare a plain function as the implementation of `operators`."""

    def declare(function: F) -> F:
        writes = "out" in signature(function).parameters
        KERNELS.update(dict.fromkeys(operators, Kernel(function, writes, in_place and writes)))
        return function

    return declare


def builder(
    *operators: type[Op], fuses: bool = False, in_place: bool = False
) -> Callable[[Builder], Builder]:
    """Declare a builder of steps as the implementation of `operators`."""

    def declare(function: Builder) -> Builder:
        BUILDERS.update(dict.fromkeys(operators, Built(function, fuses, in_place)))
        return function

    return declare
