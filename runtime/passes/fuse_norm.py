"""Recognise LayerNormalization and RMSNormalization that exporters spell out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..dtypes import FLOATS, float32, float64
from ..ir import Graph, Node, Value
from ..ops.elementwise import Add, Div, Mul, Pow, Reciprocal, Sqrt, Sub
from ..ops.norm import LayerNormalization, RMSNormalization
from ..ops.reduce import ReduceMean
from ..types import TensorType
from .driver import Context
from .match import is_closed, number, pairs, stand_in


@dataclass(slots=True)
class _Found:
    """Nodes that normalize.

    Attributes:
        nodes: all of them.
        top: the last one.
        x: what is normalized.
        axis: the first of the axes, which are the last ones of x, from behind.
        epsilon: added to the variance.
        is_centred: whether the mean is subtracted.
        parameters: scale and shift, as far as there are any.
    """

    nodes: set[Node]
    top: Node
    x: Value
    axis: int
    epsilon: float
    is_centred: bool
    parameters: list[Value] = field(default_factory=list[Value])


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Put one node in place of ``d / sqrt(mean(d²) + epsilon) * scale + shift``.

    With ``d = x - mean(x)`` that is LayerNormalization, with ``d = x`` and no shift it is
    RMSNormalization. The means are over the last axes and keep them; the square is a Pow or a
    Mul, the division a Div, or a Mul with a reciprocal or with a power of -0.5. Scale and shift
    must have the shape of the axes; where there is no scale, it is ones.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Sqrt | Pow):
            continue
        found = _find(graph, node)
        if found is None:
            continue
        shape = _normalized_shape(found)
        if shape is None:
            continue
        _find_parameters(graph, found, shape)
        if not is_closed(graph, found.nodes, found.top):
            continue
        count = len(found.nodes)
        new = _rewrite(graph, found, shape)
        yield f"{new.kind} '{new.name}' is what {count} nodes around '{node.name}' compute"


def _find(graph: Graph, root: Node) -> _Found | None:
    """Return the nodes around the square root, or the power of -0.5, without scale and shift."""
    quotient = _quotient(graph, root)
    shifted = root.inputs[0].producer if root.inputs[0] else None
    if quotient is None or shifted is None or not isinstance(shifted.op, Add):
        return None
    d, nodes, top = quotient
    for variance, addend in pairs(shifted):
        epsilon, mean = number(addend, 1), variance.producer
        if epsilon is None or epsilon < 0 or mean is None:
            continue
        axis = _axis(mean)
        square = mean.inputs[0].producer if mean.inputs[0] else None
        if axis is None or square is None or not _is_square(square, d):
            continue
        nodes |= {root, shifted, mean, square}
        found = _Found(nodes, top, d, axis, epsilon, is_centred=False)
        _find_mean(found)
        return found
    return None


def _quotient(graph: Graph, root: Node) -> tuple[Value, set[Node], Node] | None:
    """Return d, the nodes and the last of them, where d is divided by the root of something."""
    value, nodes = root.output, set[Node]()
    is_inverse = isinstance(root.op, Pow)
    if is_inverse and number(root.inputs[1], 1) != -0.5:
        return None
    reader = graph.sole_consumer(value)
    if reader is None:
        return None
    is_one = isinstance(reader.op, Div) and number(reader.inputs[0], 1) == 1
    if not is_inverse and (isinstance(reader.op, Reciprocal) or is_one):
        nodes.add(reader)
        value, is_inverse = reader.output, True
        reader = graph.sole_consumer(value)
        if reader is None:
            return None
    if is_inverse and isinstance(reader.op, Mul):
        d = next((a for a, b in pairs(reader) if b is value), None)
    elif not is_inverse and isinstance(reader.op, Div) and reader.inputs[1] is value:
        d = reader.inputs[0]
    else:
        return None
    return None if d is None else (d, nodes | {reader}, reader)


def _is_square(node: Node, d: Value) -> bool:
    if isinstance(node.op, Pow):
        return node.inputs[0] is d and number(node.inputs[1], 1) == 2
    return isinstance(node.op, Mul) and node.inputs == (d, d)


def _axis(mean: Node) -> int | None:
    """Return the first axis of a mean over the last axes, from behind; None for another node."""
    source = mean.inputs[0]
    if not isinstance(mean.op, ReduceMean) or not mean.op.keepdims or source is None:
        return None
    if not isinstance(source.type, TensorType) or source.type.rank is None:
        return None
    rank = source.type.rank
    given = mean.inputs[1] if len(mean.inputs) > 1 else None
    if given is not None and given.data is None:
        return None
    axes = None if given is None or given.data is None else tuple(map(int, given.data.reshape(-1)))
    along = mean.op.axes(axes, rank)
    first = rank - len(along)
    return -len(along) if along and sorted(along) == list(range(first, rank)) else None


def _find_mean(found: _Found) -> None:
    """Add the subtraction of the mean, where there is one."""
    centre = found.x.producer
    if centre is None or not isinstance(centre.op, Sub):
        return
    x, mean = centre.inputs[0], centre.inputs[1].producer if centre.inputs[1] else None
    if x is None or mean is None or mean.inputs[0] is not x or _axis(mean) != found.axis:
        return
    found.nodes |= {centre, mean}
    found.x, found.is_centred = x, True


def _normalized_shape(found: _Found) -> tuple[int, ...] | None:
    """Return the sizes of the axes, if they are known and x is of floats."""
    type_ = found.x.type
    if not isinstance(type_, TensorType) or type_.shape is None or type_.dtype not in FLOATS:
        return None
    sizes = [size for size in type_.shape[found.axis :] if isinstance(size, int)]
    return tuple(sizes) if len(sizes) == -found.axis else None


def _find_parameters(graph: Graph, found: _Found, shape: tuple[int, ...]) -> None:
    """Add the product with a scale, and behind it, for LayerNormalization, the sum with a shift."""
    for kind in (Mul, Add)[: 1 + found.is_centred]:
        reader = graph.sole_consumer(found.top.output)
        if reader is None or not isinstance(reader.op, kind):
            return
        value = next((b for a, b in pairs(reader) if a is found.top.output), None)
        type_ = value.type if value is not None else None
        if value is None or not isinstance(type_, TensorType) or type_.shape != shape:
            return
        if type_.dtype != found.top.output.tensor.dtype or not _is_earlier(graph, value, found):
            return
        found.nodes.add(reader)
        found.top = reader
        found.parameters.append(value)


def _is_earlier(graph: Graph, value: Value, found: _Found) -> bool:
    """Whether a parameter does not depend on the nodes that it is a parameter of."""
    return value.producer is None or value.producer not in found.nodes


def _rewrite(graph: Graph, found: _Found, shape: tuple[int, ...]) -> Node:
    dtype = found.x.tensor.dtype
    if not found.parameters:
        found.parameters.append(graph.constant(np.ones(shape, dtype), f"{found.top.name}.scale"))
    kind = LayerNormalization if found.is_centred else RMSNormalization
    stash = float64 if dtype == float64 else float32
    op = kind(axis=found.axis, epsilon=found.epsilon, stash_type=stash)
    return stand_in(graph, found.nodes, found.top, op, (found.x, *found.parameters))
