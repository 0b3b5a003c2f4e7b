"""Merges the products for queries, keys and values."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import TypeGuard

import numpy as np

from ...base.parallel import joined
from ...base.record import record
from ...ir.chains import chain_behind
from ...ir.graph import Graph, Node, Value
from ...ir.op import Op
from ...ir.types import Array
from ...ops.attention import Attention, RotaryEmbedding
from ...ops.cuts import is_along_last
from ...ops.elementwise import Add, Cast, Div, Mul
from ...ops.gather import Gather, TensorScatter
from ...ops.matmul import Gemm, MatMul
from ...ops.movement import Concat, Pad, Slice, Split, Transpose
from ...ops.norm import LayerNormalization, RMSNormalization
from ...ops.packed import MatMulNBits
from ...ops.shape import RESHAPES, Reshape
from ..driver import Context
from ..editing import Builder, dims_of, rank_of, shape_of
from ..pattern import without_addend
from ..pointwise import is_elementwise
from .head_steps import length_of
from .merge_rotations import merged_rotations

#: Maximum number of rows of one of several sequences.
_SHORT = 2048


@record
class _MergeableProduct:
    """x @ weight + bias, with constant weight and bias.

    Attributes:
        nodes: the product and the sum, in this order.
        x: the input.
        op: the product, for any number of columns.
        weights: the constant operands of the product, with columns along `axis`; None for omitted
            operands.
        axis: of each of the weights.
        width: number of columns of the result.
        bias: [n], or None if there is no sum.
    """

    nodes: tuple[Node, ...]
    x: Value
    op: Op
    weights: tuple[Array | None, ...]
    axis: int
    width: int
    bias: Array | None

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the bias, or of the result without one."""
        data = self.weights[0] if isinstance(self.op, MatMul) else self.weights[1]
        assert data is not None
        return data.dtype

    @property
    def addend(self) -> Array:
        """The bias, or zeros."""
        return np.zeros(self.width, self.dtype) if self.bias is None else self.bias


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Merge linear layers that read the same tensor and compute the heads of an attention.

    Their results go to an Attention, or are split into heads that go to caches first, as in
    decoders; or they are normalized first, as what queries and keys are computed of (DeepSeek-V3).
    Two or three products with constant weights, packed ones included, become one with concatenated
    weights; a Split after it yields the parts. Queries and keys that are adjacent parts are rotated
    together.
    """
    for node in list(graph.nodes):
        if node in graph and isinstance(node.op, Attention):
            operands = list(
                dict.fromkeys(_rows_before(graph, value) for value in node.inputs[:3] if value)
            )
            yield from _merge(graph, operands)
            for stream in _streams(graph, operands):
                yield from _merge(graph, stream)
    heads: dict[Value, list[Value]] = {}
    for node in graph.nodes:
        value = node.inputs[0] if _cuts_heads(node) else None
        norm = None if value is None else value.producer
        if value is not None and _is_norm(norm) and graph.sole_consumer(value) is node:
            value = norm.operands[0]  # of all heads at once: OLMo 2
        layer = None if value is None else _layer(graph, value)
        if layer is not None and value is not None:
            heads.setdefault(layer.x, []).append(value)
    for values in heads.values():
        if len(values) <= 3 and any(_is_kept(graph, value) for value in values):
            yield from _merge(graph, values)
    latents: dict[Value, list[Value]] = {}
    for node in graph.nodes:
        value = node.inputs[0] if _reads_latent(node) else None
        layer = None if value is None else _layer(graph, value)
        if layer is not None and value is not None:
            latents.setdefault(layer.x, []).append(value)
    for values in latents.values():
        yield from _merge(graph, values)
    for values in (*_chosen(graph), *_repeated(graph)):
        yield from _merge(graph, values, shared=True)
    for node in list(graph.nodes):
        yield from merged_rotations(graph, node)


def _chosen(graph: Graph) -> list[list[Value]]:
    """Return what layers compute of the rows of one tensor each, if indices choose among some.

    These are nodes of a graph, of which edges read both ends (GatedGCN, GNS). No kernel of such a
    layer could apply what comes next to its results. Columns that a view cuts into heads are apart.
    """
    return [
        values
        for found in _of_rows(graph)
        if (values := [value for value in found if not _is_viewed(value)])
        and any(_chooses_rows(node) for value in values for node in value.consumers)
    ]


def _repeated(graph: Graph) -> list[list[Value]]:
    """Return what layers compute of one vector for each sample, if all of a sample reads it.

    Layers of the time, of a class or of a style scale and shift the images and rows of all blocks
    (networks for diffusion, FiLM). They have few rows: all of them together keep a device as busy
    as one does.
    """
    found = [values for values in _of_rows(graph) if len(values) > 1]
    repeated: set[Value] = set()
    for node in reversed(list(graph.nodes)) if found else ():
        repeated.update(value for value in node.outputs if _is_repeated(value, repeated))
    kept = ([value for value in values if value in repeated] for values in found)
    return [values for values in kept if len(values) > 1]


def _of_rows(graph: Graph) -> Iterable[list[Value]]:
    """Return what products compute of the rows of each matrix, with what is added to it."""
    found: dict[Value, list[Value]] = {}
    for node in graph.nodes:
        if isinstance(node.op, MatMul | Gemm) and rank_of(node.operands[0]) == 2:
            value = node.output
            reader = graph.sole_consumer(value)
            if reader is not None and without_addend(graph, reader.output)[0] is value:
                value = reader.output
            found.setdefault(node.operands[0], []).append(value)
    return found.values()


def _is_viewed(value: Value) -> bool:
    return any(isinstance(node.op, Reshape) for node in value.consumers)


def _is_repeated(value: Value, repeated: Container[Value]) -> bool:
    """Whether elementwise nodes broadcast a tensor, or all parts of it, to larger ones.

    Args:
        value: the tensor.
        repeated: those of which this is so, among what later nodes compute.
    """
    for node in value.consumers:
        same = _of_same_size(node, value)
        if same is None or any(output not in repeated for output in same):
            return False
    return bool(value.consumers)


def _of_same_size(node: Node, value: Value) -> Sequence[Value] | None:
    """Return what an elementwise node or a view makes of a tensor; nothing if it is larger.

    None if it is another node, or repeats nothing.
    """
    if isinstance(node.op, (*RESHAPES, Split, Slice)):
        return node.outputs if node.inputs[0] is value else None
    before, after = shape_of(value), shape_of(node.output)
    if not is_elementwise(node.op) or before is None or after is None:
        return None
    if before == after:  # 1 + scale
        return node.outputs
    sizes = zip(reversed(before), reversed(after), strict=False)
    return () if any(size == 1 and of != 1 for size, of in sizes) else None


def _chooses_rows(node: Node) -> bool:
    """Whether indices choose rows of a tensor; known ones, more than there are."""
    if not isinstance(node.op, Gather) or node.op.axis not in (0, -2):
        return False
    before, after = (dims_of(value) for value in (node.operands[0], node.output))
    grows = bool(before and after and before[0] < after[0])
    return grows or not node.operands[1].is_constant


def _merge(graph: Graph, values: Iterable[Value], *, shared: bool = False) -> Iterator[str]:
    """Merge all compatible layers among those that compute some values.

    Args:
        graph: the graph.
        values: what they compute.
        shared: whether several nodes may read one of them.
    """
    found = [one for value in values if (one := _layer(graph, value, shared=shared)) is not None]
    alike = [[other for other in found if _are_alike(one, other)] for one in found]
    layers = max(alike, key=len, default=list[_MergeableProduct]())
    if len(layers) > 1:
        new = _rewrite(graph, layers)
        yield f"{new.kind} '{new.name}' computes {len(layers)} products with '{layers[0].x.name}'"


def _streams(graph: Graph, operands: Sequence[Value]) -> Iterator[list[Value]]:
    """Yield the rows that are normalized to queries and keys of each of several joined sequences.

    Text and image have their own layers in an MMDiT (Stable Diffusion 3.5, Flux). What is joined as
    it is, as values are, is written there. Of long sequences, one layer keeps a device busy.
    """
    joins = [node for value in operands if (node := value.producer) is not None]
    if not all(isinstance(node.op, Concat) and node.op.axis in (1, -2) for node in joins):
        return
    if len(joins) < len(operands) or len({len(node.inputs) for node in joins}) != 1:
        return
    for parts in zip(*(node.operands for node in joins), strict=True):
        stream = [rows for value in parts if (rows := _rows_before(graph, value)) is not value]
        sizes = [dims_of(value) for value in stream]
        if all(each is not None and prod(each[:-1]) <= _SHORT for each in sizes):
            yield stream


def _rows_before(graph: Graph, value: Value) -> Value:
    """Return the rows whose heads are rotated, normalized or scaled to a value, or the value."""
    node = value.producer
    if node is not None and isinstance(node.op, RotaryEmbedding) and node.inputs[0] is not None:
        return _rows_before(graph, node.inputs[0])
    if node is not None and isinstance(node.op, Mul) and node.operands[1].is_constant:
        rows = _rows_before(graph, node.operands[0])
        return value if rows is node.operands[0] else rows
    if _is_norm(node):  # of all heads at once: OLMo 2, Wan
        return node.operands[0]
    norm = _input_of(node, Reshape)
    inside = () if norm is None or not isinstance(norm.op, Div) else length_of(graph, norm)
    if norm is None or not (inside or _is_norm(norm)):
        return value
    cut = norm.operands[0].producer
    rows = cut.inputs[0] if cut is not None and isinstance(cut.op, Reshape) else None
    if cut is None or rows is None or shape_of(rows) != shape_of(value):
        return value
    alone = len(norm.output.consumers) == 1 and set(cut.output.consumers) <= {norm, *inside[:1]}
    return rows if alone else value


def _is_norm(node: Node | None) -> TypeGuard[Node]:
    """Whether a node normalizes rows, with constant scales and shifts."""
    if node is None or not isinstance(node.op, LayerNormalization | RMSNormalization):
        return False
    return all(each is None or each.data is not None for each in node.inputs[1:])


def _input_of(node: Node | None, *kinds: type[Op]) -> Node | None:
    """Return what computes the first input of a node of one of these operators."""
    if node is None or not isinstance(node.op, kinds) or node.inputs[0] is None:
        return None
    return node.inputs[0].producer


def _cuts_heads(node: Node) -> bool:
    """Whether a node cuts the rows [batch, length, width] of a tensor into heads."""
    shape = shape_of(node.output) if isinstance(node.op, Reshape) else None
    return (
        shape is not None
        and len(shape) == 4
        and isinstance(shape[3], int)
        and shape[3] > 1
        and rank_of(node.inputs[0]) == 3
    )


def _reads_latent(node: Node) -> bool:
    """Whether a node normalizes rows, or cuts them into parts that are."""
    if not isinstance(node.op, Split):
        return _is_norm(node)
    parts = {reader for part in node.outputs for reader in part.consumers}
    return is_along_last(node) and any(map(_is_norm, parts))


def _is_kept(graph: Graph, value: Value) -> bool:
    """Whether heads go, after nodes that only move them, to a cache that is a graph input.

    A cache may be given more room first, as by GroupQueryAttention.
    """
    for _ in range(4):
        if len(value.consumers) != 1:
            return False
        (node,) = value.consumers
        if isinstance(node.op, Concat | TensorScatter):
            return any(_is_given(graph, other) for other in node.inputs if other is not None)
        if not isinstance(node.op, Reshape | Transpose | Cast):
            return False
        value = node.output
    return False


def _is_given(graph: Graph, value: Value) -> bool:
    """Whether a value is a graph input, with or without padding."""
    node = value.producer
    if node is not None and isinstance(node.op, Pad):
        value = node.operands[0]
    return value in graph.inputs


def _layer(graph: Graph, value: Value, *, shared: bool = False) -> _MergeableProduct | None:
    """Return the linear layer that computes an operand, which has no other readers or may have."""
    is_alone = len(value.consumers) == 1 or _is_multiplied_beside(graph, value)
    if not (is_alone or shared) or graph.is_output(value):
        return None
    last, (value, bias) = value.producer, without_addend(graph, value)
    node = value.producer
    nodes = () if last is None or last is node else (last,)
    if node is not None and node is last and isinstance(node.op, Gemm):
        return _rows_of(node, node.op)
    if node is None or not isinstance(node.op, MatMul | MatMulNBits):
        return None
    x = node.operands[0]
    weights = [None if each is None else each.data for each in node.inputs[1:]]
    if isinstance(node.op, MatMul):
        (weight,) = weights
        if weight is None or weight.ndim != 2:
            return None
        found = _MergeableProduct((node, *nodes), x, node.op, (weight,), 1, weight.shape[1], bias)
    else:
        given = [each is not None for each in node.inputs[1:]]
        if given != [each is not None for each in weights] or any(given[3:]):
            return None  # computed weights, another order of columns, a bias inside the operator
        packed, *others = weights[:3]
        assert packed is not None
        rows = packed.reshape(node.op.N, node.op.blocks, -1)
        parts = (rows, *(None if each is None else each.reshape(-1) for each in others))
        op = replace(node.op, N=0)
        found = _MergeableProduct((node, *nodes), x, op, parts, 0, node.op.N, bias)
    return None if bias is not None and bias.shape != (found.width,) else found


def _is_multiplied_beside(graph: Graph, value: Value) -> bool:
    """Whether nodes beside an Attention only multiply heads of its rows (relative positions)."""
    others = [node for node in value.consumers if not isinstance(node.op, Attention)]
    return len(others) < len(value.consumers) and all(
        _cuts_heads(node) and any(isinstance(each.op, MatMul) for each in _behind(graph, node))
        for node in others
    )


def _behind(graph: Graph, node: Node) -> Iterator[Node]:
    """Yield the nodes behind a view of heads, up to one that does not only move them."""
    for reader in chain_behind(graph, node.output):
        yield reader
        if not isinstance(reader.op, (*RESHAPES, Transpose)):
            return


def _rows_of(node: Node, op: Gemm) -> _MergeableProduct | None:
    """Return the linear layer that a Gemm is."""
    x, weight, *given = (node.operands[0], *(value.data for value in node.operands[1:]))
    if weight is None or op.transA or op.alpha != 1 or (given and op.beta != 1):
        return None
    weight = weight.T if op.transB else weight
    width = weight.shape[1]
    if given and (given[0] is None or given[0].shape not in ((width,), (1, width))):
        return None
    bias = given[0].reshape(-1) if given and given[0] is not None else None
    return _MergeableProduct((node,), x, MatMul(), (weight,), 1, width, bias)


def _are_alike(one: _MergeableProduct, other: _MergeableProduct) -> bool:
    kinds = [[None if w is None else w.dtype for w in each.weights] for each in (one, other)]
    return one.x is other.x and one.op == other.op and kinds[0] == kinds[1]


def _joined(parts: Sequence[Array | None], axis: int) -> Array | None:
    known = [part for part in parts if part is not None]
    return joined(known, axis) if known else None


def _rewrite(graph: Graph, layers: list[_MergeableProduct]) -> Node:
    first = layers[0]
    before = graph.in_order(one.nodes[0] for one in layers)[0]
    origin = tuple(node for one in layers for node in one.nodes)
    name = before.name
    add = Builder(graph, before)
    width = sum(one.width for one in layers)
    stored: list[Value | None] = []
    for parts in zip(*(one.weights for one in layers), strict=True):
        data = _joined(parts, first.axis)
        stored.append(None if data is None else graph.constant(data, f"{name}.weights"))
    op = first.op
    if isinstance(op, MatMulNBits):
        op = replace(op, N=width)
    new = Builder(graph, before, name, origin).node(op, first.x, *stored)
    value = new.output
    if any(one.bias is not None for one in layers):
        biases = [one.addend for one in layers]
        bias = graph.constant(np.concatenate(biases), f"{name}.bias")
        value = add(Add(), value, bias, name=f"{name}.sum")
    parts = add.split(value, -1, (one.width for one in layers), f"{name}.parts")
    for one, part in zip(layers, parts, strict=True):
        graph.redirect(one.nodes[-1].output, part)
        for node in reversed(one.nodes):
            graph.remove(node)
    graph.rename(new, name)
    return new
