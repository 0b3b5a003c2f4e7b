"""Inputs that become constants, and other weights: what graph comes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.errors import InputError
from tercet.runtime.ir.dtypes import float32, int64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.session.freeze import freeze_inputs
from tercet.runtime.session.refit import refit


def masked() -> Graph:
    """y = x * mask + w, in another shape."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, ("n", 4)))
    mask = graph.add_input("mask", TensorType(float32, ("n", 4)))
    weight = graph.constant(np.arange(4, dtype=np.float32), "w")
    shape = graph.constant(np.array([-1], np.int64), "shape")
    product = graph.insert(Mul(), [x, mask]).output
    moved = graph.insert(Add(), [product, weight]).output
    graph.set_outputs({"y": graph.insert(Reshape(), [moved, shape]).output})
    infer(graph)
    return graph


def constant(graph: Graph, name: str) -> Array:
    data = graph.values[name].data
    assert data is not None
    return data


def test_a_size_of_what_is_frozen_is_known_of_all() -> None:
    graph, mask = masked(), np.arange(12, dtype=np.float32).reshape(3, 4)
    frozen = freeze_inputs(graph, {"mask": mask})
    assert [value.name for value in frozen.inputs] == ["x"]
    assert frozen.inputs[0].type == TensorType(float32, (3, 4))
    assert frozen.outputs["y"].tensor.dims == (12,)
    np.testing.assert_array_equal(constant(frozen, "mask"), mask)
    assert [value.name for value in graph.inputs] == ["x", "mask"]
    assert graph.outputs["y"].tensor.shape != (12,)


def test_the_other_inputs_keep_sizes_that_no_array_tells() -> None:
    graph = Graph()
    a = graph.add_input("a", TensorType(float32, ("n", "m")))
    b = graph.add_input("b", TensorType(float32, ("m",)))
    graph.set_outputs({"y": graph.insert(Add(), [a, b]).output})
    infer(graph)
    frozen = freeze_inputs(graph, {"b": np.zeros(5, np.float32)})
    assert frozen.inputs[0].type == TensorType(float32, ("n", 5))


def test_a_name_of_two_sizes_is_an_unknown_size() -> None:
    graph = Graph()
    a, b, c = (graph.add_input(name, TensorType(float32, ("n",))) for name in "abc")
    nodes = [graph.insert(Mul(), [value, value]) for value in (a, b, c)]
    graph.set_outputs({str(i): node.output for i, node in enumerate(nodes)})
    infer(graph)
    frozen = freeze_inputs(graph, {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)})
    assert frozen.inputs[0].type == TensorType(float32, (None,))
    assert [value.tensor.shape for value in frozen.outputs.values()] == [(2,), (3,), (None,)]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"mask": np.zeros((3, 5), np.float32)}, r"mask: float32\[n,4\]"),
        ({"mask": np.zeros((3, 4), np.int64)}, "int64"),
        ({"msk": np.zeros((3, 4), np.float32)}, "no input 'msk' to freeze; did you mean 'mask'"),
    ],
)
def test_what_cannot_be_frozen(arrays: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        freeze_inputs(masked(), arrays)


def test_refitted_weights_are_in_a_copy() -> None:
    graph, given = masked(), np.array([4, 3, 2, 1], np.float32)
    other = refit(graph, {"w": given})
    np.testing.assert_array_equal(constant(other, "w"), given)
    np.testing.assert_array_equal(constant(graph, "w"), [0, 1, 2, 3])
    assert [node.kind for node in other.nodes] == [node.kind for node in graph.nodes]


def test_arrays_that_are_no_weights_by_their_type_are_left_out() -> None:
    other = refit(masked(), {"shape": np.array([2, 6], np.int64), "steps": np.array(7)})
    assert constant(other, "shape").dtype == int64
    np.testing.assert_array_equal(constant(other, "shape"), [-1])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"v": np.zeros(4, np.float32)}, r"1 of 1 arrays are not weights of the model: v"),
        ({"w": np.zeros(5, np.float32)}, r"'w' is float32\[5\]; the model's is float32\[4\]"),
        ({"w": np.zeros(4, np.float16)}, r"'w' is float16\[4\]; the model's is float32\[4\]"),
        (
            {f"v{i}": np.zeros(4, np.float32) for i in range(7)},
            r"7 of 7 arrays .*: v0, v1, v2, v3, v4 and 2 more",
        ),
    ],
)
def test_arrays_without_a_place_are_refused(arrays: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        refit(masked(), arrays)
