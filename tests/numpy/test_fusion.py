"""Chains of nodes that run as one step give what the nodes give one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, helper

import tercet
from tercet.runtime.ops import movement

from .graphs import Array, model, node, node_by_node, random, steps

X = random(2, 6, 9, 8)
LARGE = random(1, 16, 80, 80)
ROWS = random(4, 10)
CONV = node("Conv", ["x", "w", "b"], "a", pads=[1, 1, 1, 1])
WEIGHTS = {"w": random(6, 6, 3, 3), "b": random(6)}
LARGE_WEIGHTS = {"w": random(64, 16, 3, 3), "b": random(64)}

Nodes = Sequence[NodeProto]
Arrays = Mapping[str, Array]


def behind_conv(*nodes: NodeProto, **constants: Array) -> tuple[Nodes, Arrays, Arrays]:
    return (CONV, *nodes), {"x": X}, {**WEIGHTS, **constants}


CHAINS: dict[str, tuple[tuple[Nodes, Arrays, Arrays], list[str]]] = {
    "activation": (behind_conv(node("Relu", ["a"], "y")), ["Conv + Relu"]),
    "limits": (
        behind_conv(
            node("Clip", ["a", "low", "high"], "y"),
            low=np.array(-0.5, np.float32),
            high=np.array(1.5, np.float32),
        ),
        ["Conv + Clip"],
    ),
    "residual in front": (
        behind_conv(node("Add", ["x", "a"], "s"), node("Relu", ["s"], "y")),
        ["Conv + Add + Relu"],
    ),
    "residual behind": (
        behind_conv(node("Sum", ["a", "x"], "s"), node("Sigmoid", ["s"], "y")),
        ["Conv + Sum + Sigmoid"],
    ),
    "the result is the second operand": (
        behind_conv(node("Sub", ["x", "a"], "s"), node("Div", ["k", "s"], "y"), k=random(6, 1, 1)),
        ["Conv + Sub + Div"],
    ),
    "by row of the image": (
        behind_conv(node("Mul", ["a", "k"], "y"), k=random(1, 1, 9, 1)),
        ["Conv + Mul"],
    ),
    "slope by channel": (
        behind_conv(node("PRelu", ["a", "k"], "y"), k=random(6, 1, 1)),
        ["Conv + PRelu"],
    ),
    "condition": (
        behind_conv(node("Where", ["k", "x", "a"], "y"), k=random(2, 6, 9, 8) > 0),
        ["Conv + Where"],
    ),
    "larger operand": (
        behind_conv(node("Add", ["a", "k"], "y"), k=random(3, 2, 6, 9, 8)),
        ["Conv", "Add"],
    ),
    "used twice": (
        behind_conv(node("Sigmoid", ["a"], "s"), node("Mul", ["a", "s"], "y")),
        ["Conv", "Sigmoid + Mul"],
    ),
    "twice by one node": (behind_conv(node("Mul", ["a", "a"], "y")), ["Conv", "Mul"]),
    "blocks of positions": (
        (
            (CONV, node("LeakyRelu", ["a"], "r", alpha=0.1), node("Add", ["r", "z"], "y")),
            {"x": LARGE, "z": random(1, 64, 80, 80)},
            LARGE_WEIGHTS,
        ),
        ["Conv + LeakyRelu + Add"],
    ),
    "blocks, operand by row": (
        (
            (CONV, node("Mul", ["a", "z"], "y")),
            {"x": LARGE, "z": random(80, 1)},
            LARGE_WEIGHTS,
        ),
        ["Conv + Mul"],
    ),
    "transposed": (
        (
            (
                node("ConvTranspose", ["x", "w"], "a", strides=[2, 2]),
                node("Relu", ["a"], "y"),
            ),
            {"x": X},
            {"w": random(6, 3, 3, 3)},
        ),
        ["ConvTranspose + Relu"],
    ),
    "gemm": (
        (
            (node("Gemm", ["x", "w", "b"], "a", transB=1), node("Tanh", ["a"], "y")),
            {"x": ROWS},
            {"w": random(5, 10), "b": random(5)},
        ),
        ["Gemm + Tanh"],
    ),
    "product of stacks": (
        (
            (
                node("MatMul", ["x", "w"], "a"),
                node("Add", ["a", "b"], "s"),
                node("Gelu", ["s"], "y"),
            ),
            {"x": random(3, 4, 10)},
            {"w": random(10, 5), "b": random(5)},
        ),
        ["MatMul + Add + Gelu"],
    ),
    "batch norm": (
        (
            (
                node("BatchNormalization", ["x", "k", "l", "m", "n"], "a"),
                node("Relu", ["a"], "y"),
            ),
            {"x": X},
            {"k": random(6), "l": random(6), "m": random(6), "n": np.abs(random(6))},
        ),
        ["BatchNormalization + Relu"],
    ),
    "elementwise": (
        (
            (
                node("Add", ["x", "z"], "a"),
                node("Exp", ["a"], "b"),
                node("Sub", ["z", "b"], "c"),
                node("Mul", ["c", "x"], "y"),
            ),
            {"x": random(3, 500, 70), "z": random(70)},
            {},
        ),
        ["Add + Exp + Sub + Mul"],
    ),
    "images and channels": (
        (
            (
                node("Concat", ["x", "z"], "a", axis=1),
                node("Mul", ["a", "k"], "b"),
                node("Relu", ["b"], "y"),
            ),
            {"x": random(1, 30, 100, 90), "z": random(1, 40, 100, 90)},
            {"k": random(1, 70, 1, 1)},
        ),
        ["Mul + Relu"],  # the inputs are copied to the memory of the Concat
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chain(name: str) -> None:
    (nodes, inputs, constants), expected = CHAINS[name]
    proto = model(nodes, inputs, constants)
    with tercet.load(proto, stop_at=0) as fused:
        got = fused.run(inputs)["y"]
        assert steps(fused.prepare()) == expected
    want = node_by_node(proto, inputs)["y"]
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_chain_in_other_dtypes(dtype: Any) -> None:
    nodes = (CONV, node("Add", ["a", "x"], "s"), node("Relu", ["s"], "y"))
    inputs = {"x": X.astype(dtype)}
    proto = model(nodes, inputs, {k: v.astype(dtype) for k, v in WEIGHTS.items()})
    with tercet.load(proto, stop_at=0) as fused:
        got = fused.run(inputs)["y"]
    want = node_by_node(proto, inputs)["y"].astype(np.float64)
    assert got.dtype == dtype
    assert np.abs(got - want).max() <= 4 * np.finfo(dtype).eps * np.abs(want).max() + 1e-9


def test_tensors_that_callers_want_are_not_fused_away() -> None:
    proto = model((CONV, node("Relu", ["a"], "y")), {"x": X}, WEIGHTS, ("y", "a"))
    with tercet.load(proto) as fused:
        got = fused.run({"x": X})
        assert steps(fused.prepare()) == ["Conv", "Relu"]
    assert np.array_equal(np.maximum(got["a"], 0), got["y"])


def test_a_loop_through_other_nodes_is_not_fused() -> None:
    """The residual is computed from the convolution's own result."""
    nodes = (
        CONV,
        node("MaxPool", ["a"], "p", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Add", ["p", "a"], "y"),
    )
    proto = model(nodes, {"x": X}, WEIGHTS)
    with tercet.load(proto) as plain:
        got = plain.run({"x": X})["y"]
    assert np.allclose(got, node_by_node(proto, {"x": X})["y"], atol=1e-5)


@pytest.mark.parametrize("way", [[], [node("Exp", ["deviation"], "factor")]], ids=["", "computed"])
def test_what_reads_another_result_of_a_head_is_not_fused(way: Nodes) -> None:
    nodes = (
        helper.make_node("LayerNormalization", ["x", "k"], ["a", "mean", "deviation"]),
        *way,
        node("Mul", ["a", "factor" if way else "deviation"], "y"),
    )
    proto = model(nodes, {"x": ROWS}, {"k": random(10)})
    with tercet.load(proto) as plain:
        got = plain.run({"x": ROWS})["y"]
    assert np.allclose(got, node_by_node(proto, {"x": ROWS})["y"], atol=1e-5)


def test_results_take_the_memory_of_operands_that_die() -> None:
    nodes = (
        node("Softmax", ["x"], "a"),
        node("MaxPool", ["a"], "b", kernel_shape=[1, 1]),
        node("Softmax", ["b"], "c"),
        node("Abs", ["c"], "y"),
    )
    with tercet.load(model(nodes, {"x": X}, {})) as small:
        memory = small.memory()
    assert memory.activations["cpu"] <= 2 * X.nbytes + 1024


@pytest.mark.parametrize("kind", ["InstanceNormalization", "GroupNormalization"])
def test_channels_are_normalized_in_blocks_with_their_activation(kind: str) -> None:
    given: dict[str, Any] = {"num_groups": 2} if kind == "GroupNormalization" else {}
    nodes = [node(kind, ["x", "scale", "shift"], "n", **given), node("Relu", "n", "y")]
    x, constants = random(3, 6, 90, 110), {"scale": random(6), "shift": random(6)}
    made = model(nodes, {"x": x}, constants)
    with tercet.load(made, stop_at=0) as loaded:
        found = loaded.run({"x": x})["y"]
        assert steps(loaded.prepare()) == [f"{kind} + Relu"]
    rows = x.astype(np.float64).reshape(3, given.get("num_groups", 6), -1)
    normal = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    scale, shift = (data[:, np.newaxis, np.newaxis] for data in constants.values())
    assert np.abs(found - np.maximum(normal.reshape(x.shape) * scale + shift, 0)).max() < 1e-5


def test_parts_that_constants_choose_are_found_when_a_plan_is_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run only copies; a Slice whose bounds are inputs finds its part in each run."""
    x = random(3, 6, 8)
    constants = {"first": np.array([1, -1]), "last": np.array([3, -9]), "axes": np.array([0, 2])}
    constants["steps"] = np.array([1, -2])
    slicing = node("Slice", ["x", *constants], "y")
    found: list[int] = []
    bounds = movement.bounds_of_slice

    def counted(*given: int) -> tuple[int, int]:
        found.append(1)
        return bounds(*given)

    monkeypatch.setattr(movement, "bounds_of_slice", counted)
    for fixed in (constants, {}):
        inputs = {"x": x} if fixed else {"x": x, **constants}
        with tercet.load(model([slicing], inputs, fixed), stop_at=0) as loaded:
            loaded.run(inputs)
            found.clear()
            assert (loaded.run(inputs)["y"] == x[1:3, :, ::-2]).all()
        assert bool(found) != bool(fixed)
