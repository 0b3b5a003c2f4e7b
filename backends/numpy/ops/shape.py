"""Operators that create, read and change shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....runtime.ir.dtypes import int64
from ....runtime.ir.types import Array
from ....runtime.ops import shape as ops
from ..engine.registry import kernel
from ..numerics.convert import blank


@kernel(ops.Shape)
def shape(op: ops.Shape, data: Array) -> Array:
    """Return the sizes of the axes."""
    return np.array(data.shape[op.start : op.end], int64)


@kernel(ops.Size)
def size(op: ops.Size, data: Array) -> Array:
    """Return the number of elements."""
    return np.array(data.size, int64)


@kernel(ops.Identity)
def identity(op: ops.Identity, data: Any) -> Any:
    """Return a copy of a tensor; sequences, optionals and maps unchanged."""
    return data.copy() if isinstance(data, np.ndarray) else data


@kernel(ops.Reshape, ops.Flatten, ops.Squeeze, ops.Unsqueeze)
def reshape(op: Any, data: Array, arguments: Array | None = None, *, out: Array) -> None:
    """Copy the elements in C order; the planner makes it a view where possible."""
    np.copyto(out, data.reshape(out.shape))


@kernel(ops.Constant)
def constant(op: ops.Constant) -> Array:
    """Return the attribute."""
    return op.data


@kernel(ops.ConstantOfShape)
def constant_of_shape(op: ops.ConstantOfShape, wanted: Array, *, out: Array) -> None:
    """Fill with a constant."""
    np.copyto(out, op.fill)


@kernel(ops.Range)
def range_(op: ops.Range, start: Array, limit: Array, delta: Array) -> Array:
    """Count from `start` to before `limit`."""
    dtype = start.dtype
    first, last, by = (x.reshape(-1)[0] for x in (start, limit, delta))
    if dtype.kind in "iu":
        return np.arange(int(first), int(last), int(by), dtype=dtype)
    count = max(0, int(np.ceil(float(last - first) / float(by))))
    wide = dtype if dtype.kind == "f" and dtype.itemsize > 2 else op.stash_type
    steps = np.arange(count).astype(wide)
    return (first.astype(wide) + steps * by.astype(wide)).astype(dtype)


@kernel(ops.EyeLike)
def eye_like(op: ops.EyeLike, x: Array, *, out: Array) -> None:
    """Return ones on a diagonal."""
    np.copyto(out, np.eye(*x.shape, k=op.k).astype(out.dtype))


@kernel(ops.Trilu)
def trilu(op: ops.Trilu, x: Array, k: Array | None = None, *, out: Array) -> None:
    """Keep one triangle of every matrix."""
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    distance = columns - rows
    diagonal = 0 if k is None else int(k.reshape(-1)[0])
    kept = distance >= diagonal if op.upper else distance <= diagonal
    np.copyto(out, x)
    np.copyto(out, np.array(blank(x.dtype), x.dtype), where=~kept)
