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
from ..codegen.copies import copied_unless_same, fill
from ..codegen.elementwise import ANY
from ..recipe.launch import Launch, each
from ..recipe.operands import (
    Arguments,
    Tensor,
    ceil_div,
    index_type,
    order,
    widest_words,
    words_of,
)
from ..recipe.source import arithmetic

INDICES = (int32, int64)
#: Threads per launch for few updates of `ScatterND`.
SCATTER_THREADS = 1 << 14
#: The same of `ScatterElements`.
LINE_THREADS = 1 << 16
#: Updates from which on blocks list those of their slices; blocks of such a launch, warps of each,
#: bytes of a list, and elements of a slice that a lane has.
MANY_UPDATES = 64
SLICE_BLOCKS, SLICE_WARPS, LIST_BYTES, MAX_COLUMNS = 256, 16, 32768, 4
#: Maximum elements of such a slice; and of a result that the launch copies itself.
MAX_INNER, MAX_COPIED = 1 << 20, 1 << 17


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
    layout = order(x.rank, x.format)
    inner = prod(x.dims[a] for a in layout[layout.index(axis) + 1 :])
    words = widest_words(x.dtype, inner)
    elements = words.itemsize // x.dtype.itemsize
    count, inner = y.size // elements, inner // elements
    of_rows = axis == layout[-1] and y.rank == x.rank  # each of which chooses its own elements
    return each(
        "move/gather.cu",
        "gather",
        count,
        {
            **{"x": x, "indices": indices, "y": y, "count": count},
            **{"size": x.dims[axis], "places": indices.size, "inner": inner},
            "row_x": x.row if of_rows else x.dims[axis] * inner,
            "row_y": y.row if of_rows else indices.size * inner,
        },
        types=(("Index", index_type(x.extent, y.extent)), ("T", words), ("I", indices.dtype)),
        constants=(("RANK", 1),),
        pitched=(x, y) if of_rows else (),
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
    along, inner = slice(first, first + depth), prod(x.dims[first + depth :])
    words = widest_words(x.dtype, inner)
    elements = words.itemsize // x.dtype.itemsize
    return each(
        "move/gather.cu",
        "gather_nd",
        y.size // elements,
        {
            **{"x": x, "indices": indices, "y": y, "count": y.size // elements},
            **{"places": prod(indices.dims[first:-1]), "inner": inner // elements},
            **{"of_batch": prod(x.dims[first:]) // elements, "sizes": x.dims[along]},
            "strides": tuple(step // elements for step in x.strides[along]),
        },
        types=(("Index", index_type(x.size, y.size)), ("T", words), ("I", indices.dtype)),
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
#: Those whose result does not depend on the order of updates.
_UNORDERED = ("max", "min")


def _refusal(y: Tensor, indices: Tensor | None, reduction: str) -> str:
    """Return why updates cannot be written; empty if they can."""
    refused = need_dtypes(INDICES, indices)
    return refused if refused or reduction == "none" else need_dtypes(ANY, y)


def _types_of_scatter(
    index: DType, y: Tensor, indices: Tensor | None, reduction: str
) -> tuple[tuple[str, DType], ...]:
    dtype = words_of(y.dtype) if reduction == "none" else y.dtype
    compute = dtype if reduction == "none" else arithmetic(dtype)
    of_indices = int64 if indices is None else indices.dtype
    return ("Index", index), ("T", dtype), ("A", compute), ("I", of_indices)


def _combining(reduction: str) -> str:
    """Return the function ``combine(a, b)``."""
    return f"__device__ __forceinline__ A combine(A a, A b) {{ return {_REDUCTIONS[reduction]}; }}"


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
    refused = _refusal(y, indices, reduction)
    if refused:
        return refused
    index = index_type(y.size, updates.size, count)
    launch = each(
        "move/scatter.cu",
        entry,
        count,
        {"updates": updates, "y": y, "count": count, **args},
        types=_types_of_scatter(index, y, indices, reduction),
        constants=(("RANK", rank),),
        code=_combining(reduction),
        note=reduction if reduction != "none" else "",
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
    """Write elements at indices along an axis; where there are few lines, threads share one."""
    axis = normalize_axis(op.axis, x.rank)
    length, size = indices.dims[axis], x.dims[axis]
    if op.reduction in _UNORDERED:
        args = {"indices": indices, "size": size, "axis": axis, "sizes": indices.dims}
        return _scatter(
            "scatter_unordered",
            indices.size,
            *(y, x, indices, {**args, "strides": x.strides}),
            updates=updates,
            reduction=op.reduction,
            rank=x.rank,
        )
    lines = prod(indices.dims[:axis]) * prod(indices.dims[axis + 1 :])
    shares = max(1, min(LINE_THREADS // max(lines, 1), size, length))
    args = {
        **{"indices": indices, "lines": max(lines, 1), "length": length, "size": size},
        **{"axis": axis, "sizes": indices.dims, "strides": x.strides},
    }
    return _scatter(
        "scatter_elements",
        lines * shares,
        *(y, x, indices, args),
        updates=updates,
        reduction=op.reduction,
        rank=x.rank,
    )


@kernel(ScatterND, in_place=0)
def scatter_nd(op: ScatterND, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor) -> Answer:
    """Write slices at coordinates."""
    depth = indices.dims[-1]
    if not depth:
        return "no coordinates: each update is of the whole tensor"
    inner, rows = prod(x.dims[depth:]), prod(indices.dims[:-1])
    if not inner or not rows:
        return copied_unless_same(y, x)
    if rows >= MANY_UPDATES and inner <= MAX_INNER:
        return _scatter_slices(op, y, x, indices, updates)
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


def _scatter_slices(
    op: ScatterND, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor
) -> Answer:
    """Return the launch that writes many slices to a copy of `x`, and of a large one its copy."""
    refused = _refusal(y, indices, op.reduction)
    if refused:
        return refused
    depth = indices.dims[-1]
    inner, rows, slices = prod(x.dims[depth:]), prod(indices.dims[:-1]), prod(x.dims[:depth])
    columns = min(MAX_COLUMNS, ceil_div(inner, 32))
    strips = ceil_div(inner, 32 * columns)
    index = index_type(y.size, updates.size, indices.size)
    room = LIST_BYTES // (2 * index.itemsize)
    copies = y.size <= MAX_COPIED
    launch = Launch(
        "move/scatter_slices.cu",
        "scatter_slices",
        grid=(min(slices, max(1, SLICE_BLOCKS // strips)), strips, 1),
        block=32 * SLICE_WARPS,
        args={
            **{"indices": indices, "updates": updates, "x": x, "y": y, "rows": rows},
            **{"slices": slices, "inner": inner, "sizes": x.dims[:depth]},
        },
        types=_types_of_scatter(index, y, indices, op.reduction),
        constants=(
            *(("WARPS", SLICE_WARPS), ("ITEMS", room // (2 * 32 * SLICE_WARPS)), ("ROOM", room)),
            *(("COLUMNS", columns), ("RANK", depth), ("COPIES", copies)),
        ),
        code=_combining(op.reduction),
        note=op.reduction if op.reduction != "none" else "",
    )
    return launch if copies else (copied_unless_same(y, x), launch)


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
