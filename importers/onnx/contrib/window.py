"""Sliding-window caches: old positions are dropped from the front of the buffer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .builder import NodeBuilder
from .heads import positions


@dataclass(frozen=True)
class AttentionWindow:
    """The state of a sliding-window cache; see GroupQueryAttention in onnxruntime's documentation.

    Of T positions, a buffer of C rows holds the last L(T), in order from its first row: all while
    they fit, else as many as remain after dropping multiples of G = C - window + 1.

    Attributes:
        room: [1], C.
        before: [batch], number of positions before this call.
        after: [batch], number of positions after it.
        kept: [batch], L(before).
        left: [batch], L(after).
    """

    room: str
    before: str
    after: str
    kept: str
    left: str


def window_of(b: NodeBuilder, past: str, before: str, after: str, size: int) -> AttentionWindow:
    """Return the window of a buffer [batch, heads, C, size]; raise an error if it is too small."""
    known = b.extent(past, 2)
    if size < 1:
        raise b.error("sliding_window_cache=1 needs local_window_size")
    if known is not None and known < size:
        raise b.error(
            f"past_key has room for {known} positions; local_window_size={size} needs more"
        )
    room = b.size(past, 2)
    group = b.Sub(room, b.ints(size - 1))

    def kept(count: str) -> str:
        over = b.Max(b.Sub(count, room), b.ints(0))
        rounded = b.Div(b.Add(over, b.Sub(group, b.ints(1))), group)
        return b.Sub(count, b.Mul(group, rounded))

    return AttentionWindow(room, before, after, kept(before), kept(after))


def seen(b: NodeBuilder, window: AttentionWindow, length: str, size: int) -> str:
    """Return which rows of buffer and new rows each query sees: [batch, 1, length, C + length]."""
    rows = positions(b, b.Add(window.room, length))
    first, kept, before = (
        b.Unsqueeze(x, b.ints(1, 2, 3))
        for x in (b.Sub(window.before, window.kept), window.kept, window.before)
    )
    is_new = b.GreaterOrEqual(rows, window.room)
    places = b.Where(is_new, b.Add(before, b.Sub(rows, window.room)), b.Add(first, rows))
    own = b.Add(before, b.Unsqueeze(positions(b, length), b.ints(1)))
    near = b.And(b.LessOrEqual(places, own), b.Greater(places, b.Sub(own, b.ints(size))))
    return b.And(near, b.Or(is_new, b.Less(rows, kept)))


def present(b: NodeBuilder, window: AttentionWindow, rows: str, heads: int, size: int) -> str:
    """Return the buffer after the call, from the previous one and the new rows.

    Rows without a position are zeros.
    """
    before, after, kept, left = (
        b.Unsqueeze(x, b.ints(1)) for x in (window.before, window.after, window.kept, window.left)
    )
    places = b.Add(b.Sub(after, left), positions(b, window.room))
    places = b.Min(places, b.Sub(after, b.ints(1)))
    old = b.Sub(places, b.Sub(before, kept))
    new = b.Add(b.Sub(places, before), window.room)
    index = b.Max(b.Where(b.Less(places, before), old, new), b.constant(np.array(0, np.int64)))
    index = b.Unsqueeze(index, b.ints(1, 3))
    shape = b.shape(b.size(rows, 0), heads, window.room, size)
    found = b.GatherElements(rows, b.Expand(index, shape), axis=2)
    filled = b.Unsqueeze(b.Less(positions(b, window.room), left), b.ints(1, 3))
    return b.Where(filled, found, b.unspecified(rows))
