"""Products with packed weights: their kernels compile, and compute what numpy does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm import packed
from tercet.backends.cuda.gemm.gemv import RowTile
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import float16, float32
from tercet.runtime.ops.packed import MatMulNBits

from .cubins import assert_plans_compile
from .dry import launches, planned
from .emulator import needs_compiler
from .few_rows_samples import Gated
from .packed_samples import nbits, samples
from .samples import Sample, compare

COMPILES = {"gemm/gemv_packed.cu", "gemm/packed.cu", "gemm/unpack_weights.cu"}


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    assert_plans_compile([each.graph for each in samples()], target, cache, COMPILES)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sample", samples(), ids=str)
def test_kernels(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("rows", "k", "n", "tile"),
    [
        (1, 3600, 120, "32 rows, 4 warps, 2 steps"),
        (1, 1500, 120, "32 rows, 4 warps, 1 steps"),
        (1, 3600, 90, "48 rows, 16 warps, 1 steps"),
        (1, 3700, 270, "48 rows, 16 warps, 1 steps, persistent"),
        (1, 8200, 270, "48 rows, 16 warps, 1 steps, persistent"),
        (2, 3600, 120, "32 rows, 4 warps, 1 steps"),
        (1, 14400, 60, "32 rows, 16 warps, 2 steps"),
        (2, 2100, 24, "16 rows, 16 warps, 1 steps"),
        (8, 2100, 45, "24 rows, 16 warps, 1 steps"),
        (3, 2100, 75, "40 rows, 16 warps, 1 steps"),
    ],
)
def test_tiles_of_few_multiprocessors(
    rows: int, k: int, n: int, tile: str, hopper: CudaBackend
) -> None:
    found = nbits(rows, k, n, 4, 32, dtype=float16)
    device: Any = hopper.device
    assert tile in launches(planned(found.graph, device))[0].title
    compare(found, hopper)


@needs_compiler
def test_gated_layers_that_are_interleaved(hopper: CudaBackend) -> None:
    """Tiles of 48 rows have 24 of either product, which do not divide its 150."""
    found = Gated(1, 3600, 150, bits=4, block=128).sample()
    device: Any = hopper.device
    assert (
        "48 rows, 16 warps, 1 steps, persistent" in launches(planned(found.graph, device))[0].title
    )
    compare(found, hopper)


@pytest.mark.parametrize(
    ("k", "n", "block", "eights"),
    [
        (8192, 28672, 128, 8),  # 7 tiles of 64 rows for a multiprocessor, or 10 of 48
        (8192, 28672, 32, 6),  # registers would be spilled
        (4096, 14336, 128, 6),  # 4 of 64, or 5 of 48
    ],
)
def test_tiles_that_share_rows_equally(k: int, n: int, block: int, eights: int) -> None:
    op = MatMulNBits(K=k, N=n, bits=4, block_size=block)
    assert packed.choose(op, H200, products=2) == RowTile(eights, 16, 1, persistent=1)


@pytest.mark.parametrize(
    ("k", "n", "rows", "dtype", "tile"),
    [
        (14336, 4096, 1, float16, "32 rows, 16 warps, 2 steps"),  # Llama-3-8B
        (18944, 3584, 1, float16, "32 rows, 16 warps, 1 steps"),  # Qwen2.5-7B
        (3584, 3584, 8, float16, "32 rows, 16 warps, 1 steps"),
        (8192, 3072, 1, float16, "24 rows, 16 warps, 1 steps"),  # Phi-3 mini
        (2560, 6144, 1, float16, "48 rows, 16 warps, 1 steps"),  # Qwen3-4B
        (2560, 6144, 8, float16, "32 rows, 8 warps, 1 steps"),
        (5120, 5120, 8, float16, "40 rows, 16 warps, 1 steps"),  # Phi-4
        (5120, 5120, 2, float32, "32 rows, 8 warps, 1 steps"),
        (2048, 3072, 1, float16, "16 rows, 8 warps, 1 steps"),  # Llama-3.2-1B: a step of 16 warps
    ],
)
def test_blocks_that_fill_the_gpu_once(k: int, n: int, rows: int, dtype: Any, tile: str) -> None:
    product = nbits(rows, k, n, 4, 32, dtype=dtype)
    (launch,) = launches(planned(product.graph))
    assert launch.title.startswith(f"gemv_packed {rows} by {tile}, 4 bits")


def test_two_products_have_equally_many_rows_of_a_tile() -> None:
    """Rows of 8 KB of scales each: 24 of them have room, which two products cannot share."""
    tile = RowTile(6, 16, 1)
    assert packed.with_scales(tile, 8 << 10, 0, H200, 1).eights == 3
    assert packed.with_scales(tile, 8 << 10, 0, H200, 2).eights == 2


@pytest.mark.parametrize(
    ("k", "kernel"),
    [
        (1 << 15, "gemv_packed 1 by 16 rows"),
        (1 << 16, "gemv_packed 1 by 8 rows"),
        (1 << 17, "mixed_input"),
    ],
)
def test_scales_of_long_rows_have_room_in_shared_memory(k: int, kernel: str) -> None:
    """They are 8, 16 and 32 KB per row of weights, of which a block has 227."""
    product = nbits(1, k, 16, 8, 16, zeros="packed", dtype=float16)
    found = launches(planned(product.graph))
    assert any(launch.title.startswith(kernel) for launch in found)
    assert all(launch.shared <= H200.shared for launch in found)
