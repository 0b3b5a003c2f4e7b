"""Operators that read or write elements by index."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ....runtime.ir.op import Op
from ....runtime.ir.types import Array
from ....runtime.ops import gather as ops
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine.apply import record_kernel
from ..engine.chain import Chain
from ..engine.registry import KERNELS, builder, kernel
from ..engine.step import Bound, HostStep, Tape

#: Elements of a slice from which slices are combined as a whole if none occurs twice.
WIDE = 8
#: Maximum number of constant indices that a plan keeps as places.
MOST = 1 << 20


def _from_front(indices: Array, size: int, what: str = "indices") -> Array:
    """Return indices counted from the front; raises IndexError if out of range."""
    if not indices.size:
        return indices
    low, high = indices.min(), indices.max()
    if low < -size or high >= size:
        found = f"{low} to {high}"
        raise IndexError(f"{what} run from {found}, outside of an axis of {size} elements")
    return indices if low >= 0 else np.where(indices < 0, indices + size, indices)


@kernel(ops.Gather)
def gather(op: ops.Gather, data: Array, indices: Array, *, out: Array) -> None:
    """Take slices along an axis."""
    places = _from_front(indices, data.shape[op.axis])
    np.take(data, places, op.axis, out, "clip")  # which are checked; numpy would make a copy


@kernel(ops.GatherElements)
def gather_elements(op: ops.GatherElements, data: Array, indices: Array, *, out: Array) -> None:
    """Take the element with the given index along an axis at each position."""
    _gather(data, _along(op.axis, data, indices), out)


def _along(axis: int, data: Array, indices: Array) -> tuple[Array, ...]:
    """Return the full index of every element of `indices` along `axis`."""
    grid: list[Any] = list(np.ogrid[tuple(slice(size) for size in indices.shape)])
    grid[axis] = _from_front(indices, data.shape[axis])
    return tuple(grid)


@kernel(ops.GatherND)
def gather_nd(op: ops.GatherND, data: Array, indices: Array, *, out: Array) -> None:
    """Take the slices at the coordinates in the last axis of `indices`."""
    _gather(data, _in_batch(op.batch_dims, data, indices), out)


def _in_batch(count: int, data: Array, indices: Array) -> tuple[Array, ...]:
    """Return full coordinates, with those of the first `count` axes."""
    batch = tuple(np.ogrid[tuple(slice(size) for size in indices.shape[:count])])
    inner = indices.ndim - 1 - count
    lead = tuple(grid.reshape(*grid.shape, *[1] * inner) for grid in batch)
    return (*lead, *_coordinates(data.shape[count:], indices))


def _gather(data: Array, where: tuple[Array, ...], out: Array) -> None:
    """Take slices at coordinates of the first axes."""
    if not where or not out.size:
        np.copyto(out, data[where])
        return
    places, inner = _places(data.shape, where), data.shape[len(where) :]
    rows = data.reshape(prod(data.shape[: len(where)]), *inner)
    np.take(rows, places, 0, out, "clip")


def _places(shape: tuple[int, ...], where: tuple[Array, ...]) -> Array:
    """Return the index of slices at coordinates of the first axes, if these were one axis.

    One index for each element is several times as fast as coordinates.
    """
    steps = [prod(shape[i + 1 : len(where)]) for i in range(len(where))]
    places: Array = np.zeros((), np.intp)
    for at, step in zip(where, steps, strict=True):
        places = places + at.astype(np.intp, copy=False) * step
    return places


def _coordinates(shape: tuple[int, ...], indices: Array) -> tuple[Array, ...]:
    columns = range(indices.shape[-1])
    return tuple(_from_front(indices[..., i], shape[i], f"coordinates {i}") for i in columns)


_REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _scatter(out: Array, where: tuple[Array, ...], updates: Array, reduction: str) -> None:
    """Write or combine slices of `out` at coordinates of its first axes, in order."""
    if not where or not updates.size:
        if reduction == "none":
            out[where] = updates
        else:
            _REDUCTIONS[reduction].at(out, where, updates)
        return
    places, inner = _places(out.shape, where).reshape(-1), prod(out.shape[len(where) :])
    rows, added = out.reshape(-1, inner, copy=False), updates.reshape(-1, inner)
    combine = _REDUCTIONS.get(reduction)
    if combine is None:
        rows[places] = added
    elif inner >= WIDE and np.unique(places).size == places.size:
        rows[places] = combine(rows[places], added)
    else:
        each = places[:, np.newaxis] * inner + np.arange(inner)
        combine.at(out.reshape(-1, copy=False), each.reshape(-1), updates.reshape(-1))


@kernel(ops.ScatterElements)
def scatter_elements(
    op: ops.ScatterElements, data: Array, indices: Array, updates: Array, *, out: Array
) -> None:
    """Write elements at indices along an axis."""
    np.copyto(out, data)
    _scatter(out, _along(op.axis, data, indices), updates, op.reduction)


@kernel(ops.ScatterND)
def scatter_nd(
    op: ops.ScatterND, data: Array, indices: Array, updates: Array, *, out: Array
) -> None:
    """Write slices at coordinates; without these, the whole tensor."""
    np.copyto(out, data)
    if not indices.shape[-1]:
        out, indices = out[np.newaxis], np.zeros((*indices.shape[:-1], 1), np.int64)
    _scatter(out, _coordinates(out.shape, indices), updates, op.reduction)


@kernel(ops.TensorScatter, in_place=True)
def tensor_scatter(
    op: ops.TensorScatter, cache: Array, update: Array, first: Array | None = None, *, out: Array
) -> None:
    """Write a range of each batch entry of a cache."""
    if out.ctypes.data != cache.ctypes.data:
        np.copyto(out, cache)
    target, source = out.swapaxes(op.axis, 1), update.swapaxes(op.axis, 1)
    count, room = source.shape[1], target.shape[1]
    for i, start in enumerate([0] * len(cache) if first is None else first.tolist()):
        if 0 <= start <= room - count:
            target[i, start : start + count] = source[i]
            continue
        places = np.arange(start, start + count)
        target[i, places % room if op.mode == "circular" else _from_front(places, room)] = source[i]


@kernel(ops.OneHot)
def one_hot(op: ops.OneHot, indices: Array, depth: Array, values: Array, *, out: Array) -> None:
    """Write `values[1]` at the index, `values[0]` elsewhere."""
    size = out.shape[op.axis]
    places = np.expand_dims(indices.astype(np.int64), op.axis)
    line = np.arange(size).reshape([-1 if i == op.axis % out.ndim else 1 for i in range(out.ndim)])
    np.copyto(
        out, np.where(np.where(places < 0, places + size, places) == line, values[1], values[0])
    )


@kernel(ops.Compress)
def compress(op: ops.Compress, data: Array, condition: Array) -> Array:
    """Take the slices where the condition is true."""
    axis, data = (0, data.reshape(-1)) if op.axis is None else (op.axis, data)
    places = _from_front(np.flatnonzero(condition), data.shape[axis], "places of the condition")
    return np.take(data, places, axis)


# ── constant indices ─────────────────────────────────────────────────────────────────────────────


@builder(ops.Gather, ops.GatherElements, ops.GatherND, ops.ScatterElements, ops.ScatterND)
def at_constant_places(chain: Chain, site: BuildContext, options: Options) -> HostStep:
    """Check constant indices once, and read or write a range of them as a slice."""
    node, kernel = chain.head, KERNELS[type(chain.head.op)]
    _, indices, _ = chain.operands

    def record(bound: Bound) -> list[Tape]:
        if indices.is_constant and 0 < indices.tensor.size <= MOST:
            arrays = [bound[value] for value in node.inputs if value is not None]
            try:
                return [_recorded(node.op, *arrays, out=bound[node.output])]
            except IndexError:
                pass  # which the run reports
        return [record_kernel(node, kernel, bound)]

    return HostStep(node.kind, site, record)


def _recorded(op: Op, data: Array, indices: Array, *updates: Array, out: Array) -> Tape:
    """Return the calls for indices that do not change; raises IndexError if one is out of range."""
    if isinstance(op, ops.Gather):
        places = _from_front(indices, data.shape[op.axis])
        return [taking(data, places, op.axis, out)]
    if isinstance(op, ops.GatherElements | ops.ScatterElements):
        where = _along(op.axis, data, indices)
    elif isinstance(op, ops.GatherND):
        where = _in_batch(op.batch_dims, data, indices)
    else:
        where = _coordinates(data.shape, indices)
    places, inner = _places(data.shape, where), data.shape[len(where) :]
    if not updates:
        return [taking(data.reshape(-1, *inner), places, 0, out)]
    tape: Tape = [partial(np.copyto, out, data)]
    added, part = updates[0].reshape(-1, prod(inner)), _as_slice(places)
    rows = out.reshape(-1, prod(inner), copy=False)
    assert isinstance(op, ops.ScatterElements | ops.ScatterND)
    combine = _REDUCTIONS.get(op.reduction)
    if not added.size:
        return tape
    if part is not None and combine is None:
        return [*tape, partial(np.copyto, rows[part], added)]
    if part is not None and combine is not None:
        return [*tape, partial(combine, rows[part], added, out=rows[part])]
    if combine is None:
        return [*tape, partial(rows.__setitem__, places.reshape(-1), added)]
    return [*tape, partial(_scatter, out, where, updates[0], op.reduction)]


def taking(data: Array, places: Array, axis: int, out: Array) -> Callable[[], object]:
    """Return the call that takes slices along an axis."""
    part = _as_slice(places)
    if part is None:
        return partial(np.take, data, places, axis, out, "clip")
    view = data[(slice(None),) * (axis % data.ndim) + (part,)]
    return partial(np.copyto, out.reshape(view.shape, copy=False), view)


def _as_slice(places: Array) -> slice | None:
    """Return places that ascend in equal steps as a slice; None for others."""
    each = places.reshape(-1)
    steps = np.diff(each)
    step = int(steps[0]) if steps.size else 1
    if step <= 0 or (steps != step).any():
        return None
    return slice(int(each[0]), int(each[-1]) + 1, step)
