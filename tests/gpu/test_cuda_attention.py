"""Attention and whole transformers on the GPU: against numpy, float64, and themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends import open_backends
from tercet.backends.cuda.attention import flash, flash_mma
from tercet.backends.cuda.attention.flash_short import MAX_KEYS
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Precision
from tercet.runtime.session.model import Model
from tercet.tools.verdict.float64_reference import Oracle
from tercet.tools.workshop.bench_models import bench_inputs, bench_model

from ..kernels import test_joined_attention
from ..kernels.channel_samples import SIZES as CHANNELS
from ..kernels.channel_samples import Block
from ..kernels.dry import normal
from ..kernels.samples import ERROR, OPTIONS, Sample, compare
from ..kernels.test_flash_short import kinds
from ..kernels.test_joined_attention import Joined
from ..kernels.test_weighted import CASES as WEIGHED
from ..kernels.test_weighted import HALF, Case
from ..kernels.transformer_samples import SHARED_KEYS, few_blocks, samples
from .test_cuda_operators import run

pytestmark = pytest.mark.gpu

#: Relative L2 error; 16-bit weights are rounded before they are multiplied with the values.
BOUNDS: dict[DType, float] = {float32: 2e-6, float16: 1e-3, bfloat16: 8e-3}
#: (batch, heads, heads of the keys), (queries, keys), (sizes of keys and values).
SIZES = [
    ((1, 12, 12), (197, 197), (64, 64)),
    ((5, 12, 4), (200, 200), (64, 64)),
    ((16, 12, 12), (128, 128), (64, 64)),
    ((2, 8, 2), (300, 300), (128, 128)),
    ((1, 8, 8), (1500, 1500), (64, 64)),
    ((1, 4, 4), (1, 1000), (96, 96)),
    ((2, 3, 3), (129, 65), (80, 33)),
    ((1, 32, 8), (1, 4096), (128, 128)),
    ((2, 8, 1), (16, 4097), (256, 256)),
    ((1, 2, 2), (64, 5000), (64, 64)),
    ((784, 12, 12), (8, 8), (64, 64)),
    ((1, 8, 8), (4096, 15), (80, 80)),
    ((1, 12, 12), (128, 128), (32, 32)),
    ((2, 6, 3), (197, 257), (40, 56)),
    ((1024, 8, 8), (16, 16), (96, 96)),
    ((1024, 8, 8), (24, 32), (64, 64)),
]


@pytest.mark.parametrize("sample", samples(), ids=str)
def test_kernels(sample: Sample) -> None:
    compare(sample, *open_backends("cuda", OPTIONS))


@pytest.mark.parametrize(
    "case",
    [*test_joined_attention.CASES.values(), Joined(600, 2048, (16, 8), 128)],
    ids=str,
)
def test_heads_that_become_rows(case: Joined) -> None:
    test_joined_attention.check(case, *open_backends("cuda", OPTIONS))


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("kind", tuple(kinds(float32)))
def test_few_keys(kind: str, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their scores are in registers; see attention_short.cu."""
    monkeypatch.setattr(flash, "FEW_KEYS", MAX_KEYS)
    compare(kinds(dtype)[kind], *open_backends("cuda", OPTIONS))


def operands(size: tuple[Any, ...], dtype: DType) -> list[Array]:
    (batch, of_q, of_k), (rows, total), (size_k, size_v) = size
    shapes = (
        (batch, of_q, rows, size_k),
        (batch, of_k, total, size_k),
        (batch, of_k, total, size_v),
    )
    return [normal(*shape).astype(dtype) for shape in shapes]


def check(size: tuple[Any, ...], dtype: DType, **attributes: Any) -> None:
    narrow = operands(size, dtype)
    (got,) = run("cuda", "Attention", narrow, (), **attributes)
    (again,) = run("cuda", "Attention", narrow, (), **attributes)
    (want,) = run("numpy", "Attention", [x.astype(float64) for x in narrow], (), **attributes)
    np.testing.assert_array_equal(got.astype(float32), again.astype(float32))
    error = np.linalg.norm(got.astype(float64) - want)
    assert error <= BOUNDS[dtype] * np.linalg.norm(want)


@pytest.mark.parametrize("dtype", BOUNDS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(size: tuple[Any, ...], dtype: DType) -> None:
    check(size, dtype)
    check(size, dtype, is_causal=1)


@pytest.mark.parametrize("shape", [shape for shape, _ in flash_mma.SHAPES], ids=str)
def test_every_shape(shape: flash_mma.WarpShape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "on_hopper", lambda *_: None)
    monkeypatch.setattr(flash_mma, "_shape", lambda *_: shape)
    check(((2, 4, 2), (150, 333), (64, 64)), float16)


@pytest.mark.parametrize("dtype", BOUNDS, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("lengths", "attributes"),
    [
        ((70, 70), {}),
        ((64, 208), {"scale": -0.1}),
        ((65, 300), {"softcap": 5.0}),
        ((300, 300), {"is_causal": 1}),
        ((200, 310), {}),
        ((190, 1100), {"is_causal": 1}),
    ],
)
@pytest.mark.parametrize("heads", [(64, 64), (128, 128), (72, 96)], ids=str)
def test_groups_of_warps(
    heads: tuple[int, int], lengths: tuple[int, int], attributes: dict[str, Any], dtype: DType
) -> None:
    size = ((11, 12, 4), lengths, heads)  # enough for every multiprocessor
    narrow = operands(size, dtype)
    masks: list[Array | None] = [None]
    if not attributes:
        of_keys = (11, 1, 1, lengths[1])
        masks += [normal(*of_keys).astype(dtype), normal(*of_keys) > -0.5]
        masks += [normal(1, 1, *lengths).astype(dtype)]
    for mask in masks:
        given = narrow if mask is None else [*narrow, mask]
        (got,) = run("cuda", "Attention", given, (), **attributes)
        wide = [x if x.dtype == bool else x.astype(float64) for x in given]
        (want,) = run("numpy", "Attention", wide, (), **attributes)
        error = np.linalg.norm(got.astype(float64) - want)
        assert error <= BOUNDS[dtype] * np.linalg.norm(want)


@pytest.mark.parametrize(("lengths", "mask", "attributes"), SHARED_KEYS, ids=str)
def test_warpgroups_share_keys(
    lengths: tuple[int, int], mask: tuple[int, ...] | None, attributes: dict[str, Any]
) -> None:
    compare(few_blocks(lengths, mask, attributes), *open_backends("cuda", OPTIONS))


@pytest.mark.parametrize("height", flash.HEIGHTS)
def test_every_height(height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "HEIGHTS", {height: 1.0})
    check(((2, 4, 2), (150, 333), (64, 64)), float32)


@pytest.mark.parametrize("block", CHANNELS, ids=str)
def test_attention_of_channels(block: Block) -> None:
    with Model(block.graph(), open_backends("cuda", OPTIONS), OPTIONS, evaluate) as model:
        (y,) = model.run({"x": block.x}).values()
        assert "attention_channels" in str(model.placement())
    exact = block.exact()
    limit = ERROR[block.dtype] * np.abs(exact).max()
    np.testing.assert_allclose(np.asarray(y, float64), exact, rtol=0, atol=limit)


@pytest.mark.parametrize("case", WEIGHED, ids=str)
def test_attention_without_a_softmax(case: Case) -> None:
    compare(case.sample(), *open_backends("cuda", HALF), options=HALF, error=case.error)


#: What rounding leaves of a network's result, as relative L2 error.
MODELS: dict[Precision, float] = {"float32": 5e-6, "float16": 5e-3, "bfloat16": 4e-2}


@pytest.mark.parametrize("precision", MODELS)
@pytest.mark.parametrize("name", ["bert_small", "vit_tiny"])
def test_transformers(name: str, precision: Precision) -> None:
    proto = bench_model(name)
    feeds = bench_inputs(proto)
    with tercet.load(proto, backend="cuda", precision=precision) as model:
        (got,) = model.run(feeds).values()
        oracle = Oracle(model.imported)
    (exact,) = oracle.run(feeds).values()
    oracle.close()
    assert np.linalg.norm(got - exact) <= MODELS[precision] * np.linalg.norm(exact)
