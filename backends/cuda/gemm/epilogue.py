"""What a kernel does with its sums before it stores them: the constants of `epilogue.cuh`."""

from __future__ import annotations

from dataclasses import replace

from ..codegen.epilogue import Epilogue
from ..recipe.launch import Launch
from ..recipe.layout import ceil_div
from ..recipe.operands import Packed, Scratch, Tensor
from .atoms import HALVES
from .problem import Gemm
from .sources import Rows


def epilogue_flags(
    bias: Tensor | Packed | None, epilogue: Epilogue
) -> tuple[tuple[str, int], tuple[str, int], tuple[str, int]]:
    """Return the constants of an epilogue: whether there is a bias, and how operands lie.

    Z0 and Z1 are 0 where there is no such operand, 1 where it lies like the result, 2 where it has
    one element for each column or channel.
    """
    kinds = [
        1 if isinstance(operand, Tensor) and operand.data is None else 2
        for operand in epilogue.operands
    ]
    first, second = (*kinds, 0, 0)[:2]
    return ("BIAS", bias is not None), ("Z0", first), ("Z1", second)


def reduction(gemm: Gemm, epilogue: Epilogue, splits: int, partial_sums: Scratch) -> Launch:
    """Return the second pass of a product whose blocks left partial sums: adds them, in order.

    Args:
        gemm: the product.
        epilogue: applied to every result.
        splits: partial sums of a result.
        partial_sums: where they lie, [batch][splits][m][n] in float32.
    """
    (m, n, _), batch = gemm.shape, gemm.batch
    halves = gemm.dtype in HALVES
    vector, entry = (8, "mma_reduce") if halves else (4, "gemm_reduce")
    flags = epilogue_flags(gemm.bias, epilogue) if halves else (("BIAS", gemm.bias is not None),)
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
            ("GROUPS", gemm.a.rows is not Rows.MATRIX),
            *flags,
        ),
        code=epilogue.code,
        note=epilogue.title,
        pitched=gemm.pitched(epilogue.along),
    )


def sharing(*launches: Launch) -> tuple[Launch, ...]:
    """Return launches that have the workspace in common."""
    maximum = max(launch.scratch for launch in launches)
    return tuple(replace(launch, scratch=maximum) for launch in launches)


def behind(launches: tuple[Launch, ...]) -> int:
    """Return where the workspace is free that these launches use the beginning of, in bytes."""
    return ceil_div(max((launch.scratch for launch in launches), default=0), 256) * 256
