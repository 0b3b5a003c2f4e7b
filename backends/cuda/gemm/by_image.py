"""1x1 convolutions of 16-bit images as a product for each image."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from . import f16
from .convolution import ConvProblem
from .joined_groups import JoinedGroups
from .problem import Batch, GemmArguments, Matrix, image_source, widest


def gemm_by_image(conv: ConvProblem) -> GemmArguments | None:
    """Return products whose rows are the pixels of one image; None if the image is packed first.

    Args:
        conv: a convolution by windows of one pixel, side by side, of one group.
    """
    groups, x = JoinedGroups(conv), conv.x
    image, packing = image_source(x, conv.w, conv.view, conv.y.dims[2:], f16.VECTORS)
    if packing:
        return None
    gemm, pixels = groups.gemm(image, groups.filters(image.channels)), prod(conv.y.dims[2:])
    return replace(
        gemm,
        a=Matrix(x, x.row, widest(f16.VECTORS, image.channels, x.row)),
        shape=(pixels, *gemm.shape[1:]),
        batch=Batch(x.dims[0], x.strides[0], 0, pixels * gemm.ldc),
    )
