"""Pooling of regions."""

from __future__ import annotations

import numpy as np

from ...runtime.dtypes import FLOATS
from ...runtime.ops.pool import MaxRoiPool, RoiAlign
from .compile import arithmetic
from .launch import Argument, Ints32, Launch, Tensor, each
from .registry import Answer, kernel, need_dtypes


def _regions(entry: str, y: Tensor, x: Tensor, *args: Argument, **constants: bool) -> Launch:
    """Return a launch of `roi.cu`; `args` are what the entry takes besides x, y and the sizes."""
    addresses = [a for a in args if isinstance(a, Tensor)]
    numbers = [a for a in args if not isinstance(a, Tensor)]
    region = Ints32((*x.dims[1:], *y.dims[2:]))
    chosen = {"HALF_PIXEL": False, "MAXIMUM": False, **constants}
    return each(
        "roi.cu",
        entry,
        y.size,
        *(x, *addresses, y, np.int64(y.size), region, *numbers),
        types=(("T", x.dtype), ("A", arithmetic(x.dtype))),
        constants=tuple(chosen.items()),
    )


@kernel(RoiAlign)
def roi_align(op: RoiAlign, y: Tensor, x: Tensor, rois: Tensor, images: Tensor) -> Answer:
    """Pool bilinear samples of each region."""
    return need_dtypes(FLOATS, x) or _regions(
        "roi_align",
        *(y, x, rois, images, np.int32(op.sampling_ratio), np.float64(op.spatial_scale)),
        HALF_PIXEL=op.coordinate_transformation_mode == "half_pixel",
        MAXIMUM=op.mode == "max",
    )


@kernel(MaxRoiPool)
def max_roi_pool(op: MaxRoiPool, y: Tensor, x: Tensor, rois: Tensor) -> Answer:
    """Take the maximum of each cell of each region."""
    return need_dtypes(FLOATS, x) or _regions(
        "max_roi_pool", y, x, rois, np.float64(op.spatial_scale)
    )
