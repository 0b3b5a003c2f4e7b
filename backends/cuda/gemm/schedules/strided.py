"""Products of computed matrices with any strides, on tensor cores: `strided.cu`."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

from .....runtime.base.record import record
from .....runtime.ir.dtypes import DType
from ...codegen.epilogue import Epilogue
from ...recipe.launch import Launch
from ...recipe.operands import Ints, Tensor, ceil_div
from ...recipe.targets import Target
from ..atoms import HALVES, TF32, Atom, atom_of
from ..problem import Problem, Shape, widest
from ..tables.strided import CUT, DIRECT
from ..tile import (
    CACHE,
    LAUNCH,
    MAX_KEPT,
    BlockWork,
    Config,
    CtaTile,
    TimedConfig,
    estimate,
    overlapped,
    quickest,
    suited,
)

#: Elements that rows of a tile in shared memory are apart, so that warps read different banks.
APART, FLOATS_APART = 8, 4
#: Bytes that are read in the time in which a result is written, 8 bytes per lane at a time.
WRITING = 6
#: The time of a step relative to one of float32, by the average size of an element of both factors.
SHARES = {4: 1.0, 3: 0.6, 2: 0.4}


@record
class StridedMatrix:
    """An operand of several products, wherever it is in a tensor.

    Attributes:
        data: the tensor.
        batch: elements from the matrix of one product to that of the next, by batch axis.
        line: elements between rows of the left operand or of the result, or columns of the right.
        term: elements between terms, or adjacent results.
        first: the place of the first element.
    """

    data: Tensor
    batch: Ints
    line: int
    term: int
    first: int = 0

    @property
    def across(self) -> bool:
        """Whether adjacent elements belong to different lines."""
        return self.term != 1 and self.line == 1

    def vector(self, lines: int, terms: int) -> int:
        """Return how many of its elements can be copied at once: up to 16 bytes."""
        chunk = 16 // self.data.dtype.itemsize
        inner, outer, size = self.term, self.line, terms
        if self.across:
            inner, outer, size = outer, inner, lines
        vectors = tuple(chunk >> i for i in range(chunk.bit_length()))
        return widest(vectors, size, outer, self.first, *self.batch) if inner == 1 else 1


@record
class StridedProducts:
    """Products c = a @ b.

    Attributes:
        a, b: the factors.
        c: the result, whose terms are adjacent.
        shape: M, N and K of one product.
        stack: sizes of the batch axes, at least one.
        parts: how many tf32 numbers represent one of float32.
        is_transposed: whether this is the product of the transposed matrices: for the epilogue,
            rows are columns.
    """

    a: StridedMatrix
    b: StridedMatrix
    c: StridedMatrix
    shape: Shape
    stack: Ints
    parts: int
    is_transposed: bool = False

    @property
    def transposed(self) -> StridedProducts:
        """The same as the product of the transposed matrices, b' @ a'."""
        (m, n, k), c = self.shape, replace(self.c, line=self.c.term, term=self.c.line)
        is_transposed = not self.is_transposed
        return replace(self, a=self.b, b=self.a, c=c, shape=(n, m, k), is_transposed=is_transposed)

    @property
    def types(self) -> tuple[DType, DType]:
        """The element types of the factors."""
        return self.a.data.dtype, self.b.data.dtype

    def launch(self, epilogue: Epilogue, target: Target, form: str = "") -> Launch:
        """Return the launch, with `epilogue` applied to every result.

        Args:
            epilogue: its operands are where they would be if the result were contiguous.
            target: the GPU.
            form: the tile; empty for the one that is estimated to be the fastest.
        """
        (m, n, k), (a, b, c), types = self.shape, (self.a, self.b, self.c), self.types
        tiles = tiles_of(*types)
        problem = Problem(m, n, k, prod(self.stack))
        config = Config.parse(form, tiles) if form else choose(problem, types, target).config
        tile, atom = config.tile, _atom(*types)
        vectors = a.vector(m, k), b.vector(n, k)
        return Launch(
            "gemm/strided.cu",
            "strided_mma",
            grid=(tile.blocks(problem), 1, 1),
            block=32 * prod(tile.warps) * tile.slices,
            args={
                **{"a": a.data, "b": b.data, "c": c.data, "bias": epilogue.bias, **epilogue.args},
                **{"m": m, "n": n, "k": k, "tiles_n": ceil_div(n, tile.bn)},
                "tiles": tile.count(m, n),
                "by": {
                    **{"a_m": a.line, "a_k": a.term, "b_k": b.term, "b_n": b.line, "c_m": c.line},
                    **{"a_first": a.first, "b_first": b.first},
                },
                **{"stack": self.stack, "of_a": a.batch, "of_b": b.batch, "of_c": c.batch},
            },
            types=(("T", types[0]), ("U", types[1]), *epilogue.aliases),
            constants=(
                *tile.constants("BM", "BN", "WARPS_M", "WARPS_N", "SLICES", "STAGES"),
                *(("PARTS", self.parts), ("RANK", len(self.stack))),
                *(("ACROSS_A", a.across), ("ACROSS_B", b.across)),
                *(("VECTOR_A", vectors[0]), ("VECTOR_B", vectors[1])),
                *(
                    ("VECTOR_C", widest((4, 2), n, c.line, *c.batch)),
                    ("TRANSPOSED", self.is_transposed),
                ),
                *epilogue.flags(epilogue.bias),
            ),
            code="\n".join(
                (atom.code(), f"#define DIRECT_CODE {int(is_direct(*types))}", epilogue.code)
            ),
            shared=shared(tile, types, a.across, b.across),
            note=" ".join(filter(None, (self._title, str(tile), epilogue.title))),
            pitched=(a.data, b.data),
        )

    @property
    def _title(self) -> str:
        """How numbers are multiplied, for reports."""
        if is_direct(*self.types):
            return ""
        products = max(1, sum(t not in HALVES for t in self.types) * (self.parts - 1) + 1)
        return f"{products}xtf32" if products > 1 else "tf32"


def is_direct(a: DType, b: DType) -> bool:
    """Whether elements of these types are multiplied as they are."""
    return a == b and a in HALVES


def _atom(a: DType, b: DType) -> Atom:
    return atom_of(a) if is_direct(a, b) else TF32


def tiles_of(a: DType, b: DType) -> tuple[CtaTile, ...]:
    """Return the tiles for operands of these types."""
    return DIRECT if is_direct(a, b) else CUT


def shared(tile: CtaTile, types: tuple[DType, DType], across_a: bool, across_b: bool) -> int:
    """Return the shared memory per block in bytes: for stages, or the sums of slices."""
    stage = 0
    for lines, dtype, across in zip((tile.bm, tile.bn), types, (across_a, across_b), strict=True):
        inner, outer = (lines, tile.bk) if across else (tile.bk, lines)
        apart = APART if across or dtype.itemsize == 2 else FLOATS_APART
        stage += outer * (inner + apart) * dtype.itemsize
    return max(tile.stages * stage, 4 * (tile.slices - 1) * tile.bm * tile.bn)


@lru_cache(MAX_KEPT)
def choose(problem: Problem, types: tuple[DType, DType], target: Target) -> TimedConfig:
    """Return the tile with the lowest estimate."""
    fitting = [
        tile
        for tile in tiles_of(*types)
        if shared(tile, types, across_a=True, across_b=True) <= target.shared
    ]
    configs = map(Config, suited(fitting, problem))
    return quickest(configs, lambda config: expected(problem, config.tile, types, target))


def expected(problem: Problem, tile: CtaTile, types: tuple[DType, DType], target: Target) -> float:
    """Return the estimate for a tile in microseconds."""
    m, n, k, count = problem.m, problem.n, problem.k, problem.batch
    size_a, size_b = (dtype.itemsize for dtype in types)
    blocks, steps = tile.blocks(problem), ceil_div(k, tile.bk)
    cached = blocks * steps * tile.bk * (tile.bm * size_a + tile.bn * size_b) / CACHE
    traffic = count * (m * k * size_a + n * k * size_b + WRITING * m * n)
    share = 1.0 if is_direct(*types) else SHARES[(size_a + size_b) // 2]
    work = BlockWork(blocks, steps, tile.resident, target.processors, cached, traffic, share)
    return LAUNCH + overlapped(estimate(tile.cost, work), work, target)
