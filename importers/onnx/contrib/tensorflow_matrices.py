"""TensorFlow's operators of linear algebra: matrices are the last two axes."""

from __future__ import annotations

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import T
from .tensorflow_names import operator

#: Each column of a factor is a handful of nodes.
_MOST_COLUMNS = 128


@operator("MatrixInverse")
def matrix_inverse(b: NodeBuilder, x: T, *, adjoint: int = 0) -> str:
    """Return inverses of matrices, transposed if `adjoint`."""
    inverse = b.own("Inverse", x)
    return _transposed(b, inverse) if adjoint else inverse


@operator("MatrixSolve")
def matrix_solve(b: NodeBuilder, matrix: T, rhs: T, *, adjoint: int = 0) -> str:
    """Return solutions y of matrix y = rhs, of the transposed matrix if `adjoint`."""
    return b.MatMul(matrix_inverse(b, matrix, adjoint=adjoint), rhs)


@operator("MatrixTriangularSolve")
def matrix_triangular_solve(
    b: NodeBuilder, matrix: T, rhs: T, *, lower: int = 1, adjoint: int = 0
) -> str:
    """Return solutions of triangular systems; the other triangle of the matrix is not read."""
    return matrix_solve(b, b.Trilu(matrix, upper=1 - lower), rhs, adjoint=adjoint)


@operator("Cholesky")
def cholesky(b: NodeBuilder, x: T) -> str:
    """Return lower triangular factors, one column after the other, of which x = L L^T.

    Only the lower triangle of x is read. Where x is not positive definite, elements are NaN.
    """
    size = b.need_extent(x, -1)
    if not 0 < size <= _MOST_COLUMNS:
        raise b.unsupported(
            f"{b.type(x)}: factors of 1 to {_MOST_COLUMNS} columns",
            "compute the factor before the export, if it is a constant",
        )
    columns: list[str] = []
    for at in range(size):
        rest = b.Slice(b.slice(x, -1, at, at + 1), b.ints(at), b.ints(size), b.ints(-2))
        if columns:
            before = b.Concat(*columns, axis=-1) if at > 1 else columns[0]
            below = b.slice(before, -2, at, size)
            row = _transposed(b, b.slice(before, -2, at, at + 1))
            rest = b.Sub(rest, b.MatMul(below, row))
        column = b.Div(rest, b.Sqrt(b.slice(rest, -2, 0, 1)))
        columns.append(_padded(b, column, at) if at else column)
    return b.Concat(*columns, axis=-1)


def _padded(b: NodeBuilder, column: str, count: int) -> str:
    """Return a column behind zeros."""
    return b.Pad(column, b.ints(count, 0), None, b.ints(-2))


@operator("LogMatrixDeterminant", outputs=(1, 2))
def log_matrix_determinant(b: NodeBuilder, x: T) -> tuple[str, str]:
    """Return the sign of determinants, and the logarithm of their magnitudes, by way of float64."""
    found = b.Det(b.cast(x, dtypes.float64))
    sign, magnitude = b.Sign(found), b.Log(b.Abs(found))
    return b.cast(sign, b.dtype(x)), b.cast(magnitude, b.dtype(x))


def _transposed(b: NodeBuilder, x: str) -> str:
    axes = tuple(range(b.rank(x)))
    return b.transpose(x, *axes[:-2], axes[-1], axes[-2])
