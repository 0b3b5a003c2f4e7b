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
    Part,
    axes_of,
    axis_of,
    indices_of,
    is_along_last,
    joint_of,
    part_of,
    place_of,
    sliced_places,
    split_sizes,
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


def imported(text: str) -> Graph:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    return tercet.load(model, stop_at=0).imported


def test_parts_of_a_split() -> None:
    x = imported(
        """g (float[2, 7] x) => (p, q, r)
        <int64[3] sizes = {3, 0, 4}> { p, q, r = Split <axis = -1> (x, sizes) }"""
    )
    (node,) = x.nodes
    found = [part_of(value) for value in node.outputs]
    assert found == [(x.inputs[0], 1, range(3)), None, (x.inputs[0], 1, range(3, 7))]
    assert split_sizes(node) == (1, (3, 0, 4))
    assert is_along_last(node)


@pytest.mark.parametrize("rows", ["7", "n"])
def test_equal_parts_of_a_split_and_a_smaller_one(rows: str) -> None:
    x = imported(f"g (float[{rows}, 2] x) => (p, q, r) {{ p, q, r = Split <num_outputs = 3> (x) }}")
    (node,) = x.nodes
    found = [part_of(value) for value in node.outputs]
    if rows == "n":
        assert found == [None] * 3
        assert split_sizes(node) is None
    else:
        assert found == [(x.inputs[0], 0, each) for each in (range(3), range(3, 6), range(6, 7))]
        assert split_sizes(node) == (0, (3, 3, 1))
    assert axis_of(node) == 0
    assert not is_along_last(node)


def test_parts_of_which_the_file_says_only_the_first_sizes() -> None:
    x = imported(
        """g (float[n, 2] x) => (p, q, r) <int64[2] first = {3, 2}, int64[1] used = {5}> {
            size = Shape <start = 0, end = 1> (x)
            rest = Sub (size, used)
            sizes = Concat <axis = 0> (first, rest)
            p, q, r = Split <axis = 0> (x, sizes)
        }"""
    )
    found = [part_of(value) for value in x.nodes[-1].outputs]
    assert found == [(x.inputs[0], 0, range(3)), (x.inputs[0], 0, range(3, 5)), None]


def test_joint_parts() -> None:
    graph, _ = graph_of("Slice", *map(np.array, ([0], [1])))
    x, y = graph.inputs[0], graph.nodes[0].output

    def joint(*bounds: tuple[int, int], last: object = x) -> object:
        *front, end = (Part(x, 2, range(*each)) for each in bounds)
        return joint_of([*front, end._replace(source=last)])

    assert joint((2, 4), (4, 6), (6, 8)) == (x, 2, range(2, 8))
    assert joint((2, 4)) == (x, 2, range(2, 4))
    assert joint((2, 4), (4, 7)) is None
    assert joint((2, 4), (6, 8)) is None
    assert joint((4, 6), (2, 4)) is None
    assert joint((2, 4), (4, 6), last=y) is None
    assert joint_of([Part(x, 2, range(2, 4)), None]) is None
    assert joint_of([None, Part(x, 2, range(2, 4))]) is None


@pytest.mark.parametrize(
    ("kind", "numbers", "place"),
    [
        ("Gather", [-1], (2, 3)),
        ("Gather", [[3]], None),
        ("Slice", [[2], [3], [-1]], (2, 2)),
        ("Slice", [[2], [4], [-1]], None),
        ("Slice", [[0], [1], [1]], None),
    ],
)
def test_single_places(kind: str, numbers: list[Any], place: tuple[int, int] | None) -> None:
    """A Slice of the only place of an axis changes nothing."""
    axis = {"axis": 2} if kind == "Gather" else {}
    graph, _ = graph_of(kind, *map(np.array, numbers), **axis)
    (node,) = graph.nodes
    assert place_of(node) == place


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
