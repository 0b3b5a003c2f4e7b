"""FFT convolution of tiles for large windows (overlap-save).

The products of the spectra of a tile and a filter, summed over the channels, are the spectrum of
the result. For each frequency that is a product of complex matrices, computed as one of real
matrices of twice the size. Weights are transformed on the host, in float64.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from ....runtime.ir.dtypes import float32
from ....runtime.ir.types import Array
from ..algorithms.registry import Answer
from ..gemm import batched
from ..gemm.batched import Products
from ..gemm.convolution import MAX_ELEMENTS, ConvProblem
from ..gemm.problem import Problem
from ..recipe.launch import Launch
from ..recipe.operands import Arguments, Ints, Scratch, by_axis, ceil_div, moves
from .estimates import FFT_CHANNELS, FftTiling, fft_tiling


def fft(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the forward transform, a batch of products, and the inverse transform.

    The workspace holds the spectra of tiles and results: 2 * frequencies * tiles * (c + m)
    elements.
    """
    tiling = fft_tiling(conv)
    if tiling is None:
        return "windows too large"
    c, m, tiles, frequencies = conv.channels, conv.filters, tiling.tiles, tiling.frequencies
    maximum = 2 * frequencies * tiles * max(c, m)
    if maximum >= MAX_ELEMENTS:
        return f"spectra of {maximum} elements, not fewer than 2^31"
    of_inputs = ceil_div(8 * frequencies * tiles * c, 256) * 256
    sums = Scratch(of_inputs)
    pack = partial(pack_spectra, size=tiling.size, dilations=conv.view.dilations)
    layout = ("spectra", tiling.size, conv.view.dilations)
    problem = Problem(tiles, 2 * m, 2 * c, frequencies)
    products = Products(problem, Scratch(0), sums, conv.w, layout, pack)
    launches = (
        _end("fft_inputs", conv, tiling, {"x": conv.x, "spectra": Scratch(0)}),
        *batched.multiply(products, conv.setting),
        _end(
            *("fft_results", conv, tiling),
            {"spectra": sums, "y": conv.y, "bias": conv.b, **conv.epilogue.args},
        ),
    )
    used = of_inputs + 8 * frequencies * tiles * m
    return tuple(replace(launch, scratch=used) for launch in launches)


def _end(entry: str, conv: ConvProblem, tiling: FftTiling, operands: Arguments) -> Launch:
    size, lanes = tiling.size, FFT_CHANNELS[tiling.size]
    image, view = conv.x if entry == "fft_inputs" else conv.y, conv.view
    plane = {
        **dict(zip(("channels", "height", "width"), image.dims[1:], strict=True)),
        **{"tiles": tiling.tiles, **by_axis(tiles=tiling.counts, valid=tiling.valid)},
        **by_axis(stride=view.strides, pad=view.pads_begin),
        **moves("of", image.strides),
    }
    return Launch(
        "conv/fft.cu",
        entry,
        grid=(tiling.tiles, ceil_div(image.dims[1], lanes), 1),
        block=size * lanes,
        args={**operands, "p": plane},
        types=(("T", float32),),
        constants=(("SIZE", size), ("CHANNELS", lanes), ("BIAS", conv.b is not None)),
        code="\n".join((roots(size), conv.epilogue.code)),
        shared=8 * (size // 2 + 1) * (size + 1) * lanes,
        note=f"{size}x{size}",
        pitched=(conv.x,) if conv.epilogue.reads_along else (conv.x, conv.y),
    )


def roots(size: int) -> str:
    """Return a C++ table of the roots of unity exp(-2 pi i k / size)."""
    angles = -2 * np.pi * np.arange(size // 2) / size
    pairs = ", ".join(f"{{{np.cos(a):.9e}f, {np.sin(a):.9e}f}}" for a in angles)
    return f"__constant__ float2 twiddles[{size // 2}] = {{{pairs}}};"


def pack_spectra(w: Array, size: int, dilations: Ints) -> Array:
    """Return the spectra of weights [m, c, h, w] as [frequency, 2c, 2m].

    With H the conjugate spectrum, real and imaginary parts of the results are the columns of [[re
    H, im H], [-im H, re H]].
    """
    filters, channels, height, width = w.shape
    apart = np.zeros(
        (filters, channels, (height - 1) * dilations[0] + 1, (width - 1) * dilations[1] + 1)
    )
    apart[:, :, :: dilations[0], :: dilations[1]] = w
    spectra = np.fft.rfft2(apart, (size, size)).conj()
    h = spectra.transpose(2, 3, 1, 0).reshape(-1, channels, filters)
    packed = np.zeros((len(h), 2 * channels, 2 * filters), w.dtype)
    packed[:, :channels, :filters] = h.real
    packed[:, :channels, filters : 2 * filters] = h.imag
    packed[:, channels:, :filters] = -h.imag
    packed[:, channels:, filters : 2 * filters] = h.real
    return packed
