"""Layer and RMS normalization of rows that fit into registers: `normalize_rows.cu`."""

from __future__ import annotations

from math import prod

from ....runtime.ir.dtypes import FLOATS, float64
from ....runtime.plan.backend import Format
from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch
from ..recipe.layout import ceil_div
from ..recipe.operands import Tensor

#: Elements that a thread keeps, and warps that share a row, at most.
MAX_KEPT, MAX_WARPS = 32, 16
#: Warps of a block where each of them has a row.
TOGETHER = 4


def normalize_rows(
    y: Tensor,
    x: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    axis: int,
    epsilon: float,
    epilogue: Epilogue,
    *,
    centred: bool,
) -> Launch | None:
    """Return the launch for rows of the axes from `axis` on; None where they do not suit.

    Args:
        y: the result.
        x: the elements.
        scale: what results are multiplied with, one number per element of a row.
        shift: what is added then.
        axis: the first axis of a row.
        epsilon: added to the variance.
        epilogue: what becomes of the results.
        centred: whether the mean is subtracted.
    """
    count = prod(x.dims[axis:])
    rows = prod(x.dims[:axis])
    given = [scale] if shift is None else [scale, shift]
    if any(t.dtype not in FLOATS or t.dtype == float64 for t in (x, y)) or not count:
        return None
    if any(t.dtype != scale.dtype or t.size != count or t.dtype == float64 for t in given):
        return None
    if any(t.format is not Format.CONTIGUOUS for t in (y, x)) or rows >= 2**31:
        return None
    maximum = 16 // max(x.dtype.itemsize, scale.dtype.itemsize)
    vector = next(v for v in (8, 4, 2, 1) if v <= maximum and count % v == 0)
    warps = 1
    while warps < MAX_WARPS and count > 32 * warps * MAX_KEPT:
        warps *= 2
    if count > 32 * warps * MAX_KEPT:
        return None
    together = TOGETHER if warps == 1 else 1
    return Launch(
        "norm/normalize_rows.cu",
        "normalize_rows",
        grid=(ceil_div(rows, together), 1, 1),
        block=32 * warps * together,
        args={
            **{"x": x, "scale": scale, "shift": shift, "y": y, **epilogue.args},
            **{"rows": rows, "count": count, "epsilon": epsilon},
        },
        types=(("X", x.dtype), ("S", scale.dtype), *epilogue.types),
        constants=(
            *(("WARPS", warps), ("ROWS", together), ("VECTOR", vector)),
            *(("PER", ceil_div(count, 32 * warps * vector)), ("CENTRED", centred)),
            ("SHIFTED", shift is not None),
        ),
        code=epilogue.code,
        note=f"{rows} x {count} {epilogue.title}".strip(),
    )
