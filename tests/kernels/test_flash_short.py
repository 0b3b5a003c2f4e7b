"""Attention with few keys, whose scores are in registers: which it is for, and on the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.attention import flash
from tercet.backends.cuda.attention.flash_short import MAX_KEYS
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, compiled_files, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare, sample
from .transformer_samples import attention

COMPILES = {"attention/attention_short.cu"}


def entry_of(found: Sample, target: Target = H200) -> str:
    (launch,) = launches(planned(found.graph, DryDevice(compiler=DryCompiler(target))))
    return launch.entry


@pytest.mark.parametrize(
    ("lengths", "size", "dtype", "entry"),
    [
        ((8, 8), 64, float16, "attention_short"),
        ((500, 15), 256, bfloat16, "attention_short"),
        ((500, 8), 64, float32, "attention_short"),
        ((500, 15), 256, float32, "attention_short"),  # which no other kernel has
        ((16, 9), 64, float32, "attention_tiles"),
        ((8, 16), 64, float16, "attention_mma"),  # which fill tensor cores
        ((17, 16), 64, float32, "attention_f16x3"),
        ((8, 15), 520, float16, "attention"),
        ((8, 15), 129, float16, "attention"),  # single elements of long heads
    ],
    ids=str,
)
def test_ways(lengths: tuple[int, int], size: int, dtype: DType, entry: str) -> None:
    assert entry_of(attention((4, 2, 2), lengths, (size, size), dtype)) == entry


def kinds(dtype: DType) -> dict[str, Sample]:
    """Return attentions with every kind of mask, cache and size of heads."""
    hidden = normal(2, 3, 4, 9).astype(dtype)
    hidden[1, :, 2] = -np.inf
    past = [normal(1, 2, 5, 8).astype(dtype), normal(1, 2, 5, 12).astype(dtype)]
    rows = [normal(2, n, width).astype(dtype) for n, width in ((5, 32), (9, 16), (9, 16))]
    return {
        "one key": attention((1, 2, 2), (70, 1), (64, 64), dtype),
        "frames": attention((5, 3, 3), (8, 8), (64, 64), dtype),
        "heads of odd sizes": attention((2, 2, 2), (3, 15), (37, 5), dtype),
        "values that are longer": attention((2, 2, 2), (9, 7), (16, 200), dtype),
        "grouped": attention((2, 6, 2), (17, 12), (40, 24), dtype, is_causal=1),
        "rows": sample("Attention", rows, q_num_heads=4, kv_num_heads=2),
        "rows that see nothing": attention((2, 3, 3), (4, 9), (16, 16), dtype, hidden),
        "flags of some keys": attention((1, 2, 2), (9, 11), (32, 32), dtype, normal(9, 7) > 0),
        "capped": attention((1, 2, 2), (9, 11), (32, 32), dtype, normal(1, 1, 11), softcap=2.0),
        "window": attention(
            (1, 2, 2), (12, 12), (8, 8), dtype, left_window_size=2, right_window_size=3
        ),
        "past": attention((1, 4, 2), (3, 4), (8, 12), dtype, None, *past, outputs=3, is_causal=1),
        "lengths": attention(
            (2, 2, 2), (3, 9), (16, 16), dtype, None, None, None, np.array([9, 4]), is_causal=1
        ),
    }


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("kind", tuple(kinds(float32)))
def test_like_numpy(
    kind: str, dtype: DType, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash, "FEW_KEYS", MAX_KEYS)
    compare(kinds(dtype)[kind], hopper)
    assert "attention/attention_short.cu" in compiled_files(hopper)


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
def test_infinite_and_undefined_scores(dtype: DType, hopper: CudaBackend) -> None:
    found = attention((1, 2, 2), (6, 9), (16, 16), dtype)
    feeds: dict[str, Any] = {name: array.copy() for name, array in found.feeds.items()}
    feeds["x0"][0, 0, 2, 3], feeds["x1"][0, 1, 4, 5] = np.nan, -np.inf
    compare(Sample(found.graph, feeds), hopper)


@pytest.mark.slow
@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    device, made = DryDevice(compiler=DryCompiler(target)), list[Launch]()
    for dtype in (float16, bfloat16, float32):
        for found in kinds(dtype).values():
            made += launches(planned(found.graph, device))
    made = [launch for launch in made if launch.entry == "attention_short"]
    all_compile([launch.source for launch in made], target, cache, COMPILES)
    assert_arguments(made, target, cache)
