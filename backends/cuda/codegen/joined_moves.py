"""Concats of parts that nodes only move, or compute element by element, as one kernel.

A class token that is repeated beside transposed pixels (TimeSformer), differences of neighbours
beside the point that is repeated for each of them (DGCNN, PointMLP): each part would be copied or
computed first, and then copied by the Concat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from itertools import accumulate
from math import gcd, prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.conv import Conv, ConvTranspose
from ....runtime.ops.cuts import axis_of
from ....runtime.ops.movement import Concat, Expand, Pad, Slice, Split
from ....runtime.ops.norm import BatchNormalization, GroupNormalization, InstanceNormalization
from ....runtime.ops.pool import AveragePool, GlobalAveragePool, MaxPool
from ....runtime.ops.resize import Resize
from ..recipe.launch import Recipe
from ..recipe.operands import Ints, Tensor
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from ..recipe.source import C_TYPES
from .chain_kernel import elementwise, refusal
from .coordinates import Coordinates, Unsupported
from .elementwise import ElementwiseChain, chain_of, in_chains, unchanged
from .moves import Movement, longest_movement, moves
from .shared_chains import operands_of

#: Maximum number of parts, and of operands of all of them.
MAX_PARTS, MAX_READ = 4, 6
#: Maximum number of elements of rows whose columns are joined: of more, separate kernels read more
#: adjacent ones at once. On an H200 PointMLP takes 1.08 ms with these at batch 32, 1.13 with one.
MAX_JOINED = 1 << 20
#: Maximum number of values that are looked at to find out whether a tensor is an image.
MAX_TRACED = 16
#: Operators of images, whose results may have channels last.
_LAYERS = (
    *(Conv, ConvTranspose, MaxPool, AveragePool, GlobalAveragePool, Resize),
    *(BatchNormalization, GroupNormalization, InstanceNormalization),
)
#: Returns a node of a graph with elementwise nodes before it, among these, that only they read.
ChainBefore = Callable[[Graph, Node, Set[Node]], Sequence[Node]]
#: Whether the kernel of a node applies elementwise nodes behind it.
TakesEpilogue = Callable[[Node], bool]


@record
class JoinedPart:
    """What a Concat has for some places of its axis.

    Attributes:
        value: the part.
        chain: the elementwise nodes that compute it, in order; none if it is only moved.
        read: the movements through which it is read, or its chain reads.
    """

    value: Value
    chain: tuple[Node, ...]
    read: tuple[Movement, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that only the Concat needs."""
        return (*(node for each in self.read for node in each.nodes), *self.chain)

    @property
    def copies(self) -> bool:
        """Whether a kernel would have to move elements for it."""
        return any(each.copies for each in self.read)


@record
class JoinedMoves(Whole):
    """A Concat, with the nodes that compute its parts.

    Attributes:
        concat: the node.
        parts: in order.
    """

    concat: Node
    parts: tuple[JoinedPart, ...]

    reads_rows = True

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({self.concat, *(node for part in self.parts for node in part.nodes)})

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        return joined_moves(self, y, operand)


def joined_moves_at(
    graph: Graph,
    node: Node,
    free: Set[Node],
    *,
    chain: ChainBefore,
    takes_epilogue: TakesEpilogue,
) -> JoinedMoves | None:
    """Return a Concat of parts of which some would have to be moved first.

    Or computed first, if no kernel could store them where the Concat has them. Images, whose parts
    layers do store there, are left alone.
    """
    axis, y = axis_of(node), node.output.tensor
    values, rank = node.operands, len(y.dims)
    if axis is None or node not in free or not 2 <= len(values) <= MAX_PARTS or not y.size:
        return None
    if len(set(values)) < len(values) or not all(value.tensor.size for value in values):
        return None
    readers = any(isinstance(reader.op, _LAYERS) for reader in node.output.consumers)
    if axis == 1 < rank - 1 and (readers or any(map(_is_image, values))):
        return None
    parts = [_part(graph, value, node, free, chain, takes_epilogue) for value in values]
    read = [operand for part in parts for operand in _operands(part)]
    if prod(y.dims[:axis]) > 1 and axis < rank - 1:
        worth = any(part.nodes for part in parts)
    else:
        few = axis < rank - 1 or y.size <= MAX_JOINED
        worth = few and any(each.copies for each in parts) and not any(map(_may_be_there, parts))
    if not worth or len(read) > MAX_READ:
        return None
    return JoinedMoves(node, tuple(parts))


def _is_image(value: Value) -> bool:
    """Whether a layer of images computes a tensor, or what is moved or computed to give it."""
    waiting, seen = [value], set[Value]()
    while waiting and len(seen) < MAX_TRACED:
        value = waiting.pop()
        node = value.producer
        if node is None or value in seen or len(value.tensor.dims) < 3:
            continue
        seen.add(value)
        if isinstance(node.op, _LAYERS):
            return True
        if in_chains(node) or isinstance(node.op, (Concat, Expand, Pad, Slice, Split)):
            waiting += node.distinct_reads
    return False


def _part(
    graph: Graph,
    value: Value,
    concat: Node,
    free: Set[Node],
    chain: ChainBefore,
    takes_epilogue: TakesEpilogue,
) -> JoinedPart:
    """Return a part with what only the Concat needs to compute it."""
    plain, maker = JoinedPart(value, (), ()), value.producer
    if maker is None or maker not in free or graph.sole_consumer(value) is not concat:
        return plain
    if moves(maker):
        moved = _movement(graph, maker, free)
        return JoinedPart(value, (), (moved,)) if moved else plain
    if not in_chains(maker):
        return plain
    nodes = graph.in_order(chain(graph, maker, free))
    found = list[Movement]()
    for each in operands_of(nodes):
        before = each.producer
        if before is None or graph.is_read_outside(each, nodes):
            continue
        if takes_epilogue(before):
            return plain
        moved = _movement(graph, before, free) if before in free and moves(before) else None
        if moved is not None:
            found.append(moved)
    return JoinedPart(value, tuple(nodes), tuple(found))


def _movement(graph: Graph, last: Node, free: Set[Node]) -> Movement | None:
    """Return what nodes that end with one move, which would be a copy; zeros are no part of it."""
    found = longest_movement(graph, last, free)
    if found is None or found.is_resize or not found.copies:
        return None
    return None if any((at < 0).any() for at in found.coordinates) else found


def _may_be_there(part: JoinedPart) -> bool:
    """Whether what computes a part, which nothing else reads, may store it where the Concat has it.

    Rows of columns may have gaps, and parts of a first axis have none.
    """
    value = part.value
    return not part.nodes and value.producer is not None and len(value.consumers) == 1


def _operands(part: JoinedPart) -> tuple[Value, ...]:
    """Return what the code of a part reads: itself, or what its chain reads."""
    return tuple(operands_of(part.chain)) if part.chain else (part.value,)


def joined_moves(found: JoinedMoves, y: Tensor, operand: OperandOf) -> Recipe | str:
    """Return the launch that computes all parts, each where it is in the result.

    Elements of other parts are zeros for the operands of each, and are not read, but for scalars.
    """
    axis = axis_of(found.concat)
    assert axis is not None
    sizes = [part.value.tensor.dims[axis] for part in found.parts]
    step, first = gcd(*sizes), 0
    read, moved, codes, calls = list[Tensor](), dict[int, Movement](), list[str](), list[str]()
    inside: list[int] = []
    for number, (part, begin) in enumerate(
        zip(found.parts, accumulate(sizes, initial=0), strict=False)
    ):
        code = chain_of(part.chain) if part.chain else unchanged(part.value)
        if isinstance(code, str):
            return code
        known, first = {each.y: each for each in part.read}, len(read)
        for value in code.operands:
            if not value.tensor.dims:  # there for elements of all parts
                read.append(operand(value))
                continue
            source = known.get(value)
            try:
                placed = _placed(value, source, part.value.tensor.dims, y.dims, axis, begin, step)
            except Unsupported:
                return "the places of its elements are too many"
            moved[len(read)] = placed
            read.append(operand(placed.x))
        codes.append(code.within(f"part{number}"))
        numbers = range(first, len(read))
        calls.append(f"part{number}::chain({', '.join(f'a{i}' for i in numbers)})")
        inside.append(next(i for i in numbers if i in moved))
    refused = refusal(y, read, moved)
    if refused:
        return refused
    kind = C_TYPES[y.dtype]
    parameters = [f"{C_TYPES[x.dtype]} a{i}" for i, x in enumerate(read)]
    parameters += [f"bool in{number}" for number in range(len(calls))]
    *others, last = calls
    body = "".join(f"    if (in{n}) return {call};\n" for n, call in enumerate(others))
    codes.append(
        f"__device__ __forceinline__ {kind} chain({', '.join(parameters)})\n"
        f"{{\n{body}    return {last};\n}}"
    )
    values = tuple(dict.fromkeys(x.value for x in read))
    joined = ElementwiseChain(values, "\n".join(codes), f"{len(calls)} parts")
    return elementwise(joined, y, read, moved, inside=inside)


def _placed(
    value: Value,
    source: Movement | None,
    part: Ints,
    dims: Ints,
    axis: int,
    begin: int,
    step: int,
) -> Movement:
    """Return an operand of a part as one of all, zero elsewhere.

    Args:
        value: the operand, which is broadcast to the part.
        source: how it is read; None if it is read as it is.
        part: the sizes of the part.
        dims: those of the result.
        axis: along which parts are joined.
        begin: the first place of the part.
        step: what all parts have a multiple of places of.
    """
    state = Coordinates(value.tensor.dims)
    if source is not None:
        state.axes = [list(sizes) for sizes in source.factors]
        state.at = list(source.coordinates)
    state.expand(part)
    index = np.arange(dims[axis]) - begin
    state.take(axis, np.where((index < 0) | (index >= part[axis]), -1, index))
    if step > 1 and dims[axis] > step:
        state.reshape((*dims[:axis], dims[axis] // step, step, *dims[axis + 1 :]))
        state.axes[axis : axis + 2] = [[*state.axes[axis], *state.axes[axis + 1]]]
    x = value if source is None else source.x
    return Movement((), x, value, tuple(map(tuple, state.axes)), tuple(state.at))
