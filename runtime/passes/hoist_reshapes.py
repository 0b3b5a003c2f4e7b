"""Move the Reshape after a matrix product before it, where rows are only counted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.types import Array, Shape
from ..ops.elementwise import Add
from ..ops.matmul import Gemm, MatMul
from ..ops.shape import Flatten, Reshape
from .driver import Context, Reason
from .editing import rank_of, shape_of
from .fusion import Found, Fusion, Outcome, Replacement, fuse
from .pattern import Apply

_VIEWS = (Reshape, Flatten)


def _is_layer(node: Node) -> bool:
    """Whether a node multiplies rows with a constant matrix, and adds a constant row at most."""
    weight = node.inputs[1]
    if weight is None or weight.data is None or weight.data.ndim != 2:
        return False
    op = node.op
    if not isinstance(op, Gemm):
        return True
    row = _row(node)
    is_row = row is None or (row.data is not None and row.data.shape == (_width(node),))
    return (op.alpha, op.beta, op.transA) == (1, 1, 0) and is_row


def _row(node: Node) -> Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def _width(node: Node) -> int:
    weight = node.inputs[1]
    if weight is None or weight.data is None:
        raise TypeError(f"'{node.name}' has no constant weight")
    return weight.data.shape[0 if getattr(node.op, "transB", 0) else 1]


def _build(found: Found) -> Outcome:
    node, wanted, read = found.match.made("rows"), shape_of(found.top.output), found["x"]
    shape = shape_of(read)
    if wanted is None or shape is None or len(wanted) <= len(shape) or 0 in wanted:
        return None
    if wanted[-1] != _width(node):
        return None
    before = (*wanted[:-1], shape[-1])
    if sum(not isinstance(size, int) for size in before) > 1:
        return found.refuse(Reason.SHAPE, f"more than one size of {found.top.output.type} varies")
    add = found.builder(f"{node.name}.rows", (node,))
    x = _source(read, before)
    if shape_of(x) != before:
        sizes = (size if isinstance(size, int) else -1 for size in before)
        x = add(Reshape(), x, add.integers(sizes, f"{node.name}.sizes"))
    weight, row = node.inputs[1], _row(node)
    if weight is not None and weight.data is not None and getattr(node.op, "transB", 0):
        turned: Array = np.ascontiguousarray(weight.data.T)
        weight = found.graph.constant(turned, weight.name)
    if row is None:
        return Replacement(MatMul(), (x, weight), named=node)
    product = add(MatMul(), x, weight, name=node.name)
    return Replacement(Add(), (product, row))


def _source(value: Value, wanted: Shape) -> Value:
    """Return what a value is a view of, so that two views in a row become one."""
    while (node := value.producer) is not None and isinstance(node.op, _VIEWS):
        if shape_of(value) == wanted or node.inputs[0] is None or rank_of(node.inputs[0]) is None:
            break
        value = node.inputs[0]
    return value


def _fusions(*, turned: bool) -> tuple[Fusion, ...]:
    def fits(node: Node) -> bool:
        return _is_layer(node) and (turned or not getattr(node.op, "transB", 0))

    rows = Apply((Gemm, MatMul), "x", name="rows", where=fits)
    text = "the Reshape behind '{anchor}' is in front of {new}"
    return (Fusion(rows, _build, Apply(Reshape, "rows"), 1, text=text),)


FUSIONS = _fusions(turned=True)
#: Those that leave all weights as they are.
BOUND = _fusions(turned=False)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Let products of rows have the axes that their result is given after them.

    ``reshape(flatten(x) @ w + b, [..., n])`` is ``x @ w + b`` without a view. What is behind it,
    an activation or a sum, then reads the product itself, and every exporter's layers look alike.
    Weights are constant; a Gemm becomes MatMul and Add.
    """
    return fuse(graph, context, FUSIONS)


def run_bound(graph: Graph, context: Context) -> Iterator[str]:
    """Do the same once sizes are known, without making weights."""
    return fuse(graph, context, BOUND)
