"""Attention of the channels of a head to one another: its detection in the graph, and its kernel.

El-Nouby et al., "XCiT: Cross-Covariance Image Transformers", 2021: y = softmax(factor * q k') v for
q, k, v of [images, heads, channels, pixels]; channels of q and k may be divided by their lengths.
Models compute them as rows of pixels, or as images, and transpose them; the kernel reads them as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from functools import partial
from itertools import chain, islice, pairwise
from math import gcd, prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.chains import chain_behind
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.types import Array
from ....runtime.ops.attention import Attention
from ....runtime.ops.cuts import is_along_last
from ....runtime.ops.elementwise import Cast, Div, Mul
from ....runtime.ops.matmul import MatMul
from ....runtime.ops.movement import Transpose
from ....runtime.ops.norm import Softmax
from ....runtime.ops.shape import RESHAPES
from ....runtime.plan.format import Format
from ....runtime.plan.partition import results_of
from ..algorithms.registry import Answer
from ..codegen.moves import Movement, linear, movement, moves
from ..gemm.atoms import HALVES, atom_of
from ..gemm.tile import clusters_of
from ..norm.unit_rows import UnitRows, unit_rows_at
from ..recipe.launch import Launch
from ..recipe.operands import Ints, Packed, Tensor, as_it_is, ceil_div
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from ..recipe.targets import Target

#: Maximum number of channels of a head; maximum number of blocks of a cluster, and of a
#: multiprocessor.
MAX_SIZE, MAX_BLOCKS, RESIDENT = 64, 8, 2
#: Blocks of a large cluster, and how many of these start together on an H200.
LARGE, TOGETHER = 16, 4
#: Warps of a block, whose sums share its memory: of heads of up to 32 channels, and of wider ones.
WARPS = 8, 4
#: Maximum number of blocks along the second grid axis.
MAX_IMAGES = 65535
#: Maximum number of nodes between a division and the product.
_LENGTH = 6
_PIXELS_FIRST = (0, 1, 3, 2)


@record
class _Places:
    """Where the elements of [images, heads, channels, pixels] are in a tensor.

    Attributes:
        first: the first element.
        steps: from one to the next along each axis; 0 along axes of size 1.
    """

    first: int
    steps: Ints

    @property
    def members(self) -> dict[str, int]:
        """The members of the kernel's struct."""
        image, head, _, pixel = self.steps
        return {"first": self.first, "image": image, "head": head, "pixel": pixel}


@record
class ChannelPart:
    """Queries, keys, values or results, as channels of a tensor in memory.

    Attributes:
        value: the tensor.
        format: the format in which channels are adjacent.
        places: where elements are, for a layout of the tensor.
        nodes: the nodes between both.
        factors: of each head, float32 [heads].
        unit: divides channels by their lengths.
    """

    value: Value
    format: Format
    places: Callable[[Tensor], _Places | None]
    nodes: frozenset[Node]
    factors: Array
    unit: UnitRows | None = None


@record
class ChannelAttention(Whole):
    """Nodes that compute attention of channels.

    Attributes:
        nodes: all its nodes.
        q, k, v, y: operands and the result.
        dims: images, heads, channels, pixels.
        factors: of the scores of each head, float32 [heads].
        floor: minimum of a channel's length; None if channels are not divided by it.
    """

    nodes: frozenset[Node]
    q: ChannelPart
    k: ChannelPart
    v: ChannelPart
    y: ChannelPart
    dims: Ints
    factors: Array
    floor: float | None

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats of its operands and its result; see `Pattern`."""
        return {part.value: part.format for part in (self.q, self.k, self.v, self.y)}

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return channel_attention(self, operand, setting.target)


@record
class _Products:
    """The products between operands and the result.

    Attributes:
        operands: q, k, v.
        transposed: which of these are [images, heads, pixels, channels].
        factors: of the scores of each head, float32 [heads].
        nodes: all nodes.
        top: the last one.
    """

    operands: tuple[Value, Value, Value]
    transposed: tuple[bool, bool, bool]
    factors: Array
    nodes: frozenset[Node]
    top: Node


# ── detection ────────────────────────────────────────────────────────────────────────────────────


def channel_attention_at(graph: Graph, node: Node, free: Set[Node]) -> ChannelAttention | None:
    """Return the attention of channels that a node belongs to, if there is one.

    Args:
        graph: the graph.
        node: an Attention, the product of queries and keys, or the division of one by its length.
        free: nodes that may be taken.
    """
    product = _product(graph, node)
    found = None if product is None else _products(graph, product)
    if found is None or not found.nodes <= free:
        return None
    dims = found.top.output.tensor.dims
    for far in (True, False):
        q, k, v = (
            _part(graph, value, dims, free, transposed=transposed, far=far)
            for value, transposed in zip(found.operands, found.transposed, strict=True)
        )
        y = _result(graph, found.top, free)
        if q is None or k is None or v is None or y is None:
            return None
        whole = _whole(graph, found, (q, k, v, y))
        if whole is not None:
            return whole
    return None


def _product(graph: Graph, node: Node) -> Node | None:
    """Return the product or Attention that reads a node's result, or the node if it is one."""
    nodes = islice(chain((node,), chain_behind(graph, node.output)), _LENGTH)
    return next((each for each in nodes if isinstance(each.op, Attention | MatMul)), None)


def _whole(
    graph: Graph, found: _Products, parts: tuple[ChannelPart, ChannelPart, ChannelPart, ChannelPart]
) -> ChannelAttention | None:
    """Return attention with these operands and this result; None if others read its values."""
    q, k, v, y = parts
    floors = {None if part.unit is None else part.unit.floor for part in (q, k)}
    types = {part.value.tensor.dtype for part in parts}
    plain = v.unit is None and (v.factors == 1).all()
    if len(floors) > 1 or len(types) > 1 or not types <= HALVES or not plain:
        return None
    nodes = found.nodes.union(*(part.nodes for part in parts))
    if set(results_of(graph, nodes)) - {y.value}:
        return None
    dims, factors = found.top.output.tensor.dims, found.factors * q.factors * k.factors
    return ChannelAttention(nodes, *parts, dims, factors, floors.pop())


def _products(graph: Graph, node: Node) -> _Products | None:
    """Return the products that an Attention, or the product of queries and keys, belongs to."""
    dims = node.operands[0].tensor.dims
    fits = len(dims) == 4 and dims[0] <= MAX_IMAGES and 0 < dims[2] <= MAX_SIZE
    if not fits or node.output.tensor.dtype not in HALVES:
        return None
    found = _attention(graph, node) if isinstance(node.op, Attention) else _softmax(graph, node)
    if found is None:
        return None
    wanted = [
        tuple(dims[axis] for axis in _PIXELS_FIRST) if transposed else dims
        for transposed in found.transposed
    ]
    same = [x.tensor.dims for x in found.operands] == wanted
    return found if same and found.top.output.tensor.dims == dims else None


def _attention(graph: Graph, node: Node) -> _Products | None:
    op, (q, k, v, *others) = node.op, node.operands
    assert isinstance(op, Attention)
    dims = q.tensor.dims
    scale = dims[3] ** -0.5 if op.scale is None else op.scale
    unread = not any(map(graph.is_read, node.outputs[1:]))
    if replace(op, scale=None, softmax_precision=None) != Attention() or others or op.is_wide:
        return None
    factors = np.full(dims[1], scale, np.float32)
    nodes, transposed = frozenset({node}), (False, False, False)
    return _Products((q, k, v), transposed, factors, nodes, node) if unread else None


def _softmax(graph: Graph, product: Node) -> _Products | None:
    """Return the nodes softmax(q k) v from the first product on."""
    q, k = product.operands
    heads = q.tensor.dims[1]
    factors, nodes, softmax = np.ones(heads, np.float32), [product], False
    for node in chain_behind(graph, product.output):
        scale = _factors(node, heads)
        if isinstance(node.op, MatMul):
            if not softmax or node.operands[0] is not nodes[-1].output:
                break
            every = frozenset({*nodes, node})
            return _Products((q, k, node.operands[1]), (False, True, False), factors, every, node)
        if isinstance(node.op, Softmax) and not softmax and is_along_last(node):
            softmax = True
        elif scale is None or (softmax and not isinstance(node.op, Cast)):
            break
        else:
            factors = factors * scale
        nodes.append(node)
    return None


def _factors(node: Node, heads: int) -> Array | None:
    """Return what a node multiplies each head [images, heads, *, *] by; None if it does not."""
    if isinstance(node.op, Cast):
        return np.ones(heads, np.float32) if node.op.to in HALVES | {float32} else None
    if not isinstance(node.op, Mul | Div) or len(node.output.tensor.dims) != 4:
        return None
    *_, last = constants = [v.data for v in node.operands if v.data is not None] or [None]
    if last is None or len(constants) > 1:
        return None
    if isinstance(node.op, Div) and node.operands[1].data is None:
        return None
    if last.size > 1 and last.shape[-3:] != (heads, 1, 1):
        return None
    data = last.astype(np.float32).reshape(-1)
    return np.broadcast_to(1 / data if isinstance(node.op, Div) else data, (heads,))


def _part(
    graph: Graph, value: Value, dims: Ints, free: Set[Node], *, transposed: bool, far: bool
) -> ChannelPart | None:
    """Return an operand as channels of a tensor in which they are adjacent.

    Args:
        graph: the graph.
        value: the operand.
        dims: images, heads, channels, pixels.
        free: nodes that may be taken.
        transposed: whether it is [images, heads, pixels, channels].
        far: whether to return the farthest of these tensors, rather than the nearest.
    """
    moved, nodes, part, unit = list[Node](), set[Node](), None, None
    factors = np.ones(dims[1], np.float32)
    while (node := value.producer) is not None and node in free and (far or part is None):
        scale = _factors(node, dims[1]) if value.tensor.dims[:2] == dims[:2] else None
        if scale is not None:
            factors = factors * scale
        elif (
            transposed
            and not moved
            and isinstance(node.op, Transpose)
            and node.op.perm == _PIXELS_FIRST
        ):
            transposed = False
        elif moves(node):
            moved.insert(0, node)
        else:
            may_divide = isinstance(node.op, Div) and not (transposed or moved or unit)
            unit = unit_rows_at(graph, node, free, lambda *_: ()) if may_divide else None
            if unit is None:
                break
            nodes |= unit.nodes
            value = unit.x
            continue
        nodes.add(node)
        value = node.operands[0]
        found = movement(moved) if moved else None
        places = None if found is None else _reading(found, transposed=transposed)
        format = None if places is None else _format(value, places)
        if places is not None and format is not None:
            part = ChannelPart(value, format, places, frozenset(nodes), factors, unit)
    return part


def _result(graph: Graph, top: Node, free: Set[Node]) -> ChannelPart | None:
    """Return the farthest tensor made of the result in which channels are adjacent."""
    moved, value, part = list[Node](), top.output, None
    ones = np.ones(top.output.tensor.dims[1], np.float32)
    for node in chain_behind(graph, value):
        if node not in free or not isinstance(node.op, (Transpose, *RESHAPES)):
            break
        moved.append(node)
        value, found = node.output, movement(moved)
        places = None if found is None else _writing(found)
        format = None if places is None else _format(value, places)
        if places is not None and format is not None:
            part = ChannelPart(value, format, places, frozenset(moved), ones)
    return part


def _format(value: Value, places: Callable[[Tensor], _Places | None]) -> Format | None:
    """Return the format of a tensor in which channels are adjacent."""
    for format in (Format.CONTIGUOUS, Format.CHANNELS_LAST):
        found = places(Tensor(value, format))
        if found is not None and found.steps[2] == 1:
            return format
    return None


def _reading(move: Movement, *, transposed: bool) -> Callable[[Tensor], _Places | None]:
    """Return a function that finds the elements of a movement's result in its source."""

    def places(x: Tensor) -> _Places | None:
        walk = move.walk(x)
        if walk.table is not None:
            return None
        strides, steps = list(walk.strides), list[int]()
        for sizes in move.factors:
            own = [strides.pop(0) for _ in sizes]
            found = _joined(list(zip(sizes, own, strict=True)))
            if found is None:
                return None
            steps.append(found)
        order = _PIXELS_FIRST if transposed else range(4)
        return _Places(walk.origin, tuple(steps[axis] for axis in order))

    return places


def _writing(move: Movement) -> Callable[[Tensor], _Places | None]:
    """Return a function that finds the elements of a movement's source in its result.

    Both have the same elements.
    """
    found = [linear(at) for at in move.coordinates]

    def places(y: Tensor) -> _Places | None:
        strides = [
            step * prod(sizes[i + 1 :])
            for sizes, step in zip(move.factors, y.strides, strict=True)
            for i in range(len(sizes))
        ]
        steps = list[int]()
        for along in found:
            if along is None:
                return None
            own = {s // by for by, s in zip(along, strides, strict=True) if by} or {0}
            if len(own) > 1:
                return None
            steps += own
        return _Places(0, tuple(steps))

    return places


def _joined(factors: list[tuple[int, int]]) -> int | None:
    """Return the step along an axis with these factors, sizes and steps; None if it varies."""
    inner = [(size, step) for size, step in factors if size > 1] or [(1, 0)]
    for (_, outer), (size, step) in pairwise(inner):
        if outer != size * step:
            return None
    return inner[-1][1]


# ── kernel ───────────────────────────────────────────────────────────────────────────────────────


@record
class _Form:
    """How blocks compute a head.

    Attributes:
        warps: of a block.
        blocks: of a cluster.
        shared: bytes of shared memory of a block.
    """

    warps: int
    blocks: int
    shared: int


def _form(heads: int, wide: int, pixels: int, target: Target, *, is_unit: bool) -> _Form:
    """Return how blocks compute each of so many heads.

    Few heads of many pixels have larger clusters than are portable, of blocks with more warps.
    """
    count, forms = wide * (wide + 8 + 2 * is_unit), list[_Form]()
    few = target.has_wgmma and heads <= min(TOGETHER, clusters_of(LARGE, target))
    for warps, limit in ((WARPS[wide > 32], MAX_BLOCKS), *[(WARPS[0], LARGE)] * few):
        tiles, blocks = ceil_div(pixels, 16 * warps), 1
        most = RESIDENT * target.processors // heads if target.has_clusters else 1
        while 2 * blocks <= min(limit, most, tiles - 1):
            blocks *= 2
        tile = 16 * warps * (wide + 8)
        shared = max(8 * tile, 4 * warps * count) + 4 * tile + 4 * count + 2 * wide * (wide + 8)
        if not forms or (shared <= target.shared and blocks >= limit):
            forms.append(_Form(warps, blocks, shared))
    return forms[-1]


def channel_attention(
    found: ChannelAttention, operand: Callable[[Value], Tensor], target: Target
) -> Answer:
    """Return the launch of attention of channels."""
    parts = {"q": found.q, "k": found.k, "v": found.v, "y": found.y}
    tensors = {name: operand(part.value) for name, part in parts.items()}
    places = {name: part.places(tensors[name]) for name, part in parts.items()}
    images, heads, size, pixels = found.dims
    members = {f"of_{name}": at.members for name, at in places.items() if at is not None}
    if len(members) < len(parts) or any(at and at.steps[2] != 1 for at in places.values()):
        return "channels that are apart"
    if max(tensor.extent for tensor in tensors.values()) >= 2**31:
        return f"{pixels} pixels of {images} images"
    wide, is_unit = ceil_div(size, 16) * 16, found.floor is not None
    read = [n for name in "qkv" for n in members[f"of_{name}"].values()]
    vector, pairs = gcd(8, size, *read), gcd(2, size, *members["of_y"].values()) == 2
    form = _form(heads * images, wide, pixels, target, is_unit=is_unit)
    warps, blocks = form.warps, form.blocks
    tiles = ceil_div(pixels, 16 * warps)
    table = np.ascontiguousarray(found.factors, np.float32)
    return Launch(
        "attention/attention_channels.cu",
        "attention_channels",
        grid=(heads * blocks, images, 1),
        block=32 * warps,
        args={
            **tensors,
            **members,
            "factors": Packed((), ("factors", table.tobytes()), partial(as_it_is, table)),
            **{"pixels": pixels, "size": size, "floor": found.floor or 0.0},
            "chunk": ceil_div(tiles, blocks) * 16 * warps,
        },
        types=(("T", tensors["q"].dtype),),
        constants=(
            *(("SIZE", wide), ("VECTOR", vector), ("PAIRS", pairs), ("WARPS", warps)),
            *(("BLOCKS", blocks), ("UNIT", is_unit)),
        ),
        shared=form.shared,
        cluster=(blocks, 1, 1),
        code=atom_of(tensors["q"].dtype).code(),
        note=f"{images * heads} x {size} x {pixels}" + f" in a cluster of {blocks}" * (blocks > 1),
        pitched=tuple(tensors.values()),
    )
