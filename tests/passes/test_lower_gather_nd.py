"""Gather and GatherND of adjacent rows, as exporters write x[i, j] with index arrays."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model
from onnxruntime import InferenceSession

import tercet
from tercet.runtime.ir.dtypes import int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Array, Dim
from tercet.runtime.ops.elementwise import Cast, Relu
from tercet.runtime.ops.gather import Gather, GatherND
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised

GRID = np.stack(np.meshgrid(np.arange(2), np.arange(5), indexing="ij"), -1)
CASES = {
    "all": (GRID, ["Relu", "Relu"]),
    "all, more axes": (GRID.reshape(2, 1, 1, 5, 2), ["Relu", "Reshape", "Relu"]),
    "one part": (np.array([[1]]), ["Relu", "Slice", "Relu"]),
    "from the end": (np.array([[-1]]), ["Relu", "Slice", "Relu"]),
    "across parts": (np.array([[0, 3], [0, 4], [1, 0]]), ["Relu", "Reshape", "Slice", "Relu"]),
    "transposed": (GRID[::-1].copy(), ["Relu", "Reshape", "Gather", "Relu"]),
    "every second": (GRID[:, ::2].copy(), ["Relu", "Reshape", "Gather", "Relu"]),
    "twice": (np.array([[0], [0]]), ["Relu", "Gather", "Relu"]),
}


@pytest.mark.parametrize("name", CASES)
def test_gather_nd(name: str) -> None:
    indices, wanted = CASES[name]

    def build(g: Graph, x: Value) -> Value:
        return apply(g, Relu(), apply(g, GatherND(), apply(g, Relu(), x), indices))

    graph = make(build, (2, 5, 3))
    after, _ = optimised(graph, skip=("compose_moves", "select_early"))
    assert kinds(after) == wanted
    assert_same(graph, after, rel=0)


ADJACENT: dict[str, tuple[Array, int, list[str]]] = {
    "all": (np.arange(5), 1, ["Relu", "Relu"]),
    "all, more axes": (np.arange(5)[:, None], 1, ["Relu", "Reshape", "Relu"]),
    "a part": (np.arange(1, 4), 1, ["Relu", "Slice", "Relu"]),
    "from the end": (np.array([-3, -2]), 2, ["Relu", "Slice", "Relu"]),
    "a part, more axes": (np.array([[0, 1], [2, 3]]), 1, ["Relu", "Slice", "Reshape", "Relu"]),
    "backwards": (np.arange(5)[::-1].copy(), 1, ["Relu", "Gather", "Relu"]),
    "twice": (np.array([1, 1]), 1, ["Relu", "Gather", "Relu"]),
    "across the end": (np.array([-1, 0]), 1, ["Relu", "Gather", "Relu"]),
    "blocks": (np.array([[0, 2], [1, 3]]), 1, ["Relu", "Slice", "Reshape", "Transpose", "Relu"]),
}


@pytest.mark.parametrize("name", ADJACENT)
def test_gather_of_adjacent_places(name: str) -> None:
    indices, axis, wanted = ADJACENT[name]

    def build(g: Graph, x: Value) -> Value:
        return apply(g, Relu(), apply(g, Gather(axis=axis), apply(g, Relu(), x), indices))

    graph = make(build, (2, 5, 3))
    after, _ = optimised(graph, skip=("compose_moves", "select_early"))
    assert kinds(after) == wanted
    assert_same(graph, after, rel=0)


@pytest.mark.parametrize(("axis", "place"), [(2, 0), (-1, -1), (0, 0)])
def test_only_place_of_an_axis(axis: int, place: int) -> None:
    """``x[..., 0]`` of a product with one column, or ``x[0]`` of one sample."""

    def build(g: Graph, x: Value) -> Value:
        return apply(g, Relu(), apply(g, Gather(axis=axis), apply(g, Relu(), x), np.array(place)))

    graph = make(build, (1, 5, 1))
    after, _ = optimised(graph)
    assert "Gather" not in kinds(after)
    assert_same(graph, after, rel=0)


@pytest.mark.parametrize("places", [(7, 1), (2, 4, 1)], ids=str)
def test_gather_nd_of_computed_rows(places: tuple[int, ...]) -> None:
    """As `h[edges[0]]` chooses the ends of the edges of a graph."""
    dims = ",".join(map(str, places))
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[5,3] x, int64[{dims}] i) => (float[{dims[:-2]},3] y) {{ y = GatherND (x, i) }}"""
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((5, 3), np.float32), "i": rng.integers(-5, 5, places)}
    proto = parse_model(text)
    peer = InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    with tercet.load(proto) as model:
        assert [kind for kind in kinds(model.graph) if kind != "Squeeze"] == ["Gather"]
        np.testing.assert_array_equal(model.run(feeds)["y"], peer.run(None, feeds)[0])


@pytest.mark.parametrize("rows", [2, "n", None])
def test_rows_whose_count_is_cut_are_chosen_by_indices_with_these_axes(rows: Dim) -> None:
    """As neighbours of each point: ``x[i.view(-1)].view(b, n, k, c)``."""

    def build(g: Graph, x: Value) -> Value:
        places = apply(g, Cast(to=int64), apply(g, Relu(), x))
        flat = apply(g, Reshape(), places, np.array([-1]))
        taken = apply(g, Gather(), normal(9, 3), flat)
        return apply(g, Relu(), apply(g, Reshape(), taken, np.array([-1, 5, 4, 3])))

    graph = make(build, (rows, 5, 4))
    after, _ = optimised(graph)
    assert kinds(after) == ["Relu", "Cast", "Gather", "Relu"]
    assert_same(graph, after, 2, 5, 4, rel=0)


def test_rows_without_elements_may_have_any_count() -> None:
    """Six empty rows are also 7 times 3 empty rows."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[4,0] x, int64[6] i) => (float[7,3,0] y) <int64[3] shape = {7, 3, 0}> {
            rows = Gather (x, i)
            y = Reshape <allowzero: int = 1> (rows, shape)
        }"""
    feeds = {"x": np.zeros((4, 0), np.float32), "i": np.arange(6) % 4}
    with tercet.load(parse_model(text)) as model:
        assert model.run(feeds)["y"].shape == (7, 3, 0)
