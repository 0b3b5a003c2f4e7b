"""Which convolution algorithms fit a problem, and how long each takes: before any recipe is made.

All of this is arithmetic on shapes and measured constants, so that choosing an algorithm enters no
file of another one. Estimates are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..algorithms.selection import CHANNELS_LAST, CONTIGUOUS, Formats
from ..gemm import batched, f16
from ..gemm.atoms import HALVES
from ..gemm.convolution import MAX_ELEMENTS, Convolution, image_formats
from ..gemm.problem import Problem
from ..gemm.schedules import simt
from ..recipe.layout import ceil_div

# ── GEMM with a table of windows ────────────────────

#: Fewer channels than this are read in C order: the vectors would be mostly padding.
MIN_CHANNELS = 8
#: By how much copies of single elements make a product of windows in C order slower.
ACROSS = 1.6


def pointwise_formats(conv: Convolution) -> Formats | str:
    """Return the formats of `gemm_1x1`, or why the pixels are not a matrix."""
    if conv.taps != 1:
        return f"a window of {conv.taps} elements, not 1"
    if not conv.is_pointwise:
        return "padding around single pixels"
    return conv.need_one_group() or _precomputed_formats(conv)


def window_formats(conv: Convolution) -> Formats | str:
    """Return the formats of `implicit_precomp_gemm`, or why it cannot be used."""
    return conv.need_one_group() or _precomputed_formats(conv)


def grouped_formats(conv: Convolution) -> Formats | str:
    """Return the formats of `grouped`, or why it cannot be used."""
    if conv.group == 1:
        return "one group"
    return _precomputed_formats(conv)


def _precomputed_formats(conv: Convolution) -> Formats | str:
    refused = conv.need_float32() or conv.need_plane() or conv.need_constants()
    return refused or image_formats(conv, MIN_CHANNELS)


def precomputed_problem(conv: Convolution) -> Problem:
    """Return the product of windows, or of pixels, and filters."""
    return Problem(conv.pixels, conv.filters, conv.taps * conv.channels, conv.group)


def precomputed_time(conv: Convolution) -> float:
    """Return the microseconds that `precomputed` is expected to take."""
    time = simt.choose(precomputed_problem(conv), conv.setting.target).microseconds
    return ACROSS * time if conv.x.dims[1] < MIN_CHANNELS else time


# ── explicit GEMM ────────────────────


def explicit_formats(conv: Convolution) -> Formats | str:
    """Return the formats of `explicit_gemm`, or why it cannot be used."""
    refused = _explicit_refused(conv)
    if refused:
        return refused
    terms = conv.taps * conv.channels
    if conv.x.dtype in HALVES and terms % 2:
        return f"rows of {terms} 16-bit elements, an odd number"
    if conv.pixels * terms >= 2**40:
        return f"a matrix of {conv.pixels} x {terms} elements"
    return image_formats(conv, MIN_CHANNELS)


def _explicit_refused(conv: Convolution) -> str:
    one = conv.need_one_group() or conv.need_plane() or conv.need_constants()
    if one or conv.x.dtype in HALVES:
        return one
    return conv.need_float32()


def explicit_time(conv: Convolution) -> float:
    """Return the microseconds that writing, reading and multiplying are expected to take."""
    m, n, k = conv.pixels, conv.filters, conv.taps * conv.channels
    matrix = 2 * m * k * conv.x.dtype.itemsize / 3.4e6
    if conv.x.dtype in HALVES and conv.channels % 2 == 0:
        operands = f16.Operands(1, conv.y, conv.x, conv.w, conv.b, conv.view)
        return 2.0 + matrix + f16.time_of(operands, conv.setting.target)
    return 2.0 + matrix + simt.choose(Problem(m, n, k), conv.setting.target).microseconds


def transposed_formats(conv: Convolution) -> Formats | str:
    """Return the formats of a transposed `explicit_gemm`, or why it cannot be used."""
    refused = _explicit_refused(conv) or conv.need_float32()
    if refused:
        return refused
    pixels = conv.x.size // conv.channels
    if pixels * conv.taps * conv.filters >= MAX_ELEMENTS:
        return f"a matrix of {pixels} x {conv.taps * conv.filters} elements"
    return CHANNELS_LAST


def transposed_time(conv: Convolution) -> float:
    """Return the microseconds that product and sums are expected to take."""
    m, n = conv.x.size // conv.channels, conv.taps * conv.filters
    traffic = 4 * (2 * m * n + conv.y.size)
    problem = Problem(m, n, conv.channels)
    return 2.0 + traffic / 2.5e6 + simt.choose(problem, conv.setting.target).microseconds


# ── Winograd ────────────────────


@dataclass(frozen=True, slots=True)
class WinogradBlock:
    """What a block of winograd.cu computes.

    Attributes:
        tiles: input tiles.
        filters: filters.
        channels: of a step.
        resident: blocks that share a multiprocessor.
        wave: microseconds of the beginning and the end of a block, measured on an H200.
        step: microseconds of a step, likewise.
    """

    tiles: int
    filters: int
    channels: int
    resident: int
    wave: float
    step: float


WINOGRAD_BLOCKS = {
    2: WinogradBlock(32, 32, 8, 2, 1.5, 1.3),
    4: WinogradBlock(16, 32, 4, 1, 2.5, 1.45),
}


def winograd_formats(conv: Convolution) -> Formats | str:
    """Return the formats of all four, or why none of them can be used."""
    view = conv.view
    if view.kernel != (3, 3):
        return f"windows of {'x'.join(map(str, view.kernel))}, not 3x3"
    if view.strides != (1, 1):
        return f"strides of {'x'.join(map(str, view.strides))}, not 1x1"
    if view.dilations != (1, 1):
        return f"dilations of {'x'.join(map(str, view.dilations))}, not 1x1"
    return conv.need_one_group() or conv.need_float32() or conv.need_constants() or CHANNELS_LAST


def winograd_tiles(conv: Convolution, out: int) -> tuple[int, int, int]:
    """Return the number of tiles: of all images, along the height, along the width."""
    rows, columns = (ceil_div(size, out) for size in conv.view.output)
    return conv.x.dims[0] * rows * columns, rows, columns


def fused_time(conv: Convolution, *, out: int) -> float:
    """Return the microseconds that `fused` is expected to take."""
    block = WINOGRAD_BLOCKS[out]
    tiles, _, _ = winograd_tiles(conv, out)
    blocks = ceil_div(tiles, block.tiles) * ceil_div(conv.filters, block.filters)
    waves = ceil_div(blocks, conv.setting.target.processors)
    steps = ceil_div(conv.channels, block.channels)
    return 4.0 + waves * (block.wave + steps * block.step)


def nonfused_time(conv: Convolution, *, out: int) -> float:
    """Return the microseconds that `nonfused` is expected to take."""
    points, (tiles, _, _) = (out + 2) ** 2, winograd_tiles(conv, out)
    problem = Problem(tiles, conv.filters, conv.channels, points)
    spaces = 4 * points * tiles * (conv.channels + conv.filters)
    images = 4 * (conv.x.size + conv.y.size)
    # Fitted to 26 measurements on an H200, within a tenth of nearly all of them.
    return 4.7 + 0.85 * batched.time_of(problem, conv.setting) + spaces / 5.3e6 + images / 2.6e6


# ── FFT ────────────────────

FFT_SIZES = (16, 32, 64)
#: Channels of a block, by the size of its tiles: as many as shared memory has room for.
FFT_CHANNELS = {16: 8, 32: 8, 64: 4}
#: Microseconds that a block of the largest tiles takes of the GPU, beside others.
FFT_BLOCK_64 = 0.2
#: Bytes of transformed weights above which nobody wants them.
MAX_SPECTRA = 2 << 30


@dataclass(frozen=True, slots=True)
class FftTiling:
    """How an image is cut.

    Attributes:
        size: rows and columns of a tile.
        valid: results of stride 1 along each axis that a tile gives; a multiple of the stride.
        counts: tiles along each axis.
        tiles: of all images.
    """

    size: int
    valid: tuple[int, int]
    counts: tuple[int, int]
    tiles: int

    @property
    def frequencies(self) -> int:
        """Different frequencies of a real tile."""
        return self.size * (self.size // 2 + 1)


def fft_formats(conv: Convolution) -> Formats | str:
    """Return the formats of `fft`, or why it cannot be used."""
    refused = conv.need_one_group() or conv.need_float32() or conv.need_constants()
    if refused:
        return refused
    if conv.x.rank != 4:
        return f"{conv.x.rank - 2} spatial axes, not 2"
    tiling = fft_tiling(conv)
    if tiling is None:
        extent = "x".join(map(str, conv.view.extent))
        return f"windows over {extent}, too large for tiles of {FFT_SIZES[-1]}x{FFT_SIZES[-1]}"
    spectra = 16 * tiling.frequencies * conv.channels * conv.filters
    if spectra > MAX_SPECTRA:
        return f"transformed weights of {spectra} bytes"
    return CHANNELS_LAST


def fft_tiling(conv: Convolution) -> FftTiling | None:
    """Return the tiles with the least arithmetic; None where windows leave no results in them."""
    found: list[tuple[float, FftTiling]] = []
    view = conv.view
    for size in FFT_SIZES:
        valid = [
            (size - extent + 1) // stride * stride
            for extent, stride in zip(view.extent, view.strides, strict=True)
        ]
        if min(valid) < 1:
            continue
        rows, columns = (
            ceil_div((output - 1) * stride + 1, part)
            for output, stride, part in zip(view.output, view.strides, valid, strict=True)
        )
        tiles = conv.x.dims[0] * rows * columns
        tiling = FftTiling(size, (valid[0], valid[1]), (rows, columns), tiles)
        found.append((_fft_work(conv, tiling), tiling))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _fft_work(conv: Convolution, tiling: FftTiling) -> float:
    """Return the arithmetic of the products, and what weights and spectra weigh against it."""
    c, m = conv.channels, conv.filters
    products = 4.0 * tiling.tiles * c * m
    moved = 4 * c * m + 4 * tiling.tiles * (c + m)
    return tiling.frequencies * (products + 10 * moved)


def fft_time(conv: Convolution) -> float:
    """Return the microseconds that `fft` is expected to take."""
    tiling = fft_tiling(conv)
    if tiling is None:
        return float("inf")
    c, m, count = conv.channels, conv.filters, tiling.frequencies
    problem = Problem(tiling.tiles, 2 * m, 2 * c, count)
    ends = 16 * count * tiling.tiles * (c + m) / 2.4e6
    if tiling.size == FFT_SIZES[-1]:
        ends += (
            FFT_BLOCK_64
            * tiling.tiles
            * sum(ceil_div(n, FFT_CHANNELS[tiling.size]) for n in (c, m))
        )
    return 6.0 + batched.time_of(problem, conv.setting) + ends


# ── depthwise ────────────────────


def depthwise_formats(conv: Convolution) -> Formats | str:
    """Return the formats of `depthwise` in float32, or why it cannot be used."""
    refused = conv.need_depthwise() or conv.need_float32()
    return refused or conv.need_plane() or conv.need_constants() or CHANNELS_LAST


def depthwise_time(conv: Convolution) -> float:
    """Return the microseconds that the memory and the arithmetic of `depthwise` take."""
    traffic = conv.x.dtype.itemsize * (prod(conv.x.dims) + conv.y.size)
    return 1.5 + max(traffic / 3e6, conv.macs / 6e6)


# ── naive ────────────────────


def naive_formats(conv: Convolution) -> Formats | str:
    """Return the contiguous formats; `naive` takes others too."""
    return conv.need_own() or CONTIGUOUS


def naive_time(conv: Convolution) -> float:
    """Return the microseconds that one thread per output element is expected to take."""
    return 3.0 + conv.macs / 1.75e6 + 0.07 * conv.taps * conv.channels
