"""BERT's embedding layer: lookup, sum and normalization."""

from __future__ import annotations

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Int32, Results, T, contrib
from .heads import positions


@contrib("EmbedLayerNormalization", outputs=(1, 3))
def embed_layer_normalization(
    b: NodeBuilder,
    input_ids: Int32,
    segment_ids: Int32 | None,
    word_embedding: T,
    position_embedding: T,
    segment_embedding: T | None,
    gamma: T,
    beta: T,
    mask: Int32 | None = None,
    position_ids: Int32 | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> Results:
    """LayerNormalization of the sum of embeddings; that sum; and the number of unmasked tokens."""
    b.rank(input_ids, 2)
    hidden = b.dim(word_embedding, 1)
    b.need_shape(position_embedding, "position_embedding", b.dim(position_embedding, 0), hidden)
    words = b.Gather(word_embedding, input_ids, axis=0)
    places = position_ids or positions(b, b.size(input_ids, 1))
    total = b.Add(words, b.Gather(position_embedding, places, axis=0))
    if segment_embedding is not None:
        segments = segment_ids or b.ints(0)  # without ids, every token is of the first segment
        total = b.Add(total, b.Gather(segment_embedding, segments, axis=0))
    y = b.LayerNormalization(total, gamma, beta, epsilon=epsilon)
    return y, words_seen(b, input_ids, mask) if b.wants(1) else None, total


def words_seen(b: NodeBuilder, input_ids: str, mask: str | None) -> str:
    """Return the number of ones in each row of a mask; 0 without a mask."""
    if mask is None:
        return b.Expand(b.constant(np.array(0, np.int32)), b.size(input_ids, 0))
    one = b.constant(np.array(1, np.int32))
    seen = b.cast(b.Equal(mask, one), dtypes.int32)
    return b.ReduceSum(seen, b.ints(1), keepdims=0)
