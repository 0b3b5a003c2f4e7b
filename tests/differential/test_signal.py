"""Fourier transforms, windows, the mel scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import TO_ONNX, float32

from .generate import INT32, INT64, Array, Dice, ints
from .oracles import Make, agree
from .sample import Sample, flat, smooth


def transform(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.floating(op, opset, "T1")
    shape = [dice.randint(1, 5) for _ in range(dice.randint(1, 3))]
    axis = dice.randrange(len(shape))
    shape[axis] = dice.randint(1, 9)
    parts = dice.some(1, 2)
    how = dice.some("", "onesided", "inverse")
    parts = {"onesided": 1, "inverse": 2}.get(how, parts)
    x = dice.array(dtype, (*shape, parts))
    attributes: dict[str, Any] = {how: 1} if how else {}
    length = ints(dice.randint(1, 12), dice.some(INT32, INT64)) if dice.chance(0.5) else None
    taken = axis - len(shape) - 1 if dice.chance(0.3) else axis
    inputs: tuple[Array | None, ...] = (x, length)
    if opset < 20:
        attributes["axis"] = taken
    else:
        inputs = (x, length, ints(taken))

    def want(x: Array, length: Array | None = None, _: Array | None = None) -> Array:
        count = None if length is None else int(length)
        z = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
        found = np.fft.ifft(z, count, axis) if how == "inverse" else np.fft.fft(z, count, axis)
        if how == "onesided":
            found = np.take(found, np.arange(found.shape[axis] // 2 + 1), axis)
        return np.stack([found.real, found.imag], -1)

    return Sample(op, inputs, attributes, opset, (1, 2), bound=smooth(x.shape[axis]), want=want)


def frames(op: str, dice: Dice) -> Sample:
    dtype = dice.floating(op, 17, "T1")
    length, step = dice.randint(1, 9), dice.randint(1, 5)
    parts = dice.some(1, 1, 2)
    x = dice.array(dtype, (dice.randint(1, 3), length + dice.randint(0, 20), parts))
    attributes = {"onesided": 0} if parts == 2 else dice.given(onesided=(0, 1))
    window = dice.array(dtype, (length,)) if dice.chance(0.7) else None
    index = dice.some(INT32, INT64)
    size = ints(length, index) if window is None or dice.chance(0.5) else None

    def want(x: Array, step: Array, window: Array | None = None, _: Array | None = None) -> Array:
        z = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
        starts = range(0, z.shape[1] - length + 1, int(step))
        cut = np.stack([z[:, s : s + length] for s in starts], 1)
        found = np.fft.fft(cut if window is None else cut * window)
        if attributes.get("onesided", 1):
            found = found[..., : length // 2 + 1]
        return np.stack([found.real, found.imag], -1)

    inputs = (x, ints(step, index), window, size)
    return Sample(op, inputs, attributes, 17, (1, 3), bound=smooth(2 * length), want=want)


def window(op: str, dice: Dice) -> Sample:
    size = ints(dice.randint(1, 12), dice.some(INT32, INT64))
    dtype = dice.floating(op, 17, "T2")
    attributes = dice.given(periodic=(0, 1), output_datatype=(TO_ONNX[dtype],))
    shares = {
        "Hann": (0.5, 0.5, 0),
        "Hamming": (25 / 46, 21 / 46, 0),
        "Blackman": (0.42, 0.5, 0.08),
    }

    def want(size: Array) -> Array:
        if int(size) == 1 and not attributes.get("periodic", 1):
            return np.ones(1)
        count = int(size) if attributes.get("periodic", 1) else max(1, int(size) - 1)
        angle = 2 * np.pi * np.arange(int(size)) / count
        a, b, c = shares[op.removesuffix("Window")]
        return a - b * np.cos(angle) + c * np.cos(2 * angle)

    return Sample(op, (size,), attributes, 17, (0,), bound=flat(4), want=want)


def mel(op: str, dice: Dice) -> Sample:
    dtype = dice.floating(op, 17, "T3")
    index = dice.some(INT32, INT64)
    rate = dice.some(8000, 16000)
    edges = float(dice.randint(0, 300)), float(dice.randint(rate // 4, rate // 2))
    inputs = (ints(dice.randint(1, 12), index), ints(dice.some(16, 64, 33), index),
              ints(rate, index), *(np.array(edge, float32) for edge in edges))  # fmt: skip
    return Sample(op, inputs, dice.given(output_datatype=(TO_ONNX[dtype],)), 17, (0, 1, 2, 3, 4),
                  bound=smooth(4, fixed=(3, 4)))  # fmt: skip


MAKERS: dict[str, Make] = {
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), window),
    "DFT": transform,
    "MelWeightMatrix": mel,
    "STFT": frames,
}


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
