"""Operators that read or write elements by index."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ShapeError
from ..ir.dtypes import FLOATS, INTEGERS, bool_, int32, int64
from ..ir.op import Op, op
from ..ir.types import Array, Dim, TensorType
from .propagate import combine, is_small, rearrange
from .shapes import (
    checked,
    need_choice,
    need_rank,
    normalize_axis,
    same_dim,
    same_dtype,
    same_shape,
    shape_text,
)


def counted(indices: Array, *sizes: int) -> Array | None:
    """Return indices counted from the front, int64; None if one of them is outside.

    Args:
        indices: integers.
        sizes: of the axis that they index; or of one axis per column.
    """
    found, limits = indices.astype(np.int64), np.array(sizes, np.int64)
    if ((found < -limits) | (found >= limits)).any():
        return None
    return np.where(found < 0, found + limits, found).reshape(found.shape)


def _known_indices(indices: TensorType, *sizes: Dim, outside: bool = False) -> Array | None:
    """Return small known indices, counted from the front.

    Args:
        indices: any tensor of indices.
        sizes: the axis they index; or one axis per column of `indices`.
        outside: whether those out of range are left to the kernel, which refuses them.

    Raises:
        ShapeError: they are not int32 or int64, or out of range.
    """
    if indices.dtype not in (int32, int64):
        raise ShapeError(f"indices are {indices}; expected int32 or int64")
    known = indices.known if is_small(indices) else None
    exact = [size for size in sizes if isinstance(size, int)]
    if known is None or len(exact) != len(sizes):
        return None
    found = counted(known, *exact)
    if found is None and not outside:
        raise ShapeError(f"indices from {known.min()} to {known.max()} point outside of {exact}")
    return found


@op
class Gather(Op):
    """The slices of `data` along `axis` selected by `indices`."""

    axis: int = 0

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        if data.shape is None or indices.shape is None:
            return data.with_shape(None)
        axis = normalize_axis(self.axis, len(data.shape))
        picked = _known_indices(indices, data.shape[axis])
        shape = data.shape[:axis] + indices.shape + data.shape[axis + 1 :]
        result = data.with_shape(checked(shape))
        if picked is None:
            return result
        return rearrange(result, lambda a: np.take(a, picked, axis), data)


@op
class GatherElements(Op):
    """At each position, the element of `data` with the given index along `axis`."""

    axis: int = 0

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        _align(self.axis, data, indices, "indices")
        result = data.with_shape(indices.shape)
        places = _known_elements(self.axis, data, indices)
        return result if places is None else rearrange(result, lambda a: a[places], data)


def _known_elements(axis: int, data: TensorType, indices: TensorType) -> tuple[Array, ...] | None:
    """Return the coordinates in `data` of elements with these indices along an axis, if known."""
    if data.shape is None or indices.shape is None:
        return None
    along = normalize_axis(axis, len(data.shape))
    picked = _known_indices(indices, data.shape[along], outside=True)
    if picked is None:
        return None
    grid = _places(picked.shape)
    return *grid[:along], picked, *grid[along + 1 :]


def _places(shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Return the coordinates of all elements, broadcastable along each axis."""
    return tuple(
        np.arange(size).reshape([size if i == axis else 1 for i in range(len(shape))])
        for axis, size in enumerate(shape)
    )


def _align(axis: int, data: TensorType, other: TensorType, name: str) -> None:
    """Raise ShapeError unless `other` has the rank of `data` and fits into it beside `axis`."""
    rank = data.rank if other.rank is None else other.rank
    if rank is None:
        return
    along = normalize_axis(axis, rank)
    if data.shape is None or other.shape is None:
        return
    if data.rank != rank:
        raise ShapeError(f"{name} is {other}; expected the rank of {data}")
    for i, (has, takes) in enumerate(zip(data.shape, other.shape, strict=True)):
        if i == along or not isinstance(has, int) or not isinstance(takes, int):
            continue
        if takes > has and 0 not in other.shape:
            raise ShapeError(f"{name} is {other}; axis {i} of {data} has only {has} elements")


@op
class GatherND(Op):
    """The elements or slices of `data` at the coordinates in the last axis of `indices`.

    Attributes:
        batch_dims: leading axes that `data` and `indices` share.
    """

    batch_dims: int = 0

    def infer(self, data: TensorType, indices: TensorType) -> TensorType:
        b = self.batch_dims
        if indices.shape is None:
            return data.with_shape(None)
        if not 0 <= b < len(indices.shape):
            raise ShapeError(f"batch_dims={b} for {indices}; expected less than its rank")
        depth = indices.shape[-1]
        if data.shape is None or not isinstance(depth, int):
            return data.with_shape(None)
        if not 1 <= depth <= len(data.shape) - b:
            raise ShapeError(f"{depth} coordinates after {b} batch axes for {data}")
        batch = same_shape(data.shape[:b], indices.shape[:b], "the batch axes")
        shape = (*(batch or ()), *indices.shape[b:-1], *data.shape[b + depth :])
        result = data.with_shape(checked(shape))
        places = _known_indices(indices, *data.shape[b : b + depth], outside=True)
        if places is None:
            return result
        outer = _places(places.shape[:-1])[:b]
        where = (*outer, *np.moveaxis(places, -1, 0))
        return rearrange(result, lambda a: a[where], data)


@op
class ScatterElements(Op):
    """`data` with `updates` written at the indices along `axis`.

    Attributes:
        reduction: how updates combine with old elements: none, add, mul, max, min.
    """

    axis: int = 0
    reduction: str = "none"

    def infer(self, data: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        need_choice(self.reduction, "reduction", "none", "add", "mul", "max", "min")
        same_dtype(data, updates)
        _align(self.axis, data, indices, "indices")
        same_shape(indices.shape, updates.shape, "indices and updates")
        result, places = data.without_value(), _known_elements(self.axis, data, indices)
        if places is None or self.reduction != "none":
            return result
        return _written(result, places, data, updates)


@op
class ScatterND(Op):
    """`data` with `updates`, elements or slices, written at the coordinates `indices`.

    Without coordinates, an update is of the whole tensor.

    Attributes:
        reduction: how updates combine with old elements: none, add, mul, max, min.
    """

    reduction: str = "none"

    def infer(self, data: TensorType, indices: TensorType, updates: TensorType) -> TensorType:
        need_choice(self.reduction, "reduction", "none", "add", "mul", "max", "min")
        same_dtype(data, updates)
        result = data.without_value()
        depth = indices.shape[-1] if indices.shape else None
        if indices.rank == 0:
            raise ShapeError(f"indices is {indices}; expected one axis or more")
        if data.shape is None or indices.shape is None or not isinstance(depth, int):
            return result
        if depth > len(data.shape):
            raise ShapeError(f"{depth} coordinates into {data}")
        expected = (*indices.shape[:-1], *data.shape[depth:])
        same_shape(updates.shape, expected, "updates and the slices at the indices")
        places = _known_indices(indices, *data.shape[:depth])
        if places is None or not depth or self.reduction != "none":
            return result
        return _written(result, tuple(np.moveaxis(places, -1, 0)), data, updates)


def _written(
    result: TensorType, where: tuple[Array, ...], data: TensorType, updates: TensorType
) -> TensorType:
    """Return `result` with the elements of `data`, and those of `updates` at coordinates."""

    def scatter(arrays: list[Array]) -> Array:
        written = arrays[0].copy()
        written[where] = arrays[1]
        return written

    return combine(result, scatter, data, updates)


@op
class TensorScatter(Op):
    """The cache with `update` written along `axis`, starting at `write_indices` [batch] (0).

    Attributes:
        mode: ``linear``, or ``circular``: positions wrap around.
    """

    axis: int = -2
    mode: str = "linear"

    def infer(
        self, past_cache: TensorType, update: TensorType, write_indices: TensorType | None = None
    ) -> TensorType:
        need_choice(self.mode, "mode", "linear", "circular")
        same_dtype(past_cache, update)
        if write_indices is not None:
            need_rank(write_indices, 1, "write_indices")
        if past_cache.shape is None or update.shape is None:
            return past_cache.without_value()
        shape, axis = past_cache.shape, normalize_axis(self.axis, len(past_cache.shape))
        if axis == 0:
            raise ShapeError(f"axis={self.axis} is the batch axis of {past_cache}")
        if len(update.shape) != len(shape):
            raise ShapeError(f"update is {update}; expected the rank of {past_cache}")
        length, room = update.shape[axis], shape[axis]
        if isinstance(length, int) and isinstance(room, int) and length > room:
            raise ShapeError(f"update is {update}; it is longer than {past_cache} on axis {axis}")
        rest = same_shape(
            shape[:axis] + shape[axis + 1 :],
            update.shape[:axis] + update.shape[axis + 1 :],
            "the other axes of cache and update",
        )
        if rest and write_indices is not None and write_indices.shape:
            same_dim(rest[0], write_indices.shape[0], "the batch and write_indices")
        return past_cache.without_value()


@op
class OneHot(Op):
    """A new axis of size `depth`: `values[1]` at the index, `values[0]` elsewhere."""

    axis: int = -1

    def infer(self, indices: TensorType, depth: TensorType, values: TensorType) -> TensorType:
        need_rank(depth, (0, 1), "depth")
        need_rank(values, 1, "values")
        if values.shape is not None:
            same_dim(values.shape[0], 2, "the number of values and 2")
        if indices.shape is None:
            return values.with_shape(None)
        axis = normalize_axis(self.axis, len(indices.shape) + 1)
        shape = (*indices.shape[:axis], _depth_of(depth), *indices.shape[axis:])
        result = values.with_shape(checked(shape))
        known = indices.known if is_small(indices) else None
        if known is None:
            return result
        return rearrange(result, lambda pair: np.take(pair, _hot(known, axis, result)), values)


def _hot(indices: Array, axis: int, result: TensorType) -> Array:
    """Return 1 where indices point on a new axis of a result, 0 elsewhere."""
    size = result.dims[axis]
    with np.errstate(invalid="ignore"):  # of NaN
        places = np.expand_dims(indices.astype(np.int64), axis)
    line = np.expand_dims(np.arange(size), [i for i in range(places.ndim) if i != axis])
    return (np.where(places < 0, places + size, places) == line).astype(np.intp)


def _depth_of(depth: TensorType) -> Dim:
    if depth.shape not in ((), (1,)):
        if depth.is_static:
            raise ShapeError(f"depth is {depth}; expected one element")
        return None
    if depth.dtype in INTEGERS:
        return None if depth.ints is None else depth.ints[0]
    known: Any = None if depth.known is None else depth.known.reshape(-1)[0]
    if known is None or depth.dtype not in FLOATS:
        return None
    if not np.isfinite(known):
        raise ShapeError(f"depth is {known}")
    return int(known)


@op
class Compress(Op):
    """The slices along `axis` where `condition` is true; `axis` defaults to the flattened input.

    A condition of several axes is read flat.
    """

    axis: int | None = None

    def infer(self, input: TensorType, condition: TensorType) -> TensorType:
        if condition.dtype != bool_:
            raise ShapeError(f"condition is {condition}; expected bool")
        known = condition.known if is_small(condition) else None
        count = None if known is None else int(known.sum())
        if self.axis is None:
            return input.with_shape((count,))
        if input.shape is None:
            return input.with_shape(None)
        if not input.shape:
            raise ShapeError(f"input is {shape_text(input.shape)}; expected one axis or more")
        shape, axis = list(input.shape), normalize_axis(self.axis, len(input.shape))
        shape[axis] = count
        return input.with_shape(tuple(shape))
