"""How a graph uses its caches: the sizes that the graph implies, and sliding windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from ..ir.dtypes import INTEGERS
from ..ir.graph import Value
from ..ir.op import Op
from ..ir.types import TensorType
from ..ops.elementwise import Cast, Sub
from ..ops.gather import Gather, GatherElements, GatherND, TensorScatter
from ..ops.movement import Concat, Pad
from ..ops.reduce import CumSum, ReduceSum
from ..ops.shape import Identity, Shape

#: What reads an index.
_CHOOSING = (Gather, GatherElements, GatherND)


def through(value: Value) -> Iterator[Value]:
    """Yield a value and its casts to other dtypes."""
    yield value
    for node in value.consumers:
        if isinstance(node.op, Cast | Identity):
            yield from through(node.outputs[0])


def read_from(value: Value, but: tuple[type[Op], ...]) -> set[Value]:
    """Return what is computed from a value, but not what is only by way of these operators.

    What it only chooses, as an index, is not computed from it, nor are integers that count it.
    """
    found = {value}
    waiting = [value]
    while waiting:
        value = waiting.pop()
        for node in value.consumers:
            is_index = isinstance(node.op, _CHOOSING) and value is not node.inputs[0]
            is_count = isinstance(node.op, CumSum | ReduceSum) and _is_integral(value)
            if not (is_index or is_count or isinstance(node.op, but)):
                waiting += [each for each in node.outputs if each not in found]
                found.update(node.outputs)
    return found


def _is_integral(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in INTEGERS


def proven_sizes(past: Value, rank: int) -> tuple[int | None, ...]:
    """Return the sizes of a cache, by axis, that the values written into it imply."""
    sizes: list[int | None] = [None] * rank
    values = [past]
    for value in values:
        for node in value.consumers:
            axis, others = None, []
            if isinstance(node.op, Pad | Cast | Identity):
                values.append(node.outputs[0])
            elif isinstance(node.op, TensorScatter) and node.inputs[0] is value:
                axis, others = node.op.axis % rank, [node.inputs[1]]
            elif isinstance(node.op, Concat):
                axis, others = node.op.axis % rank, [v for v in node.inputs if v is not value]
            for other in others:
                type_ = None if other is None else other.type
                shape = type_.shape if isinstance(type_, TensorType) else None
                if shape is None or len(shape) != rank:
                    continue
                for i, size in enumerate(shape):
                    if i not in (0, axis) and isinstance(size, int):
                        sizes[i] = size
    return tuple(sizes)


def window_of(past: Value, axis: int) -> int | None:
    """Return how many positions a buffer must hold if older ones are dropped.

    `importers.onnx.contrib.window` writes sliding windows in this form: the number of positions
    dropped at a time is the buffer's size minus the window's, plus one.
    """
    for node in past.consumers:
        if isinstance(node.op, Shape) and (node.op.start, node.op.end) == (axis, axis + 1):
            for reader in node.outputs[0].consumers:
                room, rest = (*reader.inputs, None)[:2]
                if isinstance(reader.op, Sub) and room is node.outputs[0] and rest is not None:
                    data = rest.data
                    if data is not None and data.size == 1:
                        return cast("int", data.item()) + 1
    return None
