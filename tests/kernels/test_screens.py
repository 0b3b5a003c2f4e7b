"""Looking for infinities and NaN on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.codegen.screens import find_not_finite
from tercet.backends.cuda.driver.memory import pointer
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.types import TensorType
from tercet.runtime.plan.backend import View
from tercet.runtime.plan.host import HOST, HostBuffer

from .cubins import all_compile
from .emulator import emulated as bind
from .emulator import needs_compiler

DTYPES = (float16, bfloat16, float32)
COMPILES = {"reduce/not_finite.cu"}


def view_of(dtype: DType, count: int) -> View:
    return View(HOST, HostBuffer(count * dtype.itemsize), 0, TensorType(dtype, (count,)))


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_the_kernel_compiles(target: Target, cache: Path) -> None:
    found = [find_not_finite(view_of(dtype, 1 << 22)) for dtype in DTYPES]
    all_compile([launch.source for launch in found if launch], target, cache, COMPILES)


def test_other_dtypes_are_left_to_the_host() -> None:
    assert find_not_finite(view_of(float64, 8)) is None


@needs_compiler
@pytest.mark.parametrize("count", [1, 7, 4096, 100_003])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_one_infinity_or_nan_is_found_wherever_it_is(
    dtype: DType, count: int, emulated: CudaBackend
) -> None:
    device: Any = emulated.device
    random = np.random.default_rng(count)
    largest = np.finfo(dtype).max if dtype != bfloat16 else 3.3e38
    data = random.standard_normal(count).astype(dtype)
    data[:: max(1, count // 7)] = largest
    for place in (None, 0, count // 2, count - 1):
        for wrong in (np.inf, -np.inf, np.nan):
            given = data.copy()
            if place is not None:
                given[place] = wrong
            view, found = device.upload(given), np.zeros(1, np.uint32)
            launch = find_not_finite(view)
            assert launch is not None
            code = device.compiler.submit(launch.source)
            bind(device, launch, code, {"found": found.ctypes.data, "x": pointer(view)})(None)
            assert found[0] == (place is not None)
