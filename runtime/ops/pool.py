"""Pooling: one number per window and channel."""

from __future__ import annotations

from typing import ClassVar

from ..errors import ShapeError
from ..ir.dtypes import int64
from ..ir.op import Op, op
from ..ir.types import Shape, TensorType
from .shapes import (
    checked,
    ints_of,
    need_vector,
    same_shape,
    shape_text,
)
from .window import may_pad, need_elements, transposed_window_dims, window_dims

Ints = tuple[int, ...]


def _pooled(op: Op, x: TensorType, kernel_shape: Ints) -> TensorType:
    shape = (None,) * (len(kernel_shape) + 2) if x.shape is None else x.shape
    if len(shape) < 3:
        raise ShapeError(f"x {x} has no spatial axis; 3 or more axes are needed")
    need_elements(shape[2:])
    return x.with_shape((*shape[:2], *window_dims(op, shape[2:], kernel_shape)))


@op
class MaxPool(Op):
    """Largest element of each window, without padding (ONNX 22).

    The second output is its position in the whole input, flattened in C order over all axes
    (`storage_order=1`: the spatial axes in Fortran order).
    """

    outputs: ClassVar = (1, 2)
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    dilations: Ints | None = None
    kernel_shape: Ints
    pads: Ints | None = None
    storage_order: int = 0
    strides: Ints | None = None

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        pooled = _pooled(self, x, self.kernel_shape)
        return pooled, pooled.with_dtype(int64)


@op
class AveragePool(Op):
    """Mean of each window, over the padding too if `count_include_pad` (ONNX 22).

    Elements that `ceil_mode` adds beyond the padding are never counted.
    """

    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    count_include_pad: int = 0
    dilations: Ints | None = None
    kernel_shape: Ints
    pads: Ints | None = None
    strides: Ints | None = None

    @property
    def counts_padding(self) -> bool:
        """Whether means may be of padding as well, so that those of equal elements differ."""
        return bool(self.count_include_pad) and may_pad(self)

    def infer(self, x: TensorType) -> TensorType:
        return _pooled(self, x, self.kernel_shape)


@op
class LpPool(Op):
    """(sum |x|**p) ** (1/p) of each window (ONNX 22)."""

    auto_pad: str = "NOTSET"
    ceil_mode: int = 0
    dilations: Ints | None = None
    kernel_shape: Ints
    p: int = 2
    pads: Ints | None = None
    strides: Ints | None = None

    def infer(self, x: TensorType) -> TensorType:
        _need_norm(self.p)
        return _pooled(self, x, self.kernel_shape)


def _need_norm(p: int) -> None:
    if p < 1:
        raise ShapeError(f"p={p}; a norm has p of 1 or more")


def _pooled_globally(x: TensorType) -> TensorType:
    if x.shape is None:
        return x.without_value()
    if len(x.shape) < 2:
        raise ShapeError(f"x {x} has no channels; 2 or more axes are needed")
    if 0 not in x.shape[:2]:
        need_elements(x.shape[2:])
    return x.with_shape((*x.shape[:2], *(1 for _ in x.shape[2:])))


@op
class GlobalMaxPool(Op):
    """Maximum over all spatial axes, kept with size 1 (ONNX 22)."""

    def infer(self, x: TensorType) -> TensorType:
        return _pooled_globally(x)


@op
class GlobalAveragePool(Op):
    """Mean over all spatial axes, kept with size 1 (ONNX 22)."""

    def infer(self, x: TensorType) -> TensorType:
        return _pooled_globally(x)


@op
class GlobalLpPool(Op):
    """(sum |x|**p) ** (1/p) over all spatial axes, kept with size 1 (ONNX 22)."""

    p: int = 2

    def infer(self, x: TensorType) -> TensorType:
        _need_norm(self.p)
        return _pooled_globally(x)


@op
class MaxUnpool(Op):
    """Zeros with every x at the flat position `i` that MaxPool reported (ONNX 22).

    Positions refer to the shape computed from the attributes, even if the input `output_shape`
    requests a larger one.
    """

    kernel_shape: Ints
    pads: Ints | None = None
    strides: Ints | None = None

    def infer(
        self, x: TensorType, i: TensorType, output_shape: TensorType | None = None
    ) -> TensorType:
        shape = same_shape(x.shape, i.shape, "x and its indices")
        natural = None if shape is None else self._unpooled(shape)
        if output_shape is None:
            return x.with_shape(natural)
        wanted = ints_of(output_shape, "output_shape")
        need_vector(output_shape, None if shape is None else len(shape), "output_shape")
        return x.with_shape(None if wanted is None else checked(wanted))

    def _unpooled(self, shape: Shape) -> Shape:
        if len(shape) < 3:
            raise ShapeError(f"x {shape_text(shape)} has no spatial axis; 3 or more are needed")
        return (*shape[:2], *transposed_window_dims(self, shape[2:], self.kernel_shape))
