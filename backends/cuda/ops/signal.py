"""Fourier transforms, windows, and mel weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....runtime.ir.dtypes import FLOATS, float64, int32, int64
from ....runtime.ir.op import Op
from ....runtime.ops.shapes import normalize_axis
from ....runtime.ops.signal import (
    DFT,
    STFT,
    BlackmanWindow,
    HammingWindow,
    HannWindow,
    MelWeightMatrix,
)
from ..algorithms.registry import Answer, Setting, kernel, need_dtypes, need_known
from ..codegen.copies import given
from ..codegen.transforms import Transform, lines_of
from ..recipe.launch import Launch, each
from ..recipe.operands import Given, Ints, Tensor
from ..recipe.source import arithmetic


def _transform(
    y: Tensor,
    x: Tensor,
    window: Tensor | None,
    sizes: Ints,
    lines: Mapping[str, int],
    setting: Setting,
    *,
    inverse: bool = False,
    half: bool = False,
) -> Launch:
    """Return the launch of `fft.cu`, or of `dft.cu` for lines that are short or do not fit.

    Args:
        y: the coefficients.
        x: the signals.
        window: factors of the frames.
        sizes: lengths of a line, of the transform, and of its result.
        lines: struct `Lines`.
        setting: the GPU and the user's options.
        inverse: whether it is the inverse transform.
        half: whether a line is the first half of a symmetric one.
    """
    (size, length, coefficients), parts = sizes, (x.dims[-1], y.dims[-1])
    count = y.size // parts[1]
    args: dict[str, Given] = {"x": x, "window": window, "y": y}
    constants = ("INVERSE", inverse), ("HALF", half), ("WINDOWED", window is not None)
    transform = Transform(length, lines, count // max(coefficients, 1), x.dtype, parts)
    if not transform.fits(setting.target):
        numbers = {"count": count, "size": size, "length": length, "coefficients": coefficients}
        return each(
            "sequence/dft.cu",
            "transform",
            count,
            {**args, **numbers, "l": lines},
            types=(("T", x.dtype), ("R", y.dtype), ("A", arithmetic(x.dtype))),
            constants=(*constants, ("PARTS", parts[0]), ("OUT_PARTS", parts[1])),
            note=f"of {length}",
        )
    kernel = "sequence/fft.cu", "fft"
    args |= {"size": size, "coefficients": coefficients}
    types = ("X", x.dtype), ("Y", y.dtype)
    return transform.launch(kernel, setting.target, args, types, constants)


@kernel(DFT, widens=True)
def dft(
    op: DFT,
    y: Tensor,
    x: Tensor,
    length: Tensor | None = None,
    axis: Tensor | None = None,
    *,
    setting: Setting,
) -> Answer:
    """Forward or inverse transform along an axis."""
    refused = need_dtypes(FLOATS, x) or need_known(axis=axis, dft_length=length)
    if refused:
        return refused
    along = normalize_axis(-2 if axis is None else axis.ints[0], x.rank)
    size, results = x.dims[along], y.dims[along]
    count = size if length is None else length.ints[0]
    half = bool(op.onesided and op.inverse)
    if half:
        count = results
    sizes, lines = (size, count, results), lines_of(x.dims, along)
    return _transform(y, x, None, sizes, lines, setting, inverse=bool(op.inverse), half=half)


@kernel(STFT)
def stft(
    op: STFT,
    y: Tensor,
    x: Tensor,
    step: Tensor,
    window: Tensor | None = None,
    length: Tensor | None = None,
    *,
    setting: Setting,
) -> Answer:
    """Transform every frame times the window."""
    refused = need_dtypes(FLOATS, x, window) or need_known(frame_step=step, frame_length=length)
    if refused:
        return refused
    count = x.dims[1]
    if window is not None:
        count = window.size
    elif length is not None:
        count = length.ints[0]
    parts = x.dims[2]
    lines = {
        **{"frames": y.dims[1], "inner": 1, "of_outer": x.dims[1] * parts},
        **{"of_frame": step.ints[0] * parts, "of_inner": 0, "step": parts},
    }
    return _transform(y, x, window, (count, count, y.dims[2]), lines, setting)


#: Coefficients of the cosines of 0, 1 and 2 times the phase.
_COSINES: dict[type[Op], tuple[float, ...]] = {
    HannWindow: (0.5, -0.5),
    HammingWindow: (25 / 46, -21 / 46),
    BlackmanWindow: (0.42, -0.5, 0.08),
}


@kernel(*_COSINES)
def window(op: HannWindow | HammingWindow | BlackmanWindow, y: Tensor, size: Tensor) -> Answer:
    """Copy a sum of cosines computed on the host; a window of one element is 1."""
    n = y.size
    period = n if op.periodic else n - 1
    phase = 2 * np.pi * np.arange(n) / max(period, 1)
    total = sum(a * np.cos(i * phase) for i, a in enumerate(_COSINES[type(op)]))
    return given(y, np.asarray(total if period else np.ones(n)).astype(y.dtype))


@kernel(MelWeightMatrix)
def mel_weight_matrix(
    op: MelWeightMatrix,
    y: Tensor,
    num_mel_bins: Tensor,
    dft_length: Tensor,
    sample_rate: Tensor,
    lower_edge_hertz: Tensor,
    upper_edge_hertz: Tensor,
) -> Answer:
    """Write a triangle over the frequencies for each mel bin."""
    edges, sizes = (lower_edge_hertz, upper_edge_hertz), (dft_length, sample_rate)
    refused = need_dtypes(FLOATS - {float64}, *edges) or need_dtypes((int32, int64), *sizes)
    return refused or each(
        "sequence/mel.cu",
        "mel",
        y.size,
        {
            **{"length": dft_length, "rate": sample_rate, "lowest": lower_edge_hertz, "y": y},
            **{"highest": upper_edge_hertz, "count": y.size, "bins": y.dims[-1]},
        },
        types=(
            *(("N", dft_length.dtype), ("R", sample_rate.dtype), ("Y", y.dtype)),
            *(("E", lower_edge_hertz.dtype), ("F", upper_edge_hertz.dtype)),
        ),
    )
