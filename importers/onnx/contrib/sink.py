"""Attention with a sink: an additional term per head in the softmax denominator."""

from __future__ import annotations

from dataclasses import dataclass

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .heads import positions


@dataclass(frozen=True)
class ScoreSettings:
    """How scores are computed.

    Attributes:
        heads: query heads.
        groups: key heads.
        size: head size.
        scale: factor of the products.
        softcap: bound of the scores, 0 for none.
        stage: 1 to return scores before the softmax, 2 for those after it.
    """

    heads: int
    groups: int
    size: int
    scale: float
    softcap: float
    stage: int


def softened(b: NodeBuilder, y: str, scores: str, sink: str, heads: int) -> str:
    """Return the result of an attention as if each softmax had one more term, exp(sink).

    Args:
        b: adds the nodes.
        y: the result without it, [batch, heads, rows, size].
        scores: those before the softmax, -inf where keys are hidden.
        sink: [heads].
        heads: query heads.
    """
    total = b.ReduceLogSumExp(b.cast(scores, dtypes.float32), b.ints(3))
    extra = b.reshape(b.cast(sink, dtypes.float32), 1, heads, 1, 1)
    return b.Mul(y, b.cast(b.Sigmoid(b.Sub(total, extra)), b.dtype(y)))


def with_sink(
    b: NodeBuilder,
    qkv: tuple[str, str, str],
    seen: str,
    bias: str | None,
    sink: str,
    how: ScoreSettings,
) -> tuple[str, str]:
    """Return the result [batch, heads, rows, size], and the scores [batch, heads, rows, keys].

    Args:
        b: adds the nodes.
        qkv: queries [batch, heads, rows, size]; keys and values with as many or fewer heads.
        seen: [batch, 1, rows, keys], visibility of keys.
        bias: added to the scores; may be shorter than the keys.
        sink: [heads].
        how: further settings.
    """
    query, key, value = qkv
    heads, groups, size = how.heads, how.groups, how.size
    rows, keys = b.size(query, 2), b.size(key, 2)
    together = b.Mul(rows, b.ints(heads // groups))
    query = b.reshape(b.Mul(query, b.number(how.scale, query)), 0, groups, together, size)
    scores = b.MatMul(query, b.transpose(key, 0, 1, 3, 2))
    scores = b.cast(b.reshape(scores, 0, heads, rows, keys), dtypes.float32)
    if how.softcap > 0:
        cap = b.number(how.softcap, scores)
        scores = b.Mul(cap, b.Tanh(b.Div(scores, cap)))
    if bias is not None:
        short = b.Sub(keys, b.size(bias, 3))
        widths = b.shape(b.ints(0, 0, 0, 0, 0, 0, 0), short)
        scores = b.Add(scores, b.cast(b.Pad(bias, widths), dtypes.float32))
    scores = b.Where(seen, scores, b.number(float("-inf"), scores))
    batch = b.size(scores, 0)
    extra = b.reshape(b.cast(sink, dtypes.float32), 1, heads, 1, 1)
    extra = b.Expand(extra, b.shape(batch, heads, rows, 1))
    shares = b.Softmax(b.Concat(scores, extra, axis=3), axis=3)
    shares = b.cast(b.slice(shares, 3, 0, keys), b.dtype(value))
    y = b.MatMul(b.reshape(shares, 0, groups, together, keys), value)
    shown = shares if how.stage == 2 else b.cast(scores, b.dtype(value))
    return b.reshape(y, 0, heads, rows, size), shown


def visible(b: NodeBuilder, query: str, key: str, length: str, causal: bool, window: int) -> str:
    """Return the visibility of keys: [batch, 1, rows, keys].

    Args:
        b: adds the nodes.
        query: [batch, heads, rows, size].
        key: [batch, heads, keys, size].
        length: [batch], number of keys up to the last query.
        causal: whether keys after the query are hidden.
        window: number of visible keys before the query, -1 for all.
    """
    rows, keys = b.size(query, 2), b.size(key, 2)
    ends = b.Unsqueeze(length, b.ints(1, 2, 3))
    places = positions(b, keys)
    seen = b.Less(places, ends)
    if not causal:
        return seen
    own = b.Add(b.Unsqueeze(positions(b, rows), b.ints(1)), b.Sub(ends, rows))
    seen = b.LessOrEqual(places, own)
    if window < 0:
        return seen
    return b.And(seen, b.LessOrEqual(b.Sub(own, places), b.ints(window)))
