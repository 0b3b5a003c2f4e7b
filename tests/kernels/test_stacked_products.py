"""Stacks of products that Hopper's copy engine feeds: layers over the tokens of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm.schedules import tma_persistent
from tercet.backends.cuda.gemm.tables.f16 import TMA_PERSISTENT
from tercet.backends.cuda.gemm.tile import Config, CtaTile, TimedConfig
from tercet.backends.cuda.recipe.operands import TensorMap
from tercet.backends.cuda.recipe.targets import H200
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ops.elementwise import Add, Cast, Gelu, Mul
from tercet.runtime.ops.matmul import MatMul

from .cubins import all_compile, assert_arguments
from .dry import DryDevice, Net, compiled_files, launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, Sample, compare, sample_of

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
            float32 behind that, ``wide``, both, or ``factors`` by channels and a residual.
        dtype: of all numbers.
        own: whether each image has weights of its own, which are given.
    """

    def build(net: Net) -> Value:
        w = normal(*((count,) if own else ()), m, k, scale=k**-0.5).astype(dtype)
        weights = net.input(*w.shape, dtype=dtype) if own else w
        value = net.apply(MatMul(), weights, net.input(count, k, n, dtype=dtype))
        if end not in ("", "factors"):
            value = net.apply(Add(), value, normal(m, 1).astype(dtype))
        if end == "gelu":
            value = net.apply(Gelu(), value)
        if end == "factors":
            value = net.apply(Mul(), value, normal(n).astype(dtype))
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


@needs_compiler
@pytest.mark.parametrize("title", BY_TITLE)
def test_tiles(title: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    tile = BY_TITLE[title]
    forced(tile, monkeypatch)
    m, n = tile.bm + 4, tile.bn + 8
    compare(sample_of(tokens(3, m, n, 76, "gelu")), hopper)
    compare(sample_of(tokens(2, m, n, 76, "residual", bfloat16)), hopper)
    end = "cast" if tile.ping_pong else "wide"
    compare(sample_of(tokens(3, m, n, 76, end)), hopper, error=ERROR[float16])
    compare(sample_of(tokens(2, 9, 72, 72, "", own=True)), hopper)
    assert compiled_files(hopper) == {FILE}
