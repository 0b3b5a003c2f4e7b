"""Images as inputs: any format read by Pillow becomes the tensor that a model needs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
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

#: Formats that Pillow may detect: others start external programs.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
#: Numbers of Pillow's filters: nearest, Lanczos, bilinear, bicubic, box and Hamming.
FILTERS = (0, 1, 2, 3, 4, 5)
_BILINEAR = 2


@dataclass(frozen=True, slots=True)
class Pixels:
    """The conversion of pixels (0 to 255) to elements of a floating-point input.

    An element is ``(pixel / scale - mean) / std``. Inputs of integer types get pixels unchanged.

    Attributes:
        scale: 255 gives 0 to 1; 1 keeps 0 to 255.
        mean: one value, or one per channel in the input's order.
        std: likewise.
        crop: center-crop to the input's aspect ratio instead of stretching.
        bgr: whether channels are in BGR order.
        size: height and width where the input leaves them open; None: the image's own.
        edge: the shorter edge that images are resized to before they are cropped, or in place of
            `size`; None: none.
        filter: which of `FILTERS` resizes them.
        source: the file that says so; empty if the user does.
        given: options of the user for `scale`, `mean` and `std`, which integer inputs refuse.
    """

    scale: float = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    crop: bool = False
    bgr: bool = False
    size: tuple[int, int] | None = None
    edge: int | None = None
    filter: int = _BILINEAR
    source: str = ""
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.scale == 0 or 0 in self.std:
            raise UsageError("--scale and --std divide: they cannot be 0")
        if not all(map(isfinite, (self.scale, *self.mean, *self.std))):
            raise UsageError("--scale, --mean and --std must be finite")


@dataclass(frozen=True, slots=True)
class _Frame:
    """The channel axis of an input, and its image size; None: any size."""

    channels: int
    channels_last: bool
    height: int | None
    width: int | None


def read_images(
    files: Sequence[Path], info: TensorInfo, shape: tuple[int, ...] | None, pixels: Pixels
) -> Array:
    """Return images as a batch.

    They are resized to the input's height and width, if fixed, or else as `pixels` says, and
    converted to grey, RGB or RGBA for 1, 3 or 4 channels.

    Args:
        files: one per element of the batch.
        info: an input [n, c, h, w] or [n, h, w, c], possibly without n or c; NCHW if both fit.
        shape: the user's shape for a symbolic input.
        pixels: the conversion.

    Returns:
        An array of the input's dtype and rank.

    Raises:
        InputError: a file is not an image, or the input does not take images.
        OSError: a file cannot be read.
    """
    if info.dtype is None or info.dtype not in FLOATS | INTEGERS or info.shape is None:
        raise InputError(f"{files[0]}: input {info} takes no image")
    rank = len(info.shape)
    frame = _frame(info, shape)
    data = np.stack([_read(file, frame, pixels) for file in files])
    if pixels.bgr:
        if frame.channels < 3:
            raise UsageError(f"--bgr is for images in colour, not for {info}")
        data[..., :3] = data[..., 2::-1]
    if info.dtype in FLOATS:
        data = _normalise(data.astype(np.float32), pixels)
    elif pixels.given:
        asked = " and ".join(pixels.given)
        raise UsageError(f"leave out {asked}: {info} gets pixels unchanged, from 0 to 255")
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


def _read(file: Path, frame: _Frame, pixels: Pixels) -> Array:
    """Return uint8 [h, w, c]."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise InputError(
            f"{file}: reading images needs Pillow; install it with pip install 'tercet[image]'"
        ) from error
    with file.open("rb") as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # half of the refused size
        try:
            opened = Image.open(stream, formats=FORMATS)
            image = ImageOps.exif_transpose(opened).convert(_MODES[frame.channels])
            image = _resize(image, frame, pixels)
            return np.asarray(image, np.uint8).reshape(image.height, image.width, frame.channels)
        except Image.UnidentifiedImageError as error:
            known = ", ".join(FORMATS)
            raise InputError(f"{file} is not an image in a known format: {known}") from error
        except Image.DecompressionBombError as error:
            raise InputError(f"{file}: {error}") from error
        except Exception as error:  # Pillow has no class for damaged files
            raise InputError(f"{file} is a damaged image: {error}") from error


def _resize(image: Image, frame: _Frame, pixels: Pixels) -> Image:
    from PIL import Image, ImageOps

    by = Image.Resampling(pixels.filter)
    if pixels.edge is not None:
        image = image.resize(_by_edge(image, pixels.edge), by)
    height, width = pixels.size or (image.height, image.width)
    size = (frame.width or width, frame.height or height)
    if not pixels.crop:
        return image.resize(size, by)
    left, top = (image.width - size[0]) // 2, (image.height - size[1]) // 2
    if pixels.edge is None or min(left, top) < 0:
        return ImageOps.fit(image, size, by)
    return image.crop((left, top, left + size[0], top + size[1]))


def _by_edge(image: Image, edge: int) -> tuple[int, int]:
    """Return the width and height of an image whose shorter edge has a length."""
    shorter = min(image.size)
    return image.width * edge // shorter, image.height * edge // shorter


def _normalise(data: Array, pixels: Pixels) -> Array:
    channels = data.shape[-1]
    for name, values in (("--mean", pixels.mean), ("--std", pixels.std)):
        if len(values) not in (1, channels):
            raise UsageError(f"{name} has {len(values)} values for {channels} channels")
    mean, std = (np.asarray(v, np.float32) for v in (pixels.mean, pixels.std))
    return (data / np.float32(pixels.scale) - mean) / std
