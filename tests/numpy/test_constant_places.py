"""Gathers and scatters by constant indices: checked once, and right wherever these are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

import tercet
from tercet.backends.numpy.ops import gather

from .nodes import drawn

SHAPE = (4, 6, 5)
#: Places along an axis of 6: one, in order, with gaps, backwards, counted from the end, mixed.
PLACES: list[Any] = [
    2,
    [3],
    [1, 2, 3],
    [0, 2, 4],
    [5, 3, 1],
    [-3, -2, -1],
    [4, 0, 4],
    [[0, 1], [2, 3]],
]
#: Coordinates of the first two axes.
PAIRS: list[Any] = [
    [[0, 1], [0, 2], [0, 3]],
    [[1, 0], [1, 3], [2, 0]],
    [[3, 5], [0, -1], [2, 2]],
    [[[1, 1]], [[1, 1]]],
]
REDUCTIONS = ("none", "add", "mul", "max", "min")


def network(kind: str, indices: Any, *updates: tuple[int, ...], **attributes: Any) -> ModelProto:
    """Return a node with constant indices."""
    constant = numpy_helper.from_array(np.array(indices, np.int64), "indices")
    shapes = {"x": SHAPE, **dict(zip(("updates",), updates, strict=False))}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    node = helper.make_node(kind, ["x", "indices", *[*shapes][1:]], ["y"], **attributes)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], kind, inputs, [output], [constant])
    opset = helper.make_opsetid("", 20)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


def networks() -> list[ModelProto]:
    found = [network("Gather", places, axis=axis) for places in PLACES for axis in (1, -2)]
    found += [network("GatherND", pairs) for pairs in PAIRS]
    for places in ([0, 1, 2], [5, 1, 3], [2, 2, -1]):
        grid = np.broadcast_to(np.array(places)[:, np.newaxis], (4, 3, 5))
        found.append(network("GatherElements", grid, axis=1))
        for reduction in REDUCTIONS:
            if reduction != "none" or len({*places}) == len(places):
                attributes = {"axis": 1, "reduction": reduction}
                found.append(network("ScatterElements", grid, grid.shape, **attributes))
    for pairs in PAIRS[:3]:
        for reduction in REDUCTIONS:
            found.append(network("ScatterND", pairs, (3, 5), reduction=reduction))
    found.append(network("ScatterND", PAIRS[3], (2, 1, 5), reduction="add"))
    return found


@pytest.mark.parametrize("model", networks(), ids=lambda model: model.graph.name)
def test_as_onnxruntime(model: ModelProto) -> None:
    session = InferenceSession(model.SerializeToString())
    with tercet.load(model, backend="numpy", stop_at=0) as ours:
        for seed in range(2):
            given = drawn(model, seed)
            np.testing.assert_array_equal(ours.run(given)["y"], session.run(None, given)[0])


@pytest.mark.parametrize("model", networks()[::4], ids=lambda model: model.graph.name)
def test_checked_once(model: ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[object] = []
    check = gather._from_front
    monkeypatch.setattr(gather, "_from_front", lambda *a: checked.append(a) or check(*a))
    with tercet.load(model, backend="numpy", stop_at=0) as ours:
        ours.run(drawn(model, 0))
        count = len(checked)
        ours.run(drawn(model, 1))
    assert count
    assert len(checked) == count


def test_out_of_range_is_refused() -> None:
    places = np.zeros(100_000, np.int64)
    places[-1] = 9
    model = network("Gather", places, axis=1)
    with (
        tercet.load(model, backend="numpy", stop_at=0) as ours,
        pytest.raises(tercet.DeviceError, match="outside of an axis of 6 elements"),
    ):
        ours.run({"x": np.zeros(SHAPE, np.float32)})
