"""Operators that onnxruntime had before ONNX, which has them under another name or signature."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from .builder import Builder
from .declaration import Anything, Index, Int32, Int64, Kind, Results, T, contrib
from .heads import positions

Number = Annotated[str, Kind("T", dtypes.FLOATS | dtypes.INTEGERS)]
Int16 = Annotated[str, Kind("S", frozenset({dtypes.int16, dtypes.uint16}))]
Grid = Annotated[str, Kind("G", frozenset(dtypes.TO_ONNX))]


@contrib("Pad")
def pad(b: Builder, x: T, pads: Int64, value: T | None = None, *, mode: str = "constant") -> str:
    """Pad with widths in one row."""
    if value is not None:
        value = b.Reshape(value, b.ints())
    return b.Pad(x, b.Reshape(pads, b.ints(-1)), value, mode=mode)


@contrib("Range")
def range_(b: Builder, start: Number, limit: Number, delta: Number | None = None) -> str:
    """Range of scalars or vectors of one element."""
    step = delta if delta is not None else b.number(1, start)
    return b.Range(*(b.Reshape(each, b.ints()) for each in (start, limit, step)))


@contrib("Trilu")
def trilu(b: Builder, x: Anything, k: Int64 | None = None, *, upper: int = 1) -> str:
    """ONNX's Trilu."""
    return b.Trilu(x, k, upper=upper)


@contrib("GatherND")
def gather_nd(b: Builder, data: Anything, indices: Index) -> str:
    """ONNX's GatherND, with indices of 32 bits as well."""
    return b.GatherND(data, b.cast(indices, dtypes.int64))


@contrib("ExpandDims")
def expand_dims(b: Builder, x: Anything, axis: Int32) -> str:
    """Unsqueeze of one axis."""
    return b.Unsqueeze(x, b.cast(b.Reshape(axis, b.ints(-1)), dtypes.int64))


@contrib("Unique", outputs=(3, 3))
def unique(b: Builder, x: Anything) -> Results:
    """The distinct elements in order, where each one lies among them, and how often it occurs."""
    b.rank(x, 1)
    y, _, where, counts = b.chosen("Unique", (True, False, True, True), x, sorted=0)
    return y, where, counts


@contrib("GridSample")
def grid_sample(
    b: Builder,
    x: Grid,
    grid: Grid,
    *,
    align_corners: int = 0,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
) -> str:
    """ONNX's GridSample, whose modes have other names."""
    names = {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest"}
    if mode not in names:
        raise b.error(f"mode='{mode}'; expected {', '.join(names)}")
    how = names[mode]
    return b.GridSample(x, grid, align_corners=align_corners, mode=how, padding_mode=padding_mode)


@contrib("UnfoldTensor")
def unfold_tensor(b: Builder, x: Anything, *, dim: int = -1, size: int, step: int = 1) -> str:
    """Every window of `size` elements of an axis, `step` apart, along a new last axis."""
    if size < 1 or step < 1:
        raise b.error(f"size={size}, step={step}; expected 1 or more")
    rank = b.rank(x)
    dim += rank if dim < 0 else 0
    last = b.Sub(b.size(x, dim), b.ints(size))
    count = b.Add(b.Div(last, b.ints(step)), b.ints(1))
    starts = b.Mul(b.Unsqueeze(positions(b, count), b.ints(1)), b.ints(step))
    index = b.Add(starts, b.constant(np.arange(size, dtype=np.int64)))
    found = b.Gather(x, index, axis=dim)
    return b.transpose(found, *range(dim + 1), *range(dim + 2, rank + 1), dim + 1)


@contrib("BiasSoftmax")
def bias_softmax(b: Builder, data: T, bias: T, *, axis: int = 1, is_inner_broadcast: int) -> str:
    """Softmax of data + bias over all axes from `axis` on; the bias lacks axes of data."""
    rank, inner = b.rank(data), b.rank(bias)
    axis += rank if axis < 0 else 0
    if is_inner_broadcast and inner < rank:
        missing = rank - inner
        first = max(axis - missing, 0)
        bias = b.Unsqueeze(bias, b.ints(*range(first, first + missing)))
    total = b.Add(data, bias)
    if axis == rank - 1:
        return b.Softmax(total, axis=axis)
    flat = b.Softmax(b.Flatten(total, axis=axis), axis=1)
    return b.Reshape(flat, b.Shape(total))


@contrib("IsAllFinite")
def is_all_finite(b: Builder, *tensors: T, isinf_only: int = 0, isnan_only: int = 0) -> str:
    """Whether no element is an infinity or a NaN, or neither of one of them."""
    found = [b.Reshape(_strange(b, x, isinf_only, isnan_only), b.ints(-1)) for x in tensors]
    whole = found[0] if len(found) == 1 else b.Concat(*found, axis=0)
    most = b.ReduceMax(b.cast(whole, dtypes.int32), keepdims=0)
    return b.Equal(most, b.constant(np.array(0, np.int32)))


def _strange(b: Builder, x: str, isinf_only: int, isnan_only: int) -> str:
    if isnan_only:
        return b.IsNaN(x)
    return b.IsInf(x) if isinf_only else b.Or(b.IsNaN(x), b.IsInf(x))


@contrib("TorchEmbedding")
def torch_embedding(
    b: Builder,
    weight: Anything,
    indices: Int64,
    padding_idx: Int64 | None = None,
    scale_grad_by_freq: Annotated[str, Kind("B", frozenset({dtypes.bool_}))] | None = None,
) -> str:
    """Rows of a table."""
    return b.Gather(weight, indices, axis=0)


@contrib("BiasDropout", outputs=(1, 2))
def bias_dropout(
    b: Builder,
    data: T,
    bias: T,
    residual: T | None = None,
    ratio: Annotated[str, Kind("R", dtypes.FLOATS)] | None = None,
    training_mode: Annotated[str, Kind("B", frozenset({dtypes.bool_}))] | None = None,
    *,
    seed: int | None = None,
) -> Results:
    """Dropout of data + bias, and the residual added."""
    total = b.Add(data, bias)
    y, mask = b.chosen("Dropout", (True, b.wants(1)), total, ratio, training_mode, seed=seed)
    return (y if residual is None else b.Add(y, residual)), mask


@contrib("Rfft")
def rfft(b: Builder, x: T, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1) -> str:
    """The half of the Fourier transform of the last axis that real data have."""
    if normalized or not onesided or signal_ndim != 1:
        raise b.unsupported(
            f"normalized={normalized}, onesided={onesided}, signal_ndim={signal_ndim}",
            "export it as DFT of ONNX",
        )
    complex_ = b.Unsqueeze(x, b.ints(-1))
    return b.DFT(complex_, None, b.constant(np.array(-2, np.int64)), onesided=1)


@contrib("NGramRepeatBlock")
def ngram_repeat_block(b: Builder, input_ids: Int64, scores: T, *, ngram_size: int) -> str:
    """Scores, with −∞ for the tokens that would complete an n-gram that is in the row already."""
    if ngram_size < 1:
        raise b.error(f"ngram_size={ngram_size}; expected 1 or more")
    b.rank(input_ids, 2)
    b.rank(scores, 2)
    known = b.extent(input_ids, 1)
    if known is not None and known < ngram_size:
        return scores
    length = b.size(input_ids, 1)
    count = b.Sub(length, b.ints(ngram_size - 1))
    starts = b.Unsqueeze(positions(b, count), b.ints(1))
    index = b.Add(starts, b.constant(np.arange(ngram_size, dtype=np.int64)))
    grams = b.Gather(input_ids, index, axis=1)
    last = b.slice(grams, 2, ngram_size - 1, ngram_size)
    bans = b.Squeeze(last, b.ints(2))
    infinity = b.number(float("inf"), scores)
    lowest = b.Neg(infinity)
    if ngram_size == 1:
        updates = b.Expand(lowest, b.Shape(bans))
    else:
        ending = b.Unsqueeze(b.slice(input_ids, 1, b.ints(1 - ngram_size), length), b.ints(1))
        same = b.Equal(b.slice(grams, 2, 0, ngram_size - 1), ending)
        all_same = b.ReduceMin(b.cast(same, dtypes.int32), b.ints(2), keepdims=0)
        updates = b.Where(b.cast(all_same, dtypes.bool_), lowest, infinity)
    return b.ScatterElements(scores, bans, updates, axis=1, reduction="min")


@contrib("SampleOp")
def sample_op(b: Builder, x: Number) -> str:
    """What it is given."""
    return b.Identity(x)


@contrib("MatMulInteger16")
def matmul_integer16(b: Builder, x: Int16, y: Int16) -> str:
    """Product of integers of 16 bits, added up in 32."""
    return b.MatMul(b.cast(x, dtypes.int32), b.cast(y, dtypes.int32))


@contrib("CropAndResize")
def crop_and_resize(
    b: Builder,
    x: T,
    rois: T,
    batch_indices: Int32,
    crop_size: Int32,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> str:
    """Boxes of images, in shares of these, resized so that corners meet corners."""
    if mode not in ("bilinear", "nearest"):
        raise b.error(f"mode='{mode}'; expected bilinear or nearest")
    sizes = b.cast(crop_size, dtypes.int64)
    places: list[str] = []
    inside: str | None = None
    for axis in (0, 1):
        place = _crop_places(b, x, rois, sizes, axis)
        last = b.cast(b.Sub(b.size(x, 2 + axis), b.ints(1)), b.dtype(x))
        seen = b.And(b.GreaterOrEqual(place, b.number(0, x)), b.LessOrEqual(place, last))
        if mode == "nearest":
            place = b.Floor(b.Add(place, b.number(0.5, x)))
        seen, place = (b.Unsqueeze(each, b.ints(2 - axis)) for each in (seen, place))
        inside = seen if inside is None else b.And(inside, seen)
        span = b.Max(last, b.number(1, x))
        places.append(b.Sub(b.Div(b.Mul(place, b.number(2, x)), span), b.number(1, x)))
    whole = b.Concat(b.size(rois, 0), sizes, axis=0)
    grid = [b.Unsqueeze(b.Expand(each, whole), b.ints(3)) for each in reversed(places)]
    images = b.Gather(x, batch_indices, axis=0)
    how = "linear" if mode == "bilinear" else "nearest"
    y = b.GridSample(
        images, b.Concat(*grid, axis=3), align_corners=1, mode=how, padding_mode="border"
    )
    assert inside is not None
    return b.Where(b.Unsqueeze(inside, b.ints(1)), y, b.number(extrapolation_value, x))


def _crop_places(b: Builder, x: str, rois: str, sizes: str, axis: int) -> str:
    """Return where the samples of every box lie along an axis: [boxes, samples], in pixels."""
    first, last = (b.slice(rois, 1, at, at + 1) for at in (axis, axis + 2))
    count = b.slice(sizes, 0, axis, axis + 1)
    pixels = b.cast(b.Sub(b.size(x, 2 + axis), b.ints(1)), b.dtype(x))
    steps = b.cast(b.Max(b.Sub(count, b.ints(1)), b.ints(1)), b.dtype(x))
    step = b.Div(b.Mul(b.Sub(last, first), pixels), steps)
    numbers = b.cast(positions(b, count), b.dtype(x))
    spread = b.Add(b.Mul(first, pixels), b.Mul(numbers, step))
    middle = b.Mul(b.Mul(b.Add(first, last), pixels), b.number(0.5, x))
    return b.Where(b.Greater(count, b.ints(1)), spread, middle)
