"""Depthwise convolutions, a filter a channel: `depthwise.cu`, in 16 bits `depthwise_words.cu`.

Memory bounds them. A thread computes a patch of neighbouring pixels, so that it reads each input
once for all of their windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ...runtime.types import Array
from .convolution import MOST_ELEMENTS, Convolution
from .half_words import HALVES, ends_of
from .launch import Ints32, Launch, Packed
from .layout import Ints, ceil_div
from .menu import LAST, Formats
from .registry import Answer
from .windows import image_of

THREADS = 128
#: Rows and columns of a thread's patch.
Patch = tuple[int, int]
#: Largest first; the first one is taken that leaves the GPU enough threads.
PATCHES: tuple[Patch, ...] = ((2, 4), (2, 2), (1, 2), (1, 1))
#: Threads for each multiprocessor that hide the latency of the memory.
BUSY = 512
#: Taps of a window up to which patches are larger than a pixel: windows are written out.
MOST_TAPS = 25
SINGLE: Patch = (1, 1)


def depthwise_formats(conv: Convolution) -> Formats | str:
    """Return the formats of `depthwise` in float32, or why it cannot be used."""
    if conv.group == 1:
        return "one group"
    if not conv.is_depthwise:
        return f"groups of {conv.channels} channels and {conv.filters} filters, not 1 and 1"
    return conv.need_float32() or conv.need_plane() or conv.need_constants() or LAST


def depthwise_time(conv: Convolution) -> float:
    """Return the microseconds that the memory and the arithmetic of `depthwise` take."""
    traffic = conv.x.dtype.itemsize * (prod(conv.x.dims) + conv.y.size)
    return 1.5 + max(traffic / 3e6, conv.macs / 6e6)


def depthwise_variants(conv: Convolution) -> tuple[str, ...]:
    """Return the names of the patches that a convolution may have: ``2x4``."""
    plane = Plane.of(conv)
    return tuple(map(title_of, PATCHES)) if plane.has_patches else ()


def title_of(sizes: Ints) -> str:
    """Return rows and columns as a name."""
    return "x".join(map(str, sizes))


def depthwise(conv: Convolution, variant: str = "") -> Answer:
    """Return the convolution of each channel with a filter of its own."""
    if max(conv.x.size, conv.y.size) >= MOST_ELEMENTS:
        return f"{max(conv.x.size, conv.y.size)} elements"
    plane = Plane.of(conv)
    named = {title_of(patch): patch for patch in PATCHES}
    patch = named.get(variant) or plane.patch(conv.setting.target.processors)
    x, y, tail = conv.x, conv.y, conv.tail
    weights = Packed((conv.w.value,), "depthwise", pack_depthwise)
    count = plane.threads(patch)
    sizes = (x.dims[1], *plane.sizes, *plane.dilations, *plane.pads)
    halves = x.dtype in HALVES
    rows = (x.row, y.row) if halves else (x.strides[0], x.strides[1], *plane.moves, y.row)
    ends = ends_of(conv.b, tail) if halves else (("BIAS", conv.b is not None),)
    return Launch(
        "depthwise_words.cu" if halves else "depthwise.cu",
        "depthwise_words" if halves else "depthwise",
        grid=(ceil_div(count, THREADS), 1, 1),
        block=THREADS,
        args=(x, weights, y, conv.b, *tail.pointers, np.int32(count), Ints32((*sizes, *rows))),
        types=(("T", x.dtype),),
        constants=(
            *(("KH", plane.kernel[0]), ("KW", plane.kernel[1])),
            *(("STEP_H", plane.steps[0]), ("STEP_W", plane.steps[1])),
            *(("ROWS", patch[0]), ("COLUMNS", patch[1])),
            ("VECTOR_C" if halves else "VECTOR", plane.vector),
            *(() if halves else (("CHANNELS_LAST", y.is_channels_last),)),
            *ends,
        ),
        code=tail.code,
        early=halves,
        note=f"{title_of(plane.kernel)} {tail.title}".strip(),
        pitched=(x, y),
    )


@dataclass(frozen=True, slots=True)
class Plane:
    """The geometry of a convolution over two axes; a single one counts as the width.

    Attributes:
        words: images times channels, in vectors.
        vector: channels of a thread.
        sizes: height and width of the image and of the result.
        kernel, steps, dilations, pads: of the windows; pads in front.
        moves: distances of rows and columns of the image.
    """

    words: int
    vector: int
    sizes: Ints
    kernel: Ints
    steps: Ints
    dilations: Ints
    pads: Ints
    moves: Ints

    @classmethod
    def of(cls, conv: Convolution) -> Plane:
        """Return the geometry of a convolution."""
        x, y, view = conv.x, conv.y, conv.view
        one = (1,) if x.rank == 3 else ()
        last = x.is_channels_last and y.is_channels_last
        vector = 8 if x.dtype in HALVES else 4 if last and x.dims[1] % 4 == 0 else 1
        image = image_of(x.dims[2:], y.dims[2:], view, x.strides).values
        return cls(
            words=ceil_div(x.dims[0] * x.dims[1], vector),
            vector=vector,
            sizes=image[:4],
            kernel=(*one, *view.kernel),
            steps=image[4:6],
            dilations=(*one, *view.dilations),
            pads=image[6:8],
            moves=image[9:],
        )

    @property
    def has_patches(self) -> bool:
        """Whether a thread may compute more than one pixel."""
        return self.vector > 1 and prod(self.dilations) == 1 and prod(self.kernel) <= MOST_TAPS

    def threads(self, patch: Patch) -> int:
        """Return how many threads there are with patches of a size."""
        return self.words * prod(map(ceil_div, self.sizes[2:], patch))

    def patch(self, processors: int) -> Patch:
        """Return the largest patch with which every multiprocessor is busy."""
        if not self.has_patches:
            return SINGLE
        return next((p for p in PATCHES if self.threads(p) >= BUSY * processors), SINGLE)


def pack_depthwise(w: Array) -> Array:
    """Return weights [c, 1, *kernel] as [kernel, c]."""
    return np.ascontiguousarray(w.reshape(w.shape[0], -1).T)
