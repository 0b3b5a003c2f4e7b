"""Convolutions without a table or workspace: direct, and textbook implicit GEMM.

Both support every float type, any number of groups, and every format. `naive_nhwc`, which keeps its
sums in global memory, is for teaching only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from math import gcd, prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, name_of
from ....runtime.ir.types import Array
from ....runtime.ops.conv import ConvTranspose
from ..algorithms.registry import Answer
from ..algorithms.selection import CHANNELS_LAST, CONTIGUOUS, Formats
from ..gemm.convolution import MAX_ELEMENTS, ConvProblem, image_formats
from ..gemm.pack import pack_windows
from ..recipe.launch import Launch
from ..recipe.operands import Ints, Packed, by_axis, ceil_div, moves, sizes
from ..recipe.source import arithmetic
from .estimates import MIN_CHANNELS

# ── implicit GEMM ────────────────────────────────────────────────────────────────────────────────

#: Pixels and filters per block of implicit.cu.
BM, BN = 128, 64
#: Microseconds that a block takes besides its products: layers of few terms (encoders of speech).
BLOCK = 2.3


def implicit_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `implicit_gemm`, or why it does not apply."""
    refused = _refused(conv)
    return refused or image_formats(conv, MIN_CHANNELS)


def _refused(conv: ConvProblem) -> str:
    refused = conv.need_own() or conv.need_plane() or conv.need_constants()
    if refused:
        return refused
    maximum = max(conv.x.size, conv.y.size)
    return f"{maximum} elements, not fewer than 2^31" if maximum >= MAX_ELEMENTS else ""


def implicit_gemm(conv: ConvProblem, variant: str = "") -> Answer:
    """Return an implicit GEMM that computes addresses on the fly; no workspace."""
    if isinstance(conv.op, ConvTranspose):
        return _transposed(conv)
    view = _flat(conv)
    pitch = ceil_div(conv.filters, 4) * 4
    only = Phase((0, 0), view.output, (-view.pads[0], -view.pads[1]), view.kernel, 0)
    pack = partial(pack_rows, groups=conv.group)
    weights = Packed((conv.w.value,), ("rows of groups", conv.group), pack)
    steps = by_axis(stride=view.strides, dilation=view.dilations, step=(1, 1))
    return _launch(conv, weights, None, _plane(conv, pitch, steps), (only,))


def _launch(
    conv: ConvProblem,
    weights: Packed,
    table: Packed | None,
    plane: Mapping[str, int],
    phases: tuple[Phase, ...],
) -> Launch:
    x, y, images = conv.x, conv.y, conv.x.dims[0]
    pixels = max(prod(phase.count) for phase in phases) * images
    return Launch(
        "conv/implicit.cu",
        "implicit_gemm",
        grid=(ceil_div(pixels, BM), ceil_div(conv.filters, BN), conv.group * len(phases)),
        block=256,
        args={
            **{"x": x, "w": weights, "y": y, "bias": conv.b, **conv.epilogue.args, "phases": table},
            **{"p": plane, "only": phases[0].struct},
        },
        types=(("X", x.dtype), ("Y", y.dtype), ("A", arithmetic(y.dtype))),
        constants=(("BIAS", conv.b is not None), ("PHASES", table is not None)),
        code=conv.epilogue.code,
        note=f"{BM}x{BN}x16 {conv.epilogue.title}".strip(),
        pitched=(x,) if conv.epilogue.reads_along else (x, y),
    )


def _plane(conv: ConvProblem, pitch: int, steps: Mapping[str, int]) -> dict[str, int]:
    """Return struct `Plane` of implicit.cu; `steps` are strides, dilations and result strides."""
    x, y = conv.x, conv.y
    return {
        **{"groups": conv.group, "channels": conv.channels, "filters": conv.filters},
        **{"pitch": pitch, "images": x.dims[0], **sizes("", x.dims[2:])},
        **{**moves("of", x.strides), **moves("to", y.strides), **steps},
    }


def _two(values: Ints, missing: int) -> Ints:
    """Return values for two spatial axes."""
    return (missing,) * (2 - len(values)) + values


def pack_rows(w: Array, groups: int) -> Array:
    """Return weights [m, c, *kernel] as [kernel * c, group, m / group], padded to fours."""
    return np.ascontiguousarray(pack_windows(w, groups).transpose(1, 0, 2))


def implicit_time(conv: ConvProblem) -> float:
    """Return the estimate of `implicit_gemm`."""
    phases = prod(conv.view.strides) if isinstance(conv.op, ConvTranspose) else 1
    pixels = ceil_div(ceil_div(conv.pixels, phases), BM) * phases
    blocks = pixels * ceil_div(conv.filters, BN) * conv.group
    steps = ceil_div(ceil_div(conv.taps, phases) * conv.channels, 16)
    rounds = ceil_div(blocks, conv.setting.target.processors)
    return 3.0 + steps * 0.6 + rounds * (BLOCK + 1.45 * steps)


@record
class Flat:
    """The geometry of a 2-D convolution; a single spatial axis counts as the width."""

    kernel: Ints
    strides: Ints
    dilations: Ints
    pads: Ints
    output: Ints


def _flat(conv: ConvProblem) -> Flat:
    view = conv.view
    return Flat(
        _two(view.kernel, 1),
        _two(view.strides, 1),
        _two(view.dilations, 1),
        _two(view.pads_begin, 0),
        _two(view.output, 1),
    )


# ── transposed convolutions as implicit GEMM ─────────────────────────────────────────────────────


@record
class Phase:
    """Results of a convolution with congruent windows; each field has one number per axis.

    Attributes:
        first: index of the first of them.
        count: their number.
        corner: input position of tap 0 of the first one's window.
        taps: size of the window.
        weights: row of the packed weights at which its taps start.
    """

    first: Ints
    count: Ints
    corner: Ints
    taps: Ints
    weights: int

    @property
    def struct(self) -> dict[str, int]:
        """Struct `Phase` of implicit.cu."""
        return {
            **by_axis(first=self.first, count=self.count, corner=self.corner, taps=self.taps),
            "weights": self.weights,
        }


@record
class _PhaseAxis:
    """One axis of a phase: first result, number of results, corner, and taps that hit inputs."""

    first: int
    count: int
    corner: int
    taps: tuple[int, ...]


def _axes(kernel: int, stride: int, dilation: int, pad: int, output: int) -> list[_PhaseAxis]:
    """Return the phases of one axis of a transposed convolution.

    Tap k of result o reads input (o + pad - k * dilation) / stride, where that is a whole number.
    """
    found: list[_PhaseAxis] = []
    for first in range(min(stride, output)):
        taps = tuple(k for k in range(kernel) if (first + pad - k * dilation) % stride == 0)
        corner = (first + pad - taps[0] * dilation) // stride if taps else 0
        found.append(_PhaseAxis(first, ceil_div(output - first, stride), corner, taps))
    return found


def phases_of(view: Flat, channels: int) -> tuple[tuple[Phase, ...], tuple[Ints, ...]]:
    """Return the phases of a transposed convolution, and their taps in packed order."""
    sides = zip(view.kernel, view.strides, view.dilations, view.pads, view.output, strict=True)
    phases: list[Phase] = []
    order: list[Ints] = []
    for row, column in product(*(_axes(*side) for side in sides)):
        taps = tuple(product(row.taps, column.taps))
        phases.append(
            Phase(
                (row.first, column.first),
                (row.count, column.count),
                (row.corner, column.corner),
                (len(row.taps), len(column.taps)),
                len(order) * channels,
            )
        )
        order.extend(taps)
    return tuple(phases), tuple(order)


def _transposed(conv: ConvProblem) -> Answer:
    view = _flat(conv)
    phases, order = phases_of(view, conv.channels)
    if conv.group * len(phases) > 65535:
        return f"{len(phases)} phases of {conv.group} groups"
    pitch = ceil_div(conv.filters, 4) * 4
    pack = partial(pack_phases, order=order, width=view.kernel[1], groups=conv.group)
    weights = Packed((conv.w.value,), ("phases", order, conv.group), pack)
    table = Packed((conv.w.value,), ("table of phases", phases), partial(pack_table, phases=phases))
    apart = [d // gcd(d, s) for d, s in zip(view.dilations, view.strides, strict=True)]
    steps = by_axis(stride=(1, 1), dilation=tuple(-d for d in apart), step=view.strides)
    return _launch(conv, weights, table, _plane(conv, pitch, steps), phases)


def pack_phases(w: Array, order: tuple[Ints, ...], width: int, groups: int) -> Array:
    """Return weights [c, m, *kernel] as [tap of a phase * c, group, m], padded to fours."""
    channels, filters = w.shape[0] // groups, w.shape[1]
    flat = w.reshape(groups, channels, filters, -1)
    chosen = flat[..., [row * width + column for row, column in order]]
    packed = np.zeros((len(order) * channels, groups, ceil_div(filters, 4) * 4), w.dtype)
    packed[..., :filters] = chosen.transpose(3, 1, 0, 2).reshape(-1, groups, filters)
    return packed


def pack_table(w: Array, phases: tuple[Phase, ...]) -> Array:
    """Return the phases as an array of implicit.cu's struct."""
    return np.array([tuple(phase.struct.values()) for phase in phases], np.int32)


# ── direct ───────────────────────────────────────────────────────────────────────────────────────

#: Filters per block of direct.cu, pixels per tile, and pixels per thread.
FILTERS, TILE, PIXELS = 16, 512, 4
#: Maximum static shared memory per block in bytes.
SHARED = 48 << 10


@record
class PixelBlock:
    """The pixel tile of a block of direct.cu, and the channels that it loads at a time."""

    height: int
    width: int
    chunk: int


def direct_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `direct`, or why it does not apply."""
    refused = _refused(conv)
    if refused:
        return refused
    if _block(conv, arithmetic(conv.y.dtype)) is None:
        kernel = "x".join(map(str, conv.view.kernel))
        return f"windows of {kernel} of {name_of(conv.x.dtype)} overflow the shared memory"
    return CONTIGUOUS


def _block(conv: ConvProblem, dtype: DType) -> PixelBlock | None:
    """Return the block with the fewest idle threads whose input tile fits; else None."""
    view = _flat(conv)
    widths = [w for w in (64, 32, 16, 8) if w < 2 * view.output[1]] or [8]
    for width in widths:
        height = TILE // width
        rows, columns = (
            (tile - 1) * s + (k - 1) * d + 1
            for tile, s, k, d in zip(
                (height, width), view.strides, view.kernel, view.dilations, strict=True
            )
        )
        each = (rows * columns + conv.taps * FILTERS) * dtype.itemsize
        if each <= SHARED:
            chunk = max(1, min(8, conv.channels, SHARED // each))
            return PixelBlock(height, width, chunk)
    return None


def direct(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the definition's loops with accumulators in registers; no workspace."""
    x, y, view = conv.x, conv.y, _flat(conv)
    block = _block(conv, arithmetic(y.dtype))
    if block is None:
        return "windows overflow the shared memory"
    blocks = ceil_div(conv.filters, FILTERS)
    tiles = ceil_div(view.output[0], block.height) * ceil_div(view.output[1], block.width)
    if conv.group * blocks > 65535 or x.dims[0] > 65535:
        return f"{conv.group * blocks} blocks of filters, {x.dims[0]} images"
    plane = {
        **{"channels": conv.channels, "filters": conv.filters, "blocks": blocks},
        **{**sizes("", x.dims[2:]), **sizes("out_", view.output), **by_axis(pad=view.pads)},
        **{**moves("of", x.strides), **moves("to", y.strides)},
    }
    pack = partial(pack_blocks, groups=conv.group)
    return Launch(
        "conv/direct.cu",
        "direct",
        grid=(tiles, conv.group * blocks, x.dims[0]),
        block=TILE // PIXELS,
        args={
            **{"x": x, "w": Packed((conv.w.value,), ("blocks", conv.group), pack), "y": y},
            **{"bias": conv.b, **conv.epilogue.args, "p": plane},
        },
        types=(("X", x.dtype), ("Y", y.dtype), ("A", arithmetic(y.dtype))),
        constants=(
            *(("TILE_H", block.height), ("TILE_W", block.width), ("PIXELS", PIXELS)),
            *(("FILTERS", FILTERS), ("CHUNK", block.chunk)),
            *zip(("KH", "KW"), view.kernel, strict=True),
            *zip(("SH", "SW", "DH", "DW"), (*view.strides, *view.dilations), strict=True),
            ("BIAS", conv.b is not None),
        ),
        code=conv.epilogue.code,
        note=f"{block.height}x{block.width} {conv.epilogue.title}".strip(),
        pitched=(x,) if conv.epilogue.reads_along else (x, y),
    )


def pack_blocks(w: Array, groups: int) -> Array:
    """Return weights [m, c, *kernel] as [group, block of filters, c, kernel, FILTERS]."""
    filters, channels, taps = w.shape[0] // groups, w.shape[1], prod(w.shape[2:])
    blocks = ceil_div(filters, FILTERS)
    packed = np.zeros((groups, blocks * FILTERS, channels, taps), w.dtype)
    packed[:, :filters] = w.reshape(groups, filters, channels, taps)
    split = packed.reshape(groups, blocks, FILTERS, channels, taps)
    return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))


def direct_time(conv: ConvProblem) -> float:
    """Return the estimate of `direct`."""
    view = _flat(conv)
    block = _block(conv, arithmetic(conv.y.dtype))
    if block is None:
        return float("inf")
    tiles = ceil_div(view.output[0], block.height) * ceil_div(view.output[1], block.width)
    blocks = tiles * ceil_div(conv.filters, FILTERS) * conv.group * conv.x.dims[0]
    waves = ceil_div(blocks, conv.setting.target.processors)
    return 3.0 + conv.taps * conv.channels * (0.1 + 0.085 * waves)


# ── a first program ──────────────────────────────────────────────────────────────────────────────

#: Maximum threads per block.
MAX_THREADS = 1024


def nhwc_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `naive_nhwc`, or why it does not apply."""
    refused = conv.need_one_group() or conv.need_float32() or conv.need_constants()
    if refused:
        return refused
    if conv.x.rank != 4:
        return f"{conv.x.rank - 2} spatial axes, not 2"
    if conv.filters > MAX_THREADS:
        return f"{conv.filters} filters, one thread each: a block has at most {MAX_THREADS}"
    if max(conv.view.output[0], conv.x.dims[0]) > 65535:
        return f"{conv.x.dims[0]} images of {conv.view.output[0]} rows"
    return CHANNELS_LAST


def naive_nhwc(conv: ConvProblem, variant: str = "") -> Answer:
    """Return one block per pixel, one thread per filter, accumulating in global memory."""
    if conv.epilogue.reads_along:
        return "an operand that may share memory with the sums"
    x, y, view = conv.x, conv.y, conv.view
    plane = {
        **{"channels": conv.channels, **sizes("", x.dims[2:])},
        **by_axis(kernel=view.kernel, stride=view.strides),
        **by_axis(dilation=view.dilations, pad=view.pads_begin),
        "pitch": ceil_div(conv.filters, 4) * 4,
    }
    pack = partial(pack_windows, groups=1)
    weights = Packed((conv.w.value,), ("windows", 1), pack)
    return Launch(
        "conv/naive_nhwc.cu",
        "naive_nhwc",
        grid=(view.output[1], view.output[0], x.dims[0]),
        block=conv.filters,
        args={"x": x, "w": weights, "y": y, "bias": conv.b, **conv.epilogue.args, "p": plane},
        types=(("T", x.dtype),),
        constants=(("BIAS", conv.b is not None),),
        code=conv.epilogue.code,
        note=conv.epilogue.title,
    )


def nhwc_time(conv: ConvProblem) -> float:
    """Return the estimate of `naive_nhwc`."""
    return 10.0 + conv.macs / 3e5 + 0.5 * conv.taps * conv.channels
