"""Movements by chunks and words: transposes of matrices with a short side, pads of whole rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, float16, float32, float64, int8

from .cubins import all_compile
from .dry import DryCompiler, DryDevice, launches, planned
from .emulator import needs_compiler
from .samples import Sample, compare, sample

COMPILES = {"move/transpose_few.cu"}
SHAPES = [(2, 4, 640), (2, 640, 4), (3, 7, 650), (3, 650, 7), (131, 9), (2, 16, 129), (1, 201, 16)]
SHORT = [*SHAPES[:4], *SHAPES[5:]]


def swapped(shape: tuple[int, ...], dtype: DType) -> Sample:
    data = np.random.default_rng(0).integers(-99, 99, shape).astype(dtype)
    axes = len(shape)
    return sample("Transpose", [data], perm=(*range(axes - 2), axes - 1, axes - 2))


PADS = {
    "rows of words": ((2, 3, 5, 24), (0, 0, 1, 0, 0, 0, 2, 0), {}),
    "cropped as well": ((2, 3, 9, 16), (0, 1, -4, 0, 0, 0, 2, 0), {}),
    "edges": ((2, 3, 5, 8), (0, 1, 2, 0, 0, 0, 1, 0), {"mode": "edge"}),
    "last axis": ((2, 3, 5, 8), (0, 0, 1, 2, 0, 0, 0, 1), {}),
    "odd rows": ((2, 3, 5, 7), (0, 0, 1, 0, 0, 0, 2, 0), {}),
    "a number": ((2, 3, 5, 8), (0, 0, 1, 0, 0, 0, 2, 0), {"value": 3}),
}


def padded(name: str, dtype: DType) -> Sample:
    shape, pads, how = PADS[name]
    x = np.random.default_rng(0).integers(-99, 99, shape).astype(dtype)
    value = np.array(how.get("value", 0), dtype)
    inputs = [x, np.array(pads), value]
    return sample("Pad", inputs, (1, 2), mode=how.get("mode", "constant"))


def samples() -> list[Sample]:
    """Return what the kernels tell apart, for the GPU."""
    dtypes = (int8, float16, float32, float64)
    transposed = [swapped(shape, dtype) for shape in SHAPES for dtype in dtypes]
    return [*transposed, *(padded(name, dtype) for name in PADS for dtype in dtypes)]


@pytest.mark.parametrize("shape", SHORT, ids=str)
def test_a_short_side_is_a_chunk(shape: tuple[int, ...]) -> None:
    (launch,) = launches(planned(swapped(shape, float16).graph))
    assert launch.entry == "transpose_few"


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_transposes_compile(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=DryCompiler(target))
    for dtype in (int8, float16, float32, float64):
        planned(swapped(SHAPES[0], dtype).graph, device)
    all_compile(device.compiler.sources, target, cache, COMPILES)


@pytest.mark.parametrize("shape", [(2, 17, 640), (2, 16, 64)], ids=str)
def test_others_pass_through_tiles(shape: tuple[int, ...]) -> None:
    (launch,) = launches(planned(swapped(shape, float16).graph))
    assert launch.entry == "transpose"


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [int8, float16, float32, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results(shape: tuple[int, ...], dtype: DType, emulated: CudaBackend) -> None:
    compare(swapped(shape, dtype), emulated)


@pytest.mark.parametrize(
    ("name", "dtype", "size"),
    [
        ("rows of words", float16, 8),
        ("edges", float16, 8),
        ("last axis", float16, 2),
        ("odd rows", float16, 2),
        ("a number", float16, 2),
        ("odd rows", float32, 4),
    ],
)
def test_threads_pad_whole_words(name: str, dtype: DType, size: int) -> None:
    (launch,) = launches(planned(padded(name, dtype).graph))
    assert dict(launch.types)["T"].itemsize == size


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [int8, float16, float32, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("name", PADS)
def test_pads(name: str, dtype: DType, emulated: CudaBackend) -> None:
    compare(padded(name, dtype), emulated)
