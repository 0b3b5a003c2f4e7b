"""Numbers of any size in generated kernels: constants, and attributes of operators."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe.source import literal
from tercet.backends.cuda.recipe.targets import A100, H200
from tercet.runtime.ir.dtypes import float16, float32, float64, uint64
from tercet.runtime.ir.types import Array

from ..ops.cases_recurrent import layer
from .cubins import all_compile
from .dry import DryDevice, planned
from .emulator import needs_compiler
from .expert_samples import SWIGLU, moe
from .samples import Sample, compare, sample
from .test_recurrent import check

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

INF, NAN = float("inf"), float("nan")
LINE = np.array([1, -2, 0, 3e30, -INF], np.float32)


def beside(number: float, dtype: Any = float32) -> Array:
    return np.array(number, dtype)


SAMPLES = [
    *(sample("Min", [LINE, beside(x)], (1,)) for x in (1e19, 3.4028235e38, 1e-45, INF, NAN)),
    sample("Add", [LINE.astype(float64), beside(-1e300, float64)], (1,)),
    sample("Mul", [np.array([1, -2, 0.5], float16), beside(INF, float16)], (1,)),
    sample("Max", [np.array([7, 2**64 - 1], uint64), beside(2**63 + 5, uint64)], (1,)),
    sample("Max", [np.array([7, -9]), beside(-(2**63), np.int64)], (1,)),
    *(sample("LeakyRelu", [LINE], alpha=x) for x in (1e30, INF, -INF)),
    sample("ThresholdedRelu", [LINE], alpha=INF),
    sample("Shrink", [LINE], lambd=1e20, bias=1e25),
]


@pytest.mark.parametrize("number", SAMPLES, ids=str)
def test_kernels_compile(number: Sample, cache: Path) -> None:
    device = DryDevice()
    planned(number.graph, device)
    for target in (A100, H200):
        all_compile(list(device.compiler.sources), target, cache)


@pytest.mark.slow
@needs_compiler
def test_results(emulated: CudaBackend) -> None:
    for number in SAMPLES:
        compare(number, emulated)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("clip", [1e30, 0.5])
def test_recurrent_layers_clip_at_any_number(clip: float, emulated: CudaBackend) -> None:
    check(layer("LSTM", clip=clip), emulated)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("limit", [0.5, 1e30, INF])
def test_experts_are_limited_by_any_number(limit: float, emulated: CudaBackend) -> None:
    compare(moe(3, 16, 12, 4, k=2, swiglu_fusion=1, swiglu_limit=limit, **SWIGLU), emulated)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1, "1"),
        (True, "true"),
        (1e30, "1e+30"),
        (2**63, "9223372036854775808ULL"),
        (-INF, "-INFINITY"),
    ],
)
def test_literals(number: float, text: str) -> None:
    assert literal(number) == text
