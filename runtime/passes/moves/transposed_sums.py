"""Sums of transposed tensors that are transposed back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from ...ir.chains import chain_behind
from ...ir.graph import Graph, Node, Value
from ...ops.elementwise import Add, Div, Mul, Sub
from ...ops.movement import Transpose
from ...ops.shape import Reshape
from ..editing import Builder, drop, shape_of
from ..pattern import pairs
from .factors import follow

_VIEWS = (Reshape, Transpose)


def transpose_before_sums(graph: Graph) -> Iterator[str]:
    """Replace ``back(transpose(x) + y)`` by ``x + back(y)`` where the views undo one another.

    Set Transformer adds queries to the results of an attention while both are heads, and joins
    these afterwards: the attention's results alone become rows, which it can write.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Add | Sub | Mul | Div):
            continue
        back = _views_after(graph, node)
        if not any(isinstance(view.op, Transpose) for view in back) or _adds_axes(node, back):
            continue
        for transposed, other in pairs(node):
            is_same = shape_of(transposed) == shape_of(other) == shape_of(node.output)
            x = _undone(transposed, back) if is_same else None
            if x is None and not (is_same and transposed.is_constant):
                continue
            add, name = Builder(graph, back[-1], node.name, (node, *back)), node.name
            x, y = (
                (x or _transposed_back(add, transposed, back)),
                _transposed_back(add, other, back),
            )
            operands = (x, y) if transposed is node.operands[0] else (y, x)
            before = back[-1].operands[0].producer
            graph.replace(back[-1], [add(node.op, *operands)])
            drop(graph, before)
            yield f"{node.kind} '{name}' adds to '{x.name}' before it is transposed"
            break


def _transposed_back(add: Builder, value: Value, back: Sequence[Node]) -> Value:
    """Return a value behind views; of a constant, they are computed before a plan is made."""
    for view in back:
        value = add(view.op, value, *view.inputs[1:], name=view.name)
    return value


def _adds_axes(node: Node, back: Sequence[Node]) -> bool:
    """Whether views make heads of a sum of rows, which the layers that compute these can add."""
    return len(shape_of(back[-1].output) or ()) > len(shape_of(node.output) or ())


def _views_after(graph: Graph, node: Node) -> list[Node]:
    """Return the views of a result that nothing else reads, one after the other."""
    readers = chain_behind(graph, node.output)
    return [*takewhile(lambda view: isinstance(view.op, _VIEWS), readers)]


def _undone(value: Value, back: Sequence[Node]) -> Value | None:
    """Return what a value is a view of, if the views after it restore that."""
    chain = list(back)
    while (view := value.producer) is not None and isinstance(view.op, _VIEWS):
        chain.insert(0, view)
        value = view.operands[0]
        axes = follow(chain)
        if axes is None:
            return None
        given, order, wanted = axes
        same = [f for axis in given for f in axis if f.size != 1] == [
            f for f in order if f.size != 1
        ]
        if same and shape_of(value) == shape_of(back[-1].output) and len(given) == len(wanted):
            return value
    return None
