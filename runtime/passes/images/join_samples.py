"""Makes the samples of a signal channels, where the windows of a convolution begin at steps.

A spectrogram is a convolution of one channel with a thousand taps, every few hundred samples. With
the samples between two steps as channels, it has a few taps, and what it reads is in place: the
channels of an image whose channels are last in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

import numpy as np

from ...ir.graph import Graph, Node
from ...ops.conv import Conv
from ...ops.movement import Transpose
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, shape_of, stand_in

#: A word of 16-bit floats: the samples that are channels have a multiple of it. Of fewer filters,
#: kernels read signals as they are.
WORD = 8


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace convolutions of one channel along one axis by those of several with fewer taps."""
    for node in list(graph.nodes):
        if not isinstance(node.op, Conv):
            continue
        channels = _channels(node, node.op)
        if channels:
            new = _rewrite(graph, node, node.op, channels)
            yield f"Conv '{new.name}' reads {channels} samples at a time as channels"


def _channels(node: Node, op: Conv) -> int:
    """Return how many samples a window and its steps consist of; 0 if they cannot be channels."""
    w, shape = node.operands[1], shape_of(node.inputs[0])
    if w.data is None or w.data.ndim != 3 or shape is None or not isinstance(shape[2], int):
        return 0
    if op.group != 1 or shape[1] != 1 or w.data.shape[1] != 1 or op.dilations not in (None, (1,)):
        return 0
    if op.auto_pad not in ("NOTSET", "VALID"):
        return 0
    pads = op.pads or (0, 0)
    sizes = w.data.shape[2], *(op.strides or (1,)), *pads
    found = gcd(*sizes, shape[2])
    if found % WORD and not any(pads) and shape[0] == 1:
        found = gcd(*sizes)  # of one signal, a view cuts off what no window reads
    fits = found % WORD == 0 and len(w.data) >= WORD and shape[2] + sum(pads) >= sizes[0]
    return found if fits else 0


def _rewrite(graph: Graph, node: Node, op: Conv, channels: int) -> Node:
    x, w, *bias = node.inputs
    shape = shape_of(x)
    assert x is not None
    assert w is not None
    assert w.data is not None
    assert shape is not None
    assert isinstance(shape[2], int)
    add = Builder(graph, node, f"{node.name}.samples")
    count = shape[2] // channels
    if shape[2] % channels:
        x = add.slice(x, 2, 0, count * channels)
    x = add(Reshape(), x, add.integers((0, count, channels), "shape"))
    x = add(Transpose(perm=(0, 2, 1)), x)
    filters = w.data.reshape(len(w.data), -1, channels).transpose(0, 2, 1)
    filters = add.constant(np.ascontiguousarray(filters), f"{w.name}.samples")
    (step,) = op.strides or (1,)
    fewer = replace(
        op,
        kernel_shape=filters.data.shape[2:] if filters.data is not None else None,
        strides=(step // channels,),
        pads=tuple(pad // channels for pad in op.pads or ()) or None,
    )
    return stand_in(graph, {node}, node, fewer, (x, filters, *bias))
