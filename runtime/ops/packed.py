"""Products with weights of a few bits that stay packed in memory, of the domain com.microsoft.

ONNX does not have them; they are declared in `docs/ContribOperators.md` of onnxruntime.
"""

from __future__ import annotations

from typing import ClassVar

from ..errors import ShapeError
from ..ir.constraints import is_wide
from ..ir.dtypes import DType, bfloat16, float16, float32, float64, int32, name_of, uint8
from ..ir.op import Op, op
from ..ir.types import TensorType
from .contrib_text import DOMAIN
from .shapes import dim, need_rank, product, same_dim, same_dtype

_FLOATS = (float32, float16, bfloat16)

#: The values of the 4-bit codes, by `quant_type`.
_HALF = (0.0, 0.0052083334, 0.6666667, 1.0, 0.33333334, 0.5, 0.16666667, 0.25)
BNB4: tuple[tuple[float, ...], ...] = (
    (*_HALF, *(-value for value in _HALF)),
    (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ),
)


@op
class MatMulNBits(Op):
    """a [.., K] times the transpose of (b - zero_points) * scales [N, K], plus a bias [N].

    b [N, ceil(K / block_size), block_size * bits / 8] holds the integers of each row, lowest bits
    first, in blocks with one scale and zero point each: scales [N * ceil(K / block_size)]. Zero
    points have a's dtype, one per block, or are packed like the integers, each row in whole bytes;
    2 ** (bits - 1) if omitted. `g_idx` maps each of the K columns to its block, instead of its
    position. `accuracy_level` permits less precision than is used here.
    """

    dense = True
    domain: ClassVar[str] = DOMAIN
    K: int
    N: int
    block_size: int
    accuracy_level: int = 0
    bits: int = 4
    weight_prepacked: int = 0

    @property
    def blocks(self) -> int:
        """Number of blocks per row."""
        return -(-self.K // self.block_size)

    @property
    def is_prepacked(self) -> str:
        """Why the weights cannot be read; empty if they have the documented layout."""
        if not self.weight_prepacked:
            return ""
        return (
            f"weight_prepacked={self.weight_prepacked}: the weights are in the order of a kernel "
            "of onnxruntime; quantize the model again without prepacking (weight_prepacked=0)"
        )

    def infer(
        self,
        a: TensorType,
        b: TensorType,
        scales: TensorType,
        zero_points: TensorType | None = None,
        g_idx: TensorType | None = None,
        bias: TensorType | None = None,
    ) -> TensorType:
        _need_positive(N=self.N, K=self.K)
        if self.bits not in (2, 4, 8):
            raise ShapeError(f"bits={self.bits}; expected 2, 4 or 8")
        _need_block_size(self.block_size)
        _need_float(a, "A")
        _need_dtype(b, "B", uint8)
        same_dtype(a, scales, bias)
        if not self.weight_prepacked:
            _need_size(b, "B", self.N * self.blocks * (self.block_size * self.bits // 8))
        _need_size(scales, "scales", self.N * self.blocks)
        if zero_points is not None and zero_points.dtype == uint8:
            _need_size(zero_points, "zero_points", self.N * -(-self.blocks * self.bits // 8))
        elif zero_points is not None:
            same_dtype(a, zero_points)
            _need_size(zero_points, "zero_points", self.N * self.blocks)
        if g_idx is not None:
            _need_dtype(g_idx, "g_idx", int32)
            size = product(g_idx.shape) if g_idx.shape is not None else None
            if isinstance(size, int) and size not in (self.K, self.blocks * self.block_size):
                raise ShapeError(f"g_idx is {g_idx}; expected {self.K} elements")
        if bias is not None:
            _need_size(bias, "bias", self.N)
        return _multiplied(a, self.K, self.N)


@op
class MatMulBnb4(Op):
    """a times the transpose of weights [N, K], or themselves, as bitsandbytes packs them.

    b has the N * K elements as codes of four bits, highest bits first, of one of two tables of 16
    numbers (`quant_type` 0 is FP4, 1 is NF4); `absmax` has a factor for each `block_size` of them.
    """

    dense = True
    domain: ClassVar[str] = DOMAIN
    K: int
    N: int
    block_size: int
    quant_type: int
    training_mode: int = 0
    transB: int = 1

    def infer(self, a: TensorType, b: TensorType, absmax: TensorType) -> TensorType:
        _need_positive(N=self.N, K=self.K)
        if self.quant_type not in (0, 1):
            raise ShapeError(f"quant_type={self.quant_type}; expected 0 (FP4) or 1 (NF4)")
        _need_block_size(self.block_size)
        _need_float(a, "A")
        _need_dtype(b, "B", uint8)
        same_dtype(a, absmax)
        size = self.N * self.K
        _need_size(b, "B", -(-size // 2))
        _need_size(absmax, "absmax", -(-size // self.block_size))
        return _multiplied(a, *((self.K, self.N) if self.transB else (self.N, self.K)))


def _multiplied(a: TensorType, rows: int, columns: int) -> TensorType:
    if a.shape is None:
        return a.without_value()
    need_rank(a, tuple(range(1, 65)), "A")
    same_dim(dim(a, -1), rows, f"columns of A {a} and rows of the weights")
    return a.with_shape((*a.shape[:-1], columns))


def _need_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ShapeError(f"{name}={size}; expected at least 1")


def _need_block_size(size: int) -> None:
    if size < 16 or size & (size - 1):
        raise ShapeError(f"block_size={size}; expected a power of two from 16 on")


def _need_dtype(x: TensorType, name: str, *allowed: DType) -> None:
    if x.dtype not in allowed:
        wanted = " or ".join(map(name_of, allowed))
        raise ShapeError(f"{name} is of {name_of(x.dtype)}; expected {wanted}")


def _need_float(x: TensorType, name: str) -> None:
    if not (x.dtype == float64 and is_wide()):
        _need_dtype(x, name, *_FLOATS)


def _need_size(x: TensorType, name: str, size: int) -> None:
    found = product(x.shape) if x.shape is not None else None
    if isinstance(found, int) and found != size:
        raise ShapeError(f"{name} is {x}; expected {size} elements")
