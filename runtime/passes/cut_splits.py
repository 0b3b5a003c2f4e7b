"""Replaces a Split by Slices where its parts end up in different places, or in many steps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from math import prod

from ..ir.graph import Graph, Node, Value
from ..ops import elementwise
from ..ops.movement import Concat, Slice, Split
from ..ops.shape import Flatten, Reshape, Squeeze, Unsqueeze
from ..ops.shapes import normalize_axis
from .driver import Context
from .editing import Builder, is_static, split_sizes

_VIEWS = (Flatten, Reshape, Squeeze, Unsqueeze)
#: Minimum number of parts of one element that are the steps of an unrolled loop.
STEPS = 4


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a Split by Slices if a Concat along its axis reads some of its parts, but not all.

    What a Concat reads is computed in its result. As a part of a Split it would have to be copied
    there together with all others, which could be read where they are. And replace it if each part
    is one of several steps: exporters write ``x.unbind()`` as a Split, and ``x[t]`` as Slices. Or
    if elementwise operators repeat each part, such as weights of channels, for all pixels (SKNet,
    FiLM): they read them where they are.
    """
    for node in list(graph.nodes):
        found = split_sizes(node)
        if found is None or not all(map(is_static, (node.inputs[0], *node.outputs))):
            continue
        read = [value for value in node.outputs if value.consumers or graph.is_output(value)]
        joined = [value for value in read if any(_joins(node, c) for c in value.consumers)]
        axis, sizes = found
        is_steps = len(sizes) >= STEPS and set(sizes) == {1}
        are_repeated = bool(read) and all(_is_repeated(graph, value) for value in read)
        is_cut = joined and len(joined) < len(read)
        if not (is_steps or is_cut or are_repeated):
            continue
        add = Builder(graph, node, node.name, (node,))
        ends = list(accumulate(sizes))
        bounds = [
            [add.integers([n], "bound") for n in (end - size, end, axis)]
            for size, end in zip(sizes, ends, strict=True)
        ]
        graph.replace(node, [add(Slice(), node.inputs[0], *each) for each in bounds])
        reason = f"a Concat reads {len(joined)} of them"
        if is_steps or are_repeated:
            reason = "they are steps" if is_steps else "they are repeated"
        yield f"parts of Split '{node.name}' are Slices, as {reason}"


def _is_repeated(graph: Graph, part: Value) -> bool:
    """Whether only elementwise operators read a part, and each repeats its elements."""
    size, waiting = prod(part.tensor.dims), [part]
    while waiting:
        value = waiting.pop()
        if graph.is_output(value) or not value.consumers:
            return False
        for reader in value.consumers:
            if isinstance(reader.op, _VIEWS):
                waiting.append(reader.output)
                continue
            is_each = type(reader.op).__module__ == elementwise.__name__
            if not is_each or not is_static(reader.output):
                return False
            if prod(reader.output.tensor.dims) <= size:
                return False
    return True


def _joins(split: Node, reader: Node) -> bool:
    """Whether a node is a Concat along the axis of a Split."""
    if not isinstance(reader.op, Concat) or not isinstance(split.op, Split):
        return False
    rank = len(split.outputs[0].tensor.dims)
    return normalize_axis(reader.op.axis, rank) == normalize_axis(split.op.axis, rank)
