"""Mixtures of experts: their kernels compile, compute what numpy does, and read chosen experts."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target

from .cubins import assert_plans_compile
from .emulator import needs_compiler
from .expert_samples import samples
from .samples import Sample, compare

COMPILES = {
    "gemm/add_experts.cu",
    "gemm/experts_floats.cu",
    "gemm/experts_floats_sum.cu",
    "gemm/experts_mixed.cu",
    "gemm/experts_packed.cu",
    "gemm/experts_packed_sum.cu",
    "gemm/route_experts.cu",
}


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    assert_plans_compile([each.graph for each in samples()], target, cache, COMPILES)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sample", samples(), ids=str)
def test_kernels(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated)
