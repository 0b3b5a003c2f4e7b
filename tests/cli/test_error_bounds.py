"""The verdict on honest and on wrong outputs: small models here, all others in `tools/verdicts`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tercet as api
from tercet.runtime.options import Precision
from tercet.tools.bisect import precision
from tercet.tools.compare.compare import compare
from tercet.tools.report.report import report
from tercet.tools.verdict import accuracy
from tercet.tools.verdict.agreement import Agreement
from tercet.tools.verdict.error_bounds import Judge
from tercet.tools.verdict.rounding import CAP
from tercet.tools.workshop import verdicts
from tercet.tools.workshop.planted import planted
from tercet.tools.workshop.verdicts import Truth, prove

from . import models
from .conftest import Tercet

Arrays = dict[str, np.ndarray]
Case = tuple[onnx.ModelProto, Arrays]
#: An operator, its inputs, its outputs, and perhaps attributes.
Node = tuple[str, str, str] | tuple[str, str, str, dict[str, Any]]


def model(
    nodes: Sequence[Node],
    inputs: Arrays,
    constants: Arrays,
    outputs: dict[str, int],
    opset: int = 21,
) -> Case:
    """A model of these nodes, with inputs that fit it."""
    made = [
        helper.make_node(op, reads.split(), gives.split(), **dict(*rest))
        for op, reads, gives, *rest in nodes
    ]
    kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info(n, kinds[d.dtype.name], d.shape) for n, d in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(data, name) for name, data in constants.items()],
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10), inputs


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def deep() -> Case:
    """Forty layers, each of which makes noise grow a little."""
    nodes, constants = [], {}
    for i in range(40):
        constants[f"w{i}"] = numbers(32, 32, seed=i, scale=0.3)
        nodes += [("MatMul", f"x{i} w{i}", f"m{i}"), ("Tanh", f"m{i}", f"x{i + 1}")]
    return model(nodes, {"x0": numbers(4, 32)}, constants, {"x40": 1})


def large_logits() -> Case:
    """A softmax of logits of some thousands: an ulp of them is a share of the result."""
    nodes = [("MatMul", "x w", "l"), ("Softmax", "l", "y")]
    return model(nodes, {"x": numbers(6, 64, scale=60)}, {"w": numbers(64, 24, seed=1)}, {"y": 1})


def cancelling() -> Case:
    """A sum of which next to nothing is left: half of the digits are noise."""
    nodes = [("Add", "x big", "a"), ("Mul", "a third", "b"), ("Sub", "b rest", "y")]
    x = numbers(8, 16)
    big, third = np.float32(3e4), np.float32(1 / 3)
    rest = np.asarray(np.float32(np.float64(big) * np.float64(third)))
    constants = {"big": np.array([big]), "third": np.array([third]), "rest": rest}
    return model(nodes, {"x": x}, constants, {"y": 1})


def quantized() -> Case:
    """Two layers between QuantizeLinear and DequantizeLinear, as exporters write them."""
    constants = {"s": np.array(0.031, np.float32), "z": np.array(0, np.int8)}
    nodes: list[Node] = []
    for i in range(2):
        constants[f"w{i}"] = numbers(24, 24, seed=i, scale=0.2)
        nodes += [
            ("QuantizeLinear", f"x{i} s z", f"q{i}"),
            ("DequantizeLinear", f"q{i} s z", f"d{i}"),
            ("MatMul", f"d{i} w{i}", f"x{i + 1}"),
        ]
    return model(nodes, {"x0": numbers(16, 24)}, constants, {"x2": 1, "q1": TensorProto.INT8})


def dynamically_quantized() -> Case:
    nodes = [
        ("DynamicQuantizeLinear", "x", "q s z"),
        ("MatMulInteger", "q w z", "i"),
        ("Cast", "i", "f", {"to": 1}),
        ("Mul", "f s", "y"),
    ]
    # With more bits, sums of onnxruntime without VNNI would not hold the products.
    w = np.random.default_rng(1).integers(-64, 64, (24, 8)).astype(np.int8)
    return model(nodes, {"x": numbers(8, 24)}, {"w": w}, {"y": 1})


def counting() -> Case:
    """How many are above a threshold, which is greatest, and the five greatest."""
    nodes = [
        ("MatMul", "x w", "l"),
        ("Greater", "l t", "g"),
        ("Cast", "g", "c", {"to": 7}),
        ("ReduceSum", "c", "count", {"keepdims": 0}),
        ("ArgMax", "l", "best", {"axis": -1, "keepdims": 0}),
        ("TopK", "l k", "top where"),
    ]
    constants = {"w": numbers(16, 64, seed=1), "t": np.array([1], np.float32), "k": np.array([5])}
    outputs = {"count": 7, "best": 7, "top": 1, "where": 7}
    return model(nodes, {"x": numbers(8, 16)}, constants, outputs)


def uneven() -> Case:
    """Rows of 1e4 above rows of 1e-2, and channels likewise."""
    nodes = [("MatMul", "x w", "m"), ("Mul", "m s", "y")]
    scale = np.array([[1e4], [1e4], [1e-2], [1.0]], np.float32)
    constants = {"w": numbers(16, 12, seed=1), "s": scale}
    return model(nodes, {"x": numbers(4, 16)}, constants, {"y": 1})


def picture() -> Case:
    nodes = [
        ("Conv", "x w", "c", {"pads": [1, 1, 1, 1]}),
        ("Relu", "c", "r"),
        ("Conv", "r v", "y", {"pads": [1, 1, 1, 1]}),
    ]
    constants = {"w": numbers(16, 3, 3, 3, seed=1, scale=0.2), "v": numbers(8, 16, 3, 3, scale=0.1)}
    return model(nodes, {"x": numbers(1, 3, 16, 16)}, constants, {"y": 1})


def level() -> Case:
    """Norms of channels of equal whole numbers: libraries shift what they have scaled."""
    x = numbers(2, 4, 6, 6)
    x[:, ::2] = np.array([3, 77], np.float32)[:, np.newaxis, np.newaxis]
    nodes = [("InstanceNormalization", "x s b", "y")]
    return model(nodes, {"x": x}, {"s": numbers(4, seed=1), "b": numbers(4, seed=2)}, {"y": 1})


def level_mean() -> Case:
    """Their means: the error of a shift is that of all elements."""
    x = numbers(2, 4, 6, 6)
    x[:, ::2] = np.array([3, 77], np.float32)[:, np.newaxis, np.newaxis]
    nodes = [("InstanceNormalization", "x s b", "n"), ("GlobalAveragePool", "n", "y")]
    return model(nodes, {"x": x}, {"s": numbers(4, seed=1), "b": numbers(4, seed=2)}, {"y": 1})


CASES: dict[str, Callable[[], Case]] = {
    made.__name__: made
    for made in (
        deep,
        large_logits,
        cancelling,
        quantized,
        dynamically_quantized,
        counting,
        uneven,
        picture,
        level,
        level_mean,
    )
}


@pytest.mark.parametrize("name", CASES)
def test_no_false_accept_and_no_false_alarm(name: str) -> None:
    pytest.importorskip("onnxruntime")
    proto, feeds = CASES[name]()
    proof = prove(name, "", proto, feeds)
    assert not proof.failed
    assert proof.honest >= 6
    assert proof.planted >= 10
    assert not proof.accepted
    assert not proof.alarms
    assert not proof.honest_inconclusive
    assert proof.mismatch + len(proof.inconclusive) > proof.planted / 2


def test_a_shift_that_absorbs_the_bias_proves_nothing() -> None:
    """Of a channel that a mask forbids; onnxruntime gives 0, and float64 the bias."""
    pytest.importorskip("onnxruntime")
    x = numbers(1, 32, 8)
    x[:, ::2] = -1e9
    constants = {"s": numbers(32, seed=1), "b": numbers(32, seed=2)}
    nodes = [("InstanceNormalization", "x s b", "y")]
    proof = prove("masked", "", *model(nodes, {"x": x}, constants, {"y": 1}))
    assert len(proof.honest_inconclusive) == 3
    assert not proof.alarms
    assert not proof.accepted
    assert proof.mismatch > proof.planted / 2


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "tf32"])
@pytest.mark.parametrize("name", ["deep", "picture"])
def test_no_false_accept_in_coarse_arithmetic(name: str, precision: Precision) -> None:
    """Of 1 % of the scale; what costs more is inconclusive in honest runs, too."""
    pytest.importorskip("onnxruntime")
    proof = prove(name, "", *CASES[name](), precision)
    assert not proof.failed
    assert not proof.accepted
    assert not proof.alarms
    assert proof.honest >= 3
    assert proof.mismatch > proof.planted / 2


@pytest.mark.parametrize("name", ["vit-cifar-ibp_3_3_8", "mnist-8-cntk", "tract-xgboost-tree-ml"])
def test_shared_models(name: str, shared_models: Path) -> None:
    pytest.importorskip("onnxruntime")
    feeds = dict(np.load(shared_models / name / "inputs.npz"))
    proof = prove(name, "inputs", shared_models / name / "model.onnx", feeds)
    assert not proof.accepted
    assert not proof.alarms


@pytest.mark.parametrize(
    ("off", "unchanged", "noise"), [(1e-7, True, True), (1.2e-5, False, True), (9e-5, False, False)]
)
def test_what_is_no_change(off: float, unchanged: bool, noise: bool) -> None:
    """Honest runtimes may agree better than the noise of their arithmetic; both tell of it."""
    exact = numbers(4, 64).astype(np.float64)
    fair = [exact + 1e-5 * numbers(4, 64, seed=seed).clip(-1, 1) for seed in range(4)]
    right = exact.astype(np.float32)
    truth = Truth(exact, [right], lambda: fair)
    wrong = right.copy()
    wrong[1, 7] += np.float32(off)
    assert truth.is_unchanged(right, right)
    assert truth.is_unchanged(right, wrong) == unchanged
    assert truth.is_noise(wrong) == noise


def test_a_run_with_noise_is_noise_itself() -> None:
    """Of many elements some are far from where they are in all other runs."""
    exact = numbers(200, 300).astype(np.float64)
    runs = [exact + 1e-6 * numbers(200, 300, seed=seed) for seed in range(1, 8)]
    fair = [way for run in runs[1:] for way in (run, 2 * exact - run)]
    truth = Truth(exact, [exact.astype(np.float32)], lambda: fair)
    assert truth.is_noise(runs[0])
    wrong = runs[0].copy()
    wrong[3, 5] = exact[3, 5] + 1e-5
    assert not truth.is_noise(wrong)


def test_the_page_lists_what_was_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = "light_vgg19", "--seconds", "0", "--output", str(tmp_path)
    monkeypatch.setattr("sys.argv", ["verdicts", str(tmp_path), *chosen])
    assert verdicts.main() == 0
    missing = (tmp_path / "verdicts.md").read_text(encoding="utf-8").partition("## Not run")[2]
    assert "- time: light_vgg19 (normal, float32)" in missing
    assert "not asked for: light_bvlc_alexnet (normal, float32)" in missing


def judged(case: Case, change: Callable[[np.ndarray], np.ndarray], output: str = "y") -> Agreement:
    proto, feeds = case
    with api.load(proto, stop_at=0) as loaded:
        right = loaded.run(feeds)[output]
        return Judge(loaded.imported, feeds).agreement(output, right, change(right.copy()))


def test_subnormal_halves_have_few_bits() -> None:
    """A limit of 1e-5 is 1.0014e-5 in float16: no less exact than float16 is."""
    limit = np.array([1e-5], np.float32)
    proto, feeds = model([("Min", "x c", "y")], {"x": numbers(3, 4) + 9}, {"c": limit}, {"y": 1})
    with api.load(proto, stop_at=0) as loaded:
        right = loaded.run(feeds)["y"]
        narrow = right.astype(np.float16).astype(np.float32)
        assert Judge(loaded.imported, feeds, "float16").agreement("y", right, narrow).ok
        assert not Judge(loaded.imported, feeds, "float16").agreement("y", right, 1.05 * right).ok
        assert not Judge(loaded.imported, feeds).agreement("y", right, narrow).ok


def test_large_rows_do_not_hide_small_ones() -> None:
    def wrong(y: np.ndarray) -> np.ndarray:
        y[2] *= np.float32(1.01)
        return y

    found = judged(uneven(), wrong)
    assert found.verdict == "MISMATCH"
    assert found.max_rel < 1e-7


def test_a_class_of_saturated_softmax_is_no_rounding() -> None:
    """However much its logits amplify, shifted classes are never ok."""
    found = judged(large_logits(), lambda y: np.roll(y, 1, -1))
    assert found.verdict == "MISMATCH"


def at_the_limits(scaled: bool) -> Case:
    """Inputs that are as large as the limits of a tree and of bins, or nearly so."""
    tree = {
        "domain": "ai.onnx.ml",
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_values": [float(np.float32(0.7)), 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1 / 3, 2 / 3],
        "n_targets": 1,
    }
    nodes = [("Mul", "x third", "m"), ("Mul", "m three", "z")] if scaled else []
    read = "z" if scaled else "x"
    nodes += [("TreeEnsembleRegressor", read, "tree", tree), ("Less", f"{read} limits", "below")]
    nodes += [("Where", "below small large", "bins")]
    constants = {
        "third": np.array([1 / 3], np.float32),
        "three": np.array([3], np.float32),
        "limits": np.full((1, 2), 0.7, np.float32),
        "small": np.array([1 / 3], np.float32),
        "large": np.array([2 / 3], np.float32),
    }
    x = np.random.default_rng(3).uniform(0, 1, (64, 1)).round(1).astype(np.float32)
    return model(nodes, {"x": x}, constants, {"tree": 1, "bins": 1})


def off_at(*rows: int) -> Callable[[np.ndarray], np.ndarray]:
    """The other value of two, in these rows."""

    def change(y: np.ndarray) -> np.ndarray:
        chosen, (small, large) = y[list(rows)], np.unique(y)
        y[list(rows)] = np.where(chosen == small, large, small)
        return y

    return change


@pytest.mark.parametrize("output", ["tree", "bins"])
def test_comparing_inputs_rounds_nothing(output: str) -> None:
    """Both runners read the same inputs and limits, so both are on the same side of each limit."""
    proto, feeds = at_the_limits(scaled=False)
    (row, *_) = np.flatnonzero(feeds["x"] == np.float32(0.7))
    found = judged((proto, feeds), off_at(int(row)), output)
    assert found.verdict == "MISMATCH"


@pytest.mark.parametrize("output", ["tree", "bins"])
def test_between_two_steps_is_no_rounding(output: str) -> None:
    """Where noise decides between two values, another one is as wrong as elsewhere."""
    case = at_the_limits(scaled=True)
    for change in (lambda y: y * np.float32(1.003), lambda y: y.astype(np.float16).astype(y.dtype)):
        assert judged(case, change, output).verdict == "MISMATCH"
    rows = np.flatnonzero(case[1]["x"] == np.float32(0.7))
    assert judged(case, off_at(*map(int, rows)), output).verdict != "MISMATCH"


def amplifying() -> Case:
    """All digits are noise: 1e8 is added and taken away again."""
    nodes = [("Mul", "x third", "a"), ("Add", "a big", "b"), ("Sub", "b big", "c")]
    nodes += [("Mul", "c x", "y")]
    constants = {"third": np.array([1 / 3], np.float32), "big": np.array([1.1e7], np.float32)}
    return model(nodes, {"x": numbers(4, 64)}, constants, {"y": 1})


@pytest.mark.parametrize("error", [name for name, _ in planted(numbers(4, 64))])
def test_where_all_is_noise_nothing_is_ok(error: str) -> None:
    found = judged(amplifying(), lambda y: dict(planted(y))[error])
    assert found.verdict != "ok" or found.max_rel < CAP["float32"]


def test_inconclusive_says_why_everywhere(folder: Path, tercet: Tercet) -> None:
    proto, feeds = amplifying()
    onnx.save(proto, folder / "m.onnx")
    np.savez("in.npz", x=feeds["x"])
    with api.load(proto, stop_at=0) as loaded:
        right = loaded.run(feeds)["y"]
    np.savez("off.npz", y=right + np.float32(0.02) * np.sign(right))
    chosen = "m.onnx", "-b", "numpy", "-b", "off.npz", "--inputs-from", "in.npz", "--repeat", 0
    done = tercet("compare", *chosen)
    assert done.code == 8
    text = " ".join(done.out.split())
    assert "inconclusive: off.npz against numpy" in text
    assert "rounding grows" in text
    assert "(Sub)" in text
    assert "--layers" in text
    assert tercet("compare", *chosen, "--allow-inconclusive").code == 0
    found = tercet("compare", *chosen, "--json").json
    (output,) = found["runners"][1]["outputs"]
    assert (found["ok"], found["verdict"], output["verdict"]) == (False, *["inconclusive"] * 2)
    assert "rounding" in output["reason"]
    assert 'class="unsure"' in report([found]).html
    result = compare("m.onnx", ["numpy", "off.npz"], feeds, repeat=0)
    assert (result.ok, result.verdict, result.exit_code) == (False, "inconclusive", 8)
    allowed = compare("m.onnx", ["numpy", "off.npz"], feeds, repeat=0, allow_inconclusive=True)
    assert (allowed.ok, allowed.exit_code) == (False, 0)
    wide = compare("m.onnx", ["numpy", "off.npz"], feeds, repeat=0, rtol=0.5)
    assert (wide.ok, wide.verdict, wide.exit_code) == (True, "ok", 0)


def test_it_says_who_is_nearer_to_float64() -> None:
    found = judged(picture(), lambda y: y * np.float32(1.001))
    assert found.verdict == "MISMATCH"
    assert re.search(r"the runner is \de\+\d+ times as far from float64 \(1.0e-03\)", found.reason)
    endless = judged(picture(), lambda y: np.full_like(y, np.inf))
    assert "the runner is inf from float64, the reference " in endless.reason


def test_a_reference_that_is_far_off_widens_nothing() -> None:
    """Both far from float64: what they differ by counts all the same."""
    proto, feeds = picture()
    with api.load(proto, stop_at=0) as loaded:
        right = loaded.run(feeds)["y"]
        judge = Judge(loaded.imported, feeds)
    assert judge.agreement("y", right * 2, right * np.float32(2.0002)).verdict == "MISMATCH"
    assert judge.agreement("y", right * 2, right * 2).verdict == "ok"


def test_two_equal_boxes_may_change_places() -> None:
    """Rows in the order of scores that are equal but for rounding: the evidence is both orders.

    It proves neither of them, as rows that change places change all of the result.
    """
    nodes = [
        ("Mul", "x third", "s"),
        ("Mul", "s three", "t"),
        ("TopK", "t k", "top where", {"axis": 0}),
        ("Gather", "boxes where", "y"),
    ]
    x = np.array([0.3, 0.7, np.nextafter(np.float32(0.7), 1), 0.1], np.float32)
    constants = {
        "third": np.array([1 / 3], np.float32),
        "three": np.array([3.1], np.float32),
        "k": np.array([4]),
        "boxes": numbers(4, 4, scale=10),
    }
    case = model(nodes, {"x": x}, constants, {"y": 1, "where": 7})
    order = [1, 0, 2, 3]
    assert judged(case, lambda y: y[order]).verdict == "inconclusive"
    assert judged(case, lambda y: y[order], "where").verdict == "ok"
    assert judged(case, lambda y: y[[0, 1, 3, 2]]).verdict == "MISMATCH"
    assert judged(case, lambda y: y[[0, 1, 3, 2]], "where").verdict == "MISMATCH"


RIGHT = np.array([1.0, -2.0, np.inf])


@pytest.mark.parametrize(
    ("found", "distance"),
    [
        (RIGHT, 0.0),
        (np.array([1.0, -2.2, np.inf]), 0.2 / 5**0.5),
        (np.array([1.0, np.nan, np.inf]), np.inf),
        (np.array([1.0, -2.0, -np.inf]), np.inf),
        (np.array([1.0, -2.0, 7.0]), np.inf),
        (np.array([1.0, -2.0]), np.inf),
    ],
)
def test_no_result_hides_behind_nan(found: np.ndarray, distance: float) -> None:
    """`bench --assert-error` and `bisect --tolerance` measure what is not finite, too."""
    assert accuracy.distance({"y": found}, {"y": RIGHT}) == pytest.approx(distance)
    assert bool(precision._error({"y": found}, {"y": RIGHT}, {}) == 0) == (distance == 0)
    texts = np.array(["a", "b"], object)
    assert accuracy.distance({"y": texts[::-1]}, {"y": texts}) == np.inf
    assert accuracy.distance({"y": texts}, {"y": texts}) == 0


def test_simplify_and_bisect_say_the_same(
    folder: Path, tercet: Tercet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both end with 8 where the model itself amplifies what the passes change."""
    from tercet.tools.verdict import error_bounds

    proto, _ = picture()
    onnx.save(proto, folder / "m.onnx")
    assert tercet("simplify", "m.onnx", "out.onnx").code == 0
    unsure = models.classifier()
    onnx.save(unsure, folder / "c.onnx")
    ruling = error_bounds.Ruling("inconclusive", "for a test")
    monkeypatch.setattr(Judge, "_ruling", lambda *_: ruling)
    for command in (("simplify", "c.onnx", "o.onnx"), ("bisect", "c.onnx", "-b", "numpy")):
        done = tercet(*command, "--json")
        assert done.json["verdict"] in ("ok", "inconclusive")
        assert done.code == (8 if done.json["verdict"] == "inconclusive" else 0)
