"""What a kernel does with its results before it stores them: bias, residual, activation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....runtime.ir.dtypes import DType, float32
from ....runtime.ir.graph import Node, Value
from ....runtime.ops.elementwise import Add
from ....runtime.ops.matmul import Gemm, MatMul
from ....runtime.ops.norm import LayerNormalization, RMSNormalization
from ....runtime.ops.packed import MatMulNBits
from ..recipe.operands import Packed, Tensor
from ..recipe.source import C_TYPES, arithmetic
from .elementwise import CHEAP, chain_of

MAX_OPERANDS = 2
#: Operators whose channels are the last axis.
OF_ROWS = MatMul | Gemm | MatMulNBits | LayerNormalization | RMSNormalization


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The C++ function ``epilogue(value, i, row, channel, z0, z1)``, which gives what is stored.

    Attributes:
        code: the function: `value` is the sum, `i` its place in the result in memory, `row` and
            `channel` its place along the two axes of a matrix product or the channel of an image.
        operands: what z0 and z1 point to.
        title: the operators, for reports.
        is_cheap: whether they are of a few instructions each.
        sums: the dtype whose sums the kernel has, and of the operands.
        stored: the dtype of what it stores.
        bias: one constant a column, which a matrix product adds before all else; or None.
    """

    code: str
    operands: tuple[Tensor | Packed, ...] = ()
    title: str = ""
    is_cheap: bool = True
    sums: DType = float32
    stored: DType = float32
    bias: Tensor | None = None

    @property
    def types(self) -> tuple[tuple[str, DType], tuple[str, DType]]:
        """The C++ aliases T, of operands, and R, of results."""
        return ("T", self.sums), ("R", self.stored)

    @property
    def aliases(self) -> tuple[tuple[str, DType], tuple[str, DType]]:
        """The same as Z and R, for kernels whose T are the elements that they multiply."""
        return ("Z", self.sums), ("R", self.stored)

    @property
    def reads_along(self) -> bool:
        """Whether an operand is read at the place where the result is stored: `i` counts both."""
        return bool(self.along)

    @property
    def along(self) -> tuple[Tensor, ...]:
        """The operands that lie like the result; of a slice, they are read as the same slice."""
        return tuple(o for o in self.operands if isinstance(o, Tensor) and o.data is None)

    def flags(self, bias: Tensor | Packed | None) -> tuple[tuple[str, int], ...]:
        """Return the constants of `epilogue.cuh`: whether there is a bias, and how operands lie.

        Z0 and Z1 are 0 where there is no such operand, 1 where it lies like the result, 2 where it
        has one element for each column or channel.
        """
        kinds = [1 if isinstance(o, Tensor) and o.data is None else 2 for o in self.operands]
        first, second = (*kinds, 0, 0)[:2]
        return ("BIAS", bias is not None), ("Z0", first), ("Z1", second)

    @property
    def args(self) -> dict[str, Tensor | Packed | None]:
        """`operands` by the names that kernels have for them, null where there is none."""
        return dict(zip(("z0", "z1"), (*self.operands, None, None), strict=False))


def _head(sums: DType, stored: DType) -> str:
    operand, computed = C_TYPES[sums], C_TYPES[arithmetic(sums)]
    return (
        f"__device__ __forceinline__ {C_TYPES[stored]} epilogue({computed} value, long long i, "
        f"int row, int channel, const {operand}* z0, const {operand}* z1)"
    )


def no_epilogue(dtype: DType) -> Epilogue:
    """Return the epilogue that stores its argument as it is, rounded to `dtype`."""
    code = f"{_head(dtype, dtype)} {{ return {C_TYPES[dtype]}(value); }}"
    return Epilogue(code, sums=dtype, stored=dtype)


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
    head = None if first.producer is None else first.producer.op
    axis = -1 if isinstance(head, OF_ROWS) or y.rank < 3 else 1
    epilogue = _epilogue(nodes, y, first, axis)
    if isinstance(epilogue, str) or len(epilogue.operands) <= MAX_OPERANDS:
        return epilogue
    bias = _bias_of(nodes[0], first, y) if isinstance(head, MatMul) else None
    rest = "" if bias is None else _epilogue(nodes[1:], y, nodes[0].output, axis)
    if isinstance(rest, str) or len(rest.operands) > MAX_OPERANDS:
        return rest or f"{len(epilogue.operands)} operands"
    return replace(rest, bias=bias, title=epilogue.title)


def _bias_of(node: Node, sums: Value, y: Tensor) -> Tensor | None:
    """Return the constant that a node adds to every row of a product; None if it does not."""
    others = [value for value in node.inputs if value is not None and value is not sums]
    if not isinstance(node.op, Add) or len(others) != 1:
        return None
    (other,) = others
    operand = Tensor(other)
    fits = other.data is not None and _is_per_channel(operand.dims, y.dims, -1)
    return operand if fits and operand.dtype == sums.tensor.dtype else None


def _epilogue(nodes: tuple[Node, ...], y: Tensor, first: Value, axis: int) -> Epilogue | str:
    chain, sums = chain_of(nodes, "chain", first), first.tensor.dtype
    if isinstance(chain, str):
        return chain
    arguments = ["value"]
    operands: list[Tensor] = []
    for value in chain.operands[1:]:
        operand = Tensor(value, y.format)
        if operand.dtype != sums:
            return f"operand of {operand.dtype.name}"
        if operand.dims == y.dims and value.data is None:
            index = "i"
        elif value.data is not None and _is_per_channel(operand.dims, y.dims, axis):
            operand, index = Tensor(value), "channel"
        else:
            return f"an operand of {value.tensor} does not fit {y.value.tensor}"
        arguments.append(f"z{len(operands)}[{index}]")
        operands.append(operand)
    call = f"{_head(sums, y.dtype)} {{ return chain({', '.join(arguments)}); }}"
    code = f"{chain.code}\n{call}"
    cheap = all(isinstance(node.op, CHEAP) for node in nodes)
    return Epilogue(code, tuple(operands), chain.title, cheap, sums=sums, stored=y.dtype)


def _is_per_channel(dims: tuple[int, ...], shape: tuple[int, ...], axis: int) -> bool:
    axis %= max(1, len(shape))
    padded = (1,) * (len(shape) - len(dims)) + dims
    return all(
        d == (s if i == axis else 1) for i, (d, s) in enumerate(zip(padded, shape, strict=True))
    )
