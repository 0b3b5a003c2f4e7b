"""Writes zeros beside a tensor as its padding, where what follows moves elements or takes pads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.dtypes import FLOATS
from ...ir.graph import Graph, Node, Value
from ...ops.conv import Conv
from ...ops.cuts import axis_of
from ...ops.matmul import MatMul
from ...ops.movement import Concat, Pad, Slice, Transpose
from ...ops.shape import RESHAPES
from ..driver import Context
from ..editing import Builder, dtype_of, rank_of, static_dims
from .pad_channels import word_of

#: Minimum number of columns that are padded.
LEAST = 32
#: What composes with a Pad, or takes it over.
_READERS = (*RESHAPES, Slice, Transpose, Conv)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a Concat of zeros and one computed tensor of floats by a Pad.

    Relative positions are shifted by a column of zeros in front of them and a view that gives rows
    another length (Transformer-XL, Conformer); a Slice then leaves none of the zeros. Pads,
    views and slices are composed, so that nothing is copied; a Concat would be. Causal
    convolutions have zeros in front of a sequence. Integers may be sizes or indices: what finds
    the values of these knows Concats.
    """
    for node in list(graph.nodes):
        found = _padded(node) if _is_moved(graph, node) else None
        if found is None:
            continue
        value, axis, before, after = found
        add = Builder(graph, node, node.name, (node,))
        amounts, along = add.integers((before, after), "pads"), add.integers((axis,), "axes")
        graph.replace(node, [add(Pad(), value, amounts, None, along)])
        yield f"{before + after} zeros of Concat '{node.name}' are padding"


def run_products(graph: Graph, context: Context) -> Iterator[str]:
    """Append columns of zeros to constant matrices whose products are padded or sliced next.

    Relative positions of 127 places are products of 253 columns: kernels would read the matrix and
    store such rows element by element. What moves elements next reads the others where they are.
    On an H200 a product of 128 heads of 127 rows by 253 float16 columns takes 44 µs.
    """
    for node in list(graph.nodes):
        y = node.output if isinstance(node.op, MatMul) else None
        if y is None or graph.is_output(y) or not _is_cut(y):
            continue
        matrix = node.operands[1]
        rank, word = rank_of(y), word_of(y, context)
        if matrix.data is None or matrix.data.ndim < 2 or not rank or word < 2:
            continue
        count = matrix.data.shape[-1]
        if count < LEAST or count % word == 0 or node.operands[0].data is not None:
            continue
        more = -count % word
        wide = np.pad(matrix.data, [(0, 0)] * (matrix.data.ndim - 1) + [(0, more)])
        add = Builder(graph, node, node.name, (node,))
        whole = add(MatMul(), node.operands[0], add.constant(wide, matrix.name))
        graph.replace(node, [add.slice(whole, rank - 1, 0, count)])
        yield f"MatMul '{node.name}' has {count + more} columns instead of {count}"


def _is_cut(value: Value) -> bool:
    """Whether all that reads a value pads or slices it."""
    readers = value.consumers
    return bool(readers) and all(isinstance(reader.op, Pad | Slice) for reader in readers)


def _is_moved(graph: Graph, node: Node) -> bool:
    """Whether a node is a Concat that only such nodes read."""
    if not isinstance(node.op, Concat) or graph.is_output(node.output):
        return False
    readers = node.output.consumers
    return bool(readers) and all(isinstance(reader.op, _READERS) for reader in readers)


def _padded(node: Node) -> tuple[Value, int, int, int] | None:
    """Return the one computed operand of a Concat, the axis, and the zeros before and after it."""
    axis, parts = axis_of(node), node.operands
    computed = [place for place, value in enumerate(parts) if not _is_zero(value)]
    if axis is None or len(computed) != 1 or len(parts) == 1:
        return None
    value = parts[computed[0]]
    shapes = [static_dims(part.tensor.shape) for part in parts]
    if value.is_constant or dtype_of(value) not in FLOATS or any(shape is None for shape in shapes):
        return None
    sizes = [shape[axis] for shape in shapes if shape is not None]
    return value, axis, sum(sizes[: computed[0]]), sum(sizes[computed[0] + 1 :])


def _is_zero(value: Value) -> bool:
    return value.data is not None and not any(value.data.tobytes())
