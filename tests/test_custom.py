"""Operators that users bring, and the memory that a model may take."""

from __future__ import annotations

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


def test_a_fault_in_it_names_the_node() -> None:
    def broken(x: Array, *, beta: float) -> Array:
        raise ValueError("not today")

    with (
        tercet.load(MODEL, operators={KEY: broken}) as model,
        pytest.raises(tercet.DeviceError, match=r"node 's' \(my.domain::Swish\): not today"),
    ):
        model(X)


def test_what_cannot_be_an_operator() -> None:
    def open_ended(x: Array, **attributes: Any) -> Array:
        return x

    def named(x: Array, *, alpha: float = 1.0) -> Array:
        return x

    with pytest.raises(tercet.UsageError, match="keyword-only parameters instead of \\*\\*attrib"):
        tercet.load(MODEL, operators={KEY: open_ended})
    with pytest.raises(tercet.UsageError, match="'Swish' is no pair"):
        tercet.load(MODEL, operators={"Swish": swish})  # type: ignore[dict-item]
    with pytest.raises(tercet.ModelError, match="unknown attribute 'beta'"):
        tercet.load(MODEL, operators={KEY: named})
    with pytest.raises(tercet.UnsupportedError, match="did you mean 'Swish'"):
        tercet.load(
            model_of("g (float[n] x) => (y) { y = my.domain.Swiss (x) }"), operators={KEY: swish}
        )
