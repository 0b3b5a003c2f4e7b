"""Image decoding by Pillow, if it is installed."""

from __future__ import annotations

from io import BytesIO
from struct import error as StructError

import numpy as np

from ....runtime.errors import LimitError, UnsupportedError
from ....runtime.ir.dtypes import uint8
from ....runtime.ir.types import Array
from ....runtime.ops.image import ImageDecoder
from ..engine.registry import kernel

#: The formats in the specification, and no others that Pillow might try, such as PostScript.
FORMATS = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")


@kernel(ImageDecoder)
def image_decoder(op: ImageDecoder, encoded_stream: Array) -> Array:
    """Return an image [height, width, channels]; [0, 0, channels] for invalid bytes.

    Transparency is dropped, and 16-bit channels are reduced to their upper 8 bits.

    Raises:
        UnsupportedError: Pillow is not installed.
        LimitError: the image exceeds Pillow's pixel limit.
    """
    is_grey = op.pixel_format == "Grayscale"
    pixels = _pixels(encoded_stream.tobytes(), "L" if is_grey else "RGB")
    if is_grey:
        return pixels[..., np.newaxis]
    return pixels[..., ::-1] if op.pixel_format == "BGR" else pixels


def _pixels(data: bytes, mode: str) -> Array:
    """Return an image's pixels in Pillow's mode L or RGB."""
    try:
        from PIL import Image
    except ImportError as error:
        remedy = "Pillow decodes them: pip install tercet[image]"
        raise UnsupportedError("ImageDecoder without Pillow", remedy=remedy) from error
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            if image.mode.startswith("I"):  # a single 16-bit channel, which Pillow would clip
                return _narrowed(np.asarray(image), mode)
            return np.asarray(image.convert(mode))
    except Image.DecompressionBombError as error:
        raise LimitError(str(error)) from error
    except (OSError, SyntaxError, ValueError, IndexError, EOFError, StructError):
        return np.empty((0, 0) if mode == "L" else (0, 0, 3), uint8)


def _narrowed(grey: Array, mode: str) -> Array:
    """Return 16-bit grey as 8 bits, repeated to three channels for RGB."""
    upper = (np.clip(grey, 0, 0xFFFF) >> 8).astype(uint8)
    return upper if mode == "L" else np.repeat(upper[..., np.newaxis], 3, axis=-1)
