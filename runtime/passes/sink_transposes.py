"""Move transposes behind what works in any order of the axes, until they meet their inverses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.op import Op, with_attributes
from ..ir.types import Dim, TensorType
from ..ops import elementwise
from ..ops.matmul import Gemm, MatMul
from ..ops.movement import Concat, Transpose
from ..ops.shape import Flatten, Reshape, Squeeze, Unsqueeze
from .driver import Context
from .editing import Builder, drop, shape_of

Order = tuple[int, ...]

#: The order of channels first, of an image whose channels are last: what is in either order may lie
#: in memory as the other one wants it.
_TO_CHANNELS_FIRST = (0, 3, 1, 2)
_TO_CHANNELS_LAST = (0, 2, 3, 1)
#: The order of rows of pixels, of channels that follow one another.
_ROWS = (0, 2, 1)
_RESHAPES = (Reshape, Flatten, Squeeze, Unsqueeze)

#: Operators of the family that look at the last axis.
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
    """Let regions of elementwise nodes between transposes work in the order of what comes before.

    Exporters of channels-last frameworks write a Transpose in front of every convolution and one
    behind it. A region begins at transposes of one order and takes every node whose inputs all
    come from it or are constants; at its end, the inverse order costs nothing and everything else
    costs a transpose. It is rewritten if that leaves fewer of them.

    A Transpose between a product of matrices and the scales and sums behind it moves behind those,
    which the product can then compute as its epilogue.

    Rows of pixels are made of an image, and an image of rows, by a Transpose of four axes: where
    channels lie last in memory, that one moves nothing.
    """
    yield from _turn_images(graph)
    yield from _merge(graph)
    for node in list(graph.nodes):
        tail = _tail(graph, node) if node in graph else None
        if tail is not None:
            yield tail.rewrite(graph)
    orders = dict.fromkeys(order for node in graph.nodes if (order := _order(node)) is not None)
    for order in orders:
        # One at a time: where an order is its own inverse, a transpose may end one region and begin
        # the next.
        while region := next((r for r in _regions(graph, order) if r.after < r.before), None):
            yield region.rewrite(graph)
    yield from _merge(graph)


def _order(node: Node) -> Order | None:
    """Return the order of a Transpose; None for anything else, and where the rank is unknown."""
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
    """Return the product of sizes; None where one is not known."""
    known = [size for size in sizes if isinstance(size, int)]
    return prod(known) if len(known) == len(sizes) else None


def _inverse(order: Order) -> Order:
    return tuple(order.index(axis) for axis in range(len(order)))


def _merge(graph: Graph) -> Iterator[str]:
    """Make one of two transposes in a row, or none."""
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
        if both == tuple(range(len(both))):
            graph.replace(node, (source,))
            yield f"Transpose '{node.name}' is the inverse of '{first.name}'"
        else:
            graph.set_op(node, Transpose(perm=both))
            graph.set_inputs(node, (source,))
            yield f"Transpose '{node.name}' took '{first.name}' over"
        drop(graph, first)


def _turn_images(graph: Graph) -> Iterator[str]:
    """Write ``transpose(reshape(image))`` to rows of pixels, and the way back, on four axes."""
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
        else:
            continue
        name = node.name
        graph.redirect(node.output, value)
        drop(graph, node)
        yield f"'{name}' makes rows of an image, or an image of rows, with a Transpose of four axes"


@dataclass(slots=True)
class _Region:
    """Nodes between transposes of one order.

    Attributes:
        order: of the transposes.
        entries: the transposes at its beginning.
        nodes: in topological order.
        exits: the values of it that are read, or wanted, outside in the file's order.
        inverses: the transposes at its end that undo the order.
    """

    order: Order
    entries: list[Node] = field(default_factory=list[Node])
    nodes: list[Node] = field(default_factory=list[Node])
    exits: list[Value] = field(default_factory=list[Value])
    inverses: list[Node] = field(default_factory=list[Node])

    @property
    def before(self) -> int:
        """Transposes at its ends now."""
        return len(self.entries) + len(self.inverses)

    @property
    def after(self) -> int:
        """Transposes that the rewrite leaves."""
        return len(self.exits)

    def rewrite(self, graph: Graph) -> str:
        """Let the nodes work in the order of what is before the transposes."""
        image = {node.output: node.inputs[0] for node in self.entries}
        made: dict[Node, Node] = {}
        for node in self.nodes:
            inputs = [
                v and (image.get(v) or _turned_constant(graph, v, self.order)) for v in node.inputs
            ]
            new = Builder(graph, node, node.name, (node,)).node(self._op(node.op), *inputs)
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
            f"{len(self.nodes)} nodes behind Transpose '{self.entries[0].name}' work in the order "
            f"of its input: {self.before} transposes became {self.after}"
        )

    def _op(self, op: Op) -> Op:
        if isinstance(op, Concat):
            return with_attributes(op, axis=self.order[op.axis])
        return op


def _turned_constant(graph: Graph, value: Value, order: Order) -> Value:
    """Return a constant in the order of what is before transposes of `order`."""
    if value.data is None or value.data.size == 1:
        return value
    wide = value.data.reshape((1,) * (len(order) - value.data.ndim) + value.data.shape)
    return graph.constant(wide.transpose(_inverse(order)), value.name)


def _regions(graph: Graph, order: Order) -> list[_Region]:
    """Return the regions of transposes of one order, which share nothing."""
    owner: dict[Value, _Region] = {}
    regions: list[_Region] = []
    for node in graph.nodes:
        if _order(node) == order:
            region = _Region(order, [node])
            regions.append(region)
            owner[node.output] = region
        elif _is_free(node, order) and _all_inside(node, owner, len(order)):
            parts = {id(owner[v]): owner[v] for v in node.reads if v in owner}
            first, *others = parts.values()
            for other in others:
                first.entries += other.entries
                first.nodes += other.nodes
                regions.remove(other)
                owner.update((value, first) for value, has in owner.items() if has is other)
            first.nodes.append(node)
            owner[node.output] = first
    back = _inverse(order)
    place = {node: i for i, node in enumerate(graph.nodes)}
    for value in owner:
        _find_exits(graph, value, owner, back)
    for region in regions:
        region.nodes.sort(key=place.__getitem__)
    return [region for region in regions if region.nodes or region.inverses]


def _find_exits(graph: Graph, value: Value, owner: dict[Value, _Region], back: Order) -> None:
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
    return isinstance(node.op, _FREE) and len(node.outputs) == 1


def _all_inside(node: Node, owner: dict[Value, _Region], rank: int) -> bool:
    """Whether the node reads values of regions, and besides nothing but constants that can turn."""
    inside = False
    for value in node.reads:
        if value in owner:
            inside = True
        elif value.data is None or not _can_turn(value.data, rank, node):
            return False
    return inside


def _can_turn(data: np.ndarray, rank: int, node: Node) -> bool:
    return data.ndim == rank if isinstance(node.op, Concat) else data.ndim <= rank


# ── behind products of matrices ──────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Tail:
    """Elementwise nodes behind a transposed product, one after the other.

    Attributes:
        turn: the Transpose.
        order: of it.
        nodes: what follows.
    """

    turn: Node
    order: Order
    nodes: list[Node]

    def rewrite(self, graph: Graph) -> str:
        """Let the nodes work in the product's order, and transpose what they compute."""
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
        return f"{len(self.nodes)} nodes behind Transpose '{self.turn.name}' are in front of it"

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
    """Return what is behind a Transpose of a product that others do not read, if it can move."""
    order = _order(turn)
    if order is None or turn.inputs[0] is None or not _is_product(graph, turn.inputs[0]):
        return None
    value, nodes, sums = turn.output, list[Node](), 0
    while (node := graph.sole_consumer(value)) is not None and _is_free(node, order):
        others = [v for v in node.reads if v is not value]
        sums += sum(other.data is None for other in others)
        if isinstance(node.op, Concat) or sums > 1 or not _all_near(others, value, order, node):
            break
        nodes.append(node)
        value = node.output
    return _Tail(turn, order, nodes) if nodes else None


def _is_product(graph: Graph, value: Value) -> bool:
    """Whether a value, which one node reads, is made of a product of matrices and constants."""
    if graph.sole_consumer(value) is None or value.producer is None:
        return False
    node = value.producer
    if isinstance(node.op, _FREE):
        sides = [v for v in node.reads if v.data is None]
        return len(sides) == 1 and _is_product(graph, sides[0])
    return isinstance(node.op, (MatMul, Gemm))


def _all_near(others: Sequence[Value], value: Value, order: Order, node: Node) -> bool:
    """Whether the other operands of a node cost nothing, or little, in the product's order."""
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
