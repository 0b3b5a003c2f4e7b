"""Layers read selected channels of an image by their weights, where a copy would select them.

ShuffleNetV2 shuffles the channels of two joined images, and its next block computes the second half
of them: a convolution of single pixels reads all, with weights of zero for the others, as fast as
the half alone. What a depthwise convolution reads in another order is selected behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ops.conv import Conv
from ...ops.cuts import axis_of, indices_of, sliced_places
from ...ops.gather import Gather
from ...ops.movement import Slice, Split
from ..driver import Context
from ..editing import Builder, drop
from .channels import Part, channels_of, parts_of

#: Maximum number of channels that a layer reads for each one that it needs.
MAX_READ = 2


@record
class _Selection:
    """Channels of an image.

    Attributes:
        image: the image.
        channels: of each channel of the selection; they are not in order next to one another.
    """

    image: Value
    channels: tuple[int, ...]

    @property
    def is_order(self) -> bool:
        """Whether all channels of the image are selected once."""
        return sorted(self.channels) == list(range(channels_of(self.image) or 0))


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Have convolutions read images of which a Gather selects channels; others keep the Gather.

    As in Winograd's algorithm, an infinity or NaN in a channel that is not selected may become a
    NaN in a result.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Conv):
            continue
        found = _selection(node.inputs[0])
        whole = _selected_by(node.operands[0])
        if found is None or node.operands[1].data is None or not _goes(graph, whole):
            continue
        name = found.image.name
        if node.op.group == 1 and _is_cheap(node, found):
            _read_all(graph, node, found)
        elif _is_depthwise(graph, node, found):
            node = _select_behind(graph, node, found)
        else:
            continue
        _cut_early(graph, whole)
        yield f"Conv '{node.name}' selects channels of '{name}' by its weights"


def _selection(value: Value | None) -> _Selection | None:
    """Return what a Gather or a Slice with steps selects, or part of that."""
    node = None if value is None else value.producer
    if node is None or value is None or channels_of(value) is None:
        return None
    part = _part(value)
    if part is not None:
        whole = _selection(part.whole)
        if whole is None:
            return None
        return _Selection(whole.image, whole.channels[part.start : part.end])
    channels = _gathered(node) if isinstance(node.op, Gather) else _stepped(node)
    return None if channels is None else _Selection(node.operands[0], channels)


def _gathered(node: Node) -> tuple[int, ...] | None:
    """Return the channels that a Gather selects."""
    assert isinstance(node.op, Gather)
    at = indices_of(node)
    if at is None or at.ndim != 1 or axis_of(node) != 1:
        return None
    return tuple(at.tolist())


def _stepped(node: Node) -> tuple[int, ...] | None:
    """Return the channels that a Slice selects."""
    places = sliced_places(node) or {}
    return tuple(places[1]) if list(places) == [1] else None


def _selected_by(value: Value) -> Value:
    """Return the whole result of the node that selects channels, of which a value may be part."""
    part = _part(value)
    return value if part is None else part.whole


def _part(value: Value) -> Part | None:
    """Return which channels of another image a value is, if it is cut from one."""
    parts = None if value.producer is None else parts_of(value.producer)
    return next((each for each in parts or () if each.part is value and each.is_cut), None)


def _goes(graph: Graph, whole: Value) -> bool:
    """Whether a selection may go: only convolutions read it, or parts of it are read."""
    kinds = (Conv, Split, Slice)
    return not graph.is_output(whole) and all(isinstance(r.op, kinds) for r in whole.consumers)


def _is_cheap(node: Node, found: _Selection) -> bool:
    """Whether weights of zero take no time: there are none, or few for single pixels."""
    assert node.operands[1].data is not None
    count, pixels = channels_of(found.image) or 0, prod(node.operands[1].data.shape[2:])
    return found.is_order or (pixels == 1 and count <= MAX_READ * len(found.channels))


def _read_all(graph: Graph, node: Node, found: _Selection) -> None:
    _, w, *bias = node.inputs
    assert w is not None
    assert w.data is not None
    filters, _, *window = w.data.shape
    weights = np.zeros((filters, channels_of(found.image) or 0, *window), w.data.dtype)
    for place, channel in enumerate(found.channels):
        weights[:, channel] += w.data[:, place]
    graph.set_inputs(node, [found.image, graph.constant(weights, f"{w.name}.selecting"), *bias])


def _is_depthwise(graph: Graph, node: Node, found: _Selection) -> bool:
    """Whether a layer has a filter for each channel of a shuffled image, and layers read it."""
    w, bias = (*node.operands[1:], None)[:2]
    count = len(found.channels)
    if not found.is_order or not isinstance(node.op, Conv) or node.op.group != count:
        return False
    if w is None or w.data is None or w.data.shape[:2] != (count, 1):
        return False
    fixed = bias is None or bias.data is not None
    readers = [] if graph.is_output(node.output) else list(node.output.consumers)
    layers = [r for r in readers if isinstance(r.op, Conv) and r.op.group == 1]
    return fixed and bool(readers) and len(layers) == len(readers)


def _select_behind(graph: Graph, node: Node, found: _Selection) -> Node:
    """Compute channels in the order of the image, and select from the result; return the layer."""
    order, add = np.argsort(found.channels), Builder(graph, node, node.name, (node,))
    filters = [
        graph.constant(v.data[order], v.name) for v in node.operands[1:] if v.data is not None
    ]
    made = add.node(node.op, found.image, *filters)
    graph.redirect(node.output, add(Gather(axis=1), made.output, add.integers(found.channels)))
    drop(graph, node)
    return made


def _cut_early(graph: Graph, whole: Value) -> None:
    """Select what is left of a Gather's parts from the image itself, and remove what is unread."""
    for reader in list(whole.consumers):
        for value in list(reader.outputs) if isinstance(reader.op, Split | Slice) else ():
            found = _selection(value) if value.consumers else None
            if found is None or all(isinstance(each.op, Conv) for each in value.consumers):
                continue
            add = Builder(graph, reader, value.name, (reader,))
            part = add(Gather(axis=1), found.image, add.integers(found.channels))
            graph.redirect(value, part)
        drop(graph, reader)
    drop(graph, whole.producer)
