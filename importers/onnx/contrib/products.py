"""Matrix products with what onnxruntime's optimizer fuses into them."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ....runtime.ir import dtypes
from .activation_names import activated
from .builder import NodeBuilder
from .declaration import Float32, Int64, Kind, T, contrib

Bytes = Annotated[str, Kind("B", frozenset({dtypes.uint8}))]
N = Annotated[str, Kind("T", dtypes.FLOATS | dtypes.INTEGERS)]


@contrib("FusedMatMul")
def fused_matmul(
    b: NodeBuilder,
    x: T,
    y: T,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> str:
    """Scaled x @ y, with operands optionally transposed, or their first axis behind the batch."""
    x = _arranged(b, x, bool(transA), bool(transBatchA))
    y = _arranged(b, y, bool(transB), bool(transBatchB))
    return b.scaled(b.MatMul(x, y), alpha)


@contrib("TransposeMatMul")
def transpose_matmul(
    b: NodeBuilder, x: T, y: T, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> str:
    """FusedMatMul under its former name."""
    return fused_matmul(b, x, y, alpha=alpha, transA=transA, transB=transB)


@contrib("FusedMatMulActivation")
def fused_matmul_activation(
    b: NodeBuilder,
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
    """FusedMatMul followed by an activation."""
    how = {"transA": transA, "transB": transB}
    batches = {"transBatchA": transBatchA, "transBatchB": transBatchB}
    product = fused_matmul(b, x, y, alpha=alpha, **how, **batches)
    if activation == "Softmax":
        return b.Softmax(product, axis=activation_axis)
    given = (activation_alpha, activation_beta, activation_gamma)
    return activated(b, product, activation, given)


@contrib("FusedGemm")
def fused_gemm(
    b: NodeBuilder,
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
    """Gemm followed by an activation."""
    product = b.Gemm(x, y, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    if not activation:
        return product
    given = (activation_alpha, activation_beta, activation_gamma)
    return activated(b, product, activation, given)


@contrib("GemmFastGelu")
def gemm_fast_gelu(b: NodeBuilder, x: T, w: T, bias: T | None = None) -> str:
    """The tanh approximation of Gelu, of x @ w + bias."""
    product = b.MatMul(x, w)
    return b.Gelu(product if bias is None else b.Add(product, bias), approximate="tanh")


def _arranged(b: NodeBuilder, x: str, transposed: bool, batch: bool) -> str:
    """Return an operand with its axes in the order that MatMul needs."""
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


#: Block size of MatMulFpQ4, and bytes per scale.
_BLOCK, _SCALE = 32, 4


@contrib("MatMulFpQ4")
def matmul_fp_q4(
    b: NodeBuilder, x: Float32, blob: Bytes, shape: Int64, *, blk_quant_type: int = 1
) -> str:
    """MatMulNBits with weights [k, n] in one row of bytes, as onnxruntime 1.16 wrote them.

    Each column has its blocks of 32 elements in sequence: a float32 scale, a zero point byte if
    `blk_quant_type` is 1, and 16 bytes with low halves first.
    """
    sizes = b.value(shape)
    if blk_quant_type not in (0, 1):
        raise b.unsupported(
            f"blk_quant_type={blk_quant_type}", "quantize the model again, as MatMulNBits"
        )
    if sizes is None or sizes.size != 2:
        raise b.unsupported(
            "B_shape is not a constant with two elements", "give it as an initializer"
        )
    k, n = (int(size) for size in sizes.reshape(-1))
    blocks, head = -(-k // _BLOCK), _SCALE + blk_quant_type
    width = head + _BLOCK // 2
    b.need_shape(blob, "B", n * blocks * width)
    parts = b.reshape(blob, n, blocks, width)
    packed = b.slice(parts, 2, head, width)
    four = b.constant(np.array(4, np.uint8))
    low = b.BitwiseAnd(packed, b.constant(np.array(15, np.uint8)))
    halves = b.Concat(low, b.BitShift(packed, four, direction="RIGHT"), axis=2)
    pairs = b.reshape(halves, n, blocks, _BLOCK // 2, 2)
    first, second = b.several("Split", 2, pairs, axis=3, num_outputs=2)
    bytes_ = b.BitwiseOr(first, b.BitShift(second, four, direction="LEFT"))
    zeros = b.cast(b.slice(parts, 2, _SCALE, head), dtypes.float32) if blk_quant_type else None
    return b.own(
        "MatMulNBits",
        x,
        b.reshape(bytes_, n, blocks, _BLOCK // 2),
        b.reshape(_float_of(b, b.slice(parts, 2, 0, _SCALE)), n, blocks),
        zeros and b.reshape(zeros, n, blocks),
        K=k,
        N=n,
        bits=4,
        block_size=_BLOCK,
    )


def _float_of(b: NodeBuilder, bytes_: str) -> str:
    """Return float32 from four little-endian bytes along the last axis."""
    worth = b.constant(np.array([1 << 8 * i for i in range(4)], np.uint32))
    bits = b.ReduceSum(b.Mul(b.cast(bytes_, dtypes.uint32), worth), b.ints(-1))
    return b.BitCast(bits, to=dtypes.TO_ONNX[dtypes.float32])
