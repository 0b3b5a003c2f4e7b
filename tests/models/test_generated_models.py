"""The networks that benchmarks write themselves: valid, right, and with their patterns found."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tercet
from tercet.tools.verdict.float64_reference import Oracle
from tercet.tools.workshop.bench_models import NAMES, bench_inputs, bench_model

#: Without VGG-16, whose half gigabyte of weights only benchmarks are worth.
REWRITES: dict[str, dict[str, int]] = {
    "bert_small": {
        "fuse_activation": 4,
        "fuse_attention": 4,
        "fuse_norm": 9,
        "join_heads": 4,
        "merge_products": 4,
    },
    "mobilenet_v2": {},
    "vit_tiny": {"fuse_activation": 12, "fuse_attention": 12, "join_heads": 12},
}


@pytest.mark.parametrize("name", REWRITES)
def test_generated_model(name: str) -> None:
    proto = bench_model(name)
    onnx.checker.check_model(proto, full_check=True)
    feeds = bench_inputs(proto)
    with tercet.load(proto) as model:
        (found,) = model.run(feeds).values()
        counts = model.rewrites.counts
        oracle = Oracle(model.imported)
    (exact,) = oracle.run(feeds).values()
    oracle.close()
    assert np.linalg.norm(found - exact) <= 5e-6 * np.linalg.norm(exact)
    assert 0.1 < exact.std() < 10
    for each, count in REWRITES[name].items():
        assert counts[each] == count


@pytest.mark.parametrize("name", REWRITES)
def test_onnxruntime_agrees(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    proto = bench_model(name)
    feeds = bench_inputs(proto)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, feeds)
    with tercet.load(proto) as model:
        (found,) = model.run(feeds).values()
    assert np.abs(found - want).max() <= 1e-4 * np.abs(want).max()


def test_weights_follow_the_seed() -> None:
    first, again, other = (
        bench_model("mobilenet_v2", seed).graph.initializer[-1].raw_data for seed in (0, 0, 1)
    )
    assert first == again != other


def test_names() -> None:
    assert list(NAMES) == sorted(NAMES)
    assert set(REWRITES) < set(NAMES)
