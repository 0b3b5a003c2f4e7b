"""Pads channels to whole words where weights can have zeros for the others.

Kernels for 16-bit floats read and write channels in words of eight. With 26 channels they take
pairs instead, and parts of images (Split, Slice, Concat) that do not begin at a word are copied.
In float32, where a word has four, channels are padded only if no layer reads what is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.infer import infer_node
from ...ir.op import Op
from ...ir.types import Array
from ...ops.conv import Conv, ConvTranspose
from ...ops.gather import Gather
from ...ops.movement import Slice, Split
from ...ops.norm import BatchNormalization, InstanceNormalization
from ...ops.resize import Resize
from ..driver import Context
from ..editing import Builder, rank_of, shape_of
from .channels import ChannelGroup, bounds_of, channel_groups, channels_of, touching

#: Bytes per word.
WORD = 16
#: How many times as many channels there may be at most: if they are read in pairs or one by one, in
#: fours, and if parts that do not begin at a word are copied.
IN_PAIRS, IN_FOURS, COPIED = 1.34, 1.2, 1.75
#: Maximum number of words of channels that cost a layer no more than one channel does, its smallest
#: tile; and of pixels for which storing them takes less time than to launch a copy.
NARROW, FEW_PIXELS = 2, 1 << 17
#: Channels of an input whose layer has a kernel of its own, for whole words of filters.
INPUT = 4
#: The same if no layer reads them, in float32, where channels are read one by one as well.
CUT_AWAY = 1.125

_CUTS = Split | Slice

#: By tensor: the former channel of each channel, -1 for one that is new.
Places = Mapping[Value, Array]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Pad the channels of groups of images; see `channels`.

    New filters are zeros, and so are weights for new channels. As in Winograd's algorithm, an
    infinity or NaN in an image may so become a NaN in other channels of 16-bit floats.
    """
    halves = context.options.precision in ("float16", "bfloat16")
    now: dict[Value, Value] = {}
    for group in list(channel_groups(graph)):
        word = min(word_of(value, context) for value in group.cuts)
        found = {value: _places(cuts, word) for value, cuts in group.cuts.items()}
        if not (_pays if halves else _is_cut_away)(group, found, word):
            continue
        places = {_latest(value, now): where for value, where in found.items()}
        widest = max(places, key=lambda value: len(places[value]))
        count, padded = channels_of(widest), len(places[widest])
        name = widest.name
        now |= _pad(graph, places)
        yield f"'{name}' and images like it have {padded} channels instead of {count}"


def word_of(value: Value, context: Context) -> int:
    """Return how many elements of a tensor a word has, in the precision of the plan."""
    halves = context.options.precision in ("float16", "bfloat16")
    return WORD // (2 if halves else value.tensor.dtype.itemsize)


def _latest(value: Value, now: Mapping[Value, Value]) -> Value:
    while value in now:
        value = now[value]
    return value


def _places(cuts: set[int], word: int) -> Array:
    """Return the former channel of each channel, segment by segment."""
    found: list[Array] = []
    for begin, end in pairwise(sorted(cuts)):
        found += [np.arange(begin, end), np.full(-(end - begin) % word, -1)]
    return np.concatenate(found)


def _pays(group: ChannelGroup, places: Places, word: int) -> bool:
    """Whether some channels are no whole words, and padding them adds few."""
    if not any((where < 0).any() for where in places.values()):
        return False
    cut = {part.part for part in group.parts if part.is_cut}
    wholes = {value: where for value, where in places.items() if value not in cut}
    more = max(len(where) / (where >= 0).sum() for where in wholes.values())
    if any(cut % word for cuts in group.cuts.values() for cut in sorted(cuts)[:-1]):
        return bool(more <= COPIED) or _is_narrow(wholes, word)
    in_fours = all(max(cuts) % (word // 2) == 0 for cuts in group.cuts.values())
    in_fours = in_fours and not any(map(_is_first, wholes))
    return bool(more <= (IN_FOURS if in_fours else IN_PAIRS))


def _is_first(value: Value) -> bool:
    """Whether a layer of few channels, as of an image's colours, computes an image."""
    node = value.producer
    if node is None or not isinstance(node.op, Conv) or node.op.group != 1:
        return False
    channels = channels_of(node.operands[0])
    return channels is not None and channels <= INPUT


def _is_narrow(places: Places, word: int) -> bool:
    """Whether padding costs less than a copy of one part, as of the weights of a sum of two images.

    No layer may read the images (GLPN's selective fusion, masks beside flows).
    """
    for value, where in places.items():
        count, _, *spatial = shape_of(value) or (None, None)
        sizes = [n for n in (count, *spatial) if isinstance(n, int)]
        if len(sizes) <= len(spatial) or prod(sizes) > FEW_PIXELS or len(where) > NARROW * word:
            return False
        if any(isinstance(node.op, Conv | ConvTranspose) for node in value.consumers):
            return False
    return True


def _is_cut_away(group: ChannelGroup, places: Places, word: int) -> bool:
    """Whether only parts of padded images are read, and some of these do not begin at a word now.

    So results stay what they are, bit by bit (FocalNet's gates beside its queries).
    """
    padded = {value: where for value, where in places.items() if (where < 0).any()}
    for value, where in padded.items():
        op = None if value.producer is None else value.producer.op
        if not all(isinstance(node.op, _CUTS) for node in value.consumers):
            return False
        costs_little = isinstance(op, Conv) and len(where) <= CUT_AWAY * (where >= 0).sum()
        if not costs_little and not isinstance(op, _CUTS):
            return False
    return any(cut % word for value in padded for cut in sorted(group.cuts[value])[:-1])


def _pad(graph: Graph, places: Places) -> dict[Value, Value]:
    """Replace the nodes of a group by those of padded channels; return what replaces what."""
    known, now = dict(places), dict[Value, Value]()
    for node in touching(graph, places):
        if isinstance(node.op, Split) and any(value not in known for value in node.outputs):
            _cut_apart(graph, node, known, now)
            continue
        op, inputs = _padded(graph, node, known)
        new = graph.insert(
            op, inputs, len(node.outputs), name=node.name, before=node, origin=(node,)
        )
        infer_node(new)
        for old, value in zip(node.outputs, new.outputs, strict=True):
            now[old] = value
            if old in known:
                known[value] = known[old]
        graph.replace(node, new.outputs)
        graph.rename(new, node.name)
    return now


def _cut_apart(
    graph: Graph, node: Node, known: dict[Value, Array], now: dict[Value, Value]
) -> None:
    """Replace a Split by Slices, as parts that stay as they are do not cover all channels."""
    x, place = node.operands[0], 0
    add = Builder(graph, node, node.name, (node,))
    for old in node.outputs:
        begin = int(np.flatnonzero(known[x] == place)[0])
        size = len(known[old]) if old in known else channels_of(old) or 0
        place += channels_of(old) or 0
        now[old] = add.slice(x, 1, begin, begin + size)
        if old in known:
            known[now[old]] = known[old]
    graph.replace(node, [now[old] for old in node.outputs])


def _padded(graph: Graph, node: Node, known: Places) -> tuple[Op, list[Value | None]]:
    """Return the operator and inputs of a node with padded channels."""
    op, inputs = node.op, list(node.inputs)
    x, y = inputs[0], node.outputs[0]
    of_x = None if x is None else known.get(x)
    of_y = known.get(y)

    def change(at: int, axis: int, where: Array | None, fill: float = 0.0) -> None:
        value = inputs[at] if at < len(inputs) else None
        if value is not None and value.data is not None and where is not None:
            data = _taken(value.data, axis, where, fill)
            inputs[at] = graph.constant(data, f"{value.name}.padded")

    if isinstance(op, Conv) and op.group == 1:
        change(1, 0, of_y)
        change(1, 1, of_x)
        change(2, 0, of_y)
    elif isinstance(op, Conv) and of_y is not None:
        op = replace(op, group=len(of_y))
        change(1, 0, of_y)
        change(2, 0, of_y)
    elif isinstance(op, ConvTranspose):
        change(1, 0, of_x)
        change(1, 1, of_y)
        change(2, 0, of_y)
    elif isinstance(op, BatchNormalization | InstanceNormalization):
        for at, fill in enumerate((1.0, 0.0, 0.0, 1.0)[: len(inputs) - 1], 1):
            change(at, 0, of_y, fill)
    elif isinstance(op, Split):
        numbers = np.array([len(known[value]) for value in node.outputs])
        inputs = [x, graph.constant(numbers, "padded")]
    elif isinstance(op, Slice) and of_x is not None:
        first = bounds_of(node, int((of_x >= 0).sum()))
        begin = int(np.flatnonzero(of_x == first)[0])
        size = (channels_of(y) or 0) if of_y is None else len(of_y)
        for at, bound in ((1, begin), (2, begin + size)):
            inputs[at] = graph.constant(np.array([bound]), "padded")
    elif isinstance(op, Resize):
        sizes = inputs[3] if len(inputs) > 3 and not op.axes else None
        if sizes is not None and sizes.data is not None and sizes.data.size and of_y is not None:
            counts = [*sizes.data[:1], len(of_y), *sizes.data[2:]]
            inputs[3] = graph.constant(np.array(counts, np.int64), "padded")
    elif isinstance(op, Gather):
        inputs[1] = graph.constant(_gathered(node, of_x, of_y), "padded")
    elif of_y is not None:
        rank = rank_of(y) or 0
        for at, value in enumerate(inputs):
            data = None if value is None else value.data
            if data is None:
                continue
            axis = data.ndim - rank + 1  # of channels
            if axis >= 0 and data.shape[axis] == (of_y >= 0).sum() > 1:
                change(at, axis, of_y, 1.0)
    return op, inputs


def _taken(data: Array, axis: int, where: Array, fill: float) -> Array:
    """Return an array whose elements along an axis are those of these places, or `fill`."""
    found = data.take(np.maximum(where, 0), axis)
    found[(*(slice(None),) * axis, where < 0)] = fill
    return found


def _gathered(node: Node, of_x: Array | None, of_y: Array | None) -> Array:
    """Return which channel of a padded image each padded channel of a Gather is.

    A new one is another new one, or any.
    """
    x, at = node.inputs
    assert x is not None
    assert at is not None
    assert at.data is not None
    count = channels_of(x) or 0
    given = np.arange(count) if of_x is None else of_x
    places: Array = np.flatnonzero(given >= 0)[np.argsort(given[given >= 0])]
    found = places[at.data]  # which may count from the last one
    if of_y is None:
        return found
    spare = np.flatnonzero(given < 0)
    return np.where(of_y < 0, spare[0] if spare.size else 0, found[np.maximum(of_y, 0)])
