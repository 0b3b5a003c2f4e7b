"""Keeps weights of a few bits packed, where products or lookups read what they stand for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...base.record import record
from ...ir.dtypes import (
    SIGNED,
    bfloat16,
    bits_of,
    float16,
    float32,
    int2,
    int4,
    int8,
    uint2,
    uint4,
    uint8,
)
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.elementwise import Add
from ...ops.gather import Gather
from ...ops.matmul import Gemm, MatMul
from ...ops.movement import Transpose
from ...ops.packed import MatMulNBits
from ...ops.quantize import DequantizeLinear
from ...ops.shape import VIEWS
from ..driver import Context
from ..editing import Builder, drop, dtype_of

PACKABLE = frozenset({int2, uint2, int4, uint4, int8, uint8})
SCALES = (float32, float16, bfloat16)
#: Terms that share a scale at least, as MatMulNBits has it, and at most, as its kernels expect.
SHORTEST, LONGEST = 16, 128
#: Elements that are packed at a time.
ELEMENTS = 1 << 22


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace DequantizeLinear and MatMul, Gemm or Gather by nodes that read the integers.

    Constant weights of 2 or 4 bits, and of 8 in blocks, are not to become floats, which are many
    times as large: products with them are MatMulNBits. Rows of a table are looked up as integers.
    """
    if context.options.keep_quantized:
        return
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, DequantizeLinear):
            continue
        weights = _weights(node, node.op, context)
        if weights is None:
            continue
        for reader, turned in _readers(node):
            kind, name = reader.kind, reader.name
            if isinstance(reader.op, Gather):
                is_done = not turned and _look_up(graph, reader, reader.op, weights)
            else:
                is_done = _multiply(graph, reader, weights.transposed if turned else weights)
            if is_done:
                yield f"{kind} '{name}' reads integers of {weights.bits} bits"


@record
class _Weights:
    """A matrix as integers, with scales for blocks of one of its axes.

    Attributes:
        node: the DequantizeLinear.
        data: its integers.
        scale: its scales, one for each block and index of the other axis.
        zero: zero points in the same shape; None if they are 0.
        axis: that of the blocks.
        block: length of a block.
    """

    node: Node
    data: Array
    scale: Array
    zero: Array | None
    axis: int
    block: int

    @property
    def bits(self) -> int:
        """Bits of an integer."""
        return bits_of(self.data.dtype)

    @property
    def transposed(self) -> _Weights:
        """The transposed matrix."""
        zero = None if self.zero is None else self.zero.T
        return replace(self, data=self.data.T, scale=self.scale.T, zero=zero, axis=1 - self.axis)


def _weights(node: Node, op: DequantizeLinear, context: Context) -> _Weights | None:
    """Return the constant matrix that a DequantizeLinear makes floats, if it can stay packed."""
    if dtype_of(node.inputs[0]) not in PACKABLE or dtype_of(node.output) not in SCALES:
        return None
    x, scale, zero = (*(_constant(value, context) for value in node.inputs), None)[:3]
    if x is None or scale is None or x.ndim != 2 or not x.size:
        return None
    if zero is None and len(node.inputs) > 2 and node.inputs[2] is not None:
        return None
    if scale.dtype != dtype_of(node.output) or (bits_of(x.dtype) == 8 and not op.block_size):
        return None
    zero = None if zero is None or not zero.any() else zero
    axis, block = op.axis % 2, op.block_size
    if not block:
        axis = 1 - axis if scale.size > 1 else 1
        block, other = x.shape[axis], x.shape[1 - axis]
        shape = (other, 1) if axis == 1 else (1, other)
        scale = np.broadcast_to(scale.reshape(-1), (other,)).reshape(shape)
        zero = None if zero is None else np.broadcast_to(zero.reshape(-1), (other,)).reshape(shape)
    return _Weights(node, x, scale, zero, axis, block)


def _constant(value: Value | None, context: Context) -> Array | None:
    """Return the elements of a constant, also of one that is moved in the graph."""
    node = None if value is None else value.producer
    if value is None or node is None or not isinstance(node.op, (*VIEWS, Transpose)):
        return None if value is None else value.data
    found = [_constant(each, context) for each in node.inputs]
    if any(each is None for each in found):
        return None
    made = context.evaluate(node.op, found, 1)
    return None if made is None else np.asarray(made[0])


def _readers(node: Node) -> list[tuple[Node, bool]]:
    """Return what reads a matrix: products with its transpose (False) or itself, and lookups."""
    found: list[tuple[Node, bool]] = []
    for reader in node.output.consumers:
        moved = isinstance(reader.op, Transpose)
        turned = isinstance(reader.op, Transpose) and reader.op.order(2) == (1, 0)
        value = reader.output if moved else node.output
        for each in reader.output.consumers if moved else (reader,):
            places = [place for place, v in enumerate(each.inputs) if v is value]
            if isinstance(each.op, Gather) and places == [0] and not turned:
                found.append((each, False))
            elif isinstance(each.op, MatMul | Gemm) and places == [1]:
                is_transposed = isinstance(each.op, Gemm) and bool(each.op.transB)
                found.append((each, turned == is_transposed))
    return found


def _multiply(graph: Graph, node: Node, weights: _Weights) -> bool:
    """Put a MatMulNBits in the place of a product with the transpose of a matrix."""
    x, _, c = (*node.inputs, None)[:3]
    op = node.op
    if isinstance(op, Gemm) and (op.transA or op.alpha != 1 or (c is not None and op.beta != 1)):
        return False
    rows, terms = weights.data.shape
    block = min(weights.block & -weights.block, LONGEST)
    if block < SHORTEST and weights.block >= terms:
        block = min(max(1 << (terms - 1).bit_length(), SHORTEST), LONGEST)
    if weights.axis != 1 or block < SHORTEST:
        return False
    blocks = -(-terms // block)
    scale, zero = weights.scale, weights.zero
    times = blocks if scale.shape[1] == 1 else weights.block // block
    constants: list[Array] = [
        _packed(weights.data, blocks * block).reshape(rows, blocks, -1),
        np.repeat(scale, times, 1)[:, :blocks].reshape(-1),
    ]
    points = np.zeros_like(scale, weights.data.dtype) if zero is None else zero
    if (points != (0 if weights.data.dtype in SIGNED else 1 << (weights.bits - 1))).any():
        constants.append(_packed(np.repeat(points, times, 1)[:, :blocks], blocks))
    add = Builder(graph, node, node.name, (weights.node, node))
    made = MatMulNBits(K=terms, N=rows, block_size=block, bits=weights.bits)
    value = add(made, x, *(add.constant(each, f"{node.name}.weights") for each in constants))
    _replace(graph, node, value if c is None else add(Add(), value, c))
    return True


def _packed(data: Array, columns: int) -> Array:
    """Return integers as bytes, lowest bits first, of so many columns; signed ones less the least.

    Those of signed types are counted from the least, as MatMulNBits does without zero points.
    """
    bits = bits_of(data.dtype)
    each, flip = 8 // bits, 1 << (bits - 1) if data.dtype in SIGNED else 0
    rows, width = data.shape
    found = np.empty((rows, -(-columns // each)), uint8)
    step = max(1, ELEMENTS // columns)
    for first in range(0, rows, step):
        some = data[first : first + step]
        whole = np.full((len(some), found.shape[1] * each), flip, uint8)
        whole[:, :width] = (some.view(uint8) & ((1 << bits) - 1)) ^ flip
        parts = whole.reshape(len(some), -1, each)
        into = found[first : first + step]
        into[...] = parts[..., 0]
        for place in range(1, each):
            into |= parts[..., place] << (place * bits)
    return found


def _look_up(graph: Graph, node: Node, op: Gather, weights: _Weights) -> bool:
    """Look up rows of integers, and make these floats."""
    if op.axis % 2 or weights.axis != 1:
        return False
    near = int8 if weights.data.dtype in SIGNED else uint8
    add = Builder(graph, node, node.name, (weights.node, node))
    zero = None if weights.zero is None else weights.zero.astype(near)
    tables = (weights.data.astype(near), weights.scale, zero)
    rows = [
        None
        if table is None
        else add(Gather(), add.constant(table, f"{node.name}.table"), node.inputs[1])
        for table in tables
    ]
    rows = rows if zero is not None else rows[:2]
    _replace(graph, node, add(DequantizeLinear(axis=-1, block_size=weights.block), *rows))
    return True


def _replace(graph: Graph, node: Node, value: Value) -> None:
    """Put a value in the place of a node's result, and remove what is no longer read."""
    sources = [each.producer for each in node.distinct_reads]
    graph.redirect(node.output, value)
    for each in (node, *sources):
        drop(graph, each)
