"""Convolutions as matrix products whose left matrix is never stored: implicit GEMM.

A row of that matrix is the window of one output pixel. Which element of the image an element of the
window is, `gemm.cu` looks up in a table that was computed before (implicit_precomp_gemm), and
`implicit.cu` computes on the way (implicit_gemm).
"""

from __future__ import annotations

from functools import cache, partial
from math import prod

import numpy as np

from ...runtime.types import Array
from .compile import Target
from .convolution import Convolution, image_formats
from .layout import ceil_div
from .matmul import PIXELS, WINDOWS, Product, multiply, vector_of
from .menu import Formats
from .operands import Packed, Tensor
from .registry import Answer
from .tiles import TILES, Tile, choose, estimate, tile_named, title_of
from .windows import image_of, pack_table

#: Fewer channels than this are read in the plain order: the vectors would be mostly padding.
LEAST_CHANNELS = 8
#: By how much copies of single elements make a product of windows in the plain order slower.
ACROSS = 1.6
SPLITS_TRIED = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


# ── the names ────────────────────────────────────────────────────────────────────────────────────


def pointwise_formats(conv: Convolution) -> Formats | str:
    """Return the formats of `gemm_1x1`, or why the pixels are no matrix."""
    if conv.taps != 1:
        return f"a window of {conv.taps} elements, not 1"
    if not conv.is_pointwise:
        return "padding around single pixels"
    return conv.need_one_group() or _formats(conv)


def window_formats(conv: Convolution) -> Formats | str:
    """Return the formats of `implicit_precomp_gemm`, or why it cannot be used."""
    return conv.need_one_group() or _formats(conv)


def grouped_formats(conv: Convolution) -> Formats | str:
    """Return the formats of `grouped`, or why it cannot be used."""
    if conv.group == 1:
        return "one group"
    return _formats(conv)


def _formats(conv: Convolution) -> Formats | str:
    refused = conv.need_float32() or conv.need_plane() or conv.need_constants()
    return refused or image_formats(conv, LEAST_CHANNELS)


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


def precomputed(conv: Convolution, variant: str = "") -> Answer:
    """Return the product of windows, or of pixels, and filters by `gemm.cu`."""
    return multiply(product_of(conv), conv.tail, conv.setting, _tile(conv, variant))


def product_of(conv: Convolution) -> Product:
    """Return the convolution as a matrix product: output pixels x filters, summed over windows."""
    x, y, view = conv.x, conv.y, conv.view
    terms = conv.taps * conv.channels
    ldb = ceil_div(conv.filters, 4) * 4
    vector = vector_of(conv.channels, x.row) if x.is_channels_last else 1
    pixels = conv.is_pointwise and x.is_channels_last
    pack = partial(pack_windows, groups=conv.group)
    return Product(
        a=x,
        b=Packed((conv.w.value,), ("windows", conv.group), pack),
        c=y,
        m=conv.pixels,
        n=conv.filters,
        k=terms,
        lda=0,
        ldb=ldb,
        ldc=y.row,
        batch=(conv.group, conv.channels * x.strides[1], terms * ldb, conv.filters),
        bias=conv.b,
        rows=PIXELS if pixels else WINDOWS,
        vector_a=vector,
        across=not x.is_channels_last,
        table=None if pixels else window_table(conv.w, x, conv, vector),
        image=image_of(x.dims[2:], y.dims[2:], view, x.strides),
    )


def window_table(w: Tensor, x: Tensor, conv: Convolution, vector: int) -> Packed:
    """Return the array of struct `Window` of gemm.cu: where the elements of a window lie."""
    view, channels, moves = conv.view, conv.channels, x.strides[1:]
    layout = ("table", channels, view.kernel, view.dilations, moves, vector)
    pack = partial(
        pack_table, channels=channels, kernel=view.kernel, dilations=view.dilations, moves=moves,
        vector=vector,
    )  # fmt: skip
    return Packed((w.value,), layout, pack)


def pack_windows(w: Array, groups: int) -> Array:
    """Return weights [m, c, *kernel] as [group, kernel * c, m / group], padded to fours."""
    filters, channels = w.shape[0] // groups, w.shape[1]
    taps = prod(w.shape[2:])
    packed = np.zeros((groups, taps * channels, ceil_div(filters, 4) * 4), w.dtype)
    ordered = w.reshape(groups, filters, channels, taps).transpose(0, 3, 2, 1)
    packed[..., :filters] = ordered.reshape(groups, taps * channels, filters)
    return packed


# ── tiles ────────────────────────────────────────────────────────────────────────────────────────

_choose = cache(choose)


def _shape(conv: Convolution) -> tuple[int, int, int, int]:
    return conv.pixels, conv.filters, conv.taps * conv.channels, conv.group


def _tile(conv: Convolution, variant: str) -> tuple[Tile, int]:
    """Return the tile and the splits of a variant, or the best guess within the workspace."""
    if variant:
        return tile_named(variant)
    tile, splits = _choose(*_shape(conv), conv.setting.target)
    limit = conv.setting.options.workspace
    m, n, _, count = _shape(conv)
    if splits > 1 and limit is not None and 4 * count * splits * m * n > limit:
        return unsplit(*_shape(conv), conv.setting.target), 1
    return tile, splits


@cache
def unsplit(m: int, n: int, k: int, batch: int, target: Target) -> Tile:
    """Return the tile that should be fastest where the workspace has no room for split sums."""
    return min(TILES, key=lambda tile: estimate(m, n, k, batch, tile, 1, target.processors))


def product_time(m: int, n: int, k: int, batch: int, target: Target) -> float:
    """Return the microseconds that a product by `gemm.cu` is expected to take."""
    tile, splits = _choose(m, n, k, batch, target)
    return estimate(m, n, k, batch, tile, splits, target.processors)


def precomputed_time(conv: Convolution) -> float:
    """Return the microseconds that `precomputed` is expected to take."""
    time = product_time(*_shape(conv), conv.setting.target)
    return ACROSS * time if conv.x.dims[1] < LEAST_CHANNELS else time


def tile_variants(conv: Convolution) -> tuple[str, ...]:
    """Return the tiles, each with the splits of sums that are worth a try."""
    return forms_of(*_shape(conv), conv.setting.target)


def forms_of(m: int, n: int, k: int, count: int, target: Target) -> tuple[str, ...]:
    """Return the tiles and splits that `gemm.cu` has for a product, most promising first."""
    found: list[tuple[float, str]] = []
    for tile in TILES:
        for splits in SPLITS_TRIED:
            if splits > 1 and ceil_div(k, tile.bk) < 3 * splits:
                break
            time = estimate(m, n, k, count, tile, splits, target.processors)
            found.append((time, title_of(tile, splits)))
    found.sort()
    return tuple(title for time, title in found if time < 2 * found[0][0])
