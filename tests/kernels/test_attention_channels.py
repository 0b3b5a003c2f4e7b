"""Attention of the channels of a head to one another: found in every spelling, and its results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.attention.channels import MAX_SIZE
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import bfloat16, float16, float32, float64
from tercet.runtime.session.model import Model

from .channel_samples import BLOCKS, SIZES, Block
from .cubins import all_compile, assert_nothing_spills
from .dry import DryCompiler, DryDevice, launches, planned
from .emulator import needs_compiler
from .samples import ERROR, OPTIONS

#: Kernels that this module compiles.
COMPILES = {"attention/attention_channels.cu"}


@pytest.mark.parametrize("block", SIZES, ids=str)
def test_all_nodes_of_every_size_are_one_kernel(block: Block) -> None:
    (launch,) = launches(planned(block.graph()))
    assert launch.entry == "attention_channels"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.spelling)
def test_all_nodes_are_one_kernel(block: Block) -> None:
    (launch,) = launches(planned(replace(block, pixels=400).graph()))
    assert launch.title == "attention_channels 4 x 16 x 400 in a cluster of 2"
    assert launch.grid == (4, 2, 1)


def test_few_heads_of_many_pixels_have_large_clusters() -> None:
    """As of an image at batch 1 (Restormer)."""
    block = Block("channels", heads=4, size=48, pixels=17 * 128)
    (launch,) = launches(planned(block.graph()))
    assert launch.title == "attention_channels 8 x 48 x 2176 in a cluster of 8"
    (launch,) = launches(planned(replace(block, heads=1).graph()))
    assert launch.title == "attention_channels 2 x 48 x 2176 in a cluster of 16"
    assert dict(launch.constants)["WARPS"] == 8


@pytest.mark.parametrize(("processors", "blocks"), [(132, 16), (78, 16), (36, 8), (16, 8)])
def test_small_parts_have_no_large_clusters(processors: int, blocks: int) -> None:
    """As of slices of an H200 (MIG): their GPCs may have no room for two of them, or for any."""
    target = replace(H200, processors=processors)
    block = Block("channels", heads=1, size=48, pixels=17 * 128)
    (launch,) = launches(planned(block.graph(), DryDevice(compiler=DryCompiler(target))))
    assert launch.cluster == (blocks, 1, 1)


@pytest.mark.parametrize(("block", "count"), [(BLOCKS[1], 1), (BLOCKS[2], 0)], ids=str)
def test_what_something_else_reads_is_computed(block: Block, count: int) -> None:
    """Queries that are a result: the kernel transposes them, unless that would be undone."""
    entries = [each.entry for each in launches(planned(replace(block, shared=True).graph()))]
    assert entries.count("attention_channels") == count
    assert len(entries) > count


@pytest.mark.parametrize(
    "block",
    [
        Block("channels", size=MAX_SIZE + 1),
        Block("channels", dtype=float32),
        Block("pixels", factors=(0.5, 1.0), size=128, is_unit=False),
    ],
    ids=["size", "float32", "wide"],
)
def test_what_has_no_kernel_stays_apart(block: Block) -> None:
    entries = {each.entry for each in launches(planned(block.graph()))}
    assert "attention_channels" not in entries


@pytest.mark.slow
@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_every_size_compiles(target: Target, cache: Path) -> None:
    """Without spills, too: the newest architecture gets every size, others get the largest."""
    device = DryDevice(compiler=DryCompiler(target))
    for size in (16, 32, 48, 64, 6, 12):
        for dtype in (float16, bfloat16):
            planned(Block("channels", size=size, dtype=dtype).graph(), device)
    planned(Block("channels", size=5).graph(), device)
    for size in (48, 64):
        planned(Block("channels", heads=1, size=size, pixels=17 * 128).graph(), device)
    planned(Block("pixels", size=32, is_unit=False).graph(), device)
    all_compile(list(device.compiler.sources), target, cache, COMPILES)
    sources = [
        source
        for source in device.compiler.sources
        if dict(source.constants)["SIZE"] == MAX_SIZE
        or (target == H200 and dict(source.types)["T"] == "__half")
    ]
    assert len(sources) == (11 if target == H200 else 2)
    assert_nothing_spills(sources, Compiler(target, cache))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("block", SIZES, ids=str)
def test_results(block: Block, emulated: CudaBackend) -> None:
    compare(block, emulated)


@pytest.mark.slow
@needs_compiler
def test_results_of_large_clusters(h200: CudaBackend) -> None:
    kernels = compare(Block("channels", heads=1, size=48, pixels=17 * 128), h200)
    assert "attention_channels 2 x 48 x 2176 in a cluster of 16" in kernels


def compare(block: Block, backend: CudaBackend) -> list[str]:
    """Compare results with those in float64; return the kernels that computed them."""
    with Model(block.graph(), [backend], OPTIONS, evaluate) as model:
        (y,) = model.run({"x": block.x}).values()
        kernels = [row.kernel for row in model.placement()]
    assert any(kernel.startswith("attention_channels") for kernel in kernels)
    exact = block.exact()
    limit = ERROR[block.dtype] * np.abs(exact).max()
    np.testing.assert_allclose(np.asarray(y, float64), exact, rtol=0, atol=limit)
    return kernels
