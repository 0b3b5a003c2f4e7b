"""Noise in place of rounding: one plan for all runs, and what moves in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.parser import parse_model

import tercet as api
from tercet.runtime.ir.types import HostValue
from tercet.runtime.session import program_cache
from tercet.tools.verdict.amplifiers import first_amplifier
from tercet.tools.verdict.error_bounds import Judge
from tercet.tools.verdict.noise import EXACT, FAIR, ROUGH
from tercet.tools.verdict.shaken import Shaken

RNG = np.random.default_rng(0)
W = RNG.standard_normal((6, 6)).astype(np.float32) / 3
LAYERS = """<ir_version: 10, opset_import: ["": 21]>
g (float[N, 6] x) => (float[N, 6] y, int64[N, 1] top) {
  h = MatMul (x, w)
  y = Tanh (h)
  top = ArgMax <axis = 1> (y)
}"""
#: The state is multiplied by the same weights, which are a constant of the body, in every step.
LOOP = """<ir_version: 10, opset_import: ["": 21]>
g (float[4, 6] x, int64 n) => (float[4, 6] y) {
  y = Loop (n, , x) <body = b (int64 i, bool going, float[4, 6] s) => (bool still, float[4, 6] r) {
    still = Identity (going)
    r = MatMul (s, w)
  }>
}"""
X = RNG.standard_normal((4, 6)).astype(np.float32)
WIDE_X, WIDE_W = X.astype(np.float64), W.astype(np.float64)


def model(text: str) -> ModelProto:
    """Return the model with the weights in it, in the body if there is one."""
    proto = parse_model(text)
    bodies = [a.g for node in proto.graph.node for a in node.attribute if a.HasField("g")]
    (bodies or [proto.graph])[0].initializer.append(numpy_helper.from_array(W, "w"))
    return proto


def shaken(text: str, precision: str = "float32") -> Shaken:
    with api.load(model(text), stop_at=0) as loaded:
        return Shaken(loaded.imported, precision)


def y(run: Mapping[str, object]) -> np.ndarray:
    found = run["y"]
    assert isinstance(found, np.ndarray)
    return found


@pytest.mark.parametrize(
    ("text", "feeds", "want"),
    [
        (LAYERS, {"x": X}, np.tanh(WIDE_X @ WIDE_W)),
        (LOOP, {"x": X, "n": np.array(5)}, WIDE_X @ np.linalg.matrix_power(WIDE_W, 5)),
    ],
    ids=["layers", "loop"],
)
def test_runs_differ_as_their_noise_does(
    text: str, feeds: dict[str, np.ndarray], want: np.ndarray
) -> None:
    """Exact runs are exact before and after noisy ones; a seed gives its noise every time."""
    runs = shaken(text)
    exact = y(runs.run(feeds))
    np.testing.assert_allclose(exact, want, rtol=1e-13, atol=1e-15)
    apart = {
        (kind, seed): y(runs.run(feeds, kind, seed)) - exact
        for kind in (FAIR, ROUGH)
        for seed in range(4)
    }
    assert np.array_equal(y(runs.run(feeds, EXACT)), exact)
    for (kind, seed), away in apart.items():
        assert np.array_equal(y(runs.run(feeds, kind, seed)) - exact, away)
        assert 0 < np.abs(away).max() < 1e-4
    sizes = {kind: np.mean([np.square(apart[kind, i]) for i in range(4)]) for kind in (FAIR, ROUGH)}
    assert 9 < sizes[ROUGH] / sizes[FAIR] < 500  # eight times as far
    for i in (0, 2):  # the same numbers with the other sign, as far as a graph is linear
        np.testing.assert_allclose(apart[FAIR, i], -apart[FAIR, i + 1], rtol=1e-3, atol=1e-11)
    assert not np.allclose(apart[FAIR, 0], apart[FAIR, 2], rtol=0.1, atol=0)


def test_weights_of_a_body_are_the_same_in_every_step() -> None:
    """A row of ones times the weights, again and again: all that moves is the weights' own noise.

    Of a matrix with one number in each row, and that in the diagonal, the n-th power moves n times
    as far as it does itself, and not by the root of it.
    """
    proto = model(LOOP)
    body = proto.graph.node[0].attribute[0].g
    body.initializer[0].CopyFrom(
        numpy_helper.from_array(np.float32(0.9) * np.eye(6, dtype="f4"), "w")
    )
    ones = np.ones((4, 6), np.float32)
    with api.load(proto, stop_at=0) as loaded:
        runs = Shaken(loaded.imported, "bfloat16")
    feeds = {"x": ones, "n": np.array(1)}
    once = [y(runs.run(feeds, FAIR, i)) / y(runs.run(feeds)) - 1 for i in range(0, 40, 2)]
    feeds = {"x": ones, "n": np.array(16)}
    often = [y(runs.run(feeds, FAIR, i)) / y(runs.run(feeds)) - 1 for i in range(0, 40, 2)]
    # The weights' share alone grows 16-fold; results are rounded in each step as well.
    assert np.std(np.mean(often, 1)) > 8 * np.std(np.mean(once, 1))


def test_a_judge_plans_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many runs a verdict takes."""
    built: list[object] = []
    original = program_cache.ProgramCache._build  # pyright: ignore[reportPrivateUsage]

    def build(self: object, *given: object, **named: object) -> object:
        built.append(self)
        return original(self, *given, **named)  # pyright: ignore

    with api.load(model(LAYERS), stop_at=0) as loaded:
        right = loaded.run({"x": X})
        judge = Judge(loaded.imported, {"x": X})
        monkeypatch.setattr(program_cache.ProgramCache, "_build", build)
        for times in (1 + 1e-7, 1.001):
            judge.agreement("y", right["y"], right["y"] * np.float32(times))
        judge.agreement("top", right["top"], right["top"] + 1)
    assert len(built) == 1
    assert len(judge.samples("y", ROUGH, 12)) == 12


def test_many_samples_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements in doubt, of however many comparisons, are looked up in the same runs."""
    seeds: list[int] = []
    run = Shaken.run

    def counted(self: Shaken, inputs: Mapping[str, HostValue], kind: str, seed: int) -> Any:
        seeds.append(seed)
        return run(self, inputs, kind, seed)

    monkeypatch.setattr(Shaken, "run", counted)
    feeds = {"x": RNG.standard_normal((40, 6)).astype(np.float32)}
    with api.load(model(LAYERS), stop_at=0) as loaded:
        right = loaded.run(feeds)["y"]
        judge = Judge(loaded.imported, feeds)
    spread = np.max([np.abs(s - judge.exact["y"]) for s in judge.samples("y", FAIR, 12)], 0)
    for times in (15, 20):
        wrong = right.copy()
        wrong.flat[spread.argmax()] += np.float32(times * spread.max())
        judge.agreement("y", right, wrong)
    assert seeds.count(40) == 1, seeds


def test_factors_of_a_resize_are_not_rounded() -> None:
    """Half precision is that of pixels: sizes stay what the file says."""
    kind = TensorProto.FLOAT
    scales = np.array([1, 1, 1.1, 1.1], np.float32)
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, (1, 1, 10, 10))],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(scales, "scales")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = RNG.standard_normal((1, 1, 10, 10)).astype(np.float32)
    with api.load(proto, stop_at=0) as loaded:
        judge = Judge(loaded.imported, {"x": x}, "bfloat16")
    for sample in judge.samples("y", FAIR, 12):
        assert 0 < np.abs(sample - judge.exact["y"]).max() < 2.0**-7 * np.abs(x).max()


def attention() -> ModelProto:
    """One query of 16 heads on 4 keys in float16, as at a decoder's first tokens."""
    names = {"q": (1, 16, 1, 64), "k": (1, 16, 4, 64), "v": (1, 16, 4, 64)}
    half, info = TensorProto.FLOAT16, helper.make_tensor_value_info
    node = helper.make_node("Attention", list(names), ["y"])
    inputs = [info(name, half, dims) for name, dims in names.items()]
    graph = helper.make_graph([node], "g", inputs, [info("y", half, names["q"])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def in_halves(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention whose scores and probabilities are float16, as in onnxruntime's CPU provider."""
    scores = (q.astype(np.float32) @ k.swapaxes(2, 3).astype(np.float32) / 8).astype(np.float16)
    wide = np.exp(scores.astype(np.float32) - scores.max(-1, keepdims=True).astype(np.float32))
    probabilities = (wide / wide.sum(-1, keepdims=True)).astype(np.float16)
    return (probabilities.astype(np.float32) @ v.astype(np.float32)).astype(np.float16)


@pytest.mark.parametrize("seed", range(4))
def test_attention_in_half_precision_may_round_its_probabilities(seed: int) -> None:
    random = np.random.default_rng(seed)
    feeds = {
        name: (2 * random.standard_normal((1, 16, 1 if name == "q" else 4, 64))).astype(np.float16)
        for name in "qkv"
    }
    rounded = in_halves(**feeds)
    with api.load(attention()) as loaded:
        ours, judge = np.asarray(loaded.run(feeds)["y"]), Judge(loaded.imported, feeds)
    assert not np.array_equal(ours, rounded)
    assert judge.agreement("y", ours, rounded).verdict == "ok"
    wrong = rounded.copy()
    wrong.flat[np.argmax(np.abs(wrong))] *= np.float16(1 + 2**-6)
    assert judge.agreement("y", ours, wrong).verdict == "MISMATCH"


def test_a_fourier_transform_mixes_its_coefficients() -> None:
    """The imaginary part of the first is 0 to a library, and a sum of sines to its definition."""
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float[3, 20, 1] x) => (float[3, 11, 2] y)
      <int64 axis = {1}> { y = DFT <onesided = 1> (x, , axis) }"""
    x = RNG.standard_normal((3, 20, 1)).astype(np.float32)
    angles = (np.pi / 10 * (np.outer(np.arange(20), np.arange(11)) % 20)).astype(np.float32)
    sums = [x[:, :, 0] @ parts for parts in (np.cos(angles), -np.sin(angles))]
    defined = np.stack(sums, -1)
    with api.load(parse_model(text), stop_at=0) as loaded:
        ours, judge = np.asarray(loaded.run({"x": x})["y"]), Judge(loaded.imported, {"x": x})
    assert (ours[:, 10, 1] == 0).all()
    assert defined[:, 10, 1].any()
    assert judge.agreement("y", ours, defined).verdict == "ok"
    wrong = defined.copy()
    wrong[0, 3, 1] += np.float32(1e-3)
    assert judge.agreement("y", ours, wrong).verdict == "MISMATCH"


@pytest.mark.parametrize("length", [6, 15, 400, 1024])
def test_angles_of_a_fourier_transform_are_rounded_by_their_magnitude(length: int) -> None:
    """Onnxruntime's are of float32, and those of a chirp grow with the length."""
    text = f"""<ir_version: 10, opset_import: ["": 20]>
    g (float[4, {length}, 1] x) => (float[4, {length}, 2] y)
      <int64 axis = {{1}}> {{ y = DFT (x, , axis) }}"""
    x = np.random.default_rng(length).standard_normal((4, length, 1)).astype(np.float32)
    proto = parse_model(text)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    theirs = np.asarray(session.run(None, {"x": x})[0])
    with api.load(proto, stop_at=0) as loaded:
        ours, judge = np.asarray(loaded.run({"x": x})["y"]), Judge(loaded.imported, {"x": x})
    assert judge.agreement("y", ours, theirs).verdict == "ok"
    wrong = ours.copy()
    wrong.flat[np.argmax(np.abs(wrong))] *= np.float32(1.01)
    assert judge.agreement("y", ours, wrong).verdict == "MISMATCH"


@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
def test_what_is_added_to_elements_is_rounded(operator: str) -> None:
    """A runtime that keeps more digits of a softmax until then gives the next number."""
    sizes = "4" if operator == "ScatterElements" else "4, 1"
    text = f"""<ir_version: 10, opset_import: ["": 20]>
    g (float[4] x) => (float[4] y) <
      int64[{sizes}] at = {{0, 1, 2, 3}}, float[4] large = {{3.0, 5.0, 1.5, 7.0}}
    > {{ s = Softmax <axis = 0> (x)
        y = {operator} <reduction = "add"> (s, at, large) }}"""
    x = np.array([1e-3, 9, 3e-2, 9], np.float32)
    with api.load(parse_model(text), stop_at=0) as loaded:
        ours, judge = np.asarray(loaded.run({"x": x})["y"]), Judge(loaded.imported, {"x": x})
    next_ones = np.nextafter(ours, np.float32(np.inf))
    assert judge.agreement("y", ours, next_ones).verdict == "ok"
    assert judge.agreement("y", ours, ours * np.float32(1 + 1e-4)).verdict == "MISMATCH"


def test_what_follows_from_shapes_is_rounded_as_well() -> None:
    """The root of a size in float16, which onnxruntime computes in float32."""
    proto = parse_model("""<ir_version: 10, opset_import: ["": 21]>
      g (float[n,m] x) => (float y) <float third = {0.3333}> {
        sizes = Shape <start = 1> (x)
        axes = Constant <value_ints = [0]> ()
        size = Squeeze(sizes, axes)
        wide = Cast <to = 1> (size)
        root = Sqrt(wide)
        half = Cast <to = 10> (root)
        less = Cast <to = 10> (third)
        rest = Sub(half, less)
        y = Cast <to = 1> (rest)
      }""")
    feeds = {"x": X}
    with api.load(proto, stop_at=0) as loaded:
        judge = Judge(loaded.imported, feeds)
        mine, exact = loaded.run(feeds)["y"], np.sqrt(np.float32(X.shape[1])) - np.float32(0.3333)
    assert abs(judge.exact["y"] - exact) < 1e-6 < abs(mine - exact)
    assert judge.agreement("y", exact, mine).ok
    assert not judge.agreement("y", exact, mine * np.float32(1.01)).ok


def test_few_samples_of_single_numbers_prove_nothing() -> None:
    """The farthest that rounding goes: of many outputs, four samples hardly move some."""
    count = 120
    nodes = [
        helper.make_node("Cast", [read], [made], to=to)
        for i in range(count)
        for read, made, to in (("x", f"h{i}", TensorProto.FLOAT16), (f"h{i}", f"y{i}", 1))
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    results = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [1]) for i in range(count)]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", [x], results),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    feeds = {"x": np.array([1 + 2**-11 - 2**-20], np.float32)}
    with api.load(proto, stop_at=0) as loaded:
        judge = Judge(loaded.imported, feeds)
        found = judge.outputs({f"y{i}": feeds["x"] for i in range(count)}, loaded.run(feeds))
    assert {each.verdict for each in found} <= {"ok", "inconclusive"}


def test_infinities_on_the_way_hide_no_amplifier() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[4, 6] x) => (float[4, 6] y) <float big = {1e7}> {
      none = Sub (x, x)
      low = Log (none)
      weight = Exp (low)
      [far] a = Add (x, big)
      [back] b = Sub (a, big)
      y = Add (b, weight)
    }"""
    with api.load(parse_model(text), stop_at=0) as loaded:
        found = first_amplifier(loaded.imported, {"x": X}, "float32")
    assert (found.node, found.operator) == ("back", "Sub")
