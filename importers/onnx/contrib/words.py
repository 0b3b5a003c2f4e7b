"""Words of characters, and the suffixes that aggressive decoding matches."""

from __future__ import annotations

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Float32, Int32, Int64, Results, contrib
from .heads import positions

#: Longest suffix that BifurcationDetector may be asked for: each length takes a dozen nodes.
MAX_SUFFIX = 64


@contrib("WordConvEmbedding")
def word_conv_embedding(
    b: NodeBuilder,
    sequence: Int32,
    w: Float32,
    bias: Float32,
    characters: Float32,
    *,
    char_embedding_size: int | None = None,
    conv_window_size: int | None = None,
    embedding_size: int | None = None,
) -> str:
    """Maximum over a word [words, length] of tanh(convolution of its characters' embeddings).

    Characters are numbers above 0; a word that does not start with one has none, and gives 0.
    """
    b.rank(sequence, 2)
    b.rank(w, 4)
    b.rank(characters, 2)
    filters, width = b.need_extent(w, 0), b.need_extent(w, 2)
    b.need_shape(w, "w", embedding_size or filters, 1, conv_window_size or width, None)
    columns = b.need_extent(w, 3)
    b.need_shape(characters, "characters", None, char_embedding_size or columns)
    length = b.extent(sequence, 1)
    if length is not None and length < width:
        raise b.error(f"words of {length} characters; expected {width} or more, the window's")
    zero = b.number(0, sequence)
    counts = b.ReduceSum(b.cast(b.Greater(sequence, zero), dtypes.int64), b.ints(1), keepdims=1)
    starts = b.Greater(b.slice(sequence, 1, 0, 1), zero)
    windows = b.Sub(b.Max(counts, b.ints(width)), b.ints(width - 1))
    windows = b.Where(starts, windows, b.ints(0))
    places = positions(b, b.Sub(b.size(sequence, 1), b.ints(width - 1)))
    taken = b.Add(b.Unsqueeze(places, b.ints(1)), b.arange(width))
    rows = b.Gather(characters, b.Gather(b.Max(sequence, zero), taken, axis=1), axis=0)
    rows = b.reshape(rows, 0, 0, width * columns)
    kernel = b.transpose(b.reshape(w, filters, width * columns), 1, 0)
    found = b.Tanh(b.Add(b.MatMul(rows, kernel), bias))
    is_used = b.Unsqueeze(b.Less(places, windows), b.ints(2))
    best = b.ReduceMax(b.Where(is_used, found, b.number(-2, found)), b.ints(1), keepdims=0)
    return b.Where(starts, best, b.number(0, best))


@contrib("BifurcationDetector", outputs=(2, 2))
def bifurcation_detector(
    b: NodeBuilder,
    src_tokens: Int64,
    cur_tokens: Int64,
    prev_suffix_match_idx: Int64,
    pred_tokens: Int64 | None = None,
    *,
    max_ngram_size: int = 3,
    min_ngram_size: int = 1,
) -> Results:
    """Tokens with those predicted up to the first that is not the source's; where they go on."""
    if not 1 <= min_ngram_size <= max_ngram_size <= MAX_SUFFIX:
        raise b.error(
            f"min_ngram_size={min_ngram_size}, max_ngram_size={max_ngram_size}; "
            f"expected 1 or more, and as many to {MAX_SUFFIX}"
        )
    for each in (src_tokens, cur_tokens):
        b.rank(each, 1)
    length = b.size(src_tokens, 0)
    tokens = cur_tokens
    if pred_tokens is not None:
        b.rank(pred_tokens, 1)
        rest = b.slice(src_tokens, 0, b.reshape(prev_suffix_match_idx, 1), length)
        differs = b.Not(b.Equal(b.slice(pred_tokens, 0, b.ints(0), b.Shape(rest)), rest))
        first = b.ArgMax(_or_end(b, differs), axis=0, keepdims=1)
        accepted = b.slice(pred_tokens, 0, b.ints(0), b.Add(first, b.ints(1)))
        tokens = b.Concat(cur_tokens, accepted, axis=0)
    matches = _Suffix(b, src_tokens, tokens)
    for size in range(min_ngram_size, max_ngram_size + 1):
        matches.extend(size)
    return tokens, b.reshape_like(matches.index, prev_suffix_match_idx)


def _or_end(b: NodeBuilder, flags: str) -> str:
    """Return flags [n, …] as int32, with 1 behind them, so that there is a first one."""
    return b.Concat(b.cast(flags, dtypes.int32), b.constant(np.array([1], np.int32)), axis=0)


class _Suffix:
    """Where the source goes on after the only match of the last tokens: -1 if there is none.

    Sizes are tried in turn, until one has no match, or one at the end of the source.
    """

    def __init__(self, b: NodeBuilder, source: str, tokens: str) -> None:
        self._b, self._source = b, source
        self._length, self._count = b.size(source, 0), b.size(tokens, 0)
        self._places = positions(b, self._length)
        beyond = b.constant(np.zeros(MAX_SUFFIX, np.int64))
        self._padded = b.Concat(source, beyond, axis=0)
        self._last = b.Concat(beyond, tokens, axis=0)
        self._goes_on = b.constant(np.array([True]))
        self.index = b.ints(-1)

    def extend(self, size: int) -> None:
        """Try the last `size` tokens."""
        b = self._b
        fits = b.LessOrEqual(self._places, b.Sub(self._length, b.ints(size)))
        begin = b.Add(self._count, b.ints(MAX_SUFFIX - size))
        for k in range(size):
            token = b.Gather(self._last, b.Add(begin, b.ints(k)), axis=0)
            behind = b.slice(self._padded, 0, b.ints(k), b.Add(self._length, b.ints(k)))
            fits = b.And(fits, b.Equal(behind, token))
        enough = b.LessOrEqual(b.ints(size), self._count)
        found = b.ReduceSum(b.cast(fits, dtypes.int64), b.ints(0), keepdims=1)
        end = b.Add(b.ArgMax(_or_end(b, fits), axis=0, keepdims=1), b.ints(size))
        is_found = b.And(enough, b.Greater(found, b.ints(0)))
        is_tried = b.And(self._goes_on, is_found)
        is_last = b.GreaterOrEqual(end, self._length)
        is_only = b.Or(is_last, b.Equal(found, b.ints(1)))
        self.index = b.Where(is_tried, b.Where(is_only, end, b.ints(-1)), self.index)
        self._goes_on = b.And(is_tried, b.Not(is_last))
