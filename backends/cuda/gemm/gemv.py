"""Products of few rows, which memory bounds: `gemv.cu`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ....runtime.ir.dtypes import DType, float32
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch
from ..recipe.layout import ceil_div
from ..recipe.targets import Target
from .atoms import HALVES, atom_of
from .pack import packed_matrix, padded
from .problem import Linear, Shape

#: The most rows that `gemv.cu` is for.
MAX_ROWS = 8
#: Rows of weights of which a warp of it reads a word each at once.
EIGHT = 8


@dataclass(frozen=True, slots=True)
class RowTile:
    """How a block of `gemv.cu` and its kin walks over the weights.

    Attributes:
        eights: of rows of weights, which the block has.
        warps: that share the terms of these rows.
        steps: of 64 bytes of a row, in each of two buffers of a thread.
        resident: blocks of a multiprocessor that there are registers for.
    """

    eights: int
    warps: int
    steps: int
    resident: int = 1

    def __str__(self) -> str:
        """In short: ``16 rows, 8 warps, 4 steps``."""
        return f"{self.eights * EIGHT} rows, {self.warps} warps, {self.steps} steps"

    @property
    def constants(self) -> tuple[tuple[str, int | bool], ...]:
        """What `gemv.cuh` and the kernels are compiled with."""
        names = ("EIGHTS", "WARPS", "STEPS", "RESIDENT")
        return tuple(zip(names, (self.eights, self.warps, self.steps, self.resident), strict=True))

    def blocks(self, n: int) -> int:
        """Return the number of blocks for n rows of weights."""
        return ceil_div(n, self.eights * EIGHT)


def choose(shape: Shape, dtype: DType, target: Target) -> RowTile:
    """Return the tile to take: as measured on an H200 with 2048 to 128256 rows of weights.

    What counts is that all multiprocessors have bytes on their way from the first moment on: many
    warps of few rows each, whose first words are fetched while the kernel in front still runs.
    """
    _, n, _ = shape
    eights = 2 if ceil_div(n, 2 * EIGHT) >= 0.75 * target.processors else 1
    return RowTile(eights, 16, 2, 2) if dtype in HALVES else RowTile(eights, 8, 2)


def multiply_rows(layer: Linear, epilogue: Epilogue, target: Target) -> Launch:
    """Return the launch of alpha * a @ b + bias for at most `MAX_ROWS` rows and constant `b`."""
    x, bias, (m, n, k) = layer.a, layer.bias, layer.shape
    tile = choose(layer.shape, x.dtype, target)
    # Tensor cores read 16-bit weights in the same order, so that both have them in common.
    words, order = (8, "in eights") if x.dtype in HALVES else (4, "in fours")
    w = packed_matrix(layer.b, layer.form, order, partial(padded, multiple=words))
    return Launch(
        "gemm/gemv.cu",
        "gemv",
        grid=(tile.blocks(n), 1, 1),
        block=32 * tile.warps,
        args={
            **{"w": w, "x": x, "y": layer.y, "bias": bias, **epilogue.args},
            "n": n,
        },
        types=epilogue.types,
        constants=(
            *(("M", m), *tile.constants),
            *(("K", k), ("PITCH", ceil_div(k, words) * words)),
            *(("EDGE", n % (tile.eights * EIGHT) != 0), ("BIAS", bias is not None)),
        ),
        code=f"{atom_of(x.dtype if x.dtype in HALVES else float32).code()}\n{epilogue.code}",
        note=f"{m} by {tile} {epilogue.title}".strip(),
    )
