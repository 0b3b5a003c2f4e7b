"""Elementwise nodes: what passes may do with all of them.

Each element of the result depends on the elements at its place of operands, which may be broadcast.
So what moves, selects or repeats elements may come before such a node or behind it, provided that
all operands read by place are treated alike. Others, as the limits of a Clip, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.graph import Node, Value
from ..ir.op import Op
from ..ops import elementwise
from ..ops.elementwise import CastLike, Clip, PRelu, SwiGLU, Unary

#: Operators that read only their first operand by place: limits are scalars, and of what a CastLike
#: is like only the type counts.
_FIRST = (Clip, CastLike)
#: Operators of whose operands some must have the shape of the result.
_RIGID = (PRelu, SwiGLU)


def is_elementwise(op: Op) -> bool:
    """Whether an element of the result depends on elements of operands at its place alone."""
    return type(op).__module__ == elementwise.__name__


def is_by_place(op: Op, operand: int) -> bool:
    """Whether an elementwise operator reads an operand, counted from 0, by place."""
    return not operand or not isinstance(op, _FIRST)


def by_place(node: Node) -> tuple[Value, ...]:
    """Return the distinct operands that an elementwise node reads by place; none of other nodes."""
    if not is_elementwise(node.op) or len(node.outputs) != 1:
        return ()
    return node.distinct_reads[:1] if isinstance(node.op, _FIRST) else node.distinct_reads


def aside(node: Node) -> tuple[Value, ...]:
    """Return the operands that an elementwise node does not read by place; none of other nodes."""
    others = node.inputs[1:] if isinstance(node.op, _FIRST) else ()
    return tuple(value for value in others if value is not None)


def inputs_with(node: Node, others: Mapping[Value, Value]) -> list[Value | None]:
    """Return the inputs of an elementwise node with others in place of those by place."""
    return [
        others.get(value, value) if value is not None and is_by_place(node.op, i) else value
        for i, value in enumerate(node.inputs)
    ]


def broadcasts(node: Node) -> bool:
    """Whether a node broadcasts whatever it reads by place, so that any of it may be smaller."""
    return bool(by_place(node)) and not isinstance(node.op, _RIGID)


def is_activation(node: Node) -> bool:
    """Whether a node computes each element of its first operand alone, as layers can in storing."""
    fixed = all(value is None or value.data is not None for value in node.inputs[1:])
    return isinstance(node.op, Unary | Clip) and fixed and len(node.outputs) == 1
