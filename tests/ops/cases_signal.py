"""Fourier transforms, windows, the mel scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import FLOAT32, FLOAT64, Array, Case, draw


def transform(
    shape: tuple[int, ...], axis: int, length: int | None = None, dtype: Any = FLOAT32, **more: Any
) -> Case:
    n = None if length is None else np.array(length)
    inputs = (draw(1, shape, dtype), n, np.array(axis))
    return Case("DFT", inputs, more, constants=(1, 2) if length else (2,), error=32, note=str(axis))


def frames(parts: int, step: int, size: int, *, windowed: bool = True, **more: Any) -> Case:
    window = np.abs(draw(2, (size,))) if windowed else None
    inputs = (draw(1, (2, 50, parts)), np.array(step), window, np.array(size))
    # onnxruntime reads uninitialised memory where the signal is complex.
    want = _complex_frames if parts == 2 else None
    return Case("STFT", inputs, more, want, constants=(1, 3), error=32)


def _complex_frames(signal: Array, step: Array, window: Array, size: Array) -> Array:
    """Return the transforms of a complex signal's frames, in float64."""
    numbers = signal[..., 0].astype(np.float64) + 1j * signal[..., 1]
    starts = range(0, signal.shape[1] - int(size) + 1, int(step))
    found = np.fft.fft(np.stack([numbers[:, s : s + int(size)] * window for s in starts], 1))
    return np.stack([found.real, found.imag], -1)


CASES = [
    transform((2, 9, 1), 1),
    transform((2, 9, 2), 1),
    transform((2, 9, 5, 2), 2),
    transform((2, 8, 1), 1, onesided=1),
    transform((2, 9, 1), 1, 16),
    transform((2, 9, 1), 1, 5, onesided=1),
    transform((2, 9, 2), -2, inverse=1),
    transform((2, 9, 2), 1, dtype=FLOAT64),
    frames(1, 4, 8),
    frames(1, 3, 7, windowed=False),
    frames(1, 4, 8, onesided=0),
    frames(2, 4, 8, onesided=0),
    *(
        Case(f"{name}Window", (np.array(9),), {"periodic": periodic}, constants=(0,), error=16)
        for name in ("Hann", "Hamming", "Blackman")
        for periodic in (0, 1)
    ),
    Case(
        "MelWeightMatrix",
        (
            np.array(12),
            np.array(64),
            np.array(16000),
            *(np.array(hertz, np.float32) for hertz in (20.0, 4000.0)),
        ),
        constants=(0, 1, 2, 3, 4),
        error=16,
    ),
]
