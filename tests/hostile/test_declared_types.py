"""What a file declares of its results is a hint: no lie about it shows in what a run gives."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends import open_backends
from tercet.importers.onnx import load
from tercet.runtime.errors import ModelError, ModelWarning
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.op import OPERATORS
from tercet.runtime.ir.types import TensorType
from tercet.runtime.options import Options
from tercet.runtime.plan.host import HOST
from tercet.runtime.plan.layout import lay_out
from tercet.runtime.plan.rows import Layout
from tercet.runtime.plan.weights import WeightStore
from tercet.tools.conformance.suite import ConformanceCase, all_cases

from ..kernels.dry import planned
from .lies import LIES, in_branch, lied, observed

RANDOM = {name for (_, name), op in OPERATORS.items() if not op.deterministic} | {"Dropout"}


@cache
def cases() -> tuple[ConformanceCase, ...]:
    """Return a case of every operator; all there are with $TERCET_SAMPLES."""
    found = {case.operator: case for case in all_cases() if case.category == "node"}
    if os.environ.get("TERCET_SAMPLES"):
        return tuple(case for case in all_cases() if case.category == "node")
    return tuple(found.values())


def run(model: ModelProto, feeds: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    with warnings.catch_warnings(), tercet.load(model.SerializeToString(), **options) as loaded:
        warnings.simplefilter("ignore", ModelWarning)
        return loaded.run(feeds)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if not isinstance(a, np.ndarray) or a.dtype == object:
        return bool(np.all(a == b)) and np.shape(a) == np.shape(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("place", ["main graph", "branch"])
def test_lies_about_results_change_nothing(place: str, part: int) -> None:
    lies = [*LIES.items(), ("another dtype", None)]
    wrong: list[str] = []
    for number, case in enumerate(cases()[part::8]):
        model, sets = case.content.read()
        if not RANDOM.isdisjoint(node.op_type for node in model.graph.node):
            continue
        model = observed(model) if place == "main graph" else in_branch(observed(model))
        feeds = dict(
            zip([i.name for i in model.graph.input], (*sets[0][0], np.True_), strict=False)
        )
        try:
            honest = run(lied(model, None), feeds)
        except tercet.TercetError:
            continue
        chosen = lies if os.environ.get("TERCET_SAMPLES") else [lies[(number + part) % len(lies)]]
        for name, lie in chosen:
            found = run(lied(model, lie, lie is None), feeds)
            if not same(list(found.values()), list(honest.values())):
                wrong.append(f"{case.name}: {name}")
    assert not wrong, "\n".join(wrong)


def parsed(text: str) -> ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')


#: Models that declare a size that their data contradict: text, inputs, the result.
X = np.arange(6, dtype=np.float32).reshape(2, 3)
CONTRADICTED: dict[str, tuple[str, dict[str, Any], Any]] = {
    "a view beyond its memory": (
        """g (float[2,3] x, int64[2] s) => (float[3000,1] y) <float[3000,1] t>
        { a = Neg(x) t = Reshape(a, s) y = Neg(t) }""",
        {"x": X, "s": np.array([3, 2])},
        X.reshape(3, 2),
    ),
    "sizes that fold through a Shape": (
        """g (float[2,3] x, int64[2] s) => (float[12,1] y) <float[12,1] t>
        { t = Reshape(x, s) d = Shape(t) y = Reshape(x, d) }""",
        {"x": X, "s": np.array([3, 2])},
        X.reshape(3, 2),
    ),
    "symbols that are not equal": (
        """g (float[2,3] x, int64[2] s, float[1,2] z) => (float[n,n] y) <float[n,n] t>
        { t = Expand(z, s) w = Shape(t) e = Expand(z, w) y = Sub(t, e) }""",
        {"x": X, "s": np.array([4, 2]), "z": np.ones((1, 2), np.float32)},
        np.zeros((4, 2), np.float32),
    ),
    "what a loop carries": (
        """g (float[1] x, int64 m) => (float[n] y) {
        c = Constant<value = bool {1}>()
        y = Loop(m, c, x) <body = b (int64 i, bool k, float[1] h) => (bool k2, float[1] h2)
            { k2 = Identity(k) h2 = Concat<axis=0>(h, h) }> }""",
        {"x": np.ones(1, np.float32), "m": np.array(3)},
        np.ones(8, np.float32),
    ),
}


@pytest.mark.parametrize("name", CONTRADICTED)
@pytest.mark.parametrize("stop_at", [None, 0])
def test_the_user_hears_of_it_once(name: str, stop_at: int | None) -> None:
    text, feeds, expected = CONTRADICTED[name]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with tercet.load(parsed(text).SerializeToString(), stop_at=stop_at) as model:
            results = [model.run(feeds)["y"] for _ in range(3)]
    for y in results:
        np.testing.assert_array_equal(y, expected)
    assert [warning.category for warning in heard] in ([], [ModelWarning])
    if "n]" not in text:
        assert "declared as" in str(heard[0].message)


def test_a_declaration_that_holds_is_planned_for() -> None:
    """The sizes that the file declares are those of every run: one plan, and no warning."""
    text = """g (float[2,3] x, int64[2] s) => (float[3,2] y) <float[3,2] t>
    { t = Reshape(x, s) a = Neg(t) b = Exp(a) y = Neg(b) }"""
    with tercet.load(parsed(text).SerializeToString()) as model:
        results = [model.run({"x": X, "s": np.array([3, 2])})["y"] for _ in range(3)]
        program = model.prepare()
        assert program.tail is not None
        (tail,) = program.tail
        assert not any(stage.nodes for stage in tail.stages)
    for y in results:
        np.testing.assert_array_equal(y, -np.exp(-X.reshape(3, 2)))


def test_a_loop_is_planned_for_what_its_body_declares() -> None:
    text = """g (float[4,4] x, int64 m, int64[2] s) => (float[4,4] y) {
    y = Loop(m, , x) <body = b (int64 i, bool k, float[4,4] h) => (bool k2, float[4,4] h2)
        { k2 = Identity(k) p = MatMul(h, h) q = Neg(p) h2 = Reshape(q, s) }> }"""
    feeds = {"x": np.eye(4, dtype=np.float32), "m": np.array(1), "s": np.array([4, 4])}
    with tercet.load(parsed(text).SerializeToString()) as model:
        y = model.run(feeds)["y"]
        program = model.prepare()
        bodies = [body for node in program.graph.nodes for body in program.bodies_of(node)]
    np.testing.assert_array_equal(y, -feeds["x"])
    (body,) = bodies
    assert [len(stage.nodes) for stage in body.stages] == [1]


def on_numpy(graph: Graph) -> Layout:
    (backend,) = open_backends("numpy", Options())
    return lay_out(graph, [backend], Options(), {HOST: WeightStore(HOST)})[0]


@pytest.mark.parametrize("plan", [on_numpy, planned], ids=["numpy", "cuda"])
def test_a_view_never_exceeds_its_memory(plan: Callable[[Graph], Layout]) -> None:
    """Whatever inference believes: what would reach too far is refused before it has an address."""
    text = "g (float[2,3] x) => (float[3,2] y) { a = Neg(x) t = Flatten(a) y = Neg(t) }"
    graph = load(parsed(text)).graph
    for name in "ty":
        graph.values[name].type = TensorType(np.dtype(np.float32), (3000, 1))
    with pytest.raises(ModelError, match=r"node 't' .* would end 12000 bytes after"):
        plan(graph)


QUANTIZED = """<ir_version: 8, opset_import: ["" : 21]>
  g (float[2, 3] x) => (float[3, 2] y) <float s = {0.5}, int8 z = {0}, TYPE[3, 2] t> {
    q = QuantizeLinear (x, s, z)  t = Transpose (q)  y = DequantizeLinear (t, s, z) }"""


@pytest.mark.parametrize(("declared", "warned"), [("float", False), ("int32", True)])
def test_integers_declared_as_what_they_stand_for(declared: str, *, warned: bool) -> None:
    """onnxruntime's quantizer leaves declarations behind a QuantizeLinear that it moves."""
    model = parser.parse_model(QUANTIZED.replace("TYPE", declared))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with tercet.load(model) as loaded:
            loaded.run({"x": np.ones((2, 3), np.float32)})
    assert bool(heard) is warned
