"""Operators of TensorFlow that tf2onnx leaves as they are in files of opsets before 11 only."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Anything, Index, Int32, Kind, T
from .tensorflow_names import operator

#: ONNX's number of what attributes of dtypes are by default, which are of no use here.
_INT32 = dtypes.TO_ONNX[dtypes.int32]
#: Any dtype, the same for all such inputs.
Same = Annotated[str, Kind("S", frozenset(dtypes.TO_ONNX))]
#: Indices of another dtype than those before.
OtherIndex = Annotated[str, Kind("J", frozenset({dtypes.int32, dtypes.int64}))]


@operator("IsFinite")
def is_finite(b: NodeBuilder, x: T) -> str:
    """Return which elements are neither infinite nor NaN."""
    return b.Not(b.Or(b.IsNaN(x), b.IsInf(x)))


@operator("IsNan")
def is_nan(b: NodeBuilder, x: T) -> str:
    """Return which elements are NaN."""
    return b.IsNaN(x)


@operator("Rint")
def rint(b: NodeBuilder, x: T) -> str:
    """Return x rounded to whole numbers, halves to even ones."""
    return b.Round(x)


@operator("MatrixBandPart")
def matrix_band_part(b: NodeBuilder, x: Same, lower: Index, upper: Index) -> str:
    """Return matrices with zeros outside of some diagonals; less than 0 of them are all there."""
    (below,), (above,) = _known(b, lower, "num_lower"), _known(b, upper, "num_upper")
    found = x if below < 0 else b.Trilu(x, b.constant(np.array(-below)), upper=1)
    found = found if above < 0 else b.Trilu(found, b.constant(np.array(above)), upper=0)
    return b.Identity(x) if found == x else found


@operator("Cumsum")
def cumsum(
    b: NodeBuilder,
    x: Same,
    axis: Index,
    *,
    exclusive: int = 0,
    reverse: int = 0,
    Tidx: int = _INT32,
) -> str:
    """Return the sums of all elements up to each along an axis."""
    return b.CumSum(x, axis, exclusive=exclusive, reverse=reverse)


@operator("Cumprod")
def cumprod(
    b: NodeBuilder,
    x: Same,
    axis: Index,
    *,
    exclusive: int = 0,
    reverse: int = 0,
    Tidx: int = _INT32,
) -> str:
    """Return the products of all elements up to each along an axis."""
    return b.CumProd(x, axis, exclusive=exclusive, reverse=reverse)


@operator("ScatterNd")
def scatter_nd(
    b: NodeBuilder,
    indices: Index,
    updates: Same,
    shape: OtherIndex,
    *,
    bad_indices_policy: str = "",
) -> str:
    """Return zeros of a shape, to which slices are added at indices."""
    zero = b.constant(np.zeros(1, b.dtype(updates)))
    return tensor_scatter_add(b, b.Expand(zero, b.cast(shape, dtypes.int64)), indices, updates)


@operator("TensorScatterUpdate")
def tensor_scatter_update(
    b: NodeBuilder, x: Same, indices: Index, updates: Same, *, bad_indices_policy: str = ""
) -> str:
    """Return x with slices at indices replaced."""
    return b.ScatterND(x, b.cast(indices, dtypes.int64), updates)


@operator("TensorScatterAdd")
def tensor_scatter_add(
    b: NodeBuilder, x: Same, indices: Index, updates: Same, *, bad_indices_policy: str = ""
) -> str:
    """Return x with slices added at indices, one after the other."""
    return b.ScatterND(x, b.cast(indices, dtypes.int64), updates, reduction="add")


@operator("TensorScatterSub")
def tensor_scatter_sub(
    b: NodeBuilder, x: Same, indices: Index, updates: Same, *, bad_indices_policy: str = ""
) -> str:
    """Return x with slices subtracted at indices, one after the other."""
    return tensor_scatter_add(b, x, indices, b.Neg(updates))


@operator("TensorScatterMax")
def tensor_scatter_max(
    b: NodeBuilder, x: Same, indices: Index, updates: Same, *, bad_indices_policy: str = ""
) -> str:
    """Return x with the greater of old and new elements at indices."""
    return b.ScatterND(x, b.cast(indices, dtypes.int64), updates, reduction="max")


@operator("TensorScatterMin")
def tensor_scatter_min(
    b: NodeBuilder, x: Same, indices: Index, updates: Same, *, bad_indices_policy: str = ""
) -> str:
    """Return x with the lesser of old and new elements at indices."""
    return b.ScatterND(x, b.cast(indices, dtypes.int64), updates, reduction="min")


@operator("ReverseV2")
def reverse(b: NodeBuilder, x: Anything, axis: Index, *, Tidx: int = _INT32) -> str:
    """Return x with the order of elements reversed along axes."""
    axes = _known(b, axis, "axis")
    if not axes:
        return b.Identity(x)
    ends = [np.iinfo(np.int64).min] * len(axes)
    back = [-1] * len(axes)
    return b.Slice(x, b.ints(*back), b.ints(*ends), b.ints(*axes), b.ints(*back))


@operator("Roll")
def roll(b: NodeBuilder, x: Anything, shift: Index, axis: OtherIndex) -> str:
    """Return x with elements moved along axes, those behind the end to the start."""
    shifts, axes = _known(b, shift, "shift"), _known(b, axis, "axis")
    if len(shifts) != len(axes):
        raise b.error(f"{len(shifts)} shifts along {len(axes)} axes; expected as many")
    found = x
    for by, along in zip(shifts, axes, strict=True):
        start = b.Mod(b.ints(-by), b.size(x, along))
        front = b.Slice(found, start, b.ints(np.iinfo(np.int64).max), b.ints(along))
        found = b.Concat(front, b.slice(found, along, 0, start), axis=along)
    return b.Identity(x) if found == x else found


@operator("ResizeBilinear")
def resize_bilinear(
    b: NodeBuilder,
    images: Anything,
    size: Int32,
    *,
    align_corners: int = 0,
    half_pixel_centers: int = 0,
) -> str:
    """Return [n, height, width, channels] images of another size, float32."""
    samples = _samples(align_corners, half_pixel_centers)
    return _resized(b, b.cast(images, dtypes.float32), size, "linear", samples)


@operator("ResizeNearestNeighbor")
def resize_nearest_neighbor(
    b: NodeBuilder,
    images: Anything,
    size: Int32,
    *,
    align_corners: int = 0,
    half_pixel_centers: int = 0,
) -> str:
    """Return [n, height, width, channels] images of another size."""
    samples = _samples(align_corners, half_pixel_centers)
    nearest = "floor" if samples == "asymmetric" else "round_prefer_ceil"
    return _resized(b, images, size, "nearest", samples, nearest_mode=nearest)


@operator("ResizeBicubic")
def resize_bicubic(
    b: NodeBuilder,
    images: Anything,
    size: Int32,
    *,
    align_corners: int = 0,
    half_pixel_centers: int = 0,
) -> str:
    """Return [n, height, width, channels] images of another size, float32.

    TensorFlow rounds places between elements to 1/1024, which is not done here.
    """
    samples = _samples(align_corners, half_pixel_centers)
    x = b.cast(images, dtypes.float32)
    if samples != "half_pixel":
        return _resized(b, x, size, "cubic", samples)
    return _resized(b, x, size, "cubic", samples, cubic_coeff_a=-0.5, exclude_outside=1)


def _samples(align_corners: int, half_pixel_centers: int) -> str:
    if align_corners:
        return "align_corners"
    return "half_pixel" if half_pixel_centers else "asymmetric"


def _resized(b: NodeBuilder, x: str, size: str, mode: str, samples: str, **more: Any) -> str:
    sizes = b.Concat(b.size(x, 0), b.size(x, 3), b.cast(size, dtypes.int64), axis=0)
    found = b.Resize(
        b.transpose(x, 0, 3, 1, 2),
        None,
        None,
        sizes,
        mode=mode,
        coordinate_transformation_mode=samples,
        **more,
    )
    return b.transpose(found, 0, 2, 3, 1)


def _known(b: NodeBuilder, x: str, name: str) -> list[int]:
    found = b.value(x)
    if found is None:
        raise b.unsupported(f"{name} is computed", f"make {name} constant before the export")
    return [int(each) for each in found.ravel()]
