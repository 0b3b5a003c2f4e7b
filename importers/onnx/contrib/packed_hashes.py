"""N-gram hashes of packed sequences of different lengths."""

from __future__ import annotations

from typing import Annotated

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Int32, Kind, Results, contrib
from .hyper import either, hashes, need_grams
from .requests import Requests, need_capacity

Ids = Annotated[str, Kind("I", frozenset({dtypes.int32, dtypes.int64}))]


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
    need_capacity(b, capture_count, state_update_capacity)
    if past_segment_ids is not None and segment_ids is None:
        raise b.error("past_segment_ids needs segment_ids")
    before = max_ngram_size - 1
    b.rank(input_ids, 1)
    requests = Requests(b, input_ids, cumulative_sequence_length, before)
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
    lost: str | None = None
    shifted, nearer = [input_ids], segment_ids
    for k in range(1, max_ngram_size):
        earlier = b.Sub(requests.offsets, b.ints(k))
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
    b: NodeBuilder, requests: Requests, table: str, wanted: str, capacity: int, pad_id: int
) -> str:
    """Return the last ids after each of the first tokens: [requests, capacity, before]."""
    numbers = b.arange(capacity, 1)
    lengths = b.Min(b.Unsqueeze(requests.lengths, b.ints(1)), numbers)
    found = requests.ends_at(table, lengths)
    count = b.Min(b.cast(wanted, dtypes.int64), requests.lengths)
    is_wanted = b.LessOrEqual(numbers, b.Unsqueeze(count, b.ints(1)))
    return b.Where(b.Unsqueeze(is_wanted, b.ints(2)), found, b.number(pad_id, table))
