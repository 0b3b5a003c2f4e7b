"""Pooling: over windows by `pool.cu`, over whole images by `reduce.cu`."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from ....runtime.ir.dtypes import FLOATS, uint32, uint64
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
from ..gemm.vectorized_f16 import at_once, half_pool, pools_words, whole_image
from ..recipe.launch import each
from ..recipe.operands import Ints, Tensor, pool_geometry, spatial_strides, three
from ..recipe.source import arithmetic
from .reduce import FOLDS, ReduceFormula, fold

THREADS = 128
MAX, AVERAGE, AVERAGE_PADDED, NORM = range(4)
#: Maximum number of elements counted in 32 bits.
MAX_COUNTED = 2**30
#: Channels per thread in C order, and the minimum number of results for it.
SOME, MUCH = 4, 2**20


@kernel(MaxPool, follows=True, outputs=2)
def max_pool(
    op: MaxPool, y: Tensor | None, x: Tensor, *, more: tuple[Tensor | None, ...] = ()
) -> Answer:
    """Maximum of each window, and optionally its position; see `_whole`."""
    positions = more[0] if more else None
    if y is not None and positions is None and x.dtype in FLOATS and _covers_all(op, x):
        return _whole(MAX, y, x)
    return _pool(op, y, x, MAX, positions=positions, column_major=bool(op.storage_order))


@kernel(AveragePool, follows=True)
def average_pool(op: AveragePool, y: Tensor, x: Tensor) -> Answer:
    """Mean of each window; see `_whole`."""
    if _covers_all(op, x) and not (op.count_include_pad and op.kernel_shape != x.dims[2:]):
        return _whole(AVERAGE, y, x)
    return _pool(op, y, x, AVERAGE_PADDED if op.count_include_pad else AVERAGE)


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
    if pools_words(y, x):
        return half_pool(kind, y, x, whole_image(x))
    formula, name = (ReduceMax, "max") if kind == MAX else (ReduceMean, "mean")
    return fold(FOLDS[formula], y, x, tuple(range(2, x.rank)), name)


def _pool(
    op: MaxPool | AveragePool | LpPool,
    y: Tensor | None,
    x: Tensor,
    kind: int,
    *,
    p: int = 1,
    positions: Tensor | None = None,
    column_major: bool = False,
) -> Answer:
    refused = need_dtypes(NUMBERS if kind == MAX else FLOATS, y, x)
    result = y or positions
    if refused or result is None:
        return refused or "none of its outputs is read"
    view = window(op, x.dims[2:], op.kernel_shape)
    image = _Image(x.dims[1], x.strides, x.dims[2:], view)
    if x.rank > 5:
        image = image.joined()
        if len(image.sizes) > 3 or positions is not None:
            return f"{x.rank - 2} spatial axes"
        view = image.view
    if y is not None and positions is None and kind != NORM and pools_words(y, x):
        return half_pool(kind, y, x, view)
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
            **{"x": x, "y": y, "positions": positions, "count": count, "channels": image.channels},
            **{"row": y.row if y else x.dims[1], "power": p},
            "from": spatial_strides(image.strides),
            "g": pool_geometry(image.sizes, view.output, view),
        },
        types=(("X", x.dtype), ("A", arithmetic(x.dtype)), ("I", uint32 if few else uint64)),
        constants=(
            *(("KIND", kind), ("CHANNELS_LAST", result.is_channels_last)),
            *(("VECTOR", vector), ("FIRST", 3 - len(image.sizes))),
            *(("KD", depth), ("KH", height), ("KW", width)),
            ("BATCH", at_once((depth, height, width), vector * x.dtype.itemsize)),
            *(("POSITIONS", positions is not None), ("COLUMN_MAJOR", column_major)),
        ),
        code=f"#define LOWEST {lowest(x.dtype)}",
        beside=True,
        note=f"{type(op).__name__} {'x'.join(map(str, view.kernel))}",
        pitched=() if x.rank > 5 else (x, y) if y else (x,),
    )


@dataclass(frozen=True, slots=True)
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
