"""Which tensors have the same channels, and where these are cut: for passes that lay them out anew.

Channels are axis 1 of tensors of at least three axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.op import Op
from ...ops import elementwise as ew
from ...ops.conv import Conv, ConvTranspose
from ...ops.cuts import axis_of, reduced_axes, sliced_places
from ...ops.gather import Gather
from ...ops.movement import Concat, Pad, Slice, Split
from ...ops.norm import BatchNormalization, InstanceNormalization
from ...ops.pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from ...ops.reduce import ReduceMax, ReduceMean
from ...ops.resize import Resize
from ...ops.shapes import normalize_axes
from ..editing import shape_of


@record
class Part:
    """Channels of a tensor that are all channels of another.

    Attributes:
        whole: the tensor.
        part: the other one.
        start: its first channel in `whole`.
        is_cut: whether it is cut out of `whole`, and can so stay as it is if that is laid out anew.
    """

    whole: Value
    part: Value
    start: int = 0
    is_cut: bool = False

    @property
    def end(self) -> int:
        """The channel behind its last one in `whole`."""
        return self.start + (channels_of(self.part) or 0)


#: What a node says of the channels of its tensors: which are the same; None if it depends on their
#: number or order.
Parts = tuple[Part, ...] | None
#: Functions that are finite for finite numbers, whatever the channel.
_FUNCTIONS: tuple[type[Op], ...] = (
    *(ew.Relu, ew.Clip, ew.LeakyRelu, ew.Elu, ew.Celu, ew.Selu, ew.Sigmoid, ew.Tanh, ew.HardSwish),
    *(ew.HardSigmoid, ew.Swish, ew.Gelu, ew.Mish, ew.Erf, ew.Softplus, ew.Softsign, ew.PRelu),
    *(ew.Add, ew.Sub, ew.Mul, ew.Max, ew.Min, ew.Sum, ew.Mean, ew.Neg, ew.Abs),
)


def channels_of(value: Value | None) -> int | None:
    """Return the number of channels of a computed tensor; None if it has none or is a constant."""
    shape = shape_of(value)
    if value is None or value.is_constant or shape is None or len(shape) < 3:
        return None
    return shape[1] if isinstance(shape[1], int) else None


def _ints(value: Value | None) -> tuple[int, ...] | None:
    """Return the elements of a constant of integers; None if it is not a constant."""
    if value is None or value.data is None or value.data.dtype.kind != "i":
        return None
    return tuple(int(n) for n in value.data.flat)


# ── operators ────────────────────────────────────────────────────────────────────────────────────


def _of_conv(node: Node) -> Parts:
    """Filters are free to be in any order; one filter per channel keeps that of its input."""
    x, w, b = (*node.inputs, None)[:3]
    assert isinstance(node.op, Conv)
    if x is None or w is None or w.data is None or (b is not None and b.data is None):
        return None
    if node.op.group == 1:
        return ()
    is_depthwise = node.op.group == w.data.shape[0] == channels_of(x)
    return (Part(x, node.output),) if is_depthwise else None


def _of_transposed(node: Node) -> Parts:
    _, w, b = (*node.inputs, None)[:3]
    assert isinstance(node.op, ConvTranspose)
    fits = w is not None and w.data is not None and (b is None or b.data is not None)
    return () if fits and node.op.group == 1 else None


def _of_function(node: Node) -> Parts:
    """Operands have the result's channels, or one for all."""
    y, shape_y = node.output, shape_of(node.output)
    found: list[Part] = []
    for value in node.distinct_reads:
        if value.is_constant:
            continue
        shape = shape_of(value)
        if shape is None or shape_y is None or len(shape) != len(shape_y):
            return None
        if shape[1] != 1:
            found.append(Part(y, value))
    return tuple(found)


def _of_first(node: Node) -> Parts:
    """The result has the channels of the first input; others are constants or omitted."""
    x = node.inputs[0]
    if x is None or any(value.data is None for value in node.distinct_reads if value is not x):
        return None
    return (Part(x, node.output),) if channels_of(x) == channels_of(node.output) else None


def _of_norm(node: Node) -> Parts:
    is_training = isinstance(node.op, BatchNormalization) and node.op.training_mode
    return None if is_training else _of_first(node)


def _of_reduction(node: Node) -> Parts:
    axes = reduced_axes(node)
    if not axes or axes[0] < 2 or not getattr(node.op, "keepdims", 0):
        return None
    return _of_first(node)


def _of_resize(node: Node) -> Parts:
    """Sizes may count channels, but only all axes together."""
    assert isinstance(node.op, Resize)
    axes = normalize_axes(node.op.axes or (), len(shape_of(node.inputs[0]) or ()))
    return None if 1 in axes or rescales(node, 1) else _of_first(node)


def rescales(resize: Node, *axes: int) -> bool:
    """Whether a Resize scales some axes, even if it keeps their sizes: 2.8 rounds down to 2."""
    op, scales = resize.op, (*resize.inputs, None, None)[2]
    assert isinstance(op, Resize)
    if scales is None or not scales.tensor.size:
        return False
    rank = len(shape_of(resize.inputs[0]) or ())
    scaled = range(rank) if op.axes is None else normalize_axes(op.axes, rank)
    if scales.data is None:
        return not set(axes).isdisjoint(scaled)
    return any(by != 1 for axis, by in zip(scaled, scales.data, strict=True) if axis in axes)


def _of_pad(node: Node) -> Parts:
    rank, pads = len(shape_of(node.inputs[0]) or ()), _ints(node.inputs[1])
    if len(node.inputs) > 3 or pads is None or pads[1] or pads[1 + rank]:
        return None
    return _of_first(node)


def _of_concat(node: Node) -> Parts:
    sizes = [channels_of(value) for value in node.operands]
    assert isinstance(node.op, Concat)
    if axis_of(node) != 1 or None in sizes:
        return None
    starts = accumulate((size or 0 for size in sizes), initial=0)
    return tuple(Part(node.output, v, s) for v, s in zip(node.operands, starts, strict=False))


def _of_split(node: Node) -> Parts:
    x, sizes = node.inputs[0], [channels_of(value) for value in node.outputs]
    assert isinstance(node.op, Split)
    assert x is not None
    if axis_of(node) != 1 or None in sizes:
        return None
    starts = accumulate((size or 0 for size in sizes), initial=0)
    return tuple(Part(x, v, s, True) for v, s in zip(node.outputs, starts, strict=False))


def bounds_of(node: Node, channels: int | None = None) -> int | None:
    """Return the first channel of a Slice of consecutive channels; None for another one.

    Args:
        node: the Slice.
        channels: how many its bounds count, if its input has others by now.
    """
    shape = shape_of(node.inputs[0])
    if shape and channels is not None:
        shape = (*shape[:1], channels, *shape[2:])
    places = sliced_places(node, shape) or {}
    return places[1].start if list(places) == [1] and places[1].step == 1 else None


def _of_slice(node: Node) -> Parts:
    start, x = bounds_of(node), node.inputs[0]
    return None if start is None or x is None else (Part(x, node.output, start, True),)


def _of_gather(node: Node) -> Parts:
    """A selection of channels is free to find them anywhere."""
    x, at = node.inputs
    assert isinstance(node.op, Gather)
    if x is None or at is None or at.data is None or at.data.ndim != 1:
        return None
    return () if axis_of(node) == 1 else None


_RULES: Mapping[type[Op], Callable[[Node], Parts]] = {
    Conv: _of_conv,
    ConvTranspose: _of_transposed,
    **dict.fromkeys(_FUNCTIONS, _of_function),
    **dict.fromkeys((BatchNormalization, InstanceNormalization), _of_norm),
    **dict.fromkeys((MaxPool, AveragePool, GlobalAveragePool, GlobalMaxPool), _of_first),
    **dict.fromkeys((ReduceMean, ReduceMax), _of_reduction),
    Resize: _of_resize,
    Pad: _of_pad,
    Concat: _of_concat,
    Split: _of_split,
    Slice: _of_slice,
    Gather: _of_gather,
}


def parts_of(node: Node) -> Parts:
    """Return which tensors of a node have the same channels; see `Parts`."""
    rule = _RULES.get(type(node.op))
    fits = rule is not None and channels_of(node.output) is not None
    parts = rule(node) if rule is not None and fits else None
    sizes = {channels_of(value) for part in parts or () for value in (part.whole, part.part)}
    return None if 0 in sizes else parts


# ── groups of tensors ────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class ChannelGroup:
    """Tensors whose channels are laid out together.

    Attributes:
        parts: how they are related.
        cuts: by tensor: the channels at which segments begin, and the number of channels.
    """

    parts: list[Part] = field(default_factory=list[Part])
    cuts: dict[Value, set[int]] = field(default_factory=dict[Value, set[int]])

    def settle(self) -> None:
        """Cut each tensor wherever one that it shares channels with is cut."""
        changed = True
        while changed:
            changed = False
            for each in self.parts:
                whole, part = self.cuts[each.whole], self.cuts[each.part]
                size, count = max(part), len(whole) + len(part)
                whole |= {each.start + cut for cut in part}
                part |= {c - each.start for c in whole if 0 <= c - each.start <= size}
                changed = changed or len(whole) + len(part) > count


def channel_groups(graph: Graph) -> Iterator[ChannelGroup]:
    """Yield groups of tensors whose channels may be laid out anew, as all their nodes allow it."""
    leader: dict[Value, Value] = {}

    def find(value: Value) -> Value:
        while (above := leader.setdefault(value, value)) is not value:
            leader[value] = value = leader[above]  # half as far the next time
        return value

    fixed = set(graph.outputs.values())
    joined, cut = list[Part](), list[Part]()
    for node in graph.nodes:
        found = None if _finds_places(graph, node) else parts_of(node)
        if found is None:
            fixed.update((*node.distinct_reads, *node.outputs))
            continue
        for value in (*node.distinct_reads, *filter(graph.is_read, node.outputs)):
            if value.producer is None or (channels_of(value) or 1) == 1:
                fixed.add(value)
            leader.setdefault(value, value)
        for part in found:
            (cut if part.is_cut else joined).append(part)
    for part in joined:
        leader[find(part.part)] = find(part.whole)
    barred = {find(value) for value in fixed if value in leader}
    behind: dict[Value, list[Value]] = {}
    for part in cut:
        behind.setdefault(find(part.whole), []).append(find(part.part))
    waiting = list(barred)
    while waiting:  # nothing cut out of a tensor has channels that it has not
        more = behind.pop(waiting.pop(), [])
        barred.update(more)
        waiting += more
    together = [part for part in cut if find(part.part) not in barred]
    for part in together:
        leader[find(part.part)] = find(part.whole)
    groups: dict[Value, ChannelGroup] = {}
    for value in leader:
        count = channels_of(value)
        if count is not None and find(value) not in barred:
            group = groups.setdefault(find(value), ChannelGroup())
            group.cuts[value] = {0, count}
    for part in (*joined, *together):
        if find(part.whole) in groups:
            groups[find(part.whole)].parts.append(part)
    for part in cut:
        if find(part.whole) in groups:
            groups[find(part.whole)].cuts[part.whole] |= {part.start, part.end}
    for group in groups.values():
        group.settle()
        yield group


def _finds_places(graph: Graph, node: Node) -> bool:
    """Whether places of maxima are read, which count the elements of all channels."""
    return isinstance(node.op, MaxPool) and any(map(graph.is_read, node.outputs[1:]))


def touching(graph: Graph, values: Iterable[Value]) -> tuple[Node, ...]:
    """Return the nodes that make or read some of these tensors, in order."""
    found: set[Node] = set()
    for value in values:
        found.update(value.consumers)
        if value.producer is not None:
            found.add(value.producer)
    return graph.in_order(found)
