"""FlexAttention with bodies becomes a formula, whatever passes are skipped."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import tercet
from tercet.tools.conformance.suite import all_cases


@pytest.mark.parametrize("options", [{"stop_at": 0}, {"skip": ("inline_bodies",)}], ids=str)
def test_without_the_pass(options: dict[str, Any]) -> None:
    known = (case for case in all_cases() if case.operator == "ai.onnx.preview.FlexAttention")
    cases = [case for case in known if "expanded" not in case.name]
    assert cases
    for case in cases:
        model, ((inputs, (expected,)),) = case.content.read()
        with tercet.load(model, **options) as loaded:
            (found,) = loaded(*inputs)
        np.testing.assert_allclose(found, expected, case.rtol, case.atol, err_msg=case.name)


def test_a_body_that_leaves_its_nodes_unread() -> None:
    """Found by the fuzzer: without passes, no step would write what is not read."""
    scores = helper.make_tensor_value_info("s", 1, [1, 1, 2, 2])
    nodes = [helper.make_node("Tanh", ["s"], ["t"]), helper.make_node("Mul", ["t", "s"], ["u"])]
    body = helper.make_graph(nodes, "body", [scores], [scores])
    attention = helper.make_node(
        "FlexAttention", ["x", "x", "x"], ["y"], domain="ai.onnx.preview", score_mod=body
    )
    x, y = (helper.make_tensor_value_info(name, 1, [1, 1, 2, 4]) for name in "xy")
    graph = helper.make_graph([attention], "g", [x], [y])
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("ai.onnx.preview", 1)]
    proto = helper.make_model(graph, opset_imports=opsets)
    data = np.random.default_rng(0).standard_normal((1, 1, 2, 4)).astype(np.float32)
    scale = data.astype(np.float64) / np.sqrt(2)
    weights = np.exp(scale @ scale.swapaxes(-1, -2))
    expected = weights / weights.sum(-1, keepdims=True) @ data
    for stop_at in (None, 0):
        with tercet.load(proto, stop_at=stop_at) as model:
            np.testing.assert_allclose(model(data)[0], expected, 1e-5)


def test_sizes_that_only_a_run_tells() -> None:
    """In a loop whose sequence grows, each iteration writes the formula out for its own sizes."""
    s, t = (helper.make_tensor_value_info(name, 1, [None] * 4) for name in ("s", "t"))
    double = helper.make_graph([helper.make_node("Add", ["s", "s"], ["t"])], "m", [s], [t])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["k"], ["k2"]),
            helper.make_node(
                "FlexAttention", ["h", "h", "h"], ["a"], domain="ai.onnx.preview", score_mod=double
            ),
            helper.make_node("Concat", ["h", "a"], ["h2"], axis=2),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("k", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", 1, None),
        ],
        [
            helper.make_tensor_value_info("k2", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h2", 1, None),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["m", "", "x"], ["y"], body=body)],
        "g",
        [
            helper.make_tensor_value_info("m", TensorProto.INT64, []),
            helper.make_tensor_value_info("x", 1, [1, 1, 2, 4]),
        ],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("ai.onnx.preview", 1)]
    x = np.random.default_rng(0).standard_normal((1, 1, 2, 4)).astype(np.float32)
    expected = x.astype(np.float64)
    for _ in range(3):
        e = np.exp(2 * 4**-0.5 * expected @ expected.swapaxes(2, 3))
        expected = np.concatenate([expected, e / e.sum(-1, keepdims=True) @ expected], 2)
    for stop_at in (None, 0):
        with tercet.load(helper.make_model(graph, opset_imports=opsets), stop_at=stop_at) as loaded:
            (found,) = loaded(np.array(3), x)
        np.testing.assert_allclose(found, expected, 1e-5, 1e-6)


NESTED = """
<ir_version: 10, opset_import: ["": 21]>
g (float[n, 4] x) => (float[n, 4] y) {
    three = Constant<value = int64[1] {3}>() seven = Constant<value = int64[1] {7}>()
    s = Shape<end = 1>(x) c = Equal(s, three)
    y = If(c) <
        then_branch = a () => (float[n, 4] p) {
            w = Concat<axis = 0>(x, x) t = Shape<end = 1>(w) d = Less(t, seven)
            p = If(d) <
                then_branch = aa () => (float[n, 4] pp) { pp = Exp(x) },
                else_branch = ab () => (float[n, 4] pq) { pq = Sin(x) }>
        },
        else_branch = b () => (float[n, 4] q) { q = Cos(x) }>
}"""


def test_branches_inside_of_a_branch() -> None:
    """Rank and size checks of cells that PyTorch scripted; sizes are known only when planning."""
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    with tercet.load(parser.parse_model(NESTED)) as model:
        (found,) = model(x)
        assert [row.operators for row in model.placement()] == ["Exp"]
    np.testing.assert_allclose(found, np.exp(x), 1e-6)
