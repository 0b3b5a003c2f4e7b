"""Fourier transforms, windows, and mel weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

import numpy as np

from ....runtime.ir.dtypes import FLOATS, DType, float64, int32, int64
from ....runtime.ir.op import Op
from ....runtime.ir.types import Array
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
from ..recipe.launch import Launch, each
from ..recipe.operands import Ints, Packed, Tensor
from ..recipe.source import arithmetic

#: Minimum length of a transform in shared memory, and numbers that it keeps of each.
LONG, KEPT = 32, 3


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
    (size, length, coefficients), out_parts = sizes, y.dims[-1]
    count, compute = y.size // out_parts, arithmetic(x.dtype)
    args = {"x": x, "window": window, "y": y, "l": lines}
    types = (("T", x.dtype), ("A", compute))
    constants = (
        *(("INVERSE", inverse), ("HALF", half), ("PARTS", x.dims[-1])),
        *(("OUT_PARTS", out_parts), ("WINDOWED", window is not None)),
    )
    shared = KEPT * 2 * compute.itemsize * length
    if length < LONG or shared > setting.target.shared or not count:
        numbers = {"count": count, "size": size, "length": length, "coefficients": coefficients}
        return each(
            "sequence/dft.cu",
            "transform",
            count,
            {**args, **numbers},
            types=types,
            constants=constants,
            note=f"of {length}",
        )
    threads = min(256, max(32, length // 4 // 32 * 32))
    return Launch(
        "sequence/fft.cu",
        "fft",
        grid=(count // coefficients, 1, 1),
        block=threads,
        args={
            **args,
            "unity": Packed(
                (), ("roots of unity", length, compute), partial(_roots, length, compute)
            ),
            **{"size": size, "coefficients": coefficients},
        },
        types=types,
        constants=(*constants, ("LENGTH", length), ("THREADS", threads)),
        code=f"#define STEPS(X) {' '.join(f'X({p}, {n})' for p, n in _steps(length))}",
        shared=shared,
        note=f"of {length}",
    )


def _steps(length: int) -> list[tuple[int, int]]:
    """Return the factors of a length, fours first, each with the product of those before it."""
    found: list[tuple[int, int]] = []
    done = 1
    while done < length:
        rest = length // done
        factor = next(p for p in (4, *range(2, rest + 1)) if rest % p == 0)
        found.append((factor, done))
        done *= factor
    return found


def _roots(length: int, dtype: DType) -> Array:
    """Return exp(-2 pi i j / length) for each j, as pairs."""
    angles = -2 * np.pi * np.arange(length) / length
    return np.stack((np.cos(angles), np.sin(angles)), 1).astype(dtype)


@kernel(DFT)
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
    inner, parts = prod(x.dims[along + 1 : -1]), x.dims[-1]
    lines = {
        **{"frames": 1, "inner": inner, "of_outer": size * inner * parts, "of_frame": 0},
        **{"of_inner": parts, "step": inner * parts},
    }
    sizes = (size, count, results)
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
