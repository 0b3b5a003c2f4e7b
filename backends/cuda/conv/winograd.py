"""Winograd convolution of 3x3 windows: F(2x2, 3x3) and F(4x4, 3x3), in one kernel or three.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015). Weights are transformed
on the host, in float64.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import sqrt

import numpy as np

from ....runtime.ir.dtypes import float32
from ....runtime.ir.types import Array
from ....runtime.plan.format import HALVES_BLOCK
from ..algorithms.registry import Answer
from ..codegen.epilogue import no_epilogue
from ..gemm import batched
from ..gemm.atoms import F16X3
from ..gemm.batched import Products
from ..gemm.convolution import MAX_ELEMENTS, ConvProblem
from ..gemm.problem import Problem
from ..recipe.launch import Launch, each
from ..recipe.operands import Arguments, Packed, Scratch, Tensor, by_axis, ceil_div, moves, sizes
from .estimates import WINOGRAD_BLOCKS, WinogradBlock, winograd_tiles

THREADS = 256
#: The weight transform G of G w G', for tiles of 2 and 4 results; see `winograd.cuh`.
WEIGHTS = {
    2: np.array([[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]]),
    4: np.array(
        [
            [1, 0, 0],
            [-2 / 3, -sqrt(2) / 3, -1 / 3],
            [-2 / 3, sqrt(2) / 3, -1 / 3],
            [1 / 6, sqrt(2) / 6, 1 / 3],
            [1 / 6, -sqrt(2) / 6, 1 / 3],
            [0, 0, 1],
        ]
    ),
}


def _plane(conv: ConvProblem, out: int) -> dict[str, int]:
    """Return struct `Plane` of winograd.cuh."""
    x, y = conv.x, conv.y
    _, rows, columns = winograd_tiles(conv, out)
    strides = {**moves("of", x.strides), **moves("to", conv.stored.strides)}
    return {
        **{"images": x.dims[0], "channels": x.dims[1], "filters": y.dims[1]},
        **{**sizes("", x.dims[2:]), **sizes("out_", y.dims[2:])},
        **by_axis(tiles=(rows, columns), pad=conv.view.pads_begin),
        **{name: step for name, step in strides.items() if not name.endswith("channel")},
    }


def _pitched(conv: ConvProblem) -> tuple[Tensor, ...]:
    """Return the tensors that may be slices; maxima are stored elsewhere than what is read."""
    along = conv.epilogue.pitched
    stored = () if along and conv.pooled is not None else (conv.stored, *along)
    return conv.x, *stored


# ── in one kernel ────────────────────────────────────────────────────────────────────────────────


def fused(conv: ConvProblem, variant: str = "", *, out: int) -> Answer:
    """Return both transforms and the products as one kernel, without a workspace."""
    block, points = WINOGRAD_BLOCKS[out], (out + 2) ** 2
    tiles, _, _ = winograd_tiles(conv, out)
    threads = points * block.tiles // 8 * (block.filters // 8)
    inputs = points * block.channels * (block.tiles + 4)
    weights = points * block.channels * block.filters
    pack = partial(pack_fused, out=out, block=block)
    return Launch(
        "conv/winograd.cu",
        "winograd",
        grid=(ceil_div(tiles, block.tiles), ceil_div(conv.filters, block.filters), 1),
        block=threads,
        args={
            **{"x": conv.x, "w": Packed((conv.w.value,), ("winograd", out, block), pack)},
            **{"y": conv.stored, "bias": conv.b, **conv.epilogue.args, "p": _plane(conv, out)},
        },
        types=(("T", float32),),
        constants=(
            *(("OUT", out), ("TILES", block.tiles), ("FILTERS", block.filters)),
            *(("CHANNELS", block.channels), ("RESIDENT", block.resident)),
            *(("BIAS", conv.b is not None), ("POOL", conv.pooled is not None)),
        ),
        code=conv.epilogue.code,
        shared=4 * max(2 * (inputs + weights), points * block.tiles * block.filters),
        note=f"F({out}x{out},3x3) {block.tiles}x{block.filters} {conv.title}".strip(),
        pitched=_pitched(conv),
    )


# ── in three kernels ─────────────────────────────────────────────────────────────────────────────


def nonfused(conv: ConvProblem, variant: str = "", *, out: int) -> Answer:
    """Return the input transform, a batch of products, and the output transform.

    The workspace holds the transformed inputs and sums: (out + 2)^2 * tiles * (c + m) elements.
    """
    points, (tiles, _, _) = (out + 2) ** 2, winograd_tiles(conv, out)
    c, m = conv.channels, conv.filters
    if points * tiles * max(c, m) >= MAX_ELEMENTS:
        return f"tiles of {points * tiles * max(c, m)} elements, not fewer than 2^31"
    problem = Problem(tiles, m, c, points)
    may_be_cut = batched.time_in_halves(problem, conv.setting) is not None
    of_point = batched.stride_in_halves(problem) if may_be_cut else 4 * tiles * c
    of_inputs = ceil_div(points * of_point, 256) * 256
    sums = Scratch(of_inputs)
    pack = partial(transformed, out=out)
    products = Products(problem, Scratch(0), sums, conv.w, ("winograd", out), pack)
    in_halves = batched.multiply_in_halves(products, conv.setting)
    if in_halves is not None:
        before = _inputs_in_halves(conv, out, problem), in_halves
    else:
        inputs = _end("winograd_inputs", conv, out, tiles * c, {"x": conv.x, "v": Scratch(0)})
        before = inputs, *batched.multiply(products, conv.setting)
    launches = (
        *before,
        _end(
            *("winograd_results", conv, out, tiles * m),
            {"sums": sums, "y": conv.stored, "bias": conv.b, **conv.epilogue.args},
        ),
    )
    used = of_inputs + 4 * points * tiles * m
    return tuple(replace(launch, scratch=used) for launch in launches)


def _inputs_in_halves(conv: ConvProblem, out: int, problem: Problem) -> Launch:
    """Return the transform of inputs, [tile, channel] of every point in halves."""
    return Launch(
        "conv/winograd_halves.cu",
        "winograd_inputs_in_halves",
        grid=(ceil_div(problem.m * (problem.k // HALVES_BLOCK), THREADS // 32), 1, 1),
        block=THREADS,
        args={
            **{"x": conv.x, "v": Scratch(0), "tiles": problem.m},
            **{"rows": batched.rows_in_halves(problem)},
            **{"of_point": batched.stride_in_halves(problem), "p": _plane(conv, out)},
        },
        types=(("T", float32),),
        constants=(("OUT", out), ("POOL", False), ("BIAS", False), ("THREADS", THREADS)),
        code="\n".join((F16X3.code(), no_epilogue(float32).code)),
        note=f"F({out}x{out},3x3)",
        pitched=(conv.x,),
    )


def _end(entry: str, conv: ConvProblem, out: int, count: int, operands: Arguments) -> Launch:
    return each(
        "conv/winograd_transform.cu",
        entry,
        count,
        block=THREADS,
        args={**operands, "count": count, "p": _plane(conv, out)},
        types=(("T", float32),),
        constants=(
            *(("OUT", out), ("BIAS", conv.b is not None), ("POOL", conv.pooled is not None)),
        ),
        code=conv.epilogue.code,
        note=f"F({out}x{out},3x3) {conv.title if entry == 'winograd_results' else ''}".strip(),
        pitched=_pitched(conv),
    )


# ── weights, on the host ─────────────────────────────────────────────────────────────────────────


def transformed(w: Array, out: int) -> Array:
    """Return weights [m, c, 3, 3] as [point, c, m], float64."""
    # One product: a contraction axis by axis takes fifty times as long.
    both = np.kron(WEIGHTS[out], WEIGHTS[out])
    points = both @ w.reshape(-1, 9).T.astype(np.float64)
    return points.reshape(-1, *w.shape[:2]).transpose(0, 2, 1)


def pack_fused(w: Array, out: int, block: WinogradBlock) -> Array:
    """Return weights [m, c, 3, 3] as [block of filters, step, point, channel, filter]."""
    points = transformed(w, out)
    count, channels, filters = points.shape
    steps = ceil_div(channels, block.channels)
    blocks = ceil_div(filters, block.filters)
    packed = np.zeros((count, steps * block.channels, blocks * block.filters), w.dtype)
    packed[:, :channels, :filters] = points
    split = packed.reshape(count, steps, block.channels, blocks, block.filters)
    return np.ascontiguousarray(split.transpose(3, 1, 0, 2, 4))
