"""Which convolution algorithms apply to a problem, and their estimated times, before any recipe.

All of this is arithmetic on shapes and measured constants, so that choosing an algorithm enters no
file of another one. Estimates are in microseconds.
"""

from __future__ import annotations

from math import prod

from ....runtime.base.record import record
from ..algorithms.selection import CHANNELS_LAST, CONTIGUOUS, Formats
from ..gemm import batched, conv_f16
from ..gemm.atoms import HALVES
from ..gemm.convolution import MAX_ELEMENTS, ConvProblem, image_formats
from ..gemm.pack_filters import packing_time
from ..gemm.problem import Problem
from ..gemm.schedules import multistage, simt
from ..recipe.operands import ceil_div

# ── GEMM with a table of windows ────────────────────

#: Images with fewer channels are read in C order, as vectors would be mostly padding.
MIN_CHANNELS = 8
#: Channels of a thread of a depthwise convolution.
WORD = 4
#: Slowdown of implicit GEMM by single-element copies of images in C order.
ACROSS = 1.6


def pointwise_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `gemm_1x1`, or why it does not apply."""
    if conv.taps != 1:
        return f"a window of {conv.taps} elements, not 1"
    if not conv.is_pointwise:
        return "padding around single pixels"
    return conv.need_one_group() or _precomputed_formats(conv)


def window_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `implicit_precomp_gemm`, or why it does not apply."""
    return conv.need_one_group() or _precomputed_formats(conv)


def grouped_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `grouped`, or why it does not apply."""
    if conv.group == 1:
        return "one group"
    return _precomputed_formats(conv)


def _precomputed_formats(conv: ConvProblem) -> Formats | str:
    refused = conv.need_float32() or conv.need_plane() or conv.need_constants()
    return refused or image_formats(conv, MIN_CHANNELS)


def precomputed_problem(conv: ConvProblem) -> Problem:
    """Return the GEMM problem of windows (or pixels) and filters."""
    return Problem(conv.pixels, conv.filters, conv.taps * conv.channels, conv.group)


def precomputed_time(conv: ConvProblem) -> float:
    """Return the estimate of `precomputed`."""
    time = simt.choose(precomputed_problem(conv), conv.setting.target).microseconds
    return ACROSS * time if conv.x.dims[1] < MIN_CHANNELS else time


# ── explicit GEMM ────────────────────


def explicit_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `explicit_gemm`, or why it does not apply."""
    refused = _explicit_refused(conv, conv.need_constants())
    if refused:
        return refused
    terms = conv.taps * conv.channels
    if conv.x.dtype in HALVES and terms % 2:
        return f"rows of {terms} 16-bit elements, an odd number"
    if conv.pixels * terms >= 2**40:
        return f"a matrix of {conv.pixels} x {terms} elements"
    return image_formats(conv, MIN_CHANNELS)


def _explicit_refused(conv: ConvProblem, weights: str) -> str:
    one = conv.need_one_group() or conv.need_plane() or weights
    if one or conv.x.dtype in HALVES:
        return one
    return conv.need_float32()


def explicit_time(conv: ConvProblem) -> float:
    """Return the estimate for writing, reading and multiplying the im2col matrix."""
    m, n, k = conv.pixels, conv.filters, conv.taps * conv.channels
    matrix = 2 * m * k * conv.x.dtype.itemsize / 3.4e6
    if conv.x.dtype in HALVES and conv.channels % 2 == 0:
        return 2.0 + matrix + conv_f16.convolution_time(conv)
    return 2.0 + matrix + simt.choose(Problem(m, n, k), conv.setting.target).microseconds


def transposed_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of a transposed `explicit_gemm`, or why it does not apply."""
    refused = _explicit_refused(conv, conv.need_weights())
    if refused:
        return refused
    if conv.x.dtype in HALVES and conv.channels % 2:
        return f"rows of {conv.channels} 16-bit elements, an odd number"
    pixels = conv.x.size // conv.channels
    if pixels * conv.taps * conv.filters >= MAX_ELEMENTS:
        return f"a matrix of {pixels} x {conv.taps * conv.filters} elements"
    return CHANNELS_LAST


def transposed_time(conv: ConvProblem) -> float:
    """Return the estimate for the product and col2im."""
    m, n = conv.x.size // conv.channels, conv.taps * conv.filters
    traffic = 4 * (2 * m * n + conv.y.size)
    first = 2.0 + packing_time(conv.w)
    problem, target = Problem(m, n, conv.channels), conv.setting.target
    if conv.x.dtype in HALVES:
        return first + traffic / 2.5e6 + multistage.choose(problem, target).microseconds
    return first + traffic / 2.5e6 + simt.choose(problem, target).microseconds


# ── Winograd ────────────────────


@record
class WinogradBlock:
    """The block configuration of winograd.cu.

    Attributes:
        tiles: input tiles per block.
        filters: filters per block.
        channels: channels per step.
        resident: resident blocks per multiprocessor.
        wave: prologue and epilogue of a block in microseconds, measured on an H200.
        step: microseconds per step, measured on an H200.
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


def winograd_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of all Winograd variants, or why none applies."""
    view = conv.view
    if view.kernel != (3, 3):
        return f"windows of {'x'.join(map(str, view.kernel))}, not 3x3"
    if view.strides != (1, 1):
        return f"strides of {'x'.join(map(str, view.strides))}, not 1x1"
    if view.dilations != (1, 1):
        return f"dilations of {'x'.join(map(str, view.dilations))}, not 1x1"
    return conv.need_one_group() or conv.need_float32() or conv.need_constants() or CHANNELS_LAST


def winograd_tiles(conv: ConvProblem, out: int) -> tuple[int, int, int]:
    """Return the number of tiles: in total, along the height, along the width."""
    rows, columns = (ceil_div(size, out) for size in conv.view.output)
    return conv.x.dims[0] * rows * columns, rows, columns


def fused_time(conv: ConvProblem, *, out: int) -> float:
    """Return the estimate of `fused`."""
    block = WINOGRAD_BLOCKS[out]
    tiles, _, _ = winograd_tiles(conv, out)
    blocks = ceil_div(tiles, block.tiles) * ceil_div(conv.filters, block.filters)
    waves = ceil_div(blocks, conv.setting.target.processors)
    steps = ceil_div(conv.channels, block.channels)
    return 4.0 + waves * (block.wave + steps * block.step)


def nonfused_time(conv: ConvProblem, *, out: int) -> float:
    """Return the estimate of `nonfused`."""
    points, (tiles, _, _) = (out + 2) ** 2, winograd_tiles(conv, out)
    problem = Problem(tiles, conv.filters, conv.channels, points)
    spaces = 4 * points * tiles * (conv.channels + conv.filters)
    images = 4 * (conv.x.size + conv.y.size)
    cut = batched.time_in_halves(problem, conv.setting)
    products = 0.85 * batched.time_of(problem, conv.setting) if cut is None else cut
    # Fitted to 26 measurements on an H200, nearly all within 10 %.
    return 4.7 + products + spaces / 5.3e6 + images / 2.6e6


# ── FFT ────────────────────

FFT_SIZES = (16, 32, 64)
#: Channels per block by tile size, as many as fit in shared memory.
FFT_CHANNELS = {16: 8, 32: 8, 64: 4}
#: Microseconds of GPU time per block of the largest tiles.
FFT_BLOCK_64 = 0.2
#: Maximum bytes of transformed weights.
MAX_SPECTRA = 2 << 30


@record
class FftTiling:
    """How an image is tiled.

    Attributes:
        size: rows and columns of a tile.
        valid: valid results per tile along each axis at stride 1; a multiple of the stride.
        counts: number of tiles along each axis.
        tiles: total number of tiles.
    """

    size: int
    valid: tuple[int, int]
    counts: tuple[int, int]
    tiles: int

    @property
    def frequencies(self) -> int:
        """Number of distinct frequencies of a real tile."""
        return self.size * (self.size // 2 + 1)


def fft_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `fft`, or why it does not apply."""
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


def fft_tiling(conv: ConvProblem) -> FftTiling | None:
    """Return the tiling with the fewest operations; None if windows leave no valid results."""
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


def _fft_work(conv: ConvProblem, tiling: FftTiling) -> float:
    """Return the operations of the products, and the cost of weights and spectra."""
    c, m = conv.channels, conv.filters
    products = 4.0 * tiling.tiles * c * m
    moved = 4 * c * m + 4 * tiling.tiles * (c + m)
    return tiling.frequencies * (products + 10 * moved)


def fft_time(conv: ConvProblem) -> float:
    """Return the estimate of `fft`."""
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


def depthwise_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `depthwise`, or why it does not apply."""
    refused = conv.need_depthwise()
    refused = refused or (conv.need_halves() if conv.x.dtype in HALVES else conv.need_float32())
    if conv.own and conv.b is not None:
        return "a bias of each image"
    return refused or conv.need_weights() or CHANNELS_LAST


def depthwise_time(conv: ConvProblem) -> float:
    """Return the estimate of `depthwise`, from memory traffic and arithmetic."""
    traffic = conv.x.dtype.itemsize * (prod(conv.x.dims) + conv.y.size)
    packing = packing_time(conv.w) if conv.placed is None else 0.0
    return 1.5 + max(traffic / 3e6, conv.macs / 6e6) + packing


def depthwise_transposed_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `transposed`, or why it does not apply."""
    if conv.view.is_dilated:
        return "dilations"
    if conv.x.rank > 4:
        return "volumes"
    if conv.x.dims[1] % WORD:
        return f"{conv.x.dims[1]} channels, which fill no words"
    return depthwise_formats(conv)


# ── naive ────────────────────


def naive_formats(conv: ConvProblem) -> Formats | str:
    """Return contiguous formats; `naive` accepts others as well."""
    return conv.need_own() or conv.need_shared() or CONTIGUOUS


def naive_time(conv: ConvProblem) -> float:
    """Return the estimate for one thread per output element."""
    return 3.0 + conv.macs / 1.75e6 + 0.07 * conv.taps * conv.channels
