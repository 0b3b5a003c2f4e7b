"""Weights in the block formats of GGUF files: uint8 [rows, bytes], scales among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import BY_ONNX, TO_ONNX, DType
from .builder import NodeBuilder
from .declaration import Float32, Index, Kind, T, contrib

Bytes = Annotated[str, Kind("B", frozenset({dtypes.uint8}))]
_REMEDY = "quantize the model again, to MatMulNBits and GatherBlockQuantized"
#: The numbers that the codes of four bits stand for in IQ4_NL and IQ4_XS.
_STEPS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@contrib("GatherPacked")
def gather_packed(
    b: NodeBuilder,
    data: Bytes,
    indices: Index,
    *,
    K: int,
    output_dtype: int = TO_ONNX[dtypes.bfloat16],
    packed_type: int,
) -> str:
    """Rows of a table of `K` columns, unpacked after the lookup; row 0 for those it lacks."""
    if output_dtype not in BY_ONNX or BY_ONNX[output_dtype] not in dtypes.FLOATS:
        raise b.error(f"output_dtype={output_dtype}; expected that of a float type")
    at, zero = b.cast(indices, dtypes.int64), b.constant(np.array(0, np.int64))
    is_inside = b.And(b.GreaterOrEqual(at, zero), b.Less(at, b.size(data, 0)))
    rows = b.Gather(data, b.Where(is_inside, at, zero), axis=0)
    y = _unpacked(b, rows, packed_type, K)
    shape = b.Concat(b.Shape(indices), b.ints(K), axis=0)
    return b.cast(b.Reshape(y, shape, allowzero=1), BY_ONNX[output_dtype])


@contrib("MatMulPacked")
def mat_mul_packed(
    b: NodeBuilder,
    x: T,
    weights: Bytes,
    global_scale: Float32 | None = None,
    *,
    K: int,
    N: int,
    activation_type: str = "none",
    packed_type: int,
) -> str:
    """Product of x [..., K] and packed rows [N, bytes], with an activation."""
    if global_scale is not None:
        raise b.unsupported(f"packed_type={packed_type} with global_scale", _REMEDY)
    b.need_shape(weights, "B", N, None)
    rows = b.reshape(_unpacked(b, weights, packed_type, K), N, K)
    y = b.MatMul(b.cast(x, dtypes.float32), b.transpose(rows, 1, 0))
    y = b.cast(y, b.dtype(x))
    if activation_type in ("relu2", "relu_squared"):
        positive = b.Relu(y)
        return b.Mul(positive, positive)
    if activation_type not in ("none", "silu"):
        raise b.error(f"activation_type='{activation_type}'; expected none, relu2 or silu")
    return b.Swish(y) if activation_type == "silu" else y


def _unpacked(b: NodeBuilder, data: str, kind: int, columns: int) -> str:
    """Return packed rows as float32 [blocks, numbers of a block]."""
    layout = _FORMATS.get(kind)
    if layout is None:
        raise b.unsupported(f"packed_type={kind}: a format that is not read", _REMEDY)
    if columns < 1 or columns % layout.numbers:
        raise b.error(f"K={columns} is not a multiple of the {layout.numbers} numbers of a block")
    width = b.extent(data, -1)
    wanted = columns // layout.numbers * layout.bytes
    if width not in (None, wanted):
        raise b.error(f"data is {b.type(data)}; rows of packed_type={kind} have {wanted} bytes")
    return layout.read(_Block(b, b.reshape(data, -1, layout.bytes)))


class _Block:
    """Blocks [count, bytes], and what is read of them."""

    def __init__(self, b: NodeBuilder, data: str) -> None:
        self.b, self.data = b, data

    def bytes(self, start: int, count: int, *form: int) -> str:
        """Return bytes [count, …] of each block."""
        part = self.b.slice(self.data, 1, start, start + count)
        return self.b.reshape(part, -1, *form) if form else part

    def word(self, start: int, dtype: DType) -> str:
        """Return a number of several bytes, the lowest first: float32 [count, 1]."""
        b, size = self.b, dtype.itemsize
        whole = dtypes.uint16 if size == 2 else dtypes.uint32
        found = ""
        for k in range(size):
            byte = b.cast(self.bytes(start + k, 1), whole)
            byte = b.BitShift(byte, b.number(8 * k, byte), direction="LEFT") if k else byte
            found = b.BitwiseOr(found, byte) if found else byte
        return b.cast(b.BitCast(found, to=TO_ONNX[dtype]), dtypes.float32)

    def half(self, start: int) -> str:
        """Return a float16 number as float32."""
        return self.word(start, dtypes.float16)

    def bits(self, x: str, shift: int | tuple[int, ...], count: int) -> str:
        """Return `count` bits of bytes; for several shifts, behind one another on a last axis."""
        b = self.b
        if isinstance(shift, tuple):
            x, shifts = b.Unsqueeze(x, b.ints(-1)), b.constant(np.array(shift, np.uint8))
        else:
            shifts = b.number(shift, x)
        return b.BitwiseAnd(b.BitShift(x, shifts, direction="RIGHT"), b.number((1 << count) - 1, x))

    def halves(self, x: str) -> str:
        """Return the low halves of bytes, then the high ones, along the last axis."""
        return self.b.Concat(self.bits(x, 0, 4), self.bits(x, 4, 4), axis=-1)

    def joined(self, low: str, high: str, shift: int) -> str:
        """Return low and high bits as one number."""
        moved = self.b.BitShift(high, self.b.number(shift, high), direction="LEFT")
        return self.b.BitwiseOr(low, moved)

    def signed(self, start: int, count: int) -> str:
        """Return int8 numbers as float32."""
        b = self.b
        return b.cast(b.BitCast(self.bytes(start, count), to=TO_ONNX[dtypes.int8]), dtypes.float32)

    def minus(self, x: str, zero: int) -> str:
        """Return integers as float32, less a number."""
        wide = self.b.cast(x, dtypes.float32)
        return self.b.Sub(wide, self.b.number(zero, wide)) if zero else wide

    def steps(self, x: str) -> str:
        """Return what codes of four bits stand for."""
        table = self.b.constant(np.array(_STEPS, np.float32))
        return self.b.Gather(table, self.b.cast(x, dtypes.int64))


def _q4_0(block: _Block) -> str:
    return block.b.Mul(block.half(0), block.minus(block.halves(block.bytes(2, 16)), 8))


def _q5_0(block: _Block) -> str:
    high = block.b.reshape(block.bits(block.bytes(2, 4), tuple(range(8)), 1), -1, 32)
    whole = block.joined(block.halves(block.bytes(6, 16)), high, 4)
    return block.b.Mul(block.half(0), block.minus(whole, 16))


def _q8_0(block: _Block) -> str:
    return block.b.Mul(block.half(0), block.signed(2, 32))


def _q5_k(block: _Block) -> str:
    """Eight parts of 32, each with a scale and a minimum of six bits."""
    b = block.b
    first, second, third = (block.bytes(at, 4) for at in (4, 8, 12))

    def six(x: str, low: str) -> str:
        behind = block.joined(low, block.bits(x, 6, 2), 4)
        return b.cast(b.Concat(block.bits(x, 0, 6), behind, axis=1), dtypes.float32)

    scales = b.Mul(block.half(0), six(first, block.bits(third, 0, 4)))
    least = b.Mul(block.half(2), six(second, block.bits(third, 4, 4)))
    low = block.halves(block.bytes(48, 128, 4, 32))
    high = b.transpose(block.bits(block.bytes(16, 32), tuple(range(8)), 1), 0, 2, 1)
    whole = block.joined(b.reshape(low, -1, 8, 32), high, 4)
    y = b.Mul(b.Unsqueeze(scales, b.ints(2)), block.minus(whole, 0))
    return b.Sub(y, b.Unsqueeze(least, b.ints(2)))


def _q6_k(block: _Block) -> str:
    """Sixteen parts of 16, each with a scale of eight bits."""
    b = block.b
    low = block.halves(block.bytes(0, 128, 2, 64))
    pairs = block.bits(block.bytes(128, 64, 2, 32), (0, 2, 4, 6), 2)
    high = b.reshape(b.transpose(pairs, 0, 1, 3, 2), -1, 2, 128)
    whole = block.minus(block.joined(low, high, 4), 32)
    scales = b.Unsqueeze(b.Mul(block.half(208), block.signed(192, 16)), b.ints(2))
    return b.Mul(scales, b.reshape(whole, -1, 16, 16))


def _iq4_nl(block: _Block) -> str:
    return block.b.Mul(block.half(0), block.steps(block.halves(block.bytes(2, 16))))


def _iq4_xs(block: _Block) -> str:
    """Eight parts of 32, each with a scale of six bits."""
    b = block.b
    low = b.reshape(block.bits(block.bytes(4, 4), (0, 4), 4), -1, 8)
    high = b.reshape(block.bits(block.bytes(2, 2), (0, 2, 4, 6), 2), -1, 8)
    scales = b.Mul(block.half(0), block.minus(block.joined(low, high, 4), 32))
    codes = block.halves(block.bytes(8, 128, 8, 16))
    return b.Mul(b.Unsqueeze(scales, b.ints(2)), block.steps(codes))


def _q2_0(block: _Block) -> str:
    b = block.b
    codes = b.reshape(block.bits(block.bytes(2, 16), (0, 2, 4, 6), 2), -1, 64)
    return b.Mul(block.half(0), block.minus(codes, 1))


@record
class _Format:
    """How many numbers and bytes a block has, and how it is read."""

    numbers: int
    bytes: int
    read: Callable[[_Block], str]


#: Formats by their numbers in GGUF files. Those whose numbers are looked up in long tables lack.
_FORMATS: dict[int, _Format] = {
    0: _Format(1, 4, lambda block: block.word(0, dtypes.float32)),
    1: _Format(1, 2, lambda block: block.half(0)),
    2: _Format(32, 18, _q4_0),
    6: _Format(32, 22, _q5_0),
    8: _Format(32, 34, _q8_0),
    13: _Format(256, 176, _q5_k),
    14: _Format(256, 210, _q6_k),
    20: _Format(32, 18, _iq4_nl),
    23: _Format(256, 136, _iq4_xs),
    30: _Format(1, 2, lambda block: block.word(0, dtypes.bfloat16)),
    42: _Format(64, 18, _q2_0),
}
