"""Updates of many slices, many rows joined, and the greatest of many short lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.ops import movement
from tercet.backends.cuda.recipe.targets import A100, H200, Target

from .cubins import assert_plans_compile
from .dry import launches, normal, planned, single
from .emulator import needs_compiler
from .index_samples import samples
from .samples import Sample, compare

COMPILES = {"move/scatter_slices.cu", "reduce/sort_lines.cu", "reduce/topk_lines.cu"}


@pytest.mark.parametrize("sample", samples(), ids=str)
def test_kernels(sample: Sample) -> None:
    assert launches(planned(sample.graph))[-1].file in COMPILES


@pytest.mark.parametrize(
    ("size", "k", "entry"),
    [
        *((20, 20, "sort_lines"), (64, 64, "sort_lines"), (128, 128, "sort_lines")),
        *((64, 4, "top_k_lines"), (128, 20, "top_k_lines"), (129, 64, "top_k_lines")),
        *((1024, 20, "top_k_lines"), (8400, 300, "top_k_lines"), (16384, 1000, "top_k_lines")),
        *((512, 500, "top_k_lines"), (1200, 600, "top_k_lines")),
    ],
)
def test_a_line_is_sorted_if_much_of_it_is_wanted(size: int, k: int, entry: str) -> None:
    (launch,) = launches(planned(single("TopK", [normal(3, size), np.array([k])], (1,), 2)))
    assert launch.entry == entry


def test_tiles_are_merged_if_most_of_many_elements_are_wanted() -> None:
    found = launches(planned(single("TopK", [normal(3, 2000), np.array([1500])], (1,), 2)))
    assert {launch.file for launch in found} == {"reduce/topk_merge.cu"}


@pytest.mark.parametrize(("rows", "count"), [(200, 1), (4000, 2)])
def test_a_large_tensor_is_copied_before(rows: int, count: int) -> None:
    updates = [np.arange(99)[:, None], normal(99, 64)]
    found = launches(planned(single("ScatterND", [normal(rows, 64), *updates])))
    assert len(found) == count


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    assert_plans_compile([sample.graph for sample in samples()], target, cache, COMPILES)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sample", samples(), ids=str)
def test_results(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated)


@needs_compiler
@pytest.mark.parametrize("filling", [1, 4, 1 << 10])
def test_joined_rows_of_odd_widths(
    filling: int, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread copies several words where there are many blocks, and each word once."""
    monkeypatch.setattr(movement, "FILLING", filling)
    inputs = [normal(130, width).astype(np.float16) for width in (1, 16, 40)]
    graph = single("Concat", inputs, axis=1)
    (launch,) = launches(planned(graph))
    assert dict(launch.constants)["ITEMS"] == {1: 8, 4: 4, 1 << 10: 1}[filling]
    compare(Sample(graph, {f"x{i}": x for i, x in enumerate(inputs)}), emulated)
