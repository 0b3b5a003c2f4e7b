"""Chains that read what indices choose: in any spelling, one kernel, and its results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32, int32, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Mul
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split
from tercet.runtime.ops.reduce import ReduceSum
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.session.model import Model

from .cubins import all_compile
from .dry import apply, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS, Sample

WORDS, KINDS, PLACES = normal(50, 24), normal(2, 24), normal(1, 7, 24)
IDS = np.random.default_rng(3).integers(-50, 50, (3, 7))
TYPES = IDS % 2
ORDER = np.arange(7)[::-1].reshape(1, 7)


class Embedding:
    """A graph that looks up rows, and what goes in."""

    def __init__(self) -> None:
        self.graph, self.feeds = Graph("embedding"), dict[str, Array]()

    def look_up(self, table: Array, indices: Array, axis: int = 0, dtype: DType = int64) -> Value:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = indices.astype(dtype)
        given = self.graph.add_input(name, TensorType(dtype, indices.shape))
        return apply(self.graph, Gather(axis=axis), table, given)

    def add(self, *values: Value | Array) -> Value:
        return apply(self.graph, Add(), *values)

    def ending(self, *values: Value) -> Embedding:
        self.graph.set_outputs({f"y{i}": value for i, value in enumerate(values)})
        infer(self.graph)
        return self


def bert() -> tuple[Embedding, Array]:
    """Tokens, their types, and constants of positions."""
    found = Embedding()
    rows = found.add(found.look_up(WORDS, IDS), found.look_up(KINDS, TYPES, dtype=int32))
    return found.ending(found.add(rows, PLACES)), WORDS[IDS] + KINDS[TYPES] + PLACES


def gpt() -> tuple[Embedding, Array]:
    """Positions that all sequences share, and a half precision network behind."""
    found = Embedding()
    rows = found.add(found.look_up(WORDS, IDS), found.look_up(PLACES[0], ORDER))
    rows = apply(found.graph, Cast(to=float16), rows)
    return found.ending(rows), (WORDS[IDS] + PLACES[0][ORDER]).astype(float16)


def halves() -> tuple[Embedding, Array]:
    """Rows of float16, scaled, of which two tensors of indices choose."""
    found, table = Embedding(), WORDS.astype(float16)
    rows = apply(found.graph, Mul(), found.look_up(table, IDS), np.array(2, float16))
    rows = found.add(found.look_up(table, IDS[::-1]), rows)
    return found.ending(rows), table[IDS[::-1]] + table[IDS] * np.float16(2)


def columns() -> tuple[Embedding, Array]:
    """Columns instead of rows."""
    found = Embedding()
    rows = found.add(found.look_up(WORDS, TYPES, axis=1), normal(3, 7))
    return found.ending(rows), WORDS[:, TYPES] + normal(3, 7)


def middle() -> tuple[Embedding, Array]:
    """Rows of matrices, by a single index and by several."""
    found, stack = Embedding(), normal(2, 5, 24)
    one, few = np.array(-2), np.array([4, 0, -5])
    rows = found.add(found.look_up(stack, few, axis=1), PLACES[:, :1])
    rows = found.add(rows, found.look_up(stack[0], one))
    return found.ending(rows), stack[:, few] + PLACES[:, :1] + stack[0][one]


def odd() -> tuple[Embedding, Array]:
    """Rows that no words of several elements divide."""
    found = Embedding()
    rows = found.add(found.look_up(WORDS[:, :23], IDS), PLACES[..., :23])
    return found.ending(rows), WORDS[IDS][..., :23] + PLACES[..., :23]


def edges() -> tuple[Embedding, Array]:
    """What the two ends of each edge have, and the edge itself, which the chain computes first."""
    found, lengths = Embedding(), normal(3, 7, 1)
    found.feeds["lengths"] = lengths
    given = found.graph.add_input("lengths", TensorType(float32, (3, 7, 1)))
    both = found.add(found.look_up(WORDS, IDS), found.look_up(WORDS, IDS[::-1]))
    rows = found.add(apply(found.graph, Mul(), given, WORDS[0]), both)
    return found.ending(rows), lengths * WORDS[0] + (WORDS[IDS] + WORDS[IDS[::-1]])


SPELLINGS = (bert, gpt, halves, columns, middle, odd, edges)


def samples() -> list[Sample]:
    """Return what runs under compute-sanitizer on a GPU; see tests/gpu/test_cuda_samples.py."""
    return [Sample(made.graph, made.feeds) for made, _ in (spelling() for spelling in SPELLINGS)]


def read_twice() -> Embedding:
    found = Embedding()
    rows = found.look_up(WORDS, IDS)
    return found.ending(found.add(rows, PLACES), rows)


def added_to_a_product() -> Embedding:
    """Which adds the rows as it stores its results."""
    found = Embedding()
    found.feeds["other"] = normal(3, 7, 24)
    other = found.graph.add_input("other", TensorType(float32, (3, 7, 24)))
    product = apply(found.graph, MatMul(), other, normal(24, 24))
    return found.ending(found.add(found.look_up(WORDS, IDS), product))


def measured() -> Embedding:
    """By a reduction, which computes the chain."""
    found = Embedding()
    rows = apply(found.graph, Mul(), found.look_up(WORDS, IDS), PLACES)
    return found.ending(apply(found.graph, ReduceSum(), rows, np.array([2])))


def results(found: Embedding, backend: CudaBackend) -> Array:
    with Model(found.graph.clone(), [backend], OPTIONS, evaluate) as model:
        return np.asarray(model.run(found.feeds)["y0"])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_one_kernel(spelling: Callable[[], tuple[Embedding, Array]]) -> None:
    assert entries_of(spelling()[0].graph) == ["moved"]


@pytest.mark.parametrize("build", [read_twice, added_to_a_product, measured])
def test_others_are_left_alone(build: Callable[[], Embedding]) -> None:
    assert "gather" in entries_of(build().graph)


@needs_compiler
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_results(spelling: Callable[[], tuple[Embedding, Array]], emulated: CudaBackend) -> None:
    found, want = spelling()
    np.testing.assert_array_equal(results(found, emulated), want)


@needs_compiler
def test_rows_that_are_not_there_are_zeros(emulated: CudaBackend) -> None:
    found, far = Embedding(), np.where(IDS % 3 == 0, [50], np.where(IDS % 3 == 1, [-51], IDS))
    rows = found.add(found.look_up(WORDS, far), PLACES)
    inside = (far >= -50) & (far < 50)
    want = np.where(inside[..., None], WORDS[np.where(inside, far, 0)], 0) + PLACES
    np.testing.assert_array_equal(results(found.ending(rows), emulated), want)


def parts_of_rows() -> tuple[Embedding, Array]:
    """Two parts of the same rows: one that indices choose, and one with an axis more (EdgeConv)."""
    found, weights = Embedding(), normal(8, 48)
    found.feeds["nodes"] = normal(2, 5, 8)
    nodes = found.graph.add_input("nodes", TensorType(float32, (2, 5, 8)))
    places = np.arange(30).reshape(2, 5, 3) * 7 % 10
    product = apply(found.graph, MatMul(), nodes, weights)
    near, own = found.graph.insert(Split(axis=-1, num_outputs=2), [product], 2).outputs
    infer(found.graph)
    flat = apply(found.graph, Reshape(), near, np.array([10, 24]))
    given = found.graph.add_input("places", TensorType(int64, (2, 5, 3)))
    found.feeds["places"] = places
    chosen = apply(found.graph, Gather(), flat, given)
    rows = found.add(chosen, apply(found.graph, Reshape(), own, np.array([2, 5, 1, 24])))
    whole = (found.feeds["nodes"] @ weights).reshape(10, 48)
    return found.ending(rows), whole[places][..., :24] + whole.reshape(2, 5, 1, 48)[..., 24:]


@needs_compiler
def test_parts_of_rows_are_read_where_they_are(emulated: CudaBackend) -> None:
    found, want = parts_of_rows()
    with Model(found.graph.clone(), [emulated], OPTIONS, evaluate) as model:
        rows = [row for row in model.placement() if row.kind == "step"]
        got = np.asarray(model.run(found.feeds)["y0"])
    assert [row.operators for row in rows] == ["MatMul", "Gather + Add"]
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    sources = (launch.source for made in SPELLINGS for launch in launches(planned(made()[0].graph)))
    all_compile(sources, target, cache)
