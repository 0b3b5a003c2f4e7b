"""Which axes the elements of an input select from: made-up inputs have to stay inside."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.graph import Node, Value
from ..ir.types import Dim, TensorType
from ..ops.elementwise import Cast
from ..ops.gather import Gather, GatherElements, GatherND, ScatterElements, ScatterND
from ..ops.movement import Concat, Expand, Slice, Split, Tile, Transpose
from ..ops.shapes import normalize_axis

#: Operators, beside views, whose results are elements of their first input.
_MOVES = (Cast, Expand, Slice, Split, Tile, Transpose)


def indexed_sizes(value: Value) -> frozenset[Dim]:
    """Return the sizes of the axes that elements of a value index, wherever these are moved."""
    found: set[Dim] = set()
    reached, ahead = {value}, [value]
    while ahead:
        each = ahead.pop()
        for node in each.consumers:
            found.update(_sizes(node, each))
            if _moves(node, each):
                ahead += [output for output in node.outputs if output not in reached]
                reached.update(node.outputs)
    return frozenset(found)


def _moves(node: Node, value: Value) -> bool:
    """Whether the results of a node are elements of a value, perhaps among others."""
    if isinstance(node.op, Concat):
        return True
    return (node.op.view or isinstance(node.op, _MOVES)) and node.inputs[0] is value


def _sizes(node: Node, index: Value) -> Iterable[Dim]:
    """Return the sizes of the axes that a node indexes by a value."""
    op = node.op
    if len(node.inputs) < 2 or node.inputs[1] is not index:
        return ()
    data, kind = node.operands[0].type, index.type
    if not isinstance(data, TensorType) or data.shape is None:
        return ()
    if isinstance(op, Gather | GatherElements | ScatterElements):
        return (data.shape[normalize_axis(op.axis, len(data.shape))],)
    if not isinstance(op, GatherND | ScatterND) or not isinstance(kind, TensorType):
        return ()
    columns = kind.shape[-1] if kind.shape else None
    first = op.batch_dims if isinstance(op, GatherND) else 0
    return data.shape[first : first + columns] if isinstance(columns, int) else ()
