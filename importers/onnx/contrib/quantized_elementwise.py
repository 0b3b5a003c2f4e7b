"""Quantized elementwise operators, and quantization operators that predate ONNX's."""

from __future__ import annotations

from typing import Annotated

from ....runtime.ir import dtypes
from ....runtime.ir.types import Array
from .builder import NodeBuilder
from .declaration import Anything, Float32, Kind, contrib
from .quantized import Q, dequantized, quantized

_WHOLE = frozenset(
    {
        *(dtypes.int4, dtypes.uint4, dtypes.int8, dtypes.uint8),
        *(dtypes.int16, dtypes.uint16, dtypes.int32),
    }
)
#: Dtypes to dequantize from, and to quantize to.
Wide = Annotated[str, Kind("T1", _WHOLE)]
Narrow = Annotated[str, Kind("T2", _WHOLE - {dtypes.int32})]
Scaled = Annotated[str, Kind("S", frozenset({dtypes.float32, dtypes.float16}))]
Bool = Annotated[str, Kind("B", frozenset({dtypes.bool_}))]


@contrib("DequantizeLinear")
def dequantize_linear(
    b: NodeBuilder,
    x: Wide,
    x_scale: Scaled,
    x_zero_point: Wide | None = None,
    *,
    axis: int | None = None,
) -> str:
    """ONNX's operator; without an axis there is one scale for all."""
    return b.DequantizeLinear(x, x_scale, x_zero_point, axis=axis)


@contrib("QuantizeLinear")
def quantize_linear(
    b: NodeBuilder,
    x: Scaled,
    y_scale: Scaled,
    y_zero_point: Narrow | None = None,
    *,
    axis: int | None = None,
) -> str:
    """ONNX's operator; without an axis there is one scale for all."""
    return b.QuantizeLinear(x, y_scale, y_zero_point, axis=axis)


@contrib("QLinearAdd", "QLinearMul")
def q_linear_binary(
    b: NodeBuilder,
    a: Q,
    a_scale: Float32,
    a_zero_point: Q | None,
    other: Q,
    b_scale: Float32,
    b_zero_point: Q | None,
    c_scale: Float32,
    c_zero_point: Q | None = None,
) -> str:
    """Quantized sum or product."""
    left, right = (
        dequantized(b, a, a_scale, a_zero_point),
        dequantized(b, other, b_scale, b_zero_point),
    )
    y = (b.Add if b.node.op == "QLinearAdd" else b.Mul)(left, right)
    return quantized(b, y, c_scale, c_zero_point, a)


@contrib("QLinearSigmoid")
def q_linear_sigmoid(
    b: NodeBuilder,
    x: Q,
    x_scale: Float32,
    x_zero_point: Q | None,
    y_scale: Float32,
    y_zero_point: Q | None = None,
) -> str:
    """Quantized sigmoid."""
    y = b.Sigmoid(dequantized(b, x, x_scale, x_zero_point))
    return quantized(b, y, y_scale, y_zero_point, x)


@contrib("QLinearLeakyRelu")
def q_linear_leaky_relu(
    b: NodeBuilder,
    x: Q,
    x_scale: Float32,
    x_zero_point: Q | None,
    y_scale: Float32,
    y_zero_point: Q | None = None,
    *,
    alpha: float = 0.01,
) -> str:
    """Quantized LeakyRelu."""
    y = b.LeakyRelu(dequantized(b, x, x_scale, x_zero_point), alpha=alpha)
    return quantized(b, y, y_scale, y_zero_point, x)


@contrib("QLinearWhere")
def q_linear_where(
    b: NodeBuilder,
    condition: Bool,
    x: Q,
    x_scale: Float32,
    x_zero_point: Q,
    y: Q,
    y_scale: Float32,
    y_zero_point: Q,
    z_scale: Float32,
    z_zero_point: Q,
) -> str:
    """Elements of x or y, each requantized."""
    left = quantized(b, dequantized(b, x, x_scale, x_zero_point), z_scale, z_zero_point, x)
    right = quantized(b, dequantized(b, y, y_scale, y_zero_point), z_scale, z_zero_point, y)
    return b.Where(condition, left, right)


@contrib("QLinearConcat")
def q_linear_concat(
    b: NodeBuilder, y_scale: Float32, y_zero_point: Q, *inputs: Anything, axis: int
) -> str:
    """Concatenation of tensors with a scale and zero point each."""
    if not inputs or len(inputs) % 3:
        raise b.error(
            f"has {len(inputs)} inputs behind the scale and the zero point of the result; "
            "expected a tensor, its scale and its zero point for each part"
        )
    parts = [
        _requantized(b, (x, scale, zero_point), y_scale, y_zero_point)
        for x, scale, zero_point in zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    ]
    return b.Concat(*parts, axis=axis)


def _requantized(
    b: NodeBuilder, part: tuple[str, str, str], y_scale: str, y_zero_point: str
) -> str:
    """Return bytes with another scale and zero point; equal ones change nothing."""
    x, scale, zero_point = part
    pairs = ((scale, y_scale), (zero_point, y_zero_point))
    if all(a == c or _are_equal(b.value(a), b.value(c)) for a, c in pairs):
        return x
    return quantized(b, dequantized(b, x, scale, zero_point), y_scale, y_zero_point, x)


def _are_equal(a: Array | None, c: Array | None) -> bool:
    if a is None or c is None or a.dtype != c.dtype:
        return False
    return a.size == c.size == 1 and bool(a.item() == c.item())


@contrib("MulInteger")
def mul_integer(
    b: NodeBuilder, a: Q, a_zero_point: Q | None, other: Q, b_zero_point: Q | None = None
) -> str:
    """(a - a_zero_point) * (b - b_zero_point) as int32."""
    return b.Mul(_centred(b, a, a_zero_point), _centred(b, other, b_zero_point))


def _centred(b: NodeBuilder, x: str, zero_point: str | None) -> str:
    wide = b.cast(x, dtypes.int32)
    return wide if zero_point is None else b.Sub(wide, b.cast(zero_point, dtypes.int32))
