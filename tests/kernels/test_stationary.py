"""Convolutions of few filters, whose weights stay in shared memory: emulated, and compiled."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm.schedules import multistage, stationary
from tercet.backends.cuda.gemm.tables.f16 import STATIONARY
from tercet.backends.cuda.gemm.tile import Cost, CtaTile
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.targets import H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.pool import MaxPool

from ..plan.nets import Net
from .cubins import all_compile, assert_arguments
from .dry import DryDevice, compiled_files, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare

#: Kernels that this module compiles, in more variants than samples.py has.
COMPILES = {"gemm/stationary.cu"}


def tile(bm: int, bn: int, groups: int, stages: int) -> CtaTile:
    """Return a tile that is chosen where it applies."""
    free = Cost(0.0, 0.0, 0.0)
    return CtaTile(bm, bn, 64, stages, (groups * 4, 1), "wgmma", 1, free, ping_pong=True)


def convolution(
    x: tuple[int, ...], w: tuple[int, ...], end: str = "", dtype: DType = float16, **attributes: Any
) -> Net:
    """Return a convolution with Relu, and what follows: nothing, ``pooled``, ``added``."""
    net = Net(*x, dtype=dtype)
    scale = (w[1] * w[2] * w[3]) ** -0.5
    constants = [
        net.graph.constant(a.astype(dtype), "") for a in (normal(*w) * scale, normal(w[0]))
    ]
    value = net.add(Conv(**attributes), net.x, *constants)
    if end == "added":
        value = net.add(Add(), value, net.x)
    value = net.add(Relu(), value)
    if end == "pooled":
        value = net.add(MaxPool(kernel_shape=(2, 2), strides=(2, 2)), value)
    net.graph.set_outputs({"y": value})
    infer(net.graph)
    return net


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("by", "x", "w", "end", "dtype", "attributes"),
    [
        (
            tile(128, 32, 3, 2),
            (3, 32, 33, 17),
            (32, 32, 3, 3),
            "added",
            float16,
            {"pads": (1,) * 4},
        ),
        (
            tile(128, 48, 2, 1),
            (2, 72, 18, 20),
            (40, 72, 3, 3),
            "pooled",
            float16,
            {"pads": (1,) * 4},
        ),
        (
            *(tile(64, 64, 4, 2), (3, 16, 12, 19), (48, 16, 5, 2), "", bfloat16),
            {"pads": (3, 0, 1, 2), "dilations": (1, 3)},
        ),
        (tile(64, 32, 2, 1), (2, 56, 9, 18), (56, 56, 3, 3), "added", float16, {"pads": (1,) * 4}),
        (
            tile(128, 64, 2, 1),
            (3, 64, 33, 17),
            (64, 64, 3, 3),
            "added",
            float16,
            {"pads": (1,) * 4},
        ),
        (
            *(tile(128, 64, 3, 1), (2, 64, 18, 20), (128, 64, 3, 3), "pooled", bfloat16),
            {"pads": (1,) * 4},
        ),
        (
            *(tile(128, 64, 4, 1), (3, 16, 12, 19), (48, 16, 5, 2), "", float16),
            {"pads": (3, 0, 1, 2), "dilations": (1, 3)},
        ),
    ],
    ids=["added", "pooled", "dilated", "parts", "down", "down, pooled", "down, dilated"],
)
def test_emulated(
    by: CtaTile,
    x: tuple[int, ...],
    w: tuple[int, ...],
    end: str,
    dtype: DType,
    attributes: dict[str, Any],
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups of warps have tiles in turns, which reach over the edges of images and filters.

    Where filters do not fit in a tile, each part of them has blocks of its own.
    """
    monkeypatch.setattr(stationary, "STATIONARY", (by,))
    monkeypatch.setattr(multistage, "time_of", lambda *_: inf)
    compiler: Any = hopper.device.compiler
    monkeypatch.setattr(compiler, "target", Target("sm_90a", 2, H200.shared))
    net = convolution(x, w, end, dtype, **attributes)
    compare(Sample(net.graph, {"x": normal(*x).astype(dtype)}), hopper)
    assert "gemm/stationary.cu" in compiled_files(hopper)


def test_compiled(cache: Path) -> None:
    """Every tile compiles, and is what convolutions of as many filters are computed by."""
    device, made = DryDevice(), list[Launch]()
    for by in STATIONARY:
        size = 56 if by.bm == 64 else 112
        net = convolution((32, 64, size, size), (by.bn, 64, 3, 3), pads=(1,) * 4)
        (launch,) = (one for one in launches(planned(net.graph, device)) if "mma" in one.entry)
        made.append(launch)
    assert_arguments(made, H200, cache)
    assert [launch.title for launch in made] == [f"mma_stationary {by} Relu" for by in STATIONARY]
    sources = [source for source in device.compiler.sources if source.file in COMPILES]
    all_compile(sources, H200, cache, COMPILES)
