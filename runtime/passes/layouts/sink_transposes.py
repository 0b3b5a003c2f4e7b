"""Sinks transposes through nodes that accept any order of axes, until they meet their inverses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from ...ir.chains import chain_before, chain_behind
from ...ir.graph import Graph, Node, Value
from ...ir.op import with_attributes
from ...ops.conv import Conv, ConvTranspose
from ...ops.elementwise import PRelu
from ...ops.matmul import Gemm, MatMul
from ...ops.movement import Concat, DepthToSpace, Pad, Transpose
from ...ops.norm import BatchNormalization, LayerNormalization, RMSNormalization
from ...ops.shape import RESHAPES
from ..driver import Context
from ..editing import Builder, drop, shape_of
from ..moves.keep_pixels import keep_pixels
from ..moves.transpose_images import Order, order_of, to_channels_first, transpose_images
from ..norms.fold_batchnorm import folded
from ..pointwise import by_place, inputs_with, is_activation, is_elementwise
from .fold_pad import transposed_pads

#: Normalizations of rows, which may activate what they store, as layers do.
_NORMS = (LayerNormalization, RMSNormalization)
#: Maximum number of nodes that move what a layer stores to its activation.
_VIEWS = 8


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Make regions of elementwise nodes between transposes work in the order before them.

    Exporters of channels-last frameworks write a Transpose before every convolution and one after
    it. A region starts at transposes of one order and includes every node whose inputs all come
    from it or are constants; at its end, an inverse transpose is free and everything else costs a
    transpose. It is rewritten if that leaves fewer of them. Between transposes that swap the last
    two axes (token mixing in MLP-Mixer) the weights of a layer become the left matrix.

    A Transpose between a matrix product and the scales and sums after it is moved after those,
    which then become the epilogue of the product.

    Images become rows of pixels, and rows become images, by a 4-D Transpose, which is free if
    channels are last in memory. The activation of a layer, or of a normalization of rows, is moved
    before that, and before a DepthToSpace, which also a BatchNormalization behind it is.
    """
    yield from transpose_images(graph)
    yield from _merge(graph)
    for node in list(graph.nodes):
        tail = _tail(graph, node) if node in graph else None
        if tail is not None:
            yield tail.rewrite(graph)
    orders = dict.fromkeys(order for node in graph.nodes if (order := order_of(node)) is not None)
    for order in orders:
        while regions := _apart([r for r in _regions(graph, order) if r.is_worth]):
            for region in regions:
                yield region.rewrite(graph)
    yield from _merge(graph)
    active = set[Value]()
    for node in list(graph.nodes):
        if node in graph and (views := _views_behind_layer(graph, node, active)):
            yield _activate_early(graph, node, views)
            active.update(views[0].operands[:1])
    yield from keep_pixels(graph)


def _views_behind_layer(graph: Graph, node: Node, active: Set[Value]) -> list[Node]:
    """Return the nodes that move a layer's result, or rows that are normalized, to the activation.

    Nothing else reads what is moved.

    Args:
        graph: the graph.
        node: the activation.
        active: results of layers and activations behind them.
    """
    views: list[Node] = []
    if not is_activation(node) and not _is_of_channels(node):
        return views
    for made in islice(chain_before(graph, node.operands[0]), _VIEWS + 1):
        if not isinstance(made.op, (Transpose, DepthToSpace, *RESHAPES)):
            is_norm = isinstance(made.op, _NORMS) or _is_of_channels(made) or made.output in active
            return views if views and (is_norm or layer_before(graph, made.output)) else []
        views.insert(0, made)
        if _is_of_channels(node) and not isinstance(made.op, DepthToSpace):
            return []
    return []


def _is_of_channels(node: Node) -> bool:
    """Whether a node treats channels of an image by constants, which a DepthToSpace repeats."""
    if isinstance(node.op, BatchNormalization):
        affine = folded(node)
        return affine is not None and affine[0].size > 1
    slope = node.operands[1].data if isinstance(node.op, PRelu) else None
    rank = len(shape_of(node.output) or ())
    return slope is not None and slope.size in (1, *slope.shape[1 - rank : 2 - rank])


def _activate_early(graph: Graph, node: Node, views: Sequence[Node]) -> str:
    """Move an activation before the nodes that move its operand, to the layer."""
    first, (x, *rest) = views[0], node.inputs
    add = Builder(graph, first, node.name, (node,))
    if _is_of_channels(node):
        rest = [_repeated(add, value, views) for value in node.operands[1:]]
    active = add(node.op, first.inputs[0], *rest)
    graph.set_inputs(first, (active, *first.inputs[1:]))
    name = node.name
    assert x is not None
    graph.replace(node, (x,))
    return f"{node.kind} '{name}' follows its layer directly"


def _repeated(add: Builder, value: Value, shuffles: Sequence[Node]) -> Value:
    """Return constants of channels for those that DepthToSpaces make pixels of."""
    data = value.data
    assert data is not None
    if data.size == 1:
        return value
    own = data.reshape(-1)
    for node in reversed(shuffles):
        if isinstance(node.op, DepthToSpace):
            times = node.op.blocksize**2
            own = np.tile(own, times) if node.op.mode == "DCR" else np.repeat(own, times)
    shape = [-1 if size == data.size else 1 for size in data.shape]
    return add.constant(own.reshape(shape), f"{value.name}.repeated")


def layer_before(graph: Graph, value: Value) -> Node | None:
    """Return the layer whose result a value without other readers is, perhaps activated."""
    shape = shape_of(value)
    while (node := graph.made_for_one(value)) is not None:
        if isinstance(node.op, Conv | ConvTranspose | Gemm | MatMul):
            return node
        computed = [each for each in node.distinct_reads if each.data is None]
        if not by_place(node) or len(computed) != 1:
            return None
        (value,) = computed
        if shape is None or shape_of(value) != shape:
            return None
    return None


def inverse(order: Order) -> Order:
    """Return the permutation that undoes another."""
    return tuple(order.index(axis) for axis in range(len(order)))


def _merge(graph: Graph) -> Iterator[str]:
    """Merge two consecutive transposes to one or none."""
    for node in list(graph.nodes):
        second = order_of(node)
        first = node.inputs[0].producer if second and node.inputs[0] else None
        before = order_of(first) if first is not None else None
        if second is None or first is None or before is None:
            continue
        both = tuple(before[axis] for axis in second)
        source = first.inputs[0]
        if source is None:
            continue
        if both == tuple(range(len(both))) and shape_of(source) is not None:
            graph.replace(node, (source,))
            yield f"Transpose '{node.name}' is the inverse of '{first.name}'"
        else:
            graph.set_op(node, Transpose(perm=both))
            graph.set_inputs(node, (source,))
            yield f"Transpose '{node.name}' absorbed '{first.name}'"
        drop(graph, first)


@dataclass(slots=True)
class _TransposedRegion:
    """Nodes between transposes of one order.

    Attributes:
        order: of the transposes.
        entries: the transposes at its start.
        nodes: in topological order.
        exits: values of it that are read outside, or are outputs, in file order.
        inverses: the transposes at its end that undo the order.
    """

    order: Order
    entries: list[Node] = field(default_factory=list[Node])
    nodes: list[Node] = field(default_factory=list[Node])
    exits: list[Value] = field(default_factory=list[Value])
    inverses: list[Node] = field(default_factory=list[Node])

    @property
    def before(self) -> int:
        """Number of transposes at its boundary."""
        return len(self.entries) + len(self.inverses)

    @property
    def after(self) -> int:
        """Number of transposes after the rewrite."""
        return len(self.exits)

    @property
    def is_worth(self) -> bool:
        """Whether fewer are left, and none is free: layers read pixels where channels are last."""
        has_layers = any(isinstance(node.op, MatMul) for node in self.nodes)
        pixels = has_layers and all(_is_of_pixels(node.operands[0]) for node in self.entries)
        return self.after < self.before and not pixels

    def rewrite(self, graph: Graph) -> str:
        """Make the nodes work in the order before the transposes."""
        image = {node.output: node.operands[0] for node in self.entries}
        made: dict[Node, Node] = {}
        for node in self.nodes:
            made[node] = self._made(graph, node, image)
            image[node.output] = made[node].output
        for value in self.exits:
            if value.producer in made:
                add = Builder(graph, value.producer)
                graph.redirect(value, add(Transpose(perm=self.order), image[value]))
        for node in self.inverses:
            source = node.inputs[0]
            result = image.get(source) if source else None
            if result is not None:
                graph.replace(node, (result,))
        for node in (*reversed(self.nodes), *self.entries):
            drop(graph, node)
        for node, new in made.items():
            graph.rename(new, node.name)
        return (
            f"{len(self.nodes)} nodes after Transpose '{self.entries[0].name}' now use the order "
            f"of its input: {self.before} transposes became {self.after}"
        )

    def _made(self, graph: Graph, node: Node, image: Mapping[Value, Value]) -> Node:
        """Insert a node that works in the order before the transposes."""
        op, add = node.op, Builder(graph, node, node.name, (node,))
        if isinstance(op, MatMul):
            return add.node(op, _transposed_weights(graph, node), image[node.operands[0]])
        if isinstance(op, Pad):
            x, _, *rest = node.inputs
            pads = add.integers(transposed_pads(node, self.order), "pads")
            return add.node(op, x and image[x], pads, *rest)
        others = {
            v: image.get(v) or _transposed_constant(graph, v, self.order) for v in _moved(node)
        }
        if isinstance(op, Concat):
            whole = with_attributes(op, axis=self.order[op.axis])
            return add.node(whole, *(others[v] for v in node.operands))
        return add.node(op, *inputs_with(node, others))


def _transposed_constant(graph: Graph, value: Value, order: Order) -> Value:
    """Return a constant in the order before transposes of `order`."""
    if value.data is None or value.data.size == 1:
        return value
    wide = value.data.reshape((1,) * (len(order) - value.data.ndim) + value.data.shape)
    return graph.constant(wide.transpose(inverse(order)), value.name)


def _transposed_weights(graph: Graph, node: Node) -> Value:
    """Return the transpose of a layer's weights."""
    w = node.operands[1]
    if w.data is None:
        raise TypeError(f"'{node.name}' has no constant weights")
    return graph.constant(np.ascontiguousarray(w.data.T), w.name)


def _regions(graph: Graph, order: Order) -> list[_TransposedRegion]:
    """Return the disjoint regions of transposes of one order."""
    owner: dict[Value, _TransposedRegion] = {}
    regions: list[_TransposedRegion] = []
    for node in graph.nodes:
        if order_of(node) == order:
            region = _TransposedRegion(order, [node])
            regions.append(region)
            owner[node.output] = region
        elif _is_free(node, order) and _all_inside(node, owner, len(order)):
            parts = {id(owner[v]): owner[v] for v in node.distinct_reads if v in owner}
            first, *others = parts.values()
            for other in others:
                first.entries += other.entries
                first.nodes += other.nodes
                regions.remove(other)
                owner.update((value, first) for value, has in owner.items() if has is other)
            first.nodes.append(node)
            owner[node.output] = first
    back = inverse(order)
    for value in owner:
        _find_exits(graph, value, owner, back)
    for region in regions:
        region.nodes[:] = graph.in_order(region.nodes)
    return [region for region in regions if region.nodes or region.inverses]


def _apart(regions: Sequence[_TransposedRegion]) -> list[_TransposedRegion]:
    """Return regions without common transposes, the first ones.

    If an order is its own inverse, a transpose may end one region and start the next.
    """
    taken: set[Node] = set()
    found: list[_TransposedRegion] = []
    for region in regions:
        ends = {*region.entries, *region.inverses}
        if taken.isdisjoint(ends):
            found.append(region)
            taken |= ends
    return found


def _is_of_pixels(value: Value) -> bool:
    """Whether a convolution computes a value, perhaps with layers of its pixels behind it."""
    while (node := value.producer) is not None:
        computed = [each for each in node.distinct_reads if each.data is None]
        is_layer = is_elementwise(node.op) or isinstance(node.op, Transpose | MatMul)
        if not is_layer or len(computed) != 1:
            return isinstance(node.op, Conv | ConvTranspose)
        value = computed[0]
    return False


def _find_exits(
    graph: Graph, value: Value, owner: dict[Value, _TransposedRegion], back: Order
) -> None:
    region, leaves = owner[value], graph.is_output(value)
    for reader in value.consumers:
        if region is owner.get(reader.output):
            continue
        if order_of(reader) == back:
            region.inverses.append(reader)
        else:
            leaves = True
    if leaves:
        region.exits.append(value)


def _is_free(node: Node, order: Order) -> bool:
    if isinstance(node.op, Concat):
        return -len(order) <= node.op.axis < len(order)
    if isinstance(node.op, Pad):
        return bool(transposed_pads(node, order))
    if isinstance(node.op, MatMul):
        x, w = node.operands
        is_layer = x.data is None and w.data is not None and w.data.ndim == 2
        return is_layer and order == (*range(len(order) - 2), len(order) - 1, len(order) - 2)
    return bool(by_place(node))


def _moved(node: Node) -> tuple[Value, ...]:
    """Return what a node of a region reads in the order of its result."""
    return by_place(node) or node.distinct_reads


def _all_inside(node: Node, owner: dict[Value, _TransposedRegion], rank: int) -> bool:
    """Whether the node reads only values of regions, and constants that can be transposed."""
    inside = False
    for value in _moved(node):
        if value in owner:
            inside = True
        elif value.data is None or not _can_transpose(value.data, rank, node):
            return False
    return inside


def _can_transpose(data: np.ndarray, rank: int, node: Node) -> bool:
    return data.ndim == rank if isinstance(node.op, Concat) else data.ndim <= rank


# ── after matrix products ────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Tail:
    """Elementwise nodes after a transposed product, in sequence.

    Attributes:
        transpose: the Transpose.
        order: its permutation.
        nodes: what follows.
    """

    transpose: Node
    order: Order
    nodes: list[Node]

    def rewrite(self, graph: Graph) -> str:
        """Make the nodes work in the product's order, and transpose their result."""
        before, value = self.transpose.output, self.transpose.operands[0]
        for node in self.nodes:
            add = Builder(graph, node, node.name, (node,))
            others = {
                v: value if v is before else self._transposed(graph, node, v)
                for v in by_place(node)
            }
            before, value = node.output, add(node.op, *inputs_with(node, others))
        last = self.nodes[-1]
        add = Builder(graph, last, self.transpose.name, (self.transpose,))
        graph.redirect(last.output, add(Transpose(perm=self.order), value))
        for node in (*reversed(self.nodes), self.transpose):
            drop(graph, node)
        return f"{len(self.nodes)} nodes after Transpose '{self.transpose.name}' now precede it"

    def _transposed(self, graph: Graph, node: Node, value: Value) -> Value:
        """Return another operand in the product's order."""
        if value.data is not None:
            return _transposed_constant(graph, value, self.order)
        source = value.producer
        if source is not None and order_of(source) == self.order:
            return source.operands[0]
        add = Builder(graph, node, f"{value.name}.transposed")
        return add(Transpose(perm=inverse(self.order)), value)


def _tail(graph: Graph, transpose: Node) -> _Tail | None:
    """Return the movable nodes after a Transpose of a product without other readers."""
    order = order_of(transpose)
    if order is None or transpose.inputs[0] is None or not _is_product(graph, transpose.inputs[0]):
        return None
    value, nodes, sums = transpose.output, list[Node](), 0
    for node in chain_behind(graph, value):
        if not _is_free(node, order):
            break
        others = [v for v in _moved(node) if v is not value]
        sums += sum(other.data is None for other in others)
        if isinstance(node.op, Concat | MatMul | Pad) or sums > 1:
            break
        if not _all_near(others, value, order, node):
            break
        nodes.append(node)
        value = node.output
    return _Tail(transpose, order, nodes) if nodes else None


def _is_product(graph: Graph, value: Value) -> bool:
    """Whether a value with one reader is a matrix product combined with constants."""
    while (node := graph.made_for_one(value)) is not None:
        if not is_elementwise(node.op):
            return isinstance(node.op, (MatMul, Gemm))
        sides = [v for v in node.distinct_reads if v.data is None]
        if len(sides) != 1:
            return False
        (value,) = sides
    return False


def _keeps_rows(own: Order, order: Order) -> bool:
    """Whether a tensor in an order has its rows in place before another one that breaks them."""
    last, place = len(order) - 1, inverse(order)[-1]
    return order[-1] != last and own[place] == last


def _all_near(others: Sequence[Value], value: Value, order: Order, node: Node) -> bool:
    """Whether transposing the other operands of a node is free or cheap."""
    for other in others:
        source = other.producer
        if other.data is not None:
            near = _can_transpose(other.data, len(order), node)
        else:
            own = None if source is None else order_of(source)
            transposed = own is not None and (own == order or _keeps_rows(own, order))
            near = other.type == value.type and (
                transposed or order == to_channels_first(len(order))
            )
        if not near:
            return False
    return True
