"""Fourier transforms, windows and the mel scale; half floats are computed in float32."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ....runtime.ir.dtypes import DType, complex64, complex128, float32, float64
from ....runtime.ir.types import Array
from ....runtime.ops.signal import (
    DFT,
    STFT,
    BlackmanWindow,
    HammingWindow,
    HannWindow,
    MelWeightMatrix,
)
from ..engine.registry import kernel
from ..numerics.convert import convert


def _wide(x: Array) -> Array:
    return x.astype(float64 if x.dtype == float64 else float32, copy=False)


def _numbers(x: Array) -> Array:
    """Return complex or real numbers from a last axis of two or one parts."""
    parts = np.ascontiguousarray(_wide(x))
    if x.shape[-1] == 1:
        return parts[..., 0]
    return parts.view(complex128 if x.dtype == float64 else complex64)[..., 0]


def _parts(x: Array, dtype: DType) -> Array:
    """Return complex numbers with a last axis of two parts."""
    return np.stack([x.real, x.imag], -1).astype(dtype)


def _integer(x: Array) -> int:
    return int(x.reshape(-1)[0])


@kernel(DFT)
def dft(op: DFT, x: Array, dft_length: Array | None = None, axis: Array | None = None) -> Array:
    """Forward or inverse transform along an axis."""
    along = (-2 if axis is None else _integer(axis)) % x.ndim
    n = None if dft_length is None else _integer(dft_length)
    signal = _numbers(x)
    if op.inverse and op.onesided:
        return np.fft.irfft(signal, n, along)[..., np.newaxis].astype(x.dtype)
    if op.inverse:
        return _parts(np.fft.ifft(signal, n, along), x.dtype)
    transform = np.fft.rfft if op.onesided else np.fft.fft
    return _parts(transform(signal, n, along), x.dtype)


@kernel(STFT)
def stft(
    op: STFT,
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
) -> Array:
    """Transform every frame times the window."""
    if window is not None:
        n = len(window)
    else:
        n = signal.shape[1] if frame_length is None else _integer(frame_length)
    frames = sliding_window_view(_numbers(signal), n, 1)[:, :: _integer(frame_step)]
    if window is not None:
        frames = frames * _wide(window)
    transform = np.fft.rfft if op.onesided else np.fft.fft
    return _parts(transform(frames), signal.dtype)


def _cosines(
    op: HannWindow | HammingWindow | BlackmanWindow, size: Array, factors: tuple[float, ...]
) -> Array:
    """Return a sum of cosines of multiples of one period; a window of one element is 1."""
    n = _integer(size)
    period = n if op.periodic else n - 1
    phase = 2 * np.pi * np.arange(n) / max(period, 1)
    total = np.zeros(n)
    for i, factor in enumerate(factors):
        total += factor * np.cos(i * phase)
    return convert(total if period else np.ones(n), op.output_datatype)


@kernel(HannWindow)
def hann_window(op: HannWindow, size: Array) -> Array:
    """Return the raised cosine."""
    return _cosines(op, size, (0.5, -0.5))


@kernel(HammingWindow)
def hamming_window(op: HammingWindow, size: Array) -> Array:
    """Return the raised cosine on a pedestal."""
    return _cosines(op, size, (25 / 46, -21 / 46))


@kernel(BlackmanWindow)
def blackman_window(op: BlackmanWindow, size: Array) -> Array:
    """Return the sum of two cosines."""
    return _cosines(op, size, (0.42, -0.5, 0.08))


@kernel(MelWeightMatrix)
def mel_weight_matrix(
    op: MelWeightMatrix,
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
) -> Array:
    """Return a triangle over the frequencies for each mel bin."""
    bins, n = _integer(num_mel_bins), _integer(dft_length)
    edges = [float(e.reshape(-1)[0]) for e in (lower_edge_hertz, upper_edge_hertz)]
    low, high = 2595 * np.log10(1 + np.array(edges) / 700)
    mels = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    hertz = 700 * (10 ** (mels / 2595) - 1)
    corners = np.floor((n + 1) * hertz / _integer(sample_rate)).astype(int)
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    weights = np.zeros((n // 2 + 1, bins), op.output_datatype)
    for first, last, zero in ((left, centre, left), (centre + 1, right, right)):
        line, column = _ranges(first, last, len(weights))
        slope = (line - zero[column]) / (centre - zero)[column]
        weights[line, column] = convert(slope, op.output_datatype)
    # A bin may be narrower than a line.
    tops = np.flatnonzero((left <= centre) & (centre >= 0) & (centre < len(weights)))
    weights[centre[tops], tops] = 1
    return weights


def _ranges(first: Array, last: Array, size: int) -> tuple[Array, Array]:
    """Return the integers in each of several ranges, those from 0 to `size`, and its number."""
    low = np.clip(first, 0, size)
    counts = np.maximum(np.clip(last, 0, size) - low, 0)
    numbers = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    return np.arange(len(numbers)) + (low - starts)[numbers], numbers
