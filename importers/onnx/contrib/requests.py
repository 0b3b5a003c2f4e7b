"""Requests of different lengths, whose tokens are packed one after the other."""

from __future__ import annotations

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .heads import positions

#: Maximum of `state_update_capacity`.
MAX_STATES = 8


class Requests:
    """Tokens of packed requests, with the `before` rows that precede each request.

    Attributes:
        count: the number of tokens.
        owner: [tokens], the request of every token.
        starts: [requests], the position of its first token.
        lengths: [requests], its number of tokens.
        offsets: [tokens], the position of every token in its request.
    """

    def __init__(self, b: NodeBuilder, x: str, bounds: str, before: int) -> None:
        self._b, self._before = b, before
        b.rank(bounds, 1)
        bounds = b.cast(bounds, dtypes.int64)
        size = b.size(bounds, 0)
        self.count = b.size(x, 0)
        self.starts = b.slice(bounds, 0, 0, -1)
        ends = b.slice(bounds, 0, b.ints(1), size)
        self.lengths = b.Sub(ends, self.starts)
        self.batch = b.Sub(size, b.ints(1))
        self.places = positions(b, self.count)
        is_after = b.GreaterOrEqual(b.Unsqueeze(self.places, b.ints(1)), ends)
        self.owner = b.ReduceSum(b.cast(is_after, dtypes.int64), b.ints(1), keepdims=0)
        self.offsets = b.Sub(self.places, b.Gather(self.starts, self.owner, axis=0))

    def with_past(self, x: str, past: str) -> str:
        """Return a table of the tokens' rows, and those [requests, before, …] before them."""
        b = self._b
        row = b.Concat(b.ints(-1), b.Shape(x, start=1), axis=0)
        return b.Concat(x, b.Reshape(past, row), axis=0)

    def at(self, table: str, owner: str, offset: str) -> str:
        """Return rows at offsets from the first token of requests; negative ones are past."""
        b = self._b
        earlier = b.Add(b.Mul(owner, b.ints(self._before)), b.Add(offset, b.ints(self._before)))
        inside = b.Add(b.Gather(self.starts, owner, axis=0), offset)
        is_past = b.Less(offset, b.ints(0))
        return b.Gather(table, b.Where(is_past, b.Add(self.count, earlier), inside), axis=0)

    def ends_at(self, table: str, lengths: str) -> str:
        """Return the last `before` rows [requests, …, before, …] of the first `lengths` tokens."""
        b = self._b
        back = b.arange(self._before, -self._before)
        return self.of_each(table, b.Add(b.Unsqueeze(lengths, b.ints(b.rank(lengths))), back))

    def of_each(self, table: str, offset: str) -> str:
        """Return rows at offsets [requests, …] from the first token of each request."""
        b = self._b
        owner = b.reshape(positions(b, self.batch), -1, *(1,) * (b.rank(offset) - 1))
        return self.at(table, b.Expand(owner, b.Shape(offset)), offset)


def need_capacity(b: NodeBuilder, capture_count: str | None, state_update_capacity: int) -> None:
    """Raise ModelError unless states are asked for with their number, or not at all."""
    if not 0 <= state_update_capacity <= MAX_STATES:
        raise b.error(f"state_update_capacity={state_update_capacity}; expected 0 to {MAX_STATES}")
    if (capture_count is None) == (state_update_capacity > 0):
        raise b.error("capture_count is needed if state_update_capacity is positive, and only then")
