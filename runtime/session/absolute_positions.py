"""Finds positions that a decoder counts from its first input on, padding included.

Padding on the left moves the tokens of a shorter prompt, and padding on the right those that follow
it in later steps. That changes nothing if the model gets their positions, computes them from the
mask, or uses only distances (rotary embeddings, biases of scores). It does if embeddings of
positions that come from sizes alone are added to those of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from enum import Flag, auto

import numpy as np

from ..ir.dtypes import FLOATS
from ..ir.graph import Graph, Node, Value
from ..ir.types import TensorType
from ..ops.control import If
from ..ops.elementwise import Add
from ..ops.gather import Gather
from ..ops.movement import Expand, Slice, Tile
from ..ops.norm import Softmax
from ..ops.shape import ConstantOfShape, Range, Reshape, Shape, Size

#: Operators whose result is as their first input: others only say where its elements go.
_MOVES = (Expand, Reshape, Slice, Tile)
#: Longer lists of numbers are neither shapes nor axes.
_MAX_AXES = 8


class _Origin(Flag):
    """What the elements of a tensor depend on."""

    TOKENS = auto()
    OTHER_DATA = auto()
    POSITIONS = auto()


_NOTHING = _Origin(0)
_DATA = _Origin.TOKENS | _Origin.OTHER_DATA
_Origins = dict[Value, _Origin]


def counted_positions(graph: Graph, tokens: Set[str], sizes: Set[str]) -> Node | None:
    """Return a node that adds positions counted from the first input on to what tokens give.

    Args:
        graph: a decoder, as imported.
        tokens: inputs of token ids or their embeddings.
        sizes: inputs that tell where a step begins or how long it is, whatever is padding.

    Returns:
        None if there is none: positions are inputs, depend on the mask, or only bias scores.
    """
    origins: _Origins = {}
    for value in graph.inputs:
        given = _Origin.TOKENS if value.name in tokens else _Origin.OTHER_DATA
        origins[value] = _Origin.POSITIONS if value.name in sizes else given
    return next(_added(graph, origins), None)


def _added(graph: Graph, origins: _Origins) -> Iterator[Node]:
    """Yield nodes that add positions to tokens; complete the origins."""
    for value in graph.constants:
        origins[value] = _Origin.POSITIONS if _differs(value) else _NOTHING
    for node in graph.nodes:
        if isinstance(node.op, If):
            captures = iter(node.captures)
            found = _NOTHING
            for body in node.op.graphs():
                inner = {formal: origins[next(captures)] for formal in body.captures}
                yield from _added(body, inner)
                found = found | _joined(inner, body.outputs.values())
        else:
            found = _origin(node, origins)
        origins.update(dict.fromkeys(node.outputs, found))
        if isinstance(node.op, Add) and _places_tokens(node, origins):
            yield node


def _places_tokens(node: Node, origins: _Origins) -> bool:
    """Whether one operand is of tokens and the other one only of positions, but not in scores."""
    given = [origins[value] for value in node.distinct_reads]
    tokens = any(_Origin.TOKENS in each for each in given)
    places = any(_Origin.POSITIONS in each and not each & _DATA for each in given)
    return tokens and places and not _reaches_softmax(node)


def _joined(origins: Mapping[Value, _Origin], values: Iterable[Value | None]) -> _Origin:
    found = _NOTHING
    for value in values:
        found |= _NOTHING if value is None else origins[value]
    return found


def _origin(node: Node, origins: _Origins) -> _Origin:
    """Return that of a node's results."""
    if isinstance(node.op, Shape | Size | ConstantOfShape):
        return _NOTHING
    found = _joined(origins, node.distinct_reads)
    if isinstance(node.op, Range):
        return found | _Origin.POSITIONS
    if isinstance(node.op, Gather):
        found = found & _DATA | _joined(origins, node.inputs[1:]) & _Origin.POSITIONS
    elif isinstance(node.op, _MOVES):
        found = found & _DATA | _joined(origins, node.inputs[:1]) & _Origin.POSITIONS
    return found & _DATA if _is_row(node.output) else found


def _is_row(value: Value) -> bool:
    """Whether a tensor of floats has a single row, which all positions share."""
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None or type_.dtype not in FLOATS:
        return False
    return all(size == 1 for size in type_.shape[:-1])


def _differs(value: Value) -> bool:
    """Whether elements of a constant are those of positions: rows of floats, or counted numbers."""
    data = value.data
    if data is None or data.dtype in FLOATS:
        return data is not None and not _is_row(value)
    is_counted = data.dtype.kind == "i" and data.size > _MAX_AXES
    return is_counted and bool((np.diff(data.reshape(-1)) == 1).all())


def _reaches_softmax(node: Node) -> bool:
    """Whether a result is a score: it reaches a softmax before any product."""
    seen, waiting = set[Node](), [node]
    while waiting:
        for value in waiting.pop().outputs:
            for reader in value.consumers:
                if isinstance(reader.op, Softmax):
                    return True
                is_size = isinstance(reader.op, Shape | Size)
                if not (reader.op.dense or is_size or reader in seen):
                    seen.add(reader)
                    waiting.append(reader)
    return False
