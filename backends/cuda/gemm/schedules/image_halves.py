"""Implicit GEMM of images in halves, by TMA (Hopper): `image_halves.cu`.

As `halves.py`, with tiles of pixels that the copy engine finds for each tap of the windows.
"""

from __future__ import annotations

from math import prod
from typing import Any

from .....runtime.ir.dtypes import float16
from ...codegen.epilogue import Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Ints, Members, TensorMap, ceil_div, divisor
from ...recipe.targets import Target
from ..atoms import F16X3
from ..problem import GemmArguments, Image, RowKind
from ..tile import Config
from ..windows import divided_image
from .halves import IMAGE_LOADER, resources, spread
from .multistage import SplitK
from .wgmma_rs import fitted

#: Pixels in a row of a patch, whose squares are pooled.
SIDE = 8
#: Maximum distances of corners, taps and windows in tensor maps of images.
MAX_CORNER, MAX_TAP, MAX_STEP = 127, 255, 8


def refusal(image: Image) -> str:
    """Return why tensor maps cannot describe the windows of an image; empty if they can."""
    view = image.view
    corners = max(map(abs, (*view.pads_begin, *_upper(image))))
    reach = max((k - 1) * d for k, d in zip(view.kernel, view.dilations, strict=True))
    if corners > MAX_CORNER or reach > MAX_TAP or max(view.strides) > MAX_STEP:
        return f"windows of {'x'.join(map(str, view.extent))} with strides of {max(view.strides)}"
    return ""


def _upper(image: Image) -> Ints:
    """Return where the last windows begin, from the ends of the axes."""
    view = image.view
    axes = zip(view.output, view.strides, view.pads_begin, image.spatial, strict=True)
    return tuple((o - 1) * s + 1 - b - size for o, s, b, size in axes)


def is_pointwise(image: Image) -> bool:
    """Whether the windows of results in order are single pixels in order."""
    single = image.rows is RowKind.PIXELS and prod(image.view.strides) == 1
    return single and not image.squares


def _map(image: Image, rows: int) -> TensorMap:
    """Return the map of an image in halves as one of 64 channels for each step and image."""
    (height, width), view = image.spatial, image.view
    dims = (64, width, height, image.channels // 32 * image.images)
    moves = (64, 64 * width, 64 * width * height)
    if is_pointwise(image):
        return TensorMap(image.data, float16, (64, prod(dims[1:])), (64,), (64, rows))
    if image.squares:
        return TensorMap(image.data, float16, dims, moves, (64, SIDE, rows // SIDE, 1))
    lower, upper = (-view.pads_begin[1], -view.pads_begin[0]), _upper(image)
    corners, steps = (lower, (upper[1], upper[0])), (1, view.strides[1], view.strides[0], 1)
    return TensorMap(image.data, float16, dims, moves, (64, rows), corners, steps)


def side_by_side(output: Ints, rows: int) -> Ints:
    """Return the rows and columns of patches of so many pixels in an image of results."""
    return ceil_div(output[0], rows // SIDE), ceil_div(output[1], SIDE)


def arguments(image: Image, rows: int, stored: int) -> dict[str, Any]:
    """Return what kernels of pixel_halves.cuh need to know of an image.

    Args:
        image: the image.
        rows: the pixels of a tile.
        stored: pixels of the result.
    """
    taps = {
        **{"images": image.images, "chunks": image.channels // 32},
        "columns": image.view.kernel[1],
        **dict(zip(("of_row", "of_column"), image.view.dilations, strict=True)),
        "stored": stored,
    }
    return {
        **{"a": _map(image, rows), "image_halves": image.data},
        **{"pixels": image.images * prod(image.spatial), "taps": taps},
        "image": geometry(image, rows, patches=image.squares),
    }


def geometry(image: Image, rows: int, *, patches: bool) -> Members:
    """Return struct `Image` of the kernel; with `patches`, tiles are patches of so many pixels."""
    height, width = image.spatial
    if not patches:
        return divided_image(image.spatial, image.output, image.view, (height * width, 1, width, 1))
    down, across = side_by_side(image.output, rows)
    moves = down * across, 1, across, 1
    plain = divided_image(image.spatial, image.output, image.view, moves)
    return {**plain, "pixels": divisor(down * across), "columns": divisor(across)}


def multiply(gemm: GemmArguments, epilogue: Epilogue, config: Config, target: Target) -> Launch:
    """Return the launch of a convolution whose image is in `Format.PIXEL_HALVES`."""
    image = gemm.a
    assert isinstance(image, Image)
    config = fitted(config, resources, target.shared)
    (m, n, k), tile, splits = gemm.shape, config.tile, config.splits
    stored = m // 4 if image.squares else m
    if image.squares:
        m = image.images * prod(side_by_side(image.output, tile.bm)) * tile.bm
    tiles = tile.count(m, n)
    items = tiles * splits
    rows = arguments(image, tile.bm, stored)
    work = {
        **{"m": m, "n": n, "k": k, "lda": rows.pop("pixels"), "tiles_n": ceil_div(n, tile.bn)},
        **{"tiles": tiles, "items": items, "batch_a": 0, "batch_c": 0},
        **{"rows_b": gemm.ldb, "splits": splits},
    }
    pooled = "MaxPool 2x2" if image.squares else ""
    block = resources(config, IMAGE_LOADER)
    grid, nbytes = spread(config, block, tiles, target)
    return Launch(
        "gemm/image_halves.cu",
        "convolve_halves",
        grid=grid,
        block=block.threads,
        args={
            **rows,
            **{"b": gemm.b, "scales": gemm.scales, "c": gemm.c if epilogue.plain else None},
            "halves": epilogue.halves,
            **{"bias": gemm.bias, **epilogue.args, "ldc": gemm.ldc, "work": work},
        },
        types=(*gemm.elements, *epilogue.aliases),
        constants=(
            *tile.constants("GROUPS", "BN", "STAGES", "RESIDENT"),
            *zip(("REGISTERS", "LOADER_REGISTERS"), block.registers, strict=True),
            ("DEFER", tile.overlap),
            ("SPLIT", int(SplitK.CLUSTER if splits > 1 else SplitK.WHOLE)),
            ("POINTWISE", is_pointwise(image)),
            *(("VECTOR_C", gemm.vector_c(4, 2)), *epilogue.flags(gemm.bias)),
        ),
        code="\n".join(
            (
                *(F16X3.code(tile.bn), epilogue.halves_code, epilogue.code),
                f"#define PATCHES {int(image.squares)}",
            )
        ),
        shared=nbytes,
        cluster=(1, splits, 1),
        note=" ".join(
            filter(None, (F16X3.title, "in halves", str(config), epilogue.title, pooled))
        ),
        pitched=tuple(t for t in gemm.pitched(epilogue.pitched) if t is not image.data),
    )
