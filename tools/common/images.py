"""Pictures as inputs: any format that Pillow reads becomes the tensor that a model wants."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...runtime.errors import InputError, UsageError
from ...runtime.ir.dtypes import FLOATS, INTEGERS
from ...runtime.ir.types import Array
from ...runtime.session.model import TensorInfo

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")

#: What Pillow may take a file for, whatever its name: other formats start other programs.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True, slots=True)
class Pixels:
    """How pixels of 0 to 255 become elements of a floating-point input.

    An element is ``(pixel / scale - mean) / std``. Inputs of integer types take pixels as they are.

    Attributes:
        scale: 255 gives 0 to 1; 1 keeps 0 to 255.
        mean: one value, or one a channel, in the order that the input has them.
        std: likewise.
        crop: cut the middle out in the input's aspect ratio, where the default is to stretch.
        bgr: the order of colours is blue, green, red.
    """

    scale: float = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    crop: bool = False
    bgr: bool = False

    def __post_init__(self) -> None:
        if self.scale == 0 or 0 in self.std:
            raise UsageError("--scale and --std divide: they cannot be 0")


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where an input has its channels, and how large an image it wants; None: any size."""

    channels: int
    channels_last: bool
    height: int | None
    width: int | None


def read_images(
    files: Sequence[Path], info: TensorInfo, shape: tuple[int, ...] | None, pixels: Pixels
) -> Array:
    """Return images as a batch.

    They are resized with bilinear interpolation to the input's height and width, where it has
    any, and made grey, RGB or RGBA to fit its 1, 3 or 4 channels.

    Args:
        files: one for each element of the batch.
        info: an input [n, c, h, w] or [n, h, w, c], without n or without c too; NCHW if both fit.
        shape: what the user says its shape is, where it is symbolic.
        pixels: see there.

    Returns:
        An array of the input's dtype and rank.

    Raises:
        InputError: a file that is not an image, or an input that takes none.
        OSError: a file that cannot be read.
    """
    if info.dtype is None or info.dtype not in FLOATS | INTEGERS or info.shape is None:
        raise InputError(f"{files[0]}: input {info} takes no image")
    rank = len(info.shape)
    frame = _frame(info, shape)
    data = np.stack([_read(file, frame, pixels.crop) for file in files])
    if pixels.bgr:
        if frame.channels < 3:
            raise UsageError(f"--bgr is for images in colour, not for {info}")
        data[..., :3] = data[..., 2::-1]
    if info.dtype in FLOATS:
        data = _normalise(data.astype(np.float32), pixels)
    elif pixels != Pixels(crop=pixels.crop, bgr=pixels.bgr):
        raise UsageError(f"--scale, --mean and --std are for floating-point inputs, not for {info}")
    if not frame.channels_last:
        data = data.transpose(0, 3, 1, 2)
    if rank == 2:
        data = data[:, 0]
    if rank < 4:
        if len(files) > 1:
            raise InputError(f"{len(files)} images were given; input {info} has no batch axis")
        data = data[0]
    return np.ascontiguousarray(data.astype(info.dtype))


def _frame(info: TensorInfo, shape: tuple[int, ...] | None) -> _Frame:
    """Find channels, height and width; sizes that only default to 1 are the image's own."""
    declared = info.shape or ()
    sizes = [
        d if isinstance(d, int) else s if s != 1 else None
        for d, s in zip(declared, shape or declared, strict=True)
    ]
    if len(sizes) == 2:
        return _Frame(1, False, _size(sizes[0]), _size(sizes[1]))
    if len(sizes) in (3, 4):
        first, second, third = sizes[-3:]
        for numbers in ((1, 3), (4,)):  # a height of 4 is as likely as an alpha channel
            for channels, last in ((first, False), (third, True)):
                if isinstance(channels, int) and channels in numbers:
                    height, width = (first, second) if last else (second, third)
                    return _Frame(channels, last, _size(height), _size(width))
        if not isinstance(first, int):
            return _Frame(3, False, _size(second), _size(third))
    raise InputError(
        f"input {info} takes no image: its axes must be [n,c,h,w] or [n,h,w,c] with 1, 3 or 4 "
        "channels"
    )


def _size(size: int | str | None) -> int | None:
    return size if isinstance(size, int) else None


def _read(file: Path, frame: _Frame, crop: bool) -> Array:
    """Return uint8 [h, w, c]."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise InputError(
            f"{file}: reading images needs Pillow; install it with pip install 'tercet[image]'"
        ) from error
    with file.open("rb") as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # half of what is refused
        try:
            opened = Image.open(stream, formats=FORMATS)
            image = ImageOps.exif_transpose(opened).convert(_MODES[frame.channels])
            image = _resize(image, frame, crop)
            return np.asarray(image, np.uint8).reshape(image.height, image.width, frame.channels)
        except Image.UnidentifiedImageError as error:
            known = ", ".join(FORMATS)
            raise InputError(f"{file} is not an image in a known format: {known}") from error
        except Image.DecompressionBombError as error:
            raise InputError(f"{file}: {error}") from error
        except Exception as error:  # Pillow has no class for damaged files
            raise InputError(f"{file} is a damaged image: {error}") from error


def _resize(image: Image, frame: _Frame, crop: bool) -> Image:
    from PIL import Image, ImageOps

    size = (frame.width or image.width, frame.height or image.height)
    if crop:
        return ImageOps.fit(image, size, Image.Resampling.BILINEAR)
    return image.resize(size, Image.Resampling.BILINEAR)


def _normalise(data: Array, pixels: Pixels) -> Array:
    channels = data.shape[-1]
    for name, values in (("--mean", pixels.mean), ("--std", pixels.std)):
        if len(values) not in (1, channels):
            raise UsageError(f"{name} has {len(values)} values for {channels} channels")
    mean, std = (np.asarray(v, np.float32) for v in (pixels.mean, pixels.std))
    return (data / np.float32(pixels.scale) - mean) / std
