"""Fuses Inverse from a forward substitution that an exporter unrolled, one row after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...ir.dtypes import FLOATS
from ...ir.graph import Graph, Node, Value
from ...ir.types import Dim
from ...ops.contrib_linalg import Inverse
from ...ops.cuts import part_of, sliced_places, update_of
from ...ops.elementwise import Add, Mul, Sub
from ...ops.gather import Gather, ScatterElements, ScatterND
from ...ops.matmul import MatMul
from ...ops.movement import Pad, Slice, Transpose
from ...ops.reduce import ReduceSum
from ...ops.triangles import is_below_diagonal, is_identity
from ..driver import Context
from ..editing import Builder, dims_of, drop, dtype_of, shape_of
from ..pattern import pairs

#: Maximum number of nodes that cut a block out of a matrix.
_REACH = 8
#: Axes of a block.
_ROWS, _COLUMNS = 0, 1


class _Block(NamedTuple):
    """Part of every matrix of [..., n, n].

    Attributes:
        rows: first one and number.
        columns: likewise.
        axes: what each axis of the part is: `_ROWS`, `_COLUMNS`, another axis, or None for one
            place.
    """

    rows: tuple[int, Dim]
    columns: tuple[int, Dim]
    axes: tuple[int | None, ...]


class _Step(NamedTuple):
    """A matrix in which one row is written: columns 0 to `columns` of row `row`."""

    matrix: Value
    row: int
    columns: int
    updates: Value


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``for i in range(n): x[i, :i] += x[i, :i] @ x[:i, :i]`` by (I - x)⁻¹ - I.

    That is how torch.onnx unrolls the solution of the triangular systems of a chunked delta rule
    (Qwen3-Next, OLMo Hybrid, Kimi Linear), where x has zeros on the diagonal and above it.
    """
    begun = dict[Value, tuple[Value, int]]()  # by the matrix so far: the first one, and rows done
    for node in list(graph.nodes):
        step = _step_of(node)
        if step is None:
            continue
        first, done = begun.get(step.matrix, (step.matrix, 1))
        if step.row != done or (done == 1 and not is_below_diagonal(first)):
            continue
        if not _substitutes(step):
            continue
        begun[node.output] = first, done + 1
        shape = shape_of(first)
        if shape is None or done + 1 != shape[-1]:
            continue
        name = node.name
        _replace(graph, node, first)
        yield f"{node.kind} '{name}' writes the last of {done} rows of a forward substitution"


def _replace(graph: Graph, last: Node, first: Value) -> None:
    """Replace the result of a substitution; an identity matrix that is added to it falls away."""
    add, dtype = Builder(graph, last, last.name, (last,)), dtype_of(first)
    *_, count = shape_of(first) or (0,)
    identity = np.eye(count if isinstance(count, int) else 0, dtype=dtype)
    one = add.constant(identity, f"{last.name}.identity")
    inverse = add(Inverse(), add(Sub(), one, first))
    reader = graph.sole_consumer(last.output)
    if reader is not None and isinstance(reader.op, Add):
        others = [value for value in reader.distinct_reads if value is not last.output]
        if len(others) == 1 and is_identity(others[0]):
            graph.replace(reader, [inverse])
            drop(graph, last)
            return
    graph.replace(last, [add(Sub(), inverse, one)])


# ── one row ──────────────────────────────────────────────────────────────────────────────────────


def _step_of(node: Node) -> _Step | None:
    """Return the row of a matrix that a scatter writes, from its first column on."""
    if not isinstance(node.op, (ScatterElements, ScatterND)) or node.op.reduction != "none":
        return None
    matrix, indices, updates = node.operands[:3]
    shape, dtype = dims_of(matrix), dtype_of(matrix)
    if shape is None or len(shape) < 2 or shape[-1] != shape[-2]:
        return None
    data, written = indices.data, shape_of(updates)
    if data is None or not data.size or written is None or dtype not in FLOATS:
        return None
    row, columns = int(data.reshape(-1)[0]), shape[-1]
    if isinstance(node.op, ScatterElements):
        rows = update_of(node)
        is_row = rows is not None and (rows.axis, len(rows.places)) == (len(shape) - 2, 1)
        return _Step(matrix, row, columns, updates) if is_row else None
    columns = written[-1] if written else 0
    if data.shape[-1] != len(shape) or not isinstance(columns, int) or columns > shape[-1]:
        return None
    row = int(data.reshape(-1, len(shape))[0, -2])
    places = np.indices((*shape[:-2], 1, columns)).reshape(len(shape), -1).T
    places[:, -2] += row
    if data.size != places.size or not np.array_equal(data.reshape(places.shape), places):
        return None
    return _Step(matrix, row, columns, updates)


def _substitutes(step: _Step) -> bool:
    """Whether a row r becomes r + r[:i] @ x[:i, :i] in its first i columns, and stays elsewhere."""
    total = _without_views(step.updates).producer
    if total is None or not isinstance(total.op, Add):
        return False
    width = step.columns
    for row, product in pairs(total):
        block = _block_of(row, step.matrix)
        if block is None or block.rows != (step.row, 1) or block.columns != (0, width):
            continue
        inner: Value | None = product
        if width != step.row:
            inner = _unpadded(product, width - step.row)
        if inner is not None and _is_product(_without_views(inner), step):
            return True
    return False


def _unpadded(value: Value, behind: int) -> Value | None:
    """Return what has this many zeros behind its last axis, and none elsewhere."""
    node = value.producer
    if node is None or not isinstance(node.op, Pad) or node.op.mode != "constant":
        return None
    pads, fill = node.operands[1].data, node.inputs[2] if len(node.inputs) > 2 else None
    if pads is None or len(node.inputs) > 3 or pads.tolist() != [*[0] * (pads.size - 1), behind]:
        return None
    is_zero = fill is None or (fill.data is not None and not fill.data.any())
    return node.operands[0] if is_zero else None


def _is_product(value: Value, step: _Step) -> bool:
    """Whether a value is the first elements of a row times the rows above it."""
    node, axis = value.producer, None
    if node is not None and isinstance(node.op, ReduceSum):
        axis = _summed_axis(node)
        node = None if axis is None else node.operands[0].producer
    elif step.row == 1 and node is not None and isinstance(node.op, Mul):
        axis = -1  # a sum of single elements is a view
    if node is None or not isinstance(node.op, MatMul if axis is None else Mul):
        return False
    for left, right in [node.operands] if axis is None else pairs(node):
        row, above = _block_of(left, step.matrix), _block_of(right, step.matrix)
        if row is None or (row.rows, row.columns) != ((step.row, 1), (0, step.row)):
            continue
        if above is None:  # folded: it is known what is on the diagonal
            if step.row == 1 and right.data is not None and not right.data.any():
                return True
        elif above.rows == above.columns == (0, step.row) and (
            step.row == 1 or _are_aligned(row.axes, above.axes, axis)
        ):
            return True
    return False


def _summed_axis(node: Node) -> int | None:
    """Return the only axis of a sum, counted from the end."""
    axes, shape = (*node.inputs, None)[1], shape_of(node.operands[0])
    if axes is None or axes.data is None or axes.data.size != 1 or shape is None:
        return None
    return int(axes.data.reshape(-1)[0]) % len(shape) - len(shape)


def _are_aligned(
    row: tuple[int | None, ...], above: tuple[int | None, ...], axis: int | None
) -> bool:
    """Whether elements of a row meet the rows above it along the axis that is summed."""
    if axis is None:  # a matrix product
        is_row = row[-1] == _COLUMNS and (len(row) < 2 or row[-2] is None)
        return is_row and above[-2:] == (_ROWS, _COLUMNS)
    if -axis > min(len(row), len(above)) or row[axis] != _COLUMNS or above[axis] != _ROWS:
        return False
    across = next(a - len(above) for a, kind in enumerate(above) if kind == _COLUMNS)
    return -across > len(row) or row[across] is None


# ── blocks ───────────────────────────────────────────────────────────────────────────────────────


def _without_views(value: Value) -> Value:
    """Return a value before axes of one place came and went, and others were swapped and back."""
    while (node := value.producer) is not None:
        source = node.operands[0]
        inner, outer = shape_of(source), shape_of(value)
        if inner is None or outer is None:
            break
        before = source.producer
        if isinstance(node.op, Transpose) and before and isinstance(before.op, Transpose):
            first, rank = before.op.order(len(inner)), range(len(inner))
            if [first[axis] for axis in node.op.order(len(inner))] != [*rank]:
                break
            source = before.operands[0]
        elif not node.op.view or _proper(inner) != _proper(outer):
            break
        value = source
    return value


def _proper(shape: Sequence[Dim]) -> list[Dim]:
    return [size for size in shape if size != 1]


def _block_of(value: Value, matrix: Value) -> _Block | None:
    """Return which part of every matrix a value is; None if it is none."""
    chain = list[Node]()
    while value is not matrix:
        node = value.producer
        if node is None or not (isinstance(node.op, Slice | Gather) or node.op.view):
            return None
        if len(chain) == _REACH:
            return None
        chain.insert(0, node)
        value = node.operands[0]
    dims = shape_of(matrix)
    if dims is None or len(dims) < 2:
        return None
    axes: list[int | None] = [*range(2, len(dims)), _ROWS, _COLUMNS]
    cut = {_ROWS: (0, dims[-2]), _COLUMNS: (0, dims[-1])}
    for node in chain:
        parts, shape = _parts(node), shape_of(node.output)
        if parts is None or shape is None:
            return None
        left = list(dims)
        for axis, (first, count) in parts.items():
            kind, left[axis] = axes[axis], count
            if kind in cut:
                cut[kind] = cut[kind][0] + first, count
            elif dims[axis] != count:
                return None
        if _proper(left) != _proper(shape):
            return None
        kinds = (kind for size, kind in zip(left, axes, strict=True) if size != 1)
        axes = [None if size == 1 else next(kinds) for size in shape]
        dims = shape
    return _Block(cut[_ROWS], cut[_COLUMNS], tuple(axes))


def _parts(node: Node) -> dict[int, tuple[int, int]] | None:
    """Return the first place and the number of places that a node takes of axes; {} of a view."""
    if node.op.view:
        return {}
    if isinstance(node.op, Gather):
        found = part_of(node.output)
        return None if found is None else {found.axis: (found.places.start, 1)}
    places = sliced_places(node)
    if places is None or any(part.step != 1 for part in places.values()):
        return None
    return {axis: (part.start, len(part)) for axis, part in places.items()}
