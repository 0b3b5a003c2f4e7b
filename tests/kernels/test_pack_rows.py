"""Constants that a kernel packs have the same bits as those that the host packs."""

from __future__ import annotations

from ctypes import string_at
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.memory import pointer
from tercet.backends.cuda.gemm import pack_rows, pack_scaled
from tercet.backends.cuda.gemm.f16x3 import in_halves, scales_of
from tercet.backends.cuda.gemm.pack import EIGHTS, InParts, in_words
from tercet.backends.cuda.gemm.pack_rows import FilterPacking, MatrixPacking, SumPacking
from tercet.backends.cuda.gemm.pack_scaled import ScaledColumns, ScaledRows
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import H200
from tercet.runtime.errors import DeviceOutOfMemory
from tercet.runtime.ir.dtypes import DType, bfloat16
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options

from . import emulator
from .cubins import all_compile
from .dry import normal
from .emulator import needs_compiler
from .fake_driver import FAKE, FakeCompiler, Gate, plant
from .test_f16x3 import powers

COMPILES = {"gemm/pack_rows.cu", "gemm/pack_scaled.cu"}
ORDERS = {
    "halves": in_halves,
    "scales": scales_of,
    "two parts": InParts(2),
    "one part": InParts(1),
}


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pack_rows, pack_scaled):
        monkeypatch.setattr(module, "MIN_SIZE", 1)
    monkeypatch.setattr(pack_rows, "MIN_READ", 1)


def by_kernel(device: Any, pack: Any, *sources: Array) -> Array:
    """What the kernel packs."""
    found = pack.launch(*sources)
    assert found is not None
    read = {name: device.upload(data) for name, data in found.sources.items()}
    y, code = device.allocate(found.result.nbytes), device.compiler.submit(found.launch.source)
    pointers = {**{name: pointer(view) for name, view in read.items()}, "y": y.pointer}
    emulator.emulated(device, found.launch, code, pointers)(None)
    block: Any = y.owner
    return block.buffer.memory.view(found.result.dtype).reshape(found.result.dims)


def special() -> Array:
    """Numbers whose halves or parts are special."""
    x = normal(40, 24) * powers(-30, 0, 40, 24)
    x[:, 3] = 0
    x[5, 3:9] = -0.0, 1e-30, -1e-30, 2.0**-26, -1e-44, 65504
    return x


@needs_compiler
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("pack", "source"),
    [
        (lambda order: MatrixPacking(1.0, transposed=False, arrange=order), normal(70, 44)),
        (lambda order: MatrixPacking(1.0, transposed=True, arrange=order), normal(44, 70)),
        (lambda order: MatrixPacking(1.0, transposed=False, arrange=order), normal(2, 33, 8)),
        (lambda order: MatrixPacking(1.0, transposed=False, arrange=order), special()),
        (lambda order: MatrixPacking(0.3, transposed=False, arrange=order), normal(70, 44)),
        (lambda order: FilterPacking(1, 5, 1, order), normal(11, 5, 3, 3)),
        (lambda order: FilterPacking(1, 8, 1, order), normal(11, 5, 3, 3)),
        (lambda order: FilterPacking(2, 16, 1, order), normal(16, 16, 1, 1)),
    ],
    ids=["matrix", "transposed", "stack", "special", "factor", "filters", "padded", "groups"],
)
def test_same_bits(emulated: CudaBackend, order: str, pack: Any, source: Array) -> None:
    made = pack(ORDERS[order])
    found, expected = by_kernel(emulated.device, made, source), made(source)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@needs_compiler
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("transposed", [False, True])
def test_scaled_terms(emulated: CudaBackend, transposed: bool, order: str) -> None:
    rows, scale, arrange = normal(70, 44), normal(1, 44), ORDERS[order]
    pack = MatrixPacking(0.3, transposed=transposed, arrange=arrange)
    source = rows if transposed else np.ascontiguousarray(rows.T)
    expected = arrange(rows * (scale * np.float32(0.3)))
    assert pack(source, scale).tobytes() == expected.tobytes()
    assert by_kernel(emulated.device, pack, source, scale).tobytes() == expected.tobytes()


@needs_compiler
@pytest.mark.parametrize("is_shifted", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_sums_of_scaled_terms(emulated: CudaBackend, transposed: bool, is_shifted: bool) -> None:
    rows, factors = normal(70, 44), [normal(44), normal(44) - 3][: 1 + is_shifted]
    pack = SumPacking(0.5, transposed=transposed)
    source = rows if transposed else np.ascontiguousarray(rows.T)
    expected = np.zeros((2, 70))
    expected[: len(factors)] = [rows.astype(np.float64) @ (each / 2) for each in factors]
    for found in (pack(source, *factors), by_kernel(emulated.device, pack, source, *factors)):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


@needs_compiler
@pytest.mark.parametrize("is_shifted", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("dtype", "factors"), [(np.float16, np.float16), (bfloat16, bfloat16), (np.float16, np.float32)]
)
def test_scaled_terms_of_16_bits(
    emulated: CudaBackend, dtype: DType, factors: DType, transposed: bool, is_shifted: bool
) -> None:
    rows, scale = normal(45, 70) * powers(-6, 6, 45, 1), normal(1, 70) * 1e3
    rows[3], rows[5, 7:] = 0, 0
    rows, scale = rows.astype(dtype), scale.astype(factors)
    shift = [normal(70).astype(factors)][: int(is_shifted)]
    source = rows if transposed else np.ascontiguousarray(rows.T)
    pack, sums = ScaledRows(1.0, transposed), ScaledColumns(1.0, transposed)
    found = by_kernel(emulated.device, pack, source, scale)
    assert (found.dtype, found.shape) == (dtype, (45, 72))
    assert found.tobytes() == pack(source, scale).tobytes()
    columns = by_kernel(emulated.device, sums, source, scale, *shift)
    np.testing.assert_allclose(columns, sums(source, scale, *shift), rtol=1e-6, atol=1e-6)
    wide = rows.astype(float) * scale.astype(float)
    np.testing.assert_allclose(
        found[:, :70].astype(float) * columns[0, :, None].astype(float),
        wide,
        rtol=0,
        atol=2.0 ** (-8 if dtype == bfloat16 else -11) * np.abs(wide).max(),
    )
    expected = rows.astype(float) @ shift[0].astype(float) if shift else np.zeros(45)
    np.testing.assert_allclose(columns[2], expected, rtol=1e-6, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32])
@pytest.mark.parametrize("shape", [(70, 44), (64, 300), (3, 40, 9), (512, 8)], ids=str)
def test_columns_are_transposed(
    emulated: CudaBackend, shape: tuple[int, ...], dtype: DType
) -> None:
    source = normal(*shape).astype(dtype)
    pack = MatrixPacking(1.0, transposed=False, arrange=in_words(source.dtype)[1])
    found, expected = by_kernel(emulated.device, pack, source), pack(source)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


def test_rows_that_need_nothing_are_not_copied() -> None:
    """A linear layer of PyTorch has its rows in memory, behind a Transpose."""
    weights = normal(24, 64).astype(np.float16)
    for source, is_transposed in ((weights.T, False), (weights, True)):
        pack = MatrixPacking(1.0, transposed=is_transposed, arrange=EIGHTS)
        assert np.shares_memory(pack(source), weights)


@needs_compiler
def test_a_device_packs_what_it_has_copied_once(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(FakeCompiler(libraries, FAKE), Gate(), monkeypatch.setattr)
    device: Any = open_backends("cuda", Options())[0].device
    pack, source = MatrixPacking(1.0, transposed=True, arrange=in_halves), normal(44, 70)
    copies = dict[int, Any]()
    views = [device.packed(pack, [source], copies) for _ in range(2)]
    for view in views:
        assert string_at(view.buffer.pointer, view.nbytes) == pack(source).tobytes()
    assert list(copies) == [id(source)]
    assert device.allocated == sum(view.nbytes for view in (*views, *copies.values()))
    assert device.packed(np.negative, [source], {}) is None


@needs_compiler
def test_without_room_for_its_source_the_host_packs(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(FakeCompiler(libraries, FAKE), Gate(), monkeypatch.setattr)
    device: Any = open_backends("cuda", Options())[0].device
    pack, source = MatrixPacking(1.0, transposed=True, arrange=in_halves), normal(44, 70)
    allocate = device.allocate_in

    def short(stream: Any, nbytes: int, *, passing: bool = False) -> Any:
        if not passing:
            raise DeviceOutOfMemory(f"no {nbytes} bytes")
        return allocate(stream, nbytes, passing=passing)

    monkeypatch.setattr(device, "allocate_in", short)
    copies = dict[int, Any]()
    assert device.packed(pack, [source], copies) is None
    assert not copies
    assert device.allocated == 0


def test_what_only_the_host_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pack_rows, "MIN_READ", 65)
        assert MatrixPacking(1.0, transposed=False, arrange=scales_of).launch(normal(8, 8)) is None
    scaled = MatrixPacking(1.0, transposed=False, arrange=in_halves)
    assert scaled.launch(normal(8, 8), normal(1)) is None  # of all terms
    assert scaled.launch(normal(8, 8), normal(16)[::2]) is None
    assert SumPacking(1.0, transposed=False).launch(normal(2, 8, 8), normal(8)) is None
    assert MatrixPacking(1.0, transposed=False, arrange=np.copy).launch(normal(8, 8)) is None
    assert MatrixPacking(1.0, transposed=False, arrange=in_halves).launch(normal(8, 8).T) is None
    assert MatrixPacking(1.0, transposed=False, arrange=EIGHTS).launch(normal(8, 8)) is None
    assert FilterPacking(1, 2, 2, in_halves).launch(normal(8, 2, 1, 1)) is None


def test_compiles(cache: Path) -> None:
    sources = list[KernelSource]()
    for order in ORDERS.values():
        found = MatrixPacking(1.0, transposed=False, arrange=order).launch(normal(8, 8))
        assert found is not None
        sources.append(found.launch.source)
    sums = SumPacking(1.0, transposed=False).launch(normal(8, 8), normal(8))
    assert sums is not None
    sources.append(sums.launch.source)
    for b, scale in product((np.float16, bfloat16), (np.float32, np.float16)):
        scaled = ScaledRows(1.0, transposed=False)
        found = scaled.launch(normal(8, 8).astype(b), normal(8).astype(scale))
        assert found is not None
        sources.append(found.launch.source)
    all_compile(sources, H200, cache, COMPILES)
