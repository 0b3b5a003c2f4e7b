"""Rotations and caches in front of an attention: one kernel, where they are what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.attention import Attention, RotaryEmbedding
from tercet.runtime.ops.gather import TensorScatter
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare

COMPILES = {"attention/rotate_append.cu"}


def step(
    new: int = 1,
    *,
    size: int = 16,
    rotated: int = 0,
    interleaved: int = 0,
    mode: str = "linear",
    first: tuple[int, ...] = (3, 0),
    dtype: Any = float16,
    kept: bool = False,
    other_mode: str = "",
) -> Sample:
    """Return a step of 4 heads over caches of 2 with 12 places.

    `kept` lets another node read the rotated keys; `other_mode` is that of the values.
    """
    graph, feeds = Graph("step"), dict[str, Any]()

    def given(name: str, data: Any) -> Value:
        feeds[name] = data
        return graph.add_input(name, TensorType(data.dtype, data.shape))

    q = given("q", normal(2, 4, new, size).astype(dtype))
    k, v = (given(name, normal(2, 2, new, size).astype(dtype)) for name in "kv")
    pasts = [given(name, normal(2, 2, 12, size).astype(dtype)) for name in ("keys", "values")]
    angles = normal(20, (rotated or size) // 2)
    tables = [graph.constant(f(angles).astype(dtype)) for f in (np.cos, np.sin)]
    start = np.array(first)
    index = given("first", start)
    places = given("places", start[:, None] % 12 + np.arange(new))
    rotation = RotaryEmbedding(rotary_embedding_dim=rotated, interleaved=interleaved)
    both = [graph.insert(rotation, [x, *tables, places]).output for x in (q, k)]
    keys = graph.insert(TensorScatter(mode=mode), [pasts[0], both[1], index]).output
    other = TensorScatter(mode=other_mode or mode)
    values = graph.insert(other, [pasts[1], v, index]).output
    y = graph.insert(Attention(), [both[0], keys, values]).output
    outputs = {"y": y, "present_keys": keys, "present_values": values}
    graph.set_outputs(outputs | ({"rotated": both[1]} if kept else {}))
    infer(graph)
    return Sample(graph, feeds)


SAMPLES = {
    "one": step(),
    "float32": step(3, dtype=float32),
    "bfloat16": step(2, dtype=bfloat16, first=(9, 4)),
    "part of a head": step(2, rotated=8),
    "interleaved": step(1, interleaved=1),
    "interleaved part": step(2, interleaved=1, rotated=12, size=20),
    "circular": step(4, mode="circular", first=(10, 1)),
    "from the end": step(4, first=(8, -5)),
}
APART = {"keys are read": step(kept=True), "other mode": step(other_mode="circular")}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_four_nodes_are_one_kernel(sample: Sample) -> None:
    found = entries_of(sample.graph)
    assert found.count("rotate_append") == 1
    assert not {"rotate", "tensor_scatter"} & set(found)


@pytest.mark.parametrize("sample", APART.values(), ids=APART)
def test_others_stay_apart(sample: Sample) -> None:
    found = entries_of(sample.graph)
    assert found.count("rotate") == 2
    assert found.count("tensor_scatter") == 2


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=DryCompiler(target))
    found = [one for each in SAMPLES.values() for one in launches(planned(each.graph, device))]
    found = [launch for launch in found if launch.file in COMPILES]
    all_compile([launch.source for launch in found], target, cache, COMPILES)
    assert_arguments(found, target, cache)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sample", [*SAMPLES.values(), *APART.values()], ids=[*SAMPLES, *APART])
def test_results(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sample", [step(2), step(2, kept=True)], ids=["one kernel", "apart"])
def test_positions_without_angles_reach_for_no_memory(
    sample: Sample, emulated: CudaBackend
) -> None:
    """As indices of Gather: places outside count as zeros, and are not looked for."""
    found = dict(sample.feeds)
    found["places"] = np.array([[2**40, 3], [-(2**31), 19]])
    with Model(sample.graph.clone(), [emulated], OPTIONS, evaluate) as model:
        results = model.run(found)
    keys = np.asarray(results["present_keys"])
    np.testing.assert_array_equal(keys[0, :, 3], 0)
    np.testing.assert_array_equal(keys[1, :, 0], 0)
    assert keys[0, :, 4].any()
    assert keys[1, :, 1].any()
