"""Places that nodes take, however a file counts them, as onnxruntime takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import tercet
from tercet.runtime.ir.graph import Graph, Node
from tercet.runtime.ops.cuts import (
    axes_of,
    indices_of,
    part_of,
    sliced_places,
    update_of,
    written_places,
)

from ..randomness import restarting

SHAPE = (5, 1, 4)
RNG = restarting(11)
FAR = [-(2**31), -7, -6, -5, -4, -2, -1, 0, 1, 2, 4, 5, 6, 10**6]


def graph_of(kind: str, *numbers: np.ndarray, **attributes: Any) -> tuple[Graph, np.ndarray]:
    """Return the graph of a single node, and the places of its input that onnxruntime takes."""
    names = [f"c{i}" for i in range(len(numbers))]
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", *names], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.INT64, SHAPE)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT64, None)],
        [onnx.numpy_helper.from_array(n, name) for n, name in zip(numbers, names, strict=True)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    (taken,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    with tercet.load(proto, stop_at=0) as model:
        return model.imported, np.asarray(taken)


def window(node: Node) -> np.ndarray:
    places = sliced_places(node)
    assert places is not None
    assert tuple(places) == axes_of(node)
    found = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    for axis, part in places.items():
        found = found.take(np.array(part, np.int64), axis)
    return found


@pytest.mark.parametrize("step", [1, 2, -1, -3])
@pytest.mark.parametrize("axis", [0, -2, -1])
def test_slices(axis: int, step: int) -> None:
    for start, end in RNG.choice(FAR, (12, 2)).tolist():
        graph, taken = graph_of("Slice", *(np.array([n]) for n in (start, end, axis, step)))
        (node,) = graph.nodes
        np.testing.assert_array_equal(window(node), taken)
        part, size = part_of(node.output), SHAPE[axis]
        places = (sliced_places(node) or {})[axis % 3]
        if part is None:
            assert not len(places) or (places.step != 1 and len(places) < size + (step < 0))
        else:
            assert part == (node.inputs[0], axis % 3, places)


def test_slices_of_two_axes() -> None:
    graph, taken = graph_of("Slice", *map(np.array, ([-2, -9], [9, 9], [-1, 0])))
    (node,) = graph.nodes
    np.testing.assert_array_equal(window(node), taken)
    assert part_of(node.output) == (node.inputs[0], 2, range(2, 4))
    graph, _ = graph_of("Slice", *map(np.array, ([-2, -3], [9, 9], [-1, 0])))
    (node,) = graph.nodes
    assert part_of(node.output) is None


@pytest.mark.parametrize("index", [-5, -1, 0, 4, [2], [-2], [[1]], [-1, 1]])
def test_gathers(index: int | list[int]) -> None:
    graph, taken = graph_of("Gather", np.array(index), axis=-3)
    (node,) = graph.nodes
    places = indices_of(node)
    assert places is not None
    np.testing.assert_array_equal(np.arange(20).reshape(SHAPE)[places], taken)
    place = int(places.flat[0])
    is_part = places.ndim < 2 and places.size == 1
    whole = (node.inputs[0], 0, range(place, place + 1))
    assert part_of(node.output) == (whole if is_part else None)


def test_parts_of_a_split() -> None:
    x = tercet.load(
        onnx.parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 21]> g (float[2, 7] x) => (p, q, r)
            <int64[3] sizes = {3, 0, 4}> { p, q, r = Split <axis = -1> (x, sizes) }"""
        ),
        stop_at=0,
    ).imported
    (node,) = x.nodes
    found = [part_of(value) for value in node.outputs]
    assert found == [(x.inputs[0], 1, range(3)), None, (x.inputs[0], 1, range(3, 7))]


def grid(*places: range) -> np.ndarray:
    """Return the indices of a box along the first axes."""
    return np.stack(np.meshgrid(*map(np.array, places), indexing="ij"), -1)


def marked(box: dict[int, range] | None) -> np.ndarray:
    """Return where a box is."""
    assert box is not None
    found = np.zeros(SHAPE, bool)
    places = [box.get(axis, range(size)) for axis, size in enumerate(SHAPE)]
    found[tuple(slice(p.start, p.stop, p.step) for p in places)] = True
    return found


@pytest.mark.parametrize(
    "box",
    [
        *((range(5),), (range(1, 3),), (range(0, 5, 2),), (range(3, 4),), (range(-3, -1),)),
        *((range(2), range(1)), (range(5), range(1), range(1, 4, 2)), (range(-2, 0), range(-1, 0))),
    ],
    ids=str,
)
def test_boxes_that_a_scatter_writes(box: tuple[range, ...]) -> None:
    indices = grid(*box)
    updates = np.full((*indices.shape[:-1], *SHAPE[len(box) :]), -1)
    graph, written = graph_of("ScatterND", indices, updates)
    (node,) = graph.nodes
    np.testing.assert_array_equal(marked(written_places(node)), written == -1)
    update = update_of(node)
    assert (update is None) == (len(box) > 1)
    assert update is None or update.value is node.inputs[2]


@pytest.mark.parametrize("places", [[0, 1, 2], [1, 3], [3]], ids=str)
@pytest.mark.parametrize("axis", [0, -1])
def test_places_that_a_scatter_of_elements_writes(axis: int, places: list[int]) -> None:
    shape: list[int] = list(SHAPE)
    shape[axis] = len(places)
    along = np.moveaxis(
        np.broadcast_to(places, np.moveaxis(np.empty(shape), axis, -1).shape), -1, axis
    )
    graph, written = graph_of("ScatterElements", along, np.full(shape, -1), axis=axis)
    (node,) = graph.nodes
    np.testing.assert_array_equal(marked(written_places(node)), written == -1)


@pytest.mark.parametrize(
    "indices",
    [np.array([[2], [1]]), np.array([[0], [1], [3]]), np.array([[0, 0], [1, 0]])],
    ids=["descending", "unequal distances", "a line of two columns"],
)
def test_what_is_no_box(indices: np.ndarray) -> None:
    graph, _ = graph_of(
        "ScatterND", indices, np.full((len(indices), *SHAPE[indices.shape[1] :]), -1)
    )
    assert written_places(graph.nodes[0]) is None
