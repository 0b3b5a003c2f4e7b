"""Direct convolutions: one thread per output element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from ....runtime.ir.dtypes import int32
from ....runtime.ir.graph import Value
from ....runtime.ir.types import TensorType
from ....runtime.ops.quantize import ConvInteger, QLinearConv
from ....runtime.ops.window import Window, window
from ....runtime.plan.format import Format
from ..codegen.epilogue import Epilogue, no_epilogue
from ..gemm.convolution import ConvProblem
from ..recipe.launch import Launch, each
from ..recipe.operands import Ints, Scratch, Tensor, geometry, spatial_strides
from ..recipe.source import arithmetic

THREADS = 128
NO_ZEROS: Mapping[str, Tensor | int | None] = MappingProxyType({})


# ── naive ────────────────────────────────────────────────────────────────────────────────────────


def naive(conv: ConvProblem, variant: str = "") -> Launch:
    """Return the baseline: one thread per output element. It accepts computed weights as well."""
    operands = (conv.y, conv.x, conv.w, conv.b)
    zeros = _zeros(None, None)
    return _by_threads("conv_naive", operands, conv.view, _sizes(conv), conv.epilogue, zeros)


def naive_transposed(conv: ConvProblem, variant: str = "") -> Launch:
    """Return the transposed baseline: each thread gathers the contributions to one result."""
    operands = (conv.y, conv.x, conv.w, conv.b)
    return _by_threads("conv_transposed", operands, conv.view, _sizes(conv), conv.epilogue)


def _sizes(conv: ConvProblem) -> Ints:
    return conv.y.dims[1], conv.filters, conv.channels


def direct_sums(
    op: ConvInteger | QLinearConv,
    y: Tensor | Scratch,
    dims: Ints,
    x: Tensor,
    w: Tensor,
    zeros: tuple[Tensor | None, Tensor | None],
    format: Format = Format.CONTIGUOUS,
) -> Launch:
    """Return the convolution of integers less their zero points, in int32.

    Args:
        op: its attributes.
        y: where the sums are written.
        dims: their shape.
        x: the input.
        w: the weights.
        zeros: zero points of x, and of the weights, one or one per filter.
        format: of the sums.
    """
    view = window(op, x.dims[2:], w.dims[2:])
    sizes = (dims[1], dims[1] // op.group, w.dims[1])
    result = Tensor(Value("sums", TensorType(int32, dims)), format)
    operands, points = (result, x, w, None), _zeros(*zeros)
    launch = _by_threads("conv_naive", operands, view, sizes, no_epilogue(int32), points)
    return replace(launch, args={**launch.args, "y": y})


def _zeros(x_zero: Tensor | None, w_zero: Tensor | None) -> dict[str, Tensor | int | None]:
    """Return the arguments for zero points of x, and of the weights, one or one per filter."""
    step = 1 if w_zero is not None and w_zero.size > 1 else 0
    return {"x_zero": x_zero, "w_zero": w_zero, "of_w_zero": step}


def _by_threads(
    entry: str,
    operands: tuple[Tensor, Tensor, Tensor, Tensor | None],
    view: Window,
    sizes: Ints,
    epilogue: Epilogue,
    zeros: Mapping[str, Tensor | int | None] = NO_ZEROS,
) -> Launch:
    """Return a launch of `conv.cu`.

    Args:
        entry: its entry point.
        operands: y, x, w and the bias.
        view: the windows.
        sizes: output channels, output channels per group, and input channels per group.
        epilogue: applied to every result.
        zeros: see `_zeros`, for the entry that has zero points.
    """
    (y, x, w, b), (filters, group_filters, group_channels) = operands, sizes
    return each(
        "conv/conv.cu",
        entry,
        y.size,
        block=THREADS,
        args={
            **{"x": x, "w": w, "y": y, "bias": b, **epilogue.args, **zeros, "count": y.size},
            **{"filters": filters, "group_filters": group_filters},
            **{"group_channels": group_channels, "from": spatial_strides(x.strides)},
            "g": geometry(x.dims[2:], y.dims[2:], view),
        },
        types=(("X", x.dtype), ("W", w.dtype), ("Y", y.dtype), ("A", arithmetic(y.dtype))),
        constants=(
            *(("CHANNELS_LAST", y.is_channels_last), ("BIAS", b is not None)),
            *(("ZERO_X", bool(zeros.get("x_zero"))), ("ZERO_W", bool(zeros.get("w_zero")))),
        ),
        code=epilogue.code,
        note=epilogue.title,
    )
