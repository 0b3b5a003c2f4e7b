"""Implicit GEMM: convolution as a product whose im2col matrix is never stored.

Each row of that matrix is the window of one output pixel. `gemm/simt.cu` looks up the address of an
element in a precomputed table (implicit_precomp_gemm); `implicit.cu` computes it on the fly
(implicit_gemm).
"""

from __future__ import annotations

from functools import partial

from ..algorithms.registry import Answer
from ..gemm.convolution import ConvProblem
from ..gemm.pack import pack_windows
from ..gemm.problem import Batch, GemmArguments, Image, widest
from ..gemm.schedules import simt
from ..gemm.tables.simt import SIMT
from ..gemm.tile import Config
from ..recipe.operands import Packed, ceil_div
from .estimates import precomputed_problem

# ── the names ────────────────────────────────────────────────────────────────────────────────────


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


def precomputed(conv: ConvProblem, variant: str = "") -> Answer:
    """Return the product of windows (or pixels) and filters by `gemm/simt.cu`."""
    return simt.multiply(_gemm(conv), conv.epilogue, conv.setting, _config(conv, variant))


def _gemm(conv: ConvProblem) -> GemmArguments:
    """Return the convolution as a product: output pixels x filters, summed over windows."""
    x, y = conv.x, conv.y
    terms, ldb = conv.taps * conv.channels, ceil_div(conv.filters, 4) * 4
    image = Image(
        data=x,
        spatial=x.dims[2:],
        strides=x.strides,
        channels=conv.channels,
        view=conv.view,
        output=y.dims[2:],
        vector=widest((4, 2), conv.channels, x.row) if x.is_channels_last else 1,
        images=x.dims[0],
        channels_last=x.is_channels_last,
        divided=False,
    )
    pack = partial(pack_windows, groups=conv.group)
    return GemmArguments(
        a=image,
        b=Packed((conv.w.value,), ("windows", conv.group), pack),
        c=y,
        shape=(conv.pixels, conv.filters, terms),
        ldb=ldb,
        ldc=y.row,
        batch=Batch(conv.group, conv.channels * x.strides[1], terms * ldb, conv.filters),
        bias=conv.b,
    )


# ── tiles ────────────────────────────────────────────────────────────────────────────────────────


def _config(conv: ConvProblem, variant: str) -> Config:
    """Return the tile and splits of a variant, or the best estimate within the workspace."""
    if variant:
        return Config.parse(variant, SIMT)
    problem, setting = precomputed_problem(conv), conv.setting
    config = simt.choose(problem, setting.target).config
    limit, sums = setting.options.workspace, 4 * problem.batch * problem.m * problem.n
    if config.splits > 1 and limit is not None and sums * config.splits > limit:
        return simt.unsplit(problem, setting.target)
    return config


def tile_variants(conv: ConvProblem) -> tuple[str, ...]:
    """Return the tiles, each with the K splits worth trying."""
    return simt.tried(precomputed_problem(conv), conv.setting.target)
