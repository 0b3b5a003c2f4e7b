"""Region-of-interest pooling."""

from __future__ import annotations

from ....runtime.ir.dtypes import FLOATS
from ....runtime.ops.boxes import MaxRoiPool, RoiAlign
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..recipe.launch import Launch, each
from ..recipe.operands import Arguments, Tensor
from ..recipe.source import arithmetic


def _regions(
    entry: str, y: Tensor, x: Tensor, rois: Tensor, args: Arguments, **constants: bool
) -> Launch:
    """Return a launch of `roi.cu`; `args` are those specific to the entry."""
    (count, channels, height, width), (rows, columns) = x.dims, y.dims[2:]
    region = {
        **{"images": count, "channels": channels, "height": height, "width": width},
        **{"rows": rows, "columns": columns},
    }
    chosen = {"HALF_PIXEL": False, "MAXIMUM": False, **constants}
    return each(
        "image/roi.cu",
        entry,
        y.size,
        {"x": x, "rois": rois, "y": y, "count": y.size, "g": region, **args},
        types=(("T", x.dtype), ("A", arithmetic(x.dtype))),
        constants=tuple(chosen.items()),
    )


@kernel(RoiAlign)
def roi_align(op: RoiAlign, y: Tensor, x: Tensor, rois: Tensor, images: Tensor) -> Answer:
    """Pool bilinear samples of each region."""
    return need_dtypes(FLOATS, x) or _regions(
        "roi_align",
        *(y, x, rois),
        {"images": images, "ratio": op.sampling_ratio, "scale": op.spatial_scale},
        HALF_PIXEL=op.coordinate_transformation_mode == "half_pixel",
        MAXIMUM=op.mode == "max",
    )


@kernel(MaxRoiPool)
def max_roi_pool(op: MaxRoiPool, y: Tensor, x: Tensor, rois: Tensor) -> Answer:
    """Take the maximum of each cell of each region."""
    return need_dtypes(FLOATS, x) or _regions(
        "max_roi_pool", y, x, rois, {"scale": op.spatial_scale}
    )
