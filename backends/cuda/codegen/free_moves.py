"""Which nodes that move elements a plan may do without, as the bytes are where they are."""

from __future__ import annotations

from math import prod

from ....runtime.ir.graph import Node, Value
from ....runtime.ops.cuts import sliced_places
from ....runtime.ops.gather import Gather
from ....runtime.ops.matmul import Gemm, MatMul
from ....runtime.ops.movement import Concat, Pad, Slice, Transpose
from ....runtime.ops.norm import LayerNormalization, Softmax
from ....runtime.ops.shape import RESHAPES
from ....runtime.ops.shapes import normalize_axis
from ....runtime.plan.alias_slices import ALIGNMENT
from ....runtime.plan.format import Format
from ..recipe.operands import Ints, strides
from .elementwise import in_chains

#: Maximum number of values that are looked at to find out whether a tensor may be an image.
_MAX_TRACED = 64
#: Operators whose results are in C order, and those that keep the order of what they read.
_ROWS = (*RESHAPES, MatMul, Gemm, Softmax, LayerNormalization)
_KEEPING = (Slice, Pad, Concat)


def may_be_free(node: Node) -> bool:
    """Whether a plan may do without running a node: by another format, or as part of its input."""
    op, dims = node.op, node.operands[0].tensor.dims
    rank = len(dims)
    if isinstance(op, Transpose):
        order = tuple(axis for axis in op.order(rank) if dims[axis] != 1)
        images = ((0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))) if rank > 2 else ()
        kept = [tuple(axis for axis in perm if dims[axis] != 1) for perm in images]
        return order in (*kept, tuple(sorted(order)))
    if isinstance(op, Slice):
        changed = [i for i, n in enumerate(node.output.tensor.dims) if n != dims[i]]
        steps = ints_of(node.inputs[4]) if len(node.inputs) > 4 else None
        if len(changed) != 1 or any(step != 1 for step in steps or ()):
            return not changed
        is_first, (axis,) = prod(dims[: changed[0]]) == 1, changed
        if rank > 2 and node.output.tensor.dims[axis] == 1 and (axis == rank - 1 or not is_first):
            return False  # where it starts is hardly ever aligned
        return (axis in (1, rank - 1) or is_first) and _is_aligned(node, axis)
    if isinstance(op, Gather):
        count = prod(dims[: normalize_axis(op.axis, rank)])
        return count == 1 and node.operands[1].tensor.size == 1
    return isinstance(op, RESHAPES)


def _is_aligned(node: Node, axis: int) -> bool:
    """Whether kernels could read words where a Slice starts, in C order or with channels last."""
    x, part = node.operands[0].tensor, (sliced_places(node) or {}).get(axis)
    if part is None:
        return True
    begin, rank = part.start, len(x.dims)
    is_image = rank > 2 and _may_have_channels_last(node.operands[0])
    for format in (Format.CONTIGUOUS, Format.CHANNELS_LAST)[: 1 + is_image]:
        steps = strides(x.dims, format)
        row = 1 if format is Format.CHANNELS_LAST else rank - 1
        pitch = x.dims[row] if axis == row and x.size > x.dims[row] else 0
        if not any(n * x.dtype.itemsize % ALIGNMENT for n in (begin * steps[axis], pitch)):
            return True
    return False


def _may_have_channels_last(value: Value) -> bool:
    """Whether a tensor may be stored with channels last, unlike rows that views make."""
    waiting, seen, rank = [value], set[Value](), value.tensor.rank
    while waiting and len(seen) < _MAX_TRACED:
        value = waiting.pop()
        if value in seen or value.is_constant or value.tensor.rank != rank:
            continue
        seen.add(value)
        node = value.producer
        if node is None or not (in_chains(node) or isinstance(node.op, (*_ROWS, *_KEEPING))):
            return True
        if not isinstance(node.op, _ROWS):
            waiting += node.distinct_reads
    return bool(waiting)


def ints_of(value: Value | None) -> Ints | None:
    """Return the elements of a constant; None if there is none."""
    if value is None or value.data is None:
        return None
    return tuple(int(n) for n in value.data.flat)
