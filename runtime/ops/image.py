"""Encoded images."""

from __future__ import annotations

from ..errors import ShapeError
from ..ir.dtypes import name_of, uint8
from ..ir.op import Op, op
from ..ir.types import TensorType
from .shapes import need_choice, need_rank


@op
class ImageDecoder(Op):
    """The image in the bytes of a file, as uint8 [height, width, channels] (ONNX 20).

    BMP, JPEG, JPEG 2000, TIFF, PNG, WebP and portable image formats; three channels, or one for the
    `pixel_format` "Grayscale". Bytes that are not an image give an empty tensor.
    """

    pixel_format: str = "RGB"

    def infer(self, encoded_stream: TensorType) -> TensorType:
        need_choice(self.pixel_format, "pixel_format", "RGB", "BGR", "Grayscale")
        need_rank(encoded_stream, 1, "encoded_stream")
        if encoded_stream.dtype != uint8:
            raise ShapeError(f"encoded_stream is {name_of(encoded_stream.dtype)}; uint8 is needed")
        return TensorType(uint8, (None, None, 1 if self.pixel_format == "Grayscale" else 3))
