"""Gradient: every rule against differences, and the examples of the specification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.parser import parse_model

import tercet
from tercet.importers.onnx.reading.derivatives import RULES

Array = np.ndarray[Any, Any]

TRAINING = "ai.onnx.preview.training"


def draw(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).uniform(0.3, 0.9, shape)


def gradient(outputs: Sequence[str], inputs: Sequence[str], **names: Any) -> NodeProto:
    return helper.make_node("Gradient", inputs, outputs, domain=TRAINING, **names)


def model_of(
    nodes: Sequence[NodeProto], feeds: dict[str, Array], outputs: Sequence[str], **constants: Array
) -> ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    stored = [numpy_helper.from_array(data, name) for name, data in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, results, stored)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(TRAINING, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(model: ModelProto, feeds: dict[str, Array]) -> list[Array]:
    with tercet.load(model) as loaded:
        return list(loaded.run(feeds).values())


#: Operator, attributes, inputs with a derivative, constant inputs behind (or, by name, between).
CASES: list[tuple[str, dict[str, Any], list[Array], list[Array]]] = [
    *((name, {}, [draw(2, 3) - 0.6], []) for name in sorted(
        {"Abs", "Cos", "Cosh", "Erf", "Exp", "Flatten", "Identity", "Neg", "Relu", "Sigmoid",
         "Sin", "Sinh", "Softplus", "Tan", "Tanh"})),
    *((name, {}, [draw(2, 3)], []) for name in ("Log", "Reciprocal", "Sqrt")),
    *((name, {}, [draw(2, 3), draw(3)], []) for name in ("Add", "Sub", "Mul", "Div", "Pow")),
    *((name, {}, [draw(2, 1), draw(4, 1, 3)], []) for name in ("Add", "Mul", "Sum")),
    ("Pow", {}, [draw(2, 3)], [np.array(3)]),
    ("Cast", {"to": TensorProto.DOUBLE}, [draw(2, 3)], []),
    ("Concat", {"axis": 1}, [draw(2, 3), draw(2, 1)], []),
    ("Expand", {}, [draw(3, 1)], [np.array([2, 3, 4])]),
    ("Reshape", {}, [draw(2, 3)], [np.array([3, 2])]),
    ("Squeeze", {}, [draw(2, 1, 3)], [np.array([1])]),
    ("Unsqueeze", {}, [draw(2, 3)], [np.array([1])]),
    ("Transpose", {"perm": [1, 2, 0]}, [draw(2, 3, 4)], []),
    ("ReduceSum", {"keepdims": 0}, [draw(2, 3, 4)], [np.array([1])]),
    ("ReduceSum", {}, [draw(2, 3)], []),
    ("ReduceMean", {"keepdims": 0}, [draw(2, 3, 4)], [np.array([0, -1])]),
    ("Softmax", {"axis": 0}, [draw(2, 3)], []),
    ("LogSoftmax", {}, [draw(2, 3)], []),
    ("MatMul", {}, [draw(2, 3, 4), draw(4, 2)], []),
    *(("Gemm", {"transA": a, "transB": b, "alpha": 0.5, "beta": 2.0},
       [draw(*(4, 2)[:: 1 if a else -1]), draw(*(3, 4)[:: 1 if b else -1]), draw(3)], [])
      for a in (0, 1) for b in (0, 1)),
    ("Conv", {"pads": [1, 0, 1, 2]}, [draw(2, 3, 5, 6), draw(4, 3, 3, 2), draw(4)], []),
    ("Conv", {"strides": [2, 3], "auto_pad": "SAME_UPPER"},
     [draw(1, 2, 6, 7), draw(3, 2, 3, 3)], []),
    ("Conv", {"dilations": [2], "strides": [3]}, [draw(2, 2, 12), draw(3, 2, 3)], []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "attributes", "xs", "constants"), CASES)
def test_rules(
    name: str, attributes: dict[str, Any], xs: list[Array], constants: list[Array]
) -> None:
    """The derivative of sum(y * w), for weights w, against central differences."""
    variables = [f"x{i}" for i in range(len(xs))]
    stored = {f"c{i}": data for i, data in enumerate(constants)}
    feeds = dict(zip(variables, xs, strict=True))
    forward = [helper.make_node(name, [*variables, *stored], ["y"], **attributes)]
    (y,) = run(model_of(forward, feeds, ["y"], **stored), feeds)
    stored["w"] = np.linspace(0.5, 1.5, y.size).reshape(y.shape)
    forward.append(helper.make_node("Mul", ["y", "w"], ["z"]))
    outputs = [f"d{name}" for name in variables]
    backward = gradient(outputs, variables, xs=variables, y="z")
    found = run(model_of([*forward, backward], feeds, outputs, **stored), feeds)
    check(model_of(forward, feeds, ["z"], **stored), feeds, found)


def check(model: ModelProto, feeds: dict[str, Array], found: list[Array]) -> None:
    """Compare derivatives with central differences."""
    step = 1e-5
    with tercet.load(model) as loaded:
        for (name, x), got in zip(feeds.items(), found, strict=True):
            want = np.empty_like(x)
            for at in np.ndindex(x.shape):
                both: list[float] = []
                for sign in (1, -1):
                    moved = x.copy()
                    moved[at] += sign * step
                    (z,) = loaded.run({**feeds, name: moved}).values()
                    both.append(float(z.sum()))
                want[at] = (both[0] - both[1]) / (2 * step)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_where() -> None:
    condition, a, b = np.array([True, False, True]), draw(2, 3), draw(1)
    nodes = [
        helper.make_node("Where", ["c", "a", "b"], ["y"]),
        gradient(["da", "db"], ["a", "b"], xs=["a", "b"], y="y"),
    ]
    feeds = {"a": a, "b": b}
    da, db = run(model_of(nodes, feeds, ["da", "db"], c=condition), feeds)
    assert da.tolist() == [[1, 0, 1]] * 2
    assert db.tolist() == [2]


def test_every_rule_has_a_case() -> None:
    assert sorted(RULES) == sorted({name for name, *_ in CASES} | {"Where"})


def test_at_other_values() -> None:
    """dy/dh at h1, where y = h * z and h = x * x, as in the specification's last example."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["h"]),
        helper.make_node("Mul", ["h", "z"], ["y"]),
        gradient(["dh", "dz"], ["h1", "z"], xs=["h", "z"], y="y"),
    ]
    feeds = {name: np.array([float(i)]) for i, name in enumerate(("x", "z", "h1"), start=2)}
    dh, dz, y = run(model_of(nodes, feeds, ["dh", "dz", "y"]), feeds)
    assert [dh.item(), dz.item(), y.item()] == [3, 4, 12]


def test_second_derivative() -> None:
    """O = w * w * w: d²O/dw² = 6w."""
    nodes = [
        helper.make_node("Mul", ["w", "w"], ["v"]),
        helper.make_node("Mul", ["v", "w"], ["o"]),
        gradient(["d1"], ["w"], xs=["w"], y="o"),
        gradient(["d2"], ["w"], xs=["w"], y="d1"),
    ]
    feeds = {"w": np.array([2.0])}
    first, second = run(model_of(nodes, feeds, ["d1", "d2"]), feeds)
    assert first.item() == 12
    assert second.item() == 12


def test_what_does_not_matter_has_no_gradient() -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        gradient(["dx", "dz"], ["x", "z"], xs=["x", "z"], y="y"),
    ]
    feeds = {"x": draw(2), "z": draw(3)}
    dx, dz = run(model_of(nodes, feeds, ["dx", "dz"]), feeds)
    assert dx.tolist() == [-1, -1]
    assert dz.tolist() == [0, 0, 0]


def test_errors_name_the_node() -> None:
    nodes = [
        helper.make_node("Floor", ["x"], ["y"], name="floor"),
        gradient(["dx"], ["x"], xs=["x"], y="y"),
    ]
    feeds = {"x": draw(2)}
    with pytest.raises(tercet.UnsupportedError, match=r"no rule for 'floor' \(Floor\)"):
        tercet.load(model_of(nodes, feeds, ["dx"]))
    nodes[1] = gradient(["dx"], ["x"], xs=["x"], y="q")
    with pytest.raises(tercet.TercetError, match="names 'q'"):
        tercet.load(model_of(nodes, feeds, ["dx"]))


def test_what_it_names_may_come_later_in_the_file() -> None:
    text = """g (float[2] x) => (dx, y) {
      dx = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x)
      y = Mul (x, x)
    }"""
    opsets = '["" : 21, "ai.onnx.preview.training" : 1]'
    model = parse_model(f"<ir_version: 10, opset_import: {opsets}>\n{text}")
    with pytest.warns(tercet.ModelWarning, match="not in order"):
        loaded = tercet.load(model)
    with loaded:
        np.testing.assert_array_equal(loaded(np.array([1, 3], np.float32))[0], [2, 6])
