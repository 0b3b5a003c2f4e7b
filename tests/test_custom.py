"""Operators that users bring, and the memory that a model may take."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import tercet
from tercet import CustomOperator

Array = np.ndarray[Any, Any]
KEY = ("my.domain", "Swish")


def model_of(text: str) -> onnx.ModelProto:
    return parse_model(f'<ir_version: 10, opset_import: ["" : 21, "my.domain" : 1]>\n{text}')


MODEL = model_of("g (float[n] x) => (y) { s = my.domain.Swish <beta = 2.0> (x)  y = Relu (s) }")


def swish(x: Array, *, beta: float = 1.0) -> Array:
    return x / (1 + np.exp(-beta * x))


def same(x: Any, *, beta: float) -> Any:
    return x


X = np.array([-1, 0.5, 3], np.float32)


@pytest.mark.parametrize("given", [swish, CustomOperator(swish), CustomOperator(swish, same)])
def test_a_function_is_an_operator(given: Any) -> None:
    with tercet.load(MODEL, operators={KEY: given}) as model:
        np.testing.assert_array_equal(model(X)[0], np.maximum(swish(X, beta=2.0), 0))
        is_planned = isinstance(given, CustomOperator) and given.infer is not None
        assert model.prepare({"x": (3,)}).is_plan is is_planned


def test_optional_inputs_several_results_and_every_kind_of_attribute() -> None:
    model = model_of("""
    g (float[n] x) => (a, b) {
      a, b = my.domain.Any <i = 3, s = "text", fs = [1.0, 2.5]> (x)
    }""")
    seen: list[Any] = []

    def anything(x: Array, y: Array | None = None, *, i: int, s: str, fs: Any) -> Any:
        seen.extend((y, i, s, fs))
        return x * i, x.sum()

    with tercet.load(model, operators={("my.domain", "Any"): anything}) as loaded:
        a, b = loaded(X)
    np.testing.assert_array_equal(a, X * 3)
    assert b == X.sum()
    assert seen == [None, 3, "text", (1.0, 2.5)]


def test_it_is_known_in_bodies_and_functions() -> None:
    model = parse_model("""<ir_version: 10, opset_import: ["" : 21, "my.domain" : 1, "f" : 1]>
    g (bool c, float[n] x) => (y) {
      y = If (c) <then_branch = t () => (a) { a = f.twice (x) },
                  else_branch = e () => (b) { b = my.domain.Swish (x) }>
    }
    <domain: "f", opset_import: ["" : 21, "my.domain" : 1]>
    twice (x) => (z) { s = my.domain.Swish (x)  z = my.domain.Swish (s) }""")
    with tercet.load(model, operators={KEY: swish}) as loaded:
        np.testing.assert_array_equal(loaded(np.array(True), X)[0], swish(swish(X)))
        np.testing.assert_array_equal(loaded(np.array(False), X)[0], swish(X))


@pytest.mark.parametrize("planned", [False, True], ids=["alone", "planned"])
@pytest.mark.parametrize(
    "kind",
    [
        *(AssertionError, AttributeError, KeyError, MemoryError, OSError, RecursionError),
        *(RuntimeError, StopIteration, TypeError, ValueError, ZeroDivisionError),
        tercet.InputError,
    ],
)
def test_a_fault_in_it_names_the_node(kind: type[Exception], planned: bool) -> None:
    fault = kind("not today")

    def broken(x: Array, *, beta: float) -> Array:
        raise fault

    given = CustomOperator(broken, same) if planned else broken
    with (
        tercet.load(MODEL, operators={KEY: given}) as model,
        pytest.raises(
            tercet.DeviceError,
            match=rf"node 's' \(my.domain::Swish\): .* {kind.__name__}: .*not today",
        ) as raised,
    ):
        model(X)
    assert raised.value.__cause__ is fault


@pytest.mark.parametrize("planned", [False, True], ids=["alone", "planned"])
@pytest.mark.parametrize(
    ("result", "said"),
    [
        ([1.0, 2.0, 3.0], "'s' is float; expected a numpy array"),
        ((X, X), "returned 2 results; the node has 1"),
        ((), "returned 0 results; the node has 1"),
        (1.5, "'s' is float; expected a numpy array"),
        ("text", "'s' is str; expected a numpy array"),
        (np.ma.array(X, mask=True), "'s' is MaskedArray; expected a numpy array"),
        (np.array(["2026"], "datetime64[Y]"), "which ONNX does not have"),
        (X.astype(np.float64), r"'s' is float64\[3\]; .* says float32\["),
        (np.array(["a", "b", "c"]), r"'s' is string\[3\]; .* says float32\["),
    ],
)
def test_what_is_no_result_is_the_operators_fault(result: Any, said: str, planned: bool) -> None:
    def odd(x: Array, *, beta: float) -> Any:
        return result

    text = (
        "g (float[n] x) => (y) <float[n] s> { s = my.domain.Swish <beta = 2.0> (x) y = Relu (s) }"
    )
    given = CustomOperator(odd, same) if planned else odd
    with (
        tercet.load(model_of(text), operators={KEY: given}) as model,
        pytest.raises(tercet.DeviceError, match=rf"node 's' \(my.domain::Swish\).*{said}"),
    ):
        model(X)


def test_a_result_of_another_shape_than_the_rule_says() -> None:
    def short(x: Array, *, beta: float) -> Array:
        return x[1:]

    with (
        tercet.load(MODEL, operators={KEY: CustomOperator(short, same)}) as model,
        pytest.raises(tercet.DeviceError, match=r"node 's'.* is float32\[2\]; .* says float32\[3"),
    ):
        model(X)


def test_a_shape_rule_that_fails() -> None:
    def rule(x: Any, *, beta: float) -> Any:
        raise KeyError("no such rule")

    def nonsense(x: Any, *, beta: float) -> Any:
        return [3]

    wanted = r"gives list; expected a type, .*x\.with_shape"
    for given, said in ((rule, "raised KeyError"), (nonsense, wanted)):
        with pytest.raises(tercet.ModelError, match=rf"node 's'.*shape rule {said}") as caught:
            tercet.load(MODEL, operators={KEY: CustomOperator(swish, given)})
        assert caught.value.exit_code == 2


OPEN = """<ir_version: 10, opset_import: ["" : 21, "test" : 1]>
    g (float[n, 4] x) => (y, z) { a = Relu (x)  y = test.Double (a)  z = Neg (y) }"""


def doubled(x: Array) -> Array:
    return np.concatenate([x, x])


@pytest.mark.parametrize("n", [2, 0])
def test_a_rule_that_needs_sizes_is_asked_when_they_are_known(n: int) -> None:
    asked = list[str]()

    def rule(x: Any) -> Any:
        asked.append(str(x))
        return x.with_shape((2 * x.dims[0], x.dims[1]))

    operators = {("test", "Double"): CustomOperator(doubled, rule)}
    x = np.linspace(-1, 1, 4 * n, dtype=np.float32).reshape(n, 4)
    with tercet.load(OPEN, operators=operators) as model:
        assert [each.shape for each in model.outputs] == [None, None]
        _, z = model(x)
        (row,) = (row for row in model.placement() if "z" in row.nodes)
        assert row.backend == "numpy"
    np.testing.assert_array_equal(z, -np.maximum(doubled(x), 0))
    assert {"float32[n,4]", f"float32[{n},4]"} <= set(asked)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (lambda x: x.with_dtype("float16"), "float16[n,4]"),
        (lambda x: x.with_dtype(np.int8), "int8[n,4]"),
        (lambda x: x.with_shape([np.int64(3), "m", None]), "float32[3,m,?]"),
        (lambda x: x.with_dtype("int65"), "the dtype 'int65', which ONNX does not have"),
        (lambda x: x.with_dtype(np.datetime64), ".*, which ONNX does not have"),
        (lambda x: x.with_dtype(None), "the dtype None, which ONNX does not have"),
        (lambda x: x.with_shape(3), "the shape 3; expected a tuple of sizes"),
        (lambda x: x.with_shape((-1, 4)), r"the shape \(-1, 4\); expected"),
        (lambda x: x.with_shape((1.5,)), r"the shape \(1.5,\); expected"),
    ],
)
def test_what_a_shape_rule_gives_is_checked(rule: Any, expected: str) -> None:
    operators = {("test", "Double"): CustomOperator(doubled, rule)}
    if "t" in expected.partition("[")[0] and expected.endswith("]"):
        with tercet.load(OPEN, operators=operators) as model:
            assert str(model.outputs[0]) == f"y: {expected}"
        return
    with pytest.raises(tercet.ModelError, match=rf"'y' \(test::Double\): .* gives {expected}"):
        tercet.load(OPEN, operators=operators)


@pytest.mark.parametrize("planned", [False, True], ids=["alone", "planned"])
def test_inputs_are_read_only(planned: bool) -> None:
    def greedy(x: Array, *, beta: float) -> Array:
        x *= 2
        return x

    given = CustomOperator(greedy, same) if planned else greedy
    x = X.copy()
    with (
        tercet.load(MODEL, operators={KEY: given}) as model,
        pytest.raises(tercet.DeviceError, match=r"node 's'.*read-only"),
    ):
        model(x)
    np.testing.assert_array_equal(x, X)


def test_a_default_that_is_an_integer_takes_a_float() -> None:
    def swish_of_integers(x: Array, *, beta: float = 1) -> Array:
        return swish(x, beta=beta)

    with tercet.load(MODEL, operators={KEY: swish_of_integers}) as model:
        np.testing.assert_array_equal(model(X)[0], np.maximum(swish(X, beta=2.0), 0))


def test_what_cannot_be_an_operator() -> None:
    def open_ended(x: Array, **attributes: Any) -> Array:
        return x

    def named(x: Array, *, alpha: float = 1.0) -> Array:
        return x

    with pytest.raises(tercet.UsageError, match="keyword-only parameters instead of \\*\\*attrib"):
        tercet.load(MODEL, operators={KEY: open_ended})
    with pytest.raises(tercet.UsageError, match="'Swish' is not a pair"):
        tercet.load(MODEL, operators={"Swish": swish})  # type: ignore[dict-item]
    with pytest.raises(tercet.ModelError, match="unknown attribute 'beta'"):
        tercet.load(MODEL, operators={KEY: named})
    with pytest.raises(tercet.UnsupportedError, match="did you mean 'Swish'"):
        tercet.load(
            model_of("g (float[n] x) => (y) { y = my.domain.Swiss (x) }"), operators={KEY: swish}
        )


def test_what_an_operator_holds_is_given_back_with_its_model() -> None:
    class Swish:
        def __call__(self, x: Array, *, beta: float = 1.0) -> Array:
            return swish(x, beta=beta)

    function = Swish()
    held = weakref.ref(function)
    with tercet.load(MODEL, operators={KEY: function}) as model:
        assert model(X)[0].shape == X.shape
    del model, function
    gc.collect()
    assert held() is None


def test_writing_a_model_keeps_no_operator_alive() -> None:
    """A schema is looked up by name, also where a function takes the place of ONNX's operator."""

    class Rectified:
        def __call__(self, x: Array) -> Array:
            return np.maximum(x, 0)

    function = Rectified()
    held = weakref.ref(function)
    model = model_of("g (float[n] x) => (float[n] y) { y = Relu (x) }")
    assert tercet.export(model, operators={("", "Relu"): function}).nodes[1] == 1
    del function
    gc.collect()
    assert held() is None


#: Results of an operator without a shape rule, read where passes ask for a type.
UNTYPED = {
    "a product of a transpose": """g (float[4,n] x) => (y) {
        u = my.domain.Same (x)  t = Transpose <perm = [1, 0]> (u)  y = MatMul (x, t) }""",
    "a product of a flattened transpose": """g (float[n,2,2,3] x) => (y)
        <float[12,2] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6},
         int64[2] shape = {-1, 12}> {
        u = my.domain.Same (x)  t = Transpose <perm = [0, 3, 1, 2]> (u)
        f = Reshape (t, shape)  y = MatMul (f, w) }""",
    "the shape of Expand": """g (float[1,3] x, int64[2] z) => (y) {
        s = my.domain.Same (z)  y = Expand (x, s) }""",
    "the factors of Resize": """g (float[1,1,n,4] x, float[4] z) => (y) {
        s = my.domain.Same (z)  y = Resize <mode = "nearest"> (x, , s) }""",
    "quantized again": """g (float[n] x) => (y) <float s = {0.5}, uint8 zero = {3}> {
        q = QuantizeLinear (x, s, zero)  u = my.domain.Same (q)
        d = DequantizeLinear (u, s, zero)  y = QuantizeLinear (d, s, zero) }""",
    "masked attention": """g (float[1,2,3,4] x) => (y)
        <float[3,3] m = {0, -inf, -inf, 0, 0, -inf, 0, 0, 0}> {
        u = my.domain.Same (x)  y = Attention (u, u, u, m) }""",
}


@pytest.mark.parametrize("case", UNTYPED)
def test_passes_read_results_of_unknown_type(case: str) -> None:
    model = parse_model(
        f'<ir_version: 11, opset_import: ["" : 23, "my.domain" : 1]>\n{UNTYPED[case]}'
    )
    rng = np.random.default_rng(0)
    types = {value.name: value.type.tensor_type for value in model.graph.input}
    sizes = {name: [dim.dim_value or 3 for dim in type_.shape.dim] for name, type_ in types.items()}
    feeds: dict[str, Any] = {n: rng.standard_normal(s).astype(np.float32) for n, s in sizes.items()}
    if "z" in sizes:
        feeds["z"] = np.array([2, 3]) if sizes["z"] == [2] else np.array([1, 1, 2, 2], np.float32)
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    for node in plain.graph.node:
        node.domain, node.op_type = "", node.op_type.replace("Same", "Identity")
    with tercet.load(model, operators={("my.domain", "Same"): lambda x: x}) as loaded:
        found = loaded.run(feeds)["y"]
    with tercet.load(plain) as loaded:
        np.testing.assert_allclose(found, loaded.run(feeds)["y"], rtol=1e-6)


def test_tensors_as_attributes() -> None:
    model = model_of("""g (float[n] x) => (y) {
      a = my.domain.Table <t = float[2] {1.0, 2.0}> (x)
      b = my.domain.Table <t = float[2] {1.0, 2.0}> (x)
      c = my.domain.Table (x)
      d = Add (a, b)  y = Add (d, c) }""")

    ten = np.array([10, 20], np.float32)

    def table(x: Array, *, t: Array = ten) -> Array:
        return x * t.sum()

    with tercet.load(model, operators={("my.domain", "Table"): table}) as loaded:
        np.testing.assert_array_equal(loaded(X)[0], X * 36)
