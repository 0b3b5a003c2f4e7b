"""Products of matrices: their sizes, which a tile is chosen for, and their operands."""

from __future__ import annotations

from dataclasses import dataclass

from ....runtime.ir.dtypes import DType, float32
from ..recipe.operands import Given, Packed, Scratch, Tensor
from .sources import Rows, Source, widest
from .tile import Shape, Tile


@dataclass(frozen=True, slots=True)
class Problem:
    """One or several products of equal size.

    Attributes:
        m, n, k: rows, columns and terms of one.
        batch: how many.
        rows: what the rows of A are.
        traffic: bytes that are read and written.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    rows: Rows = Rows.MATRIX
    traffic: int = 0

    def blocks(self, tile: Tile) -> int:
        """Return the number of tiles."""
        return tile.count(self.m, self.n) * self.batch

    @property
    def windows(self) -> bool:
        """Whether elements of A are looked up in a table."""
        return self.rows is Rows.WINDOWS


@dataclass(frozen=True, slots=True)
class Batch:
    """How many products there are, or groups of a convolution, and the distances of operands."""

    count: int = 1
    a: int = 0
    b: int = 0
    c: int = 0


#: One product.
SINGLE = Batch()


@dataclass(frozen=True, slots=True)
class Gemm:
    """Products c = a @ b' + bias.

    Attributes:
        a: the left operand.
        b: the right operand, [batch][n][ldb] with zeros behind column k, or as a schedule wants
            it: constants, in the workspace, or as it is given.
        c: the results.
        shape: rows, columns and terms of one product.
        ldb, ldc: distances of rows, in elements; of `b` in parts the rows of a part.
        batch: how many products.
        bias: one number a column, or None.
        across: `b` is [k][n] instead.
        dtype: of the elements of `a`.
        dtype_b: of those of `b`; None where it is the same.
    """

    a: Source
    b: Packed | Tensor | Scratch
    c: Tensor | Scratch
    shape: Shape
    ldb: int
    ldc: int
    batch: Batch = SINGLE
    bias: Tensor | Packed | None = None
    across: bool = False
    dtype: DType = float32
    dtype_b: DType | None = None

    @property
    def elements(self) -> tuple[tuple[str, DType], tuple[str, DType]]:
        """The C++ aliases T and U of the elements of `a` and `b`."""
        return ("T", self.dtype), ("U", self.dtype_b or self.dtype)

    @property
    def constant(self) -> bool:
        """Whether `b` was there before the kernel in front began."""
        return isinstance(self.b, Packed)

    def vector_c(self, *vectors: int) -> int:
        """Return how many results are stored at once: one of these numbers, or 1."""
        return widest(vectors, self.shape[1], self.ldc, self.batch.c)

    def pitched(self, along: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the operands of a convolution that may be slices; see `Launch.pitched`.

        Args:
            along: those of its epilogue that lie like the result.
        """
        if self.a.rows is Rows.MATRIX:
            return ()
        images = (self.a.data, self.c, *along)
        return tuple(image for image in images if isinstance(image, Tensor))

    @property
    def sizes(self) -> dict[str, Given]:
        """The arguments that kernels have for sizes, distances and windows."""
        m, n, k = self.shape
        return {
            **{"table": self.a.table, "image": self.a.geometry, "m": m, "n": n, "k": k},
            **{"lda": self.a.distance, "batch_a": self.batch.a},
        }
