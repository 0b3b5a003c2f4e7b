"""Attention in blocks of some heads and some rows of queries, whose scores stay in the cache.

A block takes as few calls as possible: threads hold each other up with every call that they make.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from math import prod

import numpy as np

from ....runtime.ir.dtypes import DType, bool_, float64
from ....runtime.ir.types import Array
from ....runtime.ops.attention import Attention
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.blocking import blocks
from ..engine.chain import Chain
from ..engine.cost import ELEMENT, PRODUCT
from ..engine.registry import builder
from ..engine.step import Bound, HostStep, Scratch, Tape, portions
from ..numerics.products import multiply, recorded, sums
from .attention import attention, by_head, seen_keys

#: Scores of a block, and rows that it has at least, for the products' sake.
BLOCK, MIN_ROWS = 1 << 17, 32
#: Calls that are made for each score, roughly.
CALLS = 5


@builder(Attention)
def attention_rows(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Attend without a cache and to the first output alone; all else is left to `attention`."""
    node = chain.head
    op, (q, k, *_) = node.op, node.inputs
    assert isinstance(op, Attention)
    assert q is not None
    assert k is not None
    others = [value for value in node.inputs[4:] if value is not None]
    if others or any(value in site.outputs for value in node.outputs[1:]) or not k.tensor.size:
        return HostStep(chain.title, site, partial(_record_whole, chain))
    heads, rows, size = _sizes(q.tensor.dims, op.q_num_heads)
    sources, total, _ = _sizes(k.tensor.dims, op.kv_num_heads)
    repeats, workers = heads // sources, thread_pool.size()
    part = -(-rows // workers) if rows >= workers * MIN_ROWS else rows
    part = min(part, max(MIN_ROWS, BLOCK // (repeats * total)))
    count = min(sources, max(1, BLOCK // (repeats * part * total)))
    dtype, block = _dtype(op, q.tensor.dtype), (count, repeats, part)
    scratch = Scratch()
    pieces = [scratch.take(prod(block) * n, dtype) for n in (size, total)]

    def record(bound: Bound) -> list[Tape]:
        shapes = (*block, size), (*block, total)
        queries, scores = map(bound.scratch, pieces, shapes)
        return _record(chain, bound, (queries, scores))

    name = f"{chain.title}: {heads} x {rows} x {total}"
    return HostStep(name, site, record, workers, scratch.nbytes)


def _sizes(dims: tuple[int, ...], heads: int | None) -> tuple[int, int, int]:
    """Return heads, length and size of a head."""
    if len(dims) == 4:
        return dims[1], dims[2], dims[3]
    count = heads or 1
    return count, dims[1], dims[2] // count


def _dtype(op: Attention, dtype: DType) -> DType:
    return float64 if op.is_wide else sums(dtype)


def _record_whole(chain: Chain, bound: Bound) -> list[Tape]:
    node = chain.head
    arrays = [bound.get(value) for value in node.inputs]
    targets = [bound.get(value) for value in node.outputs]

    def run() -> None:
        assert isinstance(node.op, Attention)
        for target, result in zip(targets, attention(node.op, *arrays), strict=False):  # pyright: ignore[reportArgumentType]
            if target is not None:
                np.copyto(target, result)

    return [[run]]


def _record(chain: Chain, bound: Bound, work: tuple[Array, Array]) -> list[Tape]:
    op = chain.head.op
    assert isinstance(op, Attention)
    values = [value for value in chain.head.inputs[:3] if value is not None]
    keys, elements = (by_head(bound[value], op.kv_num_heads) for value in values[1:])
    batch, sources, total, size = keys.shape
    queries, result = (
        _grouped(by_head(bound[value], op.q_num_heads), sources)
        for value in (values[0], chain.output)
    )
    rows = queries.shape[3]
    mask = bound.get(chain.head.inputs[3]) if len(chain.head.inputs) > 3 else None
    bias = None if mask is None else _grouped(_by_score(mask, batch, queries), sources)
    hidden = _hidden(op, rows, total)
    count, _, maximum, _ = work[0].shape
    tapes: list[Tape] = []
    parts = product(range(batch), blocks((sources,), count), blocks((rows,), maximum))
    for n, (some,), (part,) in parts:
        place = (n, some, slice(None), part)
        own = tuple(w[: some.stop - some.start, :, : part.stop - part.start] for w in work)
        call = partial(
            _attend,
            op,
            (own[0], own[1]),
            queries[place],
            keys[n, some, np.newaxis],
            elements[n, some, np.newaxis],
            result[place],
            None if bias is None else bias[place],
            None if hidden is None else hidden[part],
        )
        tapes.append([call])
    size += elements.shape[3]
    scores = prod(queries.shape[:4]) * total
    return portions(tapes, scores * (size * PRODUCT + CALLS * ELEMENT), thread_pool.size())


def _grouped(x: Array, sources: int) -> Array:
    """Return [batch, h, rows, n] as [batch, heads of the keys, heads that share one, rows, n]."""
    batch, heads, rows, last = x.shape
    return x.reshape(batch, sources, heads // sources, rows, last)


def _by_score(mask: Array, batch: int, queries: Array) -> Array:
    """Return the mask repeated over samples, heads and rows."""
    _, sources, repeats, rows, _ = queries.shape
    return np.broadcast_to(mask, (batch, sources * repeats, rows, mask.shape[-1]))


def _hidden(op: Attention, rows: int, total: int) -> Array | None:
    """Return which keys a row does not see because of where they stand; None where it sees all."""
    if not op.is_causal and op.left_window_size < 0 and op.right_window_size < 0:
        return None
    return ~seen_keys(op, np.arange(rows)[:, np.newaxis], np.arange(total))


def _attend(
    op: Attention,
    work: tuple[Array, Array],
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    mask: Array | None,
    hidden: Array | None,
) -> None:
    """Put softmax(scale * q @ k' + mask) @ v of some heads into `out`; `work` has the dtype."""
    queries, scores = work
    dtype = scores.dtype
    scale = q.shape[-1] ** -0.5 if op.scale is None else op.scale
    np.multiply(q, dtype.type(scale), out=queries, casting="same_kind")
    recorded(queries, k.astype(dtype, copy=False).swapaxes(-1, -2), scores)()
    if op.softcap > 0:
        np.tanh(np.divide(scores, op.softcap, out=scores), out=scores)
        np.multiply(scores, op.softcap, out=scores)
    if mask is not None:
        _add_mask(scores, mask)
    if hidden is not None:
        np.copyto(scores, -np.inf, where=hidden)
    peak = scores.max(-1, keepdims=True, initial=-np.inf)
    is_masked = mask is not None or hidden is not None
    if is_masked:
        np.copyto(peak, 0, where=np.isneginf(peak))
    np.subtract(scores, peak, out=scores)
    np.exp(scores, out=scores)
    total = np.vecdot(scores, np.ones(scores.shape[-1], dtype))[..., np.newaxis]
    if is_masked:
        np.copyto(total, 1, where=total == 0)
    elements, values = v.astype(dtype, copy=False), out
    if out.dtype == dtype:
        recorded(scores, elements, out)()
    else:
        values = multiply(scores, elements)
    np.divide(values, total, out=out, casting="same_kind")


def _add_mask(scores: Array, mask: Array) -> None:
    """Add a mask, or hide what it does not show; keys that it does not reach are hidden."""
    own = scores[..., : mask.shape[-1]]
    if mask.dtype == bool_:
        np.copyto(own, -np.inf, where=~mask)
    else:
        np.add(own, mask, out=own, casting="same_kind")
    scores[..., mask.shape[-1] :] = -np.inf
