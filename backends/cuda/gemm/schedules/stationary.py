"""Convolutions of float16 and bfloat16 whose weights stay in shared memory (Hopper).

They have few channels; the kernel is `stationary.cu`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from .....runtime.base.record import record
from ...codegen.epilogue import Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Ints, TensorMap, ceil_div, divisor
from ...recipe.targets import Target
from ..atoms import atom_of
from ..resources import Resources
from ..tables.f16 import STATIONARY
from ..tile import LAUNCH, TMA_CACHE, BlockWork, Config, CtaTile, TimedConfig, estimate, overlapped
from .tma import NARROWEST
from .tma_staging import ALIGNMENT, MAX_ROWS, ROWS, SIDE, TmaProduct, image_map, weights_map

#: Filters of which a warp has the even ones first where filters are the left operand.
PAIRS = 16


@record
class _Form:
    """A convolution by a tile.

    Attributes:
        product: the convolution.
        tile: the tile of a warp group.
    """

    product: TmaProduct
    tile: CtaTile

    @property
    def chunks(self) -> int:
        """Chunks of channels."""
        return ceil_div(self.product.channels, self.product.chunk)

    @property
    def taps(self) -> int:
        """Elements of a window."""
        return prod(self.product.view.kernel)

    @property
    def parts(self) -> int:
        """Parts of the filters, each of which has blocks of its own."""
        return ceil_div(self.product.gemm.shape[1], self.tile.bn)

    @property
    def blocks(self) -> int:
        """Squares of pixels of a tile, one below the other."""
        return self.tile.bm // ROWS

    @property
    def box(self) -> Ints:
        """Rows and columns of the image that a tile reads."""
        down, across = self.product.reach
        return self.blocks * SIDE + down, SIDE + across

    @property
    def tiles(self) -> Ints:
        """Number of tiles of an image along its height and width."""
        height, width = self.product.view.output
        return ceil_div(height, self.blocks * SIDE), ceil_div(width, SIDE)

    @property
    def count(self) -> int:
        """Number of tiles of all images, for each part of the filters."""
        return self.product.images * prod(self.tiles)

    @property
    def has_filters_down(self) -> bool:
        """Whether filters are the left operand of products, and a tile of pixels the right one."""
        return self.tile.bn == ROWS < self.tile.bm

    @property
    def resources(self) -> Resources:
        """What a block takes, with the weights."""
        row, tile = self.product.chunk * 2, self.tile
        stage = ceil_div(prod(self.box) * row, ALIGNMENT) * ALIGNMENT
        weights = self.taps * self.chunks * tile.bn * row + 8 + 8 * tile.groups
        return Resources(
            threads=tile.groups * 128 + 32,  # one producer warp
            ring=tile.groups * tile.stages * (stage + 16) + weights,
            resident=tile.resident,
        )

    def fits(self, target: Target) -> bool:
        """Whether its blocks fit on a multiprocessor, and TMA can load its tiles and weights."""
        p = self.product
        if self.has_filters_down and (p.channels % p.chunk or p.gemm.shape[1] % PAIRS):
            return False
        return self.resources.fits(target) and max(self.box) <= MAX_ROWS

    @property
    def weights(self) -> TensorMap:
        """Where weights of a block are; with filters down, of 16 filters the even ones first."""
        p = self.product
        if not self.has_filters_down:
            return weights_map(p, self.tile.bn)
        row, filters = self.taps * p.channels, p.gemm.shape[1]
        dims, strides = (row, PAIRS // 2, 2, filters // PAIRS), (2 * row, row, PAIRS * row)
        box = p.chunk, PAIRS // 2, 2, self.tile.bn // PAIRS
        return TensorMap(p.gemm.b, p.gemm.dtype, dims, strides, box)

    def microseconds(self, target: Target) -> float:
        """Return the estimate."""
        p, tile, steps = self.product, self.tile, self.taps * self.chunks
        work = BlockWork(
            self.count * self.parts,
            steps,
            tile.groups * tile.resident,
            target.processors,
            self.count * self.parts * self.chunks * prod(self.box) * p.chunk * 2 / TMA_CACHE,
            p.traffic,
            p.chunk / tile.bk,
        )
        return LAUNCH + overlapped(estimate(tile.cost, work), work, target)


def choose(p: TmaProduct, target: Target) -> TimedConfig | None:
    """Return the tile with the lowest estimate, if any applies."""
    return min(candidates(p, target), key=lambda found: found.microseconds, default=None)


def candidates(p: TmaProduct, target: Target) -> Iterator[TimedConfig]:
    """Yield the tiles that apply with their estimates.

    Windows are one pixel apart. Results are stored in words, and tiles have filters for most of
    their columns, in several parts only if nothing runs beside them. There is a tile for every warp
    group: else loading weights takes longer than it saves.
    """
    filters, view = p.gemm.shape[1], p.view
    if p.source is None or p.groups > 1 or prod(view.strides) > 1 or prod(view.kernel) == 1:
        return
    if filters % 8 or p.ldc % 8:
        return
    for tile in STATIONARY:
        form = _Form(p, tile)
        together = tile.groups * tile.resident * target.processors
        is_filled = form.parts * tile.bn - filters < NARROWEST and (
            form.parts == 1 or not p.concurrent
        )
        if is_filled and form.count * form.parts >= together and form.fits(target):
            yield TimedConfig(form.microseconds(target), Config(tile))


def multiply(p: TmaProduct, epilogue: Epilogue, tile: CtaTile, target: Target) -> Launch:
    """Return the launch of a convolution.

    Args:
        p: the convolution.
        epilogue: applied to every result, before pooling.
        tile: what a warp group computes.
        target: the GPU.
    """
    form, view, filters = _Form(p, tile), p.view, p.gemm.shape[1]
    down = form.has_filters_down
    of_image, of_row = prod(form.tiles), form.tiles[1]
    block, places = form.resources, tile.resident * target.processors
    plane = {
        **{"pad_h": view.pads_begin[0], "pad_w": view.pads_begin[1]},
        **{"height": view.output[0], "width": view.output[1]},
        **{"of_image": of_image, "of_row": of_row},
        **{"by_image": divisor(of_image), "by_row": divisor(of_row)},
    }
    return Launch(
        "gemm/stationary.cu",
        "mma_stationary",
        grid=(min(ceil_div(form.count, tile.groups), max(places // form.parts, 1)), form.parts, 1),
        block=block.threads,
        args={
            **{"a": image_map(p, (p.chunk, *reversed(form.box), 1))},
            **{"b": form.weights, "c": p.result, "bias": p.gemm.bias, **epilogue.args},
            **{"filters": filters, "ldc": p.ldc, "count": form.count, "p": plane},
        },
        types=(("T", p.gemm.dtype), *epilogue.aliases),
        constants=(
            *(*tile.constants("GROUPS"), ("BLOCKS", form.blocks), *tile.constants("BN")),
            *(("FILTERS_DOWN", down), ("CHUNK", p.chunk), ("CHUNKS", form.chunks)),
            *(("KH", view.kernel[0]), ("KW", view.kernel[1])),
            *(("DH", view.dilations[0]), ("DW", view.dilations[1])),
            *(*tile.constants("STAGES", "RESIDENT"), ("POOL", p.pooled is not None)),
            *(("VECTOR_C", 8), *epilogue.flags(p.gemm.bias)),
        ),
        code="\n".join((atom_of(p.gemm.dtype).code(tile.bm if down else tile.bn), epilogue.code)),
        shared=block.shared,
        note=f"{tile} {epilogue.title}".strip(),
        pitched=tuple(p.result if t is p.gemm.c else t for t in p.gemm.pitched(epilogue.pitched)),
    )
