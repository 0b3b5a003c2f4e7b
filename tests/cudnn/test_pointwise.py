"""Elementwise chains in cuDNN's terms: which nodes, over which axes, in which words."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bool_, float16, float32, float64, int8, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops import elementwise as ops
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Decline
from tercet.runtime.plan.format import Format

from .operators import BINARY, PAIRS, SPECIAL, UNARY, Words, X

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn.backend import survey
from tercet.backends.cudnn.pointwise import Pointwise
from tercet.backends.cudnn.pointwise_ops import WORDS, PointwiseWriter
from tercet.backends.cudnn.registry import NodeGroup

LARGE = (4, 64, 128, 128)
CUDNN: Any = SimpleNamespace(scalar_type=SimpleNamespace(RUNTIME_PARAM=None))


def surveyed(graph: Graph, y: Value, **options: Any) -> list[NodeGroup | Decline]:
    graph.set_outputs({"y": y})
    infer(graph)
    return list(survey(graph, frozenset(graph.nodes), Options(**options)))


def wanted(graph: Graph, y: Value, **options: Any) -> NodeGroup:
    (found,) = surveyed(graph, y, **options)
    assert isinstance(found, NodeGroup), found
    return found


def reason(op: Op, *types: TensorType, **options: Any) -> str:
    graph = Graph()
    inputs = [graph.add_input(f"x{i}", type_) for i, type_ in enumerate(types)]
    (found,) = surveyed(graph, graph.insert(op, inputs).output, **options)
    assert isinstance(found, Decline), found
    return found.reason


def operation(found: NodeGroup) -> Pointwise:
    (way,) = found.task.divisions
    assert isinstance(way.operation, Pointwise)
    return way.operation


def added(shape: tuple[int, ...], other: tuple[int, ...], dtype: DType = float32) -> NodeGroup:
    """Return the sum of two tensors as a claim, whatever its size."""
    graph = Graph()
    shapes = {"x": shape, "y": other}
    inputs = [graph.add_input(name, TensorType(dtype, s)) for name, s in shapes.items()]
    return wanted(graph, graph.insert(ops.Add(), inputs).output, algorithms={"Add": "cudnn"})


# ── which nodes ──────────────────────────────────────────────────────────────────────────────────


def test_a_chain_is_one_graph() -> None:
    graph = Graph()
    x, y = (graph.add_input(name, TensorType(float32, LARGE)) for name in "xy")
    total = graph.insert(ops.Add(), [x, y]).output
    half = graph.insert(ops.Mul(), [total, graph.constant(np.array(0.5, np.float32))]).output
    gate = graph.insert(ops.Greater(), [half, x]).output
    found = wanted(graph, graph.insert(ops.Where(), [gate, half, y]).output)
    assert [type(node.op).__name__ for node in found.nodes] == ["Add", "Mul", "Greater", "Where"]
    assert operation(found).title == "Add+Mul+Greater+Where"
    texts = [str(stage) for stage in operation(found).stages]
    assert texts[0] == "Add()(x0, x1)"
    assert texts[1:] == ["Mul()(v0, 0.5)", "Greater()(v1, x0)", "Where()(v2, v1, x1)"]
    assert operation(found).operands["y"].dims == (1, 32768, 128)


def test_what_a_kernel_takes_along_is_left_to_it() -> None:
    """A product of float32 is not one of cuDNN's, and the cuda kernel applies what is behind it."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (1 << 11, 1 << 11)))
    product = graph.insert(MatMul(), [x, x]).output
    *_, found = surveyed(graph, graph.insert(ops.Relu(), [product]).output)
    assert isinstance(found, Decline)
    assert found.reason == "part of the kernel of the preceding MatMul"


def test_small_ones_are_left_to_the_cuda_kernels_unless_asked_for() -> None:
    small = TensorType(float32, (10, 1000))
    assert reason(ops.Relu(), small).startswith("10000 elements; on an H200 a sum of 1e6 float32")
    assert operation(added((10, 1000), (10, 1000))).y.dims == (1, 10, 1000)


@pytest.mark.parametrize(
    ("op", "dtype", "text"),
    [
        (ops.Sin(), float32, "cuDNN's sine is wrong far from 0"),
        (ops.Round(), float32, "cuDNN has no rounding"),
        (ops.Acos(), float32, "no cuDNN graph starts with Acos"),
        (ops.Relu(), float64, "dtype float64; cuDNN computes floats of 32 and 16 bits"),
        (ops.Abs(), int64, "dtype int64; cuDNN computes floats of 32 and 16 bits"),
        (ops.Cast(to=np.dtype(np.int32)), float32, "dtype int32; cuDNN computes floats"),
    ],
)
def test_what_is_declined(op: Op, dtype: DType, text: str) -> None:
    assert text in reason(op, TensorType(dtype, LARGE))


def test_a_narrowing_cast_comes_last_or_not_at_all() -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, LARGE))
    half = graph.insert(ops.Cast(to=float16), [graph.insert(ops.Exp(), [x]).output]).output
    found = surveyed(graph, graph.insert(ops.Neg(), [half]).output)
    assert all(isinstance(one, Decline) and "inside a chain" in one.reason for one in found)
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, LARGE))
    half = graph.insert(ops.Cast(to=float16), [graph.insert(ops.Exp(), [x]).output]).output
    assert operation(wanted(graph, half)).y.dtype == float16


# ── over which axes ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("shape", "other", "dims"),
    [
        ((1000,), (1000,), ((1, 1, 1000), (1, 1, 1000))),
        ((1 << 20,), (1 << 20,), ((1, 8192, 128), (1, 8192, 128))),
        ((10, 100_000), (10, 100_000), ((1, 15625, 64), (1, 15625, 64))),
        ((7, 12, 99), (99,), ((1, 84, 99), (1, 1, 99))),
        ((7, 12, 99), (7, 12, 1), ((1, 84, 99), (1, 84, 1))),
        ((7, 12, 99), (7, 1, 99), ((7, 12, 99), (7, 1, 99))),
        ((1, 12, 9, 11), (12, 1, 1), ((1, 12, 99), (1, 12, 1))),
    ],
)
def test_axes_merge_into_three(shape, other, dims) -> None:
    found = operation(added(shape, other))
    assert tuple(operand.dims for _, operand in found.reads) == dims


def test_a_column_is_not_repeated_over_a_stack() -> None:
    """Seen on an H200: the second image got what is behind the column."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, LARGE))
    y = graph.add_input("y", TensorType(float32, (64, 1, 1)))
    (found,) = surveyed(graph, graph.insert(ops.Add(), [x, y]).output)
    assert isinstance(found, Decline)
    assert "cuDNN broadcasts only whole rows correctly" in found.reason


def test_channels_last_images_are_rows_of_channels() -> None:
    found = added((1, 64, 28, 28), (1, 64, 1, 1))
    assert found.formats.follows
    assert found.at is not None
    formats = dict.fromkeys((*found.gives.values(), *found.reads.values()), Format.CHANNELS_LAST)
    site: Any = SimpleNamespace(formats=formats, pitches={})
    task = found.at(site)
    assert not isinstance(task, str)
    assert [o.dims for o in task.operands.values()] == [(1, 784, 64), (1, 1, 64), (1, 784, 64)]


def test_booleans_are_bytes() -> None:
    graph = Graph()
    mask = graph.add_input("m", TensorType(bool_, LARGE))
    x = graph.add_input("x", TensorType(float32, LARGE))
    found = operation(wanted(graph, graph.insert(ops.Where(), [mask, x, x]).output))
    assert [operand.dtype for _, operand in found.reads] == [int8, float32]


# ── in which words ───────────────────────────────────────────────────────────────────────────────


def spelled(op: Op, *given: Any) -> Any:
    """Return what an operator's words compute, with cuDNN's own ends of the range."""
    return WORDS[type(op)](PointwiseWriter(Words(), CUDNN), op, *given)


def right(op: Op, *given: Any) -> Any:
    arrays = [None if g is None else np.asarray(g, np.float64) for g in given]
    found = evaluate(op, arrays, 1)
    assert found is not None
    return found[0]


@pytest.mark.parametrize("op", UNARY, ids=str)
def test_words_for_one(op: Op) -> None:
    check(spelled(op, X), right(op, X))


@pytest.mark.parametrize("op", BINARY, ids=str)
def test_words_for_two(op: Op) -> None:
    pairs = PAIRS.values()
    check(spelled(op, *pairs), right(op, *pairs))


@pytest.mark.parametrize("limits", [(-1.0, 2.0), (None, 2.0), (-1.0, None), (-inf, 2.0)])
def test_words_for_limits(limits: tuple[float | None, float | None]) -> None:
    check(spelled(ops.Clip(), SPECIAL, *limits), right(ops.Clip(), SPECIAL, *limits))


def check(got: Any, want: Any) -> None:
    with np.errstate(over="ignore"):
        rounded = np.asarray(want).astype(np.float32)
    np.testing.assert_allclose(got, rounded, rtol=1e-5, atol=2e-6)
