"""A 1x1 convolution that expands channels, and the depthwise one behind it, as a kernel of float32.

In MobileNets, float32 images between these two are most of what is stored and read; see
`inverted_residual.py` for the kernel that a projection may join.
"""

from __future__ import annotations

from functools import partial
from math import ceil, prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float16
from ....runtime.ir.types import Array
from ..gemm.f16x3 import TOP, cut, exponents, filter_refusal, scales_of
from ..gemm.tile import LAUNCH, MEMORY
from ..recipe.launch import Launch
from ..recipe.operands import Packed, by_axis, ceil_div, sizes
from .pack_residual import padded_floats, pitch
from .residual_forms import ResidualProblem, Tile

#: Pixels of the result per block, rows and columns; expanded channels at a time; threads.
TILES, CHUNK, THREADS = ((8, 8), (8, 7)), 32, 256
#: Maximum channels of the image, and elements of a window.
MAX_CHANNELS, MAX_WINDOW = 32, 9
#: Microseconds of a wave of blocks before their chunks, and of a chunk per 16 pixels that are
#: expanded. Fitted to two layers within MobileNetV2 at batch 32 on an H200.
BEGIN, BAND = 1.9, 0.19


@record
class PairTile(Tile):
    """Pixels of the result per block of `expanded_depthwise.cu`."""

    def shared(self, p: ResidualProblem) -> int:
        """Return the bytes of shared memory, as in `expanded_depthwise.cu`."""
        box, row = self.box(p), pitch(p.terms, 2)
        weights = CHUNK * (2 * row + 4 * (3 + prod(p.filtering.view.kernel)))
        return ceil_div(box, 16) * 16 * (2 * row + 4) + box * (CHUNK * 4 + 32) + 2 * weights

    def resident(self, p: ResidualProblem) -> int:
        """Return the blocks that fit on a multiprocessor."""
        return max(1, min(3, p.target.resident(self.shared(p))))

    def time_of(self, p: ResidualProblem) -> float:
        """Return the estimate in microseconds."""
        waves = prod(self.grid(p)) * p.x.dims[0] / (self.resident(p) * p.target.processors)
        chunk = BAND * ceil_div(self.box(p), 16)
        time = ceil(waves) * (BEGIN + chunk * ceil_div(p.hidden, CHUNK))
        return LAUNCH + max(time, 4 * (p.x.size + p.y.size) / MEMORY)


def best_tile(p: ResidualProblem) -> PairTile | str:
    """Return the tile with the lowest estimate, or why the kernel does not apply."""
    if p.expansion is None or p.projection is not None:
        return "other layers than an expansion and a depthwise convolution"
    if p.x.dims[1] > MAX_CHANNELS or p.x.row % 4 or p.hidden % 4:
        return f"{p.x.dims[1]} channels, more than {MAX_CHANNELS}"
    if prod(p.filtering.view.kernel) > MAX_WINDOW:
        return f"windows of {prod(p.filtering.view.kernel)} elements"
    if not p.target.has_wgmma:
        return "Hopper only"  # not measured elsewhere
    weights = p.expansion.w.data
    refused = "computed weights" if weights is None else filter_refusal(weights, 1)
    if refused:
        return refused
    tiles = [tile for tile in (PairTile(*t) for t in TILES) if tile.shared(p) <= p.target.shared]
    return min(tiles, key=lambda tile: tile.time_of(p), default="tiles that do not fit")


def launch(p: ResidualProblem, tile: PairTile, code: str) -> Launch:
    """Return the launch of a tile.

    Args:
        p: the problem.
        tile: the tile.
        code: the atom and the epilogues.
    """
    x, y, view = p.x, p.y, p.filtering.view
    down, across = tile.grid(p)
    members = {
        **{"channels": x.dims[1], "filters": y.dims[1]},
        **{**sizes("", x.dims[2:]), **sizes("out_", y.dims[2:]), **by_axis(pad=view.pads_begin)},
        **{"row_x": x.row, "row_y": y.row, "down": down, "across": across},
        "chunks": ceil_div(p.hidden, CHUNK),
    }
    constants = [t for layer in p.layers for t in (layer.w, layer.b) if t]
    biases = tuple(layer.b is not None for layer in p.layers)
    titles = (layer.epilogue.title for layer in p.layers)
    return Launch(
        "conv/expanded_depthwise.cu",
        "expanded_depthwise",
        grid=(down * across * x.dims[0], 1, 1),
        block=THREADS,
        args={
            "x": x,
            "weights": Packed(
                tuple(t.value for t in constants),
                ("expanded depthwise", biases),
                partial(pack_weights, biases=biases),
            ),
            **{"y": y, "p": members},
        },
        types=(("T", float16), *p.filtering.epilogue.aliases),
        constants=(
            *(("TERMS", p.terms), ("CHUNK", CHUNK)),
            *zip(("KH", "KW"), view.kernel, strict=True),
            *zip(("STEP_H", "STEP_W"), view.strides, strict=True),
            *(("TILE_H", tile.rows), ("TILE_W", tile.columns), ("RESIDENT", tile.resident(p))),
            *(("VECTOR_C", 4), *p.filtering.epilogue.flags(None)),
        ),
        code=code,
        shared=tile.shared(p),
        note=" ".join(filter(None, (f"{tile.rows}x{tile.columns}x{CHUNK}", *titles))),
        pitched=(x, y),
    )


def pack_weights(*arrays: Array, biases: tuple[bool, ...]) -> Array:
    """Return the weights of all chunks, each in the order of shared memory.

    That is, rows of the expansion as high parts, then as low ones; their factors and biases; the
    windows [element, channel] and their biases.

    Args:
        arrays: for each convolution its weights, and its bias if it has one.
        biases: whether they have one.
    """
    left = list(arrays)
    (w, b), (windows, shift) = [
        (left.pop(0), left.pop(0) if has_bias else np.zeros(0, np.float32)) for has_bias in biases
    ]
    hidden = len(windows)
    count = ceil_div(hidden, CHUNK) * CHUNK
    rows = np.zeros((count, ceil_div(w.shape[1], 16) * 16), np.float32)
    rows[:hidden, : w.shape[1]] = w.reshape(hidden, -1)
    halves = [_wide(part) for part in cut(np.ldexp(rows, TOP + 1 - exponents(rows)[:, None]))]
    taps = np.zeros((windows[0].size, count), np.float32)
    taps[:, :hidden] = windows.reshape(hidden, -1).T
    floats = [scales_of(rows)[0], padded_floats(b, count), *taps, padded_floats(shift, count)]
    parts: list[Array] = []
    for begin in range(0, count, CHUNK):
        here = slice(begin, begin + CHUNK)
        parts += [part[here] for part in (*halves, *floats)]
    bytes_ = [np.ascontiguousarray(part).view(np.uint8).ravel() for part in parts]
    return np.concatenate(bytes_).view(np.float16)


def _wide(rows: Array) -> Array:
    """Return rows `pitch` bytes apart."""
    found = np.zeros((len(rows), pitch(rows.shape[1], 2) // 2), np.float16)
    found[:, : rows.shape[1]] = rows
    return found
