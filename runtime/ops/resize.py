"""Resampling: resizing, and sampling at a grid of coordinates."""

from __future__ import annotations

from typing import cast

import numpy as np

from ..errors import ShapeError
from ..ir.dtypes import FLOATS, float32
from ..ir.op import Op, op
from ..ir.types import Array, Dim, Shape, TensorType
from .shapes import (
    checked,
    dim,
    ints_of,
    need_choice,
    need_rank,
    need_vector,
    normalize_axes,
    same_dim,
)
from .window import need_elements


@op
class Resize(Op):
    """Interpolation along `axes` (all by default) by `scales`, or to `sizes` (ONNX 19).

    Exactly one of the two is given; an empty tensor counts as omitted. With scales the result has
    ``floor(size * scale)`` elements, times the extent of `roi` for "tf_crop_and_resize"; the
    product is computed in float32, as in onnxruntime, so that 10 * 0.7 is 7.
    """

    antialias: int = 0
    axes: tuple[int, ...] | None = None
    coordinate_transformation_mode: str = "half_pixel"
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    mode: str = "nearest"
    nearest_mode: str = "round_prefer_floor"

    def infer(
        self,
        x: TensorType,
        roi: TensorType | None = None,
        scales: TensorType | None = None,
        sizes: TensorType | None = None,
    ) -> TensorType:
        self._need_modes()
        scales, sizes, roi = (_given(t) for t in (scales, sizes, roi))
        if scales is not None and sizes is not None and None in (_length(scales), _length(sizes)):
            return x.with_shape(None if x.shape is None else (None,) * len(x.shape))
        if (scales is None) == (sizes is None):
            raise ShapeError("exactly one of scales and sizes must be given")
        if x.shape is None:
            return x.with_shape(None)
        rank = len(x.shape)
        axes = tuple(range(rank)) if self.axes is None else normalize_axes(self.axes, rank)
        need_vector(scales, len(axes), "scales")
        need_vector(sizes, len(axes), "sizes")
        shape = list(x.shape)
        if scales is not None:
            wanted = self._scaled(tuple(shape[a] for a in axes), scales, roi)
        else:
            wanted = self._sized(tuple(shape[a] for a in axes), ints_of(sizes, "sizes"))
        for axis, size in zip(axes, wanted, strict=True):
            shape[axis] = size
        return x.with_shape(checked(shape))

    def _need_modes(self) -> None:
        need_choice(self.mode, "mode", "nearest", "linear", "cubic")
        need_choice(
            self.coordinate_transformation_mode,
            "coordinate_transformation_mode",
            "half_pixel",
            "half_pixel_symmetric",
            "pytorch_half_pixel",
            "align_corners",
            "asymmetric",
            "tf_crop_and_resize",
            "tf_half_pixel_for_nn",  # of opset 11 alone, but tf2onnx writes it in newer ones, too
        )
        policy = self.keep_aspect_ratio_policy
        need_choice(policy, "keep_aspect_ratio_policy", "stretch", "not_larger", "not_smaller")
        rounding = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        need_choice(self.nearest_mode, "nearest_mode", *rounding)

    def _scaled(self, dims: Shape, scales: TensorType, roi: TensorType | None) -> Shape:
        factors = _floats(scales, "scales")
        extents = np.ones(len(dims), float32)
        if self.coordinate_transformation_mode == "tf_crop_and_resize":
            if roi is None:
                raise ShapeError("tf_crop_and_resize needs roi")
            need_vector(roi, 2 * len(dims), "roi")
            bounds = _floats(roi, "roi")
            extents = None if bounds is None else bounds[len(dims) :] - bounds[: len(dims)]
        if factors is None or extents is None:
            return (None,) * len(dims)
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise ShapeError(f"scales={factors.tolist()}; every scale must be positive")
        return tuple(map(_times, dims, factors, extents))

    def _sized(self, dims: Shape, sizes: Shape | None) -> Shape:
        if sizes is None:
            return (None,) * len(dims)
        for old, size in zip(dims, sizes, strict=True):
            if old == 0 and isinstance(size, int) and size:
                raise ShapeError(f"sizes={sizes} of axes {dims}; no factor makes {size} of 0")
        if self.keep_aspect_ratio_policy == "stretch":
            return sizes
        known = [d for d in (*dims, *sizes) if isinstance(d, int)]
        if len(known) != 2 * len(dims):
            return (None,) * len(dims)
        if min(known, default=1) < 1:
            raise ShapeError(f"sizes={sizes} of axes {dims}; every size must be positive")
        from fractions import Fraction  # which imports decimal

        pairs = zip(cast(tuple[int, ...], dims), cast(tuple[int, ...], sizes), strict=True)
        ratios = [Fraction(size, old) for old, size in pairs]
        smallest = self.keep_aspect_ratio_policy == "not_larger"
        ratio = min(ratios) if smallest else max(ratios)
        return tuple(int(ratio * d + Fraction(1, 2)) for d in known[: len(dims)])


def _given(x: TensorType | None) -> TensorType | None:
    return None if x is None or x.shape == (0,) else x


def _length(x: TensorType) -> int | None:
    """Return the number of elements of a vector, None if it may turn out to be empty."""
    size = dim(x, 0) if x.rank == 1 else None
    return size if isinstance(size, int) else None


def _floats(x: TensorType, name: str) -> Array | None:
    if x.dtype not in FLOATS:
        raise ShapeError(f"{name} {x} must be of a floating-point type")
    with np.errstate(over="ignore"):
        return None if x.known is None else x.known.ravel().astype(float32)


def _times(size: Dim, factor: np.float32, extent: np.float32) -> Dim:
    if factor == 1 and extent == 1:
        return size
    if not isinstance(size, int):
        return None
    with np.errstate(all="ignore"):
        product = float(np.float32(size) * extent * factor)
    if not 0 <= product < 2**63:
        raise ShapeError(f"{size} elements times {extent} times {factor} is not a size")
    return int(product)


@op
class GridSample(Op):
    """x [n, c, *spatial] sampled at grid [n, *output, axes] → [n, c, *output] (ONNX 22).

    Coordinates run from -1 to 1 along each axis and name the innermost axis first.
    """

    align_corners: int = 0
    mode: str = "linear"
    padding_mode: str = "zeros"

    def infer(self, x: TensorType, grid: TensorType) -> TensorType:
        need_choice(self.mode, "mode", "linear", "nearest", "cubic")
        need_choice(self.padding_mode, "padding_mode", "zeros", "border", "reflection")
        rank = grid.rank if x.rank is None else x.rank
        if rank is None:
            return x.with_shape(None)
        if rank < 3:
            raise ShapeError(f"x {x} and grid {grid} have no spatial axis; 3 or more are needed")
        need_rank(grid, rank, "grid")
        same_dim(dim(grid, -1), rank - 2, f"last axis of grid {grid} and spatial axes of x {x}")
        n = same_dim(dim(x, 0), dim(grid, 0), "batches of x and grid")
        output = (None,) * (rank - 2) if grid.shape is None else grid.shape[1:-1]
        shape = (n, dim(x, 1), *output)
        if x.shape is not None and 0 not in shape:
            need_elements(x.shape[2:])
        return x.with_shape(shape)


@op
class AffineGrid(Op):
    """Coordinates theta @ (x, y, 1) of every pixel of `size` [n, c, *spatial] (ONNX 20).

    theta [n, axes, axes + 1] of two or three axes → [n, *spatial, axes], as GridSample reads them.
    """

    dense = True
    align_corners: int = 0

    def infer(self, theta: TensorType, size: TensorType) -> TensorType:
        need_rank(theta, 3, "theta")
        wanted = ints_of(size, "size")
        axes = dim(theta, 1) if wanted is None else len(wanted) - 2
        if isinstance(axes, int) and axes not in (2, 3):
            raise ShapeError(f"{axes} spatial axes; theta {theta}, size {size}: 2 or 3 are needed")
        if not isinstance(axes, int):
            return theta.with_shape(None)
        same_dim(dim(theta, 1), axes, f"rows of theta {theta} and spatial axes")
        same_dim(dim(theta, 2), axes + 1, f"columns of theta {theta} and spatial axes + 1")
        wanted = wanted or (None,) * (axes + 2)
        n = same_dim(dim(theta, 0), wanted[0], "batches of theta and size")
        return theta.with_shape(checked((n, *wanted[2:], axes)))
