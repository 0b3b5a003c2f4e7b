"""Pooling: over windows by `pool.cu`, over whole images by `reduce.cu`."""

from __future__ import annotations

from dataclasses import astuple

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, float32, uint32, uint64
from ....runtime.ir.graph import Node
from ....runtime.ops.pool import (
    AveragePool,
    GlobalAveragePool,
    GlobalLpPool,
    GlobalMaxPool,
    LpPool,
    MaxPool,
)
from ....runtime.ops.reduce import ReduceMax, ReduceMean
from ....runtime.ops.window import Window, window
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..codegen.elementwise import NUMBERS, lowest
from ..codegen.epilogue import Epilogue, no_epilogue
from ..codegen.fold_kernel import fold
from ..codegen.folds import FOLDS, ReduceFormula
from ..gemm.atoms import F16X3, HALVES, atom_of
from ..recipe.launch import Launch, each
from ..recipe.operands import (
    Ints,
    Tensor,
    by_axis,
    ceil_div,
    divisor,
    pool_geometry,
    sizes,
    spatial_strides,
    three,
)
from ..recipe.source import arithmetic
from .pool_words import AVERAGE, AVERAGE_PADDED, MAX, NORM, at_once, half_pool, pools_words

THREADS = 128
#: Maximum number of elements counted in 32 bits.
MAX_COUNTED = 2**30
#: Channels per thread in C order, and the minimum number of results for it.
SOME, MUCH = 4, 2**20
#: Pixels of a column per thread where windows overlap, bytes of a word, and maximum extent of a
#: window. On an H100 at batch 32, GoogLeNet takes 6 % (float16) and 8 % less (float32) with four
#: pixels, with two or seven 3 and 4 % (float16).
DOWN, WORD, MAX_SIDE = 4, 16, 5
#: Pixels per thread where an epilogue reads along. On an H200 at batch 32 in float16 PoolFormer-S12
#: takes 4 % less time than with a thread for each pixel, with four 2 %; EfficientFormer-L1 3 and 1.
DOWN_ALONG = 2


def _stores_windows(node: Node) -> bool:
    """Whether a kernel with an epilogue computes a node.

    Those of whole images, and of many windows that overlap, have none.
    """
    op, x, y = node.op, Tensor(node.operands[0]), Tensor(node.output)
    if not isinstance(op, MaxPool | AveragePool) or x.dtype not in FLOATS:
        return False
    view = window(op, x.dims[2:], op.kernel_shape)
    overlap = isinstance(op, MaxPool) and y.size >= MUCH and max(view.kernel) <= MAX_SIDE
    shared = all(kernel > stride for kernel, stride in zip(view.kernel, view.strides, strict=True))
    return not _covers_all(op, x) and not (overlap and shared)


@kernel(MaxPool, follows=True, outputs=2, chains=_stores_windows)
def max_pool(
    op: MaxPool,
    y: Tensor | None,
    x: Tensor,
    *,
    epilogue: Epilogue,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """Maximum of each window, and optionally its position; see `_whole` and `_stores_windows`."""
    positions = more[0] if more else None
    if y is not None and positions is None and x.dtype in FLOATS and _covers_all(op, x):
        return _whole(MAX, y, x)
    column_major = bool(op.storage_order)
    return _pool(op, y, x, MAX, positions, column_major=column_major, epilogue=epilogue)


@kernel(AveragePool, follows=True, chains=_stores_windows)
def average_pool(op: AveragePool, y: Tensor, x: Tensor, *, epilogue: Epilogue) -> Answer:
    """Mean of each window; see `_whole` and `_stores_windows`."""
    if _covers_all(op, x) and not (op.count_include_pad and op.kernel_shape != x.dims[2:]):
        return _whole(AVERAGE, y, x)
    kind = AVERAGE_PADDED if op.count_include_pad else AVERAGE
    return _pool(op, y, x, kind, epilogue=epilogue)


@kernel(LpPool, follows=True)
def lp_pool(op: LpPool, y: Tensor, x: Tensor) -> Answer:
    """p-norm of each window."""
    return _pool(op, y, x, NORM, p=op.p)


@kernel(GlobalAveragePool, follows=True)
def global_average_pool(op: GlobalAveragePool, y: Tensor, x: Tensor) -> Answer:
    """Mean of whole images."""
    return _whole(AVERAGE, y, x)


@kernel(GlobalMaxPool, follows=True)
def global_max_pool(op: GlobalMaxPool, y: Tensor, x: Tensor) -> Answer:
    """Maximum of whole images."""
    return _whole(MAX, y, x)


@kernel(GlobalLpPool, follows=True)
def global_lp_pool(op: GlobalLpPool, y: Tensor, x: Tensor) -> Answer:
    """p-norm of whole images."""
    norm = ReduceFormula(
        "a + b",
        element=f"pow(fabs(x), A({op.p}))",
        finish=f"pow(a, A(1) / A({op.p}))",
        floating=True,
    )
    return fold(norm, y, x, tuple(range(2, x.rank)), "norm")


def _covers_all(op: AveragePool | MaxPool, x: Tensor) -> bool:
    """Whether there is one window, which covers the whole image."""
    view = window(op, x.dims[2:], op.kernel_shape)
    covered = zip(view.kernel, view.pads_begin, x.dims[2:], strict=True)
    whole = all(0 < size <= kernel - begin for kernel, begin, size in covered)
    return whole and not view.is_dilated and set(view.output) == {1}


def _whole(kind: int, y: Tensor, x: Tensor) -> Answer:
    """Return the maximum or mean of whole images, for which many threads share a window."""
    formula, name = (ReduceMax, "max") if kind == MAX else (ReduceMean, "mean")
    return fold(FOLDS[formula], y, x, tuple(range(2, x.rank)), name)


def _pool(
    op: MaxPool | AveragePool | LpPool,
    y: Tensor | None,
    x: Tensor,
    kind: int,
    positions: Tensor | None = None,
    *,
    p: int = 1,
    column_major: bool = False,
    epilogue: Epilogue | None = None,
) -> Answer:
    refused = need_dtypes(NUMBERS if kind == MAX else FLOATS, y, x)
    result = y or positions
    if refused or result is None:
        return refused or "none of its outputs is read"
    epilogue = epilogue or no_epilogue(x.dtype)
    view = window(op, x.dims[2:], op.kernel_shape)
    image = _Image(x.dims[1], x.strides, x.dims[2:], view)
    if x.rank > 5:
        image = image.joined()
        if len(image.sizes) > 3 or positions is not None:
            return f"{x.rank - 2} spatial axes"
        view = image.view
    if y is not None and positions is None and kind != NORM and _overlap(view, y, x):
        return _columns(kind, y, x, view, epilogue)
    if y is not None and positions is None and kind != NORM and pools_words(y, x):
        return half_pool(kind, y, x, view, epilogue)
    depth, height, width = three(view.kernel, 1)
    vector = 1 if positions or y is None else _vector(y, x)
    count = result.size // vector
    few = max(result.size, x.dims[0] * x.strides[0]) < MAX_COUNTED
    return each(
        "image/pool.cu",
        "pool",
        count,
        block=THREADS,
        args={
            **{"x": x, "y": y, "positions": positions, **epilogue.args},
            **{"count": count, "channels": image.channels},
            **{"row": y.row if y else x.dims[1], "power": p},
            "from": spatial_strides(image.strides),
            "g": pool_geometry(image.sizes, view.output, view),
        },
        types=(
            *(("X", x.dtype), ("A", arithmetic(x.dtype)), *epilogue.types),
            ("I", uint32 if few else uint64),
        ),
        constants=(
            *(("KIND", kind), ("CHANNELS_LAST", result.is_channels_last)),
            *(("VECTOR", vector), ("FIRST", 3 - len(image.sizes))),
            *(("KD", depth), ("KH", height), ("KW", width)),
            ("BATCH", at_once((depth, height, width), vector * x.dtype.itemsize)),
            *(("POSITIONS", positions is not None), ("COLUMN_MAJOR", column_major)),
        ),
        code=f"#define LOWEST {lowest(x.dtype)}\n{epilogue.code}",
        concurrent=True,
        note=f"{type(op).__name__} {'x'.join(map(str, view.kernel))} {epilogue.title}".strip(),
        pitched=() if x.rank > 5 else (x, y, *epilogue.pitched) if y else (x,),
    )


def _overlap(view: Window, y: Tensor, x: Tensor) -> bool:
    """Whether windows are rows that several results share, of enough results for `_columns`."""
    if x.rank != 4 or not (x.is_channels_last and y.is_channels_last) or view.is_dilated:
        return False
    if (
        x.dtype not in (float32, *HALVES)
        or x.dtype != y.dtype
        or x.dims[1] * x.dtype.itemsize % WORD
    ):
        return False
    if y.size < MUCH or max(x.size, y.size) >= MAX_COUNTED or max(view.kernel) > MAX_SIDE:
        return False
    return all(kernel > stride for kernel, stride in zip(view.kernel, view.strides, strict=True))


def _columns(kind: int, y: Tensor, x: Tensor, view: Window, epilogue: Epilogue) -> Launch:
    """Return the launch of a pooling whose threads have several pixels of a column each."""
    vector = WORD // x.dtype.itemsize
    height, width = view.output
    down = DOWN_ALONG if epilogue.reads_along else DOWN
    words, strips = x.dims[1] // vector, ceil_div(height, down)
    count = x.dims[0] * strips * width * words
    plane = {
        **{**sizes("", x.dims[2:]), **sizes("out_", view.output), **by_axis(pad=view.pads_begin)},
        **dict(zip(("pad_bottom", "pad_right"), view.pads_end, strict=True)),
        **{"row_x": x.row, "row_y": y.row, "words": words, "strips": strips},
        **{"by_word": divisor(words), "by_column": divisor(width), "by_strip": divisor(strips)},
    }
    return each(
        "image/pool_columns.cu",
        "pool_columns",
        count,
        block=THREADS,
        args={"x": x, "y": y, **epilogue.args, "count": count, "p": plane},
        types=(("T", x.dtype), *epilogue.aliases),
        constants=(
            *(("KIND_OF", kind), ("VECTOR", vector), ("DOWN", down)),
            *zip(("KH", "KW"), view.kernel, strict=True),
            *zip(("STEP_H", "STEP_W"), view.strides, strict=True),
            ("PLAIN", not epilogue.title),
            *(("VECTOR_C", vector), *epilogue.flags(None)),
        ),
        code=f"{(F16X3 if x.dtype == float32 else atom_of(x.dtype)).code()}\n{epilogue.code}",
        concurrent=True,
        note=f"{'x'.join(map(str, view.kernel))} {epilogue.title}".strip(),
        pitched=(x, y, *epilogue.pitched),
    )


@record
class _Image:
    """What windows are taken of.

    Attributes:
        channels: number of channels.
        strides: of images, channels and spatial axes.
        sizes: of the spatial axes.
        view: the windows.
    """

    channels: int
    strides: Ints
    sizes: Ints
    view: Window

    def joined(self) -> _Image:
        """Return a contiguous image whose adjacent axes with windows of one element are one.

        In front of all others they are channels.
        """
        image, channel, *steps = self.strides
        fields = [list(values) for values in astuple(self.view)]
        plain = [
            (kernel, stride, begin, end) == (1, 1, 0, 0)
            for kernel, stride, _, begin, end, _ in zip(*fields, strict=True)
        ]
        channels, sizes = self.channels, list(self.sizes)
        while plain and plain[0]:
            channels, channel = channels * sizes[0], steps[0]
            for each_axis in (plain, sizes, steps, *fields):
                del each_axis[0]
        for axis in reversed(range(1, len(sizes))):
            if plain[axis - 1] and plain[axis]:
                sizes[axis] *= sizes[axis - 1]
                for each_axis in (plain, sizes, steps, *fields):
                    del each_axis[axis - 1]
        kernel, strides, dilations, begin, end, output = map(tuple, fields)
        output = tuple(s if p else o for s, p, o in zip(sizes, plain, output, strict=True))
        view = Window(kernel, strides, dilations, begin, end, output)
        return _Image(channels, (image, channel, *steps), tuple(sizes), view)


def _vector(y: Tensor, x: Tensor) -> int:
    """Return the channels per thread: up to 16 bytes, if there is enough work."""
    last = x.is_channels_last and y.is_channels_last
    vector = 16 // x.dtype.itemsize if last else SOME if y.size >= MUCH else 1
    return vector if x.dims[1] % vector == 0 else 1
