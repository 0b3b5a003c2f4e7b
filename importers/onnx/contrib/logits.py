"""Logits processing."""

from __future__ import annotations

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Int64, T, contrib
from .heads import positions


@contrib("NGramRepeatBlock")
def ngram_repeat_block(b: NodeBuilder, input_ids: Int64, scores: T, *, ngram_size: int) -> str:
    """Scores with −∞ for tokens that would complete an n-gram already in the row."""
    if ngram_size < 1:
        raise b.error(f"ngram_size={ngram_size}; expected 1 or more")
    b.rank(input_ids, 2)
    b.rank(scores, 2)
    known = b.extent(input_ids, 1)
    if known is not None and known < ngram_size:
        return scores
    length = b.size(input_ids, 1)
    count = b.Sub(length, b.ints(ngram_size - 1))
    starts = b.Unsqueeze(positions(b, count), b.ints(1))
    index = b.Add(starts, b.arange(ngram_size))
    grams = b.Gather(input_ids, index, axis=1)
    last = b.slice(grams, 2, ngram_size - 1, ngram_size)
    bans = b.Squeeze(last, b.ints(2))
    infinity = b.number(float("inf"), scores)
    lowest = b.Neg(infinity)
    if ngram_size == 1:
        updates = b.Expand(lowest, b.Shape(bans))
    else:
        ending = b.Unsqueeze(b.slice(input_ids, 1, b.ints(1 - ngram_size), length), b.ints(1))
        same = b.Equal(b.slice(grams, 2, 0, ngram_size - 1), ending)
        all_same = b.ReduceMin(b.cast(same, dtypes.int32), b.ints(2), keepdims=0)
        updates = b.Where(b.cast(all_same, dtypes.bool_), lowest, infinity)
    return b.ScatterElements(scores, bans, updates, axis=1, reduction="min")
