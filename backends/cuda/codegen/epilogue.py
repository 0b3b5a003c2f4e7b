"""What a kernel does with its results before it stores them: bias, residual, activation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....runtime.ir.dtypes import DType, float32
from ....runtime.ir.graph import Node, Value
from ....runtime.ops.matmul import Gemm, MatMul
from ..recipe.operands import Packed, Tensor
from ..recipe.source import C_TYPES, arithmetic
from .elementwise import CHEAP, Chain, chain_of

MAX_OPERANDS = 2


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The C++ function ``epilogue(value, i, row, channel, z0, z1)``, which gives what is stored.

    Attributes:
        code: the function: `value` is the sum, `i` its place in the result in memory, `row` and
            `channel` its place along the two axes of a matrix product or the channel of an image.
        operands: what z0 and z1 point to.
        title: the operators, for reports.
        is_cheap: whether they are of a few instructions each.
    """

    code: str
    operands: tuple[Tensor | Packed, ...] = ()
    title: str = ""
    is_cheap: bool = True

    @property
    def reads_along(self) -> bool:
        """Whether an operand is read at the place where the result is stored: `i` counts both."""
        return bool(self.along)

    @property
    def along(self) -> tuple[Tensor, ...]:
        """The operands that lie like the result; of a slice, they are read as the same slice."""
        return tuple(o for o in self.operands if isinstance(o, Tensor) and o.data is None)

    @property
    def args(self) -> dict[str, Tensor | Packed | None]:
        """`operands` by the names that kernels have for them, null where there is none."""
        return dict(zip(("z0", "z1"), (*self.operands, None, None), strict=False))


def _head(dtype: DType) -> str:
    stored, computed = C_TYPES[dtype], C_TYPES[arithmetic(dtype)]
    return (
        f"__device__ __forceinline__ {stored} epilogue({computed} value, long long i, int row, "
        f"int channel, const {stored}* z0, const {stored}* z1)"
    )


def no_epilogue(dtype: DType) -> Epilogue:
    """Return the epilogue that stores its argument as it is, rounded to `dtype`."""
    return Epilogue(f"{_head(dtype)} {{ return {C_TYPES[dtype]}(value); }}")


NO_EPILOGUE = no_epilogue(float32)


def epilogue_of(nodes: tuple[Node, ...], y: Tensor, first: Value) -> Epilogue | str:
    """Return elementwise nodes behind a kernel as its epilogue, or why they are none.

    Args:
        nodes: a chain in which each reads the one before it; may be empty.
        y: the last one's result, in the format that the kernel stores.
        first: what the kernel itself computes; of the shape of `y`.
    """
    if not nodes:
        return no_epilogue(y.dtype)
    chain = chain_of(nodes, "chain", first)
    if isinstance(chain, str):
        return chain
    is_product = first.producer is not None and isinstance(first.producer.op, MatMul | Gemm)
    epilogue = _epilogue(chain, y, -1 if is_product or y.rank < 3 else 1)
    cheap = all(isinstance(node.op, CHEAP) for node in nodes)
    return epilogue if isinstance(epilogue, str) else replace(epilogue, is_cheap=cheap)


def _epilogue(chain: Chain, y: Tensor, axis: int) -> Epilogue | str:
    arguments = ["value"]
    operands: list[Tensor] = []
    for value in chain.operands[1:]:
        operand = Tensor(value, y.format)
        if operand.dtype != y.dtype:
            return f"operand of {operand.dtype.name}"
        if operand.dims == y.dims and value.data is None:
            index = "i"
        elif value.data is not None and _is_per_channel(operand.dims, y.dims, axis):
            operand, index = Tensor(value), "channel"
        else:
            return f"an operand of {value.tensor} does not fit {y.value.tensor}"
        arguments.append(f"z{len(operands)}[{index}]")
        operands.append(operand)
    if len(operands) > MAX_OPERANDS:
        return f"{len(operands)} operands"
    call = f"{_head(y.dtype)} {{ return chain({', '.join(arguments)}); }}"
    return Epilogue(f"{chain.code}\n{call}", tuple(operands), chain.title)


def _is_per_channel(dims: tuple[int, ...], shape: tuple[int, ...], axis: int) -> bool:
    axis %= max(1, len(shape))
    padded = (1,) * (len(shape) - len(dims)) + dims
    return all(
        d == (s if i == axis else 1) for i, (d, s) in enumerate(zip(padded, shape, strict=True))
    )
