"""N-gram hashes of packed sequences of different lengths."""

from __future__ import annotations

from typing import Annotated

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Int32, Kind, Results, contrib
from .heads import positions
from .hyper import either, hashes, need_grams

Ids = Annotated[str, Kind("I", frozenset({dtypes.int32, dtypes.int64}))]
#: Maximum of `state_update_capacity`.
MAX_STATES = 8


class _Requests:
    """Tokens of packed requests, with the `before` tokens that precede each request.

    Attributes:
        count: the number of tokens.
        owner: [tokens], the request of every token.
        starts: [requests], the position of its first token.
        lengths: [requests], its number of tokens.
    """

    def __init__(self, b: NodeBuilder, ids: str, bounds: str, before: int) -> None:
        self._b, self._before = b, before
        b.rank(ids, 1)
        b.rank(bounds, 1)
        bounds = b.cast(bounds, dtypes.int64)
        size = b.size(bounds, 0)
        self.count = b.size(ids, 0)
        self.starts = b.slice(bounds, 0, 0, -1)
        ends = b.slice(bounds, 0, b.ints(1), size)
        self.lengths = b.Sub(ends, self.starts)
        self.batch = b.Sub(size, b.ints(1))
        self.places = positions(b, self.count)
        is_after = b.GreaterOrEqual(b.Unsqueeze(self.places, b.ints(1)), ends)
        self.owner = b.ReduceSum(b.cast(is_after, dtypes.int64), b.ints(1), keepdims=0)

    def with_past(self, x: str, past: str) -> str:
        """Return a flat table of the tokens' values, and those [requests, before] before them."""
        return self._b.Concat(x, self._b.reshape(past, -1), axis=0)

    def at(self, table: str, owner: str, offset: str) -> str:
        """Return values at offsets from the first token of requests; negative ones are past."""
        b = self._b
        earlier = b.Add(b.Mul(owner, b.ints(self._before)), b.Add(offset, b.ints(self._before)))
        inside = b.Add(b.Gather(self.starts, owner, axis=0), offset)
        is_past = b.Less(offset, b.ints(0))
        return b.Gather(table, b.Where(is_past, b.Add(self.count, earlier), inside), axis=0)

    def ends_at(self, table: str, lengths: str) -> str:
        """Return the last `before` values [requests, …, before] of the first `lengths` tokens."""
        b = self._b
        rank = b.rank(lengths)
        back = b.arange(self._before, -self._before)
        offset = b.Add(b.Unsqueeze(lengths, b.ints(rank)), back)
        owner = b.reshape(positions(b, self.batch), -1, *(1,) * rank)
        return self.at(table, b.Expand(owner, b.Shape(offset)), offset)


@contrib("VarlenNGramHashMapping", outputs=(1, 4))
def varlen_ngram_hash_mapping(
    b: NodeBuilder,
    input_ids: Ids,
    multipliers: Ids,
    vocab_sizes: Ids,
    cumulative_sequence_length: Int32,
    past_ids: Ids | None = None,
    head_offsets: Ids | None = None,
    eos_token_id: Ids | None = None,
    segment_ids: Int32 | None = None,
    past_segment_ids: Int32 | None = None,
    capture_count: Int32 | None = None,
    *,
    max_ngram_size: int,
    n_head_per_ngram: int,
    pad_id: int,
    reset_on_eos: int = 0,
    state_update_capacity: int = 0,
) -> Results:
    """Hashes of every token with its predecessors in the same request."""
    need_grams(b, max_ngram_size, n_head_per_ngram)
    if not 0 <= state_update_capacity <= MAX_STATES:
        raise b.error(f"state_update_capacity={state_update_capacity}; expected 0 to {MAX_STATES}")
    if (capture_count is None) == (state_update_capacity > 0):
        raise b.error("capture_count is needed if state_update_capacity is positive, and only then")
    if past_segment_ids is not None and segment_ids is None:
        raise b.error("past_segment_ids needs segment_ids")
    before = max_ngram_size - 1
    requests = _Requests(b, input_ids, cumulative_sequence_length, before)
    missing = b.number(pad_id, input_ids)
    if eos_token_id is not None:
        missing = b.Reshape(eos_token_id, b.ints())
    form = b.shape(requests.batch, before)
    if past_ids is None:
        past_ids = b.Expand(missing, form)
    table = requests.with_past(input_ids, past_ids)
    segments: str | None = None
    if segment_ids is not None:
        if past_segment_ids is None:
            first = b.Gather(segment_ids, requests.starts, axis=0)
            past_segment_ids = b.Expand(b.Unsqueeze(first, b.ints(1)), form)
        segments = requests.with_past(segment_ids, past_segment_ids)
    offset = b.Sub(requests.places, b.Gather(requests.starts, requests.owner, axis=0))
    lost: str | None = None
    shifted, nearer = [input_ids], segment_ids
    for k in range(1, max_ngram_size):
        earlier = b.Sub(offset, b.ints(k))
        ids = requests.at(table, requests.owner, earlier)
        if segments is not None and nearer is not None:
            segment = requests.at(segments, requests.owner, earlier)
            lost = either(b, lost, b.Not(b.Equal(segment, nearer)))
            nearer = segment
        if reset_on_eos and eos_token_id is not None:
            lost = either(b, lost, b.Equal(ids, missing))
        shifted.append(ids if lost is None else b.Where(lost, missing, ids))
    y = hashes(b, shifted, multipliers, vocab_sizes, head_offsets, n_head_per_ngram)
    present, present_segments = (
        requests.ends_at(each, requests.lengths) if b.wants(i) and each is not None else None
        for i, each in ((1, table), (2, segments))
    )
    states = None
    if capture_count is not None and b.wants(3):
        states = _states(b, requests, table, capture_count, state_update_capacity, pad_id)
    return y, present, present_segments, states


def _states(
    b: NodeBuilder, requests: _Requests, table: str, wanted: str, capacity: int, pad_id: int
) -> str:
    """Return the last ids after each of the first tokens: [requests, capacity, before]."""
    numbers = b.arange(capacity, 1)
    lengths = b.Min(b.Unsqueeze(requests.lengths, b.ints(1)), numbers)
    found = requests.ends_at(table, lengths)
    count = b.Min(b.cast(wanted, dtypes.int64), requests.lengths)
    is_wanted = b.LessOrEqual(numbers, b.Unsqueeze(count, b.ints(1)))
    return b.Where(b.Unsqueeze(is_wanted, b.ints(2)), found, b.number(pad_id, table))
