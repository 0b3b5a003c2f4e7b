"""More axes than there may be, and ranks that only a run knows: errors that name the node."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tercet

OPSET = [helper.make_opsetid("", 21)]
MANY = [1] * 33


def of_any_rank(*nodes: onnx.NodeProto, constants: dict[str, np.ndarray] | None = None) -> bytes:
    """Return a model of inputs that have no declared shape, and of one output y."""
    known = constants or {}
    made = {name for node in nodes for name in node.output} | set(known)
    read = dict.fromkeys(name for node in nodes for name in node.input if name not in made)
    infos = [
        helper.make_tensor_value_info(n, TensorProto.INT64 if n == "axes" else 1, None)
        for n in (*read, "y")
    ]
    stored = [onnx.numpy_helper.from_array(data, name) for name, data in known.items()]
    graph = helper.make_graph(nodes, "g", infos[:-1], infos[-1:], stored)
    return helper.make_model(graph, opset_imports=OPSET, ir_version=10).SerializeToString()


def test_a_constant_has_at_most_so_many_axes() -> None:
    data = of_any_rank(
        helper.make_node("Mul", ["x", "w"], ["y"]), constants={"w": np.ones(MANY, np.float32)}
    )
    with pytest.raises(tercet.LimitError, match="'w': has 33 axes; at most 32 are supported"):
        tercet.load(data)


def test_an_input_has_at_most_so_many_axes() -> None:
    with tercet.load(of_any_rank(helper.make_node("Neg", ["x"], ["y"]))) as model:
        with pytest.raises(tercet.InputError, match="input 'x' has 33 axes; at most 32"):
            model(np.ones(MANY, np.float32))
        assert model(np.ones(MANY[1:], np.float32))[0].ndim == 32


def test_a_result_has_at_most_so_many_axes() -> None:
    data = of_any_rank(
        helper.make_node("Unsqueeze", ["x", "axes"], ["y"]), constants={"axes": np.array([0])}
    )
    with tercet.load(data) as model, pytest.raises(tercet.ModelError, match=r"'y' \(Unsqueeze\)"):
        model(np.ones(MANY[1:], np.float32))


def test_axes_of_a_run_that_a_scalar_does_not_have() -> None:
    with (
        tercet.load(of_any_rank(helper.make_node("ReduceL2", ["x", "axes"], ["y"]))) as model,
        pytest.raises(tercet.ModelError, match=r"'y' \(ReduceL2\): axes=-2 is out of range"),
    ):
        model(np.float32(1), np.array([-2]))


def test_a_node_is_named_whose_scratch_memory_is_too_large() -> None:
    roi = helper.make_node("RoiAlign", ["x", "rois", "which"], ["y"], sampling_ratio=1 << 30)
    which = {"which": np.zeros(1, np.int64)}
    with (
        tercet.load(of_any_rank(roi, constants=which)) as model,
        pytest.raises(tercet.LimitError, match=r"'y' \(RoiAlign\): .* bytes for the samples"),
    ):
        model(np.ones((1, 1, 4, 4), np.float32), np.array([[0, 0, 3, 3]], np.float32))


def test_an_order_that_is_none_of_any_rank() -> None:
    data = of_any_rank(helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1, 1]))
    with pytest.raises(tercet.ModelError, match=r"'y' \(Transpose\): perm=\[0, 2, 1, 1\] is not"):
        tercet.load(data)


@pytest.mark.parametrize("perms", [([0, 1, 2],), ([1, 2, 0], [2, 0, 1])], ids=["same", "and back"])
def test_an_order_that_changes_nothing_still_needs_its_axes(perms: tuple[list[int], ...]) -> None:
    names = ["x", *(f"t{i}" for i in range(len(perms) - 1)), "y"]
    nodes = [
        helper.make_node("Transpose", [names[i]], [names[i + 1]], perm=perm)
        for i, perm in enumerate(perms)
    ]
    with tercet.load(of_any_rank(*nodes)) as model:
        assert model(np.ones((2, 3, 4), np.float32))[0].shape == (2, 3, 4)
        with pytest.raises(tercet.ModelError, match=r"\(Transpose\): perm=.* of 0 axes"):
            model(np.float32(1))


@pytest.mark.parametrize(
    ("node", "constants", "reason"),
    [
        (helper.make_node("Concat", ["x"], ["y"], axis=-3), {}, "axis=-3 is out of range"),
        (helper.make_node("Pad", ["x", "p"], ["y"]), {"p": np.zeros(6, np.int64)}, "6 pads for 2"),
    ],
    ids=["Concat", "Pad"],
)
def test_what_changes_nothing_still_needs_its_axes(
    node: onnx.NodeProto, constants: dict[str, np.ndarray], reason: str
) -> None:
    with tercet.load(of_any_rank(node, constants=constants)) as model:
        assert model(np.ones((2, 3, 4), np.float32))[0].shape == (2, 3, 4)
        with pytest.raises(tercet.ModelError, match=rf"'y' \({node.op_type}\): {reason}"):
            model(np.ones((2, 3), np.float32))
