"""Replaces constant causal and sliding-window masks by attributes of Attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array, TensorType
from ...ops.attention import Attention
from ...ops.elementwise import Add, And
from ..driver import Context
from ..editing import Builder, drop, dtype_of, shape_of

#: Masks add this or less to hidden scores, so that their exponentials are 0 next to any
#: other finite score of float32.
HIDDEN = -1e30
#: Inputs of Attention.
_MASK, _PAST, _LENGTHS = 3, 4, 6


@record
class KeyWindow:
    """The keys visible to query i: those from i - left to i + right, -1 for no bound."""

    left: int
    right: int

    @property
    def attributes(self) -> dict[str, int]:
        """The corresponding attributes of Attention."""
        causal = self.right == 0
        right = -1 if causal else self.right
        return {"is_causal": causal, "left_window_size": self.left, "right_window_size": right}


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Remove from every mask what attributes of its Attention can express.

    Exporters write causal masks as constants of queries times keys. A kernel that knows the window
    reads no mask, and does not multiply hidden keys.
    """
    for node in list(graph.nodes):
        if node in graph and isinstance(node.op, Attention) and _is_open(node):
            text = _lift(graph, node)
            if text:
                yield text


def _is_open(node: Node) -> bool:
    """Whether an Attention has a mask and no window yet, and positions counted from its past."""
    op = node.op
    assert isinstance(op, Attention)
    inputs = (*node.inputs, *(None,) * 7)
    windows = op.is_causal or max(op.left_window_size, op.right_window_size) >= 0
    scores = len(node.outputs) > _MASK and node.outputs[_MASK].consumers
    return inputs[_MASK] is not None and inputs[_LENGTHS] is None and not windows and not scores


def _lift(graph: Graph, node: Node) -> str:
    mask = node.inputs[_MASK]
    assert mask is not None
    join = And if dtype_of(mask) == np.bool_ else Add
    terms = list(_terms(mask, join))
    windows = ((i, _window(node, term.data, len(terms) == 1)) for i, term in enumerate(terms))
    found = next(((i, window) for i, window in windows if window is not None), None)
    if found is None:
        return ""
    place, window = found
    others = [*terms[:place], *terms[place + 1 :]]
    add = Builder(graph, node, f"{node.name}.mask", (node,))
    rest = reduce(lambda a, b: add(join(), a, b), others) if others else None
    inputs = [*node.inputs]
    inputs[_MASK] = rest
    while inputs[-1] is None:
        inputs.pop()
    assert isinstance(node.op, Attention)
    op = replace(node.op, **window.attributes)
    made = add.node(op, *inputs, outputs=len(node.outputs), name=node.name)
    graph.replace(node, made.outputs)
    graph.rename(made, node.name)
    drop(graph, mask.producer)
    return f"Attention '{made.name}' has its mask as attributes: {op}"


def _terms(mask: Value, join: type[And | Add]) -> Iterator[Value]:
    """Yield the addends of a mask."""
    source = mask.producer
    if source is None or not isinstance(source.op, join):
        yield mask
        return
    for value in source.operands:  # one that is added to itself counts twice
        yield from _terms(value, join)


def _window(node: Node, mask: Array | None, alone: bool) -> KeyWindow | None:
    """Return the window that a mask represents, if it is a constant and nothing else.

    Next to other masks, only -inf counts as hidden: a query whose visible keys are all hidden by a
    large negative number sees the keys hidden only once, wherever they are.
    """
    places = _places(node)
    if mask is None or not mask.size or places is None or mask.shape[-2:] != places[:2]:
        return None
    queries, keys, offset = places
    seen = mask if mask.dtype == np.bool_ else mask == 0
    least = HIDDEN if alone else -np.inf
    if mask.dtype != np.bool_ and not (seen | (mask.astype(np.float64) <= least)).all():
        return None
    seen = seen.reshape(-1, queries, keys)
    if not (seen == seen[:1]).all():
        return None
    return _bounds(seen[0], offset)


def _places(node: Node) -> tuple[int, int, int] | None:
    """Return the numbers of queries and keys, and the position of the first query, if known.

    The past counts among the keys; queries follow it.
    """
    inputs = [value.type if value is not None else None for value in node.inputs]
    if None in (value.type for value in node.distinct_reads):
        return None
    inferred = node.op.infer(*inputs)
    scores = inferred[_MASK] if isinstance(inferred, tuple) else None
    shape = scores.shape if isinstance(scores, TensorType) else None
    past = node.inputs[_PAST] if len(node.inputs) > _PAST else None
    cache = (0, 0, 0, 0) if past is None else shape_of(past)
    if shape is None or cache is None:
        return None
    queries, keys, offset = shape[-2], shape[-1], cache[2]
    if isinstance(queries, int) and isinstance(keys, int) and isinstance(offset, int):
        return queries, keys, offset
    return None


def _bounds(seen: Array, offset: int) -> KeyWindow | None:
    """Return the common window of queries at positions `offset` and following, if there is one."""
    queries, keys = (int(size) for size in seen.shape)
    first: Array = seen.argmax(1)
    count: Array = seen.sum(1)
    last: Array = first + count - 1
    places: Array = np.arange(keys)
    between: Array = (places >= first[:, None]) & (places <= last[:, None])
    if not count.all() or not np.array_equal(seen, between):
        return None
    own: Array = np.arange(queries) + offset
    right = _bound(last - own, last < keys - 1, keys - 1 - own)
    left = _bound(own - first, first > 0, own)
    return None if left is None or right is None else KeyWindow(left, right)


def _bound(reach: Array, ends: Array, room: Array) -> int | None:
    """Return the reach in one direction; -1 for unlimited, None if rows differ.

    Args:
        reach: reach of each row.
        ends: whether the row sees fewer keys than exist.
        room: its maximum reach.
    """
    if not ends.any():
        return -1
    bound = int(reach[ends][0])
    fits = bound >= 0 and (reach[ends] == bound).all() and (room[~ends] <= bound).all()
    return bound if fits else None
