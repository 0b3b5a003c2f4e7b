"""Quantization: to integers and back, and products of integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from ....runtime.ir.dtypes import (
    FLOATS,
    INTEGERS,
    DType,
    float8e8m0,
    float32,
    float64,
    int32,
    int64,
    uint8,
)
from ....runtime.ir.graph import Node
from ....runtime.ir.types import TensorType
from ....runtime.ops.quantize import (
    ConvInteger,
    DequantizeLinear,
    DynamicQuantizeLinear,
    MatMulInteger,
    QLinearConv,
    QLinearMatMul,
    QuantizeLinear,
)
from ....runtime.ops.shapes import normalize_axis
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, RecipeContext, Setting, kernel, need_dtypes
from ..algorithms.selection import CONTIGUOUS, Formats
from ..codegen.elementwise import SMALL_FLOATS
from ..codegen.rounding import narrow
from ..conv import depthwise_bytes
from ..conv.direct import direct_sums
from ..gemm import int8
from ..gemm.int8 import Quantization
from ..gemm.product import stack_of_products
from ..recipe.launch import Launch, each, launches_of
from ..recipe.operands import Arguments, Ints, Scratch, Tensor, ceil_div, order
from ..recipe.source import arithmetic

QUANTIZED = INTEGERS | SMALL_FLOATS
SCALES = FLOATS | {float8e8m0}
BLOCK_WARPS = 8
#: Workspace offset of partial ranges, after scale and zero point.
RANGES, MAX_RANGES = 512, 256


#: Struct `Spread` of quantize.cu.
Spread = Mapping[str, int]


def _spread(inner: int, size: int, block: int, *of: int) -> Spread:
    of_outer, of_block, of_inner = of
    return {
        **{"inner": inner, "size": size, "block": block},
        **{"of_outer": of_outer, "of_block": of_block, "of_inner": of_inner},
    }


def spread(
    dims: Ints,
    parameter: Tensor | None,
    axis: int,
    block: int = 0,
    format: Format = Format.CONTIGUOUS,
) -> Spread:
    """Return struct `Spread`: which scale belongs to which element of `dims`.

    Args:
        dims: the shape.
        parameter: one scale, one per index of `axis`, or one per block along it.
        axis: the axis; ignored for a single scale.
        block: elements per block; 0 if there are no blocks.
        format: memory format of the elements; contiguous with blocks.
    """
    if parameter is None or (parameter.size == 1 and not block):
        return _spread(1, 1, 1, 0, 0, 0)
    axis = 0 if len(dims) == 1 else normalize_axis(axis, len(dims))
    layout = order(len(dims), format)
    dims, axis = tuple(dims[a] for a in layout), layout.index(axis)
    inner = prod(dims[axis + 1 :])
    if not block:
        return _spread(inner, dims[axis], 1, 0, 1, 0)
    return _spread(inner, dims[axis], block, parameter.dims[axis] * inner, inner, 1)


def _linear(entry: str, args: Arguments, types: Mapping[str, DType], code: str) -> Launch:
    """Return a launch of `quantize.cu`; see there for the types, some of which are float32."""
    x, y = args["x"], args["y"]
    assert isinstance(x, Tensor)
    assert isinstance(y, Tensor)
    usual = dict.fromkeys(("P", "Q", "A"), float32)
    known = {"X": x.dtype, "Y": y.dtype, **usual, **types}
    return each(
        "elementwise/quantize.cu",
        entry,
        y.size,
        {**args, "count": y.size},
        types=tuple((alias, known[alias]) for alias in ("X", "S", "Z", "Y", "P", "Q", "A")),
        code=code,
    )


def _has_no_blocks(node: Node) -> bool:
    return not getattr(node.op, "block_size", 0)


@kernel(QuantizeLinear, follows=_has_no_blocks)
def quantize_linear(
    op: QuantizeLinear, y: Tensor, x: Tensor, scale: Tensor, zero: Tensor | None = None
) -> Answer:
    """Divide, round, add the zero point and saturate."""
    refused = (
        need_dtypes(FLOATS | {int32}, x)
        or need_dtypes(SCALES | {int32}, scale)
        or need_dtypes(QUANTIZED, y, zero)
    )
    if refused:
        return refused
    precision = op.precision or scale.dtype
    precision = {float8e8m0: float32, int32: float64}.get(precision, precision)
    compute = arithmetic(precision)
    where = spread(x.dims, scale, op.axis, op.block_size, x.format)
    return _linear(
        "quantize",
        {"x": x, "scale": scale, "zero": zero, "y": y, "spread": where},
        {"S": scale.dtype, "Z": y.dtype, "Q": precision, "A": compute},
        narrow(y.dtype, compute, saturate=bool(op.saturate)),
    )


@kernel(DequantizeLinear, follows=_has_no_blocks)
def dequantize_linear(
    op: DequantizeLinear, y: Tensor, x: Tensor, scale: Tensor, zero: Tensor | None = None
) -> Answer:
    """Subtract the zero point and multiply."""
    refused = need_dtypes(QUANTIZED, x, zero) or need_dtypes(SCALES, scale, y)
    if refused:
        return refused
    whole = int64 if x.dtype.itemsize >= 4 else int32
    where = spread(x.dims, scale, op.axis, op.block_size, x.format)
    return _linear(
        "dequantize",
        {"x": x, "scale": scale, "zero": zero, "y": y, "spread": where},
        {"S": scale.dtype, "Z": x.dtype, "P": whole if x.dtype in INTEGERS else float32},
        narrow(y.dtype, float32),
    )


@kernel(DynamicQuantizeLinear, outputs=3)
def dynamic_quantize_linear(
    op: DynamicQuantizeLinear,
    y: Tensor | None,
    x: Tensor,
    *,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """Find the range, then quantize by it."""
    refused = need_dtypes((float32,), x)
    if refused:
        return refused
    scale, zero = (*more, None, None)[:2]
    at_scale, at_zero = scale or Scratch(0), zero or Scratch(256)
    found = _scale_of(x, at_scale, at_zero)
    if y is None:
        return found
    where = spread(x.dims, None, 0)
    return *found, _linear(
        "quantize",
        {"x": x, "scale": at_scale, "zero": at_zero, "y": y, "spread": where},
        {"S": float32, "Z": uint8},
        narrow(uint8, float32),
    )


def _scale_of(x: Tensor, scale: Tensor | Scratch, zero: Tensor | Scratch) -> tuple[Launch, ...]:
    """Return launches that compute scale and zero point, with several blocks for a long `x`."""
    whole = Launch(
        "elementwise/dynamic_quantize.cu",
        "find_scale",
        grid=(1, 1, 1),
        block=32 * BLOCK_WARPS,
        args={"x": x, "scale": scale, "zero": zero, "count": x.size},
        constants=(("WARPS", BLOCK_WARPS),),
        scratch=RANGES + 8 * MAX_RANGES,
    )
    blocks = min(ceil_div(x.size, 8 * whole.block), MAX_RANGES)
    if blocks <= 2:
        return (whole,)
    ranges = Scratch(RANGES)
    found = {"x": x, "ranges": ranges, "count": x.size}
    parts = replace(whole, entry="find_range", grid=(blocks, 1, 1), args=found)
    return parts, replace(whole, args={**whole.args, "x": ranges, "count": 2 * blocks})


# ── products ─────────────────────────────────────────────────────────────────────────────────────


def requantize(
    y: Tensor,
    sums: DType,
    scales: tuple[Tensor, Tensor, Tensor],
    zero: Tensor,
    spreads: tuple[Spread, Spread, Spread],
    bias: Tensor | None = None,
) -> Launch:
    """Return the launch that quantizes the sums at the start of the workspace.

    Args:
        y: the results.
        sums: dtype of the sums.
        scales: of both operands and of y.
        zero: zero point of y.
        spreads: which scale belongs to which result.
        bias: one int32 per channel, in the scale of the sums.
    """
    (a_scale, b_scale, y_scale), (of_a, of_b, of_y) = scales, spreads
    return each(
        "elementwise/quantize.cu",
        "requantize",
        y.size,
        {
            **{"x": Scratch(0), "bias": bias, "zero": zero, "y": y, "count": y.size},
            **{"a_scale": a_scale, "b_scale": b_scale, "y_scale": y_scale},
            **{"of_bias": spread(y.dims, bias, 1, format=y.format), "of_a": of_a},
            **{"of_b": of_b, "of_y": of_y},
        },
        types=(
            *(("X", sums), ("S", scales[0].dtype), ("Z", zero.dtype), ("Y", y.dtype)),
            *(("P", sums), ("Q", float32), ("A", float32)),
        ),
        code=narrow(y.dtype, float32),
    )


def _need_vectors(*zeros: Tensor | None) -> str:
    for zero in zeros:
        if zero is not None and zero.size > 1 and zero.rank > 1:
            return f"a zero point of {zero.value.tensor}"
    return ""


@kernel(MatMulInteger)
def matmul_integer(
    op: MatMulInteger,
    y: Tensor,
    a: Tensor,
    b: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
    *,
    setting: Setting,
) -> Answer:
    """Integer matrix product with int32 results."""
    refused = need_dtypes(INTEGERS, a, b) or _need_vectors(a_zero, b_zero)
    if refused:
        return refused
    zeros = (a_zero, b_zero)
    found = int8.matmul(y, a, b, Quantization(zeros), setting.target)
    return (
        found
        if isinstance(found, tuple)
        else stack_of_products(y, TensorType(int32, y.dims), a, b, zeros)
    )


@kernel(QLinearMatMul)
def qlinear_matmul(
    op: QLinearMatMul,
    y: Tensor,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    *,
    setting: Setting,
) -> Answer:
    """Quantized matrix product."""
    scales = (a_scale, b_scale, y_scale)
    refused = (
        need_dtypes(QUANTIZED, y, a, b)
        or need_dtypes((a_scale.dtype,), *scales)
        or _need_vectors(a_zero, b_zero, y_zero, *scales)
    )
    if refused:
        return refused
    quantization = Quantization((a_zero, b_zero), scales, y_zero)
    found = int8.matmul(y, a, b, quantization, setting.target)
    if isinstance(found, tuple):
        return found
    sums = int32 if a.dtype in INTEGERS and b.dtype in INTEGERS else float32
    product = stack_of_products(Scratch(0), TensorType(sums, y.dims), a, b, (a_zero, b_zero))
    if isinstance(product, str):
        return product
    rows = len(y.dims) - 2
    axes = (rows, -1, rows)
    spreads = [spread(y.dims, scale, axis) for scale, axis in zip(scales, axes, strict=True)]
    last = requantize(y, sums, scales, y_zero, (spreads[0], spreads[1], spreads[2]))
    return tuple(replace(one, scratch=4 * y.size) for one in (*launches_of(product), last))


def _need_geometry(x: Tensor) -> str:
    return f"{x.rank - 2} spatial axes" if x.rank > 5 else ""


def _formats(context: RecipeContext) -> Formats:
    """Return the formats of an integer convolution, whose weights are operand 1 or 3."""
    op, x = context.op, context.inputs[0]
    w = context.inputs[1 if isinstance(op, ConvInteger) else 3]
    if not isinstance(op, ConvInteger | QLinearConv) or x is None or w is None:
        return CONTIGUOUS
    return int8.formats_of(op, x, w)


@kernel(ConvInteger, formats=_formats)
def conv_integer(
    op: ConvInteger,
    y: Tensor,
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    *,
    setting: Setting,
) -> Answer:
    """Integer convolution with int32 results."""
    refused = need_dtypes(INTEGERS, x, w) or _need_geometry(x)
    if refused:
        return refused
    zeros = (x_zero, w_zero)
    found = int8.convolution(op, y, x, w, Quantization(zeros), setting.target)
    if isinstance(found, tuple):
        return found
    return direct_sums(op, y, y.dims, x, w, zeros, y.format)


@kernel(QLinearConv, formats=_formats)
def qlinear_conv(
    op: QLinearConv,
    y: Tensor,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    b: Tensor | None = None,
    *,
    setting: Setting,
) -> Answer:
    """Quantized convolution."""
    scales = (x_scale, w_scale, y_scale)
    refused = (
        need_dtypes(INTEGERS, y, x, w)
        or need_dtypes((x_scale.dtype,), *scales)
        or _need_geometry(x)
    )
    if refused:
        return refused
    zeros = (x_zero, w_zero)
    quantization = Quantization(zeros, scales, y_zero, b)
    found = int8.convolution(op, y, x, w, quantization, setting.target)
    if isinstance(found, tuple):
        return found
    depthwise = depthwise_bytes.convolution(op, y, x, w, quantization, setting.target)
    if isinstance(depthwise, Launch):
        return depthwise
    sums = direct_sums(op, Scratch(0), y.dims, x, w, zeros, y.format)
    of_x, of_w, of_y = (spread(y.dims, scale, 1, format=y.format) for scale in scales)
    last = requantize(y, int32, scales, y_zero, (of_x, of_w, of_y), b)
    return tuple(replace(launch, scratch=4 * y.size) for launch in (sums, last))
