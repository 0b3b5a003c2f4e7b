"""Normalizations and softmax of few, long rows: who computes one, and how exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import OPERATORS
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, launches, planned
from .emulator import needs_compiler
from .norm_samples import far, samples
from .samples import OPTIONS, Sample, compare


def node(kind: str, shape: tuple[int, ...], dtype: DType = float32, **how: Any) -> Graph:
    """Return a normalization of a tensor of this shape, without elements."""
    own = (shape[-1:],) if kind in ("LayerNormalization", "RMSNormalization") else (shape[1:2],)
    shapes = (shape, *own * {"Softmax": 0, "RMSNormalization": 1}.get(kind, 2))
    graph = Graph(kind)
    inputs = [graph.add_input(f"x{i}", TensorType(dtype, s)) for i, s in enumerate(shapes)]
    graph.set_outputs({"y": graph.insert(OPERATORS["", kind](**how), inputs).output})
    infer(graph)
    return graph


def recipe(graph: Graph, target: Target = H200) -> list[Launch]:
    return launches(planned(graph, DryDevice(compiler=DryCompiler(target=target))))


# ── recipes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
@pytest.mark.parametrize(
    ("graph", "entries"),
    [
        (node("LayerNormalization", (256, 16384)), ["normalize_rows"]),
        (node("LayerNormalization", (1024, 32768)), ["standardize"]),
        (node("LayerNormalization", (32, 131072)), ["moments", "standardize"]),
        (node("RMSNormalization", (1, 1 << 20), float16), ["moments", "standardize"]),
        (node("InstanceNormalization", (8, 64, 256, 256)), ["standardize"]),
        (node("InstanceNormalization", (1, 32, 512, 512)), ["moments", "standardize"]),
        (node("InstanceNormalization", (8, 4, 64, 64)), ["standardize"]),
        (node("GroupNormalization", (2, 320, 64, 64), num_groups=32), ["moments", "standardize"]),
        (node("Softmax", (1024, 50257)), ["softmax_rows"]),
        (node("Softmax", (32, 50257)), ["peaks", "softmax_rows"]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else str(value.nodes[0].op),
)
def test_few_long_groups_are_shared(graph: Graph, entries: list[str], target: Target) -> None:
    found = recipe(graph, target)
    assert [launch.entry for launch in found] == entries
    if len(found) == 2:
        first, last = found
        assert first.grid == last.grid
        assert target.processors / 2 < first.grid[0] < 6 * target.processors
        assert last.scratch == {"moments": 12, "peaks": 8}[first.entry] * last.grid[0]


@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=lambda dtype: dtype.name)
def test_words_of_sixteen_bytes(dtype: DType) -> None:
    """Wherever neighbours lie together and have the same scale, or scales that lie together."""
    maximum = 16 // dtype.itemsize
    for graph, vector in (
        (node("LayerNormalization", (2, 1 << 17), dtype), maximum),
        (node("LayerNormalization", (2, (1 << 17) + 1), dtype), 1),
        (node("InstanceNormalization", (1, 3, 512, 512), dtype), maximum),
        (node("GroupNormalization", (1, 8, 512, 256), dtype, num_groups=2), maximum),
        (node("GroupNormalization", (1, 8, 511, 257), dtype, num_groups=2), 1),
    ):
        for launch in recipe(graph):
            constants = dict(launch.constants)
            assert constants["VECTOR"] == vector
            assert constants["VECTOR"] * constants["BATCH"] * dtype.itemsize <= 64


# ── on the host ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sample", samples(), ids=str)
def test_kernels(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated)


def results(sample: Sample, *backends: Any) -> list[Array]:
    with Model(sample.graph.clone(), backends, OPTIONS, evaluate) as model:
        return [np.asarray(a) for a in model.run(sample.feeds).values()]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("count", [5000, 20011, 40000])
def test_a_mean_far_from_zero(count: int, emulated: CudaBackend) -> None:
    """Sums of squares would have no digit left of it."""
    sample = far(count)
    *_, got = results(sample, emulated)
    want = 1 / np.sqrt(sample.feeds["x0"].astype(float64).var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, want, rtol=1e-5)


# ── compiling ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(("first", "target"), [(0, A100), (2, H200)], ids=["sm_80", "sm_90a"])
def test_kernels_compile(first: int, target: Target, cache: Path) -> None:
    """Every fourth, and others for the other target: all of them would take long."""
    device = DryDevice(compiler=DryCompiler(target=target))
    for sample in samples():
        planned(sample.graph, device)
    all_compile(list(device.compiler.sources)[first::4], target, cache)


def test_arguments_are_what_the_kernels_take(cache: Path) -> None:
    assert_arguments(recipe(node("LayerNormalization", (1, 1 << 20))), H200, cache)
