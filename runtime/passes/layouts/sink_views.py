"""Moves views between a layer and the sum or product that it joins to behind that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from ...base.record import record
from ...ir.chains import chain_before, chain_behind
from ...ir.graph import Graph, Node, Value
from ...ops.conv import Conv, ConvTranspose
from ...ops.elementwise import Add, Cast, Mul, Unary
from ...ops.movement import Concat, DepthToSpace, Transpose
from ...ops.shape import RESHAPES
from ..driver import Context
from ..editing import Builder, drop, is_static, shape_of
from ..moves.transpose_images import order_of, to_channels_first, to_channels_last
from ..pattern import pairs
from ..pointwise import is_elementwise
from .sink_transposes import inverse, layer_before

_VIEWS = (Transpose, *RESHAPES)
_CONVOLUTIONS = (Conv, ConvTranspose)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace view(layer) + x by view(layer + view'(x)), where view' is the inverse.

    The layer then adds x as it stores its results. Between images and rows of pixels (hybrids of
    convolutions and attention), a layer's result is reshaped, or transposed by the order that
    convolutions have in memory, before it is added to what its block has read, or gates it
    (depthwise convolutions of rows: cgMLP, Branchformer). Views of x are as free as those of the
    result. Activations behind the sum stay with it.

    A Cast of pixels that a DepthToSpace makes of a layer's channels is moved before it, so that the
    layer stores what is asked for.
    """
    for node in list(graph.nodes):
        found = _layer_sum(graph, node) if node in graph else None
        if found is not None:
            yield found.rewrite(graph)
        elif node in graph and _casts_pixels(graph, node):
            yield _cast_early(graph, node)


def _casts_pixels(graph: Graph, node: Node) -> bool:
    """Whether a node is a Cast of pixels that were channels, which alone reads them."""
    made = node.operands[0].producer if isinstance(node.op, Cast) else None
    if made is None or not isinstance(made.op, DepthToSpace):
        return False
    alone = graph.sole_consumer(made.output) is node
    return alone and layer_before(graph, made.operands[0]) is not None


def _cast_early(graph: Graph, node: Node) -> str:
    made, name = node.operands[0].producer, node.name
    assert made is not None
    cast = Builder(graph, node, name, (node,))(node.op, made.operands[0])
    graph.redirect(node.output, Builder(graph, node, made.name, (made,))(made.op, cast))
    drop(graph, node)
    return f"Cast '{name}' follows its layer directly"


@record
class _LayerSum:
    """A sum, or a product by element, of a layer behind views and another tensor.

    Attributes:
        views: from the layer's result to the operand.
        other: the other operand.
        nodes: the sum and the activations behind it, each the only reader of the one before.
    """

    views: Sequence[Node]
    other: Value
    nodes: Sequence[Node]

    def rewrite(self, graph: Graph) -> str:
        """Add, apply the activations, and then view the result."""
        (total, *rest), last = self.nodes, self.nodes[-1]
        layer = self.views[0].operands[0]
        add = Builder(graph, last, f"{total.name}.views", (total,))
        value = Builder(graph, last, total.name, (total,))(
            total.op, layer, _undone(add, self.other, self.views)
        )
        for node in rest:
            value = Builder(graph, last, node.name, (node,))(node.op, value, *node.inputs[1:])
        for view in self.views:
            value = Builder(graph, last, view.name, (view,))(view.op, value, *view.inputs[1:])
        graph.redirect(last.output, value)
        drop(graph, last)
        return f"{len(self.views)} views before {total.kind} '{total.name}' are now behind it"


def _undone(add: Builder, value: Value, views: Sequence[Node]) -> Value:
    """Return the value of which views would give this one; those that it has are reused."""
    for view in reversed(views):
        made, order, before = value.producer, order_of(view), _dims(view)
        is_view = made is not None and isinstance(made.op, _VIEWS)
        if made is not None and is_view and order_of(made) == order and _dims(made) == before:
            value = made.operands[0]
        elif order is None:
            value = add.view(value, before)
        else:
            value = add(Transpose(perm=inverse(order)), value)
    return value


def _dims(view: Node) -> tuple[int, ...]:
    return view.operands[0].tensor.dims


def _layer_sum(graph: Graph, node: Node) -> _LayerSum | None:
    """Return the sum of a layer behind views and a tensor that no layer could apply instead."""
    shape = shape_of(node.output)
    if not isinstance(node.op, Add | Mul) or not is_static(node.output):
        return None
    for value, other in pairs(node):
        alike = shape_of(value) == shape_of(other) == shape
        if not alike or other.data is not None or layer_before(graph, other):
            continue
        views = _views_of_layer(graph, value)
        nodes = _activated(graph, node) if views else None
        if nodes is not None:
            return _LayerSum(views, other, nodes)
    return None


def _views_of_layer(graph: Graph, value: Value) -> list[Node]:
    """Return the views between a layer and a value without other readers, which move nothing."""
    moves = takewhile(lambda node: isinstance(node.op, _VIEWS), chain_before(graph, value))
    views = [*moves][::-1]
    layer = layer_before(graph, views[0].operands[0] if views else value)
    orders = [order for view in views if (order := order_of(view)) is not None]
    if layer is None or not all(is_static(view.operands[0]) for view in views):
        return []
    if len(orders) > 1:
        return []
    order = next(iter(orders), None)
    if isinstance(layer.op, _CONVOLUTIONS):
        fits = order is not None and order == order_of(views[0]) == to_channels_last(len(order))
    else:
        fits = order is None or (len(order) > 3 and order == to_channels_first(len(order)))
    return views if fits else []


def _activated(graph: Graph, node: Node) -> list[Node] | None:
    """Return a sum and the activations behind it.

    None if other elementwise nodes follow, or a Concat, into whose result a sum may be written.
    """
    nodes = [node]
    for reader in chain_behind(graph, node.output):
        if not is_elementwise(reader.op):
            break
        if not isinstance(reader.op, Unary) or len(reader.distinct_reads) != 1:
            return None
        nodes.append(reader)
    joined = any(isinstance(reader.op, Concat) for reader in nodes[-1].output.consumers)
    return None if joined else nodes
