"""Attention of many samples with few keys: which it is for, and on the emulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, compiled_files, launches, normal, planned
from .emulator import needs_compiler
from .samples import compare
from .transformer_samples import attention

COMPILES = {"attention/attention_windows.cu"}


@pytest.mark.parametrize(
    ("heads", "lengths", "size", "entry"),
    [
        ((512, 6, 6), (64, 64), 16, "attention_windows"),
        ((512, 6, 6), (49, 49), 32, "attention_windows"),
        ((512, 6, 6), (200, 20), 48, "attention_windows"),
        ((512, 6, 6), (32, 32), 64, "attention_windows"),
        ((1024, 6, 6), (16, 16), 96, "attention_windows"),
        ((1024, 6, 6), (8, 8), 64, "attention_windows"),
        ((1024, 6, 6), (7, 7), 64, "attention_short"),
        ((64, 3, 3), (49, 49), 32, "attention_mma"),  # which are not two for each block
        ((512, 6, 6), (65, 65), 16, "attention_mma"),
        ((512, 6, 6), (64, 64), 56, "attention_mma"),
        ((512, 6, 6), (33, 33), 64, "attention_wgmma"),
        ((1024, 6, 6), (17, 17), 96, "attention_mma"),
    ],
    ids=str,
)
def test_ways(heads: tuple[int, int, int], lengths: tuple[int, int], size: int, entry: str) -> None:
    graph = attention(heads, lengths, (size, size), float16).graph
    (launch,) = launches(planned(graph, DryDevice(compiler=DryCompiler(H200))))
    assert launch.entry == entry


def masks() -> dict[str, Any]:
    hidden = normal(2, 1, 19, 37).astype(float16)
    hidden[:, :, 3, 5:], hidden[:, :, 4] = -np.inf, -np.inf
    return {
        "none": None,
        "of heads": normal(1, 2, 19, 37).astype(float16),
        "of windows": np.concatenate([hidden] * 9),
        "of float32": normal(1, 2, 19, 37) * np.float32(3),
        "flags": normal(19, 37) > 0,
    }


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("mask", masks())
def test_masks(mask: str, dtype: DType, hopper: CudaBackend) -> None:
    found = masks()[mask]
    sample = attention((18, 2, 2), (19, 37), (16, 24), dtype, *([] if found is None else [found]))
    compare(sample, hopper)
    assert compiled_files(hopper) == {"attention/attention_windows.cu"}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("lengths", "size", "attributes"),
    [
        ((64, 64), (10, 10), {}),
        ((33, 16), (12, 7), {"is_causal": 1}),
        ((16, 16), (96, 80), {"is_causal": 1}),
        ((24, 30), (64, 64), {}),
        ((140, 50), (30, 48), {"left_window_size": 20, "right_window_size": 3, "softcap": 2.0}),
    ],
    ids=str,
)
def test_heads_of_any_size(
    lengths: tuple[int, int], size: tuple[int, int], attributes: dict[str, Any], hopper: CudaBackend
) -> None:
    """Grouped heads, whose samples do not divide among blocks."""
    compare(attention((21, 4, 2), lengths, size, float16, **attributes), hopper)
    assert compiled_files(hopper) == {"attention/attention_windows.cu"}


@pytest.mark.parametrize("size", [10, 16, 32])
def test_float32_has_other_kernels(size: int) -> None:
    graph = attention((512, 6, 6), (64, 64), (size, size), float32).graph
    found = launches(planned(graph, DryDevice(compiler=DryCompiler(H200))))
    assert "attention_windows" not in {launch.entry for launch in found}


@pytest.mark.slow
@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=DryCompiler(replace(target, processors=2)))
    made: list[Launch] = []
    for mask, size in ((None, 10), ("of heads", 16), ("of float32", 32), ("flags", 24)):
        more = [] if mask is None else [masks()[mask]]
        graph = attention((18, 2, 2), (19, 37), (size, size), float16, *more).graph
        made += launches(planned(graph, device))
    all_compile([launch.source for launch in made], target, cache, COMPILES)
    assert_arguments(made, target, cache)
