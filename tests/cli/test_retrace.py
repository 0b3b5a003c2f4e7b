"""Each runner is judged on its own way: by what it decides, then by what follows from that."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tercet as api
from tercet.runtime.ir.types import Array
from tercet.tools.common.nested import flat
from tercet.tools.runners.onnxruntime_process import OnnxruntimeProcess
from tercet.tools.runners.runners import RunnerSettings, open_runner
from tercet.tools.verdict.noise import FAIR, ROUGH
from tercet.tools.verdict.operators import ancestries, decisions
from tercet.tools.verdict.retrace import Decided, settled
from tercet.tools.verdict.tolerances import Bounds, Chosen

Edit = Callable[[ModelProto, NodeProto], None]
Change = Callable[[Array], Array]
HALF, WIDTH = np.float16, 32
_PROCESS = OnnxruntimeProcess()


def quantized(seed: int, layers: int = 4) -> tuple[ModelProto, dict[str, Array]]:
    """Dense layers in float16, each behind a quantizer of int8."""
    rng = np.random.default_rng(seed)
    nodes: list[NodeProto] = []
    step, zero = np.array(4 / 127, HALF), np.array(0, np.int8)
    held = [numpy_helper.from_array(step, "step"), numpy_helper.from_array(zero, "zero")]
    last = "x"
    for i in range(layers):
        weight = rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH / 2)
        held.append(numpy_helper.from_array(weight.astype(HALF), f"w{i}"))
        for kind, inputs, output in (
            ("QuantizeLinear", [last, "step", "zero"], f"q{i}"),
            ("DequantizeLinear", [f"q{i}", "step", "zero"], f"d{i}"),
            ("MatMul", [f"d{i}", f"w{i}"], f"m{i}"),
            ("Relu", [f"m{i}"], f"r{i}"),
        ):
            nodes.append(helper.make_node(kind, inputs, [output], name=f"{kind}{i}"))
        last = f"r{i}"
    nodes[-1].output[0] = "y"
    shape = [4, WIDTH]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, shape)],
        held,
    )
    opset = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    return model, {"x": rng.standard_normal(shape).astype(HALF)}


def outputs(name: str, model: ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """Return the output and all that the model decides."""
    names = ("y", *(out for node in model.graph.node for out in node.output if out[0] == "q"))
    process = _PROCESS if name != "numpy" else None
    runner = open_runner(name, model, RunnerSettings(names), process)
    try:
        return flat(runner.run(feeds))
    finally:
        runner.close()


@cache
def reference() -> tuple[Bounds, dict[str, Array]]:
    model, feeds = quantized(0)
    with api.load(model, stop_at=0) as loaded:
        bounds = Bounds(loaded.imported, feeds, Chosen())
    return bounds, outputs("numpy", model, feeds)


@pytest.mark.parametrize("seed", range(6))
def test_two_honest_ways_agree(seed: int) -> None:
    """onnxruntime computes float16 in float32 here and there, and quantizes something else."""
    model, feeds = quantized(seed)
    found = api.compare(model, ["numpy", "onnxruntime:cpu:none"], feeds, repeat=0)
    assert found.ok, str(found)
    assert found["onnxruntime:cpu:none"].agreements[0].max_rel > 0


def test_saved_outputs_tell_no_decisions(tmp_path: Path) -> None:
    model, feeds = quantized(0)
    saved = tmp_path / "onnxruntime.npz"
    np.savez(saved, allow_pickle=False, y=outputs("onnxruntime:cpu:none", model, feeds)["y"])
    found = api.compare(model, ["numpy", str(saved)], feeds, repeat=0)
    assert found.verdict == "inconclusive"
    (agreement,) = found[str(saved)].agreements
    assert agreement.reason.endswith(f"the decisions of {saved} (its outputs were saved)")


def _constant(
    model: ModelProto, node: NodeProto, at: int, change: Callable[[Array], Array]
) -> None:
    old = next(t for t in model.graph.initializer if t.name == node.input[at])
    name = f"{node.name}/{at}"
    data = numpy_helper.to_array(old)
    model.graph.initializer.append(numpy_helper.from_array(change(data).astype(data.dtype), name))
    node.input[at] = name


def _before(model: ModelProto, node: NodeProto, shift: float) -> None:
    name = f"{node.name}/shift"
    model.graph.initializer.append(numpy_helper.from_array(np.array(shift, HALF), name))
    made = helper.make_node("Add", [node.input[0], name], [f"{name}ed"])
    model.graph.node.insert(list(model.graph.node).index(node), made)
    found = next(each for each in model.graph.node if each.name == node.name)
    found.input[0] = f"{name}ed"


def _channel(x: Array) -> Array:
    return np.where(np.arange(WIDTH) == 6, 1.1, 1) * x


FAULTS: dict[str, tuple[str, Edit]] = {
    "another zero": ("QuantizeLinear2", lambda m, n: _constant(m, n, 2, lambda x: x + 1)),
    "another step": ("QuantizeLinear2", lambda m, n: _constant(m, n, 1, lambda x: x * 1.05)),
    "rounded down": ("QuantizeLinear2", lambda m, n: _before(m, n, -2 / 127)),
    "a third of a step": ("QuantizeLinear2", lambda m, n: _before(m, n, 4 / 3 / 127)),
    "transposed": ("MatMul1", lambda m, n: _constant(m, n, 1, np.transpose)),
    "a channel": ("MatMul1", lambda m, n: _constant(m, n, 1, _channel)),
    "no relu": ("Relu1", lambda m, n: setattr(n, "op_type", "Identity")),
    "the last layer": ("MatMul3", lambda m, n: _constant(m, n, 1, _channel)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_where_it_is(fault: str) -> None:
    name, edit = FAULTS[fault]
    bounds, right = reference()
    wrong, feeds = quantized(0)
    edit(wrong, next(node for node in wrong.graph.node if node.name == name))
    found = outputs("onnxruntime:cpu:none", wrong, feeds)
    plain = bounds.compare("y", right["y"], found["y"], ("float32", "float32"))
    ways = {who: bounds.way(data, "float32") for who, data in (("a", right), ("b", found))}
    result = settled(plain, ways)
    assert result.verdict == "MISMATCH"
    assert not result.reason.startswith("the reference")
    swapped = settled(plain, {"b": ways["b"], "a": ways["a"]})
    assert swapped.reason == f"the reference: {result.reason}"
    behind = "QuantizeLinear2" if not name.endswith("3") else "whatever it decides"
    assert behind in result.reason, result.reason


def test_what_noise_may_flip() -> None:
    model, _ = quantized(0)
    with api.load(model, stop_at=0) as loaded:
        graph = loaded.imported
        found = decisions(graph, ancestries(graph, "float32")) or []
        assert [value.name for value in found] == ["q0", "q1", "q2", "q3"]


@pytest.mark.parametrize(
    ("taken", "word"),
    [
        ([0, 0, 0, 0], "ok"),
        ([1, 0, 0, 0], "ok"),
        ([0, 2, 0, 0], "inconclusive"),  # far more noise than rounding alone flips it
        ([0, 0, 1, 0], "MISMATCH"),
        ([1, -1, 0, 0], "MISMATCH"),
    ],
)
def test_decisions_are_those_of_some_noise(taken: list[int], word: str) -> None:
    decided = Decided(np.zeros(4, np.int8))
    decided.add(np.array([1, 0, 0, 0], np.int8), FAIR)
    decided.add(np.array([1, 1, 0, 0], np.int8), ROUGH)
    decided.add(np.array([1, 2, 0, 0], np.int8), ROUGH, is_wide=True)
    assert decided.judged(np.array(taken, np.int8))[0] == word


@pytest.mark.parametrize(
    ("samples", "taken", "word"),
    [
        ([3.0, 4.0], np.nan, "MISMATCH"),
        ([3.0, np.nan], np.nan, "ok"),
        ([3.0, np.nan], 3.0, "ok"),
        ([3.0, np.nan], 5.0, "MISMATCH"),
        ([np.nan, np.nan], np.nan, "ok"),
        ([np.nan, np.nan], 3.0, "MISMATCH"),
    ],
)
def test_decisions_are_nan_where_some_noise_makes_them_so(
    samples: list[float], taken: float, word: str
) -> None:
    decided = Decided(np.array(samples[:1]))
    for sample in samples:
        decided.add(np.array([sample]), FAIR)
    assert decided.judged(np.array([taken]))[0] == word


@pytest.mark.parametrize("name", ["INT4", "UINT4", "FLOAT8E4M3FN", "INT16"])
def test_quantizers_of_all_formats(name: str) -> None:
    model, feeds = quantized(1)
    dtype = getattr(TensorProto, name)
    zero = next(t for t in model.graph.initializer if t.name == "zero")
    zero.CopyFrom(helper.make_tensor("zero", dtype, [], [0]))
    with api.load(model, stop_at=0) as loaded:
        bounds = Bounds(loaded.imported, feeds, Chosen())
    right = outputs("numpy", model, feeds)
    way = bounds.way(right, "float32")
    assert way.judged("y").word == "ok"
    wrong = bounds.way({**right, "q2": right["q1"]}, "float32")
    assert wrong.judged("y").word == "MISMATCH"


def test_too_many_decisions_are_no_rounding() -> None:
    decided = Decided(np.zeros(100, np.int8))
    everywhere = np.ones(100, np.int8)
    for i in range(100):
        decided.add((np.arange(100) == i).astype(np.int8), FAIR)
    assert decided.judged((np.arange(100) < 4).astype(np.int8)) == ("ok", "")
    assert decided.judged((np.arange(100) < 5).astype(np.int8))[0] == "MISMATCH"
    decided.add(everywhere, ROUGH)
    assert decided.judged((np.arange(100) < 5).astype(np.int8))[0] == "inconclusive"


def test_decisions_that_constants_determine_are_not_followed(tmp_path: Path) -> None:
    model, feeds = quantized(0, layers=1)
    graph = model.graph
    graph.node.insert(0, helper.make_node("Less", ["step", "step"], ["never"]))
    graph.node.append(helper.make_node("Where", ["never", "x", "y"], ["z"]))
    graph.output[0].name = "z"
    with api.load(model) as loaded:
        z = np.asarray(loaded.run(feeds)["z"])
    np.savez(tmp_path / "wrong.npz", allow_pickle=False, z=z * HALF(1.5))
    found = api.compare(model, ["numpy", str(tmp_path / "wrong.npz")], feeds, repeat=0)
    assert found.verdict == "MISMATCH"


def test_an_output_that_hinges_on_no_decision_is_judged_without() -> None:
    """As positions whose sines amplify the rounding of float16."""
    model, feeds = quantized(0, layers=1)
    rng, graph = np.random.default_rng(0), model.graph
    places = np.stack(np.meshgrid(*[np.linspace(-1, 1, 64)] * 2), -1)
    rates = 12 * rng.standard_normal((2, 128))
    for name, data in (("at", places), ("rates", rates), ("period", np.array(2 * np.pi))):
        graph.initializer.append(numpy_helper.from_array(data.astype(HALF), name))
    graph.node.append(helper.make_node("MatMul", ["at", "rates"], ["laps"]))
    graph.node.append(helper.make_node("Mul", ["laps", "period"], ["angles"]))
    graph.node.append(helper.make_node("Sin", ["angles"], ["sines"]))
    graph.output.append(helper.make_tensor_value_info("sines", TensorProto.FLOAT16, [64, 64, 128]))
    found = api.compare(model, ["numpy", "onnxruntime:cpu:none"], feeds, repeat=0)
    words = [each.verdict for each in found["onnxruntime:cpu:none"].agreements]
    assert words == ["ok", "inconclusive"]


def _nearly_equal(rows: int, columns: int) -> tuple[ModelProto, dict[str, Array]]:
    """Rows of scores that are different in float64, and nearly all equal in float32."""
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Sigmoid", ["m"], ["s"]),
        helper.make_node("ArgMax", ["s"], ["i"], axis=1, keepdims=0),
        helper.make_node("Gather", ["t", "i"], ["y"]),
    ]
    weight = 1 + 1e-8 * rng.standard_normal((8, columns))
    held = [
        numpy_helper.from_array(weight.astype(np.float32), "w"),
        numpy_helper.from_array(rng.standard_normal(columns).astype(np.float32), "t"),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 8])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows])
    graph = helper.make_graph(nodes, "g", [given], [made], held)
    opset = [helper.make_opsetid("", 21)]
    x = (rng.standard_normal((rows, 8)) - 1.4).astype(np.float32)
    return helper.make_model(graph, opset_imports=opset, ir_version=10), {"x": x}


def test_of_scores_that_storing_makes_equal_a_runner_takes_the_first() -> None:
    """That is no error, though noise rarely makes the first of many the greatest."""
    model, feeds = _nearly_equal(200, 80)
    with api.load(model, stop_at=0) as loaded:
        bounds = Bounds(loaded.imported, feeds, Chosen())
    runner = open_runner("onnxruntime", model, RunnerSettings(("y", "i")), _PROCESS)
    try:
        found = flat(runner.run(feeds))
    finally:
        runner.close()
    assert np.mean(found["i"] == 0) > 0.9
    assert bounds.way(found, "float32").judged("y").word != "MISMATCH"
    # What follows must be what follows from these decisions.
    one_wrong = {**found, "i": np.where(np.arange(200) == 7, -1, found["i"])}
    assert bounds.way(one_wrong, "float32").judged("y").word == "MISMATCH"
