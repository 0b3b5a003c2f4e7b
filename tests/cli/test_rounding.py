"""What the rule says of arrays, and which nodes it takes to round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import bfloat16
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tercet as api
from tercet.tools.bench.bench_quality import judged
from tercet.tools.verdict.decisions import rule_decisions
from tercet.tools.verdict.error_bounds import Judge
from tercet.tools.verdict.noise import ROUGH
from tercet.tools.verdict.rounding import Evidence, rule_floats, rule_ordinary


@pytest.mark.parametrize(
    ("times", "word"), [(1, "ok"), (15, "inconclusive"), (30, "MISMATCH")], ids=str
)
def test_only_ordinary_rounding_is_agreement(times: float, word: str) -> None:
    """An element may move as far as fair samples do; between them and rough ones nothing is ok."""
    rng = np.random.default_rng(0)
    exact = rng.uniform(0.5, 1, (4, 6, 50))
    fair = [exact + 1e-6 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    rough = [exact + 8e-6 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    evidence = Evidence(exact, rough, fair, "float32", 1e-38, jumps=False)
    wrong = exact.copy()
    wrong[1, 2, 3] += times * 1e-6
    assert rule_floats(exact, wrong, evidence).word == word


@pytest.mark.parametrize(
    ("farthest", "word"), [(3e-7, "ok"), (1e-7, "inconclusive"), (None, "inconclusive")], ids=str
)
def test_few_samples_may_all_be_small(farthest: float | None, word: str) -> None:
    """Where all samples of an element happen to lie near each other, more of them decide."""
    rng = np.random.default_rng(0)
    exact = rng.uniform(0.5, 1, 1200)
    fair = [exact + 1e-7 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    rough = [exact + 1e-6 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    more = None if farthest is None else lambda at: np.full(np.count_nonzero(at), farthest)
    evidence = Evidence(exact, rough, fair, "float32", 1e-38, jumps=False, more=more)
    other = exact.copy()
    other[3] += 2e-6
    ruling = rule_floats(exact, other, evidence)
    assert ruling.word == word, ruling
    other[:20] += 2e-6
    assert rule_floats(exact, other, evidence).word != "ok"


@pytest.mark.parametrize(("samples", "word"), [(3, "ok"), (12, "inconclusive")])
def test_of_three_samples_all_may_be_far_smaller_than_of_twelve(samples: int, word: str) -> None:
    rng = np.random.default_rng(0)
    exact = rng.uniform(0.5, 1, 1200)
    fair = [exact + 1e-7 * rng.uniform(-1, 1, exact.shape) for _ in range(samples)]
    for sample in fair:
        sample[3] = exact[3] + 1e-9
    evidence = Evidence(
        exact,
        (),
        fair,
        "float32",
        1e-38,
        jumps=False,
        scarce=(12 / samples) ** 0.5,
        more=lambda at: np.full(np.count_nonzero(at), 5e-7),
    )
    other = exact.copy()
    other[3] += 4e-6
    assert rule_ordinary(exact, other, evidence).word == word


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9], ids=str)
def test_large_elements_do_not_hide_small_ones(share: float) -> None:
    """Magnitudes of forty decades side by side, each with as much noise as its own size has."""
    rng = np.random.default_rng(0)
    exact = np.exp(rng.uniform(-46, 46, (16, 30)))
    fair = [exact * (1 + 1e-7 * rng.uniform(-1, 1, exact.shape)) for _ in range(12)]
    rough = [exact * (1 + 1e-6 * rng.uniform(-1, 1, exact.shape)) for _ in range(12)]
    evidence = Evidence(exact, rough, fair, "float32", 1e-38, jumps=False)
    noisy = exact * (1 + 1e-7 * rng.uniform(-1, 1, exact.shape))
    assert rule_floats(exact, noisy, evidence).word == "ok"
    at = np.argsort(exact.ravel())[int(share * exact.size)]
    for times in (-1.0, 0.0, 1.001):
        wrong = exact.copy()
        wrong.flat[at] *= times
        assert rule_floats(exact, wrong, evidence).word == "MISMATCH", times


def test_a_quotient_need_not_be_exact_where_it_could_be() -> None:
    """Libraries that multiply by a reciprocal, as OpenVINO's does, make 0.99999994 of x / x."""
    kind = TensorProto.FLOAT
    nodes = [helper.make_node("Div", "xx", ["y"]), helper.make_node("Add", "yy", ["z"])]
    nodes += [helper.make_node("Div", "xx", ["q"]), helper.make_node("Floor", ["q"], ["n"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, (4, 16))],
        [helper.make_tensor_value_info(name, kind, (4, 16)) for name in "yzn"],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = np.random.default_rng(0).uniform(1, 9, (4, 16)).astype(np.float32)
    with api.load(proto, stop_at=0) as loaded:
        judge, right = Judge(loaded.imported, {"x": x}), loaded.run({"x": x})
    near = x * (np.float32(1) / x)
    assert not np.array_equal(near, right["y"])
    assert judge.agreement("y", right["y"], near).ok
    assert judge.agreement("z", right["z"], near + near).ok
    assert judge.agreement("y", right["y"], right["y"] + np.float32(1e-5)).verdict == "MISMATCH"
    assert judge.agreement("n", right["n"], right["n"] - 1).verdict == "MISMATCH"


def test_a_window_is_a_sum_of_its_elements() -> None:
    """The mean of 49 equal numbers, added up one after the other."""
    kind = TensorProto.FLOAT
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[7, 7], pads=[3, 3, 3, 3])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, (1, 3, 14, 14))],
        [helper.make_tensor_value_info("y", kind, (1, 3, 14, 14))],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = np.full((1, 3, 14, 14), 0.3, np.float32)
    terms = np.full(49, 0.3, np.float32)
    mean = np.add.accumulate(terms, dtype=np.float32)[-1] / np.float32(49)
    with api.load(proto, stop_at=0) as loaded:
        judge, right = Judge(loaded.imported, {"x": x}), loaded.run({"x": x})["y"]
    other = right.copy()
    other[:, :, 3:-3, 3:-3] = mean
    assert judge.agreement("y", x, other).ok
    assert not judge.agreement("y", right, right * np.float32(1.0001)).ok


def test_a_scalar_is_judged_like_any_other_output() -> None:
    """An output without axes, as scales of dynamic quantization are."""
    rng = np.random.default_rng(0)
    exact = np.array(0.75)
    fair, rough = (
        [np.array(0.75 + amount * rng.uniform(-1, 1)) for _ in range(12)] for amount in (1e-7, 1e-6)
    )
    evidence = Evidence(exact, rough, fair, "float32", 1e-38, jumps=False)
    assert rule_floats(exact, np.array(0.75 + 5e-8), evidence).word == "ok"
    assert rule_floats(exact, np.array(0.7501), evidence).word == "MISMATCH"


@pytest.mark.parametrize(("size", "word"), [(40, "inconclusive"), (40000, "ok")], ids=str)
def test_a_step_beyond_the_cap_is_agreement_only_where_it_is_rare(size: int, word: str) -> None:
    """Rounding decides between two values of one element, as it does in every second sample."""
    exact = np.random.default_rng(0).integers(0, 250, size) / 256
    other = exact.copy()
    other[3] += 1 / 256
    samples = [exact, other] * 6
    evidence = Evidence(exact, samples, samples, "float32", 1e-38, jumps=True)
    assert rule_floats(exact, other, evidence).word == word
    unseen = exact.copy()
    unseen[4] += 1 / 256
    assert rule_floats(exact, unseen, evidence).word != "ok"


def test_all_fair_samples_may_be_on_one_side_of_a_limit() -> None:
    """Formats of few bits round what is near a limit onto it; noise of that size seldom does."""
    rng = np.random.default_rng(0)
    exact = rng.uniform(0.6, 1, 400)
    exact[7] = 0.5019

    def shrunk(x: np.ndarray) -> np.ndarray:
        return np.where(x > 0.5, x, 0)

    def samples(amount: float) -> list[np.ndarray]:
        return [shrunk(exact * (1 + amount * rng.uniform(-1, 1, exact.shape))) for _ in range(12)]

    fair, rough = samples(2.0**-9), samples(2.0**-6)
    assert all(sample[7] for sample in fair)
    evidence = Evidence(exact, rough, fair, "bfloat16", 1e-38, jumps=True)
    rounded = shrunk(exact.astype(np.float32).astype(bfloat16).astype(np.float64))
    assert rounded[7] == 0
    assert rule_floats(exact, rounded, evidence).word == "inconclusive"
    wrong = rounded.copy()
    wrong[9] = 0
    assert rule_floats(exact, wrong, evidence).word == "MISMATCH"


def test_near_a_pole_rough_noise_moves_less_than_fair_noise() -> None:
    """Dividing by what is smaller than its own noise: greater noise ends farther from the pole."""
    rng = np.random.default_rng(0)
    divisor, noise = rng.uniform(0.5, 1, (4, 60)), rng.uniform(-1, 1, (12, 4, 60))
    divisor[1, 7], noise[:, 1, 7] = 1e-8, np.linspace(-1, 1, 12)
    exact = 1 / divisor
    fair = [1 / (divisor + 1e-7 * each) for each in noise]
    rough = [1 / (divisor + 1e-4 * each) for each in noise]
    evidence = Evidence(exact, rough, fair, "float32", 1e-38, jumps=False)
    divisor[1, 7] = -3e-9
    assert rule_floats(exact, 1 / divisor, evidence).word == "inconclusive"
    divisor[1, 8] *= 1.01
    assert rule_floats(exact, 1 / divisor, evidence).word == "MISMATCH"


def test_no_number_of_samples_has_all_orders_of_equal_numbers() -> None:
    """Two other orders are no error; what differs in a row with one order is one."""
    rng = np.random.default_rng(0)

    def orders() -> np.ndarray:
        return np.stack([rng.permutation(8), rng.permutation(8), np.arange(8)])

    rough = [sample for _ in range(6) for sample in [orders()] * 2]
    fair = [sample for _ in range(6) for sample in [orders()] * 2]
    evidence = Evidence(orders(), rough, fair, "float32", 1e-38, jumps=True)
    a, b = orders(), orders()
    shown = np.stack([evidence.exact, *rough, *fair])
    unseen = (a != b) & ~((shown == a).any(0) & (shown == b).any(0))
    assert unseen.sum() > 3
    assert rule_decisions(a, b, evidence).word == "inconclusive"
    b[2, :2] = 1, 0
    assert rule_decisions(a, b, evidence).word == "MISMATCH"
    a[0, 0], b[2] = 8, a[2]
    assert rule_decisions(a, b, evidence).word == "MISMATCH"


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=str)
@pytest.mark.parametrize("jumps", [False, True], ids=["smooth", "jumps"])
def test_where_noise_makes_nan_nothing_is_proved(value: float, jumps: bool) -> None:
    """Such an element is not one that does not move: rounding may make anything of it."""
    rng = np.random.default_rng(0)
    exact = rng.uniform(0.5, 1, (4, 60))
    fair = [exact + 1e-7 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    rough = [exact + 1e-6 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    for sample in rough:
        sample[1, 7] = value
    evidence = Evidence(exact, rough, fair, "float32", 1e-38, jumps=jumps)

    def word(off: float, evidence: Evidence, at: tuple[int, int] = (1, 7)) -> str:
        other = exact.copy()
        other[at] += off
        return rule_floats(exact, other, evidence).word

    assert word(1e-7, evidence) == "ok"
    assert word(4e-6, evidence) == "inconclusive"
    assert word(4e-6, evidence, (1, 8)) == "MISMATCH"
    everywhere = [np.full_like(exact, value)] * 12
    assert word(1e-7, replace(evidence, rough=everywhere)) == "ok"
    assert word(4e-6, replace(evidence, rough=everywhere)) == "inconclusive"
    assert word(1e-7, replace(evidence, rough=everywhere, fair=everywhere)) == "inconclusive"
    assert word(0.1, replace(evidence, rough=everywhere, fair=everywhere)) == "inconclusive"


def test_nan_of_a_sample_is_near_no_number() -> None:
    """One element has two values and often none: a third value is no decision of rounding."""
    exact = np.random.default_rng(0).integers(100, 250, 40000) / 256
    step, none = exact.copy(), exact.copy()
    step[3], none[3] = exact[3] + 0.06, np.nan
    samples = [step, *[none] * 11]
    evidence = Evidence(exact, samples, samples, "float32", 1e-38, jumps=True)
    other = exact.copy()
    other[3] += 0.03
    assert rule_floats(exact, other, evidence).word != "ok"


def test_no_number_of_samples_has_all_steps_of_a_measurement() -> None:
    """Pixels that noise moves by dozens of steps, and a runner by one or two."""
    rng = np.random.default_rng(0)
    wide = rng.uniform(60, 190, 20_000)

    def pixels(deviation: float, count: int) -> list[np.ndarray]:
        noise = [deviation * rng.standard_normal(wide.shape) for _ in range(count // 2)]
        return [np.rint(wide + x).astype(np.uint8) for each in noise for x in (each, -each)]

    exact = np.rint(wide).astype(np.uint8)
    evidence = Evidence(exact, pixels(16, 12), pixels(8, 12), "float16", 0.0, jumps=True)
    (found, _) = pixels(1, 2)
    assert rule_decisions(exact, found, evidence).word == "inconclusive"
    assert rule_decisions(exact, found[::-1], evidence).word == "MISMATCH"
    assert rule_decisions(exact, found + np.uint8(40), evidence).word == "MISMATCH"


def test_values_that_both_results_have_are_no_mismatch() -> None:
    """Both found the same few boxes: equal numbers round alike, and noise makes them unequal."""
    exact = np.random.default_rng(0).integers(100, 250, 4000) / 256
    steps = [exact + 1e-7 * i for i in range(12)]
    evidence = Evidence(exact, steps, steps, "float32", 1e-38, jumps=True)
    common = exact.copy()
    common[:60] = 0
    assert rule_floats(common, common + 1e-8, evidence).word == "ok"
    assert rule_floats(exact, common, evidence).word == "MISMATCH"


def test_where_float64_is_infinite_by_chance_nothing_is_proved() -> None:
    """A quotient of one, less one, is zero in float64 alone; its reciprocal may be anything."""
    kind = TensorProto.FLOAT
    nodes = [
        helper.make_node("Div", ["x", "x"], ["q"]),
        helper.make_node("Sub", ["q", "one"], ["d"]),
        helper.make_node("Reciprocal", ["d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, (8,))],
        [helper.make_tensor_value_info("y", kind, (8,))],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = {"x": np.random.default_rng(0).uniform(1, 9, 8).astype(np.float32)}
    with api.load(proto, stop_at=0) as loaded:
        judge = Judge(loaded.imported, feeds)
    assert np.isinf(judge.exact["y"]).all()
    inf = np.inf
    found = np.array([2**23, -(2**24), inf, -inf, 2**22, 2**24, 2**24, inf], np.float32)
    other = np.array([2**24, 2**23, -inf, inf, inf, -inf, 2**24, inf], np.float32)
    assert judge.agreement("y", found, other).verdict == "inconclusive"
    found, other = (np.where(np.isinf(x), np.float32(2**24), x) for x in (found, other))
    assert judge.agreement("y", found, other).verdict == "inconclusive"


def test_tf32_is_the_format_of_factors() -> None:
    """What is multiplied has eleven bits, as has no result: neither bias nor function is coarse."""
    kind = TensorProto.FLOAT
    rng = np.random.default_rng(0)
    data = {
        "w": rng.standard_normal((32, 16)).astype(np.float32),
        "b": 30 + rng.standard_normal(16).astype(np.float32),
    }
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", "mb", ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, (40, 32))],
        [helper.make_tensor_value_info("y", kind, (40, 16))],
        [numpy_helper.from_array(value, name) for name, value in data.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = 0.01 * rng.standard_normal((40, 32)).astype(np.float32)

    def tf32(values: np.ndarray) -> np.ndarray:
        bits = values.view(np.uint32) + np.uint32(1 << 12)
        return (bits & np.uint32(0xFFFFE000)).view(np.float32)

    with api.load(proto, stop_at=0) as loaded:
        judge, right = Judge(loaded.imported, {"x": x}, "tf32"), loaded.run({"x": x})["y"]
    assert judge.agreement("y", right, tf32(x) @ tf32(data["w"]) + data["b"]).ok
    assert not judge.agreement("y", right, x @ data["w"] + tf32(data["b"])).ok
    assert not judge.agreement("y", right, tf32(right)).ok


def test_bench_gives_the_reason_of_the_worst_output() -> None:
    """An output that is only inconclusive does not stand for one that is wrong."""
    kind, names = TensorProto.FLOAT, ("noisy", "wrong")
    nodes = [
        helper.make_node("Mul", ["x", "third"], ["wrong"]),
        helper.make_node("Add", ["wrong", "big"], ["sum"]),
        helper.make_node("Sub", ["sum", "big"], ["noisy"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, (8,))],
        [helper.make_tensor_value_info(name, kind, (8,)) for name in names],
        [
            numpy_helper.from_array(np.float32(1 / 3).reshape(1), "third"),
            numpy_helper.from_array(np.float32(1e6).reshape(1), "big"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = {"x": np.random.default_rng(0).standard_normal(8).astype(np.float32)}
    with api.load(proto, stop_at=0) as loaded:
        judge, found = Judge(loaded.imported, feeds), loaded.run(feeds)
    quality = judged(judge, found)
    assert quality.verdict == "inconclusive"
    assert "'noisy'" in quality.reason
    quality = judged(judge, {**found, "wrong": 2 * found["wrong"]})
    assert quality.verdict == "MISMATCH"
    assert "'wrong'" in quality.reason


def halves(*factors: float) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """Some float16 numbers, multiplied by one factor after the other."""
    kind, shape = TensorProto.FLOAT16, (8, 24)
    names = ["x", *(f"t{i}" for i in range(1, len(factors))), "y"]
    nodes = [
        helper.make_node("Mul", [names[i], f"c{i}"], [names[i + 1]]) for i in range(len(factors))
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, shape)],
        [numpy_helper.from_array(np.array(c, np.float16), f"c{i}") for i, c in enumerate(factors)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return proto, {"x": np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float16)}


def test_small_halves_are_not_zero() -> None:
    """No runtime flushes subnormal numbers of float16, so zeros are no rounding of them."""
    proto, feeds = halves(1e-5)
    with api.load(proto, stop_at=0) as loaded:
        judge, right = Judge(loaded.imported, feeds), loaded.run(feeds)["y"]
    assert judge.agreement("y", right, judge.exact["y"].astype(np.float16)).ok
    assert judge.agreement("y", right, np.zeros_like(right)).verdict == "MISMATCH"


def test_small_halves_have_few_bits_on_the_way_too() -> None:
    """A runtime that merges two factors rounds no subnormal number; one that does not, does."""
    proto, feeds = halves(1e-5, 5e4)
    with api.load(proto, stop_at=0) as loaded:
        judge, rounded = Judge(loaded.imported, feeds), loaded.run(feeds)["y"]
    assert judge.agreement("y", rounded, judge.exact["y"].astype(np.float16)).ok
    assert not judge.agreement("y", rounded, -rounded).ok


def test_rounding_changes_no_sign() -> None:
    """Small squares stay squares: their roots, in float16 as elsewhere, are numbers."""
    kind = TensorProto.FLOAT
    nodes = [helper.make_node("Mul", ["x", "x"], ["s"]), helper.make_node("Sqrt", ["s"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, (8, 24))],
        [helper.make_tensor_value_info("y", kind, (8, 24))],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = {"x": np.geomspace(1e-6, 1, 192, dtype=np.float32).reshape(8, 24)}
    with api.load(proto, stop_at=0) as loaded:
        judge, right = Judge(loaded.imported, feeds, "float16"), loaded.run(feeds)["y"]
    for sample in judge.samples("y", ROUGH, 4):
        assert np.isfinite(sample).all()
    square = (feeds["x"].astype(np.float16) ** 2).astype(np.float32)
    assert judge.agreement("y", right, np.sqrt(square)).verdict != "MISMATCH"


def test_an_operator_with_a_body_rounds_itself() -> None:
    """Attention with a score modifier that only selects: its own sums cost what others do."""
    kind, shape = TensorProto.FLOAT, (1, 2, 4, 8)
    scores = helper.make_tensor_value_info("s", kind, ["B", "H", "L", "S"])
    result = helper.make_tensor_value_info("r", kind, ["B", "H", "L", "S"])
    body = helper.make_graph([helper.make_node("Relu", ["s"], ["r"])], "m", [scores], [result])
    domain = "ai.onnx.preview"
    node = helper.make_node("FlexAttention", [*"qkv"], ["y"], domain=domain, score_mod=body)
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name in "qkv"]
    outputs = [helper.make_tensor_value_info("y", kind, shape)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    domains = [helper.make_opsetid("", 24), helper.make_opsetid(domain, 1)]
    proto = helper.make_model(graph, opset_imports=domains, ir_version=10)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name in "qkv"}
    with api.load(proto, stop_at=0) as loaded:
        judge, right = Judge(loaded.imported, feeds), loaded.run(feeds)["y"]
        rounded = judge.exact["y"].astype(np.float32)
        for away in (-np.inf, np.inf):
            assert judge.agreement("y", right, np.nextafter(rounded, np.float32(away))).ok
        assert not judge.agreement("y", right, right * np.float32(1.001)).ok


@pytest.mark.parametrize(
    ("arithmetic", "share"),
    [("float32", 2e-3), ("tf32", 1e-2), ("float16", 1e-2), ("bfloat16", 1e-2)],
)
def test_an_error_of_this_share_is_never_ok(arithmetic: str, share: float) -> None:
    """However much noise there is: a channel that is off by it, and one element."""
    rng = np.random.default_rng(0)
    exact = rng.uniform(0.5, 1, (4, 6, 50))
    noisy = [exact + share * rng.standard_normal(exact.shape) for _ in range(4)]
    evidence = Evidence(exact, noisy, noisy, arithmetic, 1e-38, jumps=False)
    channel, element = exact.copy(), exact.copy()
    channel[:, 2] *= 1 + share
    element[1, 2, 3] += share
    words = [rule_floats(exact, wrong, evidence).word for wrong in (channel, element)]
    is_biased = arithmetic in ("float16", "bfloat16")
    assert words == ["MISMATCH" if is_biased else "inconclusive", "inconclusive"]
