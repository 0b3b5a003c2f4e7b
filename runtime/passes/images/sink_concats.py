"""Applies what follows concatenated layers to each of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, permutations

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.op import Op
from ...ir.types import Array
from ...ops.conv import Conv, ConvTranspose
from ...ops.cuts import axis_of
from ...ops.elementwise import Add, Mul
from ...ops.movement import Concat, Expand, Slice, Split, Transpose
from ...ops.norm import BatchNormalization
from ...ops.pool import AveragePool, MaxPool
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of, size_of, static_dims, static_size
from ..norms.fold_batchnorm import folded
from ..pointwise import is_activation
from .join_whole import FEW
from .pad_channels import word_of

#: Channels of which every part of a sum has a multiple, so that slices need no copy: 16 bytes in
#: float32. In half precision, channels of images are padded.
WORD = 4
_CONVOLUTIONS = (Conv, ConvTranspose)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Apply what follows concatenated layers to each of them: an activation, a norm, a sum.

    ``act(norm(concat(conv(x), conv(z))))`` is ``concat(act(norm(conv(x))), act(norm(conv(z))))``:
    each layer takes over its part, and stores its results where the Concat has them. Convolutions
    of several window sizes (MixNet) and of several inputs are joined so, also beside poolings
    (ENet). What is added to all is sliced, which copies nothing. Every part must be the result of a
    convolution or pooling that nothing else reads, and one that of a convolution.

    A constant is added to any parts, if one of them is a constant, too: positions to a class token
    and to the product in front of it, which adds a bias already.

    What combines two tensors that are joined alike combines their parts (TimeSformer's residuals of
    a token and of pixels).

    What combines layers beside part of a tensor with another tensor is computed part by part, too,
    as that part would have to be copied (the gates of MambaOut), unless a copy takes no longer than
    its launch: on an H200 MambaOut-Tiny takes 4 % less time at batch 32, and would take 3 % more at
    batch 1.
    """
    yield from _add_constants(graph)
    yield from _combine_both(graph)
    yield from _combine_parts(graph, context)
    for node in list(graph.nodes):
        place = _joined(graph, node) if node in graph else None
        if place is None:
            continue
        joined = node.operands[place]
        concat = joined.producer
        assert concat is not None
        sizes, add = _sizes(concat), Builder(graph, node, node.name, (node,))
        if is_activation(node):
            rest = [list(node.inputs[1:]) for _ in concat.operands]
        elif sizes and _is_norm(node, sum(sizes)):
            rest = _parameters(add, node, sizes)
        elif sizes and _is_sum(node) and all(size % WORD == 0 for size in sizes):
            rest = _slices(add, node.operands[1 - place], sizes)
        else:
            continue
        parts = [
            add(node.op, value, *more) for value, more in zip(concat.operands, rest, strict=True)
        ]
        made = Builder(graph, node, concat.name, (concat,))(concat.op, *parts)
        graph.replace(node, [made])
        graph.remove(concat)
        yield f"{node.kind} '{node.name}' is applied to {len(parts)} layers before their Concat"


def _add_constants(graph: Graph) -> Iterator[str]:
    """Add a constant to the parts of a tensor, some of which are constants."""
    for node in [node for node in graph.nodes if isinstance(node.op, Add)]:
        for joined, addend in permutations(node.operands):
            concat = joined.producer
            if concat is None or not isinstance(concat.op, Concat):
                continue
            pieces = _pieces(addend.data, concat, concat.op)
            fixed = any(_is_fixed(part) for part in concat.operands)
            grows = shape_of(node.output) != shape_of(joined)
            if not pieces or not fixed or grows or not _is_private(graph, concat):
                continue
            add = Builder(graph, node, node.name, (node,))
            made = [_plus(add, *each) for each in zip(concat.operands, pieces, strict=True)]
            graph.replace(node, [Builder(graph, node, concat.name, (concat,))(concat.op, *made)])
            graph.remove(concat)
            yield f"Add '{node.name}' of a constant is applied to {len(made)} parts, one constant"
            break


def _combine_both(graph: Graph) -> Iterator[str]:
    """Add or multiply the parts of two tensors that are joined alike, and join the results."""
    for node in [node for node in graph.nodes if isinstance(node.op, Add | Mul)]:
        pair = [value.producer for value in node.operands]
        made = [each for each in pair if each is not None and isinstance(each.op, Concat)]
        if len(made) < 2 or made[0] is made[1] or not all(_is_private(graph, m) for m in made):
            continue
        shapes = [[static_dims(shape_of(v)) for v in each.operands] for each in made]
        if shapes[0] != shapes[1] or None in shapes[0] or axis_of(made[0]) != axis_of(made[1]):
            continue
        add = Builder(graph, node, node.name, (node,))
        parts = [add(node.op, *both) for both in zip(*(m.operands for m in made), strict=True)]
        whole = Builder(graph, node, made[0].name, tuple(made))(made[0].op, *parts)
        graph.redirect(node.output, whole)
        drop(graph, node)
        yield f"{node.kind} '{node.name}' of two Concats is applied to {len(parts)} parts"


def _combine_parts(graph: Graph, context: Context) -> Iterator[str]:
    """Add or multiply parts of which one would be copied, where they are joined."""
    for node in [node for node in graph.nodes if isinstance(node.op, Add | Mul)]:
        for joined, other in permutations(node.operands):
            concat = joined.producer
            if concat is None or not _is_copied(graph, concat, context):
                continue
            if other.data is not None or shape_of(other) != shape_of(joined):
                continue
            chain: list[Node] = []
            while (made := other.producer) and is_activation(made) and _is_private(graph, made):
                chain.append(made)
                other = made.operands[0]
            axis, add = axis_of(concat), Builder(graph, node, node.name, (node,))
            parts: list[Value] = []
            sizes = [size_of(part, axis or 0) for part in concat.operands]
            ends = accumulate(size for size in sizes if isinstance(size, int))
            for part, size, end in zip(concat.operands, sizes, ends, strict=True):
                assert axis is not None
                assert isinstance(size, int)
                piece = add.slice(other, axis, end - size, end)
                for each in reversed(chain):
                    made = Builder(graph, node, each.name, (each,))
                    piece = made(each.op, piece, *each.inputs[1:])
                parts.append(add(node.op, piece, part))
            whole = Builder(graph, node, concat.name, (concat,))(concat.op, *parts)
            graph.redirect(node.output, whole)
            drop(graph, node)
            yield f"{node.kind} '{node.name}' is applied to {len(parts)} parts before their Concat"
            break


def _is_copied(graph: Graph, concat: Node, context: Context) -> bool:
    """Whether a Concat copies all its parts but a layer's, many elements.

    One node reads it, and its parts are whole words.
    """
    axis = axis_of(concat) if isinstance(concat.op, Concat) else None
    if axis is None or not _is_private(graph, concat) or len(set(concat.operands)) < 2:
        return False
    sizes = [size_of(part, axis) for part in concat.operands]
    counts = [size for size in sizes if isinstance(size, int)]
    if len(counts) < len(sizes):
        return False
    word = word_of(concat.output, context)
    if any(count % word for count in counts):
        return False
    cuts = [isinstance(_made_alone(graph, part), Slice | Split) for part in concat.operands]
    others = [part for part, cut in zip(concat.operands, cuts, strict=True) if not cut]
    copied = [part for part, cut in zip(concat.operands, cuts, strict=True) if cut]
    if len(others) != 1 or sum(static_size(shape_of(part)) or 0 for part in copied) <= FEW:
        return False
    return _is_of_layer(graph, others[0])


def _made_alone(graph: Graph, value: Value) -> Op | None:
    """Return the operator of a value that one node reads, once."""
    node = graph.made_for_one(value)
    return None if node is None else node.op


def _is_of_layer(graph: Graph, value: Value) -> bool:
    """Whether a value is the result of a convolution, if transposed, that nothing else reads."""
    op = _made_alone(graph, value)
    if isinstance(op, Transpose) and value.producer is not None:
        return _is_of_layer(graph, value.producer.operands[0])
    return isinstance(op, _CONVOLUTIONS)


def _pieces(addend: Array | None, concat: Node, op: Concat) -> list[Array]:
    """Return what of a constant is added to each part of a Concat; nothing unless all is known."""
    rank = rank_of(concat.output)
    shapes = [shape_of(part) for part in concat.operands]
    if addend is None or not rank or addend.ndim > rank:
        return []
    whole = addend.reshape((1,) * (rank - addend.ndim) + addend.shape)
    axis = normalize_axis(op.axis, rank)
    sizes = static_dims(None if shape is None else shape[axis] for shape in shapes)
    if sizes is None or whole.shape[axis] != sum(sizes):
        return []
    return np.split(whole, list(accumulate(sizes))[:-1], axis)


def _is_fixed(value: Value) -> bool:
    """Whether a value is a constant, or one that is repeated."""
    node = value.producer
    if node is not None and isinstance(node.op, Expand):
        value = node.operands[0]
    return value.data is not None


def _plus(add: Builder, part: Value, piece: Array) -> Value:
    """Return the sum of a part and a constant, which is added before the part is repeated."""
    node = part.producer
    if part.data is not None:
        return add.constant(part.data + piece, "addend")
    if node is None or not _is_fixed(part) or len(piece) > 1:
        return add(Add(), part, add.constant(piece, "addend"))
    source, sizes = node.operands
    return add(Expand(), _plus(add, source, piece), sizes)


def _joined(graph: Graph, node: Node) -> int | None:
    """Return which operand of a node is a Concat of layers that nothing else reads."""
    for place, value in enumerate(node.inputs[: 2 if isinstance(node.op, Add) else 1]):
        made = None if value is None else value.producer
        if made is None or not isinstance(made.op, Concat) or not _is_private(graph, made):
            continue
        layers = [_layer(graph, part) for part in made.operands]
        if all(layers) and any(isinstance(layer.op, _CONVOLUTIONS) for layer in layers if layer):
            return place
    return None


def _is_private(graph: Graph, node: Node) -> bool:
    """Whether exactly one node reads a result, once."""
    return graph.sole_consumer(node.output) is not None


def _layer(graph: Graph, value: Value) -> Node | None:
    """Return the convolution or pooling, possibly normalized, whose result one node reads."""
    node = value.producer
    if node is None or not _is_private(graph, node):
        return None
    if isinstance(node.op, BatchNormalization) and folded(node) is not None:
        return None if node.inputs[0] is None else _layer(graph, node.inputs[0])
    return node if isinstance(node.op, (*_CONVOLUTIONS, MaxPool, AveragePool)) else None


def _is_norm(node: Node, channels: int) -> bool:
    """Whether a node has a fixed factor and addend for each of this many channels."""
    affine = folded(node)
    return affine is not None and affine[0].shape == (channels,)


def _is_sum(node: Node) -> bool:
    """Whether a node adds computed tensors of one shape."""
    shapes = [shape_of(value) for value in node.operands]
    same = shapes[0] is not None and all(shape == shapes[0] for shape in shapes)
    return isinstance(node.op, Add) and same and all(v.data is None for v in node.operands)


def _sizes(concat: Node) -> list[int]:
    """Return the channels of each part of a Concat of channels; none if they are unknown."""
    if not isinstance(concat.op, Concat) or axis_of(concat) != 1:
        return []
    shapes = [shape_of(value) for value in concat.operands]
    sizes = [shape[1] for shape in shapes if shape and isinstance(shape[1], int)]
    return sizes if len(sizes) == len(shapes) else []


def _parameters(add: Builder, norm: Node, sizes: list[int]) -> Iterator[list[Value]]:
    """Yield the constants of a BatchNormalization for each part."""
    for size, end in zip(sizes, accumulate(sizes), strict=True):
        yield [
            add.constant(value.data[end - size : end], f"{value.name}.part")
            for value in norm.operands[1:]
            if value.data is not None
        ]


def _slices(add: Builder, value: Value, sizes: list[int]) -> Iterator[list[Value]]:
    """Yield the channels of a tensor that belong to each part."""
    for size, end in zip(sizes, accumulate(sizes), strict=True):
        yield [add.slice(value, 1, end - size, end)]
