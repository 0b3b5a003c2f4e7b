"""Resize in all its ways, and Upsample."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import FLOATS, float32

from .generate import Array, Dice, ints
from .oracles import Make, agree
from .sample import Inputs, Sample, smooth

TRANSFORMS = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"),
    "tf_crop_and_resize",
)


def modes(dice: Dice, opset: int) -> dict[str, Any]:
    """Return how to interpolate, in an opset from 11 on."""
    known = {11: (0, 2, 3, 4, 5), 13: (0, 2, 3, 4, 5), 18: (0, 2, 3, 4, 5)}.get(opset, range(6))
    mode = dice.some("nearest", "linear", "cubic")
    attributes: dict[str, Any] = {"mode": mode}
    attributes |= {"coordinate_transformation_mode": TRANSFORMS[dice.choice(known)]}
    if mode == "nearest":
        attributes |= dice.given(
            nearest_mode=("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        )
    if mode == "cubic":
        attributes |= dice.given(cubic_coeff_a=(-0.5, -0.75), exclude_outside=(0, 1))
    if mode != "nearest" and opset >= 18 and dice.chance(0.3):
        attributes |= {"antialias": 1}
    if attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        attributes |= dice.given(extrapolation_value=(0.0, 7.0))
    return attributes


def resize(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op, 11)
    attributes = modes(dice, opset)
    crops = attributes["coordinate_transformation_mode"] == "tf_crop_and_resize"
    dtype = dice.dtype(op, opset, "T1", among=tuple(FLOATS))
    if attributes["mode"] == "nearest" and dice.chance(0.4):
        dtype = dice.dtype(op, opset, "T1", among=(np.dtype(np.int8), np.dtype(np.uint8)))
    image = dice.some(1, 2, 2, 2, 3)
    shape = (dice.randint(1, 2), dice.randint(1, 2), *(dice.randint(1, 6) for _ in range(image)))
    x = dice.array(dtype, shape)
    moved = list(range(2, len(shape)))
    if opset >= 18 and dice.chance(0.5):
        moved = dice.sample(moved, dice.randint(1, len(moved)))
        attributes["axes"] = [a - len(shape) if dice.chance(0.3) else a for a in moved]
    named = moved if "axes" in attributes else list(range(len(shape)))
    roi = np.array([], float32) if opset == 11 else None
    if crops:
        starts = [dice.uniform(-0.2, 0.4) if a in moved else 0.0 for a in named]
        ends = [dice.uniform(0.6, 1.2) if a in moved else 1.0 for a in named]
        roi = np.array([*starts, *ends], dice.dtype(op, opset, "T2", among=(float32,)))
    if dice.chance(0.5) and not crops:
        scales = [
            dice.some(0.5, 0.6, 1.0, 1.5, 2.0, 2.4, 3.0) if a in moved else 1.0 for a in named
        ]
        scales = [
            s if int(shape[a] * np.float32(s)) else 1.0 for a, s in zip(named, scales, strict=True)
        ]
        inputs: tuple[Array | None, ...] = (x, roi, np.array(scales, float32))
    else:
        sizes = [dice.randint(1, 9) if a in moved else shape[a] for a in named]
        if opset >= 18 and "axes" in attributes and not crops:
            policies = ("stretch", "not_larger", "not_smaller")
            attributes |= dice.given(keep_aspect_ratio_policy=policies)
        inputs = (x, roi, np.array([], float32) if opset == 11 else None, ints(sizes))
    exact = attributes["mode"] == "nearest"
    if exact and not is_clear(attributes, inputs):
        factors = [2.0 if a in moved else 1.0 for a in named]
        inputs = (x, roi, np.array(factors, float32))
        attributes.pop("keep_aspect_ratio_policy", None)
        attributes["coordinate_transformation_mode"] = "half_pixel"
    return Sample(op, inputs, attributes, opset, (1, 2, 3), want=partial(resized, attributes),
                  bound=None if exact else smooth(32, fixed=(1, 2, 3)))  # fmt: skip


def is_clear(attributes: dict[str, Any], inputs: Inputs) -> bool:
    """Whether the nearest element is the same however positions are rounded.

    Factors in quarters give halves that are exact, so that the rounding of ties shows.
    """
    x, _, scales, *sizes = inputs
    assert x is not None
    if attributes["coordinate_transformation_mode"] in ("half_pixel", "asymmetric"):
        axes = attributes.get("axes", range(x.ndim))
        factors: Any = scales
        if sizes and sizes[0] is not None:
            factors = [n / x.shape[a] for n, a in zip(sizes[0], axes, strict=True)]
        if all(float(4 * f).is_integer() for f in factors):
            return True
    low, high = (resized({**attributes, "shift": d}, *inputs) for d in (-1e-5, 1e-5))
    return np.array_equal(low, high)


def resized(
    attributes: dict[str, Any],
    x: Array | None,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
) -> Array:
    """Return the weighted sums of the specification, axis after axis."""
    assert x is not None
    dtype, rounding = x.dtype, 0.0
    axes = [a % x.ndim for a in attributes.get("axes", range(x.ndim))]
    if scales is not None and scales.size:
        factors = [float(s) for s in scales]
        lengths = [x.shape[a] * f for a, f in zip(axes, factors, strict=True)]
    else:
        assert sizes is not None
        factors = [int(n) / x.shape[a] for a, n in zip(axes, sizes, strict=True)]
        policy = attributes.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factors = [(min if policy == "not_larger" else max)(factors)] * len(axes)
        lengths = [round(f * x.shape[a], 9) for a, f in zip(axes, factors, strict=True)]
        rounding = 0.0 if policy == "stretch" else 0.5
    outside = np.zeros((), bool)
    for i, (axis, scale, length) in enumerate(zip(axes, factors, lengths, strict=True)):
        ends = (0.0, 1.0) if roi is None or not roi.size else (roi[i], roi[i + len(axes)])
        new = math.floor(length + rounding)
        places = positions(attributes, x.shape[axis], new, scale, length, ends)
        places = places + attributes.get("shift", 0)
        table = weights(attributes, places, x.shape[axis], scale)
        beyond = (places < 0) | (places > x.shape[axis] - 1)
        outside = outside | beyond.reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        x = np.moveaxis(np.tensordot(table, x, (1, axis)), 0, axis)
    if attributes["coordinate_transformation_mode"] == "tf_crop_and_resize":
        x = np.where(outside, attributes.get("extrapolation_value", 0.0), x)
    return x.astype(dtype)


def positions(
    attributes: dict[str, Any], old: int, new: int, scale: float, length: float, ends: Any
) -> Array:
    """Return where in the input the elements of an axis lie."""
    mode = attributes["coordinate_transformation_mode"]
    x = np.arange(new, dtype=float)
    if mode == "align_corners":
        return x * (old - 1) / (length - 1) if length != 1 else x
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_crop_and_resize":
        begin, end = map(float, ends)
        if new == 1:
            return np.array([0.5 * (begin + end) * (old - 1)])
        return begin * (old - 1) + x * (end - begin) * (old - 1) / (new - 1)
    if mode == "pytorch_half_pixel" and new == 1:
        return x
    offset = old / 2 * (1 - new / length) if mode == "half_pixel_symmetric" else 0.0
    return offset + (x + 0.5) / scale - 0.5


def weights(attributes: dict[str, Any], places: Array, old: int, scale: float) -> Array:
    """Return the matrix [new, old] that makes the elements of an axis."""
    mode, stretch = attributes["mode"], 1.0
    if attributes.get("antialias") and mode != "nearest":
        stretch = max(1.0, 1 / scale)
    table = np.zeros((len(places), old))
    for row, place in enumerate(places):
        if mode == "nearest":
            table[row, min(max(_nearest(attributes, place), 0), old - 1)] = 1
            continue
        reach = math.ceil(2 * stretch) + 1
        taps = np.arange(math.floor(place) - reach, math.floor(place) + reach + 1)
        shares = _kernel(attributes, np.abs(taps - place) / stretch)
        if attributes.get("exclude_outside"):
            shares = np.where((taps >= 0) & (taps < old), shares, 0)
        if stretch > 1 or attributes.get("exclude_outside"):
            shares = shares / (shares.sum() or 1)
        np.add.at(table[row], np.clip(taps, 0, old - 1), shares)
    return table


def _nearest(attributes: dict[str, Any], place: float) -> int:
    how = attributes.get("nearest_mode", "round_prefer_floor")
    if how == "floor":
        return math.floor(place)
    if how == "ceil":
        return math.ceil(place)
    return math.ceil(place - 0.5) if how == "round_prefer_floor" else math.floor(place + 0.5)


def _kernel(attributes: dict[str, Any], distance: Array) -> Array:
    if attributes["mode"] == "linear":
        return np.maximum(1 - distance, 0)
    a, d = float(np.float32(attributes.get("cubic_coeff_a", -0.75))), distance
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    return np.where(d <= 1, near, np.where(d < 2, a * (d**3 - 5 * d**2 + 8 * d - 4), 0))


def upsample(op: str, dice: Dice) -> Sample:
    """Upsample, and Resize as it was at first."""
    opset = dice.choice((7, 9)) if op == "Upsample" else 10
    mode = dice.some("nearest", "linear")
    shape = (dice.randint(1, 2), dice.randint(1, 2), *(dice.randint(1, 5) for _ in range(2)))
    x = dice.array(float32, shape)
    scales = [1.0, 1.0, *(dice.some(1.0, 1.5, 2.0, 3.0) for _ in range(2))]
    if op == "Resize" and dice.chance(0.3):
        scales[2:] = [dice.some(0.5, 1.0) for _ in range(2)]
        scales[2:] = [s if int(n * s) else 1.0 for s, n in zip(scales[2:], shape[2:], strict=True)]
    inputs: tuple[Array, ...] = (x,) if opset == 7 else (x, np.array(scales, float32))
    attributes = {"mode": mode} | ({"scales": scales} if opset == 7 else {})
    return Sample(
        op,
        inputs,
        attributes,
        opset,
        (1,),
        bound=None if mode == "nearest" else smooth(8, fixed=(1,)),
    )


MAKERS: dict[str, Make] = {"Resize": resize, "Upsample": upsample}


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])


def test_agrees_at_opset_10() -> None:
    agree("Resize", upsample)
