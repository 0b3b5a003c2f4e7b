"""Programs: control flow, sizes that depend on the data, and what else no plan can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.parser import parse_model

import tercet
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.importers.onnx import load
from tercet.runtime.control.program import Program
from tercet.runtime.ir.dtypes import bool_
from tercet.runtime.ir.types import TensorType
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model
from tercet.runtime.session.select_rows import RowsOf

from ..plan.fakes import FakeBackend, FakeDevice
from ..threads import together
from .flows import CUMULATIVE, SELECTED

Array = np.ndarray[Any, Any]

HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'

BRANCHES = """
g (bool c, float[n, 3] x) => (float[n, 3] y) {
  two = Constant <value_float = 2.0> ()
  twice = Mul (x, two)
  y = If (c) <
    then_branch = then () => (a) { a = Add (twice, x) },
    else_branch = other () => (b) { w = Relu (x)  b = Sub (w, twice) }
  >
}
"""

#: Doubles a vector again and again: its size changes with every iteration.
GROWING = """
g (int64 m, float[n] x) => (y, sums) {
  y, sums = Loop (m, , x) <body = b (int64 i, bool going, float[k] v)
      => (bool next, float[j] w, float s) {
    next = Identity (going)
    w = Concat <axis = 0> (v, v)
    s = ReduceSum <keepdims = 0> (v)
  }>
}
"""

#: Newton's iteration for a square root, until it is good enough.
CONVERGING = """
g (float[n] a) => (root, seen) {
  yes = Constant <value = bool {1}> ()
  one = Constant <value_float = 1.0> ()
  m = Constant <value = int64 {50}> ()
  start = Add (a, one)
  root, seen = Loop (m, yes, start) <body = b (i, going, r) => (more, better, error) {
    half = Constant <value_float = 0.5> ()
    small = Constant <value_float = 1e-5> ()
    q = Div (a, r)
    sum = Add (q, r)
    better = Mul (sum, half)
    change = Sub (better, r)
    size = Abs (change)
    error = ReduceMax <keepdims = 0> (size)
    more = Greater (error, small)
  }>
}
"""


MAPPED = """
g (float[a] x, float[b] y, float[1] k) => (float[c] z) {
  list = SequenceConstruct (x, y)
  out = SequenceMap (list) <body = b (float[p] e) => (float[p] f) {
    f = Add (e, k)
  }>
  z = ConcatFromSequence <axis = 0> (out)
}
"""


def model_of(text: str) -> onnx.ModelProto:
    return parse_model(HEADER + text)


def expected(text: str, feeds: dict[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(model_of(text).SerializeToString())
    return list(session.run(None, feeds))


def check(text: str, feeds: dict[str, Any], **options: Any) -> None:
    with tercet.load(model_of(text), **options) as model:
        for _ in range(2):
            found = model.run(feeds)
            for got, want in zip(found.values(), expected(text, feeds), strict=True):
                assert (got.dtype, got.shape) == (want.dtype, want.shape)
                np.testing.assert_allclose(got, want, rtol=1e-6)


def vector(size: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(1, 2, size).astype(np.float32)


def program_of(model: Model) -> Program:
    (program,) = model._programs.pool.idle
    return program


@pytest.mark.parametrize("cond", [True, False])
def test_only_the_branch_that_is_taken_is_planned(cond: bool) -> None:
    feeds = {"c": np.array(cond), "x": vector(6).reshape(2, 3) - 1.5}
    check(BRANCHES, feeds)
    with tercet.load(model_of(BRANCHES)) as model:
        model.run(feeds)
        (node,) = (n for n in program_of(model).graph.nodes if n.kind == "If")
        (body,) = program_of(model).bodies_of(node)
        assert {n.kind for n in body.graph.nodes} == ({"Add"} if cond else {"Relu", "Sub"})
        assert len(model.placement()) == 2 + len(body.rows)


@pytest.mark.parametrize("dims", ["1, 1", "k, m"])
def test_a_condition_of_one_element_has_any_rank(dims: str) -> None:
    text, x = BRANCHES.replace("bool c", f"bool[{dims}] c"), vector(6).reshape(2, 3)
    for cond in (True, False):
        check(text, {"c": np.array([[cond]]), "x": x})
    reason = "one element" if "k" in dims else "axis 1 must be 1"
    with tercet.load(model_of(text)) as model, pytest.raises(tercet.TercetError, match=reason):
        model.run({"c": np.array([[True, False]]), "x": x})


def test_a_condition_that_is_known_leaves_no_control_flow() -> None:
    text = BRANCHES.replace("bool c, ", "").replace("g (", "g (", 1)
    text = text.replace("two =", "c = Constant <value = bool {1}> ()\n  two =")
    with tercet.load(model_of(text)) as model:
        x = vector(6).reshape(2, 3)
        np.testing.assert_allclose(model(x)[0], 3 * x, rtol=1e-6)
        assert model.prepare({"x": (2, 3)}).is_plan
        assert any("became its then branch" in r.text for r in model.rewrites)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_loop_whose_values_grow(count: int) -> None:
    feeds = {"m": np.array(count), "x": vector(3)}
    check(GROWING, feeds)
    with tercet.load(model_of(GROWING)) as model:
        grown, sums = model.run(feeds).values()
        assert (grown.shape, sums.shape) == ((3 * 2**count,), (count,))
        (node,) = program_of(model).graph.nodes
        assert len(list(program_of(model).bodies_of(node))) == min(count, 1)


def test_the_body_of_a_loop_that_does_not_begin_need_not_be_valid() -> None:
    text = GROWING.replace("w = Concat <axis = 0> (v, v)", "w = Add (v, x)").replace(
        "  y, sums =", "  z = Constant <value_floats = [0.0, 0.0]> ()\n  y, sums ="
    )
    text = text.replace("Loop (m, , x)", "Loop (m, , z)")
    for count, size in ((2, 2), (0, 3)):
        check(text, {"m": np.array(count), "x": vector(size)})
    with (
        tercet.load(model_of(text)) as model,
        pytest.raises(tercet.ModelError, match=r"node 'w' \(Add\): \[2\] and \[3\] do not"),
    ):
        model(np.array(1), vector(3))


def test_a_loop_that_ends_by_its_condition() -> None:
    a = np.array([2, 9, 100], np.float32)
    with tercet.load(model_of(CONVERGING)) as model:
        root, seen = model(a)
        np.testing.assert_allclose(root, np.sqrt(a), rtol=1e-6)
        assert 5 < len(seen) < 20
        assert (np.diff(seen) < 0).all()
        (node,) = (n for n in program_of(model).graph.nodes if n.kind == "Loop")
        (body,) = program_of(model).bodies_of(node)
        assert body.is_plan, "shapes that stay the same are known in the body"


def test_scan_along_any_axis_in_any_direction() -> None:
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(s, np.float32) for n, s in
             (("s", 3), ("xs", (4, 3)), ("ys", (3, 4)))}  # fmt: skip
    check(CUMULATIVE, feeds)


def test_a_scan_over_nothing() -> None:
    empty = np.zeros((0, 3), np.float32)
    with tercet.load(model_of(CUMULATIVE)) as model:
        last, sums, products = model(vector(3), empty, empty.T)
    np.testing.assert_array_equal(last, vector(3))
    assert (sums.shape, products.shape) == ((0, 3), (3, 0))


def test_a_body_mapped_over_a_list() -> None:
    check(MAPPED, {"x": vector(3), "y": vector(5), "k": np.array([7], np.float32)})


def test_sizes_that_a_run_tells() -> None:
    w = vector(8).reshape(4, 2)
    with tercet.load(model_of(SELECTED), max_plans=3) as model:
        for kept in (0, 1, 5, 3, 2, 5, 4):
            x = np.zeros((6, 4), np.float32)
            x[:kept] = vector(4 * kept, kept).reshape(kept, 4)
            y, count = model(x, w)
            np.testing.assert_allclose(y, np.maximum(x[:kept] @ w, 0), rtol=1e-5)
            np.testing.assert_array_equal(count, [kept])
        tail = program_of(model).tail
        assert tail is not None
        assert len(list(tail)) == 3, "no more than max_plans are kept"
        assert all(program.is_plan for program in tail)


def test_cheap_nodes_behind_unknown_sizes_are_not_planned() -> None:
    text = SELECTED.replace("product = MatMul (chosen, w)", "product = Add (chosen, chosen)")
    with tercet.load(model_of(text)) as model:
        model(np.ones((6, 4), np.float32), vector(8).reshape(4, 2))
        assert program_of(model).tail is None


def accelerated(text: str, *, fallback: bool) -> tuple[Model, FakeDevice]:
    device = FakeDevice()
    backends = (FakeBackend(device), *((NumpyBackend(),) if fallback else ()))
    return Model(load(model_of(text)).graph, backends, Options(), evaluate), device


def test_bodies_run_on_the_device() -> None:
    text = BRANCHES.replace("b = Sub (w, twice)", "b = Add (w, twice)")
    text = text.replace("Mul (x, two)", "Add (x, x)")
    model, device = accelerated(text, fallback=False)
    x = vector(6).reshape(2, 3) - 1.5
    for cond, want in ((True, 3 * x), (False, np.maximum(x, 0) + 2 * x)):
        np.testing.assert_allclose(model(np.array(cond), x)[0], want, rtol=1e-6)
    assert {row.backend for row in model.placement() if row.kind == "step"} == {"fake"}
    model.close()
    assert device.allocated == 0


def test_sizes_that_a_run_tells_give_plans_on_the_device() -> None:
    text = SELECTED.replace("product = MatMul (chosen, w)", "product = Add (chosen, chosen)")
    model, device = accelerated(text, fallback=True)
    x, w = np.eye(6, 4, dtype=np.float32), vector(8).reshape(4, 2)
    np.testing.assert_array_equal(model(x, w)[0], 2 * x[:4])
    assert "fake" in {row.backend for row in model.placement() if row.kind == "step"}
    model.close()
    assert device.allocated == 0


def test_without_a_host_backend_the_nodes_are_named() -> None:
    model, _ = accelerated(SELECTED, fallback=False)
    with pytest.raises(tercet.UnsupportedError, match=r"(?s)NonZero 'found'.*--fallback numpy"):
        model(np.ones((100, 4), np.float32), vector(8).reshape(4, 2))


def test_a_few_elements_that_a_run_tells_decide_on_sizes_on_the_device() -> None:
    text = """
    g (float[n] x, int64[k] a, int64[k] b) => (y, z) {
      shape = Add (a, b)
      folded = Reshape (x, shape)
      y = Relu (folded)
      z = Add (shape, shape)
    }"""
    model, device = accelerated(text, fallback=False)
    x = vector(24)
    for a, b in (([1, 2], [3, 4]), ([5, 2], [3, 1]), ([1, 2], [1, 10]), ([1, 2], [3, 4])):
        shape = np.add(a, b)
        y, z = model(x, np.array(a), np.array(b))
        np.testing.assert_array_equal(y, np.maximum(x, 0).reshape(shape))
        np.testing.assert_array_equal(z, 2 * shape)
    tail = program_of(model).tail
    assert tail is not None
    assert len(list(tail)) == 3, "one for every shape that it has met"
    assert "fake" in {row.backend for row in model.placement() if row.kind == "step"}
    model.close()
    assert device.allocated == 0


def test_a_model_that_contradicts_itself_is_refused_while_it_runs() -> None:
    text = """
    g (float[n] x, int64[k] i) => (y) {
      s = SequenceConstruct (x, x)
      a = Constant <value = int64 {0}> ()
      e = SequenceAt (s, i)
      y = Add (e, e)
    }"""
    with (
        tercet.load(model_of(text)) as model,
        pytest.raises(tercet.TercetError, match=r"node 'e' \(SequenceAt\): .*inputs: "),
    ):
        model(vector(2), np.array([7]))


def test_a_fault_in_a_body_names_its_node() -> None:
    text = BRANCHES.replace("a = Add (twice, x)", "z = NonZero (x)  a = Gather (x, z)")
    with tercet.load(model_of(text)) as model:
        x = np.zeros((2, 3), np.float32)
        x[0, 2] = 1
        with pytest.raises(tercet.ModelError, match=r"node 'a' \(Gather\)"):
            model(np.array(True), x)
        found = model(np.array(False), x)[0]
    np.testing.assert_array_equal(found, np.maximum(x, 0) - 2 * x, "the model goes on")


def test_results_share_no_memory_with_inputs() -> None:
    text = """
    g (float[n] x) => (seq(float) s, y) {
      s = SequenceConstruct (x, x)
      z = Constant <value = int64 {0}> ()
      y = SequenceAt (s, z)
    }"""
    x = vector(4)
    with tercet.load(model_of(text)) as model:
        listed, single = model(x)
    for result in (*listed, single):
        assert not np.shares_memory(result, x)


def test_strings_and_lists_go_in_and_out() -> None:
    text = """
    g (seq(string[n]) words, string[1] tail) => (seq(string[n]) longer) {
      longer = SequenceMap (words) <body = b (w) => (v) { v = StringConcat (w, tail) }>
    }"""
    with tercet.load(model_of(text)) as model:
        (found,) = model([np.array(["a", "b"]), np.array(["ä"])], np.array(["!"]))
        assert [part.tolist() for part in found] == [["a!", "b!"], ["ä!"]]
        with pytest.raises(tercet.InputError, match="input 'words' is of type ndarray"):
            model(np.array(["a"]), np.array(["!"]))


def test_any_tensor_can_be_asked_for() -> None:
    feeds = {"c": np.array(True), "x": vector(6).reshape(2, 3)}
    with tercet.load(model_of(BRANCHES)) as model:
        found = model.run(feeds, ["twice", "y"])
    np.testing.assert_array_equal(found["twice"], 2 * feeds["x"])


def test_threads_have_programs_of_their_own() -> None:
    wrong: list[str] = []
    with tercet.load(model_of(GROWING)) as model:

        def work(seed: int) -> None:
            for count in range(6):
                x = vector(2, seed)
                grown, _ = model(np.array(count), x)
                if not np.array_equal(grown, np.tile(x, 2**count)):
                    wrong.append(f"{seed} {count}")

        together(work, 4)
    assert not wrong


def test_sizes_that_come_in_as_inputs_are_known_to_a_device() -> None:
    text = """
    g (float[n] x, int64[r] shape) => (y) {
      other = Reshape (x, shape)
      y = Relu (other)
    }"""
    model, device = accelerated(text, fallback=False)
    x = vector(12) - 1.5
    for shape in ((3, 4), (12, 1), (3, 4), (2, 6)):
        (y,) = model(x, np.array(shape))
        np.testing.assert_array_equal(y, np.maximum(x.reshape(shape), 0))
    assert len(model._programs.pool.idle) == 3
    with pytest.raises(tercet.UnsupportedError):
        model.prepare({"x": (12,), "shape": (2,)})
    model.close()
    assert device.allocated == 0


def test_placement_is_that_of_the_outputs_that_are_named() -> None:
    """What ran last gave an intermediate tensor alone; the placement is of the whole model."""
    source = parse_model("""
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[n, 3] x) => (float[n, 3] y) { a = Exp (x)  b = Neg (a)  y = Softmax (b) }
    """)
    with tercet.load(source) as model:
        x = np.zeros((5, 3), np.float32)
        model.run({"x": x}, outputs=["a"])
        whole = model.placement()
        assert whole.rows[-1].operators.endswith("Softmax")
        assert "float32[5,3]" in whole.rows[-1].outputs[0]
        assert [row.operators for row in model.placement(outputs=["a"])] == ["Exp"]
        model.run({"x": x})
        assert model.placement() == whole


CHOOSING = """<ir_version: 8, opset_import: ["" : 17]>
g (float[b, n, 4] x, float[b, n, 4] z, bool use) => (float[b, n, 4] y) {
  h = If (use) <
    then_branch = t () => (float[b, n, 4] p) { p = Neg (x) },
    else_branch = e () => (float[b, n, 4] q) { q = Abs (x) }
  >
  y = Mul (h, x)
}"""
#: What else a graph is asked for by.
ASKED: dict[str, dict[str, Any]] = {
    "wanted": {"wanted": ("h",)},
    "inputs": {"inputs": ("x", "z", "use")},
    "unknown": {"unknown": frozenset({"n"})},
    "flags": {"flags": (("use", TensorType(bool_, (), np.array(True))),)},
    "rows_of": {"rows_of": RowsOf("y")},
    "greedy": {"rows_of": RowsOf("y", greedy=True)},
}


def test_graphs_are_kept_by_all_that_they_are_asked_for_by() -> None:
    plain: dict[str, Any] = {"wanted": ("y",), "inputs": ("x", "use")}
    with tercet.load(parse_model(CHOOSING), max_plans=16) as model:
        find = model._programs.graph_for
        found = {name: find(**plain | more) for name, more in {"plain": {}, **ASKED}.items()}
        assert len(set(map(id, found.values()))) == len(found)
        assert {name: find(**plain | more) for name, more in ASKED.items()}.items() <= found.items()
        assert not any(node.op.graphs() for node in found["flags"].nodes)
        assert len(found["greedy"].outputs) > len(found["rows_of"].outputs)
