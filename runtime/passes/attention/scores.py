"""The nodes between a product of queries and keys and the Softmax of the scores.

Scores may be scaled, capped, masked and reshaped, in any order. `explain` traces them from the
Softmax back to the product, and expresses everything as one scale, one cap and a list of masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from math import prod

import numpy as np

from ...base.record import record
from ...ir.dtypes import DType, bfloat16, float16, float32
from ...ir.graph import Node, Value
from ...ir.types import Array, Shape
from ...ops.elementwise import Add, Cast, Max, Mul, Sub, Tanh, Where
from ...ops.matmul import MatMul
from ...ops.movement import Expand, Tile
from ..editing import Builder, number, shape_of
from ..pattern import pairs, scaling

#: Value that hides a score when added or substituted; the score is negligible next to it.
HIDDEN = -1e30
#: Dtypes whose scores an Attention computes in float32.
HALVES = (float16, bfloat16)
#: Maximum number of nodes followed.
_DEPTH = 12


@record
class Mask:
    """A mask or bias of scores.

    Attributes:
        value: the addend; or a condition.
        frame: the shape of the scores there.
        factor: factor applied after the sum with the scores.
        choice: the values for true and false of a condition; None for an addend.
    """

    value: Value
    frame: Shape | None
    factor: float = 1.0
    choice: tuple[float, float] | None = None

    @property
    def may_be_infinite(self) -> bool:
        """Whether constants, or what a Where chooses of them, add infinity to scores."""
        node = self.value.producer
        given = node.inputs[1:] if node and isinstance(node.op, Where) else [self.value]
        known = (each.data for each in given if each is not None and each.data is not None)
        infinity = float("inf") if self.factor > 0 else -float("inf")
        return self.choice is None and any((data == infinity).any() for data in known)

    @property
    def is_finite(self) -> bool:
        """Whether it is known to add finite numbers."""
        if self.choice is not None:
            return bool(np.isfinite(self.choice).all())
        node = self.value.producer
        given = node.inputs[1:] if node and isinstance(node.op, Where) else [self.value]
        known = [each.data for each in given if each is not None]
        return all(data is not None and np.isfinite(data).all() for data in known)


@record
class Scores:
    """``cap * tanh(scale * product / cap) + masks``, as far as explained.

    Attributes:
        value: what is not explained yet; finally the product.
        nodes: the explained nodes.
        scale: of the product; of the whole, until a cap is found.
        cap: 0 for none.
        masks: from the last to the first.
        moved: whether there are reshapes in between.
        factors: constants that rows of the product are multiplied by, of the same rank.
        floored: whether no score is below what hides a key: masks so far are finite.
    """

    value: Value
    nodes: frozenset[Node] = field(default_factory=frozenset[Node])
    scale: float = 1.0
    cap: float = 0.0
    masks: tuple[Mask, ...] = ()
    moved: bool = False
    factors: tuple[Array, ...] = ()
    floored: bool = False

    def behind(self, node: Node, value: Value) -> Scores:
        """Return this with one more node explained."""
        return replace(self, value=value, nodes=self.nodes | {node})


def explain(found: Scores, shape: Shape | None, depth: int = _DEPTH) -> Iterator[Scores]:
    """Yield every way back to a product of as many matrices of the same size."""
    node = found.value.producer
    if node is None or depth == 0:
        return
    if isinstance(node.op, MatMul):
        if not found.moved or _same_stack(shape_of(found.value), shape):
            yield found
        return
    for step in _steps(found, node):
        yield from explain(step, shape, depth - 1)


def _same_stack(one: Shape | None, other: Shape | None) -> bool:
    """Whether two shapes are equal, or are of the same matrices in stacks of other axes."""
    if one is None or other is None or one == other:
        return one is not None and one == other
    counts = [prod(n for n in shape[:-2] if isinstance(n, int)) for shape in (one, other)]
    known = all(isinstance(n, int) for n in (*one, *other))
    return known and one[-2:] == other[-2:] and counts[0] == counts[1]


def _steps(found: Scores, node: Node) -> Iterator[Scores]:
    """Yield what is left to explain after one node, for every interpretation of it."""
    step = scaling(found.value)
    if step is not None:
        yield replace(found.behind(node, step[0]), scale=found.scale * step[1])
    elif (rows := _rows_scaled(found, node)) is not None:
        yield rows
    elif found.factors:
        return  # their inner scores would have to be multiplied as well
    elif is_widened(node):
        yield found.behind(node, node.operands[0])
    elif node.op.view and node.inputs[0] is not None:
        yield replace(found.behind(node, node.inputs[0]), moved=True)
    elif isinstance(node.op, Tanh) and node.inputs[0] is not None:
        # scale * tanh(factor * x): the cap occurs in both; the rest of `factor` is the scale.
        if found.scale > 0 and not found.cap:
            yield replace(found.behind(node, node.inputs[0]), cap=found.scale)
    elif not found.cap:
        yield from _masked(found, node)


def is_widened(node: Node) -> bool:
    """Whether a node makes float32 of 16-bit scores, as an Attention does by itself."""
    if not isinstance(node.op, Cast) or node.op.to != float32:
        return False
    return node.operands[0].tensor.dtype in HALVES


def _rows_scaled(found: Scores, node: Node) -> Scores | None:
    """Return what is left to explain where a node multiplies rows, such as those of a head."""
    shape = shape_of(node.output)
    if not isinstance(node.op, Mul) or shape is None:
        return None
    for scores, by in pairs(node):
        data = by.data
        if data is None or scores.data is not None or shape_of(scores) != shape:
            continue
        if not 0 < data.ndim <= len(shape) or data.shape[-1] != 1 or not data.size:
            continue
        rest = found.behind(node, scores)
        if (data == data.flat[0]).all():
            return replace(rest, scale=found.scale * float(data.flat[0]))
        full = data.reshape((1,) * (len(shape) - data.ndim) + data.shape)
        return replace(rest, factors=(*found.factors, full))
    return None


def _masked(found: Scores, node: Node) -> Iterator[Scores]:
    frame = shape_of(node.output)
    if isinstance(node.op, Max) and len(node.operands) == 2:
        for scores, least in pairs(node):
            floor = number(least, 5)
            is_floor = floor is not None and found.scale > 0 and floor * found.scale <= HIDDEN
            if is_floor and shape_of(scores) == frame:
                yield replace(found.behind(node, scores), floored=True)
    elif isinstance(node.op, Add | Sub):
        sides = list(pairs(node))[: 1 if isinstance(node.op, Sub) else 2]
        sign = -1.0 if isinstance(node.op, Sub) else 1.0
        for scores, value in sides:
            if scores.data is None and shape_of(scores) == frame and number(value, 5) is None:
                mask = Mask(value, frame, sign * found.scale)
                if found.floored and not mask.is_finite:
                    continue  # a row of -inf alone would become means
                yield replace(found.behind(node, scores), masks=(*found.masks, mask))
    elif isinstance(node.op, Where):
        condition, yes, no = node.inputs
        for scores, hidden, first in ((no, yes, True), (yes, no, False)):
            fill = number(hidden, 5)
            if condition is None or scores is None or fill is None or found.scale <= 0:
                continue
            fill *= found.scale
            if shape_of(scores) == frame and fill <= HIDDEN:
                mask = Mask(condition, frame, 1.0, (fill, 0.0) if first else (0.0, fill))
                if found.floored and not mask.is_finite:
                    continue
                yield replace(found.behind(node, scores), masks=(*found.masks, mask))


# ── masks in the frame of the product ────────────────────────────────────────────────────────────


def fitted(mask: Mask, scores: Shape) -> Shape | None:
    """Return the shape of a mask for scores of another shape, with the same rank.

    None if its broadcasting is unclear, or it would add rows, heads or samples.
    """
    shape, frame = shape_of(mask.value), mask.frame
    if shape is None or frame is None or len(shape) > len(frame):
        return None
    if frame == scores:
        broadcasts = all(
            a == 1 or (a is not None and a == b)
            for a, b in zip(shape, scores[len(scores) - len(shape) :], strict=True)
        )
        return shape if broadcasts else None
    full = (1,) * (len(frame) - len(shape)) + shape
    result: list[int] = []
    for inner, outer in axis_groups(frame, scores):
        sizes = [full[i] for i in inner]
        if all(size == 1 for size in sizes):
            result += [1 for _ in outer]
        else:
            result += [n for i in outer if isinstance(n := scores[i], int)]
        if any(size not in (1, frame[i]) for size, i in zip(sizes, inner, strict=True)):
            return None
    return tuple(result) if len(result) == len(scores) else None


def axis_groups(first: Shape, second: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the axes of two shapes that hold the same elements in the same order."""
    if not all(isinstance(size, int) and size > 0 for size in (*first, *second)):
        return
    i = j = 0
    while i < len(first) and j < len(second):
        one, two = [i], [j]
        while (a := _product(first, one)) != (b := _product(second, two)):
            if a < b:
                one.append(one[-1] + 1)
            else:
                two.append(two[-1] + 1)
            if one[-1] >= len(first) or two[-1] >= len(second):
                return
        i, j = one[-1] + 1, two[-1] + 1
        if i == len(first) or j == len(second):
            one += range(i, len(first))
            two += range(j, len(second))
        yield one, two


def _product(shape: Shape, axes: list[int]) -> int:
    return prod(size for i in axes if isinstance(size := shape[i], int))


def written(mask: Mask, scores: Shape, add: Builder, dtype: DType, limit: int) -> Value:
    """Return the addend for scores of this shape, to which the mask is `fitted`.

    Constants are repeated up to this many bytes.
    """
    value = mask.value if mask.frame == scores else _reshaped(mask, scores, add, limit)
    if mask.choice is not None:
        yes, no = (add.constant(np.array(x, dtype), "fill") for x in mask.choice)
        return add(Where(), value, yes, no)
    if mask.factor == 1:
        return value
    if value.data is not None:
        with np.errstate(all="ignore"):
            return add.constant((value.data * mask.factor).astype(value.data.dtype), value.name)
    return add(Mul(), value, add.constant(np.array(mask.factor, value.tensor.dtype), "factor"))


def _reshaped(mask: Mask, scores: Shape, add: Builder, limit: int) -> Value:
    """Return a mask in another frame; it is broadcast within merged axes first.

    Where only that makes a constant too large, and the masks of a sample are those of the next one,
    a Tile repeats them.
    """
    value, frame = mask.value, mask.frame or ()
    full = (1,) * (len(frame) - len(value.tensor.dims)) + value.tensor.dims
    sizes = [size for size in fitted(mask, scores) or () if isinstance(size, int)]
    wide = list(full)
    for inner, _ in axis_groups(frame, scores):
        if any(full[i] != 1 for i in inner):
            for i in inner:
                wide[i] = size if isinstance(size := frame[i], int) else 1
    if value.data is not None and prod(wide) * value.data.itemsize <= limit:
        data: Array = np.broadcast_to(value.data.reshape(full), wide).reshape(sizes)
        return add.constant(data, value.name)
    if value.data is not None:
        if count := _repeats(full, frame, sizes):
            rows = add.constant(value.data.reshape(-1, *sizes[1:]), value.name)
            return add(Tile(), rows, add.integers((count, *(1 for _ in sizes[1:])), "repeats"))
        value = add.constant(value.data.reshape(full), value.name)
    if tuple(wide) != full:
        value = add(Expand(), value, add.integers(wide, "sizes"))
    return add.shaped(value, sizes, "sizes")


def _repeats(full: tuple[int, ...], frame: Shape, sizes: Sequence[int]) -> int:
    """Return how often all samples together repeat a mask as a whole; 0 if they do not.

    Args:
        full: the shape of the mask, with as many axes as its frame.
        frame: that of the scores to which it is added: samples may be several axes.
        sizes: that of the scores of the Attention: samples are the first axis.
    """
    end = len(full) - len(sizes) + 1
    own = full[:end]
    first = next((i for i, size in enumerate(own) if size != 1), end)
    is_whole = own[first:] == frame[first:end] and full[end:] == (*sizes[1:],)
    return sizes[0] // prod(own) if is_whole and prod(own) < sizes[0] else 0


def summed(masks: Sequence[Mask], scores: Shape, add: Builder) -> Iterator[Mask]:
    """Yield masks, those of one frame with other axes as their sum: it is reshaped once.

    Relative positions along the rows and the columns of an image are added so before either is
    repeated for the other.
    """
    last: Mask | None = None
    for mask in masks:
        if last is not None and _adds_up(last, mask, scores):
            last = replace(last, value=add(Add(), last.value, mask.value))
            continue
        if last is not None:
            yield last
        last = mask
    if last is not None:
        yield last


def joined(masks: Sequence[Mask], scores: Shape, add: Builder, limit: int) -> list[Mask]:
    """Return masks, constant ones that all windows and samples share as part of those of windows.

    Only where they would be more than `limit` bytes for all windows of all samples, but are not for
    those of one: relative positions are the same everywhere, and which parts of an image a shift
    made neighbours (Swin; twice in SwinV2) is for all samples, so that their sum is repeated as a
    whole.
    """
    known = [m for m in masks if m.value.data is not None and m.choice is None]
    count = prod(size for size in scores if isinstance(size, int))
    if not known or count * known[0].value.tensor.dtype.itemsize <= limit:
        return [*masks]
    shared = [m for m in known if m.frame == scores and prod(m.value.tensor.dims[:-3]) == 1]
    apart = [m for m in known if m.frame and m.frame != scores and m.frame[-3:] == scores[-3:]]
    if len({m.frame for m in apart}) != 1 or not (shared or apart[1:]):
        return [*masks]
    windows, *others = (*apart, *shared)
    parts = [_times(m) for m in (windows, *others)]
    if prod(np.broadcast_shapes(*(part.shape for part in parts))) * parts[0].itemsize > limit:
        return [*masks]
    with np.errstate(all="ignore"):
        data = sum(parts[1:], start=parts[0])
    found = replace(windows, value=add.constant(data, windows.value.name), factor=1.0)
    return [found, *(m for m in masks if not any(m is each for each in (windows, *others)))]


def _times(mask: Mask) -> Array:
    """Return a constant mask by its factor, without leading axes of size 1."""
    data = mask.value.data
    assert data is not None
    dims = data.shape
    while len(dims) > 3 and dims[0] == 1:
        dims = dims[1:]
    return (data.reshape(dims) * mask.factor).astype(data.dtype)


def _adds_up(one: Mask, other: Mask, scores: Shape) -> bool:
    """Whether two masks are computed addends, of the same scores, that others take the place of."""
    if one.frame != other.frame or one.frame == scores or one.factor != other.factor:
        return False
    values = one.value, other.value
    computed = all(value.data is None for value in values) and not (one.choice or other.choice)
    return computed and values[0].tensor.dtype == values[1].tensor.dtype


def total(values: list[Value], add: Builder, limit: int) -> Value:
    """Return the sum of masks; constant masks are folded up to this many bytes."""
    first, *rest = values
    for value in rest:
        if first.data is not None and value.data is not None:
            shape = np.broadcast_shapes(first.data.shape, value.data.shape)
            if prod(shape) * first.data.itemsize <= limit:
                with np.errstate(all="ignore"):
                    first = add.constant(first.data + value.data, first.name)
                continue
        first = add(Add(), first, value)
    return first
