"""16-bit products of any number of terms and columns: one launch, on tensor cores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm import f16
from tercet.backends.cuda.gemm.schedules import multistage
from tercet.backends.cuda.gemm.tables.f16 import MULTISTAGE
from tercet.backends.cuda.gemm.tile import Config, CtaTile, TimedConfig
from tercet.backends.cuda.recipe.operands import Packed
from tercet.backends.cuda.recipe.targets import H200
from tercet.runtime.ir.dtypes import DType, bfloat16, float16
from tercet.runtime.ir.types import Array

from .cubins import all_compile, assert_arguments
from .dry import DryDevice, compiled_files, launches, normal, planned, single
from .emulator import needs_compiler
from .samples import results_of, sample

#: Left and right operand, and whether the right one is constant: odd numbers of terms, of columns,
#: and stacks of which one operand has a single matrix.
PRODUCTS = (
    ((70, 49), (49, 40), True),
    ((2, 35, 197), (197, 24), True),
    ((70, 49), (49, 40), False),
    ((70, 64), (64, 51), False),
    ((3, 49, 49), (3, 49, 128), False),
    ((2, 3, 20, 72), (2, 3, 72, 36), False),
    ((50, 66), (3, 66, 88), False),
    ((2, 3, 20, 72), (2, 3, 72, 36), True),
    ((50, 67), (3, 67, 88), True),
)


def operands(a: tuple[int, ...], b: tuple[int, ...], dtype: DType) -> list[Array]:
    """Return the operands of a product whose results are about one."""
    return [normal(*a).astype(dtype), (normal(*b) / np.sqrt(b[-2])).astype(dtype)]


@pytest.mark.parametrize(("a", "b", "constant"), PRODUCTS)
def test_one_launch_computes_it(
    a: tuple[int, ...], b: tuple[int, ...], constant: bool, cache: Path
) -> None:
    given = operands(a, b, float16)
    found = launches(planned(single("MatMul", given, (1,) if constant else ())))
    assert [launch.file for launch in found] == ["gemm/multistage.cu"]
    assert_arguments(found, H200, cache)


def test_many_columns_of_single_elements_are_transposed_first() -> None:
    """Which takes less time than to copy them one by one."""
    found = launches(planned(single("MatMul", operands((900, 4096), (4096, 1001), float16))))
    assert [launch.file for launch in found] == ["move/transpose.cu", "gemm/multistage.cu"]


def test_it_starts_before_the_kernel_ends_that_computes_its_operands() -> None:
    (launch,) = launches(planned(single("MatMul", operands((3, 49, 64), (3, 64, 128), float16))))
    assert launch.early


def test_a_constant_stack_is_packed_and_loaded_early() -> None:
    (launch,) = launches(
        planned(single("MatMul", operands((3, 49, 67), (3, 67, 128), float16), (1,)))
    )
    assert isinstance(launch.arguments["b"], Packed)
    assert launch.early
    assert dict(launch.constants)["ACROSS"] == 0


TILES = {str(tile): tile for tile in MULTISTAGE if not (tile.wgmma and tile.bn % multistage.STRIP)}


def forced(tile: CtaTile, patch: pytest.MonkeyPatch) -> None:
    """Let every product be computed by one tile."""
    patch.setattr(f16, "computed", lambda *_: None)
    chosen = TimedConfig(0.0, Config(tile))
    patch.setattr(multistage, "choose", lambda *_, **__: chosen)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("a", "b", "constant"), PRODUCTS)
def test_products(
    a: tuple[int, ...], b: tuple[int, ...], constant: bool, dtype: DType, emulated: CudaBackend
) -> None:
    assert_is_product(emulated, *operands(a, b, dtype), constant=constant)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("title", TILES)
def test_tiles(title: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    tile = TILES[title]
    forced(tile, monkeypatch)
    m, n = tile.bm + 3, tile.bn + 8
    assert_is_product(hopper, *operands((2, m, 72), (2, 72, n), float16))
    assert_is_product(hopper, *operands((m, 67), (67, n + 1), float16))


def assert_is_product(backend: CudaBackend, a: Array, b: Array, *, constant: bool = False) -> None:
    """Fail unless a product is that of float64, but for the rounding of its result."""
    (found,) = results_of(sample("MatMul", [a, b], (1,) if constant else ()), [backend])
    expected = a.astype(np.float64) @ b.astype(np.float64)
    rounding = 2.0**-8 if a.dtype == bfloat16 else 2.0**-11
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=rounding, atol=3e-4)
    assert compiled_files(backend) == {"gemm/multistage.cu"}


@pytest.mark.slow
def test_every_tile_compiles(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = DryDevice()
    for tile in TILES.values():
        forced(tile, monkeypatch)
        for columns in (128, 100, 99):
            planned(single("MatMul", operands((2, 64, 65), (2, 65, columns), float16)), device)
    all_compile(list(device.compiler.sources), H200, cache, every=True)
