"""Recognise activations that exporters spell out: Gelu, Swish, HardSwish, Mish."""

from __future__ import annotations

from collections.abc import Iterator
from math import pi, sqrt

from ..dtypes import FLOATS, DType
from ..ir import Graph, Node, Value
from ..op import Op
from ..ops.elementwise import (
    Clip,
    Erf,
    Gelu,
    HardSigmoid,
    HardSwish,
    Mish,
    Mul,
    Sigmoid,
    Softplus,
    Swish,
    Tanh,
)
from ..types import TensorType
from .driver import Context
from .match import Expansion, Terms, are_near, is_closed, number, rank_of, sources, stand_in

#: The products that make an activation of x and t, t being a function of x.
_PRODUCT: Terms = {(1, 1): 1.0}
_HALF_SUM: Terms = {(1, 0): 0.5, (1, 1): 0.5}
_SIXTH: Terms = {(1, 1): 1 / 6}
_SIXTH_ALONE: Terms = {(0, 1): 1 / 6}
_CUBIC: Terms = {(1,): sqrt(2 / pi), (3,): sqrt(2 / pi) * 0.044715}

#: Nodes between the function and the end of a formula.
_LONGEST = 4


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Put one node in place of a formula of x and a function of x.

    Gelu is ``x (1 + erf(x / √2)) / 2`` or the same with tanh, Swish ``x sigmoid(α x)``, HardSwish
    ``x clip(x + 3, 0, 6) / 6``, HardSigmoid that without x in front, Mish ``x tanh(softplus(x))``;
    products and sums in any order, divisions by a constant or products with its inverse.
    """
    for node in list(graph.nodes):
        if node not in graph or type(node.op) not in _FUNCTIONS:
            continue
        found = _find(graph, node)
        if found is None:
            continue
        op, x, nodes, top = found
        new = stand_in(graph, nodes, top, op, (x,))
        yield f"{new.kind} '{new.name}' is what {len(nodes)} nodes around '{node.name}' compute"


_FUNCTIONS = (Erf, Tanh, Sigmoid, HardSigmoid, Clip)


def _find(graph: Graph, inner: Node) -> tuple[Op, Value, set[Node], Node] | None:
    """Return the operator, its input, the nodes that it replaces, and the last of them."""
    argument = inner.inputs[0]
    if argument is None or not isinstance(argument.type, TensorType):
        return None
    dtype = argument.type.dtype
    if dtype not in FLOATS:
        return None
    if argument.producer is not None and isinstance(argument.producer.op, Softplus):
        return _find_mish(graph, inner, argument.producer)
    for x in sources(argument):
        inside = Expansion((x,), rank_of(x))
        terms = inside.terms(argument)
        if terms is None:
            continue
        found = None
        for top, result, outside in _results(graph, inner, x):
            op = _recognise(inner, terms, result, dtype)
            nodes = {inner, *inside.nodes, *outside}
            if op is not None and is_closed(graph, nodes, top):
                found = op, x, nodes, top  # the longest one counts
        if found is not None:
            return found
    return None


def _results(graph: Graph, inner: Node, x: Value) -> Iterator[tuple[Node, Terms, set[Node]]]:
    """Yield the nodes behind a function of x, as polynomials of x and the function's value."""
    value = inner.output
    for _ in range(_LONGEST):
        top = graph.sole_consumer(value)
        if top is None:
            return
        value = top.output
        expansion = Expansion((x, inner.output), rank_of(x))
        result = expansion.terms(value)
        if result is not None:
            yield top, result, expansion.nodes


def _recognise(inner: Node, argument: Terms, result: Terms, dtype: DType) -> Op | None:
    """Return the operator that computes `result` of x and what `inner` makes of `argument`."""
    op = inner.op
    if isinstance(op, Erf):
        is_gelu = are_near(argument, {(1,): sqrt(0.5)}, dtype)
        return Gelu() if is_gelu and are_near(result, _HALF_SUM, dtype) else None
    if isinstance(op, Tanh):
        is_gelu = are_near(argument, _CUBIC, dtype)
        return Gelu(approximate="tanh") if is_gelu and are_near(result, _HALF_SUM, dtype) else None
    if isinstance(op, Sigmoid):
        is_swish = list(argument) == [(1,)] and result == _PRODUCT
        return Swish(alpha=argument[1,]) if is_swish else None
    if isinstance(op, HardSigmoid):
        line: Terms = {(1,): op.alpha, (0,): op.beta}
        is_line = argument == {(1,): 1.0} and are_near(line, {(1,): 1 / 6, (0,): 0.5}, dtype)
        return HardSwish() if is_line and result == _PRODUCT else None
    limits = [number(value, 1) for value in inner.inputs[1:]]
    if limits == [0, 6] and are_near(argument, {(1,): 1.0, (0,): 3.0}, dtype):
        if are_near(result, _SIXTH, dtype):
            return HardSwish()
        if are_near(result, _SIXTH_ALONE, dtype):
            return HardSigmoid(alpha=1 / 6, beta=0.5)
    return None


def _find_mish(
    graph: Graph, inner: Node, softplus: Node
) -> tuple[Op, Value, set[Node], Node] | None:
    x, top = softplus.inputs[0], graph.sole_consumer(inner.output)
    if x is None or top is None or not isinstance(inner.op, Tanh) or not isinstance(top.op, Mul):
        return None
    nodes = {softplus, inner, top}
    if x not in top.inputs or not is_closed(graph, nodes, top):
        return None
    return Mish(), x, nodes, top
