"""A kernel that computes something else is found at the node that it runs."""

from __future__ import annotations

from collections.abc import Callable, Set
from itertools import count

import numpy as np
import onnx
import pytest

from tercet import backends
from tercet.backends.numpy import NumpyBackend
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Backend
from tercet.runtime.plan.plan import Plan
from tercet.tools.bisect.bisection import bisect
from tercet.tools.compare.compare import compare
from tercet.tools.compare.layers import compare_layers
from tercet.tools.runners.replay import BackendPlayer

from ..plan.fakes import FakeBackend, FakeDevice
from .faulty import (
    Damage,
    FaultyBackend,
    Planted,
    exchanged_rows,
    half_precision,
    last_element,
    not_a_number,
    one_percent,
    one_step,
    tail_is_zero,
)
from .networks import Array, inputs_of, network

PLANTED = (
    Planted("classifier", "conv1", one_percent),
    Planted("classifier", "conv2", last_element),
    Planted("classifier", "depthwise", half_precision),
    Planted("classifier", "pool", exchanged_rows),
    Planted("classifier", "dense", tail_is_zero),
    Planted("transformer", "scores", half_precision),
    Planted("transformer", "weights", one_percent),
    Planted("transformer", "norm", last_element),
    Planted("transformer", "narrow", not_a_number),
    Planted("recurrent", "lstm", last_element),
    Planted("recurrent", "gru", one_percent),
    Planted("recurrent", "running", one_percent),
    Planted("detector", "larger", half_precision),
    Planted("detector", "head", exchanged_rows),
    Planted("detector", "space", exchanged_rows),
    Planted("quantized", "qconv", one_step),
    Planted("quantized", "quantize", one_step),
    Planted("digits", "conv2", last_element),
    Planted("digits", "fc", half_precision),
    Planted("squeezenet", "n7", last_element),
)


def player(nodes: Set[str], damage: Damage) -> BackendPlayer:
    return BackendPlayer("faulty", (FaultyBackend(nodes, damage),))


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_found_by_layer(planted: Planted) -> None:
    runners = ["numpy", player({planted.node}, planted.damage)]
    feeds = inputs_of(planted.network)
    found = compare_layers(network(planted.network), runners, feeds)
    wrong = [layer for layer in found.layers if layer.verdict == "wrong"]
    assert len(wrong) == 1, found
    assert planted.node in wrong[0].nodes
    assert found.first is found.worst[0] is wrong[0]


def steps_of(planted: Planted) -> list[set[str]]:
    """Return the nodes that numpy runs as one, those that the passes have folded among them."""
    feeds = inputs_of(planted.network)
    found = compare_layers(network(planted.network), ["numpy", player(set(), one_percent)], feeds)
    return [set(layer.nodes) for layer in found.layers]


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_found_by_halving(planted: Planted) -> None:
    runners = ["numpy", player({planted.node}, planted.damage)]
    found = bisect(network(planted.network), runners, inputs_of(planted.network))
    assert found.fault == "nodes", found
    step = next(nodes for nodes in steps_of(planted) if planted.node in nodes)
    assert set(found.nodes) <= step
    assert planted.node in found.nodes
    assert found.reduced is not None
    assert planted.node in found.reduced.nodes
    assert set(found.reduced.nodes) <= step


def test_several_are_found() -> None:
    names = {"conv1", "depthwise", "dense"}
    runners = ["numpy", player(names, one_percent)]
    found = bisect(network("classifier"), runners, inputs_of("classifier"))
    assert names <= set(found.nodes) <= names | {"norm1", "relu1", "leaky"}


@pytest.mark.parametrize("node", ["doubled", "lowered"])
def test_a_fault_in_a_body_is_found_at_its_owner(node: str) -> None:
    """Bodies run where their owner does: the other Loop is right."""
    model = onnx.parser.parse_model("""
      <ir_version: 8, opset_import: ["" : 18]>
      g (float[2,3] x) => (float[2,3] y) <int64 times = {3}> {
        on = Constant <value = bool {1}> ()
        [first] r = Loop (times, on, x) <body = b (int64 i, bool c, float[2,3] s)
          => (bool d, float[2,3] t) { d = Identity (c) [doubled] t = Add (s, s) }>
        [second] y = Loop (times, on, r) <body = b (int64 i, bool c, float[2,3] s)
          => (bool d, float[2,3] t) { d = Identity (c) [lowered] t = Tanh (s) }>
      }""")
    faulty = BackendPlayer("faulty", (FaultyBackend({node}, one_percent), NumpyBackend()))
    found = bisect(model, ["numpy", faulty], {"x": np.full((2, 3), 0.05, np.float32)})
    assert found.fault == "nodes", found
    assert found.nodes == ({"doubled": "first", "lowered": "second"}[node],)


def test_what_differs_from_run_to_run_is_told() -> None:
    """A race, of which one run in two is right."""
    calls = iter(range(1000))

    def race(data: Array) -> None:
        data.reshape(-1)[0] += next(calls) % 2 * np.spacing(data.reshape(-1)[0])

    runners = ["numpy", player({"conv2"}, race)]
    found = compare_layers(network("classifier"), runners, inputs_of("classifier"), runs=2)
    assert [layer.nodes[0] for layer in found.layers if layer.repeatable is False] == ["conv2"]
    assert found.first is None
    assert not found.ok


def of_the_last_run() -> Damage:
    """As a kernel does that leaves elements as the last run has written them."""
    kept: dict[tuple[int, ...], Array] = {}

    def damage(data: Array) -> None:
        right = data.copy()
        data.reshape(-1)[:3] = kept.get(data.shape, right).reshape(-1)[:3]
        kept[data.shape] = right

    return damage


def of_the_first_run() -> Damage:
    """As a step does that takes its inputs only once."""
    kept: dict[int, tuple[Array, Array]] = {}

    def damage(data: Array) -> None:
        data[...] = kept.setdefault(id(data), (data, data.copy()))[1]

    return damage


def not_reset() -> Damage:
    """As a kernel does that adds to what the last run has summed up."""
    sums: dict[tuple[int, ...], Array] = {}

    def damage(data: Array) -> None:
        data += sums.get(data.shape, data.dtype.type(0))
        sums[data.shape] = data.copy()

    return damage


def sometimes() -> Damage:
    """A race, which one run in five loses."""
    runs = count(1)

    def damage(data: Array) -> None:
        if next(runs) % 5 == 0:
            last_element(data)

    return damage


def rarely() -> Damage:
    """As a race is lost: in the ninth run, and each ninth after it."""
    runs = count(1)

    def damage(data: Array) -> None:
        if next(runs) % 9 == 0:
            last_element(data)

    return damage


@pytest.mark.parametrize("damage", [of_the_last_run, not_reset, sometimes])
@pytest.mark.parametrize("order", [("numpy", "faulty"), ("faulty", "numpy")])
def test_a_fault_of_later_runs_is_seen(
    damage: Callable[[], Damage], order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run is right."""
    faulty = FaultyBackend({"norm"}, damage())
    monkeypatch.setattr(backends, "_foreign", lambda: {"faulty": lambda: lambda options: [faulty]})
    found = compare(network("transformer"), order, inputs_of("transformer"), repeat=5)
    (output,) = found.results[1].agreements
    assert output.verdict == "MISMATCH"
    assert "of faulty gave something else than the first" in output.reason


@pytest.mark.parametrize("order", [("numpy", "faulty"), ("faulty", "numpy")])
def test_inputs_that_are_read_only_once_are_seen(
    order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All runs on the same inputs are right."""
    faulty = FaultyBackend({"norm"}, of_the_first_run())
    monkeypatch.setattr(backends, "_foreign", lambda: {"faulty": lambda: lambda options: [faulty]})
    found = compare(network("transformer"), order, inputs_of("transformer"), repeat=2)
    (output,) = found.results[1].agreements
    assert output.verdict == "MISMATCH"
    assert "the same bits on faulty, and something else on numpy" in output.reason


def test_such_inputs_are_seen_beside_what_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that are not finite are no reason to leave out the others."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 21]>
        g (float[8] x) => (float[8] y) { [power] y = Exp (x) }"""
    )
    x = np.array([1000, np.nan, 1, 2, 3, 4, 5, 6], np.float32)
    faulty = FaultyBackend({"power"}, of_the_first_run())
    monkeypatch.setattr(backends, "_foreign", lambda: {"faulty": lambda: lambda options: [faulty]})
    found = compare(model, ["numpy", "faulty"], {"x": x}, repeat=2)
    (output,) = found.results[1].agreements
    assert output.verdict == "MISMATCH"
    assert "the same bits on faulty, and something else on numpy" in output.reason


def test_a_decision_for_other_inputs_is_no_such_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a step is rounded down, and a bit more than that up: as right, and clearly different."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 21]>
        g (float[2] x) => (float[2] y) <float part = {0.3}, float step = {0.125}, int8 zero = {0}> {
            [product] h = Mul (x, part)
            q = QuantizeLinear (h, step, zero)
            y = DequantizeLinear (q, step, zero)
        }"""
    )

    def damage(data: Array) -> None:
        data[0] = np.nextafter(data[0], np.float32(2))

    x = np.array([4.3, 4.375], np.float32)  # 10.3 and 10.5 steps
    faulty = FaultyBackend({"product"}, damage)
    monkeypatch.setattr(backends, "_foreign", lambda: {"faulty": lambda: lambda options: [faulty]})
    found = compare(model, ["numpy", "faulty"], {"x": x}, repeat=2)
    assert found.ok


def test_indices_that_are_read_only_once_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other inputs change what both give, but not alike."""
    feed, fed = Plan.feed, set[int]()

    def feed_once(plan: Plan, name: str, data: Array) -> None:
        if name != "rows" or id(plan) not in fed:
            feed(plan, name, data)
        fed.add(id(plan))

    monkeypatch.setattr(Plan, "feed", feed_once)
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (int64[3] rows, float[5, 6] x) => (float[3, 6] y) { y = Gather(x, rows) }"""
    )
    feeds = {"rows": np.array([0, 3, 1]), "x": np.random.default_rng(0).random((5, 6), np.float32)}
    found = compare(model, ("onnx.reference", "numpy"), feeds, repeat=2)
    (output,) = found.results[1].agreements
    assert output.verdict == "MISMATCH"
    assert "with their elements in reverse order: 12 of 18 elements differ" in output.reason
    assert bisect(model, ("onnx.reference", "numpy"), feeds).fault == "later"


def one_step_from_the_second_inputs() -> Damage:
    """As a kernel does that keeps one element of the first inputs."""
    kept: dict[int, tuple[Array, Array]] = {}

    def damage(data: Array) -> None:
        _, first = kept.setdefault(id(data), (data, data.copy()))
        data[0] += data.dtype.type((data != first).any())

    return damage


DECISIONS = """<ir_version: 8, opset_import: ["" : 21]>
    g (float[8] x) => (int32[8] y) <float zero = {0.0}> {
        p = Greater (x, zero)
        [number] y = Cast <to = 6> (p)
    }"""
STEPS = """<ir_version: 8, opset_import: ["" : 21]>
    g (float[8] x) => (float[8] y) <float step = {0.02}, uint8 zero = {128}> {
        [number] q = QuantizeLinear (x, step, zero)
        y = DequantizeLinear (q, step, zero)
    }"""


@pytest.mark.parametrize(
    ("text", "damage"),
    [(DECISIONS, of_the_first_run), (STEPS, one_step_from_the_second_inputs)],
    ids=["decisions", "steps"],
)
@pytest.mark.parametrize("order", [("numpy", "faulty"), ("faulty", "numpy")])
def test_decisions_that_earlier_inputs_change_are_seen(
    text: str,
    damage: Callable[[], Damage],
    order: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All runs on the same inputs are right, and what other inputs give is far less than clear."""

    def loaded(options: Options) -> list[FaultyBackend]:
        return [FaultyBackend({"number"}, damage())]

    monkeypatch.setattr(backends, "_foreign", lambda: {"faulty": lambda: loaded})
    model, feeds = onnx.parser.parse_model(text), {"x": np.linspace(-1.5, 2, 8, dtype=np.float32)}
    found = compare(model, order, feeds, repeat=2)
    (output,) = found.results[1].agreements
    assert output.verdict == "MISMATCH"
    assert "faulty gives something else if it runs on them first" in output.reason
    runners = ["numpy", player({"number"}, damage())]
    assert compare_layers(model, runners, feeds, runs=2).verdict == "MISMATCH"
    assert bisect(model, ["numpy", player({"number"}, damage())], feeds).fault == "later"


@pytest.mark.parametrize("damage", [of_the_last_run, of_the_first_run, not_reset])
@pytest.mark.parametrize("cumulative", [False, True])
def test_the_step_that_is_wrong_in_a_second_run_is_named(
    damage: Callable[[], Damage], *, cumulative: bool
) -> None:
    runners = ["numpy", player({"norm"}, damage())]
    feeds = inputs_of("transformer")
    found = compare_layers(
        network("transformer"), runners, feeds, runs=2, cumulative=cumulative, optimise=False
    )
    assert found.verdict == "MISMATCH"
    unlike = [layer for layer in found.layers if layer.repeatable is False]
    assert unlike[0].nodes == ("norm",)
    assert cumulative or len(unlike) == 1


def test_a_fault_of_chance_needs_more_runs() -> None:
    """A race that every ninth run loses: of 21 runs, some do."""
    calls = count(1)

    def race(data: Array) -> None:
        if next(calls) % 9 == 0:
            last_element(data)

    runners = ["numpy", player({"norm"}, race)]
    model, feeds = network("transformer"), inputs_of("transformer")
    few = compare_layers(model, runners, feeds, runs=2, optimise=False)
    assert few.ok
    assert few.rarest == pytest.approx(1 - 0.05**0.5)
    many = compare_layers(model, runners, feeds, runs=21, optimise=False)
    assert [layer.nodes for layer in many.layers if layer.repeatable is False] == [("norm",)]
    assert many.verdict == "MISMATCH"
    assert [layer.unlike for layer in many.layers if layer.unlike] == [2]  # seven runs were before
    said = " ".join(str(many).split())
    assert "norm gave other bits in run 2 than in the first" in said
    assert "21 runs of each: a step that is wrong in 13.3% of its runs or more" in said


@pytest.mark.parametrize("damage", [of_the_last_run, of_the_first_run])
def test_it_is_found_by_bisection(damage: Callable[[], Damage]) -> None:
    runners = ["numpy", player({"norm"}, damage())]
    found = bisect(network("transformer"), runners, inputs_of("transformer"))
    assert (found.fault, found.nodes, found.verdict) == ("later", ("norm",), "MISMATCH")
    assert "WRONG on faulty after the first run: norm" in str(found)


@pytest.mark.parametrize("value", [[3.0], [2.0, -1.0, 2.0]])
def test_other_inputs_are_others_where_their_order_says_nothing(value: list[float]) -> None:
    """As a step has whose input is one number, though the model's are many."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 21]>
        g (float[n] x) => (float[n] y) { [power] y = Exp (x) }"""
    )
    runners = ["numpy", player({"power"}, of_the_first_run())]
    feeds = {"x": np.array(value, np.float32)}
    found = compare_layers(model, runners, feeds, runs=2)
    assert [layer.nodes for layer in found.layers if layer.repeatable is False] == [("power",)]


def test_more_runs_find_by_bisection_what_is_rare() -> None:
    """One run of nine is wrong, and the first five are right."""
    runners = ["numpy", player({"norm"}, rarely())]
    model, feeds = network("transformer"), inputs_of("transformer")
    assert bisect(model, runners, feeds).fault == "none"
    runners = ["numpy", player({"norm"}, rarely())]
    found = bisect(model, runners, feeds, runs=20)
    assert (found.fault, found.nodes, found.verdict) == ("later", ("norm",), "MISMATCH")


def test_cumulative_mode_shows_where_a_fault_begins() -> None:
    runners = ["numpy", player({"conv2"}, one_percent)]
    feeds = inputs_of("classifier")
    found = compare_layers(network("classifier"), runners, feeds, cumulative=True, optimise=False)
    assert found.first is not None
    assert found.first.nodes == ("conv2",)
    verdicts = [layer.verdict for layer in found.layers]
    assert "wrong" not in verdicts[: found.first.number - 1]
    assert verdicts.count("wrong") > 3


def test_a_fault_on_a_device_is_found() -> None:
    """As `tests/gpu` plants them: the result is fetched, damaged, and put back."""
    device = FaultyBackend({"gelu_add"}, one_percent, FakeBackend(FakeDevice()))
    planted = BackendPlayer("faulty", (device, NumpyBackend()), Options())
    runners = ["numpy", planted]
    feeds = inputs_of("transformer")
    found = compare_layers(network("transformer"), runners, feeds, optimise=False)
    assert [layer.nodes for layer in found.layers if layer.verdict == "wrong"] == [("gelu_add",)]
    halved = bisect(network("transformer"), runners, feeds, reduce=False)
    assert halved.nodes == ("gelu_add",)


def first_is_five(data: Array) -> None:
    data[(0,) * data.ndim] = 5


@pytest.mark.parametrize("inner", [NumpyBackend(), FakeBackend(FakeDevice())])
@pytest.mark.parametrize("optimise", [True, False])
def test_a_step_that_is_wrong_only_among_others_is_not_called_right(
    *, optimise: bool, inner: Backend
) -> None:
    """Alone, the parts are views of the input, which nothing computes."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[2, 8] x) => (float[2, 8] y, float[1, 8] z) <int64[2] sizes = {1, 1}> {
        [split] a, b = Split <axis = 0> (x, sizes)
        [joined] y = Concat <axis = 0> (b, a)  [other] z = Neg (a) }""")
    x = np.ones((2, 8), np.float32)
    faulty = FaultyBackend({"split"}, first_is_five, inner)
    runners = ["numpy", BackendPlayer("faulty", (faulty, NumpyBackend()), Options())]
    found = compare_layers(model, runners, {"x": x}, optimise=optimise)
    assert (found.first, found.verdict) == (None, "MISMATCH")
    assert found.planned is not None
    assert found.planned.nodes == ("split",)
    assert found.to_dict()["planned"]["verdict"] == "wrong"
    assert [finding.agreement.output for finding in found.whole] == ["y", "z"]
    assert found.to_dict()["whole"][0]["verdict"] == "wrong"
    assert "no step of faulty is wrong alone, but split (Split) is" in " ".join(str(found).split())
    assert bisect(model, runners, {"x": x}).nodes == ("split",)
    honest = compare_layers(model, ["numpy", player(set(), first_is_five)], {"x": x})
    assert (honest.whole, honest.ok) == ((), True)


def test_a_step_behind_control_flow_is_found_in_the_plan_that_has_it() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[2, 8] x, bool go) => (float[2, 8] y) <int64[2] sizes = {1, 1}> {
        [before] n = Neg (x)
        [choice] m = If (go) <then_branch = t () => (float[2, 8] p) { p = Exp (n) },
                              else_branch = e () => (float[2, 8] q) { q = Identity (n) }>
        [split] a, b = Split <axis = 0> (m, sizes)
        [joined] y = Concat <axis = 0> (b, a) }""")
    runners = ["numpy", player({"split"}, first_is_five)]
    feeds = {"x": np.ones((2, 8), np.float32), "go": np.array(True)}
    found = compare_layers(model, runners, feeds, optimise=False)
    assert found.first is None
    assert found.planned is not None
    assert found.planned.nodes == ("split",)


def in_an_arena_of(nbytes: int) -> Damage:
    """As a kernel does that is chosen for larger graphs."""

    def damage(data: Array) -> None:
        memory = data
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        if memory.nbytes > nbytes:
            one_percent(data)

    return damage


def test_the_kernel_that_the_whole_graph_runs_is_compared() -> None:
    """Later steps read what is wrong, but are right on the reference's tensors."""
    model, feeds = network("transformer"), inputs_of("transformer")
    runners = ["numpy", player({"gelu_add"}, in_an_arena_of(1500))]
    found = compare_layers(model, runners, feeds)
    assert found.first is None
    assert found.whole
    assert found.planned is not None
    assert "gelu_add" in found.planned.nodes
    assert found.verdict == "MISMATCH"


def test_the_first_nan_is_named() -> None:
    """Also where the reference has it, too: nothing differs then."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[8] x) => (float[8] z) {
        [a] b = Neg (x)  [root] r = Sqrt (b)  [more] z = Tanh (r) }""")
    runners, x = ["numpy", "onnx.reference"], -np.ones(8, np.float32)
    assert compare_layers(model, runners, {"x": x}).nan == ""
    x[3] = 2
    found = compare_layers(model, runners, {"x": x}, optimise=False)
    assert (found.ok, found.nan) == (True, "step 2, root (Sqrt)")
    assert "the first NaN on onnx.reference is from step 2, root (Sqrt)" in str(found)
    x[3] = np.nan
    assert compare_layers(model, runners, {"x": x}).to_dict()["nan"] == "input 'x'"


def test_a_later_fault_is_found_where_outputs_prove_nothing() -> None:
    """What is left of a sum that cancels may be anything."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[8, 8] x) => (float[8, 8] z) <float big = {1e4}> {
        h = Add (x, big)  d = Sub (h, big)  e = Sub (d, x)  [out] z = Transpose (e) }""")
    x = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    found = bisect(model, ["numpy", player({"out"}, of_the_last_run())], {"x": x})
    assert (found.fault, found.nodes, found.verdict) == ("later", ("out",), "MISMATCH")
    assert {finding.verdict for finding in found.findings} == {"inconclusive"}
