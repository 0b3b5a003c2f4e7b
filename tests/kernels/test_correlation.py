"""Correlation of two images, as networks of optical flow write it: one kernel, and its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, float16, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Mul
from tercet.runtime.ops.movement import Concat, Slice
from tercet.runtime.ops.reduce import Reduce, ReduceMax, ReduceMean, ReduceSum

from .cubins import all_compile
from .dry import apply, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, results_of

if TYPE_CHECKING:
    from pathlib import Path

    from tercet.backends.cuda.backend import CudaBackend

COMPILES = {"conv/correlation.cu"}
FILE = "conv/correlation.cu"
HEIGHT, WIDTH, REACH = 5, 7, 2
SHIFTS = [(i, j) for i in range(REACH) for j in range(REACH + 1)]


def part(graph: Graph, x: Value, axis: int, start: int, size: int) -> Value:
    bounds = (np.array([n]) for n in (start, start + size, axis))
    return apply(graph, Slice(), x, *bounds)


def correlation(samples: int, channels: int, dtype: DType, op: Reduce, axis: int = 1) -> Graph:
    """Return the sums of one image times parts of another."""
    graph = Graph("correlation")
    a = graph.add_input("a", TensorType(dtype, (samples, channels, HEIGHT, WIDTH)))
    larger = (samples, channels, HEIGHT + REACH, WIDTH + REACH)
    b = graph.add_input("b", TensorType(dtype, larger))
    rows = [part(graph, b, 2, i, HEIGHT) for i in range(REACH)]
    found: list[Value] = []
    for i, j in SHIFTS:
        product = apply(graph, Mul(), a, part(graph, rows[i], 3, j, WIDTH))
        found.append(apply(graph, op, product, np.array([axis])))
    graph.set_outputs({"y": apply(graph, Concat(axis=1), *found)})
    infer(graph)
    return graph


def expected(a: Array, b: Array, is_mean: bool) -> Array:
    parts = (b[:, :, i : i + HEIGHT, j : j + WIDTH].astype(float64) for i, j in SHIFTS)
    sums = np.stack([(a.astype(float64) * each).sum(1) for each in parts], 1)
    return sums / a.shape[1] if is_mean else sums


@needs_compiler
@pytest.mark.parametrize("op", [ReduceMean(), ReduceSum()], ids=lambda op: type(op).__name__)
@pytest.mark.parametrize(
    ("samples", "channels", "dtype"),
    [(2, 24, float16), (1, 12, float32), (2, 5, float32), (1, 6, float64)],
)
def test_results(
    samples: int, channels: int, dtype: DType, op: Reduce, emulated: CudaBackend
) -> None:
    graph = correlation(samples, channels, dtype, op)
    assert FILE in {launch.source.file for launch in launches(planned(graph))}
    a = normal(samples, channels, HEIGHT, WIDTH).astype(dtype)
    b = normal(samples, channels, HEIGHT + REACH, WIDTH + REACH).astype(dtype)
    (found,) = results_of(Sample(graph, {"a": a, "b": b}), [emulated])
    error = {float16: 2e-3, float32: 1e-6, float64: 1e-14}[dtype]
    wanted = expected(a, b, isinstance(op, ReduceMean))
    np.testing.assert_allclose(found, wanted, rtol=error, atol=error * channels)


@pytest.mark.parametrize(
    ("op", "axis"), [(ReduceMax(), 1), (ReduceSum(keepdims=0), 1), (ReduceSum(), 2)], ids=str
)
def test_other_reductions_stay(op: Reduce, axis: int) -> None:
    made = launches(planned(correlation(2, 8, float32, op, axis)))
    assert FILE not in {launch.source.file for launch in made}


def test_what_is_read_elsewhere_is_computed() -> None:
    graph = correlation(2, 8, float32, ReduceSum())
    product = next(node for node in graph.nodes if isinstance(node.op, Mul))
    graph.set_outputs({"y": graph.outputs["y"], "product": product.output})
    assert FILE not in {launch.source.file for launch in launches(planned(graph))}


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    cases = [(24, float16), (12, float32), (5, float32), (6, float64)]
    graphs = [correlation(1, channels, dtype, ReduceMean()) for channels, dtype in cases]
    sources = [launch.source for graph in graphs for launch in launches(planned(graph))]
    all_compile(sources, target, cache, COMPILES)
