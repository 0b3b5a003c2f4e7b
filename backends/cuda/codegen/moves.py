"""Chains of nodes that only move elements, as one function of the result's indices.

Transpose, Slice, Pad, gathering by constant indices, Expand, Tile, Resize to the nearest element
and views compose: in any chain, an element of the result is one element of the input, or zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.chains import chain_before, chain_behind
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.op import Op
from ....runtime.ir.types import Array
from ....runtime.ops.cuts import axis_of, indices_of, sliced_places
from ....runtime.ops.gather import Gather, GatherElements, counted
from ....runtime.ops.movement import Expand, Pad, Slice, Tile, Transpose
from ....runtime.ops.resampling import axes_of, nearest, positions_of
from ....runtime.ops.resize import Resize
from ....runtime.ops.shape import RESHAPES
from ....runtime.ops.shapes import normalize_axes, normalize_axis
from ....runtime.plan.format import Format
from ..recipe.launch import Recipe
from ..recipe.operands import Ints, Tensor, order
from ..recipe.pattern import Grouping, OperandOf, Whole
from ..recipe.setting import Setting, Stored
from .coordinates import MAX_ENTRIES, Coordinates, Unsupported
from .free_moves import ints_of, may_be_free

#: Maximum number of nodes of a chain, and of factors of its axes.
MAX_NODES, MAX_FACTORS = 24, 12
#: Maximum number of entries of a table of places.
MAX_TABLE = 1 << 22
#: Maximum number of elements that one kernel moves although adjacent ones come from far apart; and
#: although each thread reads one, if what a block reads is near.
MAX_SCATTERED, MAX_NEAR = 1 << 17, 1 << 20
#: Results of a block, bytes of a sector of the cache, and how many sectors a block that reads near
#: elements needs at most for those that would do.
BLOCK, SECTOR, MAX_WASTE = 1024, 32, 2


@record
class Walk:
    """Where the elements of a result are in memory, by position along each factor of its axes.

    Element i of the input, with ``i = origin + sum(position * stride) + table[sum(position *
    slot)]``; zero where the table is negative. Or the table is a tensor of indices, as Gather's,
    whose entries count steps from the front, or from the end if negative.

    Attributes:
        origin: index of the first element.
        strides: by factor.
        table: int32, one axis; None if strides suffice.
        slots: strides in the table, by factor.
        indices: the tensor that is the table; None if this is a constant or there is none.
        size, step: the number of slices among which indices choose, and the distance between these.
    """

    origin: int
    strides: Ints
    table: Array | None
    slots: Ints
    indices: Tensor | None = None
    size: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Movement(Whole):
    """Nodes that move the elements of one tensor.

    Attributes:
        nodes: in order; only the next one reads the result of each.
        x, y: the input and the result.
        factors: of each axis of y, outermost first; an axis of size 1 may have none.
        coordinates: of the element's place along each axis of x, int64, with an axis for each
            factor, of size 1 where it does not matter; -1 for a zero.
        result: the format of y, if one kernel moves all.
    """

    nodes: tuple[Node, ...]
    x: Value
    y: Value
    factors: tuple[Ints, ...]
    coordinates: tuple[Array, ...]
    result: Format = Format.CONTIGUOUS

    reads_rows = True
    regrouped = Grouping.PLAIN

    def walk(self, x: Tensor) -> Walk:
        """Return the places of the elements if the input is laid out like this."""
        rank = sum(map(len, self.factors))
        origin, strides, loose = 0, [0] * rank, list[tuple[Array, int]]()
        for at, stride in zip(self.coordinates, x.strides, strict=True):
            steps = linear(at)
            if steps is None:
                loose.append((at, stride))
                continue
            origin += int(at.flat[0]) * stride
            strides = [s + stride * step for s, step in zip(strides, steps, strict=True)]
        if not loose:
            return Walk(origin, tuple(strides), None, (0,) * rank)
        sums = sum((at * stride for at, stride in loose), start=np.zeros((1,) * rank, np.int64))
        outside = np.logical_or.reduce(np.broadcast_arrays(*(at < 0 for at, _ in loose)))
        table, steps = _looked_up(sums, outside)
        strides = [s + step for s, step in zip(strides, steps, strict=True)]
        if table.size == 1 and table.flat[0] >= 0:
            return Walk(origin + int(table.flat[0]), tuple(strides), None, (0,) * rank)
        slots = (prod(table.shape[i + 1 :]) if n > 1 else 0 for i, n in enumerate(table.shape))
        return Walk(origin, tuple(strides), table.reshape(-1), tuple(slots))

    @property
    def copies(self) -> int:
        """The number of its nodes that copy; 0 if all of them might be free.

        A part that might be read in place counts, too, if others copy in any case.
        """
        certain = sum(not may_be_free(node) for node in self.nodes) or self._breaks_rows
        parts = sum(may_be_free(n) and isinstance(n.op, (Slice, Gather)) for n in self.nodes)
        return certain + parts if certain else 0

    @property
    def is_resize(self) -> bool:
        """Whether it is a Resize and views, which has better kernels."""
        others = (n for n in self.nodes if not isinstance(n.op, Resize) and not may_be_free(n))
        return any(isinstance(n.op, Resize) for n in self.nodes) and not any(others)

    @property
    def _breaks_rows(self) -> bool:
        """Whether views give another length to rows that a Slice cuts out of longer ones."""
        for i, node in enumerate(self.nodes):
            before, after = node.operands[0].tensor.dims, node.output.tensor.dims
            if isinstance(node.op, Slice) and after[-1] < before[-1] and prod(before[:-1]) > 1:
                views = takewhile(lambda n: isinstance(n.op, RESHAPES), self.nodes[i + 1 :])
                return any(view.output.tensor.dims[-1:] != after[-1:] for view in views)
        return False

    @property
    def transposes(self) -> bool:
        """Whether the order of axes changes."""
        return any(isinstance(node.op, Transpose) for node in self.nodes)

    @property
    def is_worth(self) -> bool:
        """Whether one kernel is faster than several: tiles transpose a large matrix better."""
        near = not self.transposes or self.y.tensor.size <= MAX_SCATTERED
        return self.copies > 1 and (near or self.is_adjacent(self.format))

    @property
    def is_few(self) -> bool:
        """Whether its kernels would take longer than to read elements one by one from far apart."""
        moved, size = sum(not isinstance(n.op, RESHAPES) for n in self.nodes), self.y.tensor.size
        return size <= MAX_SCATTERED * moved or (size <= MAX_NEAR * moved and self.is_near)

    @property
    def is_near(self) -> bool:
        """Whether a block of adjacent results reads whole sectors, in whatever order (3 x 48)."""
        sizes = [n for axis in self.factors for n in axis]
        walk, size = self.walk(Tensor(self.x)), prod(sizes)
        first = max(0, size - BLOCK) // 2
        at = np.unravel_index(np.arange(first, min(size, first + BLOCK)), sizes)
        places = walk.origin + sum(p * s for p, s in zip(at, walk.strides, strict=True))
        if walk.table is not None:
            found = walk.table[sum(p * s for p, s in zip(at, walk.slots, strict=True))]
            places = (places + found)[found >= 0]
        width = self.x.tensor.dtype.itemsize
        sectors = len(np.unique(places * width // SECTOR))
        return sectors * SECTOR <= MAX_WASTE * max(len(at[0]) * width, SECTOR)

    def fits(self, dims: Ints) -> bool:
        """Whether a tensor of these sizes has as many elements, or repeats few."""
        own = self.y.tensor.dims
        repeats = len(own) == len(dims) and all(n in (1, m) for n, m in zip(own, dims, strict=True))
        return own == dims or (repeats and self.is_few)

    @property
    def format(self) -> Format:
        """The format of the input in which adjacent elements of the result are adjacent.

        Few columns of rows are read one by one where they are.
        """
        if self.x.tensor.rank == 3 and not self.transposes and self.is_few:
            return Format.CONTIGUOUS
        formats = (Format.CONTIGUOUS, Format.CHANNELS_LAST)
        return next((f for f in formats if self.is_adjacent(f)), Format.CONTIGUOUS)

    def is_adjacent(self, format: Format, inner: int = 0) -> bool:
        """Whether elements that are adjacent in the result are adjacent or equal in the input.

        Args:
            format: of the input.
            inner: number of last axes of the result that do not count, as a thread has all of them.
        """
        walk, places = self.walk(Tensor(self.x, format)), list[int]()
        axes = order(len(self.factors), self.result)
        for axis in axes[: len(axes) - inner]:
            first = sum(map(len, self.factors[:axis]))
            places += (first + i for i, size in enumerate(self.factors[axis]) if size > 1)
        last = places[-1] if places else None
        return last is None or (walk.strides[last] in (0, 1) and not walk.slots[last])

    @property
    def is_order(self) -> bool:
        """Whether it moves all elements, and they may as well be computed as they are stored."""
        whole = self.transposes and self.y.tensor.size == self.x.tensor.size
        whole = whole and all((at >= 0).all() for at in self.coordinates)
        return whole and (self.is_few or self.is_adjacent(Format.CONTIGUOUS))

    def of(self, value: Value) -> Movement:
        """Return the same of a value that is broadcast to the input, in its own place."""
        dims, own = self.x.tensor.dims, value.tensor.dims
        axes = zip(dims[len(dims) - len(own) :], own, strict=True)
        parts = self.coordinates[len(dims) - len(own) :]
        ones: Array = np.zeros((1,) * sum(map(len, self.factors)), np.int64)
        found = [ones if n < whole else at for (whole, n), at in zip(axes, parts, strict=True)]
        return replace(self, x=value, y=value, coordinates=tuple(found))

    @property
    def is_plain(self) -> bool:
        """Whether it keeps the order of axes, so that any format will do."""
        rank = self.x.tensor.rank
        same = all(v.tensor.rank == rank for node in self.nodes for v in node.outputs)
        return same and not any(isinstance(n.op, (Transpose, *RESHAPES)) for n in self.nodes)

    @property
    def follows(self) -> bool:
        """Whether it accepts any format; see `Pattern`."""
        return self.is_plain

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats that it requests; see `Pattern`."""
        return {} if self.is_plain else {self.x: self.format, self.y: self.result}

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        from .chain_kernel import copied_through

        return copied_through(self, y, operand(self.x))


def linear(at: Array) -> Ints | None:
    """Return the steps along each axis if coordinates are linear in the positions."""
    if (at < 0).any():
        return None
    first = at[(0,) * at.ndim]
    steps: list[int] = []
    wanted: Array = np.full((1,) * at.ndim, first)
    for axis, size in enumerate(at.shape):
        place = tuple(int(i == axis and size > 1) for i in range(at.ndim))
        steps.append(int(at[place] - first))
        along = np.arange(size).reshape([-1 if i == axis else 1 for i in range(at.ndim)])
        wanted = wanted + steps[-1] * along
    return tuple(steps) if (wanted == at).all() else None


def _looked_up(sums: Array, outside: Array) -> tuple[Array, Ints]:
    """Return the places that are not linear in the positions, and the steps along each axis.

    Args:
        sums: the place of each element.
        outside: which elements are zeros, broadcast to these.

    Returns:
        The table, int32, with size 1 along axes with a step, -1 for zeros; and the steps.
    """
    outside, steps = np.broadcast_to(outside, sums.shape), [0] * sums.ndim
    for axis in range(sums.ndim):
        first, zeros = sums.take([0], axis), outside.take([0], axis)
        size = sums.shape[axis]
        if size == 1 or (outside != zeros).any():
            continue
        apart = (sums - first)[~outside].reshape(-1)
        along = np.arange(size).reshape([-1 if i == axis else 1 for i in range(sums.ndim)])
        places = np.broadcast_to(along, sums.shape)[~outside]
        step = int(apart[places == 1][0]) if apart.size else 0
        if (apart == step * places).all():
            sums, outside, steps[axis] = first, zeros, step
    return np.where(outside, -1, sums).astype(np.int32), tuple(steps)


# ── composing ────────────────────────────────────────────────────────────────────────────────────


def _slice(state: Coordinates, node: Node, dims: Ints) -> None:
    places = sliced_places(node)
    if places is None:
        raise Unsupported
    for axis, part in places.items():
        state.take(axis, np.array(part, np.int64))


def _gather(state: Coordinates, node: Node, dims: Ints) -> None:
    axis, indices = axis_of(node), indices_of(node)
    if axis is None or indices is None:  # kernels of one node take those outside
        raise Unsupported
    state.take(axis, indices)


def _gather_elements(state: Coordinates, node: Node, dims: Ints) -> None:
    if not isinstance(node.op, GatherElements):
        raise Unsupported
    axis, index = normalize_axis(node.op.axis, len(dims)), node.operands[1]
    for other, count in enumerate(index.tensor.dims):
        if other != axis and count < dims[other]:
            state.take(other, np.arange(count))
    places = None if index.data is None else counted(index.data, dims[axis])
    if places is None:
        raise Unsupported
    state.pick(axis, places)


def _pad(state: Coordinates, node: Node, dims: Ints) -> None:
    pads, value, axes = (*node.inputs[1:], None, None)[:3]
    amounts, along = ints_of(pads), ints_of(axes)
    zero = value is None or (value.data is not None and not any(value.data.tobytes()))
    if not isinstance(node.op, Pad) or node.op.mode != "constant" or not zero or amounts is None:
        raise Unsupported
    along = normalize_axes(range(len(dims)) if along is None else along, len(dims))
    for i, axis in enumerate(along):
        before, after = amounts[i], amounts[i + len(along)]
        index = np.arange(-before, dims[axis] + after)
        if before or after:
            state.take(axis, np.where(index < dims[axis], np.maximum(index, -1), -1))


def _tile(state: Coordinates, node: Node, dims: Ints) -> None:
    repeats = ints_of(node.inputs[1])
    if repeats is None:
        raise Unsupported
    for axis, times in enumerate(repeats):
        if times != 1:
            state.tile(axis, times)


def _transpose(state: Coordinates, node: Node, dims: Ints) -> None:
    assert isinstance(node.op, Transpose)
    state.transpose(node.op.order(len(dims)))


def _reshape(state: Coordinates, node: Node, dims: Ints) -> None:
    state.reshape(node.output.tensor.dims)


def _expand(state: Coordinates, node: Node, dims: Ints) -> None:
    state.expand(node.output.tensor.dims)


def _resize(state: Coordinates, node: Node, dims: Ints) -> None:
    op = node.op
    assert isinstance(op, Resize)
    if op.mode != "nearest" or op.coordinate_transformation_mode == "tf_crop_and_resize":
        raise Unsupported
    scales, sizes = (None if v is None else v.data for v in (*node.inputs[2:], None, None)[:2])
    for axis in axes_of(op, dims, node.output.tensor.dims, scales, sizes, None):
        if not axis.is_whole:  # rounded as in float32, where 3 / 0.6 is 5
            positions = positions_of(op.coordinate_transformation_mode, axis, float32)
            state.take(axis.index, nearest(op.nearest_mode, positions, axis.old))


#: How coordinates change, by the operator of a node that may be part of a chain.
MOVING: Mapping[type[Op], Callable[[Coordinates, Node, Ints], None]] = {
    **dict.fromkeys(RESHAPES, _reshape),
    **{Expand: _expand, Gather: _gather, GatherElements: _gather_elements},
    **{Pad: _pad, Resize: _resize, Slice: _slice, Tile: _tile},
    Transpose: _transpose,
}


def moves(node: Node) -> bool:
    """Whether a node may be part of a chain: it moves a computed tensor by constants."""
    first, *others = node.inputs or (None,)
    known = all(value is None or value.data is not None for value in others)
    return type(node.op) in MOVING and first is not None and not first.is_constant and known


def coordinates_through(x: Value, nodes: Sequence[Node]) -> Coordinates | None:
    """Return which elements of a tensor nodes make a result of, or None if that is too complex.

    Args:
        x: what the first node moves, or repeats along the axes of others that it reads.
        nodes: in order; each moves or repeats the result of the one before.
    """
    between = [value.tensor for value in (x, *(node.output for node in nodes))]
    if not x.tensor.rank or not all(each.size for each in between):
        return None
    if any(sum(each.dims) > MAX_ENTRIES for each in between):
        return None
    state = Coordinates(x.tensor.dims)
    try:
        for node, read in zip(nodes, between, strict=False):
            MOVING.get(type(node.op), _expand)(state, node, read.dims)
    except Unsupported:
        return None
    return state


def movement(nodes: Sequence[Node]) -> Movement | None:
    """Return what a chain of nodes does, or None if that is too complex."""
    x, y = nodes[0].operands[0], nodes[-1].output
    state = coordinates_through(x, nodes)
    if state is None:
        return None
    if len(state.sizes) > MAX_FACTORS or sum(at.size for at in state.at) > MAX_ENTRIES:
        return None
    if prod(np.broadcast_shapes(*(at.shape for at in state.at if linear(at) is None))) > MAX_TABLE:
        return None
    return Movement(tuple(nodes), x, y, tuple(map(tuple, state.axes)), tuple(state.at))


def movements(graph: Graph, nodes: Sequence[Node], free: Set[Node]) -> list[Movement]:
    """Return disjoint movements among free nodes, each as long as possible.

    Transposes and views at their end that might be free are left to themselves; the result has the
    format in which a Transpose behind it is free.
    """
    found: list[Movement] = []
    left = set(free)
    for node in reversed(nodes):
        if node not in left or not moves(node) or _is_view_or_transpose(node):
            continue
        chain = [*chain_to(graph, node, left), *_views_behind(graph, node, left)]
        whole = _longest(chain)
        if whole is not None and whole.copies and not whole.is_resize:
            if _transposes_image(graph.sole_consumer(whole.y)):
                whole = replace(whole, result=Format.CHANNELS_LAST)
            found.append(whole)
            left.difference_update(whole.nodes)
    return found


def _longest(chain: Sequence[Node]) -> Movement | None:
    """Return what the end of a chain does, as much of it as possible.

    A Pad in front is left to itself if adjacent elements would be looked up (windows of an image),
    and are adjacent in what it writes.
    """
    for i, node in enumerate(chain):
        whole = movement(chain[i:])
        if whole is None:
            continue
        rest = movement(chain[i + 1 :]) if isinstance(node.op, Pad) and chain[i + 1 :] else None
        if rest is not None and not whole.is_worth and rest.is_worth:
            return rest
        return whole
    return None


def longest_movement(graph: Graph, last: Node, free: Set[Node]) -> Movement | None:
    """Return what free nodes that end with one do, each read only by the next, as many as can."""
    return _longest(chain_to(graph, last, free))


def _views_behind(graph: Graph, node: Node, free: Set[Node]) -> Iterator[Node]:
    """Return the views after a node, each the only reader of the result before.

    Few elements are transposed as well.
    """
    few = node.output.tensor.size <= 2 * MAX_SCATTERED
    followed = (Transpose, *RESHAPES) if few else RESHAPES
    readers = chain_behind(graph, node.output)
    return takewhile(lambda view: view in free and isinstance(view.op, followed), readers)


def _is_view_or_transpose(node: Node) -> bool:
    return isinstance(node.op, (Transpose, *RESHAPES)) and may_be_free(node)


def _transposes_image(node: Node | None) -> bool:
    """Whether a node is a Transpose of an image to rows of channels."""
    if node is None or not isinstance(node.op, Transpose):
        return False
    rank = len(node.output.tensor.dims)
    return rank > 2 and node.op.order(rank) == (0, *range(2, rank), 1)


def chain_to(graph: Graph, last: Node, free: Set[Node]) -> list[Node]:
    """Return the longest chain of free nodes that ends with one, each read only by the next."""
    makers = chain_before(graph, last.operands[0])
    moving = takewhile(lambda maker: maker in free and moves(maker), makers)
    found = [last, *islice(moving, MAX_NODES - 1)]
    return found[::-1]
