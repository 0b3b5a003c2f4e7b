"""What a kernel does with its sums before it stores them: the constants of `finish.cuh`."""

from __future__ import annotations

from ..operands import Packed, Tensor
from ..tail import Tail


def epilogue_flags(
    bias: Tensor | Packed | None, tail: Tail
) -> tuple[tuple[str, int], tuple[str, int], tuple[str, int]]:
    """Return the constants of an epilogue: whether there is a bias, and how operands lie.

    Z0 and Z1 are 0 where there is no such operand, 1 where it lies like the result, 2 where it has
    one element for each column or channel.
    """
    kinds = [
        1 if isinstance(operand, Tensor) and operand.data is None else 2
        for operand in tail.operands
    ]
    first, second = (*kinds, 0, 0)[:2]
    return ("BIAS", bias is not None), ("Z0", first), ("Z1", second)
