"""RelativePositionBias: T5's bucketed relative position biases."""

from __future__ import annotations

import numpy as np

from ....runtime.base.guard import need
from .builder import NodeBuilder
from .declaration import Int64, T, contrib
from .heads import positions


@contrib("RelativePositionBias")
def relative_position_bias(
    b: NodeBuilder,
    bias_table: T,
    query_length: Int64,
    key_length: Int64,
    *,
    is_bidirectional: int = 0,
    max_distance: int,
) -> str:
    """Biases [1, heads, queries, keys] looked up in a table by bucketed distance.

    The table is [buckets, heads], with its elements in the order [heads, buckets]. With
    `is_bidirectional` the upper half of the buckets is for keys after their query; without it these
    use the bucket of distance 0.
    """
    buckets, heads = b.need_extent(bias_table, 0), b.need_extent(bias_table, 1)
    own = buckets // 2 if is_bidirectional else buckets
    if own < 2 or max_distance <= own // 2:
        raise b.error(f"{buckets} buckets for max_distance={max_distance}: expected fewer or more")
    need(8 * max_distance, f"{b.node.where}: the buckets of {max_distance} distances")
    queries, keys = (
        positions(b, b.Reshape(each, b.ints(1))) for each in (query_length, key_length)
    )
    apart = b.Sub(keys, b.Unsqueeze(queries, b.ints(1)))
    far = b.Abs(apart) if is_bidirectional else b.Neg(b.Min(apart, b.ints(0)))
    place = b.Gather(
        b.constant(_buckets(own, max_distance)), b.Min(far, b.ints(max_distance)), axis=0
    )
    if is_bidirectional:
        place = b.Add(place, b.Where(b.Greater(apart, b.ints(0)), b.ints(own), b.ints(0)))
    return b.Unsqueeze(b.Gather(b.reshape(bias_table, heads, buckets), place, axis=1), b.ints(0))


def _buckets(count: int, most: int) -> np.ndarray:
    """Return the bucket of each distance from 0 to `most`: exact at first, then logarithmic."""
    exact = count // 2
    far = np.arange(most + 1)
    ratio = np.maximum(far, 1).astype(np.float32) / np.float32(exact)
    wide = np.log(ratio) / np.float32(np.log(most / exact)) * np.float32(count - exact)
    large = exact + wide.astype(np.int64)
    return np.where(far < exact, far, np.minimum(large, count - 1)).astype(np.int64)
