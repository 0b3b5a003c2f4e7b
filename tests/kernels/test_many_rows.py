"""Updates of many slices, and the greatest of many short lines: the kernels, and their results."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target

from .cubins import assert_plans_compile
from .dry import launches, planned
from .emulator import needs_compiler
from .index_samples import samples
from .samples import Sample, compare

COMPILES = {"move/scatter_slices.cu", "reduce/topk_lines.cu"}


@pytest.mark.parametrize("sample", samples(), ids=str)
def test_kernels(sample: Sample) -> None:
    assert launches(planned(sample.graph))[-1].file in COMPILES


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    assert_plans_compile([sample.graph for sample in samples()], target, cache, COMPILES)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sample", samples(), ids=str)
def test_results(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated)
