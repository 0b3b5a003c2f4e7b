"""Kernels of 16-bit floats that memory bounds: depthwise convolution, poolings, normalization.

They read images channels last in words of eight channels, and compute in float32.
"""

from __future__ import annotations

from ...runtime.dtypes import DType, bfloat16, float16
from ...runtime.ops.window import Window
from .launch import Launch
from .layout import Ints, ceil_div
from .operands import Packed, Tensor
from .spatial import by_axis, sizes
from .tail import Tail

HALVES = frozenset({float16, bfloat16})
THREADS = 128
#: PTX names.
KINDS: dict[DType, str] = {float16: "f16", bfloat16: "bf16"}


def ends_of(
    bias: Tensor | Packed | None, tail: Tail
) -> tuple[tuple[str, int], tuple[str, int], tuple[str, int]]:
    """Return the constants of `finish.cuh`: whether there is a bias, and how operands lie."""
    kinds = [
        1 if isinstance(operand, Tensor) and operand.data is None else 2
        for operand in tail.operands
    ]
    first, second = (*kinds, 0, 0)[:2]
    return ("BIAS", bias is not None), ("Z0", first), ("Z1", second)


def instructions(dtype: DType, n: int, across: int = 0, *, in_registers: bool = True) -> str:
    """Return the macros of the element type, and products of wgmma.

    Args:
        dtype: float16 or bfloat16.
        n: columns of ``wgmma``, both of whose operands lie in shared memory in rows of terms; 0 for
            none.
        across: columns of ``wgmma_across``, whose right operand lies in rows of columns; or 0.
        in_registers: the left operand of ``wgmma_across`` lies in registers, not in rows of terms.
    """
    lines = [f'#define KIND "{KINDS[dtype]}"', f"#define WGMMA_CODE {int(n > 0)}"]
    if n:
        lines += _wgmma("wgmma", KINDS[dtype], n, (0, 0))
    if across:
        lines += _wgmma("wgmma_across", KINDS[dtype], across, (1,) if in_registers else (0, 1))
    return "\n".join(lines)


def _wgmma(name: str, kind: str, n: int, across: Ints) -> list[str]:
    """Return the lines of a function that adds a product of 64 rows by `n` columns to sums.

    Args:
        name: of the function.
        kind: the PTX name of the elements.
        n: the columns.
        across: of each operand in shared memory, 1 if its rows are not of terms.
    """
    count, in_registers = n // 2, len(across) == 1
    names = ", ".join(f"%{i}" for i in range(count))
    sums = ", ".join(f'"+f"(sums[{i // 4}][{i % 4}])' for i in range(count))
    left, given, found = "unsigned long long a", '"l"(a)', f"%{count}"
    if in_registers:
        left, given = "const unsigned int (&a)[4]", ", ".join(f'"r"(a[{i}])' for i in range(4))
        found = f"{{{', '.join(f'%{count + i}' for i in range(4))}}}"
    last, ways = count + (4 if in_registers else 1), ", ".join(map(str, across))
    return [
        f"__device__ __forceinline__ void {name}(float (&sums)[{n // 8}][4], {left}, "
        "unsigned long long b)",
        "{",
        '    asm volatile("{ .reg .pred p; setp.eq.u32 p, 1, 1; "',
        f'        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} "',
        f'        "{{{names}}}, {found}, %{last}, p, 1, 1, {ways}; }}"',
        f'        : {sums} : {given}, "l"(b));',
        "}",
    ]


# ── poolings ─────────────────────────────────────────────────────────────────────────────────────

MAX, AVERAGE, AVERAGE_PADDED = range(3)
#: Windows of more elements than this stay loops.
MOST_UNROLLED = 16
#: The second axis of a grid has at most so many blocks.
MOST_IMAGES = 65535


def pools_words(y: Tensor | None, x: Tensor) -> bool:
    """Whether `half_pool` suits these tensors."""
    return (
        y is not None
        and x.dtype in HALVES
        and x.rank == 4
        and x.is_channels_last
        and x.dims[1] % 8 == 0
        and 0 < max(x.size, y.size) < 2**30
        and x.dims[0] <= MOST_IMAGES
    )


def whole_image(x: Tensor) -> Window:
    """Return the one window that covers an image of two axes."""
    return Window(x.dims[2:], (1, 1), (1, 1), (0, 0), (0, 0), (1, 1))


def half_pool(kind: int, y: Tensor, x: Tensor, view: Window) -> Launch:
    """Return a pooling of whole words of channels.

    Args:
        kind: MAX, AVERAGE or AVERAGE_PADDED.
        y: the result.
        x: the input; `pools_words` holds for them.
        view: the windows.
    """
    kernel_h, kernel_w = view.kernel
    if view.kernel == x.dims[2:] and view.output == (1, 1) and not any(view.pads_begin):
        return _pool_images(kind, y, x)
    count = y.size // 8
    plane = {
        **{"channels": x.dims[1], **sizes("", x.dims[2:]), **sizes("out_", y.dims[2:])},
        **{"row_x": x.row, "row_y": y.row},
        **by_axis(stride=view.strides, dilation=view.dilations, pad=view.pads_begin),
        **dict(zip(("pad_bottom", "pad_right"), view.pads_end, strict=True)),
    }
    return Launch(
        "pool_words.cu",
        "pool_words",
        grid=(ceil_div(count, THREADS), 1, 1),
        block=THREADS,
        args={"x": x, "y": y, "count": count, "p": plane},
        types=(("T", x.dtype),),
        constants=(
            *(("KIND_OF", kind), ("KH", kernel_h), ("KW", kernel_w)),
            ("UNROLL", 8 if kernel_h * kernel_w <= MOST_UNROLLED else 4),
        ),
        code=instructions(x.dtype, 0),
        early=True,
        note=f"{kernel_h}x{kernel_w}",
        pitched=(x, y),
    )


def _pool_images(kind: int, y: Tensor, x: Tensor) -> Launch:
    """Return the pooling of whole images, each by several blocks."""
    images, channels, pixels = x.dims[0], x.dims[1], x.dims[2] * x.dims[3]
    return Launch(
        "pool_words.cu",
        "pool_images",
        grid=(ceil_div(channels, 64), images, 1),
        block=256,
        args={"x": x, "y": y, "channels": channels, "pixels": pixels, "row_x": x.row},
        types=(("T", x.dtype),),
        constants=(("KIND_OF", kind), ("KH", 1), ("KW", 1), ("UNROLL", 1)),
        code=instructions(x.dtype, 0),
        early=True,
        note=f"of {pixels}",
        pitched=(x,),
    )


def half_lrn(
    y: Tensor, x: Tensor, reach: tuple[int, int], factors: tuple[float, float, float]
) -> Launch:
    """Return a local response normalization of whole words of channels.

    Args:
        y: the result.
        x: the input; `pools_words` holds for them.
        reach: neighbours before and behind a channel, 8 at most.
        factors: scale of the squares, exponent, and bias.
    """
    count, (scale, beta, bias) = y.size // 8, factors
    return Launch(
        "lrn_words.cu",
        "lrn_words",
        grid=(ceil_div(count, THREADS), 1, 1),
        block=THREADS,
        args={
            **{"x": x, "y": y, "count": count, "channels": x.dims[1]},
            **{"scale": scale, "beta": beta, "bias": bias},
        },
        types=(("T", x.dtype),),
        constants=(("BEFORE", reach[0]), ("AFTER", reach[1])),
        early=True,
        note=f"{sum(reach) + 1} channels",
    )
