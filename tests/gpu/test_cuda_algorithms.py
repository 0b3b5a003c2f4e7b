"""Every algorithm to convolve, on the GPU against float64; and the tuner on real clocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.algorithms.registry import Setting
from tercet.backends.cuda.device import open_device
from tercet.backends.cuda.tuning.tuner import works_of
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..kernels.algorithm_cases import Case, error, limit, pairs
from ..kernels.dry import normal, single

pytestmark = pytest.mark.gpu

#: Layers of real networks, each with every algorithm that it has.
LAYERS = (
    Case((1, 64, 56, 56), (64, 64, 3, 3), (), {"pads": (1,) * 4}),
    Case((2, 256, 28, 28), (256, 256, 3, 3), (), {"pads": (1,) * 4}),
    Case((1, 512, 14, 14), (512, 512, 3, 3), (), {"pads": (1,) * 4}),
    Case((1, 3, 224, 224), (64, 3, 7, 7), (), {"pads": (3,) * 4, "strides": (2, 2)}),
    Case((1, 48, 27, 27), (128, 48, 5, 5), (), {"pads": (2,) * 4}),
    Case((1, 256, 56, 56), (64, 256, 1, 1), ()),
    Case((1, 16, 64, 64), (24, 16, 31, 31), (), {"pads": (15,) * 4}),
)


@pytest.mark.parametrize(("case", "algorithm"), pairs(), ids=str)
def test_algorithms_against_float64(case: Case, algorithm: str) -> None:
    (backend,) = open_backends("cuda", Options())
    got = case.run(backend, algorithms={case.operator: algorithm})
    assert error(got, case.exact()) <= limit(case, algorithm)


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_real_layers(case: Case) -> None:
    """Each algorithm that a layer has is right, whichever is chosen."""
    (backend,) = open_backends("cuda", Options())
    exact = case.exact()
    usable = ways_of(case)
    for algorithm in usable:
        got = case.run(backend, algorithms={"Conv": algorithm})
        assert error(got, exact) <= 2 * limit(case, algorithm), algorithm
    assert len(usable) >= 6


@pytest.mark.parametrize(
    ("shape", "algorithm"),
    [
        (shape, algorithm)
        for shape in ((1, 300, 77), (7, 2048, 1000), (33, 129, 65))
        for algorithm in ("gemv", "gemm", "tensor_cores", "naive")
        if algorithm != "gemv" or shape[0] <= 8  # which it has rows for
    ],
    ids=str,
)
def test_products(shape: tuple[int, int, int], algorithm: str) -> None:
    m, k, n = shape
    a, b = normal(m, k), normal(k, n)
    options = Options(algorithms={"MatMul": algorithm})
    with Model(
        single("MatMul", [a, b], (1,)), open_backends("cuda", options), options, evaluate
    ) as model:
        (got,) = model.run({"x0": a}).values()
    assert error(np.asarray(got), a.astype(np.float64) @ b.astype(np.float64)) <= 2e-6


def ways_of(case: Case) -> list[str]:
    """Return the algorithms that can be used."""
    (node,) = single("Conv", case.arrays, (1, 2), **case.how).nodes
    target = open_device(Options().cache).compiler.target
    (work,) = works_of([node], Setting(target, Options()))
    return [
        candidate.algorithm
        for candidate in work.selector.candidates(work.task)
        if candidate.recipe is not None
    ]


def run(data: Array, weights: Array, cache: Path, *, tune: bool) -> Array:
    options = Options(tune=tune, cache=cache)
    graph = single("Conv", [data, weights], (1,), pads=(1,) * 4)
    with Model(graph, open_backends("cuda", options), options, evaluate) as model:
        (result,) = model.run({"x0": data}).values()
        return np.asarray(result)


@pytest.mark.parametrize(
    ("shape", "dtype", "allowed"),
    [((1, 32, 40, 40), float32, 2e-5), ((8, 64, 56, 56), float16, 2e-3)],  # which Hopper's
    ids=["float32", "float16"],  # copy engine feeds
)
def test_measured_choices(
    shape: tuple[int, ...], dtype: DType, allowed: float, tmp_path: Path
) -> None:
    """A choice is measured once, kept, and right; without `tune` it plays no part."""
    channels = shape[1]
    data, weights = normal(*shape).astype(dtype), normal(channels, channels, 3, 3).astype(dtype)
    plain = run(data, weights, tmp_path, tune=False)
    assert not (tmp_path / "tuned").exists()
    tuned = run(data, weights, tmp_path, tune=True)
    assert error(tuned, plain.astype(np.float64)) <= allowed
    (entry,) = (tmp_path / "tuned").iterdir()
    before = entry.stat().st_mtime_ns
    np.testing.assert_array_equal(run(data, weights, tmp_path, tune=True), tuned)
    assert entry.stat().st_mtime_ns == before
    np.testing.assert_array_equal(run(data, weights, tmp_path, tune=False), plain)
