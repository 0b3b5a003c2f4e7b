"""TensorFlow's operators of linear algebra: matrices are the last two axes."""

from __future__ import annotations

import numpy as np

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
    _need_few(b, x, size)
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


@operator("Qr", outputs=(1, 2))
def qr(b: NodeBuilder, x: T, *, full_matrices: int = 0) -> tuple[str, str]:
    """Return an orthogonal and an upper triangular factor, by Householder's reflections.

    As in LAPACK, each takes a column to a multiple of the first unit vector, of the sign that its
    first element does not have; columns with zeros below are left as they are.
    """
    rows, columns = b.need_extent(x, -2), b.need_extent(x, -1)
    size = min(rows, columns)
    _need_few(b, x, size)
    rest, factor = x, b.constant(np.eye(rows, dtype=b.dtype(x)))
    zero, one = b.number(0, x), b.number(1, x)
    for at in range(min(size, rows - 1)):
        column = b.Slice(b.slice(rest, -1, at, at + 1), b.ints(at), b.ints(rows), b.ints(-2))
        first, below = b.slice(column, -2, 0, 1), b.slice(column, -2, 1, rows - at)
        is_done = b.Equal(b.ReduceMax(b.Abs(below), b.ints(-2)), zero)
        norm = b.ReduceL2(column, b.ints(-2))
        signed = b.Where(b.Less(first, zero), b.Neg(norm), norm)
        vector = b.Concat(b.Add(first, signed), below, axis=-2)
        vector = _padded(b, vector, at) if at else vector
        length = b.Where(is_done, one, b.ReduceSumSquare(vector, b.ints(-2)))
        scaled = b.Where(is_done, zero, b.Div(b.scaled(vector, 2), length))
        rest = b.Sub(rest, b.MatMul(scaled, b.MatMul(_transposed(b, vector), rest)))
        factor = b.Sub(factor, b.MatMul(b.MatMul(factor, vector), _transposed(b, scaled)))
    if rows > size and not full_matrices:
        rest, factor = b.slice(rest, -2, 0, size), b.slice(factor, -1, 0, size)
    return factor, b.Trilu(rest, upper=1)


def _need_few(b: NodeBuilder, x: str, size: int) -> None:
    """Check how many columns are computed one after the other."""
    if not 0 < size <= _MOST_COLUMNS:
        raise b.unsupported(
            f"{b.type(x)}: factors of 1 to {_MOST_COLUMNS} columns",
            "compute the factor before the export, if it is a constant",
        )


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
