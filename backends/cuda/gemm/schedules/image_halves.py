"""Implicit GEMM of images in halves, by TMA (Hopper): `image_halves.cu`.

As `halves.py`, with tiles of pixels that the copy engine finds for each tap of the windows.
"""

from __future__ import annotations

from .....runtime.ir.dtypes import float16
from ...codegen.epilogue import Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Ints, TensorMap, ceil_div
from ...recipe.targets import Target
from ..atoms import F16X3
from ..problem import GemmArguments, Image, divided_image
from ..tile import Config, clusters_of
from .halves import shared
from .multistage import SplitK
from .wgmma_rs import fitted, registers, threads

#: Minimum registers of the threads that copy.
LOADER = 56
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


def _map(image: Image, rows: int) -> TensorMap:
    """Return the map of an image in halves as one of 64 channels for each step and image."""
    (height, width), view = image.spatial, image.view
    steps = image.channels // 32
    lower = (-view.pads_begin[1], -view.pads_begin[0])
    upper = _upper(image)
    return TensorMap(
        image.data,
        float16,
        (64, width, height, steps * image.images),
        (64, 64 * width, 64 * width * height),
        (64, rows),
        (lower, (upper[1], upper[0])),
        (1, view.strides[1], view.strides[0], 1),
    )


def multiply(gemm: GemmArguments, epilogue: Epilogue, config: Config, target: Target) -> Launch:
    """Return the launch of a convolution whose image is in `Format.PIXEL_HALVES`."""
    image = gemm.a
    assert isinstance(image, Image)
    config = fitted(config, shared, target.shared)
    (m, n, k), tile, splits = gemm.shape, config.tile, config.splits
    tiles = tile.count(m, n)
    items = tiles * splits
    height, width = image.spatial
    pixels = image.images * height * width
    work = {
        **{"m": m, "n": n, "k": k, "lda": pixels, "tiles_n": ceil_div(n, tile.bn)},
        **{"tiles": tiles, "items": items, "batch_a": 0, "batch_c": 0},
        **{"rows_b": gemm.ldb, "splits": splits},
    }
    taps = {
        **{"images": image.images, "chunks": image.channels // 32},
        "columns": image.view.kernel[1],
        **dict(zip(("of_row", "of_column"), image.view.dilations, strict=True)),
    }
    own, loader = registers(tile, LOADER)
    nbytes = shared(config)
    places = target.processors if splits == 1 else clusters_of(splits, target) * splits
    if items <= places:
        nbytes = target.alone(nbytes)
    moves = (height * width, 1, width, 1)
    return Launch(
        "gemm/image_halves.cu",
        "convolve_halves",
        grid=(tiles if splits > 1 else min(items, tile.resident * target.processors), splits, 1),
        block=threads(tile),
        args={
            **{"a": _map(image, tile.bm), "image_halves": image.data, "b": gemm.b},
            **{"scales": gemm.scales, "c": gemm.c if epilogue.plain else None},
            **{"halves": epilogue.halves, "residual": epilogue.residual},
            **{"bias": gemm.bias, **epilogue.args, "ldc": gemm.ldc, "work": work},
            "image": divided_image(image.spatial, image.output, image.view, moves),
            "taps": taps,
        },
        types=(*gemm.elements, *epilogue.aliases),
        constants=(
            *tile.constants("GROUPS", "BN", "STAGES", "RESIDENT"),
            *(("REGISTERS", own), ("LOADER_REGISTERS", loader), ("DEFER", tile.overlap)),
            ("SPLIT", int(SplitK.CLUSTER if splits > 1 else SplitK.WHOLE)),
            *(("VECTOR_C", gemm.vector_c(4, 2)), *epilogue.flags(gemm.bias)),
        ),
        code="\n".join((F16X3.code(tile.bn), epilogue.halves_code, epilogue.code)),
        shared=nbytes,
        cluster=(1, splits, 1),
        note=f"{F16X3.title} in halves {config} {epilogue.title}".strip(),
        pitched=tuple(t for t in gemm.pitched(epilogue.along) if t is not image.data),
    )
