"""Operators that create, read and change shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ....runtime.ir.dtypes import int64, string
from ....runtime.ir.types import Array
from ....runtime.ops import shape as ops
from ..engine.registry import kernel
from ..numerics.convert import blank
from ..numerics.elementwise import WORDS


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


@kernel(ops.Reshape, ops.Flatten, ops.Squeeze, ops.Unsqueeze, reshapes=True)
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
    out.fill(0)
    places = np.arange(min(len(out), max(0, -op.k)), min(len(out), out.shape[1] - op.k))
    out[places, places + op.k] = 1


@kernel(ops.Trilu)
def trilu(op: ops.Trilu, x: Array, k: Array | None = None, *, out: Array) -> None:
    """Keep one triangle of every matrix."""
    if not x.size:
        return
    rows, columns = x.shape[-2:]
    distance = np.arange(1 - rows, columns)
    diagonal = 0 if k is None else int(k.reshape(-1)[0])
    kept = distance >= diagonal if op.upper else distance <= diagonal
    # The mask of each row is a window of `kept`; that of the last row is the first one.
    word = WORDS.get(x.dtype.itemsize)
    if word is None or x.dtype == string:
        matrix = sliding_window_view(kept, columns)[::-1]
        np.copyto(out, np.where(matrix, x, blank(x.dtype)))
        return
    masks = sliding_window_view(np.negative(kept.astype(word)), columns)[::-1]
    np.bitwise_and(x.view(word), masks, out=out.view(word))
