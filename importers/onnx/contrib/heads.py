"""Common parts of onnxruntime's attention operators: heads, masks, and KV caches."""

from __future__ import annotations

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder

#: The default bias of masked scores.
FILTER = -10000.0


def need_heads(b: NodeBuilder, heads: int, name: str = "num_heads") -> int:
    """Return a number of heads; raise ModelError if it is invalid."""
    if heads < 1:
        raise b.error(f"attribute '{name}' is {heads}; expected 1 or more")
    return heads


def head_size(b: NodeBuilder, hidden: int, heads: int, name: str) -> int:
    """Return the size of `heads` heads; raise ModelError unless they divide the hidden size."""
    if hidden % heads:
        raise b.error(f"the hidden size {hidden} of {name} is not a multiple of {heads} heads")
    return hidden // heads


def split_heads(b: NodeBuilder, x: str, heads: int, size: int) -> str:
    """Return [batch, length, heads * size] as [batch, heads, length, size]."""
    return b.transpose(b.reshape(x, 0, 0, heads, size), 0, 2, 1, 3)


def join_heads(b: NodeBuilder, x: str, heads: int, size: int) -> str:
    """Return [batch, heads, length, size] as [batch, length, heads * size]."""
    return b.reshape(b.transpose(x, 0, 2, 1, 3), 0, 0, heads * size)


def positions(b: NodeBuilder, count: str) -> str:
    """Return 0, 1, … as int64; `count` is an int64 vector of one element."""
    known = b.value(count)
    if known is not None and known.size and isinstance(known.flat[0], int | np.integer):
        return b.arange(int(known.flat[0]))
    zero, one = (b.constant(np.array(n, np.int64)) for n in (0, 1))
    return b.Range(zero, b.Squeeze(count, b.ints(0)), one)


def penalty(b: NodeBuilder, seen: str, like: str, filter_value: float) -> str:
    """Return the bias of scores: 0 where `seen`, else the filter value."""
    dtype = b.dtype(like)
    if dtype in (dtypes.float16, dtypes.float32):
        filter_value = max(filter_value, float(np.finfo(dtype).min))
    return b.Where(seen, b.number(0.0, like), b.number(filter_value, like))


def padding(b: NodeBuilder, mask: str, x: str, rows: str, total: str) -> str:
    """Return which keys a mask of any of onnxruntime's forms makes visible.

    The forms are [batch] (lengths), [2 * batch] (ends, then starts), [3 * batch + 2] (lengths, then
    cumulative sums), [batch, total], [batch, rows, total] and [batch, 1, maximum, maximum], of
    which the rows after the past count. [batch, 1] and [1, 1] mask nothing if there are more keys.

    Args:
        b: adds the nodes.
        mask: int32.
        x: a tensor whose first axis is the batch.
        rows: number of queries, an int64 vector of one element.
        total: number of keys, past included, likewise.
    """
    rank = b.rank(mask, 2, 1, 3, 4)
    zero = b.constant(np.array(0, np.int32))
    if rank == 1:
        return _ranges(b, mask, x, total)
    if rank == 4:
        mask = b.slice(mask, 2, b.Sub(total, rows), total)
        return b.Greater(b.slice(mask, 3, b.ints(0), total), zero)
    seen = b.Greater(mask, zero)
    if rank == 3:
        return b.Unsqueeze(seen, b.ints(1))
    if b.extent(mask, 1) == 1:
        seen = b.Expand(b.Or(seen, b.Greater(total, b.ints(1))), b.shape(1, total))
    return b.Unsqueeze(seen, b.ints(1, 2))


def _ranges(b: NodeBuilder, mask: str, x: str, total: str) -> str:
    """Return which keys are before the ends, and not before the starts, if given."""
    batch, count = b.size(x, 0), b.size(mask, 0)
    keys = b.Cast(positions(b, total), to=dtypes.TO_ONNX[dtypes.int32])
    ends = b.Slice(mask, b.ints(0), batch)
    seen = b.Less(keys, b.Unsqueeze(ends, b.ints(1, 2, 3)))
    if b.dim(mask, 0) is not None and b.dim(mask, 0) == b.dim(x, 0):
        return seen
    double = b.Add(batch, batch)
    zeros = b.Mul(ends, b.constant(np.array(0, np.int32)))
    starts = b.Slice(b.Concat(mask, zeros, axis=0), batch, double)
    has_starts = b.Cast(b.Equal(count, double), to=dtypes.TO_ONNX[dtypes.int32])
    starts = b.Unsqueeze(b.Mul(starts, has_starts), b.ints(1, 2, 3))
    return b.And(seen, b.GreaterOrEqual(keys, starts))
