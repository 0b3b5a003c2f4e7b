"""Images that are packed in the workspace, so that convolutions read whole words of channels."""

from __future__ import annotations

from math import prod

from ....runtime.ir.dtypes import uint8, uint16, uint32
from ..recipe.launch import Launch
from ..recipe.operands import Scratch, Tensor, ceil_div, words_of

#: Maximum channels that one thread per pixel packs.
MOST_PER_PIXEL = 16


def padded_channels(channels: int) -> int:
    """Return the channels of a packed image."""
    return 4 if channels <= 4 else ceil_div(channels, 8) * 8


def padded_image(x: Tensor, channels: int) -> tuple[Scratch, Launch]:
    """Return a channels-last image in the workspace, padded, and the launch that writes it."""
    size, pixels, target = x.dtype.itemsize, prod(x.dims) // x.dims[1], Scratch(0)
    word = min(8, 16 // size)
    words = pixels * channels // word
    return target, Launch(
        "gemm/pad_channels.cu",
        "pad_channels",
        grid=(ceil_div(words, 256), 1, 1),
        block=256,
        args={
            **{"x": x, "y": target, "words": words, "channels": x.dims[1]},
            **{"pitch": x.row},
        },
        types=(("T", words_of(x.dtype)),),
        constants=(("PADDED", channels), ("WORD", word)),
        scratch=size * pixels * channels,
    )


def packed_image(
    x: Tensor, channels: int, width: int, left: int, pixels: int = 1
) -> tuple[Scratch, Launch]:
    """Return an image in the workspace, channels-last and padded, and the launch that writes it.

    Args:
        x: the image, in C order.
        channels: channels in the workspace.
        width: width in the workspace.
        left: columns of zeros before the first.
        pixels: pixels per position; with 2, each pixel but the first is stored twice.
    """
    images, rows, size = x.dims[0], prod(x.dims[2:-1]), x.dtype.itemsize
    target, count = Scratch(0), images * rows * width
    return target, Launch(
        "gemm/pack_image.cu",
        "pack_image",
        grid=(ceil_div(count, 256), 1, 1),
        block=256,
        args={
            **{"x": x, "y": target, "count": count, "channels": x.dims[1], "height": rows},
            **{"width": x.dims[-1], "padded_width": width, "left": left},
        },
        types=tuple((name, {1: uint8, 2: uint16, 4: uint32}[size]) for name in "ST"),
        constants=(("PADDED", channels), ("PIXELS", pixels)),
        scratch=size * count * channels * pixels,
    )
