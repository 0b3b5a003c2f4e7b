"""Quantization: integers (or small floats) that represent (q - zero_point) * scale."""

from __future__ import annotations

from typing import ClassVar

from ..errors import ShapeError
from ..ir.dtypes import DType, float32, int32, name_of, uint8
from ..ir.op import Op, op
from ..ir.types import Dim, Shape, TensorType
from .conv import ConvOp, convolved
from .matmul import matmul_shape
from .shapes import dim, need_rank, need_vector, normalize_axis, same_dim, same_dtype, same_shape

Ints = tuple[int, ...]


def _may_be_single(shape: Shape | None) -> bool:
    """Whether a tensor may have one element; shape [1] counts as a scalar."""
    if not shape:
        return True
    return len(shape) == 1 and (shape[0] == 1 or not isinstance(shape[0], int))


def _need_same_shape(scale: TensorType, zero_point: TensorType | None, name: str) -> None:
    """Check that scale and zero point have the same shape; [1] counts as a scalar."""
    if zero_point is not None and not (
        _may_be_single(scale.shape) and _may_be_single(zero_point.shape)
    ):
        same_shape(scale.shape, zero_point.shape, f"shapes of {name} and its zero point")


def _need_granularity(
    x: TensorType, scale: TensorType, zero_point: TensorType | None, axis: int, block_size: int
) -> None:
    """Check that scale and zero point are one per tensor, per index of `axis`, or per block."""
    _need_same_shape(scale, zero_point, "scale")
    if block_size < 0:
        raise ShapeError(f"block_size={block_size}; it must be 0 or more")
    if x.shape is None or scale.shape is None or _may_be_single(scale.shape):
        return
    need_rank(scale, len(x.shape) if block_size else 1, "scale")
    along = 0 if len(x.shape) == 1 else normalize_axis(axis, len(x.shape))
    if not block_size:
        need_vector(scale, x.shape[along], "scale")
        return
    for i, (size, found) in enumerate(zip(x.shape, scale.shape, strict=True)):
        wanted = _blocks(size, block_size) if i == along else size
        same_dim(wanted, found, f"blocks of x {x} and scale {scale}")


def _blocks(size: Dim, block_size: int) -> Dim:
    return -(-size // block_size) if isinstance(size, int) else None


@op
class QuantizeLinear(Op):
    """saturate(round_half_even(x / y_scale) + y_zero_point) (ONNX 28).

    The scale is a scalar, one per index of `axis`, or one per block of `block_size` along it. The
    result has `output_dtype`, else the zero point's dtype, else uint8; the division is computed in
    `precision`, else in the scale's dtype. `saturate` 0 lets float8 overflow to inf or nan.
    """

    axis: int = 1
    block_size: int = 0
    output_dtype: DType | None = None
    precision: DType | None = None
    saturate: int = 1

    def infer(
        self, x: TensorType, y_scale: TensorType, y_zero_point: TensorType | None = None
    ) -> TensorType:
        _need_granularity(x, y_scale, y_zero_point, self.axis, self.block_size)
        given = None if y_zero_point is None else y_zero_point.dtype
        if given and self.output_dtype and given != self.output_dtype:
            wanted = name_of(self.output_dtype)
            raise ShapeError(f"output_dtype={wanted}, but y_zero_point is {name_of(given)}")
        return x.with_dtype(self.output_dtype or given or uint8)


@op
class DequantizeLinear(Op):
    """(x - x_zero_point) * x_scale, in `output_dtype` or else the scale's dtype (ONNX 28).

    Scale and zero point have one of the shapes of QuantizeLinear's.
    """

    axis: int = 1
    block_size: int = 0
    output_dtype: DType | None = None

    def infer(
        self, x: TensorType, x_scale: TensorType, x_zero_point: TensorType | None = None
    ) -> TensorType:
        same_dtype(x, x_zero_point)
        _need_granularity(x, x_scale, x_zero_point, self.axis, self.block_size)
        return x.with_dtype(self.output_dtype or x_scale.dtype)


@op
class DynamicQuantizeLinear(Op):
    """QuantizeLinear to uint8 by the range of x itself, extended to include 0 (ONNX 11).

    scale = (max - min) / 255, zero point = saturate(round_half_even(-min / scale)).
    """

    outputs: ClassVar = (3, 3)

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType, TensorType]:
        return x.with_dtype(uint8), TensorType(float32, ()), TensorType(uint8, ())


def _need_scalar(x: TensorType | None, name: str) -> None:
    if x is not None and not _may_be_single(x.shape):
        raise ShapeError(f"{name} must be a scalar, not {x}")


def _need_per_channel(x: TensorType | None, channels: Dim, name: str) -> None:
    if x is not None and not _may_be_single(x.shape):
        need_vector(x, channels, name)


@op
class ConvInteger(ConvOp):
    """Conv of (x - x_zero_point) with (w - w_zero_point), exact in int32 (ONNX 10).

    Padding is x_zero_point, that is, 0 after subtraction; w_zero_point may have one element per
    filter.
    """

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        x_zero_point: TensorType | None = None,
        w_zero_point: TensorType | None = None,
    ) -> TensorType:
        same_dtype(x, x_zero_point)
        same_dtype(w, w_zero_point)
        shape = convolved(self, x, w, self.group, self.kernel_shape)
        _need_scalar(x_zero_point, "x_zero_point")
        _need_per_channel(w_zero_point, dim(w, 0), "w_zero_point")
        return TensorType(int32, shape)


@op
class QLinearConv(ConvOp):
    """Conv of dequantized x and w, quantized by y_scale and y_zero_point (ONNX 10).

    The bias is int32 with scale x_scale * w_scale; w_scale and w_zero_point may have one element
    per filter.
    """

    def infer(
        self,
        x: TensorType,
        x_scale: TensorType,
        x_zero_point: TensorType,
        w: TensorType,
        w_scale: TensorType,
        w_zero_point: TensorType,
        y_scale: TensorType,
        y_zero_point: TensorType,
        b: TensorType | None = None,
    ) -> TensorType:
        same_dtype(x, x_zero_point)
        same_dtype(w, w_zero_point)
        shape = convolved(self, x, w, self.group, self.kernel_shape)
        m = dim(w, 0)
        for name, scalar in (
            ("x_scale", x_scale),
            ("x_zero_point", x_zero_point),
            ("y_scale", y_scale),
            ("y_zero_point", y_zero_point),
        ):
            _need_scalar(scalar, name)
        _need_per_channel(w_scale, m, "w_scale")
        _need_per_channel(w_zero_point, m, "w_zero_point")
        need_vector(b, m, "b")
        return TensorType(y_zero_point.dtype, shape)


def _need_per_row(x: TensorType | None, matrix: TensorType, axis: int, name: str) -> None:
    """Check that x is a scalar, or has one element per row (or column) of the matrices."""
    if x is None or _may_be_single(x.shape) or matrix.shape is None or len(matrix.shape) < 2:
        return
    if x.rank == 1:
        need_vector(x, matrix.shape[axis], name)
        return
    wanted = list(matrix.shape)
    wanted[-1 if axis == -2 else -2] = 1
    same_shape(x.shape, tuple(wanted), f"shapes of {name} and of the matrices {matrix}")


@op
class MatMulInteger(Op):
    """MatMul of (a - a_zero_point) and (b - b_zero_point), exact in int32 (ONNX 10).

    Zero points are scalars, or one per row of a and one per column of b.
    """

    dense = True

    def infer(
        self,
        a: TensorType,
        b: TensorType,
        a_zero_point: TensorType | None = None,
        b_zero_point: TensorType | None = None,
    ) -> TensorType:
        same_dtype(a, a_zero_point)
        same_dtype(b, b_zero_point)
        _need_per_row(a_zero_point, a, -2, "a_zero_point")
        _need_per_row(b_zero_point, b, -1, "b_zero_point")
        return TensorType(int32, matmul_shape(a, b))


@op
class QLinearMatMul(Op):
    """MatMul of dequantized a and b, quantized by y_scale and y_zero_point (ONNX 21).

    Scales and zero points are scalars, or one per row of a and y and one per column of b.
    """

    dense = True

    def infer(
        self,
        a: TensorType,
        a_scale: TensorType,
        a_zero_point: TensorType,
        b: TensorType,
        b_scale: TensorType,
        b_zero_point: TensorType,
        y_scale: TensorType,
        y_zero_point: TensorType,
    ) -> TensorType:
        same_dtype(a, a_zero_point)
        same_dtype(b, b_zero_point)
        y = TensorType(y_zero_point.dtype, matmul_shape(a, b))
        for name, scale, zero_point, matrix, axis in (
            ("a", a_scale, a_zero_point, a, -2),
            ("b", b_scale, b_zero_point, b, -1),
            ("y", y_scale, y_zero_point, y, -2),
        ):
            _need_same_shape(scale, zero_point, f"{name}_scale")
            _need_per_row(scale, matrix, axis, f"{name}_scale")
        return y
