"""Explicit GEMM: im2col into the workspace, then a product.

A transposed convolution works in reverse: the product comes first, and col2im gathers the
contributions to every result.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from ....runtime.ir.dtypes import DType, float32
from ....runtime.ir.types import Array
from ....runtime.ops.window import Window
from ..algorithms.registry import Answer
from ..codegen.epilogue import NO_EPILOGUE, no_epilogue, unrounded
from ..gemm import f16
from ..gemm.atoms import HALVES
from ..gemm.convolution import ConvProblem
from ..gemm.pack import EIGHTS, pack_windows
from ..gemm.pack_filters import TransposedOrder
from ..gemm.problem import GemmArguments, Matrix, Problem, packed_filters, widest
from ..gemm.schedules import multistage, simt
from ..gemm.windows import image_of
from ..recipe.launch import Launch, Recipe, each, launches_of
from ..recipe.operands import Ints, Packed, Scratch, Tensor, by_axis, ceil_div, index_type
from ..recipe.source import arithmetic

THREADS = 256


# ── convolution ──────────────────────────────────────────────────────────────────────────────────


def explicit_gemm(conv: ConvProblem, variant: str = "") -> Answer:
    """Return im2col and the product with the filters.

    The workspace holds the matrix: kernel * c * n * output elements.
    """
    x = conv.x
    write = columns_of(x, x.dims[2:], x.strides, conv.y.dims[2:], conv.view)
    rest = _half_product(conv, write.scratch) if x.dtype in HALVES else _product(conv)
    launches = (write, *launches_of(rest))
    maximum = max(launch.scratch for launch in launches)
    return tuple(replace(launch, scratch=maximum) for launch in launches)


def columns_of(x: Tensor, spatial: Ints, moves: Ints, output: Ints, view: Window) -> Launch:
    """Return the launch that writes [pixel, tap, channel] to the workspace.

    Args:
        x: the image.
        spatial: its spatial sizes, of one or two axes.
        moves: its strides: image, channel, spatial axes.
        output: sizes that count the windows.
        view: the windows.
    """
    channels = x.dims[1]
    pixels, terms = x.dims[0] * prod(output), prod(view.kernel) * channels
    vector = widest((4, 2), channels, x.row) if x.is_channels_last else 1
    words = terms // vector
    return Launch(
        "conv/im2col.cu",
        "im2col",
        grid=(ceil_div(pixels * words, THREADS), 1, 1),
        block=THREADS,
        args={
            **{"x": x, "columns": Scratch(0), "count": pixels * words, "words": words},
            "p": _plane(channels, spatial, moves, output, view),
        },
        types=_types(x.dtype, x.dtype, index_type(pixels * words), x.dtype),
        constants=(("BIAS", False), ("VECTOR", vector)),
        code=no_epilogue(x.dtype).code,
        scratch=pixels * terms * x.dtype.itemsize,
        note="im2col",
        pitched=(x,),
    )


def _types(t: DType, stored: DType, index: DType, columns: DType) -> tuple[tuple[str, DType], ...]:
    return ("T", t), ("R", stored), ("C", columns), ("A", arithmetic(t)), ("Index", index)


def _product(conv: ConvProblem) -> Recipe:
    m, n, k = conv.pixels, conv.filters, conv.taps * conv.channels
    pack = partial(pack_windows, groups=1)
    gemm = GemmArguments(
        a=Matrix(Scratch(0), k, widest((4, 2), k)),
        b=Packed((conv.w.value,), ("windows", 1), pack),
        c=conv.y,
        shape=(m, n, k),
        ldb=ceil_div(n, 4) * 4,
        ldc=conv.y.row,
        bias=conv.b,
    )
    config = simt.unsplit(Problem(m, n, k), conv.setting.target)
    return simt.multiply(gemm, conv.epilogue, conv.setting, config)


def _half_product(conv: ConvProblem, used: int) -> Recipe:
    m, n, k = conv.pixels, conv.filters, conv.taps * conv.channels
    gemm = GemmArguments(
        a=Matrix(Scratch(0), k, widest(f16.VECTORS, k)),
        b=packed_filters(conv.w, 1, conv.channels, "in eights", EIGHTS),
        c=conv.y,
        shape=(m, n, k),
        ldb=ceil_div(k, 8) * 8,
        ldc=conv.y.row,
        bias=conv.b,
        dtype=conv.x.dtype,
    )
    return multistage.multiply_halves(gemm, conv.epilogue, conv.setting.target, used)


def _plane(channels: int, spatial: Ints, moves: Ints, output: Ints, view: Window) -> dict[str, int]:
    """Return struct `Plane` of im2col.cu; a single spatial axis counts as the width.

    Args:
        channels: of the image.
        spatial: its spatial sizes.
        moves: its strides: image, channel, spatial axes.
        output: sizes that count the windows.
        view: the windows.
    """
    one = (1,) if len(spatial) == 1 else ()
    return {
        **{"channels": channels, "of_channel": moves[1]},
        **image_of(spatial, output, view, moves),
        **by_axis(kernel=(*one, *view.kernel), dilation=(*one, *view.dilations)),
    }


# ── transposed convolution ───────────────────────────────────────────────────────────────────────


def transposed_gemm(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the product of pixels and weights, and col2im.

    The workspace holds the product: n * spatial * kernel * m elements of float32.
    """
    x, y, k = conv.x, conv.y, conv.channels
    m, n = conv.x.size // k, conv.taps * conv.filters
    used = 4 * m * n
    gemm = transposed_product(conv)
    if x.dtype in HALVES:
        sums = unrounded(x.dtype)
        first = multistage.multiply_halves(gemm, sums, conv.setting.target, used)
    else:
        config = simt.unsplit(Problem(m, n, k), conv.setting.target)
        first = simt.multiply(gemm, NO_EPILOGUE, conv.setting, config)
    index = index_type(y.size)
    plane = _plane(y.dims[1], y.dims[2:], y.strides, x.dims[2:], conv.view)
    second = each(
        "conv/im2col.cu",
        "col2im",
        y.size,
        block=THREADS,
        args={
            **{"columns": Scratch(0), "y": y, "bias": conv.b, **conv.epilogue.args},
            **{"count": y.size, "pitch": n, "p": plane},
        },
        types=_types(conv.epilogue.sums, conv.epilogue.stored, index, float32),
        constants=(("BIAS", conv.b is not None), ("VECTOR", 1)),
        code=conv.epilogue.code,
        note=f"col2im {conv.epilogue.title}".strip(),
    )
    launches = (*launches_of(first), second)
    maximum = max(used, *(launch.scratch for launch in launches))
    return tuple(replace(launch, scratch=maximum) for launch in launches)


def transposed_product(conv: ConvProblem) -> GemmArguments:
    """Return the product of pixels and weights, [pixel, tap * filter], in the workspace."""
    x, k = conv.x, conv.channels
    m, n = x.size // k, conv.taps * conv.filters
    if x.dtype in HALVES:
        return GemmArguments(
            a=Matrix(x, x.row, widest(f16.VECTORS, k, x.row)),
            b=Packed((conv.w.value,), "transposed rows", ROWS),
            c=Scratch(0),
            shape=(m, n, k),
            ldb=ceil_div(k, 8) * 8,
            ldc=n,
            dtype=x.dtype,
        )
    return GemmArguments(
        a=Matrix(x, x.row, widest((4, 2), k, x.row)),
        b=Packed((conv.w.value,), "transposed columns", COLUMNS),
        c=Scratch(0),
        shape=(m, n, k),
        ldb=ceil_div(n, 4) * 4,
        ldc=n,
    )


def pack_transposed_rows(w: Array) -> Array:
    """Return weights [c, m, *kernel] as [kernel * m, c], zero-padded to a multiple of eight."""
    columns = w.reshape(*w.shape[:2], -1).transpose(0, 2, 1).reshape(w.shape[0], -1)
    return EIGHTS(columns.T)


def pack_transposed(w: Array) -> Array:
    """Return weights [c, m, *kernel] as [c, kernel * m], zero-padded to a multiple of four."""
    columns = w.reshape(*w.shape[:2], -1).transpose(0, 2, 1).reshape(w.shape[0], -1)
    packed = np.zeros((w.shape[0], ceil_div(columns.shape[1], 4) * 4), w.dtype)
    packed[:, : columns.shape[1]] = columns
    return packed


#: Weights of transposed convolutions, as the right operands of tensor cores and of other kernels.
ROWS = TransposedOrder(pack_transposed_rows, across=False)
COLUMNS = TransposedOrder(pack_transposed, across=True)
