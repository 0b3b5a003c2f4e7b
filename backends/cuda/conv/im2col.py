"""Explicit GEMM: the windows of an image as the rows of a matrix in the workspace (im2col).

A transposed convolution goes the other way: the product comes first, and every result collects what
belongs to it (col2im).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from ....runtime.ir.dtypes import float32
from ....runtime.ir.types import Array
from ....runtime.ops.window import Window
from ..algorithms.registry import Answer
from ..codegen.epilogue import NO_EPILOGUE
from ..gemm import f16
from ..gemm.atoms import HALVES
from ..gemm.convolution import Convolution
from ..gemm.pack import pack_windows, packed_filters
from ..gemm.problem import Gemm, Matrix, Problem, image_of, widest
from ..gemm.schedules import multistage, simt
from ..recipe.launch import Launch, Recipe, launches_of
from ..recipe.layout import Ints, by_axis, ceil_div
from ..recipe.operands import Packed, Scratch, Tensor, index_type
from ..recipe.source import arithmetic

THREADS = 256


# ── convolution ──────────────────────────────────────────────────────────────────────────────────


def explicit_gemm(conv: Convolution, variant: str = "") -> Answer:
    """Return the windows written as a matrix, and its product with the filters.

    The workspace is this matrix: kernel * c * n * output elements.
    """
    x, y, view, terms = conv.x, conv.y, conv.view, conv.taps * conv.channels
    used = conv.pixels * terms * x.dtype.itemsize
    vector = widest((4, 2), conv.channels, x.row) if x.is_channels_last else 1
    words = terms // vector
    index = index_type(conv.pixels * words)
    write = Launch(
        "conv/im2col.cu",
        "im2col",
        grid=(ceil_div(conv.pixels * words, THREADS), 1, 1),
        block=THREADS,
        args={
            **{"x": x, "columns": Scratch(0), "count": conv.pixels * words, "words": words},
            "p": _plane(x, y.dims[2:], view),
        },
        types=(("T", x.dtype), ("A", arithmetic(x.dtype)), ("Index", index)),
        constants=(("BIAS", False), ("VECTOR", vector)),
        code=NO_EPILOGUE.code if x.dtype == float32 else conv.epilogue.code,
        scratch=used,
        note="im2col",
        pitched=(x,),
    )
    rest = _half_product(conv, used) if x.dtype in HALVES else _product(conv)
    launches = (write, *launches_of(rest))
    maximum = max(used, *(launch.scratch for launch in launches))
    return tuple(replace(launch, scratch=maximum) for launch in launches)


def _product(conv: Convolution) -> Recipe:
    m, n, k = conv.pixels, conv.filters, conv.taps * conv.channels
    pack = partial(pack_windows, groups=1)
    gemm = Gemm(
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


def _half_product(conv: Convolution, used: int) -> Recipe:
    m, n, k = conv.pixels, conv.filters, conv.taps * conv.channels
    gemm = Gemm(
        a=Matrix(Scratch(0), k, widest(f16.VECTORS, k)),
        b=packed_filters(conv.w, 1, conv.channels, "in eights", f16.EIGHTS),
        c=conv.y,
        shape=(m, n, k),
        ldb=ceil_div(k, 8) * 8,
        ldc=conv.y.row,
        bias=conv.b,
        dtype=conv.x.dtype,
    )
    return multistage.multiply_halves(gemm, conv.epilogue, conv.setting.target, used)


def _plane(x: Tensor, output: Ints, view: Window) -> dict[str, int]:
    """Return struct `Plane` of im2col.cu; one spatial axis counts as the width.

    Args:
        x: the image.
        output: what the windows' places are counted by.
        view: the windows.
    """
    one = (1,) if x.rank == 3 else ()
    return {
        **{"channels": x.dims[1], "of_channel": x.strides[1]},
        **image_of(x.dims[2:], output, view, x.strides),
        **by_axis(kernel=(*one, *view.kernel), dilation=(*one, *view.dilations)),
    }


# ── transposed convolution ───────────────────────────────────────────────────────────────────────


def transposed_gemm(conv: Convolution, variant: str = "") -> Answer:
    """Return the product of pixels and weights, and its sum by results (col2im).

    The workspace is this product: n * spatial * kernel * m elements.
    """
    x, y, k = conv.x, conv.y, conv.channels
    m, n = conv.x.size // k, conv.taps * conv.filters
    used = 4 * m * n
    gemm = Gemm(
        a=Matrix(x, x.row, widest((4, 2), k, x.row)),
        b=Packed((conv.w.value,), "transposed columns", pack_transposed),
        c=Scratch(0),
        shape=(m, n, k),
        ldb=ceil_div(n, 4) * 4,
        ldc=n,
    )
    config = simt.unsplit(Problem(m, n, k), conv.setting.target)
    first = simt.multiply(gemm, NO_EPILOGUE, conv.setting, config)
    index = index_type(y.size)
    second = Launch(
        "conv/im2col.cu",
        "col2im",
        grid=(ceil_div(y.size, THREADS), 1, 1),
        block=THREADS,
        args={
            **{"columns": Scratch(0), "y": y, "bias": conv.b, **conv.epilogue.args},
            **{"count": y.size, "pitch": n, "p": _plane(y, x.dims[2:], conv.view)},
        },
        types=(("T", float32), ("A", float32), ("Index", index)),
        constants=(("BIAS", conv.b is not None), ("VECTOR", 1)),
        code=conv.epilogue.code,
        note=f"col2im {conv.epilogue.title}".strip(),
    )
    return tuple(replace(launch, scratch=used) for launch in (*launches_of(first), second))


def pack_transposed(w: Array) -> Array:
    """Return weights [c, m, *kernel] as [c, kernel * m], zeros behind up to a multiple of four."""
    columns = w.reshape(*w.shape[:2], -1).transpose(0, 2, 1).reshape(w.shape[0], -1)
    packed = np.zeros((w.shape[0], ceil_div(columns.shape[1], 4) * 4), w.dtype)
    packed[:, : columns.shape[1]] = columns
    return packed
