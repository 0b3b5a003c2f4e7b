"""Sizes that grow from run to run cost no plan a run, and give what onnxruntime gives."""

from __future__ import annotations

import gc
from itertools import islice, product
from math import inf
from random import Random
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import GraphProto, ModelProto
from onnx.helper import make_attribute, make_node
from onnx.parser import parse_graph, parse_model

import tercet
from tercet.backends.numpy.engine.node_alone import NodeAlone
from tercet.runtime.ir import grown
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.grown import Grown, combined
from tercet.runtime.ir.types import TensorType
from tercet.runtime.session.growth import AGAIN, MIN_ROOM, _grown_in, bounded_by, rooms
from tercet.runtime.session.program_cache import ProgramCache
from tercet.tools.demo.demo import DEMO

#: A step of attention over a past: positions from its length, and a window of 12 keys.
DECODER = parse_model("""
<ir_version: 9, opset_import: ["" : 18]>
g (float[b,s,8] x, float[b,p,8] past, int64[b,t] mask) => (float[b,s,8] y, float[b,t,8] present)
<int64 zero = {0}, int64 one = {1}, int64 window = {12}, int64[1] first = {0}, int64[1] axis = {1},
 float low = {-1000.0}, int64[1] end = {9223372036854775807}>
{
    present = Concat <axis = 1> (past, x)
    ps = Shape <start = 1, end = 2> (past)
    ts = Shape <start = 1, end = 2> (present)
    from = Squeeze (ps)
    to = Squeeze (ts)
    at = Range (from, to, one)
    place = Cast <to = 1> (at)
    angle = Unsqueeze (place, axis)
    wave = Cos (angle)
    q = Mul (x, wave)
    length = Min (to, window)
    begin = Sub (to, length)
    begins = Unsqueeze (begin, first)
    keys = Slice (present, begins, end, axis)
    seen = Slice (mask, begins, end, axis)
    shown = Cast <to = 1> (seen)
    hidden = Sub (shown, shown)
    bias0 = Mul (hidden, low)
    bias = Unsqueeze (bias0, axis)
    transpose = Transpose <perm = [0, 2, 1]> (keys)
    s0 = MatMul (q, transpose)
    s1 = Add (s0, bias)
    s2 = Softmax <axis = -1> (s1)
    y = MatMul (s2, keys)
}
""")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every program that is made for a model."""
    found: list[object] = []
    build = ProgramCache._build

    def noted(self: ProgramCache, *args: Any) -> object:
        found.append(build(self, *args))
        return found[-1]

    monkeypatch.setattr(ProgramCache, "_build", noted)
    return found


def feeds(past: int, new: int = 1, batch: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng((past, new, seed))
    return {
        "x": rng.standard_normal((batch, new, 8)).astype(np.float32),
        "past": rng.standard_normal((batch, past, 8)).astype(np.float32),
        "mask": np.ones((batch, past + new), np.int64),
    }


def right(model: tercet.Model, oracle: ort.InferenceSession, given: dict[str, np.ndarray]) -> None:
    found = model.run(given)
    for name, wanted in zip(("y", "present"), oracle.run(None, given), strict=True):
        np.testing.assert_allclose(found[name], np.asarray(wanted), rtol=2e-5, atol=2e-6)


#: Sizes (past, new, batch) of every run, and the most programs that they may take.
SEQUENCES = {
    "one token a run": ([(0, 5, 1), *((n, 1, 1) for n in range(5, 60))], 5),
    "two sequences in turn": ([(n, 1, 1) for k in range(30) for n in (3 + k, 50 + k)], 12),
    "three tokens a run": ([(n, 3, 2) for n in range(0, 90, 3)], 5),
    "again from the start": ([(n, 1, 1) for _ in range(4) for n in range(2, 30)], 4),
    "at random": ([(int(n), 1, 1) for n in np.random.default_rng(1).permutation(10)], 10),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_programs_for_all_sizes(name: str, made: list[object]) -> None:
    sizes, most = SEQUENCES[name]
    oracle = ort.InferenceSession(DECODER.SerializeToString(), providers=["CPUExecutionProvider"])
    with tercet.load(DECODER) as model:
        for past, new, batch in sizes:
            right(model, oracle, feeds(past, new, batch))
    assert len(made) <= most


def test_sizes_that_do_not_grow_alike_have_programs_of_their_own(made: list[object]) -> None:
    """A mask that is one longer than it was in all steps before fits no step of growth."""
    with tercet.load(DECODER) as model:
        for past in range(3, 12):
            model.run(feeds(past))
        count = len(made)
        given = feeds(12)
        given["mask"] = np.ones((1, 14), np.int64)
        with pytest.raises(tercet.TercetError):
            model.run(given)
        model.run(feeds(12, 2))
    assert len(made) == count + 1


def test_a_size_that_comes_back_gets_a_plan(made: list[object]) -> None:
    with tercet.load(DECODER) as model:
        for past in range(3, 12):
            model.run(feeds(past))
        count = len(made)
        texts = str(model.placement())
        assert "grows from run to run" in texts
        assert "float32[1,4+k,8]" in texts
        for _ in range(AGAIN):
            model.run(feeds(11))
        assert len(made) == count + 1
        assert "grows from run to run" not in str(model.placement())


def test_binding_and_preparing_know_their_sizes() -> None:
    with tercet.load(DECODER) as model:
        for past in range(3, 12):
            model.run(feeds(past))
        shapes = {name: data.shape for name, data in feeds(20).items()}
        assert model.prepare(shapes).is_plan
        with model.bind(shapes) as bound:
            assert bound.inputs["past"].shape == (1, 20, 8)


def test_arithmetic_is_that_of_every_case() -> None:
    sizes = [0, 1, 7, Grown(0, 1), Grown(3, 1), Grown(2, 2), Grown(5, 2)]
    for a, b, sign in product(sizes, sizes, (1, -1)):
        found = combined(a, b, sign)
        if found is None:
            continue
        for k in range(5):
            x, y, z = (v.first + v.step * k if isinstance(v, Grown) else v for v in (a, b, found))
            assert x + sign * y == z >= 0 or not isinstance(found, Grown)


@pytest.fixture
def bucketing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the host as a device: sizes that grow get buckets."""
    init = ProgramCache.__init__

    def changed(self: ProgramCache, *args: Any, **more: Any) -> None:
        init(self, *args, **more)
        self._may_span, self._may_bucket = False, True

    monkeypatch.setattr(ProgramCache, "__init__", changed)


@pytest.mark.usefixtures("bucketing")
def test_buckets_for_all_sizes(made: list[object]) -> None:
    """From 12 keys on, which fill the window, 600 tokens take few plans."""
    oracle = ort.InferenceSession(DECODER.SerializeToString(), providers=["CPUExecutionProvider"])
    with tercet.load(DECODER) as model:
        for past in range(12, 600):
            right(model, oracle, feeds(past))
            if past == 30:
                shown = str(model.placement()).splitlines()[0]
                assert shown.startswith("'past' float32[1,12+k,8] has room for float32[1,32,8]")
        right(model, oracle, feeds(40))
    assert len(made) <= 11


def branching(flag: str) -> ModelProto:
    """The decoder as the branch of an If, as optimum merges it with that of the first step."""
    model = ModelProto()
    model.CopyFrom(DECODER)
    then = GraphProto()
    then.CopyFrom(model.graph)
    then.ClearField("input")
    other = parse_graph("g () => (float[b,s,8] a, float[b,s,8] b) { a = Neg (x) b = Abs (x) }")
    graph = model.graph
    graph.ClearField("node")
    graph.ClearField("initializer")
    cast = parse_graph(f"g ({flag} flag) => (bool c) {{ c = Cast <to = 9> (flag) }}")
    graph.input.append(cast.input[0])
    choice = make_node("If", ["c"], ["out", "rows"])
    for name, branch in (("then_branch", then), ("else_branch", other)):
        for output in branch.output:
            output.type.tensor_type.ClearField("shape")
        choice.attribute.append(make_attribute(name, branch))
    graph.node.extend([cast.node[0], choice])
    graph.output[0].name, graph.output[1].name = "out", "rows"
    return model


@pytest.mark.parametrize(
    ("flag", "yes"),
    [("bool[1]", np.ones(1, np.bool_)), ("int64", np.int64(1)), ("float", np.float32(0.5))],
)
@pytest.mark.parametrize("bucket", [False, True])
def test_a_flag_that_decides_on_branches(
    flag: str, yes: Any, bucket: bool, made: list[object], request: pytest.FixtureRequest
) -> None:
    if bucket:
        request.getfixturevalue("bucketing")
    proto = branching(flag)
    oracle = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    with tercet.load(proto) as model:
        for past in range(12, 60):
            for chosen in (np.array(yes), np.zeros_like(yes)):
                given = {**feeds(past), "flag": chosen}
                found = model.run(given)
                for name, wanted in zip(("out", "rows"), oracle.run(None, given), strict=True):
                    np.testing.assert_allclose(found[name], np.asarray(wanted), 2e-5, 2e-6)
    assert len(made) <= 14


@pytest.mark.usefixtures("bucketing")
@pytest.mark.parametrize("name", SEQUENCES)
def test_buckets_of_other_sequences(name: str) -> None:
    sizes, _ = SEQUENCES[name]
    oracle = ort.InferenceSession(DECODER.SerializeToString(), providers=["CPUExecutionProvider"])
    with tercet.load(DECODER) as model:
        for past, new, batch in sizes:
            right(model, oracle, feeds(past, new, batch))


@pytest.mark.usefixtures("bucketing")
def test_what_has_no_memory_for_a_bucket_has_plans_of_its_own() -> None:
    """Scores of all pairs: four times as many with twice the room."""
    proto = parse_model("""
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[1,n,64] x) => (float y) {
        t = Transpose <perm = [0, 2, 1]> (x)
        s = MatMul (x, t)
        e = Exp (s)
        y = ReduceSum <keepdims = 0> (e)
    }
    """)
    with tercet.load(proto, max_bytes=60_000) as model:
        for count in range(40, 60):
            x = np.zeros((1, count, 64), np.float32)
            assert model.run({"x": x})["y"] == count**2


@pytest.mark.usefixtures("bucketing")
def test_sequences_among_the_results_are_no_matter_of_buckets() -> None:
    proto = parse_model("""
    <ir_version: 9, opset_import: ["" : 18]>
    g (float[1,n,2] x) => (seq(float[]) y) { y = SequenceConstruct (x, x) }
    """)
    with tercet.load(proto) as model:
        for count in range(3, 12):
            x = np.ones((1, count, 2), np.float32)
            assert [each.shape for each in model.run({"x": x})["y"]] == [x.shape, x.shape]


def test_nodes_of_programs_that_went_are_freed() -> None:
    """A server's batches differ; what one program's nodes remember must go with it."""
    sizes = np.random.default_rng(0).integers(1, 20, 40)
    with tercet.load(DEMO / "digits.onnx", max_plans=2) as model:
        for size in sizes:
            model(np.zeros((int(size), 1, 8, 8), np.float32))
        gc.collect()
        alive = sum(type(each) is NodeAlone for each in gc.get_objects())
        assert 0 < alive <= 3 * len(model.graph.nodes)


@pytest.mark.parametrize("seed", range(60))
def test_arithmetic_of_growing_sizes_is_that_of_each_size(seed: int) -> None:
    """Of sums, differences, products, quotients and comparisons, for all counts below the bound."""
    dice = Random(seed)

    def drawn() -> Grown | int:
        bound = dice.choice((None, 1, 4, 7))
        return dice.choice(
            (Grown(dice.randrange(9), dice.randrange(1, 5), bound), dice.randrange(9))
        )

    def at(size: Any, count: int) -> int:
        return size.first + size.step * count if isinstance(size, Grown) else size

    a, b, number = drawn(), drawn(), dice.randrange(1, 4)
    bounds = [each.bound for each in (a, b) if isinstance(each, Grown) and each.bound is not None]
    counts = range(min(bounds, default=40))
    found = {
        "+": (grown.combined(a, b, 1), lambda i: at(a, i) + at(b, i)),
        "-": (grown.combined(a, b, -1), lambda i: at(a, i) - at(b, i)),
        "*": (grown.multiplied(a, number), lambda i: at(a, i) * number),
        "/": (grown.divided(a, number), lambda i: at(a, i) / number),
    }
    for name, (size, expected) in found.items():
        assert size is None or [at(size, i) for i in counts] == [*map(expected, counts)], name
    if isinstance(a, Grown):
        assert found["*"][0] is not None
        divides = all(at(a, i) % number == 0 for i in range(3))
        assert (found["/"][0] is not None) == divides
    apart = [at(a, i) - at(b, i) for i in counts]
    signs = {(each > 0) - (each < 0) for each in apart}
    least, greatest = grown.span(a, b) or (0, 0)
    order = grown.order(a, b)
    if bounds or len(set(apart)) == 1:
        assert (least, greatest) == (min(apart), max(apart))
        assert order == (signs.pop() if len(signs) == 1 else None)
    else:
        assert apart[0] in (least, greatest)
        assert inf in (greatest, -least)
        assert order is None or signs == {order}


@pytest.mark.parametrize("seed", range(20))
def test_a_bucket_has_room_for_every_count_below_its_bound(seed: int) -> None:
    """And for no more: the size with the longest beginning fills it."""
    dice = Random(seed)
    sizes = [Grown(dice.randrange(40), dice.randrange(1, 4)) for _ in range(dice.randrange(1, 4))]
    types = tuple(TensorType(float32, (2, size)) for size in sizes)
    for room in islice(rooms(types), 3):
        (count,) = {size.bound for size in _grown_in(bounded_by(types, room))}
        assert count is not None
        steps = [-(-(size.first + size.step * (count - 1)) // size.step) for size in sizes]
        assert max(steps) == room
        assert count > room // 2 or room == MIN_ROOM
