"""Experimental operators of ONNX, which version 1.5 dropped; Core ML's first converter wrote them.

They are defined by the documentation of ONNX 1.4, and as onnxruntime computes them.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ....runtime.base.guard import need
from ....runtime.ir import dtypes
from ....runtime.ir.dtypes import BY_ONNX, TO_ONNX
from .builder import NodeBuilder
from .declaration import Anything, Index, T, contrib


@contrib("Affine", domain="")
def affine(b: NodeBuilder, x: T, *, alpha: float = 1.0, beta: float = 0.0) -> str:
    """Return alpha * x + beta."""
    return b.Add(b.scaled(x, alpha), b.number(beta, x))


@contrib("Scale", domain="")
def scale_(b: NodeBuilder, x: T, *, scale: float = 1.0) -> str:
    """Return scale * x."""
    return b.Mul(x, b.number(scale, x))


@contrib("ScaledTanh", domain="")
def scaled_tanh(
    b: NodeBuilder, x: T, *, alpha: float | None = None, beta: float | None = None
) -> str:
    """Return alpha * tanh(beta * x)."""
    outer, inner = _both(b, alpha, beta)
    return b.Mul(b.Tanh(b.scaled(x, inner)), b.number(outer, x))


@contrib("ParametricSoftplus", domain="")
def parametric_softplus(
    b: NodeBuilder, x: T, *, alpha: float | None = None, beta: float | None = None
) -> str:
    """Return alpha * softplus(beta * x)."""
    outer, inner = _both(b, alpha, beta)
    return b.Mul(b.Softplus(b.scaled(x, inner)), b.number(outer, x))


def _both(b: NodeBuilder, alpha: float | None, beta: float | None) -> tuple[float, float]:
    """Return two attributes that are optional by their schema and without a default."""
    if alpha is None or beta is None:
        raise b.error("needs the attributes alpha and beta, which have no default")
    return alpha, beta


@contrib("ImageScaler", domain="")
def image_scaler(b: NodeBuilder, x: T, *, bias: tuple[float, ...] = (), scale: float = 1.0) -> str:
    """Return scale * x + bias, which has one element per channel."""
    b.rank(x, 4)
    channels = b.extent(x, 1)
    if channels is not None and channels != len(bias):
        raise b.error(f"bias has {len(bias)} elements, but '{x}' has {channels} channels")
    added = np.array(bias, b.dtype(x)).reshape(-1, 1, 1)
    return b.Add(b.scaled(x, scale), b.constant(added))


@contrib("Crop", domain="")
def crop(b: NodeBuilder, x: T, *, border: tuple[int, ...], scale: tuple[int, ...] = ()) -> str:
    """Images without borders (left, top, right, bottom); of size `scale`, if given."""
    b.rank(x, 4)
    if len(border) != 4 or min(border) < 0:
        raise b.error(f"border={list(border)}; expected four sizes: left, top, right, bottom")
    if scale and (len(scale) != 2 or min(scale) < 0):
        raise b.error(f"scale={list(scale)}; expected two sizes: height and width")
    left, top, right, bottom = border
    starts = (top, left)
    if scale:
        ends = (top + scale[0], left + scale[1])
    else:
        ends = tuple(-size if size else np.iinfo(np.int64).max for size in (bottom, right))
    needed = ends if scale else (top + bottom, left + right)
    for axis, least in zip((2, 3), needed, strict=True):
        extent = b.extent(x, axis)
        if extent is not None and extent < least:
            raise b.error(f"crops {least} elements of axis {axis} of '{x}', which has {extent}")
    return b.Slice(x, b.ints(*starts), b.ints(*ends), b.ints(2, 3))


@contrib("DynamicSlice", domain="")
def dynamic_slice(
    b: NodeBuilder, data: Anything, starts: Index, ends: Index, axes: Index | None = None
) -> str:
    """Slice with its bounds as inputs, which Slice has had since opset 10."""
    return b.Slice(data, starts, ends, axes)


@contrib("ConstantFill", domain="")
def constant_fill(
    b: NodeBuilder,
    shape_of: Anything | None = None,
    *,
    value: float = 0.0,
    dtype: int = TO_ONNX[dtypes.float32],
    shape: tuple[int, ...] = (),
    extra_shape: tuple[int, ...] = (),
    input_as_shape: int = 0,
) -> str:
    """A tensor of one number: of the shape of an input, or given by an input or an attribute."""
    if dtype not in BY_ONNX:
        raise b.error(f"dtype={dtype} is not an element type of ONNX")
    sizes = _sizes(b, shape_of, shape, extra_shape, input_as_shape)
    return b.Expand(b.constant(np.array(value).astype(BY_ONNX[dtype])), sizes)


@contrib("GivenTensorFill", domain="")
def given_tensor_fill(
    b: NodeBuilder,
    shape_of: Anything | None = None,
    *,
    values: tuple[float, ...] = (),
    shape: tuple[int, ...] = (),
    extra_shape: tuple[int, ...] = (),
    input_as_shape: int = 0,
) -> str:
    """The given float32 numbers; the shape is given as in ConstantFill."""
    if shape_of is None and prod(shape) != len(values):
        raise b.error(f"has {len(values)} values for the shape {list(shape)}")
    need(4 * len(values), f"{b.node.where}: {len(values)} values")
    sizes = _sizes(b, shape_of, shape, extra_shape, input_as_shape)
    return b.Reshape(b.constant(np.array(values, np.float32)), sizes, allowzero=1)


def _sizes(
    b: NodeBuilder,
    x: str | None,
    shape: tuple[int, ...],
    extra_shape: tuple[int, ...],
    input_as_shape: int,
) -> str:
    """Return the shape of a filled tensor as an int64 vector."""
    if x is None:
        if input_as_shape or extra_shape:
            raise b.error("has input_as_shape or extra_shape, but no input")
        return b.ints(*shape)
    if shape:
        raise b.error(f"has both an input and shape={list(shape)}; one of them gives the shape")
    sizes = b.cast(x, dtypes.int64) if input_as_shape else b.Shape(x)
    return b.Concat(sizes, b.ints(*extra_shape), axis=0) if extra_shape else sizes
