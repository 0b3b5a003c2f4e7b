"""Convolutions of images of few channels, such as first layers, on tensor cores.

float32 is multiplied as three float16 products, with one scale for the part of the image that a
block reads.

Frames of a volume (videos, scans) are images: a block has those of its windows in shared memory.

A MaxPool behind them joins the kernel: a block computes the results that some windows of it cover,
of which those at the edges are computed by several blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float16, float32
from ....runtime.ir.types import Array
from ....runtime.ops.window import Window
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer
from ..algorithms.selection import Formats
from ..gemm.atoms import atom_of
from ..gemm.convolution import MAX_ELEMENTS, ConvProblem
from ..gemm.f16x3 import TOP, cut, exponents, filter_refusal, scales_of
from ..gemm.first_layer import CHANNELS, pack_strips
from ..gemm.tile import LAUNCH, MEMORY
from ..gemm.windows import plane_of
from ..recipe.launch import Launch
from ..recipe.operands import Ints, Packed, Tensor, TensorMap, by_axis, ceil_div, sizes
from .few_channels import need_windows

#: Threads per block, and pixels that they compute at once.
THREADS, ROWS = 256, 128
#: Bytes of a row of results that TMA stores.
ROW = 128
#: Maximum filters of a block, steps of 16 terms, those of volumes, and elements of a pooled window.
MAX_FILTERS, MAX_STEPS, MAX_DEEP_STEPS, MAX_POOLED = 64, 32, 72, 9
#: Microseconds of a wave of blocks for loads and stores, and per step of `ROWS` pixels and eight
#: filters, in 16-bit floats and in float32.
BLOCK, STEP, STEP_FLOAT32 = 5.0, 0.0085, 0.0255
#: Tiles of two and four patches for products of warpgroups, of 8 x 8 pixels, or of 4 x 16 where
#: windows are one pixel apart.
SQUARES = (((8, 16), (16, 8)), ((16, 16), (8, 32), (32, 8)))
#: Microseconds of a wave of these, and besides, in 16-bit floats and in float32, of two patches of
#: a block for loads and stores, for pooling, and per step. Fitted to six layers on an H200, and to
#: four at batch 1; in 16 bits a tenth less since the image arrives in words.
SQUARE_BEGIN, SQUARE_BLOCK, POOLED, SQUARE_STEP = 0.7, (0.55, 1.175), (0.1, 0.5), (0.0025, 0.026)


@record
class Tile:
    """What a block computes.

    Attributes:
        rows, columns: of pixels, before pooling.
        filters: filters, a multiple of 16.
        parts: tiles of 128 pixels.
        in_squares: whether warpgroups multiply squares of 8 x 8 pixels, see
            `few_channels_wgmma.cu`.
    """

    rows: int
    columns: int
    filters: int
    parts: int
    in_squares: bool = False

    @property
    def resident(self) -> int:
        """Blocks per multiprocessor, by the registers for their sums."""
        return 2 if self.filters > 32 else 3 if self.filters > 16 else 4


@record
class FewChannels:
    """A convolution, and how its results are pooled.

    Attributes:
        conv: the convolution.
        pool: the windows of a MaxPool, if any.
        pooled: its result.
    """

    conv: ConvProblem
    pool: Window | None = None
    pooled: Tensor | None = None

    @property
    def result(self) -> Tensor:
        """The tensor that is stored."""
        return self.pooled or self.conv.y

    @property
    def halves(self) -> int:
        """Of how many 16-bit floats a number is the sum."""
        return 2 if self.conv.x.dtype == float32 else 1

    @property
    def view(self) -> Window:
        """The windows of a plane."""
        return plane_of(self.conv.view)

    @property
    def images(self) -> int:
        """The number of planes of results that a filter has."""
        return self.result.dims[0] * prod(self.result.dims[2:-2])

    @property
    def span(self) -> int:
        """Pixels of a row of a window, in fours."""
        return ceil_div(self.view.kernel[1], 4) * 4

    @property
    def steps(self) -> int:
        """Steps of 16 terms."""
        return self.deep * self.view.kernel[0] * self.span // 4

    @property
    def deep(self) -> int:
        """Frames of a window: 1 unless of a volume."""
        return prod(self.conv.view.kernel[:-2])

    def windows(self, tile: Tile) -> Ints:
        """Return the rows and columns of results that a block stores."""
        if self.pool is None:
            return tile.rows, tile.columns
        sides = zip((tile.rows, tile.columns), self.pool.kernel, self.pool.strides, strict=True)
        return tuple((side - kernel) // step + 1 for side, kernel, step in sides)

    def grid(self, tile: Tile) -> Ints:
        """Return the blocks along height and width."""
        shared = zip(self.result.dims[-2:], self.windows(tile), strict=True)
        return tuple(ceil_div(size, side) for size, side in shared)

    def blocks(self, tile: Tile) -> int:
        """Return the number of blocks."""
        down, across = self.grid(tile)
        return down * across * self.images * ceil_div(self.conv.filters, tile.filters)

    def tiles(self) -> Iterator[Tile]:
        """Yield the tiles of the fewest blocks, with one and, unless in float32, two parts."""
        fewest = min(range(ceil_div(self.conv.filters, 16)), key=lambda n: self._wasted(n + 1))
        filters = ceil_div(ceil_div(self.conv.filters, fewest + 1), 16) * 16
        kernel, strides = (self.pool.kernel, self.pool.strides) if self.pool else ((1, 1), (1, 1))
        for parts in range(1, 4 - self.halves):
            sides = [
                Tile((down - 1) * strides[0] + kernel[0], columns, filters, parts)
                for across in range(1, parts * ROWS)
                if (columns := (across - 1) * strides[1] + kernel[1]) <= parts * ROWS
                if (down := (parts * ROWS // columns - kernel[0]) // strides[0] + 1) > 0
            ]
            fitting = [tile for tile in sides if tile.rows * tile.columns <= parts * ROWS]
            yield min(fitting, key=lambda tile: (prod(self.grid(tile)), self._area(tile)))
        target, (step_h, step_w) = self.conv.setting.target, self.view.strides
        wide = 8 if step_w == 2 else 16 if step_w == step_h == self.halves == 1 else 0
        is_volume = self.conv.x.rank > 4  # whose channels are further apart than planes of pixels
        if target.has_wgmma and wide and not is_volume:
            for parts, squares in reversed(tuple(enumerate(SQUARES, 1))):
                sides = (Tile(*side, filters, parts, in_squares=True) for side in squares)
                sides = [tile for tile in sides if tile.columns % wide == 0]
                sides = [tile for tile in sides if self.shared(tile) <= target.room(2)]
                if not sides:
                    continue
                yield (
                    best := min(sides, key=lambda tile: (prod(self.grid(tile)), self._area(tile)))
                )
                if self.blocks(best) > target.processors:
                    return  # smaller ones are for multiprocessors that would have none

    def _wasted(self, parts: int) -> tuple[bool, int, int]:
        """Return whether this many parts of the filters are too large, then the padded filters."""
        own = ceil_div(ceil_div(self.conv.filters, parts), 16) * 16
        return own > MAX_FILTERS, parts * own, parts

    def _area(self, tile: Tile) -> int:
        """Return the pixels of the image that a block reads."""
        sides = zip((tile.rows, tile.columns), self.view.strides, self.view.kernel, strict=True)
        rows, columns = ((side - 1) * step + kernel for side, step, kernel in sides)
        return rows * columns

    def shared(self, tile: Tile) -> int:
        """Return the shared memory per block in bytes, as in `few_channels_mma.cu`."""
        if tile.in_squares:
            return self._shared_by_squares(tile)
        (step_h, step_w), (kernel_h, _) = self.view.strides, self.view.kernel
        columns = ceil_div((tile.columns - 1) * step_w + self.span, 2) * 2
        pixels = self.deep * ((tile.rows - 1) * step_h + kernel_h) * columns
        image = ceil_div(pixels * 8, 128) * 128 + 64
        images = ceil_div(self.halves * image * (1 + step_w % 2), 128) * 128
        weights = self.halves * tile.filters * (self.steps * 32 + 16)
        results = tile.parts * ROWS * (tile.filters * self.result.dtype.itemsize + 16)
        if self.halves == 1:
            return images + weights + results
        return max(images + weights + 16 * pixels, results)

    def _shared_by_squares(self, tile: Tile) -> int:
        """Return the shared memory per block in bytes, as in `few_channels_wgmma.cu`."""
        (step_h, step_w), (kernel_h, _) = self.view.strides, self.view.kernel
        rows = (tile.rows - 1) * step_h + kernel_h
        columns = ceil_div((tile.columns - 1) * step_w + self.span, 2) * 2
        weights = 32 * self.halves * tile.filters * self.steps
        row = ceil_div(columns + 3, 4) * 4 if self.in_words else columns
        raw = rows * row * self.conv.channels * 4  # in float32, if a Cast comes before
        image = 8 * self.halves * rows * columns * (1 + step_w % 2)
        mapped = self.is_mapped(tile)
        pitch = self.staged(tile) * self.result.dtype.itemsize + (0 if mapped else 16)
        aligned, results = 1024 if mapped else 16, tile.rows * tile.columns * pitch
        before = ceil_div(weights + raw, aligned) * aligned
        if self.halves == 2:
            return before + max(image, results)
        return ceil_div(before + image, aligned) * aligned + results

    def has_pixels_across(self, tile: Tile) -> bool:
        """Whether a tile has two patches of 128 pixels, which are multiplied by 64 filters."""
        rows = 16 if self.view.strides[1] == 2 else 8
        large = tile.in_squares and tile.parts == 2 and tile.filters == 64
        return large and self.halves == 1 and tile.rows % rows == 0

    @property
    def in_words(self) -> bool:
        """Whether rows of the image arrive in words of 16 bytes, see `image_words.cuh`.

        In float32 networks take as long.
        """
        return self.halves == 1 and self.conv.x.dims[-1] % 8 == 0

    def is_mapped(self, tile: Tile) -> bool:
        """Whether results leave by TMA, in rows of 128 bytes."""
        return self.pool is None and self.staged(tile) * self.result.dtype.itemsize == ROW

    def staged(self, tile: Tile) -> int:
        """Return the filters whose results are in shared memory at once."""
        if self.halves == 1:
            return tile.filters
        return 32 if tile.filters % 32 == 0 else 16

    def time_of(self, tile: Tile) -> float:
        """Return the estimate for a tile in microseconds."""
        x, y, target = self.conv.x, self.result, self.conv.setting.target
        blocks = self.blocks(tile)
        steps, at = self.steps * tile.parts * tile.filters // 8, self.halves - 1
        count: float = tile.resident
        if tile.in_squares:
            count = max(1.0, min(count, blocks / target.processors))
            part = SQUARE_BLOCK[at] + (POOLED[at] if self.pool else 0.0)
            block, step = SQUARE_BEGIN + count * tile.parts * part, SQUARE_STEP[at]
        else:
            block, step = BLOCK, STEP if self.halves == 1 else STEP_FLOAT32
        waves = ceil_div(blocks, tile.resident * target.processors)
        memory = x.dtype.itemsize * (x.size + y.size) / MEMORY
        return LAUNCH + max(waves * (block + count * step * steps), memory)

    def best(self) -> Tile:
        """Return the tile with the lowest estimate, chosen once for equal problems."""
        result, chosen = self.result, self.conv.setting.tiles
        key = "few channels", self.conv.signature, self.pool, result.dims, result.dtype
        if key not in chosen:
            chosen[key] = min(self.tiles(), key=self.time_of)
        return chosen[key]

    def launch(self) -> Launch:
        """Return the launch."""
        conv, y, tile = self.conv, self.result, self.best()
        x, view, epilogue, pool = conv.x, self.view, conv.epilogue, self.pool
        down, across = self.grid(tile)
        parts = ceil_div(conv.filters, tile.filters)
        half = x.dtype if self.halves == 1 else float16
        blocks = tiles = down * across * self.images
        file, entry = "conv/few_channels_mma.cu", "few_channels_mma"
        form, code = (("TM", tile.parts),), atom_of(half).code()
        if tile.in_squares:
            blocks = min(tiles, ceil_div(tile.resident * conv.setting.target.processors, parts))
            file, entry = "conv/few_channels_wgmma.cu", "few_channels_wgmma"
            form = (
                *(("STAGED", self.staged(tile)), ("PIXELS_ACROSS", self.has_pixels_across(tile))),
                *(("MAPPED", self.is_mapped(tile)), ("IN_WORDS", self.in_words)),
            )
            code = atom_of(half).code(
                128 if self.has_pixels_across(tile) else tile.filters, begins=True
            )
        return Launch(
            file,
            entry,
            grid=(blocks, parts, 1),
            block=THREADS,
            args={
                **{"x": x, "w": self._weights(tile), "scales": self._scales(tile)},
                **{"y": y, "bias": conv.b},
                **epilogue.args,
                **({"tiles": tiles, "map": self._map(tile)} if tile.in_squares else {}),
                "p": self._problem(tile),
            },
            types=(("S", x.dtype), ("T", half), *epilogue.aliases),
            constants=(
                ("PARTS", self.halves),
                *(("CHANNELS", conv.channels), *zip(("KH", "KW"), view.kernel, strict=True)),
                *(() if tile.in_squares else (("KD", self.deep),)),
                *zip(("STEP_H", "STEP_W"), view.strides, strict=True),
                *(("TILE_H", tile.rows), ("TILE_W", tile.columns), *form),
                *(("FILTERS", tile.filters), ("VECTOR_C", 8), ("RESIDENT", tile.resident)),
                *zip(("POOL_H", "POOL_W"), pool.kernel if pool else (0, 0), strict=True),
                *zip(("POOL_STEP_H", "POOL_STEP_W"), pool.strides if pool else (1, 1), strict=True),
                *epilogue.flags(conv.b),
            ),
            code="\n".join((code, epilogue.code)),
            shared=self.shared(tile),
            note=self._note(tile),
            pitched=(y,),
        )

    def _note(self, tile: Tile) -> str:
        """Return the tile, and what joins the convolution."""
        pool = f"MaxPool {'x'.join(map(str, self.pool.kernel))}" if self.pool else ""
        side = f"{tile.rows}x{tile.columns}x{tile.filters}"
        return " ".join(filter(None, (side, self.conv.epilogue.title, pool)))

    def _padded(self, tile: Tile) -> int:
        """Return the filters of all blocks, with padding."""
        return ceil_div(self.conv.filters, tile.filters) * tile.filters

    def _weights(self, tile: Tile) -> Packed:
        """Return the weights as blocks of this tile read them."""
        layout = {"columns": self.span, "filters": self._padded(tile)}
        make = pack_filters if self.halves == 1 else pack_halves
        if tile.in_squares:
            layout["block"] = tile.filters
            make = pack_words if self.halves == 1 else pack_words_in_halves
            make = pack_rows if self.has_pixels_across(tile) else make
        layout_key = make.__name__, *layout.values()
        return Packed((self.conv.w.value,), layout_key, partial(make, **layout))

    def _scales(self, tile: Tile) -> Packed | None:
        """Return the scales of filters in halves; None for 16-bit floats."""
        if self.halves == 1:
            return None
        filters = self._padded(tile)
        pack = partial(pack_scales, filters=filters)
        return Packed((self.conv.w.value,), ("scales of filters", filters), pack)

    def _problem(self, tile: Tile) -> Mapping[str, int]:
        """Return the members of the kernel's struct of sizes."""
        x, y, view, pool = self.conv.x, self.result, self.view, self.pool
        down, across = self.grid(tile)
        return {
            **{"filters": self.conv.filters, **sizes("", x.dims[-2:])},
            **{**sizes("out_", view.output), **by_axis(pad=view.pads_begin)},
            **sizes("pooled_", y.dims[-2:]),
            **by_axis(pool_pad=pool.pads_begin if pool else (0, 0)),
            **{"row_y": y.row, "down": down, "across": across, **self._frames()},
        }

    def _frames(self) -> Mapping[str, int]:
        """Return the frames of a sample and of its results, and where windows begin."""
        if self.conv.x.rank == 4:
            return {"depth": 1, "frames": 1, "frame_step": 1, "pad_d": 0}
        view = self.conv.view
        steps = {"frame_step": view.strides[0], "pad_d": view.pads_begin[0]}
        return {"depth": self.conv.x.dims[2], "frames": view.output[0], **steps}

    def _map(self, tile: Tile) -> TensorMap:
        """Return where the results of a tile are that TMA stores at a time, if it does."""
        y, images, filters, (height, width) = (
            *(self.result, self.images, self.result.dims[1], self.result.dims[-2:]),
        )
        strides = y.row, y.row * width, y.row * width * height
        box = ROW // y.dtype.itemsize, tile.columns, tile.rows, 1
        return TensorMap(y, y.dtype, (filters, width, height, images), strides, box)


def few_channels_mma_formats(conv: ConvProblem) -> Formats | str:
    """Return the formats of `few_channels_mma`, or why it does not apply."""
    refused = (
        conv.need_one_group() or conv.need_constants() or need_windows(conv, CHANNELS, volumes=True)
    )
    if not refused and conv.x.dtype != float32:
        refused = conv.need_halves()
    if refused:
        return refused
    if conv.filters % 8:
        return f"{conv.filters} filters, not a multiple of 8"
    few = FewChannels(conv)
    if few.steps > (MAX_STEPS if few.deep == 1 else MAX_DEEP_STEPS):
        return f"windows of {conv.taps} elements"
    if few.deep > 1 and few.shared(few.best()) + 1024 > conv.setting.target.shared:
        return "windows that do not fit into shared memory"
    if not conv.setting.target.has_tf32:
        return "tensor cores of older GPUs"
    return Format.CONTIGUOUS, Format.CHANNELS_LAST


def few_channels_mma(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the launch of a convolution of few channels; it has no variants."""
    refused = _refusal(conv, conv.y)
    return refused or FewChannels(conv).launch()


def _refusal(conv: ConvProblem, y: Tensor) -> str:
    if max(conv.x.size, conv.y.size) >= MAX_ELEMENTS or not y.is_channels_last or y.row % 8:
        return f"{max(conv.x.size, conv.y.size)} elements"
    if conv.epilogue.pitched or conv.epilogue.stored != conv.epilogue.sums:
        return "an operand like the result, or results of another dtype"
    if conv.x.dtype != float32 or conv.w.data is None:
        return ""
    return filter_refusal(conv.w.data, 1)


def pooled_few_channels(conv: ConvProblem, pool: Window, y: Tensor, apart: float) -> Answer:
    """Return the launch of a convolution with the MaxPool behind it, or why they are two steps.

    Args:
        conv: the convolution.
        pool: the windows.
        y: the pooled result.
        apart: the estimate of both in microseconds.
    """
    refused = few_channels_mma_formats(conv)
    if isinstance(refused, str):
        return refused
    if refusal := _refusal(conv, y):
        return refusal
    if pool.is_dilated or pool.kernel[0] * pool.kernel[1] > MAX_POOLED:
        return "a pooling of large windows"
    found = FewChannels(conv, pool, y)
    if found.time_of(found.best()) > apart:
        return "fusing the pooling takes longer"
    return found.launch()


def few_channels_mma_time(conv: ConvProblem) -> float:
    """Return the estimate of `few_channels_mma` in microseconds."""
    found = FewChannels(conv)
    return found.time_of(found.best())


def pack_filters(w: Array, columns: int, filters: int) -> Array:
    """Return weights [m, c, rows, columns] as [filters, rows * columns * 4], zeros in the gaps.

    Args:
        w: the weights; c is 4 at most. Those of a volume have several times the rows.
        columns: columns of a window in memory.
        filters: m with padding.
    """
    (rows,) = pack_strips(w.reshape(*w.shape[:2], -1, w.shape[-1]), columns)
    return np.pad(rows, ((0, filters - len(rows)), (0, 0)))


def pack_halves(w: Array, columns: int, filters: int) -> Array:
    """Return high and low parts of scaled weights, [2, filters, rows * columns * 4]."""
    rows = pack_filters(w, columns, filters)
    return np.stack(cut(np.ldexp(rows, TOP + 1 - exponents(rows)[:, None])))


def pack_words(w: Array, columns: int, filters: int, block: int) -> Array:
    """Return weights in words of 16 bytes, [block, eights of filters, eights of terms, 8, 8]."""
    return _in_words(pack_filters(w, columns, filters), block)


def pack_rows(w: Array, columns: int, filters: int, block: int) -> Array:
    """Return weights likewise, of 16 filters the even ones first: a thread has rows 8 apart."""
    rows = pack_filters(w, columns, filters)
    order = rows.reshape(filters // 16, 8, 2, -1).transpose(0, 2, 1, 3).reshape(rows.shape)
    return _in_words(np.ascontiguousarray(order), block)


def pack_words_in_halves(w: Array, columns: int, filters: int, block: int) -> Array:
    """Return high and low parts of scaled weights likewise, [block, 2, ...]."""
    return np.stack([_in_words(p, block) for p in pack_halves(w, columns, filters)], 1)


def _in_words(rows: Array, block: int) -> Array:
    filters, terms = rows.shape
    words = rows.reshape(filters // block, block // 8, 8, terms // 8, 8)
    return np.ascontiguousarray(words.transpose(0, 1, 3, 2, 4))


def pack_scales(w: Array, filters: int) -> Array:
    """Return the factors of sums of `pack_halves`, [filters]; see `f16x3.scales_of`."""
    return scales_of(np.pad(w.reshape(len(w), -1), ((0, filters - len(w)), (0, 0))))[0, :filters]
