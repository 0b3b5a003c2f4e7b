"""Convolutions: forward, transposed, of integers, deformed; and their inverse, Col2Im."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import int8, uint8

from .generate import Array, Dice, ints
from .oracles import Absent, Make, agree, by_reference
from .sample import Sample, smooth, summed

NARROW = (int8, uint8)


class Window:
    """A kernel's size, strides, dilations and pads that fit an image."""

    def __init__(self, dice: Dice, axes: int, *, auto: bool = True) -> None:
        self.kernel = [dice.randint(1, 3) for _ in range(axes)]
        self.attributes: dict[str, Any] = {}
        dilations = [1] * axes
        if dice.chance(0.4):
            self.attributes["dilations"] = dilations = [dice.randint(1, 2) for _ in range(axes)]
        if dice.chance(0.6):
            self.attributes["strides"] = [dice.randint(1, 3) for _ in range(axes)]
        self.extent = [(k - 1) * d + 1 for k, d in zip(self.kernel, dilations, strict=True)]
        self.pads = [0] * 2 * axes
        if auto and dice.chance(0.3):
            self.attributes["auto_pad"] = dice.some("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
        elif dice.chance(0.6):
            self.pads = [dice.randint(0, e - 1) for e in (*self.extent, *self.extent)]
            self.attributes["pads"] = self.pads
        if dice.chance(0.5):
            self.attributes["kernel_shape"] = self.kernel
        self.image = [e + dice.randint(0, 5) for e in self.extent]


def conv(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.floating(op, opset)
    axes = dice.some(1, 1, 2, 2, 2, 3)
    window = Window(dice, axes)
    group = dice.some(1, 1, 2, 3, 4)
    each, filters = dice.size(empty=False), group * dice.randint(1, 3)
    x = dice.array(dtype, (dice.size(), group * each, *window.image))
    w = dice.array(dtype, (filters, each, *window.kernel))
    b = dice.array(dtype, (filters,)) if dice.chance(0.5) else None
    more = {"group": group} if group > 1 or dice.chance(0.3) else {}
    stored = (1, 2) if dice.chance(0.7) else ()
    terms = each * int(np.prod(window.kernel)) + 1
    return Sample(op, (x, w, b), window.attributes | more, opset, stored, bound=summed(terms))


def transposed(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.floating(op, opset)
    axes = dice.some(1, 2, 2, 2, 3)
    window = Window(dice, axes)
    attributes = window.attributes
    strides = attributes.get("strides", [1] * axes)
    group = dice.some(1, 1, 2, 3)
    each, filters = dice.size(empty=False), dice.randint(1, 3)
    image = [dice.randint(2, 4) for _ in range(axes)]
    natural = [(n - 1) * s + e for n, s, e in zip(image, strides, window.extent, strict=True)]
    if any(n <= a + b for n, a, b in zip(natural, window.pads, window.pads[axes:], strict=False)):
        attributes.pop("pads")
    if any(e < s for e, s in zip(window.extent, strides, strict=True)):
        attributes.pop("auto_pad", None)  # which side of SAME gets the zeros is not specified
    if dice.chance(0.4):
        attributes["output_padding"] = [dice.randint(0, stride - 1) for stride in strides]
    elif dice.chance(0.3) and attributes.get("auto_pad", "NOTSET") != "VALID":
        attributes.pop("pads", None)
        attributes["output_shape"] = [n - dice.randint(0, min(2, n - 1)) for n in natural]
    x = dice.array(dtype, (dice.size(), group * each, *image))
    w = dice.array(dtype, (group * each, filters, *window.kernel))
    b = dice.array(dtype, (group * filters,)) if dice.chance(0.5) else None
    more = {"group": group} if group > 1 else {}
    terms = each * int(np.prod(window.kernel)) + 1
    stored = (1, 2) if dice.chance(0.7) else ()
    return Sample(op, (x, w, b), attributes | more, opset, stored, bound=summed(terms),
                  want=partial(spread, attributes | more))  # fmt: skip


def spread(attributes: dict[str, Any], x: Array, w: Array, b: Array | None = None) -> Array:
    """Compute ConvTranspose: every element adds a copy of the kernel to the result."""
    axes, group = x.ndim - 2, attributes.get("group", 1)
    strides, dilations = (attributes.get(n, [1] * axes) for n in ("strides", "dilations"))
    extra = attributes.get("output_padding", [0] * axes)
    whole = [s * (n - 1) + p + (k - 1) * d + 1 for n, k, s, d, p in
             zip(x.shape[2:], w.shape[2:], strides, dilations, extra, strict=True)]  # fmt: skip
    parts = x.reshape(len(x), group, x.shape[1] // group, *x.shape[2:])
    kernels = w.reshape(group, -1, *w.shape[1:])
    filters = kernels.shape[2]
    y = np.zeros((len(x), group, filters, *whole), x.dtype)
    for tap in np.ndindex(*w.shape[2:]):
        terms = np.einsum("ngc...,gcf->ngf...", parts, kernels[(..., *tap)])
        at = [slice(t * d, t * d + s * (n - 1) + 1, s) for t, d, s, n in
              zip(tap, dilations, strides, x.shape[2:], strict=True)]  # fmt: skip
        y[(..., *at)] += terms
    y = y.reshape(len(x), group * filters, *whole)
    for axis, (before, size) in enumerate(_kept(attributes, x, whole, strides)):
        y = np.take(y, np.arange(before, before + size), axis + 2)
    return y if b is None else y + b.reshape(-1, *[1] * axes)


def _kept(
    attributes: dict[str, Any], x: Array, whole: list[int], strides: list[int]
) -> list[tuple[int, int]]:
    """Return, axis by axis, how much of the whole result is cut in front and how much is kept."""
    auto, axes = attributes.get("auto_pad", "NOTSET"), len(whole)
    sizes = attributes.get("output_shape")
    if sizes is None and auto.startswith("SAME"):
        sizes = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    if sizes is None:
        pads = attributes.get("pads", [0] * 2 * axes)
        return [(pads[a], whole[a] - pads[a] - pads[a + axes]) for a in range(axes)]
    less = [n - m for n, m in zip(whole, sizes, strict=True)]
    return [(n // 2 if auto == "SAME_UPPER" else n - n // 2, m)
            for n, m in zip(less, sizes, strict=True)]  # fmt: skip


def integer(op: str, dice: Dice) -> Sample:
    window = Window(dice, 2)
    group = dice.some(1, 1, 2)
    each, filters = dice.size(empty=False), group * dice.randint(1, 3)
    x = dice.array(dice.some(*NARROW), (dice.size(empty=False), group * each, *window.image))
    w = dice.array(dice.some(*NARROW), (filters, each, *window.kernel))
    x0 = dice.array(x.dtype) if dice.chance(0.6) else None
    w0 = dice.array(w.dtype) if dice.chance(0.6) else None
    attributes = window.attributes | ({"group": group} if group > 1 else {})
    stored = (1, 2, 3) if dice.chance(0.7) else ()
    return Sample(op, (x, w, x0, w0), attributes, 10, stored)


def quantized(op: str, dice: Dice) -> Sample:
    """Scales are powers of two, so that every rounding of the result is exact."""
    window = Window(dice, dice.some(1, 2, 2))
    group = dice.some(1, 1, 2)
    each, filters = dice.size(empty=False), group * dice.randint(1, 3)
    x = dice.array(dice.some(*NARROW), (dice.size(empty=False), group * each, *window.image))
    w = dice.array(dice.some(*NARROW), (filters, each, *window.kernel))
    y = x.dtype
    scale = [np.array(2.0 ** -dice.randint(0, 4), np.float32) for _ in range(2)]
    sw = scale[1]
    if dice.chance(0.4):
        sw = np.array([2.0 ** -dice.randint(0, 4) for _ in range(filters)], np.float32)
    zw = np.zeros(np.shape(sw), w.dtype) if w.dtype == int8 else np.full(np.shape(sw), 128, uint8)
    zw = dice.array(w.dtype) if np.ndim(sw) == 0 else zw
    b = dice.array(np.int32, (filters,), -500, 500) if dice.chance(0.5) else None
    attributes = window.attributes | ({"group": group} if group > 1 else {})
    inputs = (x, scale[0], dice.array(x.dtype), w, sw, zw,
              np.array(2.0 ** dice.randint(0, 5), np.float32), dice.array(y), b)  # fmt: skip
    stored = (1, 2, 3, 4, 5, 6, 7, 8) if dice.chance(0.7) else ()

    def want(*arrays: Array) -> Array:
        wide = [a.astype(np.float64) for a in arrays if a is not None]
        column = (-1, *[1] * (w.ndim - 1))
        sums = wide[3] - wide[5].reshape(column if wide[5].ndim else ())
        conv = Sample("Conv", (wide[0] - wide[2], sums, *wide[8:]), attributes, 11)
        found = by_reference(conv, conv.inputs)
        assert not isinstance(found, Absent), found
        scales = wide[1] * wide[4] / wide[6]
        scaled = found[0] * (scales.reshape(column[:-1]) if scales.ndim else scales)
        limits = np.iinfo(y)
        return np.clip(np.rint(scaled) + wide[7], limits.min, limits.max).astype(y)

    return Sample(op, inputs, attributes, 10, stored, want=want)


def deformed(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.floating(op, opset)
    window = Window(dice, 2, auto=False)
    # onnx.reference makes a node GridSample for each image, channel and tap, so all is small.
    window.image = [min(x, e + 2) for x, e in zip(window.image, window.extent, strict=True)]
    axes = range(2)
    strides, pads = window.attributes.get("strides", [1, 1]), window.pads
    size = [(window.image[a] + pads[a] + pads[a + 2] - window.extent[a]) // strides[a] + 1
            for a in axes]  # fmt: skip
    batch, group, offsets = dice.some(1, 2), dice.some(1, 2), dice.some(1, 2)
    each = offsets * dice.randint(1, 2)
    taps = int(np.prod(window.kernel))
    x = dice.array(dtype, (batch, group * each, *window.image))
    w = dice.array(dtype, (group * dice.randint(1, 2), each, *window.kernel))
    offset = dice.array(dtype, (batch, offsets * taps * 2, *size))
    b = dice.array(dtype, w.shape[:1]) if dice.chance(0.5) else None
    mask = dice.array(dtype, (batch, offsets * taps, *size)) if dice.chance(0.5) else None
    attributes = window.attributes | {"group": group, "offset_group": offsets}
    stored = (1, 3) if dice.chance(0.5) else ()
    return Sample(op, (x, w, offset, b, mask), attributes, opset, stored,
                  bound=smooth(each * taps + 4))  # fmt: skip


def col2im(op: str, dice: Dice) -> Sample:
    dtype = dice.floating(op, 18)
    axes = dice.some(2, 2, 3)
    window = Window(dice, axes, auto=False)
    attributes = {k: v for k, v in window.attributes.items() if k != "kernel_shape"}
    strides, pads = attributes.get("strides", [1] * axes), window.pads
    blocks = [(window.image[a] + pads[a] + pads[a + axes] - window.extent[a]) // strides[a] + 1
              for a in range(axes)]  # fmt: skip
    rows = dice.randint(1, 3) * int(np.prod(window.kernel))
    x: Array = dice.array(dtype, (dice.size(empty=False), rows, int(np.prod(blocks))))
    inputs = (x, ints(window.image), ints(window.kernel))
    return Sample(op, inputs, attributes, 18, (1, 2), bound=summed(int(np.prod(window.kernel))))


MAKERS: dict[str, Make] = {
    "Col2Im": col2im,
    "Conv": conv,
    "ConvInteger": integer,
    "ConvTranspose": transposed,
    "DeformConv": deformed,
    "QLinearConv": quantized,
}


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
