"""Attention of few queries: which blocks read which keys, without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.session.model import Model

from . import transformer_samples
from .dry import DryCompiler, DryDevice, launches, normal, planned, single
from .emulator import needs_compiler
from .samples import OPTIONS, compare, sample

DTYPES = (float16, float32)


def planned_for(
    target: Target,
    heads: tuple[int, int, int],
    lengths: tuple[int, int],
    size: int,
    dtype: DType,
    **attributes: Any,
) -> list[Launch]:
    """Return what an Attention of (batch, heads, heads of the keys) launches on a GPU."""
    batch, of_q, of_k = heads
    q = np.zeros((batch, of_q, lengths[0], size), dtype)
    k = np.zeros((batch, of_k, lengths[1], size), dtype)
    device = DryDevice(compiler=DryCompiler(target=target))
    return launches(planned(single("Attention", [q, k, k], **attributes), device))


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("heads", "lengths", "size"),
    [
        ((1, 32, 8), (1, 4096), 128),
        ((8, 32, 8), (1, 4096), 128),
        ((1, 32, 32), (1, 16384), 128),
        ((1, 16, 1), (2, 16384), 64),
        ((4, 64, 8), (1, 2048), 256),
    ],
    ids=str,
)
def test_keys_are_read_once_by_a_full_gpu(
    heads: tuple[int, int, int], lengths: tuple[int, int], size: int, dtype: DType, target: Target
) -> None:
    batch, of_q, of_k = heads
    work, *merges = planned_for(target, heads, lengths, size, dtype)
    blocks, parts, _ = work.grid
    assert blocks == batch * of_k
    assert dict(work.constants)["GROUP"] == of_q // of_k
    assert blocks * parts >= 0.85 * target.processors
    assert work.shared <= target.shared
    if work.cluster == (1, parts, 1):
        assert not merges
        assert dict(work.constants)["CLUSTER"] == parts
        assert target.has_clusters
        return
    (merge,) = merges
    assert merge.entry == "attention_merge"
    assert merge.grid[0] == batch * of_q * lengths[0]
    assert work.scratch == merge.scratch == merge.grid[0] * parts * (size + 2) * 4


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_parts_of_a_short_cache_meet_in_a_cluster(target: Target) -> None:
    found = planned_for(target, (1, 32, 8), (1, 1024), 64, float16)
    assert found[0].cluster == (1, 8 if target.has_clusters else 1, 1)
    assert len(found) == (1 if target.has_clusters else 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("heads", "lengths", "attributes"),
    [
        ((1, 8, 8), (1, 100), {}),  # short
        ((32, 32, 8), (1, 500), {}),  # many blocks
        ((1, 8, 8), (16, 9000), {"left_window_size": 30, "is_causal": 1}),  # few keys are seen
        ((1, 12, 12), (197, 197), {}),
        ((1, 16, 16), (4096, 4096), {}),
    ],
    ids=str,
)
def test_where_parts_do_not_pay(
    heads: tuple[int, int, int], lengths: tuple[int, int], attributes: Any, dtype: DType
) -> None:
    *_, work = planned_for(H200, heads, lengths, 64, dtype, **attributes)  # keys may be cut before
    assert work.grid[1] == 1


@pytest.mark.parametrize("queries", [17, 64])
def test_more_queries_leave_heads_apart(queries: int) -> None:
    work, _ = planned_for(H200, (1, 8, 2), (queries, 5000), 128, float16)
    assert dict(work.constants)["GROUP"] == 1
    assert work.grid[0] * work.grid[1] <= 2 * H200.processors


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_results_are_the_same_every_time(dtype: DType, emulated: CudaBackend) -> None:
    sample = next(transformer_samples.few_queries(dtype))
    with Model(sample.graph.clone(), [emulated], OPTIONS, evaluate) as model:
        (first,), (second,) = (model.run(sample.feeds).values() for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("queries", "lengths", "attributes"),
    [
        (1, (513, 1), {}),
        (3, (3, 640), {"left_window_size": 400}),
        (1, (200, 640), {"softcap": 3.0}),
    ],
    ids=str,
)
def test_parts_that_meet_in_a_cluster(
    queries: int,
    lengths: tuple[int, int],
    attributes: Any,
    dtype: DType,
    emulated: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler: Any = emulated.device.compiler
    monkeypatch.setattr(compiler, "target", Target("sm_90", 132, 232448))
    q = normal(2, 4, queries, 40).astype(dtype)
    k, v = (normal(2, 2, 640, size).astype(dtype) for size in (40, 56))
    inputs = [q, k, v, None, None, None, np.array(lengths)]
    given = sample("Attention", inputs, is_causal=1, **attributes)
    compare(given, emulated)
    (launch,) = launches(planned(given.graph))
    assert launch.cluster[1] > 1
