"""Operators that read or write where a tensor of indices points."""

from __future__ import annotations

from math import gcd, prod

import numpy as np

from ....runtime.ir.dtypes import DType, int32, int64
from ....runtime.ir.graph import Node
from ....runtime.ops.gather import (
    Gather,
    GatherElements,
    GatherND,
    OneHot,
    ScatterElements,
    ScatterND,
    TensorScatter,
)
from ....runtime.ops.ml import ArrayFeatureExtractor
from ....runtime.ops.pool import MaxUnpool
from ....runtime.ops.shapes import normalize_axis
from ....runtime.ops.window import transposed_window
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..codegen.copies import copied_unless_same, fill, widest_words, words_of
from ..codegen.elementwise import ANY
from ..recipe.launch import each
from ..recipe.operands import Arguments, Tensor, index_type, order
from ..recipe.source import arithmetic

INDICES = (int32, int64)
#: Threads per launch for the updates of `ScatterND`.
SCATTER_THREADS = 1 << 14


def _types(index: DType, x: Tensor, indices: Tensor) -> tuple[tuple[str, DType], ...]:
    return (("Index", index), ("T", words_of(x.dtype)), ("I", indices.dtype))


def _keeps_rank(node: Node) -> bool:
    return all(value.tensor.rank == 1 for value in node.operands[1:])


@kernel(Gather, follows=_keeps_rank)
def gather(op: Gather, y: Tensor, x: Tensor, indices: Tensor) -> Answer:
    """Take slices along an axis."""
    refused = need_dtypes(INDICES, indices)
    if refused:
        return refused
    axis = normalize_axis(op.axis, x.rank)
    lie = order(x.rank, x.format)
    inner = prod(x.dims[a] for a in lie[lie.index(axis) + 1 :])
    words = widest_words(x.dtype, inner)
    elements = words.itemsize // x.dtype.itemsize
    count = y.size // elements
    return each(
        "move/gather.cu",
        "gather",
        count,
        {
            **{"x": x, "indices": indices, "y": y, "count": count},
            **{"size": x.dims[axis], "places": indices.size, "inner": inner // elements},
        },
        types=(("Index", index_type(x.size, y.size)), ("T", words), ("I", indices.dtype)),
        constants=(("RANK", 1),),
    )


@kernel(ArrayFeatureExtractor)
def array_feature_extractor(
    op: ArrayFeatureExtractor, y: Tensor, x: Tensor, indices: Tensor
) -> Answer:
    """Take columns."""
    return gather(Gather(axis=-1), y, x, indices)


@kernel(GatherElements)
def gather_elements(op: GatherElements, y: Tensor, x: Tensor, indices: Tensor) -> Answer:
    """Take the element with the given index along an axis at each position."""
    refused = need_dtypes(INDICES, indices)
    if refused:
        return refused
    axis = normalize_axis(op.axis, x.rank)
    index = index_type(x.size, y.size)
    return each(
        "move/gather.cu",
        "gather_elements",
        y.size,
        {
            **{"x": x, "indices": indices, "y": y, "count": y.size},
            **{"size": x.dims[axis], "axis": axis, "sizes": y.dims, "strides": x.strides},
        },
        types=_types(index, x, indices),
        constants=(("RANK", x.rank),),
    )


@kernel(GatherND)
def gather_nd(op: GatherND, y: Tensor, x: Tensor, indices: Tensor) -> Answer:
    """Take the slices at the coordinates in the last axis of `indices`."""
    refused = need_dtypes(INDICES, indices)
    if refused:
        return refused
    first, depth = op.batch_dims, indices.dims[-1]
    index = index_type(x.size, y.size)
    along = slice(first, first + depth)
    return each(
        "move/gather.cu",
        "gather_nd",
        y.size,
        {
            **{"x": x, "indices": indices, "y": y, "count": y.size},
            **{"places": prod(indices.dims[first:-1]), "inner": prod(x.dims[first + depth :])},
            **{"of_batch": prod(x.dims[first:]), "sizes": x.dims[along]},
            "strides": x.strides[along],
        },
        types=_types(index, x, indices),
        constants=(("RANK", depth),),
    )


@kernel(OneHot)
def one_hot(op: OneHot, y: Tensor, indices: Tensor, depth: Tensor, values: Tensor) -> Answer:
    """Write ``values[1]`` at the index, ``values[0]`` elsewhere."""
    refused = need_dtypes(ANY, indices)
    if refused:
        return refused
    axis = normalize_axis(op.axis, y.rank)
    index = index_type(y.size)
    return each(
        "move/gather.cu",
        "one_hot",
        y.size,
        {
            **{"indices": indices, "values": values, "y": y, "count": y.size},
            **{"depth": y.dims[axis], "inner": prod(y.dims[axis + 1 :])},
        },
        types=_types(index, y, indices),
        constants=(("RANK", 1),),
    )


# ── scattering ───────────────────────────────────────────────────────────────────────────────────

#: How old element and update combine, in the dtype's compute type.
_REDUCTIONS = {
    "none": "b",
    "add": "a + b",
    "mul": "a * b",
    "max": "a > b || a != a ? a : b",
    "min": "a < b || a != a ? a : b",
}


def _scatter(
    entry: str,
    count: int,
    y: Tensor,
    x: Tensor | None,
    indices: Tensor | None,
    args: Arguments,
    *,
    updates: Tensor,
    reduction: str = "none",
    rank: int = 1,
) -> Answer:
    """Return a copy of `x`, or zeros, and the launch that writes the updates."""
    refused = need_dtypes(INDICES, indices)
    moves = reduction == "none"
    if not refused and not moves:
        refused = need_dtypes(ANY, y)
    if refused:
        return refused
    index = index_type(y.size, updates.size, count)
    dtype = words_of(y.dtype) if moves else y.dtype
    compute = dtype if moves else arithmetic(dtype)
    combine = "__device__ __forceinline__ T combine(T old, T more) "
    combine += f"{{ const A a = A(old), b = A(more); return T({_REDUCTIONS[reduction]}); }}"
    launch = each(
        "move/scatter.cu",
        entry,
        count,
        {"updates": updates, "y": y, "count": count, **args},
        types=(
            *(("Index", index), ("T", dtype), ("A", compute)),
            ("I", int64 if indices is None else indices.dtype),
        ),
        constants=(("RANK", rank),),
        code=combine,
        note=reduction if not moves else "",
    )
    return (
        (copied_unless_same(y, x), launch)
        if x is not None
        else (fill(y, np.zeros((), y.dtype)), launch)
    )


@kernel(ScatterElements, in_place=0)
def scatter_elements(
    op: ScatterElements, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor
) -> Answer:
    """Write elements at indices along an axis, one thread per line."""
    axis = normalize_axis(op.axis, x.rank)
    length = indices.dims[axis]
    lines = prod(indices.dims[:axis]) * prod(indices.dims[axis + 1 :])
    args = {
        **{"indices": indices, "length": length, "size": x.dims[axis], "axis": axis},
        **{"sizes": indices.dims, "strides": x.strides},
    }
    return _scatter(
        "scatter_elements",
        lines,
        *(y, x, indices, args),
        updates=updates,
        reduction=op.reduction,
        rank=x.rank,
    )


@kernel(ScatterND, in_place=0)
def scatter_nd(op: ScatterND, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor) -> Answer:
    """Write slices at coordinates."""
    depth = indices.dims[-1]
    inner, rows = prod(x.dims[depth:]), prod(indices.dims[:-1])
    if not inner or not rows:
        return copied_unless_same(y, x)
    shares = max(1, min(SCATTER_THREADS // inner, x.size // inner))
    args = {
        **{"indices": indices, "rows": rows, "inner": inner},
        **{"sizes": x.dims[:depth], "strides": x.strides[:depth]},
    }
    return _scatter(
        "scatter_nd",
        shares * inner,
        *(y, x, indices, args),
        updates=updates,
        reduction=op.reduction,
        rank=depth,
    )


#: Maximum word size for rows of a cache in bytes.
WORD = 8


@kernel(TensorScatter, in_place=0)
def tensor_scatter(
    op: TensorScatter, y: Tensor, cache: Tensor, update: Tensor, first: Tensor | None = None
) -> Answer:
    """Write a range of each batch entry of a cache."""
    if refused := need_dtypes(INDICES, first):
        return refused
    axis = normalize_axis(op.axis, cache.rank)
    row = prod(cache.dims[axis + 1 :]) * y.dtype.itemsize
    word = gcd(row, WORD)
    count = update.size * y.dtype.itemsize // word
    launch = each(
        "move/tensor_scatter.cu",
        "tensor_scatter",
        count,
        {
            **{"first": first, "updates": update, "y": y, "count": count},
            **{"outer": prod(cache.dims[1:axis]), "length": update.dims[axis]},
            **{"size": cache.dims[axis], "inner": row // word},
        },
        types=(
            ("Index", index_type(y.size, count)),
            *(("T", np.dtype(f"u{word}")), ("I", int64 if first is None else first.dtype)),
        ),
        constants=(("CIRCULAR", op.mode == "circular"),),
    )
    return copied_unless_same(y, cache), launch


@kernel(MaxUnpool)
def max_unpool(
    op: MaxUnpool, y: Tensor, x: Tensor, indices: Tensor, output_shape: Tensor | None = None
) -> Answer:
    """Write each element where MaxPool found it, zeros elsewhere."""
    natural = (*x.dims[:2], *transposed_window(op, x.dims[2:], op.kernel_shape).output)
    args = {"indices": indices, "sizes": natural, "limits": y.dims, "strides": y.strides}
    return _scatter("unpool", x.size, y, None, indices, args, updates=x, rank=x.rank)
