"""Reductions; half floats are summed in float32, integers exactly in their own dtype."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ....runtime.base.guard import check_time
from ....runtime.ir.dtypes import float32, float64, int64
from ....runtime.ir.types import Array
from ....runtime.ops import reduce as ops
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine.apply import left_to_kernel
from ..engine.chain import Chain
from ..engine.registry import builder, kernel
from ..engine.step import Bound, HostStep, Tape
from ..numerics.calls import calling
from ..numerics.convert import greatest, lowest
from ..numerics.halves import widened
from ..numerics.short_rows import reduced, takes_columns

#: Elements of a row, and of all rows of a step, from which rows are accumulated as a whole; those
#: between the ends of an axis that share the cache, and those between two checks of the deadline.
LONGEST, WORTH, NEAR, UNCHECKED = 64, 128, 32, 1 << 20
#: Maximum elements of short rows that are combined column by column.
COLUMNS = 4

Reducer = Callable[[Array, tuple[int, ...]], Array]


def _real(x: Array) -> Array:
    """Return integers as float64, for functions without integer results."""
    return x.astype(float64) if x.dtype.kind in "iu" else widened(x)


def _is_last(x: Array, axes: tuple[int, ...]) -> bool:
    return axes == (x.ndim - 1,)


def _sum(x: Array, axes: tuple[int, ...]) -> Array:
    if _is_last(x, axes):
        return reduced(np.add, x)
    return np.sum(x, axes, dtype=x.dtype, keepdims=True)


def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    top = np.max(x, axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    return np.log(_sum(np.exp(x - top), axes)) + top


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    count = prod(x.shape[axis] for axis in axes)
    if x.dtype.kind in "iu":
        return np.trunc(_sum(x.astype(float64), axes) / max(1, count))
    return _sum(x, axes) / x.dtype.type(count)


def _product(x: Array, axes: tuple[int, ...]) -> Array:
    if _is_last(x, axes):
        return reduced(np.multiply, x)
    return np.prod(x, axes, dtype=x.dtype, keepdims=True)


def _max(x: Array, axes: tuple[int, ...]) -> Array:
    if _is_last(x, axes):
        return reduced(np.maximum, x, initial=lowest(x.dtype))
    return np.max(x, axes, keepdims=True, initial=lowest(x.dtype))


def _min(x: Array, axes: tuple[int, ...]) -> Array:
    if _is_last(x, axes):
        return reduced(np.minimum, x, initial=greatest(x.dtype))
    return np.min(x, axes, keepdims=True, initial=greatest(x.dtype))


REDUCERS: dict[type[ops.Reduce], Reducer] = {
    ops.ReduceL1: lambda x, axes: _sum(np.abs(x), axes),
    ops.ReduceL2: lambda x, axes: np.sqrt(_sum(np.square(_real(x)), axes)),
    ops.ReduceLogSum: lambda x, axes: np.log(_sum(_real(x), axes)),
    ops.ReduceLogSumExp: lambda x, axes: _log_sum_exp(_real(x), axes),
    ops.ReduceMax: _max,
    ops.ReduceMean: _mean,
    ops.ReduceMin: _min,
    ops.ReduceProd: _product,
    ops.ReduceSum: _sum,
    ops.ReduceSumSquare: lambda x, axes: _sum(np.square(x), axes),
}


@kernel(*REDUCERS)
def reduce(op: ops.Reduce, data: Array, axes: Array | None = None, *, out: Array) -> None:
    """Reduce along some axes."""
    given = None if axes is None else tuple(int(axis) for axis in axes.reshape(-1))
    along = op.axes(given, data.ndim)
    wide = data if isinstance(op, ops.ReduceMax | ops.ReduceMin) else widened(data)
    np.copyto(out, REDUCERS[type(op)](wide, along).reshape(out.shape), casting="unsafe")


#: Reductions that are one call of numpy, and the functions that combine two elements.
UFUNCS: dict[type[ops.Reduce], np.ufunc] = {
    ops.ReduceMax: np.maximum,
    ops.ReduceMean: np.add,
    ops.ReduceMin: np.minimum,
    ops.ReduceProd: np.multiply,
    ops.ReduceSum: np.add,
}


@builder(*UFUNCS)
def reduce_in_place(chain: Chain, site: BuildContext, options: Options) -> HostStep:
    """Reduce single and double precision along constant axes right into the result."""
    op, (data, *others) = chain.head.op, chain.head.inputs
    assert isinstance(op, ops.Reduce)
    assert data is not None
    given = others[0] if others else None
    axes = np.zeros(0, int64) if given is None else given.data
    if axes is None or data.tensor.dtype not in (float32, float64):
        return left_to_kernel(chain, site)
    dims = data.tensor.dims
    along = op.axes(tuple(int(axis) for axis in axes.reshape(-1)), len(dims))
    if along == (len(dims) - 1,) and takes_columns(UFUNCS[type(op)], dims, data.tensor.dtype):
        if dims[-1] <= COLUMNS:
            return HostStep(chain.title, site, partial(_record_columns, chain))
        return left_to_kernel(chain, site)
    return HostStep(chain.title, site, partial(_record, chain, along))


def _record_columns(chain: Chain, bound: Bound) -> list[Tape]:
    """Record the calls that combine the few columns of many rows, in the order of a row."""
    op, x = chain.head.op, bound[chain.nodes[0].distinct_reads[0]]
    target = bound[chain.output].reshape(x.shape[:-1])
    assert isinstance(op, ops.Reduce)
    function = UFUNCS[type(op)]
    first, *others = (x[..., place] for place in range(x.shape[-1]))
    tape: Tape = []
    for column in others:
        tape.append(calling(function, first, column, out=target))
        first = target
    return [tape + _averaged(op, x.shape[-1], target)]


def _averaged(op: ops.Reduce, count: int, sums: Array) -> Tape:
    """Return the call that makes sums of so many elements means, if they are to be."""
    if not isinstance(op, ops.ReduceMean):
        return []
    return [partial(np.divide, sums, np.array(count, sums.dtype), sums)]


def _record(chain: Chain, along: tuple[int, ...], bound: Bound) -> list[Tape]:
    """Record the call, which combines the same elements in the same order as `reduce`."""
    op, x, out = chain.head.op, bound[chain.nodes[0].distinct_reads[0]], bound[chain.output]
    assert isinstance(op, ops.Reduce)
    kept = [1 if axis in along else size for axis, size in enumerate(x.shape)]
    target = out.reshape(kept)
    limits = {ops.ReduceMax: lowest, ops.ReduceMin: greatest}
    limit = limits.get(type(op))
    initial = {} if limit is None else {"initial": limit(x.dtype)}
    function = UFUNCS[type(op)]
    tape: Tape = [partial(function.reduce, x, along, x.dtype, target, True, **initial)]
    return [tape + _averaged(op, prod(x.shape[axis] for axis in along), target)]


@kernel(ops.ArgMax, ops.ArgMin)
def arg_reduce(op: ops.ArgReduce, data: Array) -> Array:
    """Return the index of the largest or smallest element along an axis."""
    find: Any = np.argmax if isinstance(op, ops.ArgMax) else np.argmin
    if not op.select_last_index:
        return find(data, op.axis, keepdims=bool(op.keepdims))
    mirrored = find(np.flip(data, op.axis), op.axis, keepdims=bool(op.keepdims))
    return data.shape[op.axis] - 1 - mirrored


@kernel(ops.CumSum, ops.CumProd)
def cumulate(op: ops.Cumulative, x: Array, axis: Array, *, out: Array) -> None:
    """Return cumulative sums or products along an axis."""
    function = np.add if isinstance(op, ops.CumSum) else np.multiply
    along = int(axis.reshape(-1)[0])
    data, result = (np.moveaxis(array, along, 0) for array in (widened(x), out))
    if op.reverse:
        data, result = data[::-1], result[::-1]
    totals = result if result.dtype == data.dtype else np.empty(data.shape, data.dtype)
    terms, sums = data, totals
    if op.exclusive:
        totals[:1] = 0 if isinstance(op, ops.CumSum) else 1
        terms, sums = data[:-1], totals[1:]
    inner, others = prod(x.shape[along:][1:]), x.size // max(1, x.shape[along])
    if (inner >= LONGEST and others >= WORTH) or (others >= LONGEST and len(data) * inner <= NEAR):
        _accumulate_rows(function, terms, sums)
    else:
        function.accumulate(terms, 0, data.dtype, out=sums)
    if totals is not result:
        np.copyto(result, totals, casting="same_kind")


def _accumulate_rows(function: np.ufunc, terms: Array, out: Array) -> None:
    """Accumulate along the first axis, which numpy does column by column, row by row."""
    out[:1] = terms[:1]
    step = max(1, UNCHECKED // max(1, terms[:1].size))
    for first in range(0, len(terms) - 1, step):
        check_time()
        sums = [*out[first : first + step + 1]]
        rows = [*terms[first + 1 : first + step + 1]]
        deque(map(function, sums[:-1], rows, sums[1:]), 0)
