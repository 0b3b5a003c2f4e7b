"""First layers that read few columns in float32, and store half precision."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Mul, Sin, Tanh
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Options
from tercet.runtime.passes import SYMBOLIC_PASSES, Rewrites, optimise

from .graphs import Build, apply, kinds, make, normal
from .test_to_half import halved, run


def layer(g: Graph, x: Value, rows: int, columns: int) -> Value:
    """Return a layer with a bias."""
    return apply(g, Add(), apply(g, MatMul(), x, normal(rows, columns)), normal(columns))


def network(few: int, wide: int) -> Build:
    """Return coordinates, a wide layer, and another one."""

    def build(g: Graph, x: Value) -> Value:
        return layer(g, apply(g, Sin(), layer(g, x, few, wide)), wide, 8)

    return build


def read_by(graph: Graph, kind: str) -> list[DType]:
    return [node.operands[0].tensor.dtype for node in graph.nodes if node.kind == kind]


@pytest.mark.parametrize(
    ("few", "wide", "first"),
    [(3, 64, float32), (4, 16, float32), (5, 64, float16), (4, 15, float16)],
)
def test_few_columns(few: int, wide: int, first: DType) -> None:
    graph = halved(make(network(few, wide), (2, 100, few)))
    assert read_by(graph, "MatMul") == [first, float16]
    assert read_by(graph, "Sin") == [float16]
    assert kinds(graph).count("Cast") == 2


def test_bias_is_added_in_front_of_the_cast() -> None:
    """So that one kernel adds it and stores 16 bits."""
    graph = halved(make(network(2, 64), (50, 2)))
    assert kinds(graph)[:4] == ["MatMul", "Add", "Cast", "Sin"]


def views(g: Graph, x: Value) -> Value:
    rows = apply(g, Reshape(), x, np.array([-1, 4]))
    return apply(g, Gemm(), apply(g, Tanh(), apply(g, Gemm(), rows, normal(4, 64))), normal(64, 8))


def both(g: Graph, x: Value) -> Value:
    product = apply(g, Mul(), layer(g, x, 4, 64), layer(g, x, 4, 64))
    return layer(g, product, 64, 8)


def beside(g: Graph, x: Value) -> Value:
    """Another layer reads the input, and needs it in 16 bits."""
    wide = apply(g, Tanh(), layer(g, x, 4, 64))
    return apply(g, Add(), layer(g, wide, 64, 5), layer(g, x, 4, 5))


def computed(g: Graph, x: Value) -> Value:
    return layer(g, apply(g, Tanh(), layer(g, apply(g, Tanh(), x), 4, 64)), 64, 8)


def transposed(g: Graph, x: Value) -> Value:
    rows = apply(g, Transpose(perm=(0, 2, 1)), x)
    return layer(g, apply(g, Tanh(), layer(g, rows, 4, 64)), 64, 8)


@pytest.mark.parametrize(
    ("build", "shape", "wide"),
    [
        (views, (5, 2, 4), 1),
        (both, (5, 20, 4), 2),
        (beside, (5, 20, 4), 0),
        (computed, (5, 20, 4), 0),
        (transposed, (5, 4, 20), 0),
    ],
    ids=["views", "two layers", "another layer", "what is computed", "what is moved"],
)
def test_inputs_of_the_graph(build: Build, shape: tuple[int, ...], wide: int) -> None:
    graph = halved(make(build, shape))
    found = read_by(graph, "Gemm") + read_by(graph, "MatMul")
    assert found.count(float32) == wide


def test_nodes_that_stay_float32() -> None:
    graph = make(network(3, 64), (10, 3))
    (first, *_) = (node.name for node in graph.nodes if node.kind == "MatMul")
    options = Options(precision="float16", keep_float32=(first,))
    optimise(graph, SYMBOLIC_PASSES, options, evaluate, Rewrites())
    assert kinds(graph)[:4] == ["MatMul", "Add", "Sin", "Cast"]


@pytest.mark.parametrize("build", [network(3, 64), both], ids=["coordinates", "two layers"])
def test_results(build: Build) -> None:
    """They are no further from those in float32 than 16 bits allow."""
    few = 3 if build is not both else 4
    graph = make(build, (2, 50, few))
    x = normal(2, 50, few)
    exact, found = run(graph, x=x), run(halved(graph), x=x)
    assert np.abs(found - exact).max() < 5e-3 * np.abs(exact).max()
