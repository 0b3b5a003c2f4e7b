"""Convolutions: windows over the spatial axes, weighted and summed over the channels of a group."""

from __future__ import annotations

from typing import ClassVar

from ..errors import ShapeError
from ..ir.graph import Node
from ..ir.op import Op, op, op_base
from ..ir.types import Shape, TensorType
from .shapes import (
    checked,
    dim,
    ints_of,
    need_choice,
    need_rank,
    need_vector,
    product,
    quotient,
    same_dim,
    same_dtype,
    shape_text,
    times,
)
from .window import kernel_dims, may_pad, need_elements, transposed_window_dims, window_dims

Ints = tuple[int, ...]


@op_base
class ConvOp(Op):
    """The attributes of convolutions; `auto_pad` other than NOTSET makes `pads` irrelevant."""

    dense = True
    auto_pad: str = "NOTSET"
    dilations: Ints | None = None
    group: int = 1
    kernel_shape: Ints | None = None
    pads: Ints | None = None
    strides: Ints | None = None

    @property
    def may_pad(self) -> bool:
        """Whether windows may reach beyond the image."""
        return may_pad(self)


@op
class Conv(ConvOp):
    """y[n,m,o] = b[m] + sum over c, k of x[n,c,o*stride-pad+k*dilation] * w[m,c,k] (ONNX 22).

    Weights are [m, c/group, *kernel]. Where the image has no elements but padding, y is b.
    """

    def infer(self, x: TensorType, w: TensorType, b: TensorType | None = None) -> TensorType:
        same_dtype(x, w, b)
        shape = convolved(self, x, w, self.group, self.kernel_shape, may_be_empty=True)
        need_vector(b, dim(w, 0), "b")
        return x.with_shape(shape)


def convolves_pixels(node: Node) -> bool:
    """Whether a node is a Conv that multiplies each pixel alone: its windows have one, all of them.

    There is nothing to pad then, whatever `auto_pad` is.
    """
    op, weight = node.op, node.operands[1].type if isinstance(node.op, Conv) else None
    if not isinstance(op, Conv) or not isinstance(weight, TensorType) or weight.shape is None:
        return False
    return {*weight.shape[2:], *(op.strides or ())} == {1} and not any(op.pads or ())


@op
class ConvTranspose(ConvOp):
    """The gradient of Conv with respect to its input, as a separate operator (ONNX 22).

    Weights are [c, m/group, *kernel]. `output_shape` overrides `pads`; `output_padding` elements
    are appended at the end of each axis.
    """

    output_padding: Ints | None = None
    output_shape: Ints | None = None

    def infer(self, x: TensorType, w: TensorType, b: TensorType | None = None) -> TensorType:
        same_dtype(x, w, b)
        rank = _ranks_agree(x, w)
        same_dim(dim(x, 1), dim(w, 0), f"channels of x {x} and of weights {w}")
        quotient(dim(w, 0), self.group, "channels by group")
        m = times(dim(w, 1), self.group)
        need_vector(b, m, "b")
        if rank is None:
            return x.with_shape(None)
        spatial = (None,) * (rank - 2) if x.shape is None else x.shape[2:]
        kernel = (None,) * (rank - 2) if w.shape is None else w.shape[2:]
        kernel = kernel_dims(self.kernel_shape, kernel)
        return x.with_shape(checked((dim(x, 0), m, *transposed_window_dims(self, spatial, kernel))))


@op
class DeformConv(Op):
    """Conv that reads, by linear interpolation, at positions shifted by `offset` (ONNX 22).

    Offsets are [n, offset_group * kernel * axes, *output]; `mask` has one factor per position:
    [n, offset_group * kernel, *output]. Positions outside of the padded input read as zeros.
    """

    dense = True
    dilations: Ints | None = None
    group: int = 1
    kernel_shape: Ints | None = None
    offset_group: int = 1
    pads: Ints | None = None
    strides: Ints | None = None

    def infer(
        self,
        x: TensorType,
        w: TensorType,
        offset: TensorType,
        b: TensorType | None = None,
        mask: TensorType | None = None,
    ) -> TensorType:
        same_dtype(x, w, offset, b, mask)
        shape = convolved(self, x, w, self.group, self.kernel_shape)
        need_vector(b, dim(w, 0), "b")
        quotient(dim(x, 1), self.offset_group, "channels by offset_group")
        if shape is None:
            return x.with_shape(None)
        axes = len(shape) - 2
        kernel = (None,) * axes if w.shape is None else w.shape[2:]
        taps = product((self.offset_group, *kernel_dims(self.kernel_shape, kernel)))
        shape = _moved_by(offset, "offset", shape, times(taps, axes))
        return x.with_shape(_moved_by(mask, "mask", shape, taps))


@op
class Col2Im(Op):
    """Sum of overlapping blocks at their places in an image; torch.nn.Fold (ONNX 18).

    [n, c * product(block_shape), blocks] → [n, c, *image_shape], over two or more axes.
    """

    dilations: Ints | None = None
    pads: Ints | None = None
    strides: Ints | None = None

    def infer(
        self, input: TensorType, image_shape: TensorType, block_shape: TensorType
    ) -> TensorType:
        need_rank(input, 3, "input")
        need_rank(image_shape, 1, "image_shape")
        need_rank(block_shape, 1, "block_shape")
        axes = same_dim(dim(image_shape, 0), dim(block_shape, 0), "sizes of the two shapes")
        image, block = ints_of(image_shape, "image_shape"), ints_of(block_shape, "block_shape")
        if not isinstance(axes, int):
            return input.with_shape(None)
        image, block = image or (None,) * axes, block or (None,) * axes
        for name, found in (("image_shape", image), ("block_shape", block)):
            if any(isinstance(d, int) and d < 1 for d in found):
                raise ShapeError(f"{name}={shape_text(found)}; every size must be 1 or more")
        blocks = product(window_dims(self, image, block))
        same_dim(dim(input, 2), blocks, f"blocks of {input} and of image {shape_text(image)}")
        c = quotient(dim(input, 1), product(block), "channels by the elements of a block")
        return input.with_shape((dim(input, 0), c, *image))


@op
class CausalConvWithState(Op):
    """Depthwise Conv over the past alone, with the last k-1 inputs as a state (ONNX 27).

    y[n,c,t] = activation(bias[c] + sum over j of s[n,c,t+j] * weight[c,0,j]), with s the past
    state (zeros if left out) followed by the input; the last k-1 positions of s are the state
    that the next call takes.
    """

    outputs: ClassVar = (2, 2)
    activation: str = "none"

    def infer(
        self,
        input: TensorType,
        weight: TensorType,
        bias: TensorType | None = None,
        past_state: TensorType | None = None,
    ) -> tuple[TensorType, TensorType]:
        same_dtype(input, weight, bias, past_state)
        for name, given in (("input", input), ("weight", weight), ("past_state", past_state)):
            need_rank(given, 3, name)
        need_choice(self.activation, "activation", "none", "silu", "swish")
        c = same_dim(dim(input, 1), dim(weight, 0), "channels of input and weight")
        same_dim(dim(weight, 1), 1, "the second axis of depthwise weights and 1")
        need_vector(bias, c, "bias")
        k = dim(weight, 2)
        if isinstance(k, int) and k < 1:
            raise ShapeError(f"weight {weight} has an empty kernel")
        n = same_dim(dim(input, 0), dim(past_state, 0), "batches of input and past_state")
        c = same_dim(c, dim(past_state, 1), "channels of input and past_state")
        carried = k - 1 if isinstance(k, int) else None
        carried = same_dim(carried, dim(past_state, 2), "kernel - 1 and length of past_state")
        return input.with_shape((n, c, dim(input, 2))), input.with_shape((n, c, carried))


def convolved(
    op: Op,
    x: TensorType,
    w: TensorType,
    group: int,
    kernel_shape: Ints | None,
    *,
    may_be_empty: bool = False,
) -> Shape | None:
    """Return the output shape of a convolution; shared by all operators like Conv.

    Args:
        op: the operator.
        x: the image.
        w: the weights.
        group: the attribute.
        kernel_shape: the attribute, or None.
        may_be_empty: whether a spatial axis of the image may have no elements but padding.

    Raises:
        ShapeError: ranks, channels, groups or windows are inconsistent.
    """
    rank = _ranks_agree(x, w)
    channels = times(dim(w, 1), group)
    what = f"channels of x {x} and of weights {w} with group={group}"
    same_dim(dim(x, 1), channels, what)
    quotient(dim(x, 1), group, "channels by group")
    quotient(dim(w, 0), group, "filters by group")
    if rank is None:
        return None
    spatial = (None,) * (rank - 2) if x.shape is None else x.shape[2:]
    if not may_be_empty:
        need_elements(spatial)
    kernel = (None,) * (rank - 2) if w.shape is None else w.shape[2:]
    output = window_dims(op, spatial, kernel_dims(kernel_shape, kernel))
    return (dim(x, 0), dim(w, 0), *output)


def _ranks_agree(x: TensorType, w: TensorType) -> int | None:
    """Return the common rank of input and weights, which is 3 or more."""
    rank = w.rank if x.rank is None else x.rank
    if w.rank not in (None, rank):
        raise ShapeError(f"x {x} and weights {w} must be of the same rank")
    if rank is not None and rank < 3:
        raise ShapeError(f"x {x} and weights {w} have no spatial axis; 3 or more axes are needed")
    return rank


def _moved_by(
    type_: TensorType | None, name: str, shape: Shape, channels: int | str | None
) -> Shape:
    """Check offsets or mask against the result's shape, and return the refined shape."""
    if type_ is None or type_.shape is None:
        return shape
    need_rank(type_, len(shape), name)
    same_dim(type_.shape[1], channels, f"channels of {name} {type_} and offset_group * kernel")
    n = same_dim(shape[0], type_.shape[0], f"batches of x and {name}")
    what = f"spatial axes of {name} and of the result"
    spatial = (same_dim(a, b, what) for a, b in zip(shape[2:], type_.shape[2:], strict=True))
    return (n, shape[1], *spatial)
