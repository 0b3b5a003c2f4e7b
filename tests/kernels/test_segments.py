"""Rows that are combined where their indices are equal: one kernel, and its results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.codegen import copies
from tercet.backends.cuda.codegen.copies import SORTED_AT_ONCE, sorting
from tercet.backends.cuda.codegen.segment_kernel import sorted_rows
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import (
    Add,
    Cast,
    Div,
    Exp,
    LeakyRelu,
    Mul,
    Relu,
    Sigmoid,
    Sub,
)
from tercet.runtime.ops.gather import Gather, ScatterND
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.shape import Reshape, Unsqueeze
from tercet.runtime.session.model import Model

from .cubins import all_compile
from .dry import apply, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS, Sample

COMPILES = {"reduce/segments.cu", "move/rank_rows.cu", "move/sort_rows.cu"}
NODES, EDGES, WIDTH = 13, 70, 24
RANDOM = np.random.default_rng(5)
TO, FROM = RANDOM.integers(-NODES, NODES, EDGES), RANDOM.integers(-NODES, NODES, EDGES)
Case = tuple[Sample, Array]


class Edges:
    """A graph with edges, and what goes in."""

    def __init__(self) -> None:
        self.graph, self.feeds = Graph("edges"), dict[str, Array]()

    def feed(self, array: Array) -> Value:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        dtype = array.dtype
        return self.graph.add_input(name, TensorType(dtype, array.shape))

    def combined(
        self, x: Value | Array, to: Value, rows: Value | Array, reduction: str = "add"
    ) -> Value:
        return apply(self.graph, ScatterND(reduction=reduction), x, to, rows)

    def ending(self, value: Value, want: Array) -> Case:
        self.graph.set_outputs({"y": value})
        infer(self.graph)
        return Sample(self.graph, self.feeds), want


def summed(rows: Array, to: Array, nodes: int = NODES) -> Array:
    """Return sums of rows in float64."""
    found = np.zeros((nodes, *rows.shape[1:]))
    np.add.at(found, to, rows.astype(np.float64))
    return found


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def gated(dtype: DType = float32) -> Case:
    """Two sums of gates (GatedGCN), one times what is at the other end, and their quotient."""
    g, t, v = Edges(), normal(EDGES, WIDTH).astype(dtype), normal(NODES, WIDTH).astype(dtype)
    to, zeros = g.feed(TO[:, None]), np.zeros((NODES, WIDTH), dtype)
    gate = apply(g.graph, Sigmoid(), g.feed(t))
    taken = apply(g.graph, Gather(), g.feed(v), g.feed(FROM))
    above = g.combined(zeros, to, apply(g.graph, Mul(), gate, taken))
    below = apply(g.graph, Add(), g.combined(zeros, to, gate), np.array(0.1, dtype))
    y = apply(
        g.graph, Relu(), apply(g.graph, Add(), g.feed(v), apply(g.graph, Div(), above, below))
    )
    want = summed(sigmoid(t) * v[FROM], TO) / (summed(sigmoid(t), TO) + 0.1) + v
    return g.ending(apply(g.graph, Relu(), y), np.maximum(want, 0))


def half() -> Case:
    """The same in half precision."""
    return gated(float16)


def onto() -> Case:
    """The greatest of rows and what was there."""
    g, x, rows = Edges(), normal(NODES, 5), normal(EDGES, 5)
    y = g.combined(g.feed(x), g.feed(TO[:, None]), apply(g.graph, Relu(), g.feed(rows)), "max")
    want = x.copy()
    np.maximum.at(want, TO, np.maximum(rows, 0))
    return g.ending(y, want)


def pooled() -> Case:
    """Means of many rows of two samples, which all threads of a block share."""
    g, rows, to = Edges(), normal(2500, 32), np.arange(2500) // 1300
    x, place = g.feed(rows), g.feed(to[:, None])
    total = g.combined(np.zeros((2, 32), np.float32), place, apply(g.graph, Relu(), x))
    ones = g.combined(np.zeros((2, 1), np.float32), place, np.ones((2500, 1), np.float32))
    want = summed(np.maximum(rows, 0), to, 2) / summed(np.ones((2500, 1)), to, 2)
    return g.ending(apply(g.graph, Div(), total, ones), want)


def vectors() -> Case:
    """Vectors of each edge times numbers of it (PaiNN)."""
    g, a, b = Edges(), normal(EDGES, 1, 8), normal(EDGES, 3, 1)
    rows = apply(g.graph, Mul(), g.feed(a), g.feed(b))
    y = g.combined(np.zeros((NODES, 3, 8), np.float32), g.feed(TO[:, None]), rows)
    return g.ending(apply(g.graph, Relu(), y), np.maximum(summed(a * b, TO), 0))


def taken() -> Case:
    """Rows at the other end as they are (GIN), to places that are known."""
    g, x = Edges(), normal(NODES, 40)
    rows = apply(g.graph, Gather(), g.feed(x), g.feed(FROM))
    to = g.graph.constant(TO[:, None], "to")
    y = g.combined(np.zeros((NODES, 40), np.float32), to, rows)
    return g.ending(apply(g.graph, Add(), g.feed(x), y), summed(x[FROM], TO) + x)


def attention(dtype: DType = float32) -> Case:
    """A softmax over the edges of each node, of several heads (GAT)."""
    g, heads = Edges(), 3
    u, w, v = normal(NODES, heads), normal(NODES, heads), normal(NODES, heads, 8).astype(dtype)
    vector, ends = g.feed(TO), g.feed(FROM)
    to = apply(g.graph, Unsqueeze(), vector, np.array([1]))
    score = [apply(g.graph, Gather(), g.feed(x), i) for x, i in ((u, ends), (w, vector))]
    score = apply(g.graph, LeakyRelu(), apply(g.graph, Add(), *score))
    low, zeros = np.full((NODES, heads), -9, np.float32), np.zeros((NODES, heads), np.float32)
    top = apply(g.graph, Gather(), g.combined(low, to, score, "max"), vector)
    power = apply(g.graph, Exp(), apply(g.graph, Sub(), score, top))
    total = apply(g.graph, Add(), g.combined(zeros, to, power), np.array(1e-6, np.float32))
    weight = apply(g.graph, Div(), power, apply(g.graph, Gather(), total, vector))
    if dtype != float32:
        weight = apply(g.graph, Cast(to=float16), weight)
    weight = apply(g.graph, Unsqueeze(), weight, np.array([-1]))
    rows = apply(g.graph, Mul(), apply(g.graph, Gather(), g.feed(v), ends), weight)
    y = g.combined(np.zeros((NODES, heads, 8), dtype), to, rows)
    y = apply(g.graph, Reshape(), y, np.array([-1, heads * 8]))
    y = apply(g.graph, Add(), g.feed(normal(NODES, heads * 8).astype(dtype)), y)
    e = u[FROM] + w[TO]
    e = np.exp(np.where(e < 0, 0.01 * e, e).astype(np.float64))
    share = e / np.maximum(summed(e, TO), 1e-30)[TO]
    want = summed(share[..., None] * v[FROM], TO).reshape(NODES, -1)
    return g.ending(y, want + g.feeds[max(g.feeds)].astype(np.float64))


def attention_in_half() -> Case:
    """The same in half precision."""
    return attention(float16)


def degrees() -> Case:
    """How many edges each node has: rows are single numbers."""
    g = Edges()
    y = g.combined(np.zeros(NODES, np.float32), g.feed(TO[:, None]), np.ones(EDGES, np.float32))
    return g.ending(apply(g.graph, Relu(), y), summed(np.ones(EDGES), TO))


CASES = (gated, half, onto, pooled, vectors, taken, attention, attention_in_half, degrees)


def samples() -> list[Sample]:
    """Return what runs under compute-sanitizer on a GPU; see tests/gpu/test_cuda_samples.py."""
    return [case()[0] for case in CASES]


def results(sample: Sample, backend: CudaBackend) -> Array:
    with Model(sample.graph.clone(), [backend], OPTIONS, evaluate) as model:
        return np.asarray(model.run(sample.feeds)["y"])


@pytest.mark.parametrize("case", CASES)
def test_one_kernel(case: Callable[[], Case]) -> None:
    found = entries_of(case()[0].graph)
    assert found == (["segments", "segments"] if case is pooled else ["segments"])


def test_few_rows_alone_are_left_to_scatters() -> None:
    g = Edges()
    y = g.combined(g.feed(normal(NODES, 5)), g.feed(TO[:, None]), g.feed(normal(EDGES, 5)))
    assert "segments" not in entries_of(g.ending(y, normal(1))[0].graph)


def test_a_product_stores_the_rows_that_it_computes() -> None:
    g = Edges()
    product = apply(g.graph, MatMul(), g.feed(normal(EDGES, 16)), normal(16, 16))
    rows = apply(g.graph, Relu(), product)
    y = g.combined(np.zeros((NODES, 16), np.float32), g.feed(TO[:, None]), rows)
    found = launches(planned(g.ending(apply(g.graph, Relu(), y), normal(1))[0].graph))
    assert [launch.note.count("Relu") for launch in found] == [1, 1]


@needs_compiler
def test_rows_that_are_combined_with_themselves(emulated: CudaBackend) -> None:
    """They are read where they are: the sums begin with them."""
    g, x = Edges(), normal(EDGES, 5)
    rows = apply(g.graph, Relu(), g.feed(x))
    to = np.arange(EDGES) // 2
    y = g.combined(rows, g.feed(to[:, None]), rows)
    sample, _ = g.ending(apply(g.graph, Sigmoid(), y), x)
    want = sigmoid(np.maximum(x, 0) + summed(np.maximum(x, 0), to, EDGES))
    np.testing.assert_allclose(results(sample, emulated), want, rtol=0, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_results(case: Callable[[], Case], emulated: CudaBackend) -> None:
    sample, want = case()
    got = results(sample, emulated)
    error = 2e-3 if case in (half, attention_in_half) else 1e-5
    np.testing.assert_allclose(got, want, rtol=0, atol=error * np.abs(want).max())


@needs_compiler
@pytest.mark.parametrize(
    "values",
    [
        RANDOM.integers(-9, 300, 900),
        np.repeat(7, SORTED_AT_ONCE + 500),
        RANDOM.integers(0, 3, SORTED_AT_ONCE + 900) ** 9,
        np.array([5, 2**40, -(2**40), 5, 0]),
        np.where(np.arange(5000) % 1000 == 7, np.arange(5000) // 20 - 20, 9 + np.arange(5000) % 3),
    ],
    ids=["many", "one", "few", "far", "rare"],
)
@pytest.mark.parametrize("few", [True, False])
def test_indices_are_sorted(
    values: Array, few: bool, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "RANKED", 2 * SORTED_AT_ONCE if few else 0)
    g, reads = Edges(), np.ones((len(values), 1), np.float32)
    nodes = 300
    inside = np.abs(values) < nodes
    rows = apply(g.graph, Relu(), g.feed(reads))
    y = g.combined(np.zeros((nodes, 1), np.float32), g.feed(values[:, None]), rows)
    sample, want = g.ending(y, summed(reads[inside], values[inside], nodes))
    np.testing.assert_array_equal(results(sample, emulated), want)


def test_what_is_known_is_sorted_likewise() -> None:
    pairs = sorted_rows(np.array([[3], [-1], [2**40], [3]])).view(np.int32).reshape(-1, 2)
    assert pairs.tolist() == [[-1, 1], [3, 0], [3, 3], [2**31 - 1, 2]]


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    sources = [launch.source for s in samples() for launch in launches(planned(s.graph))]
    sorts = [sorting(TensorType(int64, (count, 1))).source for count in (99, 99999)]
    all_compile([*sources, *sorts], target, cache, COMPILES)
