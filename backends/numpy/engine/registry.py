"""The two kinds of implementations, and the decorators that register them.

A *kernel* is a plain function ``f(op, *arrays)`` that returns an array, or a tuple of them; omitted
inputs are None. With a keyword-only parameter `out` it fills that array instead and returns
nothing. One that returns `views` of its first input is called once, when a plan is bound.

A *builder* ``f(chain, site, options)`` returns a `HostStep`, or the reason why it does not run the
node. It packs weights, requests scratch memory, and applies the chain's elementwise nodes to each
block of its result while that is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from inspect import signature
from types import FunctionType
from typing import Any, Protocol, TypeVar

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, name_of
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.op import Op
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from .chain import Chain
from .step import HostStep

Builder = Callable[[Chain, BuildContext, Options], HostStep | str]
F = TypeVar("F", bound=Callable[..., Any])


@record
class PlainKernel:
    """A plain function that runs an operator.

    Attributes:
        function: takes the operator and arrays.
        writes: whether it fills `out`.
        in_place: whether `out` may be the first input.
        views: whether it returns views of the first input, chosen by the others.
        reshapes: whether the result has the elements of the first input in the same order.
    """

    function: Callable[..., Any]
    writes: bool
    in_place: bool
    views: bool = False
    reshapes: bool = False


@record
class Built:
    """A registered builder of steps.

    Attributes:
        function: makes the step of a chain.
        fuses: whether it fuses following elementwise nodes.
        in_place: whether the result may overwrite the first input.
    """

    function: Builder
    fuses: bool
    in_place: bool


class Joined(Protocol):
    """Chains that are one step."""

    @property
    def chains(self) -> Sequence[Chain]:
        """What is computed together."""
        ...

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Their nodes."""
        ...

    @property
    def output(self) -> Value:
        """The result."""
        ...

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        ...


#: Returns disjoint groups of chains, given by their heads, that are faster as one step each.
Joiner = Callable[[Graph, Mapping[Node, Chain], Options], Sequence[Joined]]

#: Yields constants that a node reads, each with its axes in the order that they should have in
#: memory, the outermost first.
Orders = Callable[[Node], Iterable[tuple[Value, tuple[int, ...]]]]

KERNELS: dict[type[Op], PlainKernel] = {}
BUILDERS: dict[type[Op], Built] = {}
JOINERS: dict[type[Op], Joiner] = {}
ORDERS: dict[type[Op], Orders] = {}


def kernel(
    *operators: type[Op], in_place: bool = False, views: bool = False, reshapes: bool = False
) -> Callable[[F], F]:
    """Register a plain function as the implementation of `operators`; see `PlainKernel`."""

    def declare(function: F) -> F:
        writes = _has_parameter(function, "out")
        made = PlainKernel(function, writes, in_place and writes, views, reshapes)
        KERNELS.update(dict.fromkeys(operators, made))
        return function

    return declare


def _has_parameter(function: Callable[..., Any], name: str) -> bool:
    if not isinstance(function, FunctionType):
        return name in signature(function).parameters
    code = function.__code__  # a hundred times as fast as a signature
    return name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def builder(
    *operators: type[Op],
    fuses: bool = False,
    in_place: bool = False,
    dtypes: Container[DType] | None = None,
) -> Callable[[Builder], Builder]:
    """Register a builder of steps as the implementation of `operators`.

    Args:
        operators: which.
        fuses: see `Built`.
        in_place: see `Built`.
        dtypes: of the first input; nodes with other dtypes are declined. None for all.
    """

    def declare(function: Builder) -> Builder:
        made = function if dtypes is None else _limited(function, dtypes)
        BUILDERS.update(dict.fromkeys(operators, Built(made, fuses, in_place)))
        return function

    return declare


def joiner(operator: type[Op]) -> Callable[[Joiner], Joiner]:
    """Register what joins chains with such heads."""

    def declare(function: Joiner) -> Joiner:
        JOINERS[operator] = function
        return function

    return declare


def ordering(operator: type[Op]) -> Callable[[Orders], Orders]:
    """Register in which order nodes of an operator read their constants."""

    def declare(function: Orders) -> Orders:
        ORDERS[operator] = function
        return function

    return declare


def _limited(function: Builder, dtypes: Container[DType]) -> Builder:
    """Return a builder that declines a first input of other dtypes."""

    def build(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
        x = chain.head.inputs[0]
        if x is not None and x.tensor.dtype not in dtypes:
            return f"dtype {name_of(x.tensor.dtype)}"
        return function(chain, site, options)

    return build
