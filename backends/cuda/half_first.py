"""First layers, of few channels: images are packed, and windows may be read a row at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from ...runtime.dtypes import uint8, uint16
from ...runtime.ops.window import Window
from ...runtime.types import Array
from .half_bulk import BulkProduct
from .launch import Launch
from .layout import ceil_div
from .operands import Packed, Scratch, Tensor

#: Channels of a packed pixel, and elements of a row of a window.
CHANNELS, SPANS = 4, (16, 32, 64)


def first_layer(
    y: Tensor, x: Tensor, w: Tensor, b: Tensor | None, view: Window
) -> tuple[BulkProduct, Launch] | None:
    """Return a convolution of at most four channels in the plain order, and what packs its image.

    A row of a window becomes a pixel of many channels, whose neighbour to the right begins a
    stride further on: copies may overlap, but must begin at multiples of 16 bytes. Where the
    stride is odd, places of two neighbouring pixels see to that.

    Args:
        y: the result, channels last.
        x: the input.
        w: constant weights.
        b: the bias.
        view: the windows.
    """
    if x.rank != 4 or w.dims[1] > CHANNELS or view.dilations[1] != 1:
        return None
    pixels = 1 if view.strides[1] % 2 == 0 else 2
    place = CHANNELS * pixels
    spans = [span for span in SPANS if span // place + pixels - 1 >= view.kernel[1]]
    if not spans or (pixels == 2 and spans[0] // place + 1 > view.kernel[1]):
        return None  # of pairs, all are part of the window: no NaN beside it is multiplied by zero
    span, left = spans[0], view.pads_begin[1]
    width = (view.output[1] - 1) * view.strides[1] + span // place
    packed, launch = packed_image(x, CHANNELS, width, left, pixels)
    strip = replace(
        view,
        kernel=(view.kernel[0], 1),
        strides=(view.strides[0], 1),
        pads_begin=(view.pads_begin[0], 0),
        pads_end=(view.pads_end[0], 0),
    )
    pack = partial(pack_spans, span=span, pixels=pixels)
    row = width * place
    product = BulkProduct(
        a=packed,
        spatial=(x.dims[2], view.output[1]),
        moves=(row * x.dims[2], row, view.strides[1] * place),
        channels=span,
        b=Packed((w.value,), ("spans", span, pixels), pack),
        filters=w.dims[0],
        c=y,
        ldc=y.row,
        images=x.dims[0],
        view=strip,
        bias=b,
    )
    return product, launch


def packed_image(
    x: Tensor, channels: int, width: int, left: int, pixels: int = 1
) -> tuple[Scratch, Launch]:
    """Return an image in the workspace, channels last and padded, and what brings it there.

    Args:
        x: the image, in the plain order, of elements of two bytes or one.
        channels: in the workspace.
        width: likewise.
        left: columns of zeros before the first.
        pixels: neighbours that lie in one place; with 2, each pixel but the first is there twice.
    """
    images, rows, size = x.dims[0], prod(x.dims[2:-1]), x.dtype.itemsize
    target, count = Scratch(0), images * rows * width
    return target, Launch(
        "pack_image.cu",
        "pack_image",
        grid=(ceil_div(count, 256), 1, 1),
        block=256,
        args={
            **{"x": x, "y": target, "count": count, "channels": x.dims[1], "height": rows},
            **{"width": x.dims[-1], "padded_width": width, "left": left},
        },
        types=(("T", uint16 if size == 2 else uint8),),
        constants=(("PADDED", channels), ("PIXELS", pixels)),
        scratch=size * count * channels * pixels,
        early=True,
    )


def pack_spans(w: Array, span: int, pixels: int) -> Array:
    """Return weights [m, c, rows, columns] as [m, rows, span], zeros in the gaps.

    Args:
        w: the weights; c is 4 at most.
        span: elements of a row of a window in memory.
        pixels: of a place; only the last place's second one is read.
    """
    filters, channels, rows, columns = w.shape
    places = span // (CHANNELS * pixels)
    packed = np.zeros((filters, rows, places, pixels, CHANNELS), w.dtype)
    for column in range(columns):
        place, pixel = (column, 0) if column < places else (places - 1, 1)
        packed[:, :, place, pixel, :channels] = w[:, :, :, column].transpose(0, 2, 1)
    return packed.reshape(filters, rows, span)
