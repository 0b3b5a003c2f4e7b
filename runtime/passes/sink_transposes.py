"""Sinks transposes through nodes that accept any order of axes, until they meet their inverses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.op import Op, with_attributes
from ..ir.types import Dim, TensorType
from ..ops import elementwise
from ..ops.conv import Conv
from ..ops.matmul import Gemm, MatMul
from ..ops.movement import Concat, Pad, Transpose
from ..ops.shape import Flatten, Reshape, Squeeze, Unsqueeze
from .driver import Context
from .editing import Builder, drop, shape_of
from .fold_pad import turned_pads

Order = tuple[int, ...]

#: NHWC to NCHW: a tensor in either order may be stored as the other one requires.
_TO_CHANNELS_FIRST = (0, 3, 1, 2)
_TO_CHANNELS_LAST = (0, 2, 3, 1)
#: NCHW to rows of pixels.
_ROWS = (0, 2, 1)
_RESHAPES = (Reshape, Flatten, Squeeze, Unsqueeze)

#: Elementwise operators that depend on the last axis.
_ORDERED = (elementwise.BitCast, elementwise.SwiGLU)
_FREE = tuple(
    kind
    for kind in vars(elementwise).values()
    if isinstance(kind, type)
    and issubclass(kind, Op)
    and kind.__module__ == elementwise.__name__
    and kind not in _ORDERED
)


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
    channels are last in memory. The activation of a convolution is moved before that.
    """
    yield from _turn_images(graph)
    yield from _merge(graph)
    for node in list(graph.nodes):
        tail = _tail(graph, node) if node in graph else None
        if tail is not None:
            yield tail.rewrite(graph)
    orders = dict.fromkeys(order for node in graph.nodes if (order := _order(node)) is not None)
    for order in orders:
        # One at a time: if an order is its own inverse, a transpose may end one region and start
        # the next.
        while region := next((r for r in _regions(graph, order) if r.after < r.before), None):
            yield region.rewrite(graph)
    yield from _merge(graph)
    for node in list(graph.nodes):
        if node in graph and (views := _views_behind_image(graph, node)):
            yield _activate_early(graph, node, views)


def _views_behind_image(graph: Graph, node: Node) -> list[Node]:
    """Return the nodes that move a convolution's result to the activation, its only reader."""
    views: list[Node] = []
    if not isinstance(node.op, elementwise.Unary) or isinstance(node.op, _ORDERED):
        return views
    value = node.inputs[0]
    while value is not None and graph.sole_consumer(value) is not None:
        made = value.producer
        if made is None or not isinstance(made.op, (Transpose, *_RESHAPES)):
            is_image = made is not None and isinstance(made.op, Conv)
            return views if is_image else []
        views.insert(0, made)
        value = made.inputs[0]
    return []


def _activate_early(graph: Graph, node: Node, views: Sequence[Node]) -> str:
    """Move an activation before the nodes that move its operand, to the convolution."""
    first, (x, *rest) = views[0], node.inputs
    active = Builder(graph, first, node.name, (node,))(node.op, first.inputs[0], *rest)
    graph.set_inputs(first, (active, *first.inputs[1:]))
    name = node.name
    assert x is not None
    graph.replace(node, (x,))
    return f"{node.kind} '{name}' follows its convolution directly"


def _order(node: Node) -> Order | None:
    """Return the order of a Transpose; None for other nodes or unknown rank."""
    if not isinstance(node.op, Transpose):
        return None
    type_ = node.output.type
    rank = type_.rank if isinstance(type_, TensorType) else None
    return None if rank is None else node.op.order(rank)


def _swaps_last(node: Node) -> bool:
    """Whether a Transpose swaps the last two axes."""
    order = _order(node)
    return order is not None and order == (*range(len(order) - 2), len(order) - 1, len(order) - 2)


def _product(sizes: Sequence[Dim]) -> int | None:
    """Return the product of sizes; None if one is unknown."""
    known = [size for size in sizes if isinstance(size, int)]
    return prod(known) if len(known) == len(sizes) else None


def _inverse(order: Order) -> Order:
    return tuple(order.index(axis) for axis in range(len(order)))


def _merge(graph: Graph) -> Iterator[str]:
    """Merge two consecutive transposes to one or none."""
    for node in list(graph.nodes):
        second = _order(node)
        first = node.inputs[0].producer if second and node.inputs[0] else None
        before = _order(first) if first is not None else None
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


def _turn_images(graph: Graph) -> Iterator[str]:
    """Rewrite ``transpose(reshape(image))`` to rows of pixels, and its inverse, with four axes."""
    for node in list(graph.nodes):
        if node not in graph:
            continue
        source = node.inputs[0].producer if node.inputs and node.inputs[0] else None
        if source is None or not source.inputs or source.inputs[0] is None:
            continue
        before, between, after = map(shape_of, (source.inputs[0], node.inputs[0], node.output))
        if not before or not between or not after:
            continue
        add = Builder(graph, node, node.name, (node,))
        if _swaps_last(node) and isinstance(source.op, _RESHAPES) and len(before) == 4:
            *outer, channels, _ = between
            same = tuple(outer) == before[:1] or _product(outer) == before[0]
            if not same or None in outer or channels != before[1] or channels is None:
                continue
            if not isinstance(channels, int):
                continue
            turned = add(Transpose(perm=_TO_CHANNELS_LAST), source.inputs[0])
            counts = (0,) if len(outer) == 1 else (n for n in outer if isinstance(n, int))
            sizes = add.integers((*counts, -1, channels), f"{node.name}.shape")
            value = add(Reshape(), turned, sizes)
        elif isinstance(node.op, _RESHAPES) and _order(source) == _ROWS and len(after) == 4:
            sizes = [size if isinstance(size, int) else -1 for size in after[2:]]
            if after[:2] != between[:2] or None in between[:2] or sizes.count(-1) > 1:
                continue
            if not isinstance(after[1], int):
                continue
            shape = add.integers((0, *sizes, after[1]), f"{node.name}.shape")
            value = add(Transpose(perm=_TO_CHANNELS_FIRST), add(Reshape(), source.inputs[0], shape))
        elif (windows := _windows(add, node, source)) is not None:
            value = windows
        elif (moved := _pixels_moved(add, node, source)) is not None:
            value = moved
        else:
            continue
        name = node.name
        graph.redirect(node.output, value)
        drop(graph, node)
        yield f"'{name}' makes rows of an image, or an image of rows, with a Transpose of four axes"


def _windows(add: Builder, node: Node, source: Node) -> Value | None:
    """Return windows of an image with channels last, or an image of such windows, by way of rows.

    The axes of an image [n, c, height, width] are split, and c moves from the second axis to the
    last; or c comes from the last axis, and the others are merged.
    """
    x = source.inputs[0]
    before, between, after = map(shape_of, (x, node.inputs[0], node.output))
    if x is None or not before or not between or not after:
        return None
    sizes = [size for size in (*before, *between, *after) if isinstance(size, int)]
    rank = len(between)
    if len(sizes) < len(before) + rank + len(after) or rank < 5:
        return None
    inner = range(2, rank)
    first, second = _order(source), _order(node)
    if second and isinstance(source.op, _RESHAPES) and len(before) == 4:
        cut = between[:2] == before[:2] and second[0] == 0 and second[-1] == 1
        if not cut or set(second[1:-1]) != set(inner):
            return None
        rows = add(Transpose(perm=_TO_CHANNELS_LAST), x)
        rows = add(Reshape(), rows, add.integers((*_ints(between, 0, *inner, 1),), "windows"))
        return add(Transpose(perm=(0, *(axis - 1 for axis in second[1:-1]), rank - 1)), rows)
    if first and isinstance(node.op, _RESHAPES) and len(after) == 4:
        joined = between[:2] == after[:2] and first[:2] == (0, rank - 1)
        if not joined or set(first[2:]) != set(range(1, rank - 1)):
            return None
        rows = add(Transpose(perm=(0, *first[2:], rank - 1)), x)
        rows = add(Reshape(), rows, add.integers((*_ints(after, 0, 2, 3, 1),), "rows"))
        return add(Transpose(perm=_TO_CHANNELS_FIRST), rows)
    return None


def _pixels_moved(add: Builder, node: Node, source: Node) -> Value | None:
    """Return an image whose pixels are in another order, by way of rows, such as MobileViTv2's.

    The spatial axes of an image [n, c, height, width] are split, permuted and merged to two again.
    """
    cut = source.inputs[0].producer if source.inputs[0] is not None else None
    image = None if cut is None else cut.inputs[0]
    before, between, after = map(shape_of, (image, source.inputs[0], node.output))
    order = _order(source)
    if not before or not between or not after or not order or order[:2] != (0, 1):
        return None
    if cut is None or not isinstance(cut.op, _RESHAPES) or not isinstance(node.op, _RESHAPES):
        return None
    known = all(isinstance(size, int) for size in (*before, *between, *after))
    if not known or len(before) != 4 or len(after) != 4 or len(between) < 5:
        return None
    if not before[:2] == between[:2] == after[:2]:
        return None
    inner = range(2, len(between))
    rows = add(Transpose(perm=_TO_CHANNELS_LAST), image)
    rows = add(Reshape(), rows, add.integers((*_ints(between, 0, *inner, 1),), "cut"))
    turned = (0, *(axis - 1 for axis in order[2:]), len(between) - 1)
    rows = add(Transpose(perm=turned), rows)
    rows = add(Reshape(), rows, add.integers((*_ints(after, 0, 2, 3, 1),), "rows"))
    return add(Transpose(perm=_TO_CHANNELS_FIRST), rows)


def _ints(sizes: Sequence[Dim], *places: int) -> list[int]:
    return [size for place in places if isinstance(size := sizes[place], int)]


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

    def rewrite(self, graph: Graph) -> str:
        """Make the nodes work in the order before the transposes."""
        image = {node.output: node.inputs[0] for node in self.entries}
        made: dict[Node, Node] = {}
        for node in self.nodes:
            inputs = [
                v and (image.get(v) or _turned_constant(graph, v, self.order)) for v in node.inputs
            ]
            add = Builder(graph, node, node.name, (node,))
            if isinstance(node.op, MatMul):
                inputs = [_turned_weights(graph, node), inputs[0]]
            elif isinstance(node.op, Pad):
                inputs[1] = add.integers(turned_pads(node, self.order), "pads")
            new = add.node(self._op(node.op), *inputs)
            image[node.output] = new.output
            made[node] = new
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

    def _op(self, op: Op) -> Op:
        if isinstance(op, Concat):
            return with_attributes(op, axis=self.order[op.axis])
        return op


def _turned_constant(graph: Graph, value: Value, order: Order) -> Value:
    """Return a constant in the order before transposes of `order`."""
    if value.data is None or value.data.size == 1:
        return value
    wide = value.data.reshape((1,) * (len(order) - value.data.ndim) + value.data.shape)
    return graph.constant(wide.transpose(_inverse(order)), value.name)


def _turned_weights(graph: Graph, node: Node) -> Value:
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
        if _order(node) == order:
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
    back = _inverse(order)
    for value in owner:
        _find_exits(graph, value, owner, back)
    for region in regions:
        region.nodes[:] = graph.in_order(region.nodes)
    return [region for region in regions if region.nodes or region.inverses]


def _find_exits(
    graph: Graph, value: Value, owner: dict[Value, _TransposedRegion], back: Order
) -> None:
    region, leaves = owner[value], graph.is_output(value)
    for reader in value.consumers:
        if region is owner.get(reader.output):
            continue
        if _order(reader) == back:
            region.inverses.append(reader)
        else:
            leaves = True
    if leaves:
        region.exits.append(value)


def _is_free(node: Node, order: Order) -> bool:
    if isinstance(node.op, Concat):
        return -len(order) <= node.op.axis < len(order)
    if isinstance(node.op, Pad):
        return bool(turned_pads(node, order))
    if isinstance(node.op, MatMul):
        x, w = node.operands
        is_layer = x.data is None and w.data is not None and w.data.ndim == 2
        return is_layer and order == (*range(len(order) - 2), len(order) - 1, len(order) - 2)
    return isinstance(node.op, _FREE) and len(node.outputs) == 1


def _all_inside(node: Node, owner: dict[Value, _TransposedRegion], rank: int) -> bool:
    """Whether the node reads only values of regions, and constants that can be transposed."""
    inside = False
    for value in node.distinct_reads:
        if value in owner:
            inside = True
        elif value.data is None or not _can_turn(value.data, rank, node):
            return False
    return inside


def _can_turn(data: np.ndarray, rank: int, node: Node) -> bool:
    return data.ndim == rank if isinstance(node.op, Concat) else data.ndim <= rank


# ── after matrix products ────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Tail:
    """Elementwise nodes after a transposed product, in sequence.

    Attributes:
        turn: the Transpose.
        order: its permutation.
        nodes: what follows.
    """

    turn: Node
    order: Order
    nodes: list[Node]

    def rewrite(self, graph: Graph) -> str:
        """Make the nodes work in the product's order, and transpose their result."""
        before, value = self.turn.output, self.turn.inputs[0]
        for node in self.nodes:
            add = Builder(graph, node, node.name, (node,))
            inputs = [value if v is before else self._turned(graph, node, v) for v in node.inputs]
            before, value = node.output, add(node.op, *inputs)
        last = self.nodes[-1]
        add = Builder(graph, last, self.turn.name, (self.turn,))
        graph.redirect(last.output, add(Transpose(perm=self.order), value))
        for node in (*reversed(self.nodes), self.turn):
            drop(graph, node)
        return f"{len(self.nodes)} nodes after Transpose '{self.turn.name}' now precede it"

    def _turned(self, graph: Graph, node: Node, value: Value | None) -> Value | None:
        """Return another operand in the product's order."""
        if value is None:
            return None
        if value.data is not None:
            return _turned_constant(graph, value, self.order)
        source = value.producer
        if source is not None and _order(source) == self.order:
            return source.inputs[0]
        add = Builder(graph, node, f"{value.name}.turned")
        return add(Transpose(perm=_inverse(self.order)), value)


def _tail(graph: Graph, turn: Node) -> _Tail | None:
    """Return the movable nodes after a Transpose of a product without other readers."""
    order = _order(turn)
    if order is None or turn.inputs[0] is None or not _is_product(graph, turn.inputs[0]):
        return None
    value, nodes, sums = turn.output, list[Node](), 0
    while (node := graph.sole_consumer(value)) is not None and _is_free(node, order):
        others = [v for v in node.distinct_reads if v is not value]
        sums += sum(other.data is None for other in others)
        if isinstance(node.op, Concat | MatMul | Pad) or sums > 1:
            break
        if not _all_near(others, value, order, node):
            break
        nodes.append(node)
        value = node.output
    return _Tail(turn, order, nodes) if nodes else None


def _is_product(graph: Graph, value: Value) -> bool:
    """Whether a value with one reader is a matrix product combined with constants."""
    if graph.sole_consumer(value) is None or value.producer is None:
        return False
    node = value.producer
    if isinstance(node.op, _FREE):
        sides = [v for v in node.distinct_reads if v.data is None]
        return len(sides) == 1 and _is_product(graph, sides[0])
    return isinstance(node.op, (MatMul, Gemm))


def _all_near(others: Sequence[Value], value: Value, order: Order, node: Node) -> bool:
    """Whether transposing the other operands of a node is free or cheap."""
    for other in others:
        source = other.producer
        if other.data is not None:
            near = _can_turn(other.data, len(order), node)
        else:
            turned = source is not None and _order(source) == order
            near = other.type == value.type and (turned or order == _TO_CHANNELS_FIRST)
        if not near:
            return False
    return True
