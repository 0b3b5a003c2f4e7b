"""First layers in 16-bit floats: images with few channels, whose windows are read row by row."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from ....runtime.ir.types import Array
from ....runtime.ops.window import Window
from ..algorithms.registry import Answer
from ..recipe.launch import Launch
from ..recipe.operands import Packed, Tensor, ceil_div
from .pack_image import packed_image
from .problem import Image

#: Channels of a packed pixel, and maximum elements of a window's row.
CHANNELS, SPANS = 4, (16, 32, 64)
#: Kernels that round what they read.
READERS = ("pack_image", "few_channels", "few_channels_mma", "few_channels_wgmma")


def _by_row(view: Window, **changes: tuple[int, int]) -> Window:
    """Return windows whose rows are single pixels with many channels."""
    return replace(
        view,
        kernel=(view.kernel[0], 1),
        pads_begin=(view.pads_begin[0], 0),
        pads_end=(view.pads_end[0], 0),
        **changes,
    )


def rows_of_windows(x: Tensor, w: Tensor, view: Window) -> tuple[Image, Packed, Launch] | None:
    """Return windows of up to four channels as TMA reads them, their weights, and the packing.

    A row of a window becomes a pixel with many channels; its right neighbour starts one stride
    further: boxes may overlap, but must start at multiples of 16 bytes. If the stride is odd, pairs
    of neighbouring pixels ensure that.

    Args:
        x: the input, in C order.
        w: constant weights.
        view: the windows.
    """
    if x.rank != 4 or w.dims[1] > CHANNELS or view.dilations[1] != 1:
        return None
    pixels = 1 if view.strides[1] % 2 == 0 else 2
    place = CHANNELS * pixels
    spans = [span for span in SPANS if span // place + pixels - 1 >= view.kernel[1]]
    if not spans or (pixels == 2 and spans[0] // place + 1 > view.kernel[1]):
        return None  # pairs are within the window: no NaN outside is multiplied by zero
    span, left = spans[0], view.pads_begin[1]
    width = (view.output[1] - 1) * view.strides[1] + span // place
    packed, launch = packed_image(x, CHANNELS, width, left, pixels)
    pack = partial(pack_spans, span=span, pixels=pixels)
    row = width * place
    image = Image(
        data=packed,
        spatial=(x.dims[2], view.output[1]),
        strides=(row * x.dims[2], 1, row, view.strides[1] * place),
        channels=span,
        view=_by_row(view, strides=(view.strides[0], 1)),
        output=view.output,
        vector=8,
        images=x.dims[0],
    )
    return image, Packed((w.value,), ("spans", span, pixels), pack), launch


def strips(x: Tensor, w: Tensor, view: Window) -> tuple[Image, Packed, Launch]:
    """Return windows of up to four channels in rows; their weights; and the packing.

    With the left padding in memory, every row of a window starts at a multiple of 16 bytes, and
    what follows it is multiplied by zeros.

    Args:
        x: the input, in C order.
        w: constant weights.
        view: the windows, with an even stride along rows.
    """
    columns, left = ceil_div(view.kernel[1], 2) * 2, view.pads_begin[1]
    needed = (view.output[1] - 1) * view.strides[1] + columns
    width = ceil_div(max(needed, x.dims[3] + left), 2) * 2
    packed, launch = packed_image(x, CHANNELS, width, left)
    image = Image(
        data=packed,
        spatial=(x.dims[2], width),
        strides=(CHANNELS * x.dims[2] * width, 1, CHANNELS * width, CHANNELS),
        channels=CHANNELS * columns,
        view=_by_row(view),
        output=view.output,
        vector=8,
        images=x.dims[0],
    )
    pack = partial(pack_strips, columns=columns)
    return image, Packed((w.value,), ("strips", columns), pack), launch


def reading_wide(recipe: Answer, x: Tensor, wide: Tensor) -> Answer:
    """Return the recipe of a convolution whose packing rounds the image that it reads.

    Args:
        recipe: of a convolution of `x`.
        x: the image in 16-bit floats.
        wide: the same in float32.
    """
    if isinstance(recipe, str):
        return recipe
    launches = (recipe,) if isinstance(recipe, Launch) else recipe
    reads = [
        launch
        for launch in launches
        if any(isinstance(arg, Tensor) and arg.value is x.value for arg in launch.args.values())
    ]
    if [launch.entry in READERS for launch in reads] != [True]:
        return "an image that is not packed"
    (packing,) = reads
    changed = replace(
        packing,
        args={**packing.args, "x": wide},
        types=(("S", wide.dtype), ("T", x.dtype), *packing.types[2:]),
        note=f"Cast {packing.note}".strip(),
    )
    return tuple(changed if launch is packing else launch for launch in launches)


# ── packing, on the host ─────────────────────────────────────────────────────────────────────────


def pack_spans(w: Array, span: int, pixels: int) -> Array:
    """Return weights [m, c, rows, columns] as [m, rows, span], with zeros in the gaps.

    Args:
        w: the weights; c is 4 at most.
        span: elements of a window's row in memory.
        pixels: pixels per pair; only the last pair's second pixel is read.
    """
    filters, channels, rows, columns = w.shape
    places = span // (CHANNELS * pixels)
    packed = np.zeros((filters, rows, places, pixels, CHANNELS), w.dtype)
    for column in range(columns):
        place, pixel = (column, 0) if column < places else (places - 1, 1)
        packed[:, :, place, pixel, :channels] = w[:, :, :, column].transpose(0, 2, 1)
    return packed.reshape(filters, rows, span)


def pack_strips(w: Array, columns: int) -> Array:
    """Return weights [m, c, rows, columns] as [1, m, rows * columns * 4], with zeros in the gaps.

    Args:
        w: the weights; c is 4 at most.
        columns: columns of a window in memory.
    """
    filters, channels, rows, width = w.shape
    packed = np.zeros((filters, rows, columns, CHANNELS), w.dtype)
    packed[:, :, :width, :channels] = w.transpose(0, 2, 3, 1)
    return packed.reshape(1, filters, -1)
