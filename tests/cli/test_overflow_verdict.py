"""Numbers that exceed their dtype on the way to a result, where only some runtimes store them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tercet
from tercet.runtime.ir.types import Array
from tercet.tools.common.nested import flat
from tercet.tools.verdict.error_bounds import Judge
from tercet.tools.verdict.operators import ancestries, decisions
from tercet.tools.verdict.overflow import OVERFLOWS
from tercet.tools.verdict.retrace import Retrace
from tercet.tools.workshop.onnxruntime_process import run_onnxruntime

MODEL = onnx.parser.parse_model("""
  <ir_version: 8, opset_import: ["" : 21]>
  attention (float16[2,4,8] q, float16[2,8,4] k, float16[2,4,8] v) => (float16[2,4,8] y)
  <float tenth = {0.1}> {
    scale = Cast <to = 10> (tenth)
    scores = MatMul (q, k)
    scaled = Mul (scores, scale)
    weights = Softmax (scaled)
    y = MatMul (weights, v)
  }""")


def feeds(head: float) -> dict[str, Array]:
    """Return inputs whose second head is multiplied."""
    rng = np.random.default_rng(0)
    found = {
        n: rng.standard_normal((2, *s)) for n, s in (("q", (4, 8)), ("k", (8, 4)), ("v", (4, 8)))
    }
    found["q"][1] *= head
    found["k"][1] *= head
    return {name: data.astype(np.float16) for name, data in found.items()}


def both(given: dict[str, Array]) -> tuple[Judge, Array, Array]:
    """Return onnxruntime's result, which is computed in float32, and that of every step."""
    with tercet.load(MODEL, stop_at=0) as plain:
        judge = Judge(plain.imported, given)
        return judge, run_onnxruntime(MODEL, given)["y"], plain.run(given)["y"]


def test_an_overflow_of_one_side_proves_nothing() -> None:
    judge, reference, found = both(feeds(200))
    assert np.isnan(found[1]).any()
    assert np.isfinite(reference).all()
    result = judge.agreement("y", reference, found)
    assert result.verdict == "inconclusive"
    assert "exceed their dtype" in result.reason


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 3.0])
def test_other_elements_are_judged(wrong: float) -> None:
    judge, reference, found = both(feeds(200))
    found[0, 1, 2] = wrong
    assert judge.agreement("y", reference, found).verdict == "MISMATCH"


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_without_an_overflow_nothing_else_is_a_reason(wrong: float) -> None:
    judge, reference, found = both(feeds(1))
    found[1, 1, 2] = wrong
    assert judge.agreement("y", reference, found).verdict == "MISMATCH"


def with_ones() -> onnx.ModelProto:
    """Return the model with a constant beside what overflows."""
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    ones = np.ones((2, 4, 1), np.float16)
    model.graph.initializer.append(onnx.numpy_helper.from_array(ones, "ones"))
    model.graph.node.append(onnx.helper.make_node("Concat", ["y", "ones"], ["joined"], axis=2))
    joined = onnx.helper.make_tensor_value_info("joined", TensorProto.FLOAT16, None)
    model.graph.output.append(joined)
    return model


@pytest.mark.parametrize("order", [("onnxruntime", "numpy"), ("numpy", "onnxruntime")])
def test_what_overflows_for_any_inputs_does_not_ignore_them(order: tuple[str, str]) -> None:
    """All of y is NaN on numpy for the inputs and for other ones: the same bits."""
    given = {name: np.abs(data) for name, data in feeds(200).items()}
    for name in ("q", "k"):
        given[name][0] = given[name][1]
    found = tercet.compare(with_ones(), order, given, repeat=1, widen=False)
    by_name = {each.name: each for each in found.results}
    assert np.isnan(by_name["numpy"].outputs["y"]).all()
    for each in found.results[-1].agreements:
        assert each.verdict == "inconclusive"
        assert "exceed their dtype" in each.reason


def with_top() -> onnx.ModelProto:
    """Return the model with a decision: the greatest of weights that are NaN on one side."""
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    model.graph.node.append(onnx.helper.make_node("ArgMax", ["weights"], ["top"], axis=2))
    model.graph.output.append(onnx.helper.make_tensor_value_info("top", TensorProto.INT64, None))
    return model


def test_a_decision_behind_an_overflow_proves_nothing() -> None:
    found = tercet.compare(with_top(), ["onnxruntime", "numpy"], feeds(200), repeat=0, widen=False)
    verdicts = {each.output: each.verdict for each in found.results[-1].agreements}
    assert verdicts == {"y": "inconclusive", "top": "inconclusive"}


@pytest.mark.parametrize("change", [0, 2])
def test_a_runner_that_stores_what_overflows_is_named(change: int) -> None:
    """Of the weights in the last row all are NaN, the second is the greatest in float64."""
    given = feeds(200)
    with tercet.load(with_top(), stop_at=0) as plain:
        graph, taken = plain.imported, flat(plain.run(given))
    values = decisions(graph, ancestries(graph, "float32"))
    assert values is not None
    taken["top"] = taken["top"].copy()
    taken["top"][1, 3] += change
    way = Retrace(graph, given, "float32", values, taken).judged("top")
    assert way.word == "inconclusive"
    assert ("these very decisions" in way.reason) == (change == 0)


@pytest.mark.parametrize("kind", ["MatMul (x, w)", "ReduceMean <keepdims = 1> (x, axes)"])
def test_parts_of_a_sum_may_overflow(kind: str) -> None:
    """Whether they do hinges on their order; of the other row none exceeds float32."""
    model = onnx.parser.parse_model(f"""
      <ir_version: 8, opset_import: ["" : 21]>
      sums (float[2,4] x) => (float[2,1] y)
      <float[4,1] w = {{1, 1, 1, 1}}, int64[1] axes = {{1}}> {{ y = {kind} }}""")
    x = np.array([[3e38, 3e38, -3e38, -3e38], [1, 2, 3, 4]], np.float32)
    with tercet.load(model, stop_at=0) as plain:
        judge = Judge(plain.imported, {"x": x})
    right = judge.exact["y"].astype(np.float32)
    found = np.array([[np.inf], right[1]], np.float32)
    assert judge.agreement("y", right, found).verdict == "inconclusive"
    found[1] += 1
    assert judge.agreement("y", right, found).verdict == "MISMATCH"


@pytest.mark.parametrize("wrong", [0.0, 3.0])
def test_infinite_inputs_overflow_nothing(wrong: float) -> None:
    """Infinite terms of both signs are NaN, however the others are added up."""
    model = onnx.parser.parse_model("""
      <ir_version: 8, opset_import: ["" : 21]>
      g (float[2,8] x) => (float[2,4] y) { y = MatMul (x, w) }""")
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((8, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    x = rng.standard_normal((2, 8)).astype(np.float32)
    x[1, ::2] = -np.inf
    with tercet.load(model, stop_at=0) as plain:
        judge, right = Judge(plain.imported, {"x": x}), run_onnxruntime(model, {"x": x})["y"]
    assert np.isnan(right[1]).all()
    found = right.copy()
    assert judge.agreement("y", right, found).verdict == "ok"
    found[1] = wrong
    assert judge.agreement("y", right, found).verdict == "MISMATCH"


EXPONENTIALS = """<ir_version: 9, opset_import: ["" : 18]>
g (float16[4, 64] x) => (float16[4, 64] y) <int64[1] axis = {1}> {
  e = Exp (x)
  s = ReduceSum (e, axis)
  y = Div (e, s)
}"""


@pytest.mark.parametrize("order", [("numpy", "onnxruntime"), ("onnxruntime", "numpy")])
def test_zeros_that_an_overflow_leaves_are_no_inputs_that_are_read_once(
    order: tuple[str, str],
) -> None:
    """They are the same for all inputs, where sums are stored in float16."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    x = 3 * np.random.default_rng(1).standard_normal((4, 64)) + 6
    found = tercet.compare(EXPONENTIALS, order, {"x": x.astype(np.float16)}, repeat=1)
    (output,) = found.results[1].agreements
    assert output.verdict == "inconclusive"
    assert OVERFLOWS in output.reason
