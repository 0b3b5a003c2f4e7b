"""Attention in blocks of heads and query rows, whose scores stay in the cache.

Blocks make as few calls as possible, because threads block each other with every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod

import numpy as np

from ....runtime.base.record import record
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
from ..engine.step import Bound, HostStep, ScratchLayout, Tape, portions
from ..numerics.products import multiply, recorded, sums
from .attention import attention, by_head, seen_keys

#: Scores per block, and minimum rows per block for efficient products.
BLOCK, MIN_ROWS = 1 << 17, 32
#: Approximate number of calls per score.
CALLS = 5
#: Granularity of a varying number of keys: whole groups of BLAS.
GROUP = 16
#: Maximum blocks whose calls are recorded: more take longer than these, and their memory.
RECORDED = 64


@builder(Attention)
def attention_rows(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Attention without a past and with one output; everything else is left to `attention`."""
    node = chain.head
    op, (q, k, *_) = node.op, node.inputs
    assert isinstance(op, Attention)
    assert q is not None
    assert k is not None
    past = [value for value in node.inputs[4:6] if value is not None]
    if past or any(value in site.outputs for value in node.outputs[1:]) or not k.tensor.size:
        return HostStep(chain.title, site, partial(_record_whole, chain))
    heads, rows, size = _sizes(q.tensor.dims, op.q_num_heads)
    sources, total, _ = _sizes(k.tensor.dims, op.kv_num_heads)
    repeats, workers = heads // sources, thread_pool.size()
    if rows == 1:
        repeats, rows = rows, repeats
    part = -(-rows // workers) if rows >= workers * MIN_ROWS else rows
    part = min(part, max(MIN_ROWS, BLOCK // (repeats * total)))
    count = min(sources, max(1, BLOCK // (repeats * part * total)))
    dtype, block = _dtype(op, q.tensor.dtype), (count, repeats, part)
    scratch = ScratchLayout()
    pieces = [scratch.take(prod(block) * n, dtype) for n in (size, total)]

    def record(bound: Bound) -> list[Tape]:
        shapes = (*block, size), (*block, total)
        queries, scores = map(bound.scratch, pieces, shapes)
        return _record(chain, bound, (queries, scores))

    name = f"{chain.title}: {heads} x {rows} x {total}"
    return HostStep(name, site, record, workers, scratch.nbytes)


def _sizes(dims: tuple[int, ...], heads: int | None) -> tuple[int, int, int]:
    """Return heads, length and head size."""
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
    rows = bound[chain.output].shape[-2]
    others = [bound.get(value) for value in chain.head.inputs[3:]]
    mask, _, _, lengths = (*others, *(None,) * (4 - len(others)))
    bias = None if mask is None else _grouped(_by_score(mask, batch, queries, rows), sources)
    hidden = _hidden(op, rows, total) if lengths is None else None
    count, _, maximum, _ = work[0].shape
    tapes: list[Tape] = []
    ones = np.ones(total, work[1].dtype)
    parts = list(
        product(range(batch), blocks((sources,), count), blocks(queries.shape[3:4], maximum))
    )
    for n, (some,), (part,) in parts:
        place = (n, some, slice(None), part)
        own = tuple(w[: some.stop - some.start, :, : part.stop - part.start] for w in work)
        operands = _Operands(
            (own[0], own[1]),
            queries[place],
            keys[n, some, np.newaxis],
            elements[n, some, np.newaxis],
            result[place],
            None if bias is None else bias[place],
        )
        who = part if rows > 1 else slice(0, 1)
        if lengths is None:
            unseen = None if hidden is None else hidden[who]
            is_few = len(parts) <= RECORDED
            block = op, operands, unseen, ones
            tapes.append(_tape(*block) if is_few else [partial(_attend, *block)])
        else:
            first = _FirstKeys(op, operands, lengths[n : n + 1], rows, who)
            tapes.append([first if len(parts) <= RECORDED else first.once])
    size += elements.shape[3]
    scores = prod(queries.shape[:4]) * total
    return portions(tapes, scores * (size * PRODUCT + CALLS * ELEMENT), thread_pool.size())


def _grouped(x: Array, sources: int) -> Array:
    """Return [batch, h, rows, n] as [batch, key heads, query heads per key head, rows, n].

    A single row per head is merged to several rows per key head.
    """
    batch, heads, rows, last = x.shape
    repeats = heads // sources
    return x.reshape(batch, sources, *((repeats, rows) if rows > 1 else (1, repeats)), last)


def _by_score(mask: Array, batch: int, queries: Array, rows: int) -> Array:
    """Return the mask broadcast over samples, heads and rows."""
    _, sources, *each, _ = queries.shape
    return np.broadcast_to(mask, (batch, sources * prod(each) // rows, rows, mask.shape[-1]))


def _hidden(op: Attention, rows: int, total: int) -> Array | None:
    """Return which keys a row does not see because of positions; None if it sees all."""
    if not op.is_causal and op.left_window_size < 0 and op.right_window_size < 0:
        return None
    return ~seen_keys(op, np.arange(rows)[:, np.newaxis], np.arange(total))


@record
class _Operands:
    """The operands of one block.

    Attributes:
        work: for scaled queries and scores, in the compute dtype.
        q: queries [key heads, query heads per key head, rows, size].
        k: keys [key heads, 1, total, size].
        v: values likewise.
        out: the result, with the layout of the queries.
        mask: additive or boolean; may be shorter than the keys.
    """

    work: tuple[Array, Array]
    q: Array
    k: Array
    v: Array
    out: Array
    mask: Array | None

    @property
    def is_plain(self) -> bool:
        """Whether nothing needs conversion to the compute dtype."""
        dtype = self.work[1].dtype
        return self.k.dtype == self.v.dtype == self.out.dtype == dtype

    def among(self, keys: slice, valid: int) -> _Operands:
        """Return the same for some keys, with the values of those before `valid`.

        Later ones may be anything, including NaN.
        """
        queries, scores = self.work
        return replace(
            self,
            work=(queries, scores[..., : keys.stop - keys.start]),
            k=self.k[..., keys, :],
            v=self.v[..., keys.start : valid, :],
            mask=None if self.mask is None else self.mask[..., keys],
        )


class _FirstKeys:
    """Attention to the first keys, as many as `lengths` says at run time.

    Its calls are kept for the next run, which may see as many.

    Args:
        op: the operator.
        operands: of the block.
        lengths: number of keys of its sample, [1].
        rows: of the sample.
        part: the rows of the block.
    """

    __slots__ = ("_calls", "_lengths", "_of_block", "_valid")

    def __init__(
        self, op: Attention, operands: _Operands, lengths: Array, rows: int, part: slice
    ) -> None:
        self._of_block = op, operands, rows, part
        self._lengths = lengths
        self._valid: int | None = None
        self._calls: Tape = []

    def __call__(self) -> None:
        valid = self._lengths.item()
        if valid != self._valid:
            self._valid = None  # until the calls are made
            self._calls = _among_first(*self._of_block, valid)
            self._valid = valid
        for call in self._calls:
            call()

    def once(self) -> None:
        """Attend without keeping the calls."""
        for call in _among_first(*self._of_block, self._lengths.item()):
            call()


def _among_first(op: Attention, operands: _Operands, rows: int, part: slice, valid: int) -> Tape:
    """Return the calls of attention to as many keys as there are, up to `valid`."""
    total, first = operands.k.shape[-2], 0
    valid = min(max(valid, 0), total)
    end = min(total, max(1, -(-valid // GROUP)) * GROUP)
    if op.left_window_size >= 0:
        first = max(0, valid - rows - op.left_window_size) // GROUP * GROUP
    shown = operands.among(slice(first, end), valid)
    ones = np.ones(end - first, operands.work[1].dtype)
    if rows == 1:  # whose keys are adjacent
        start = max(0, valid - 1 - op.left_window_size) if op.left_window_size >= 0 else 0
        ranges = slice(0, start - first), slice(valid - first, end - first)
        unseen = [part for part in ranges if part.start < part.stop]
        return _tape(op, shown, unseen, ones)
    keys = np.arange(first, end)
    queries = np.arange(part.start, part.stop)[:, np.newaxis] + (valid - rows)
    seen = seen_keys(op, queries, keys) & (keys < valid)
    return _tape(op, shown, None if seen.all() else ~seen, ones)


def _attend(op: Attention, operands: _Operands, hidden: Array | None, ones: Array) -> None:
    """Compute softmax(scale * q @ k' + mask) @ v of a block."""
    for call in _tape(op, operands, hidden, ones):
        call()


def _tape(
    op: Attention, operands: _Operands, hidden: Array | Sequence[slice] | None, ones: Array
) -> Tape:
    """Return the calls of `_attend`, given as many ones as there are keys.

    What is hidden may be ranges of keys, from all rows.
    """
    queries, scores = operands.work
    q, mask, dtype = operands.q, operands.mask, scores.dtype
    scale = q.shape[-1] ** -0.5 if op.scale is None else op.scale
    factor = np.array(scale, dtype)
    tape: Tape = [partial(np.multiply, q, factor, out=queries, casting="same_kind")]
    if operands.is_plain:
        tape.append(recorded(queries, operands.k.swapaxes(-1, -2), scores))
    else:
        tape.append(partial(_score, queries, operands.k, scores))
    if op.softcap > 0:
        cap = np.array(op.softcap, dtype)
        tape += [
            partial(np.divide, scores, cap, scores),
            partial(np.tanh, scores, scores),
            partial(np.multiply, scores, cap, scores),
        ]
    if mask is not None:
        tape.append(partial(_add_mask, scores, mask))
    if isinstance(hidden, np.ndarray):
        tape.append(partial(np.copyto, scores, -np.inf, where=hidden))
    elif hidden:
        tape += [partial(scores[..., keys].fill, -np.inf) for keys in hidden]
    is_masked = mask is not None or isinstance(hidden, np.ndarray) or bool(hidden)
    return tape + _weighted(operands, ones, is_masked=is_masked)


def _weighted(operands: _Operands, ones: Array, *, is_masked: bool) -> Tape:
    """Return the calls that compute softmax(scores) @ v; of rows that see no key, zeros."""
    scores, out = operands.work[1], operands.out
    peak, total = np.empty((2, *scores.shape[:-1], 1), scores.dtype)
    tape: Tape = [
        partial(np.maximum.reduce, scores, -1, None, peak, keepdims=True, initial=-np.inf)
    ]
    if is_masked:
        tape.append(partial(_replace, peak, -np.inf, 0))
    tape += [
        partial(np.subtract, scores, peak, scores),
        partial(np.exp, scores, scores),
        partial(np.vecdot, scores, ones, total[..., 0]),
    ]
    if is_masked:
        tape.append(partial(_replace, total, 0, 1))
    if not operands.is_plain:
        return [*tape, partial(_weigh, scores, operands.v, total, out)]
    tape.append(recorded(scores[..., : operands.v.shape[-2]], operands.v, out))
    return [*tape, partial(np.divide, out, total, out)]


def _score(queries: Array, keys: Array, scores: Array) -> None:
    """Compute q @ k' of keys in another dtype."""
    recorded(queries, keys.astype(scores.dtype, copy=False).swapaxes(-1, -2), scores)()


def _weigh(scores: Array, values: Array, total: Array, out: Array) -> None:
    """Compute scores / total @ v of values in another dtype."""
    elements = values.astype(scores.dtype, copy=False)
    found = multiply(scores[..., : elements.shape[-2]], elements)
    np.divide(found, total, out=out, casting="same_kind")


def _replace(x: Array, old: float, new: float) -> None:
    np.copyto(x, new, where=x == old)


def _add_mask(scores: Array, mask: Array) -> None:
    """Apply a mask; keys beyond it are hidden."""
    own = scores[..., : mask.shape[-1]]
    if mask.dtype == bool_:
        np.copyto(own, -np.inf, where=~mask)
    else:
        np.add(own, mask, out=own, casting="same_kind")
    scores[..., mask.shape[-1] :] = -np.inf
