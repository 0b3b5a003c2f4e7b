"""Products with weights of a few bits, unpacked in registers."""

from __future__ import annotations

from math import prod

from ....runtime.ir.dtypes import bfloat16, float16, float32, uint8
from ....runtime.ops.packed import BNB4, MatMulBnb4, MatMulNBits
from ..algorithms.registry import Answer, Setting, kernel, need_dtypes
from ..codegen.epilogue import Epilogue
from ..gemm.packed import PackedLinear, multiply_packed
from ..gemm.packed_weights import PackedWeights
from ..recipe.launch import Launch
from ..recipe.operands import Tensor, ceil_div

#: Columns per block, one warp each, and rows accumulated per warp.
WARPS, ROWS = 4, 8
FLOATS = {float32, float16, bfloat16}


@kernel(MatMulNBits)
def matmul_nbits(
    op: MatMulNBits,
    y: Tensor,
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    setting: Setting,
    epilogue: Epilogue,
) -> Answer:
    """Product with integers of a few bits."""
    if refused := need_dtypes(FLOATS, y, a, scales, bias):
        return refused
    if op.is_prepacked:
        return op.is_prepacked
    if g_idx is None:
        weights = PackedWeights(op, b, scales, zero_points)
        quick = multiply_packed(PackedLinear(y, a, weights, bias), epilogue, setting)
        if not isinstance(quick, str):
            return quick
    if epilogue.title:
        return "no epilogue"
    packed = zero_points is not None and zero_points.dtype == uint8
    rows = prod(a.dims[:-1])
    return Launch(
        "gemm/packed.cu",
        "packed_integers",
        grid=_grid(rows, op.N),
        block=32 * WARPS,
        args={
            **{"a": a, "b": b, "scales": scales},
            **{"zeros": zero_points if packed else None},
            **{"points": None if packed else zero_points},
            **{"group": g_idx, "bias": bias, "y": y},
            **{"rows": rows, "columns": op.N, "depth": op.K},
            **{"block": op.block_size, "blocks": op.blocks},
            **{"zero_bytes": ceil_div(op.blocks * op.bits, 8)},
        },
        types=(("X", a.dtype),),
        constants=(("BITS", op.bits), ("ROWS", _rows(rows)), ("GROUPED", g_idx is not None)),
        note=f"{op.bits} bits",
    )


@kernel(MatMulBnb4)
def matmul_bnb4(op: MatMulBnb4, y: Tensor, a: Tensor, b: Tensor, absmax: Tensor) -> Answer:
    """Product with the 4-bit codes of bitsandbytes."""
    if refused := need_dtypes(FLOATS, y, a, absmax):
        return refused
    rows, columns, depth = prod(a.dims[:-1]), y.dims[-1], a.dims[-1]
    return Launch(
        "gemm/packed.cu",
        "packed_codes",
        grid=_grid(rows, columns),
        block=32 * WARPS,
        args={
            **{"a": a, "b": b, "absmax": absmax, "y": y},
            **{"numbers": {"at": BNB4[op.quant_type]}},
            **{"rows": rows, "columns": columns, "depth": depth, "block": op.block_size},
            **{"across": op.K if op.transB else 1, "along": 1 if op.transB else op.K},
        },
        types=(("X", a.dtype),),
        constants=(("BITS", 4), ("ROWS", _rows(rows)), ("GROUPED", False)),
        note=("FP4", "NF4")[op.quant_type],
    )


def _rows(rows: int) -> int:
    """Return how many rows a warp accumulates."""
    return next((count for count in (1, 2, 4) if rows <= count), ROWS)


def _grid(rows: int, columns: int) -> tuple[int, int, int]:
    return ceil_div(columns, WARPS), ceil_div(rows, _rows(rows)), 1
