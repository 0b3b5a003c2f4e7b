"""Splits a product into the parts of a gated layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.op import Op
from ...ir.types import Array
from ...ops.conv import Conv, convolves_pixels
from ...ops.cuts import axis_of, split_sizes
from ...ops.elementwise import Add
from ...ops.matmul import MatMul
from ...ops.movement import Slice, Split, Transpose
from ...ops.packed import MatMulNBits
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of, size_of
from ..moves.split_slices import split
from ..moves.transpose_images import to_channels_first, to_channels_last
from ..pattern import without_addend
from ..pointwise import is_elementwise

#: Parts of a gated layer, and the number of channels that a word of 16 bytes has.
GATED, WORD = 2, 8
#: Within how many elementwise nodes parts meet if one gates the other.
_NEAR = 4


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a product whose columns a Split separates by one product per part.

    ``a, b = split(x W + c)`` followed by ``silu(a) * b`` (SwiGLU, GeGLU, GLU) copies both parts;
    two products with the columns of W do not, and one of them computes the gate as its epilogue.
    Parts with readers other than elementwise nodes, such as an Attention, stay together, and so do
    more than two parts (gates of a recurrence): chains read these where they are, which takes less
    than further products. Packed weights are cut likewise (Phi-3). For 16-bit floats, a convolution
    of single pixels whose channels are cut (NAFNet) becomes such products of rows of pixels, as
    images with channels last are; but channels that do not meet again, such as those of a WaveNet
    for the next layer and for the sum of all, are read where they are.
    """
    for value in [node.output for node in graph.nodes if len(node.outputs) == 1]:
        if _is_cut_in_two(graph, value):
            yield from split(graph, value, GATED)
    halves = context.options.precision in ("float16", "bfloat16")
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Split):
            continue
        conv = _pixels(graph, node) if halves else None
        if conv is None and not _is_gated(graph, node):
            continue
        cut = node if conv is None else _on_rows(graph, node, conv)
        layer, widths = _layer(graph, cut), _widths(cut)
        if layer is None or widths is None:
            continue
        product, bias = layer
        _rewrite(graph, cut, product, bias, widths)
        yield f"{len(widths)} parts of '{product.name}' became separate products"


def _is_cut_in_two(graph: Graph, value: Value) -> bool:
    """Whether two Slices read a layer's result, and only elementwise nodes these."""
    readers = list(value.consumers)
    if len(readers) != GATED or not all(isinstance(reader.op, Slice) for reader in readers):
        return False
    made = without_addend(graph, value)[0].producer
    is_layer = made is not None and (convolves_pixels(made) or _columns_of(made) is not None)
    if not is_layer or graph.is_output(value):
        return False
    return all(is_elementwise(each.op) for cut in readers for each in cut.output.consumers)


def _meet(graph: Graph, node: Node) -> bool:
    """Whether an elementwise node near a Split combines what is computed of both parts."""
    found: list[set[Node]] = []
    for part in node.outputs:
        seen, last = set[Node](), [part]
        for _ in range(_NEAR):
            readers = {each for value in last for each in value.consumers}
            near = [each for each in readers if is_elementwise(each.op) and each not in seen]
            seen.update(near)
            last = [value for each in near for value in each.outputs]
        found.append(seen)
    return not found[0].isdisjoint(found[1])


def _is_gated(graph: Graph, node: Node) -> bool:
    """Whether only elementwise nodes read either of two parts."""
    if len(node.outputs) != GATED:
        return False
    for value in node.outputs:
        if not value.consumers or graph.is_output(value):
            return False
        if not all(is_elementwise(reader.op) for reader in value.consumers):
            return False
    return True


def _pixels(graph: Graph, node: Node) -> Node | None:
    """Return the convolution of single pixels whose gated channels a Split separates."""
    value, rank = node.inputs[0], rank_of(node.inputs[0]) or 0
    conv = None if value is None else value.producer
    if value is None or graph.sole_consumer(value) is not node or conv is None:
        return None
    if not isinstance(node.op, Split) or not isinstance(conv.op, Conv) or rank < 3:
        return None
    sizes = {size_of(part, 1) for part in node.outputs}
    weight, *bias = conv.operands[1:]
    known = weight.data is not None and all(each.data is not None for each in bias)
    if not known or axis_of(node) != 1 or len(sizes) != 1:
        return None
    size = next(iter(sizes))
    if conv.op.group != 1 or weight.data is None or not convolves_pixels(conv):
        return None
    words = isinstance(size, int) and size % WORD == 0 and weight.data.shape[1] % WORD == 0
    return conv if words and _is_gated(graph, node) and _meet(graph, node) else None


def _on_rows(graph: Graph, node: Node, conv: Node) -> Node:
    """Return the Split of a product of pixels as rows, of which its parts are images."""
    x, weight, *bias = conv.operands
    rank = len(shape_of(x) or ())
    assert weight.data is not None
    add = Builder(graph, node, conv.name, (conv,))
    rows = add(Transpose(perm=to_channels_last(rank)), x)
    matrix = np.ascontiguousarray(weight.data.reshape(weight.data.shape[:2]).T)
    value = add(MatMul(), rows, add.constant(matrix, f"{weight.name}.rows"))
    if bias:
        value = add(Add(), value, bias[0])
    cut = Builder(graph, node, node.name, (node,))
    parts = cut.node(Split(axis=-1, num_outputs=GATED), value, outputs=GATED)
    for old, part in zip(node.outputs, parts.outputs, strict=True):
        graph.redirect(old, cut(Transpose(perm=to_channels_first(rank)), part))
    drop(graph, node)
    return parts


def _widths(node: Node) -> tuple[int, ...] | None:
    """Return the sizes of the parts along the last axis."""
    axis, widths = split_sizes(node) or (None, ())
    is_last = axis is not None and axis + 1 == rank_of(node.inputs[0])
    return widths if is_last and all(widths) else None


def _layer(graph: Graph, node: Node) -> tuple[Node, Array | None] | None:
    """Return the product with constant weights whose only reader is the Split, and its bias."""
    value = node.inputs[0]
    if value is None or graph.sole_consumer(value) is not node:
        return None
    value, bias = without_addend(graph, value)
    product = value.producer
    columns = None if product is None else _columns_of(product)
    if product is None or columns is None:
        return None
    return None if bias is not None and bias.shape != (columns,) else (product, bias)


def _columns_of(product: Node) -> int | None:
    """Return the number of columns of a product whose weights can be cut; None if it is none."""
    op, weights = product.op, product.inputs[1:]
    if any(each is not None and each.data is None for each in weights):
        return None
    if isinstance(op, MatMul):
        (matrix,) = (each.data for each in product.operands[1:])
        return matrix.shape[1] if matrix is not None and matrix.ndim == 2 else None
    if not isinstance(op, MatMulNBits) or op.is_prepacked:
        return None
    return op.N if not any(weights[3:]) else None  # another order of terms, a bias inside it


def _cut(product: Node, first: int, last: int) -> tuple[Op, list[Array | None]]:
    """Return the operator and the constants of some columns of a product."""
    op, weights = product.op, [each and each.data for each in product.inputs[1:]]
    if not isinstance(op, MatMulNBits):
        return op, [
            None if each is None else np.ascontiguousarray(each[:, first:last]) for each in weights
        ]
    packed, *others = (
        None if each is None else each.reshape(op.N, -1)[first:last] for each in weights
    )
    assert packed is not None
    rows = packed.reshape(last - first, op.blocks, -1)
    flat = (None if each is None else each.reshape(-1) for each in others)
    return replace(op, N=last - first), [rows, *flat]


def _rewrite(
    graph: Graph, node: Node, product: Node, bias: Array | None, widths: Sequence[int]
) -> None:
    x, cut = product.operands[0], node.operands[0]
    assert cut.producer is not None
    ends = [0, *np.cumsum(widths).tolist()]
    parts: list[Value] = []
    for number, (first, last) in enumerate(pairwise(ends)):
        name = f"{product.name}.{number}"
        add = Builder(graph, node, name, (product,))
        op, weights = _cut(product, first, last)
        stored = (
            each if data is None or each is None else add.constant(data, f"{each.name}.{number}")
            for each, data in zip(product.inputs[1:], weights, strict=True)
        )
        part = add(op, x, *stored)
        if bias is not None:
            behind = Builder(graph, node, name, (cut.producer,))
            part = behind(Add(), part, add.constant(bias[first:last], f"{product.name}.bias"))
        parts.append(part)
    for value, part in zip(node.outputs, parts, strict=True):
        graph.redirect(value, part)
    drop(graph, node)
