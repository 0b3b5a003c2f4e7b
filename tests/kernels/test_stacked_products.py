"""Stacks of products that Hopper's copy engine feeds: layers over the tokens of images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm.schedules import tma_persistent
from tercet.backends.cuda.gemm.tables.f16 import TMA_PERSISTENT
from tercet.backends.cuda.gemm.tile import Config, CtaTile, TimedConfig
from tercet.backends.cuda.recipe.operands import Packed, TensorMap
from tercet.backends.cuda.recipe.targets import H200
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ops.elementwise import Add, Cast, Gelu, Mul, Where
from tercet.runtime.ops.matmul import MatMul

from .cubins import all_compile, assert_arguments
from .dry import DryDevice, Net, compiled_files, launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, Sample, compare, sample_of, scalar

#: Kernels that this module compiles, in more variants than samples.py has.
COMPILES = {"gemm/tma_persistent.cu"}
BY_TITLE = {f"{tile} of {tile.epilogues}": tile for tile in TMA_PERSISTENT}
FILE = "gemm/tma_persistent.cu"


def tokens(
    count: int, m: int, n: int, k: int, end: str, dtype: DType = float16, *, own: bool = False
) -> Callable[[Net], Value]:
    """Return what builds a layer over the tokens of images, ``w @ x``, and what follows.

    Args:
        count: number of images.
        m, n, k: tokens of the result, channels, and tokens of the images.
        end: what follows: nothing, ``gelu`` behind a bias by tokens, ``residual`` or ``cast`` to
            float32 behind that, ``wide``, both, ``factors`` by channels and a residual, or
            ``given`` factors by channels of each image, and by its tokens.
        dtype: of all numbers.
        own: whether each image has weights of its own, which are given.
    """

    def build(net: Net) -> Value:
        w = normal(*((count,) if own else ()), m, k, scale=k**-0.5).astype(dtype)
        weights = net.input(*w.shape, dtype=dtype) if own else w
        value = net.apply(MatMul(), weights, net.input(count, k, n, dtype=dtype))
        if end not in ("", "factors", "given"):
            value = net.apply(Add(), value, normal(m, 1).astype(dtype))
        if end == "gelu":
            value = net.apply(Gelu(), value)
        if end == "factors":
            value = net.apply(Mul(), value, normal(n).astype(dtype))
        if end == "given":
            for dims in ((count, 1, n), (count, m, 1)):
                value = net.apply(Mul(), value, net.input(*dims, dtype=dtype))
        if end in ("residual", "wide", "factors"):
            value = net.apply(Add(), net.input(count, m, n, dtype=dtype), value)
        return net.apply(Cast(to=float32), value) if end in ("wide", "cast") else value

    return build


def forced(tile: CtaTile, patch: pytest.MonkeyPatch) -> None:
    """Let every product be done with one tile, unless none applies."""
    choose = tma_persistent.choose

    def chosen(*args: Any) -> TimedConfig | None:
        return choose(*args) and TimedConfig(0.0, Config(tile))

    patch.setattr(tma_persistent, "choose", chosen)


def with_positions(count: int, m: int, n: int, dtype: DType) -> Callable[[Net], Value]:
    """Return what builds a layer over patches of images, and adds positions to each image.

    These are one product, whose tiles have rows of several images, or end within one.
    """

    def build(net: Net) -> Value:
        weights = normal(72, n, scale=0.1).astype(dtype)
        value = net.apply(MatMul(), net.input(count, m, 72, dtype=dtype), weights)
        value = net.apply(Add(), value, normal(n).astype(dtype))
        return net.apply(Add(), value, normal(1, m, n).astype(dtype))

    return build


def samples_of(tile: CtaTile, count: int = 3) -> list[tuple[Sample, float]]:
    """Return stacks of products with more rows and columns than a tile; and their errors."""
    m, n = tile.bm + 4, tile.bn + 8
    end = "cast" if tile.ping_pong else "wide"
    cases: list[tuple[Callable[[Net], Value], DType]] = [
        (tokens(count, m, n, 76, "gelu"), float16),
        (tokens(count, m, n, 76, "residual", bfloat16), bfloat16),
        (tokens(count, m, n, 76, end), float16),
        (tokens(count, m, n, 72, "factors", own=True), float16),
        (tokens(count, m, n, 72, "given"), float16),
        (tokens(count, 9, 72, 72, "", own=True), float16),
        (with_positions(count, tile.bm - 27, n, float16), float16),
    ]
    return [(sample_of(build), ERROR[dtype]) for build, dtype in cases]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("title", BY_TITLE)
def test_tiles(title: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    forced(BY_TITLE[title], monkeypatch)
    for sample, error in samples_of(BY_TITLE[title]):
        compare(sample, hopper, error=error)
    assert compiled_files(hopper) == {FILE}


@needs_compiler
def test_a_mask_of_all_products_is_brought_like_them(
    hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constant of booleans, as large as all results."""
    forced(BY_TITLE["64x64 of 2"], monkeypatch)

    def masked(net: Net) -> Value:
        y = net.apply(MatMul(), *(net.input(2, *n, dtype=float16) for n in ((70, 80), (80, 72))))
        return net.apply(Where(), normal(2, 70, 72) > 0, y, float16.type(-1))

    compare(sample_of(masked), hopper)
    assert compiled_files(hopper) == {FILE}


@pytest.mark.slow
def test_every_tile_compiles(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = DryDevice()
    for tile in TMA_PERSISTENT:
        with monkeypatch.context() as patch:
            forced(tile, patch)
            for sample, _ in samples_of(tile):
                planned(sample.graph, device)
    all_compile(list(device.compiler.sources), H200, cache, COMPILES, every=True)


# ── which stacks ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("count", "m", "n", "k", "end", "entry"),
    [
        (32, 384, 768, 196, "gelu", "mma_linear"),
        (32, 196, 768, 384, "residual", "mma_linear"),
        (1, 384, 768, 196, "gelu", "mma"),
        (32, 384, 772, 196, "gelu", "mma"),  # rows are no whole words
    ],
)
def test_layers_over_tokens(
    count: int, m: int, n: int, k: int, end: str, entry: str, cache: Path
) -> None:
    (launch,) = launches(planned(sample_of(tokens(count, m, n, k, end)).graph))
    assert launch.entry == entry
    assert_arguments([launch], H200, cache)


def test_the_weights_are_padded_and_all_else_is_read_as_it_lies() -> None:
    (launch,) = launches(planned(sample_of(tokens(32, 384, 768, 196, "residual")).graph))
    a, b, c, z = (arg for arg in launch.args.values() if isinstance(arg, TensorMap))
    assert isinstance(a.base, Packed)
    assert a.base.pack(np.ones((384, 196), float16)).shape == (384, 200)
    assert (a.dims, a.strides) == ((196, 384, 1), (200, 200 * 384))
    assert (b.dims, b.strides, b.box) == ((768, 196, 32), (768, 768 * 196), (64, 64, 1))
    assert (c.dims, c.strides) == (z.dims, z.strides) == ((768, 384, 32), (768, 768 * 384))
    assert launch.early  # weights are brought before the kernel in front has ended


def test_what_all_products_read_is_no_operand_of_theirs() -> None:
    """A mask, or a constant, of one matrix."""
    flags = normal(384, 768) > 0
    for op, constant in ((Where(), flags), (Add(), flags.astype(float16))):
        net = Net()
        factors = normal(384, 196).astype(float16), net.input(32, 196, 768, dtype=float16)
        y = net.apply(MatMul(), *factors)
        others = (constant, y, scalar(-1, float16)) if isinstance(op, Where) else (y, constant)
        (launch,) = launches(planned(net.outputs(net.apply(op, *others))))
        assert launch.entry == "mma"
