"""Products of matrices, with what onnxruntime's optimiser fuses around them."""

from __future__ import annotations

from typing import Annotated

from ....runtime.ir import dtypes
from .activation_names import activated
from .builder import Builder
from .declaration import Kind, T, contrib

N = Annotated[str, Kind("T", dtypes.FLOATS | dtypes.INTEGERS)]


@contrib("FusedMatMul")
def fused_matmul(
    b: Builder,
    x: T,
    y: T,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> str:
    """Alpha x @ y, each with its first axis moved after the others of the batch, or transposed."""
    x = _arranged(b, x, bool(transA), bool(transBatchA))
    y = _arranged(b, y, bool(transB), bool(transBatchB))
    return _scaled(b, b.MatMul(x, y), alpha)


@contrib("TransposeMatMul")
def transpose_matmul(
    b: Builder, x: T, y: T, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> str:
    """FusedMatMul under its first name."""
    return fused_matmul(b, x, y, alpha=alpha, transA=transA, transB=transB)


@contrib("FusedMatMulActivation")
def fused_matmul_activation(
    b: Builder,
    x: T,
    y: T,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_axis: int | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> str:
    """FusedMatMul and an activation after it."""
    x = _arranged(b, x, bool(transA), bool(transBatchA))
    y = _arranged(b, y, bool(transB), bool(transBatchB))
    product = _scaled(b, b.MatMul(x, y), alpha)
    if activation == "Softmax":
        return b.Softmax(product, axis=activation_axis)
    given = (activation_alpha, activation_beta, activation_gamma)
    return activated(b, product, activation, given)


@contrib("FusedGemm")
def fused_gemm(
    b: Builder,
    x: N,
    y: N,
    c: N | None = None,
    *,
    activation: str | None = None,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> str:
    """Gemm and an activation after it."""
    product = b.Gemm(x, y, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    if not activation:
        return product
    given = (activation_alpha, activation_beta, activation_gamma)
    return activated(b, product, activation, given)


@contrib("GemmFastGelu")
def gemm_fast_gelu(b: Builder, x: T, w: T, bias: T | None = None) -> str:
    """The Gelu that tanh approximates, of x @ w + bias."""
    product = b.MatMul(x, w)
    return b.Gelu(product if bias is None else b.Add(product, bias), approximate="tanh")


def _arranged(b: Builder, x: str, transposed: bool, batch: bool) -> str:
    """Return an operand with its axes in the order that MatMul wants."""
    if not transposed and not batch:
        return x
    rank = b.rank(x)
    if rank < 2:
        return x
    order = list(range(rank))
    if batch:
        order = [*order[1:-1], 0, order[-1]]
    if transposed:
        order[-2:] = order[:-3:-1]
    return b.transpose(x, *order)


def _scaled(b: Builder, x: str, alpha: float) -> str:
    return x if alpha == 1 else b.Mul(x, b.number(alpha, x))
