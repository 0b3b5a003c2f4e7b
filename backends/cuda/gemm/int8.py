"""Products and convolutions of bytes on tensor cores, with int32 accumulators: `multistage.cu`."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, float32, int8, uint8
from ....runtime.ir.types import Array
from ....runtime.ops.quantize import ConvInteger, QLinearConv
from ....runtime.ops.window import window
from ....runtime.plan.format import Format
from ..algorithms.selection import CHANNELS_LAST, CONTIGUOUS, Formats
from ..codegen.rounding import narrow
from ..recipe.launch import Launch
from ..recipe.operands import Packed, Scratch, Tensor, ceil_div
from ..recipe.targets import Target
from .atoms import atom_of
from .pack import padded
from .problem import Batch, GemmArguments, Matrix, Problem, image_source, packed_filters, widest
from .schedules import multistage
from .schedules.multistage import End, SplitK
from .tables.f16 import MULTISTAGE
from .tile import Config, TimedConfig, quickest, with_splits
from .windows import MAX_REACH, reach_of

#: The element types.
BYTES = frozenset({int8, uint8})
#: Bytes per copy: rows of A are multiples of the smallest.
VECTORS = (16, 8, 4)
#: Elements of a tensor, whose places are counted in 32 bits; and products of a stack.
MAX_ELEMENTS, MAX_PRODUCTS = 2**30, 2**12
#: Bytes per column in a block of `multistage.cu`.
OF_COLUMN = 16
#: Rows of B in words of sixteen bytes.
SIXTEENS = partial(padded, multiple=16)

Convolution = ConvInteger | QLinearConv


@record
class Quantization:
    """Zero points and scales of operands and result.

    Attributes:
        zeros: zero points of the left and right operand.
        scales: of the left and right operand and the result; None if int32 sums are the result.
        y_zero: zero point of the result.
        bias: one int32 per filter, in the scale of the sums.
    """

    zeros: tuple[Tensor | None, Tensor | None]
    scales: tuple[Tensor, Tensor, Tensor] | None = None
    y_zero: Tensor | None = None
    bias: Tensor | None = None

    @property
    def shifts_b(self) -> bool:
        """Whether the right operand has zero points that may be non-zero."""
        zero = self.zeros[1]
        return zero is not None and (zero.known is None or bool(zero.known.any()))

    @property
    def parameters(self) -> dict[str, Tensor | None]:
        """The kernel arguments: zero points, scales, and the zero point of the result."""
        b_zero = self.zeros[1] if self.shifts_b else None
        a_scale, b_scale, y_scale = self.scales or (None, None, None)
        return {
            **{"a_zero": self.zeros[0], "b_zero": b_zero, "a_scale": a_scale},
            **{"b_scale": b_scale, "y_scale": y_scale, "y_zero": self.y_zero},
        }

    @property
    def steps(self) -> dict[str, int]:
        """Struct `Steps` of the kernel."""
        given = self.parameters.items()
        return {name: int(t is not None and t.size > 1) for name, t in given}

    @property
    def by_row(self) -> bool:
        """Whether parameters are per row."""
        return any(self.steps[name] for name in ("a_zero", "a_scale", "y_scale", "y_zero"))


@record
class Int8Product:
    """A product of bytes.

    Attributes:
        gemm: the operands.
        sums: sums of the rows of B, int32.
        quantization: zero points and scales.
    """

    gemm: GemmArguments
    sums: Packed | Scratch
    quantization: Quantization

    @property
    def stored(self) -> DType:
        """The dtype of the results."""
        assert isinstance(self.gemm.c, Tensor)
        return self.gemm.c.dtype

    @property
    def problem(self) -> Problem:
        """The problem for which to choose a tile; two bytes count as one 16-bit term."""
        (m, n, k), count = self.gemm.shape, self.gemm.batch.count
        traffic = count * (m * k + n * k + m * n * self.stored.itemsize)
        return Problem(m, n, ceil_div(k, 2), count, self.gemm.a.rows, traffic)


def choose(p: Int8Product, target: Target) -> TimedConfig:
    """Return the tile and splits, by the estimates for 16-bit floats."""
    usable = [
        tile
        for tile in MULTISTAGE
        if multistage.resources(tile, tile.stages).shared + tile.bn * OF_COLUMN <= target.shared
        and (not tile.wgmma or (target.has_wgmma and not p.quantization.shifts_b))
    ]
    configs = map(Config, usable)
    if target.has_clusters:
        configs = with_splits(usable, p.problem, target, clusters=True)
    configs = (
        config
        for config in configs
        if multistage.fits(config, p.problem, target, config.tile.bn * OF_COLUMN)
    )
    return quickest(configs, lambda config: multistage.expected(p.problem, config, target))


def multiply(p: Int8Product, target: Target) -> Launch:
    """Return the launch of a product."""
    gemm, q, config = p.gemm, p.quantization, choose(p, target).config
    scale_type = q.scales[0].dtype if q.scales else float32
    end = End(
        entry="mma_integer",
        args={**q.parameters, "c": gemm.c, "bias": q.bias, "b_sums": p.sums, "by": q.steps},
        types=(("Z", scale_type), ("R", p.stored)),
        constants=(
            ("VECTOR_C", gemm.vector_c(8)),
            ("ZERO_B", q.shifts_b),
            ("BY_ROW", q.by_row),
        ),
        code=narrow(p.stored, float32),
    )
    split = SplitK.CLUSTER if config.splits > 1 else SplitK.WHOLE
    return multistage.launch(gemm, config, atom_of(gemm.dtype, gemm.dtype_b), end, split)


# ── matrix products ──────────────────────────────────────────────────────────────────────────────


def need_bytes(
    operands: tuple[Tensor, Tensor, Tensor], quantization: Quantization, target: Target
) -> str:
    """Return why y, a and b do not suit `multistage.cu`; empty if they do."""
    y, a, b = operands
    if not target.has_tf32:
        return f"tensor cores of {target.arch}"
    if not {a.dtype, b.dtype} <= BYTES or (quantization.scales and y.dtype not in BYTES):
        return "not all operands are bytes"
    if max(a.size, b.size, y.size) >= MAX_ELEMENTS or a.size * b.size == 0:
        return f"{max(a.size, b.size, y.size)} elements"
    return ""


def matmul(
    y: Tensor, a: Tensor, b: Tensor, quantization: Quantization, target: Target
) -> tuple[Launch, ...] | str:
    """Return numpy's `matmul` of integers less their zero points, or why it needs another kernel.

    Args:
        y: the result: int32, or bytes with scales.
        a: the left operand, whose rows are multiples of four bytes.
        b: the right operand: packed once if constant, else in every run.
        quantization: zero points and scales.
        target: the GPU.
    """
    refused = need_bytes((y, a, b), quantization, target)
    if refused:
        return refused
    if b.rank < 2 or a.dims[-1] % VECTORS[-1]:
        return "a vector on the right" if b.rank < 2 else f"{a.dims[-1]} terms"
    (k, n), m = b.dims[-2:], a.dims[-2] if a.rank > 1 else 1
    of_a, of_b = (prod(t.dims[:-2]) for t in (a, b))
    count = prod(y.dims) // (m * n)
    if not {of_a, of_b} <= {1, count} or count > MAX_PRODUCTS:
        return f"a stack of {of_a} matrices with one of {of_b}"
    ldb = ceil_div(k, VECTORS[0]) * VECTORS[0]
    batch = Batch(count, m * k * (of_a > 1), n * ldb * (of_b > 1), m * n)
    if of_b == 1 and not quantization.by_row:
        m, batch = m * of_a, Batch()
    packing: tuple[Launch, ...] = ()
    if b.data is not None:
        columns = Packed((b.value,), "integer columns", pack_columns)
        sums = Packed((b.value,), "sums of columns", sums_of_columns)
    else:
        columns, sums, packing = _packed(b, ldb)
    source = Matrix(a, k, widest(VECTORS, k))
    gemm = GemmArguments(
        source, columns, y, (m, n, k), ldb, n, batch, dtype=a.dtype, dtype_b=b.dtype
    )
    return (*packing, multiply(Int8Product(gemm, sums, quantization), target))


def _packed(b: Tensor, ldb: int) -> tuple[Scratch, Scratch, tuple[Launch, ...]]:
    """Return computed columns packed in the workspace, their sums, and the packing launch."""
    (k, n), count = b.dims[-2:], prod(b.dims[:-2])
    columns, sums = Scratch(0), Scratch(ceil_div(count * n * ldb, 256) * 256)
    launch = Launch(
        "gemm/pack_int8.cu",
        "pack_integers",
        grid=(ceil_div(n, 32), count, 1),
        block=256,
        args={"x": b, "y": columns, "sums": sums, "k": k, "n": n, "ldb": ldb},
        types=(("T", b.dtype),),
        scratch=sums.offset + 4 * count * n,
    )
    return columns, sums, (launch,)


def pack_columns(b: Array) -> Array:
    """Return matrices [..., k, n] as [..., n, k], with rows zero-padded to multiples of sixteen."""
    return SIXTEENS(np.swapaxes(b, -1, -2))


def sums_of_columns(b: Array) -> Array:
    """Return the sums of matrices [..., k, n] over k, modulo 2**32."""
    return b.sum(-2, dtype=np.int64).astype(np.int32)


# ── convolutions ─────────────────────────────────────────────────────────────────────────────────


def formats_of(op: Convolution, x: Tensor, w: Tensor) -> Formats:
    """Return the formats of input and result: channels-last where that is faster.

    A filter with one channel, which is not a matrix product, accepts either.
    """
    if w.data is None or x.rank not in (3, 4) or not {x.dtype, w.dtype} <= BYTES:
        return CONTIGUOUS
    channels = w.dims[1]
    if op.group == 1:
        return (
            CHANNELS_LAST
            if channels % VECTORS[-1] == 0
            else (Format.CONTIGUOUS, Format.CHANNELS_LAST)
        )
    return CHANNELS_LAST if channels == 1 or channels % VECTORS[0] == 0 else CONTIGUOUS


def convolution(
    op: Convolution, y: Tensor, x: Tensor, w: Tensor, quantization: Quantization, target: Target
) -> tuple[Launch, ...] | str:
    """Return a convolution of integers less their zero points, or why it needs another kernel.

    Args:
        op: the operator.
        y: the result: int32, or bytes with scales; channels-last.
        x: the input; channels-last if its channels are whole words.
        w: constant weights.
        quantization: zero points and scales.
        target: the GPU.
    """
    refused = need_bytes((y, x, w), quantization, target) or _need_image(op, y, x, w)
    if refused:
        return refused
    if w.dims[1] % VECTORS[-1] and quantization.shifts_b:
        return f"{w.dims[1]} channels, of weights with zero points"
    view = window(op, x.dims[2:], w.dims[2:])
    image, packing = image_source(x, w, view, y.dims[2:], VECTORS)
    filters = w.dims[0] // op.group
    ldb = ceil_div(image.terms, VECTORS[0]) * VECTORS[0]
    gemm = GemmArguments(
        a=image,
        b=packed_filters(w, op.group, image.channels, "in sixteens", SIXTEENS),
        c=y,
        shape=(prod(y.dims) // y.dims[1], filters, image.terms),
        ldb=ldb,
        ldc=y.row,
        batch=Batch(op.group, image.channels, filters * ldb, filters),
        dtype=x.dtype,
        dtype_b=w.dtype,
    )
    sums = Packed((w.value,), "sums of filters", sums_of_filters)
    return (*packing, multiply(Int8Product(gemm, sums, quantization), target))


def _need_image(op: Convolution, y: Tensor, x: Tensor, w: Tensor) -> str:
    """Return why `multistage.cu` does not apply; empty if it does."""
    channels = w.dims[1]
    if w.data is None or x.rank not in (3, 4):
        return "computed weights" if w.data is None else f"{x.rank - 2} spatial axes"
    if not y.is_channels_last or x.is_channels_last != (channels % VECTORS[-1] == 0):
        return "an image in another format"
    if op.group > 1 and channels % VECTORS[0]:
        return f"groups of {channels} channels"
    size = x.size // channels * ceil_div(channels, 8) * 8
    is_long = x.rank > 3 and reach_of(x.dims[2:], window(op, x.dims[2:], w.dims[2:])) > MAX_REACH
    if is_long or size >= MAX_ELEMENTS:
        return f"an image of {' x '.join(map(str, x.dims))}"
    return ""


def sums_of_filters(w: Array) -> Array:
    """Return the sum of weights [m, c, *kernel] over each filter, modulo 2**32."""
    return w.reshape(w.shape[0], -1).sum(1, dtype=np.int64).astype(np.int32)
