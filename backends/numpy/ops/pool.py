"""Pooling: windows are reduced axis by axis, by a few calls on shifted views.

Where that is faster, all images of a block are one row: see `sliding`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ....runtime.base.guard import need
from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, DType, bfloat16, float16, float32, float64, int64
from ....runtime.ir.graph import Value
from ....runtime.ir.types import Array
from ....runtime.ops.pool import (
    AveragePool,
    GlobalAveragePool,
    GlobalLpPool,
    GlobalMaxPool,
    LpPool,
    MaxPool,
    MaxUnpool,
)
from ....runtime.ops.window import transposed_window, window
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.blocking import blocks
from ..engine.chain import Chain
from ..engine.cost import ELEMENT
from ..engine.registry import builder, kernel
from ..engine.step import Bound, HostStep, ScratchLayout, Tape, portions
from ..numerics.convert import lowest
from ..numerics.halves import store
from ..windows.sliding import Sliding
from ..windows.window_axis import WindowAxis, axes_of_window

#: Elements of the input per block.
BLOCK = 1 << 17
#: Bytes per window element needed during planning.
TAP = 256
#: Maximum pixels per channel that are summed one by one: pairwise sums start slowly.
FEW_PIXELS = 1024

#: A function of source and target.
Map = Callable[[Array, Array], object]


@record
class Reduction:
    """The reduction of a window.

    Attributes:
        ufunc: combines two elements.
        start: its neutral element.
        dtype: the compute dtype.
        prepare: applied to a block of the input first; None if not needed.
        finish: applied to a reduced block last; in place if nothing is prepared.
    """

    ufunc: np.ufunc
    start: Any
    dtype: DType
    prepare: Map | None = None
    finish: Map | None = None

    def slide(
        self, tape: Tape, axis: WindowAxis, number: int, source: Array, target: Array
    ) -> None:
        """Record the calls that reduce the windows along an axis of `source` into `target`."""
        lead = (slice(None),) * number
        need(axis.kernel * TAP, "the taps of a window")
        taps = [axis.tap(k) for k in range(axis.kernel)]
        if axis.output == 1 and axis.dilation == 1:
            inside = slice(max(0, -axis.begin), axis.kernel - axis.begin)
            part = source[(*lead, inside)]
            tape.append(partial(self.ufunc.reduce, part, number, out=target, keepdims=True))
            return
        everywhere = slice(0, axis.output)
        first, *rest = sorted(taps, key=lambda tap: tap[0] != everywhere)
        if first[0] == everywhere:
            tape.append(partial(np.copyto, target, source[(*lead, first[1])]))
            if rest and rest[0][0] == everywhere:
                pair = (source[(*lead, first[1])], source[(*lead, rest.pop(0)[1])])
                tape[-1] = partial(self.ufunc, *pair, out=target)
        else:
            tape.append(partial(target.fill, self.start))
            rest.append(first)
        for at, part in rest:
            if at.start < at.stop:
                result = target[(*lead, at)]
                tape.append(partial(self.ufunc, result, source[(*lead, part)], out=result))


def axes_of(op: Any, spatial: tuple[int, ...]) -> tuple[WindowAxis, ...]:
    """Return the windows of a pooling, axis by axis."""
    return axes_of_window(window(op, spatial, op.kernel_shape), spatial)


class Pooling:
    """A pooling operator, cut into blocks of channels."""

    def __init__(
        self, chain: Chain, axes: tuple[WindowAxis, ...], reduction: Reduction, options: Options
    ) -> None:
        self.chain, self.axes, self.reduction = chain, axes, reduction
        self.x, self.y = _ends(chain)
        self.workers = thread_pool.size()
        self.planes, spatial = prod(self.x.tensor.dims[:2]), self.x.tensor.dims[2:]
        self.sliding = self._slides(options.workspace)
        if self.sliding is not None:
            spatial = self.sliding.dims
            count, maximum = self.sliding.pieces, prod(spatial)
        else:
            between = self._between(spatial)
            count, maximum = min(2, len(between)), max(between, default=0)
        together = BLOCK // max(1, prod(spatial))
        if options.workspace is not None:
            plane = count * maximum * reduction.dtype.itemsize
            together = min(together, options.workspace // self.workers // max(1, plane))
        self.together = max(1, min(together, self.planes))
        self.scratch = ScratchLayout()
        size = self.together * maximum
        self.pieces = [self.scratch.take(size, reduction.dtype) for _ in range(count)]

    def _slides(self, limit: int | None) -> Sliding | None:
        """Return the windows for calls on whole rows.

        None if calls axis by axis are faster, or an image exceeds a workspace of `limit` bytes.
        """
        need(sum(axis.kernel for axis in self.axes) * TAP, "the taps of a window")
        if self.reduction.prepare is not None or not self.axes:
            return None
        sliding = Sliding(self.axes)
        nbytes = sliding.pieces * prod(sliding.dims) * self.reduction.dtype.itemsize
        fits = limit is None or nbytes * self.workers <= limit
        return sliding if fits and sliding.nanoseconds < sliding.by_axis else None

    def _between(self, spatial: tuple[int, ...]) -> list[int]:
        """Return the elements per plane of each intermediate array."""
        sizes = [prod(spatial)] if self.reduction.prepare is not None else []
        for i, axis in enumerate(self.axes, 1):
            if not axis.is_trivial:
                outputs = (done.output for done in self.axes[:i])
                sizes.append(prod(outputs) * prod(spatial[i:]))
        reaches_result = self.y.tensor.dtype == self.reduction.dtype
        has_work = any(not axis.is_trivial for axis in self.axes)
        return sizes[:-1] if reaches_result and has_work else sizes

    def step(self, site: BuildContext) -> HostStep:
        """Return the step."""
        name = f"{self.chain.title} {'x'.join(str(axis.kernel) for axis in self.axes)}"
        return HostStep(name, site, self._record, self.workers, self.scratch.nbytes)

    def _record(self, bound: Bound) -> list[Tape]:
        tapes: list[Tape] = []
        x, y = bound[self.x], bound[self.y]
        x, y = (data.reshape(self.planes, *data.shape[2:]) for data in (x, y))
        for (planes,) in blocks((self.planes,), self.together):
            tapes.append(self._pool(bound, x[planes], y[planes]))
        return portions(tapes, self._nanoseconds(), self.workers)

    def _nanoseconds(self) -> float:
        if self.sliding is not None:
            return self.planes * self.sliding.nanoseconds
        size, calls = float(self.x.tensor.size), 0.0
        for axis in self.axes:
            size *= axis.output / max(1, axis.size)
            calls += size * axis.kernel
        return ELEMENT * calls

    def _pool(self, bound: Bound, data: Array, out: Array) -> Tape:
        tape: Tape = []
        reduction = self.reduction
        if self.sliding is not None:
            size = len(data) * prod(self.sliding.dims)
            arrays = [bound.scratch(piece, (size,)) for piece in self.pieces]
            found = self.sliding.record(tape, reduction.ufunc, reduction.start, data, arrays)
            tape.append(partial(np.copyto, out, found))
            if reduction.finish is not None:
                tape.append(partial(reduction.finish, out, out))
            return tape
        pieces = self._pieces()
        if reduction.prepare is not None:
            prepared = bound.scratch(next(pieces), data.shape)
            tape.append(partial(reduction.prepare, data, prepared))
            data = prepared
        work = [(i, axis) for i, axis in enumerate(self.axes, 1) if not axis.is_trivial]
        for number, axis in work:
            shape = (*data.shape[:number], axis.output, *data.shape[number + 1 :])
            is_last = number == work[-1][0] and out.dtype == reduction.dtype
            target = out if is_last else bound.scratch(next(pieces), shape)
            reduction.slide(tape, axis, number, data, target)
            data = target
        if reduction.finish is not None:
            tape.append(partial(reduction.finish, data, out))
        elif data is not out:
            tape.append(partial(np.copyto, out, data))
        return tape

    def _pieces(self) -> Iterator[Any]:
        while True:
            yield from self.pieces


def _copy(data: Array, out: Array) -> None:
    store(out, data)


def _sums_of(dtype: DType) -> DType:
    return float32 if dtype in (float16, bfloat16) else dtype


def _ends(chain: Chain) -> tuple[Value, Value]:
    x = chain.head.inputs[0]
    if x is None:
        raise ValueError(f"'{chain.head.name}' lacks its input")
    return x, chain.head.output


@builder(MaxPool)
def max_pool(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Maximum of each window, and optionally its position."""
    op, (x, _) = chain.head.op, _ends(chain)
    assert isinstance(op, MaxPool)
    axes = axes_of(op, x.tensor.dims[2:])
    if any(value in site.outputs for value in chain.head.outputs[1:]):
        return HostStep(chain.title, site, partial(_record_argmax, chain, axes, op.storage_order))
    dtype = _sums_of(x.tensor.dtype)
    reduction = Reduction(np.maximum, lowest(dtype), dtype)
    if dtype != x.tensor.dtype:  # numpy compares halves one by one
        reduction = replace(reduction, prepare=_copy, finish=_copy)
    return Pooling(chain, axes, reduction, options).step(site)


def _record_argmax(
    chain: Chain, axes: tuple[WindowAxis, ...], storage_order: int, bound: Bound
) -> list[Tape]:
    x, _ = _ends(chain)
    values, places = chain.head.outputs
    best = bound.get(values)
    if best is None:
        best = np.empty(values.tensor.dims, values.tensor.dtype)
    return [[partial(_argmax, bound[x], axes, storage_order, best, bound[places])]]


def _argmax(
    x: Array, axes: tuple[WindowAxis, ...], storage_order: int, best: Array, places: Array
) -> None:
    """Fill `best` and `places` tap by tap; of equal elements the first counts, of NaNs the last."""
    best.fill(lowest(x.dtype))
    places.fill(-1)
    plane = np.arange(x.size).reshape(x.shape)
    if storage_order:
        spatial = x.shape[2:]
        inner = np.arange(prod(spatial)).reshape(spatial, order="F")
        plane = plane.reshape(*x.shape[:2], -1)[:, :, :1].reshape(*x.shape[:2], *[1] * len(axes))
        plane = plane + inner
    for taps in product(*(range(axis.kernel) for axis in axes)):
        pairs = [axis.tap(k) for axis, k in zip(axes, taps, strict=True)]
        at = (..., *(pair[0] for pair in pairs))
        part = (..., *(pair[1] for pair in pairs))
        found = x[part]
        better = (found > best[at]) | (found != found) | (places[at] < 0)
        np.copyto(best[at], found, where=better)
        np.copyto(places[at], plane[part], where=better)


@builder(AveragePool, dtypes=FLOATS)
def average_pool(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Mean of each window."""
    op, (x, _) = chain.head.op, _ends(chain)
    assert isinstance(op, AveragePool)
    axes = axes_of(op, x.tensor.dims[2:])
    need(sum(axis.kernel * axis.output for axis in axes) * int64.itemsize, "counts of elements")
    count = np.ones(())
    for axis in axes:
        count = count[..., None] * axis.counts(bool(op.count_include_pad))
    dtype = _sums_of(x.tensor.dtype)
    divisor = count.astype(dtype) if np.ptp(count) else dtype.type(count.flat[0])

    def finish(sums: Array, out: Array) -> None:
        np.true_divide(sums, divisor, out)

    prepare = None if dtype == x.tensor.dtype else _copy
    reduction = Reduction(np.add, 0, dtype, prepare, finish)
    return Pooling(chain, axes, reduction, options).step(site)


@builder(LpPool, dtypes=FLOATS)
def lp_pool(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """p-norm of each window."""
    op, (x, _) = chain.head.op, _ends(chain)
    assert isinstance(op, LpPool)

    def prepare(data: Array, out: Array) -> None:
        np.abs(data, out=out)
        np.power(out, op.p, out=out)

    def finish(sums: Array, out: Array) -> None:
        np.copyto(out, np.power(sums, 1 / op.p))

    axes = axes_of(op, x.tensor.dims[2:])
    reduction = Reduction(np.add, 0, _sums_of(x.tensor.dtype), prepare, finish)
    return Pooling(chain, axes, reduction, options).step(site)


@kernel(GlobalAveragePool)
def global_average_pool(op: GlobalAveragePool, x: Array, *, out: Array) -> None:
    """Mean of each channel."""
    rows = x.reshape(*x.shape[:2], prod(x.shape[2:]))
    means = out.reshape(x.shape[:2])
    if 0 < rows.shape[2] <= FEW_PIXELS and x.dtype in (float32, float64):
        np.einsum("ncp->nc", rows, out=means)
        np.true_divide(means, rows.shape[2], out=means)
    else:
        np.mean(rows, axis=2, dtype=_sums_of(x.dtype), out=means)


@kernel(GlobalMaxPool)
def global_max_pool(op: GlobalMaxPool, x: Array, *, out: Array) -> None:
    """Maximum of each channel."""
    rows = x.reshape(*x.shape[:2], prod(x.shape[2:]))
    np.max(rows, axis=2, out=out.reshape(x.shape[:2]))


@kernel(GlobalLpPool)
def global_lp_pool(op: GlobalLpPool, x: Array) -> Array:
    """p-norm of each channel."""
    wide = np.abs(x.astype(_sums_of(x.dtype)))
    axes = tuple(range(2, x.ndim))
    return (np.power(wide, op.p).sum(axes, keepdims=True) ** (1 / op.p)).astype(x.dtype)


@kernel(MaxUnpool)
def max_unpool(
    op: MaxUnpool, x: Array, indices: Array, output_shape: Array | None = None, *, out: Array
) -> None:
    """Write each element where MaxPool found it, zeros elsewhere."""
    natural = (*x.shape[:2], *transposed_window(op, x.shape[2:], op.kernel_shape).output)
    small = np.zeros(natural, x.dtype)
    small.reshape(-1)[indices.reshape(-1)] = x.reshape(-1)
    out.fill(0)
    common = tuple(slice(0, min(a, b)) for a, b in zip(natural, out.shape, strict=True))
    out[common] = small[common]
