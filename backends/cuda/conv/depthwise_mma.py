"""Depthwise convolutions of 16-bit floats on tensor cores: `depthwise_mma.cu`.

Seven of eight multiplications with a diagonal matrix are by zero. It is still faster than other
instructions where windows are large: nothing is converted, and taps need no addresses.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.types import Array
from ..gemm.atoms import HALVES, atom_of
from ..gemm.convolution import ConvProblem, times
from ..recipe.launch import Launch
from ..recipe.operands import Ints, Members, Packed, ceil_div, divisor

WARPS = 4
#: Channels of a warp, and of a block.
EIGHT, CHANNELS = 8, 8 * WARPS
#: Minimum and maximum of taps, which are in registers. In chains of such layers on an H200, windows
#: of 7x7 take 4 to 35 % less time than with the other kernels at the sizes of ConvNeXt at batch 32
#: (64 channels of 28x28 pixels 4 % more), and of 9x9 less than half at batch 8; of 5x5 they take
#: between 13 % less and 25 % more, of 3x3 40 to 60 % more.
MIN_TAPS, MAX_TAPS = 49, 100
#: Maximum side of a window, and its maximum step, for which tiles fit into shared memory.
MAX_SIDE, MAX_STEP = 15, 2
#: Minimum blocks per multiprocessor. With fewer, at batch 1, ConvNeXt-T takes 2 % longer than with
#: `depthwise_rows.cu`, and MambaOut-Femto 5 %.
BUSY = 1.5
#: Maximum of blocks along the third axis of a grid.
MAX_IMAGES = 65535


@record
class DiagonalTile:
    """The pixels of a block, eight columns of them.

    Attributes:
        rows: half of its rows.
        cost: time per row, relative to that of other tiles.
    """

    rows: int
    cost: float

    def __str__(self) -> str:
        """Return its name, such as ``mma 8x8``."""
        return f"mma {2 * self.rows}x{EIGHT}"

    def words(self, p: DiagonalProblem) -> int:
        """Return the words of 16 bytes that each warp has in shared memory."""
        sizes = zip((2 * self.rows, EIGHT), p.steps, p.kernel, strict=True)
        return (prod((size - 1) * step + taps for size, step, taps in sizes) + 5) // 8 * 8 + 2

    def grid(self, p: DiagonalProblem) -> Ints:
        """Return the numbers of tiles along height and width."""
        height, width = p.outputs
        return ceil_div(height, 2 * self.rows), ceil_div(width, EIGHT)

    def blocks(self, p: DiagonalProblem) -> int:
        """Return the number of blocks."""
        return prod(self.grid(p)) * ceil_div(p.conv.x.dims[1], CHANNELS) * p.images

    def time_of(self, p: DiagonalProblem) -> float:
        """Return the time for a column of tiles, to compare tiles."""
        return self.grid(p)[0] * self.rows * self.cost


#: Measured on an H200 with windows of 7x7 and 9x9 of 32 to 768 channels.
TILES = DiagonalTile(4, 1.0), DiagonalTile(7, 0.93)


@record
class DiagonalProblem:
    """A depthwise convolution of images.

    Attributes:
        conv: the convolution.
        images: their number.
        kernel, steps: height and width of a window, and its steps along these.
        outputs: height and width of a result.
        geometry: the members of struct `Plane` that all kernels have.
    """

    conv: ConvProblem
    images: int
    kernel: Ints
    steps: Ints
    outputs: Ints
    geometry: Members

    @property
    def refusal(self) -> str:
        """Why tensor cores do not compute it; empty if they do."""
        conv = self.conv
        if conv.x.dtype not in HALVES or conv.x.dims[1] % EIGHT:
            return "no words of eight 16-bit channels"
        if max(self.kernel) > MAX_SIDE or not MIN_TAPS <= prod(self.kernel) <= MAX_TAPS:
            return f"windows of {times(self.kernel)}"
        if max(self.steps) > MAX_STEP:
            return f"strides of {times(self.steps)}"
        if conv.own or conv.placed is not None:
            return "computed weights"
        if self.images > MAX_IMAGES:
            return f"{self.images} images"
        blocks = self.tile("").blocks(self)
        return f"{blocks} blocks" if blocks < BUSY * conv.setting.target.processors else ""

    def tile(self, name: str) -> DiagonalTile:
        """Return the tile of a name, or the one that is estimated to be fastest."""
        named = {str(tile): tile for tile in TILES}
        return named.get(name) or min(TILES, key=lambda tile: tile.time_of(self))


def depthwise_mma(p: DiagonalProblem, variant: str = "") -> Launch:
    """Return the launch of a tile, given by name or chosen."""
    conv, tile = p.conv, p.tile(variant)
    down, across = tile.grid(p)
    x, y, epilogue = conv.x, conv.y, conv.epilogue
    members = {
        **{**p.geometry, "row_x": x.row, "row_y": y.row, "of_filters": 0},
        **{"words": 0, "across": across, "down": down},
        **{f"by_{name}": divisor(1) for name in ("words", "down", "depth")},
        "by_across": divisor(across),
    }
    return Launch(
        "conv/depthwise_mma.cu",
        "depthwise_mma",
        grid=(down * across, ceil_div(x.dims[1], CHANNELS), p.images),
        block=32 * WARPS,
        args={
            "x": x,
            "w": Packed((conv.w.value,), ("diagonal",), pack_taps),
            **{"y": y, "bias": conv.b, **epilogue.args, "p": members},
        },
        types=epilogue.types,
        constants=(
            *zip(("KD", "KH", "KW"), (1, *p.kernel), strict=True),
            *zip(("STEP_D", "STEP_H", "STEP_W"), (1, *p.steps), strict=True),
            *(("VOLUME", False), ("COLUMNS", 1), ("VECTOR", 2)),
            ("ROWS", tile.rows),
            *epilogue.flags(conv.b),
        ),
        code="\n".join((atom_of(x.dtype).code(), epilogue.code)),
        shared=WARPS * tile.words(p) * 16,
        note=f"{times(p.kernel)} {str(tile)[4:]} {epilogue.title}".strip(),
        pitched=(x, y, *epilogue.pitched),
    )


def pack_taps(w: Array) -> Array:
    """Return weights [c, 1, *kernel] as [c, taps], with zeros up to a multiple of 16 bytes."""
    taps = w.reshape(len(w), -1)
    packed = np.zeros((len(taps), ceil_div(taps.shape[1], EIGHT) * EIGHT), taps.dtype)
    packed[:, : taps.shape[1]] = taps
    return packed
