"""Matrix products, Einsum and determinants."""

from __future__ import annotations

from ..errors import ShapeError
from ..ir.op import Op, op
from ..ir.types import Dim, Shape, TensorType
from .shapes import (
    broadcast,
    broadcast_dim,
    dim,
    need_broadcastable,
    need_rank,
    same_dim,
    same_dtype,
)


def matmul_shape(a: TensorType, b: TensorType) -> Shape | None:
    """Return the shape of a @ b by numpy's rule; shared by all operators like MatMul."""
    for name, type_ in (("a", a), ("b", b)):
        if type_.rank == 0:
            raise ShapeError(f"{name} is a scalar; a matrix product needs an axis to sum over")
    if a.shape is None or b.shape is None:
        return None
    inner = b.shape[max(0, len(b.shape) - 2)]
    same_dim(a.shape[-1], inner, f"inner sizes of {a} and {b}")
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1] if len(a.shape) > 1 else ()
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    return (*(batch or ()), *rows, *columns)


@op
class MatMul(Op):
    """numpy.matmul: a @ b, leading axes broadcast, vectors as one row or one column (ONNX 13)."""

    dense = True

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        same_dtype(a, b)
        return a.with_shape(matmul_shape(a, b))


@op
class Gemm(Op):
    """alpha * a' @ b' + beta * c of matrices, a' being a or its transpose (ONNX 13).

    `c` broadcasts to the product.
    """

    dense = True
    alpha: float = 1.0
    beta: float = 1.0
    transA: int = 0
    transB: int = 0

    def infer(self, a: TensorType, b: TensorType, c: TensorType | None = None) -> TensorType:
        same_dtype(a, b, c)
        need_rank(a, 2, "a")
        need_rank(b, 2, "b")
        m, k = (dim(a, 1), dim(a, 0)) if self.transA else (dim(a, 0), dim(a, 1))
        k_of_b, n = (dim(b, 1), dim(b, 0)) if self.transB else (dim(b, 0), dim(b, 1))
        same_dim(k, k_of_b, f"inner sizes of a {a} and b {b}")
        need_broadcastable(c, (m, n), "c")
        return a.with_shape((m, n))


@op
class Einsum(Op):
    """numpy.einsum: the sum over the letters missing in the result (ONNX 28)."""

    dense = True
    equation: str

    def infer(self, inputs: TensorType, *rest: TensorType) -> TensorType:
        operands = (inputs, *rest)
        terms, result = einsum_terms(self.equation)
        if len(terms) != len(operands):
            raise ShapeError(f"'{self.equation}' has {len(terms)} terms for {len(operands)} inputs")
        same_dtype(*operands)
        sizes: dict[str, Dim] = {}
        dots: list[Shape | None] = []
        for term, type_ in zip(terms, operands, strict=True):
            named, covered = _letters(term, type_)
            for letter, size in named.items():
                sizes[letter] = broadcast_dim(sizes.get(letter, 1), size)
            dots.extend([covered] if "." in term else [])
        under_dots = broadcast(*dots)
        if "." in result and under_dots is None:
            return inputs.with_shape(None)
        shape: list[Dim] = []
        for letter in result:
            shape.extend(under_dots or () if letter == "." else (sizes[letter],))
        return inputs.with_shape(tuple(shape))


def einsum_terms(equation: str) -> tuple[tuple[str, ...], str]:
    """Return the input terms and the output term of an equation, an ellipsis as one dot.

    Without an arrow the output has the letters that occur once, in ASCII order, after the dot.

    Raises:
        ShapeError: the equation is malformed.
    """
    plain = equation.replace(" ", "")
    left, arrow, result = plain.replace("...", ".").partition("->")
    terms = tuple(left.split(","))
    letters = [letter for term in terms for letter in term if letter != "."]
    dot = "." if "." in left else ""
    if not arrow:
        result = dot + "".join(sorted(letter for letter in letters if letters.count(letter) == 1))
    legal = all(c.isascii() and c.isalpha() for c in (*letters, *result.replace(".", "")))
    legal = legal and "." not in plain.replace("...", "")
    single = all(term.count(".") <= 1 for term in terms) and result.count(".") == len(dot)
    distinct = len(set(result)) == len(result) and set(result) <= {*letters, "."}
    if not (legal and single and distinct):
        raise ShapeError(
            f"equation '{equation}' must be terms of letters and at most one ellipsis each,"
            " with a result of letters that occur in them, each once"
        )
    return terms, result


def _letters(term: str, type_: TensorType) -> tuple[dict[str, Dim], Shape | None]:
    """Return the size of each letter of a term, and the axes of its ellipsis."""
    if type_.shape is None:
        return dict.fromkeys(term.replace(".", "")), None
    before, dot, after = term.partition(".")
    covered = len(type_.shape) - len(before) - len(after)
    if covered < 0 or (covered and not dot):
        raise ShapeError(f"term '{term.replace('.', '...')}' does not fit {type_}")
    end = len(before) + covered
    sizes: dict[str, Dim] = {}
    named = type_.shape[: len(before)] + type_.shape[end:]
    for letter, size in zip(before + after, named, strict=True):
        sizes[letter] = same_dim(sizes.get(letter), size, f"axes '{letter}' of {type_}")
    return sizes, type_.shape[len(before) : end]


@op
class Det(Op):
    """Determinant of the square matrices in the last two axes: [*, m, m] → [*] (ONNX 22)."""

    dense = True

    def infer(self, x: TensorType) -> TensorType:
        if x.shape is None:
            return x.without_value()
        if len(x.shape) < 2:
            raise ShapeError(f"x {x} is not a matrix")
        same_dim(x.shape[-2], x.shape[-1], f"rows and columns of {x}")
        return x.with_shape(x.shape[:-2])
