"""Split-K, second pass: adds the partial sums of a tile's CTAs, and applies the epilogue."""

from __future__ import annotations

from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch
from ..recipe.operands import Scratch, ceil_div
from .atoms import HALVES
from .problem import GemmArguments, RowKind


def reduction(
    gemm: GemmArguments, epilogue: Epilogue, splits: int, partial_sums: Scratch
) -> Launch:
    """Return the second pass of a split-K product, which adds partial sums in order.

    Args:
        gemm: the product.
        epilogue: applied to every result.
        splits: number of partial sums per result.
        partial_sums: their address, [batch][splits][m][n] in float32.
    """
    (m, n, _), batch = gemm.shape, gemm.batch
    halves = gemm.dtype in HALVES
    vector, entry = (8, "mma_reduce") if halves else (4, "gemm_reduce")
    flags = epilogue.flags(gemm.bias) if halves else (("BIAS", gemm.bias is not None),)
    return Launch(
        f"gemm/reduce_splits{'_f16' if halves else ''}.cu",
        entry,
        grid=(ceil_div(m * ceil_div(n, vector), 256), batch.count, 1),
        block=256,
        args={
            **{"partial": partial_sums, "c": gemm.c, "bias": gemm.bias, **epilogue.args},
            **{"m": m, "n": n, "ldc": gemm.ldc, "batch_c": batch.c, "splits": splits},
        },
        types=epilogue.aliases if halves else epilogue.types,
        constants=(
            ("VECTOR_C", gemm.vector_c(vector)),
            ("GROUPS", gemm.a.rows is not RowKind.MATRIX),
            *flags,
        ),
        code=epilogue.code,
        note=epilogue.title,
        pitched=gemm.pitched(epilogue.pitched),
    )
