"""Normalizations that exporters spell out become one node, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Dim, TensorType
from tercet.runtime.ops.elementwise import Add, Div, Max, Mul, Neg, Pow, Reciprocal, Relu, Sqrt, Sub
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization
from tercet.runtime.ops.pool import GlobalAveragePool
from tercet.runtime.ops.reduce import ReduceMean, ReduceSum
from tercet.runtime.ops.shape import Reshape, Unsqueeze
from tercet.runtime.passes.driver import Reason

from .graphs import Build, apply, assert_same, kinds, make, normal, optimised

SHAPE = (2, 5, 8)
MEAN = ReduceMean()


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@dataclass(frozen=True)
class Form:
    """One of the ways to write a normalization."""

    axes: tuple[int, ...] = (-1,)
    centred: bool = True
    square: str = "pow"
    quotient: str = "div"
    epsilon_first: bool = False
    scale: bool = True
    shift: bool = True
    commuted: bool = False
    epsilon: Any = 1e-3
    mean: Any = MEAN
    mean_of_squares: Any = MEAN
    exponent: float = 2.0
    size: tuple[int, ...] = (8,)

    def write(self, graph: Graph, x: Value) -> Value:
        axes = integers(*self.axes)
        d = apply(graph, Sub(), x, apply(graph, self.mean, x, axes)) if self.centred else x
        if self.square == "pow":
            square = apply(graph, Pow(), d, np.array(self.exponent, np.float32))
        else:
            square = apply(graph, Mul(), d, d)
        variance = apply(graph, self.mean_of_squares, square, axes)
        if self.epsilon is not None:
            epsilon = np.array(self.epsilon, np.float32)
            terms = (epsilon, variance) if self.epsilon_first else (variance, epsilon)
            variance = apply(graph, Add(), *terms)
        y = self._divide(graph, d, variance)
        if self.scale:
            y = self._join(graph, Mul(), y, normal(*self.size))
        return self._join(graph, Add(), y, normal(*self.size)) if self.shift else y

    def _divide(self, graph: Graph, d: Value, s: Value) -> Value:
        if self.quotient == "power":
            return apply(graph, Mul(), d, apply(graph, Pow(), s, np.array(-0.5, np.float32)))
        root = apply(graph, Sqrt(), s)
        if self.quotient == "div":
            return apply(graph, Div(), d, root)
        if self.quotient == "reciprocal":
            return apply(graph, Mul(), apply(graph, Reciprocal(), root), d)
        one = np.array(1, np.float32)
        return apply(graph, Mul(), d, apply(graph, Div(), one, root))

    def _join(self, graph: Graph, op: Any, y: Value, data: np.ndarray) -> Value:
        return apply(graph, op, data, y) if self.commuted else apply(graph, op, y, data)


def graph_of(form: Form, shape: tuple[Dim, ...] = SHAPE) -> Graph:
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, shape))
    graph.set_outputs({"y": form.write(graph, apply(graph, Relu(), x))})
    infer(graph)
    return graph


LAYER: dict[str, Form] = {
    "as TorchScript writes it": Form(),
    "the square a product": Form(square="mul"),
    "a reciprocal": Form(quotient="reciprocal"),
    "one by the root": Form(quotient="inverse"),
    "a power of -0.5": Form(quotient="power"),
    "epsilon first": Form(epsilon_first=True),
    "scale and shift first": Form(commuted=True),
    "axes from the front": Form(axes=(2,)),
    "two axes": Form(axes=(1, 2), size=(5, 8)),
    "two axes, in another order": Form(axes=(-1, 1), size=(5, 8)),
    "no shift": Form(shift=False),
    "no scale": Form(scale=False),
    "neither": Form(scale=False, shift=False),
    "epsilon of one axis": Form(epsilon=[1e-3]),
    "no epsilon": Form(epsilon=None),
}


@pytest.mark.parametrize("name", LAYER)
def test_layer_normalization(name: str) -> None:
    form = LAYER[name]
    graph = graph_of(form)
    after, log = optimised(graph)
    assert kinds(after) == ["Relu", "LayerNormalization"]
    assert log.counts["fuse_norm"] == 1
    op = after.nodes[1].op
    assert isinstance(op, LayerNormalization)
    epsilon = 0.0 if form.epsilon is None else 1e-3
    assert (op.axis, op.epsilon) == (-len(form.axes), pytest.approx(epsilon))
    assert_same(graph, after, *SHAPE)


RMS: dict[str, Form] = {
    name: replace(form, centred=False, shift=False) for name, form in LAYER.items()
}


@pytest.mark.parametrize("name", RMS)
def test_rms_normalization(name: str) -> None:
    graph = graph_of(RMS[name])
    after, _ = optimised(graph)
    assert kinds(after) == ["Relu", "RMSNormalization"]
    assert isinstance(after.nodes[1].op, RMSNormalization)
    assert_same(graph, after, *SHAPE)


def by_length(scale: np.ndarray | None = None, *, axis: int = -1, computed: bool = False) -> Build:
    """Divide rows by their lengths, as DeltaNet does."""

    def build(g: Graph, x: Value) -> Value:
        total = apply(g, ReduceSum(keepdims=1), apply(g, Mul(), x, x), integers(axis))
        root = apply(g, Sqrt(), apply(g, Add(), total, np.array(1e-2, np.float32)))
        y = apply(g, Mul(), x, apply(g, Reciprocal(), root))
        if computed:
            return apply(g, Mul(), y, apply(g, ReduceMean(keepdims=0), x, integers(0, 1)))
        return y if scale is None else apply(g, Mul(), y, scale)

    return build


@pytest.mark.parametrize("scale", [None, normal(8)], ids=["no scale", "scale"])
def test_rows_by_their_lengths(scale: np.ndarray | None) -> None:
    graph = make(by_length(scale), (2, 5, 8))
    after, _ = optimised(graph)
    assert kinds(after) == ["RMSNormalization"]
    op = next(iter(after.nodes)).op
    assert isinstance(op, RMSNormalization)
    assert op.epsilon == pytest.approx(1e-2 / 8)
    assert_same(graph, after)


def test_lengths_along_other_axes_stay() -> None:
    graph = make(by_length(axis=1), (2, 5, 8))
    after, _ = optimised(graph)
    assert "ReduceSum" in kinds(after)
    assert_same(graph, after)


def test_a_computed_scale_of_lengths_stays_behind() -> None:
    graph = make(by_length(computed=True), (2, 5, 8))
    after, _ = optimised(graph)
    assert kinds(after) == ["RMSNormalization", "ReduceMean", "Mul"]
    assert_same(graph, after)


def test_what_is_behind_an_rms_normalization_stays() -> None:
    graph = graph_of(Form(centred=False))
    after, _ = optimised(graph)
    assert kinds(after) == ["Relu", "RMSNormalization", "Add"]
    assert_same(graph, after, *SHAPE)


def test_symbolic_batch() -> None:
    graph = graph_of(Form(), ("batch", None, 8))
    after, _ = optimised(graph)
    assert kinds(after) == ["Relu", "LayerNormalization"]
    assert_same(graph, after, *SHAPE)


def test_a_scale_of_another_shape_stays_behind() -> None:
    """ONNX wants a scale of the shape of the normalized axes."""
    graph = graph_of(Form(size=(5, 8)))
    after, _ = optimised(graph)
    assert kinds(after) == ["Relu", "LayerNormalization", "Mul", "Add"]
    assert_same(graph, after, *SHAPE)


def test_axes_of_one_in_front_of_a_scale() -> None:
    graph = graph_of(Form(size=(1, 1, 8)))
    after, _ = optimised(graph)
    assert kinds(after) == ["Relu", "LayerNormalization"]
    assert_same(graph, after, *SHAPE)


@pytest.mark.parametrize("centred", [True, False])
def test_a_scale_of_more_axes_stays_behind(centred: bool) -> None:
    """The result has its axes, which a normalization would not add."""
    graph = graph_of(Form(size=(1, 1, 1, 8), centred=centred, shift=False))
    after, _ = optimised(graph)
    norm = "LayerNormalization" if centred else "RMSNormalization"
    assert kinds(after) == ["Relu", norm, "Mul"]
    assert_same(graph, after, *SHAPE)


def keras(
    graph: Graph, x: Value, *, scaled: bool = True, shifted: bool = True, negated: bool = True
) -> Value:
    """Keras's, as tf2onnx writes it: the scale joins the root, and the mean is scaled as x is."""
    mean = apply(graph, GlobalAveragePool(), x)
    d = apply(graph, Sub(), x, mean)
    variance = apply(graph, GlobalAveragePool(), apply(graph, Mul(), d, d))
    root = apply(graph, Sqrt(), apply(graph, Add(), variance, np.array(1e-3, np.float32)))
    factor = apply(graph, Reciprocal(), root)
    factor = apply(graph, Mul(), factor, normal(1, 1, 8)) if scaled else factor
    product = apply(graph, Mul(), x, factor)
    if not negated:
        other = apply(graph, Mul(), mean, factor)
        if shifted:
            return apply(graph, Add(), product, apply(graph, Sub(), normal(1, 1, 8), other))
        return apply(graph, Sub(), product, other)
    other = apply(graph, Mul(), apply(graph, Neg(), mean), factor)
    other = apply(graph, Add(), other, normal(1, 1, 8)) if shifted else other
    return apply(graph, Add(), product, other)


def flax(
    graph: Graph, x: Value, *, limited: bool = True, quotient: bool = True, swapped: bool = False
) -> Value:
    """flax's: the variance is the mean of squares less the square of the mean."""
    mean = apply(graph, MEAN, x, integers(-1))
    squares = apply(graph, MEAN, apply(graph, Mul(), x, x), integers(-1))
    square = apply(graph, Mul(), mean, mean)
    variance = apply(graph, Sub(), *((square, squares) if swapped else (squares, square)))
    zero, epsilon = np.array(0, np.float32), np.array(1e-3, np.float32)
    variance = apply(graph, Max(), variance, zero) if limited else variance
    root = apply(graph, Sqrt(), apply(graph, Add(), variance, epsilon))
    d = apply(graph, Sub(), x, mean)
    if quotient:
        y = apply(graph, Mul(), apply(graph, Div(), d, root), normal(8))
    else:
        factor = apply(graph, Mul(), apply(graph, Reciprocal(), root), normal(8))
        y = apply(graph, Mul(), d, factor)
    return apply(graph, Add(), y, normal(8))


FOLDED: dict[str, tuple[Callable[..., Value], dict[str, bool]]] = {
    "keras": (keras, {}),
    "keras, no scale": (keras, {"scaled": False}),
    "keras, no shift": (keras, {"shifted": False}),
    "keras, neither": (keras, {"scaled": False, "shifted": False}),
    "tensorflow": (keras, {"negated": False}),
    "tensorflow, no shift": (keras, {"negated": False, "shifted": False}),
    "flax": (flax, {}),
    "flax, no limit": (flax, {"limited": False}),
    "flax, scaled root": (flax, {"quotient": False}),
}


@pytest.mark.parametrize("name", FOLDED)
def test_other_ways_to_say_the_same(name: str) -> None:
    write, chosen = FOLDED[name]
    graph = Graph("g")
    x = apply(graph, Relu(), graph.add_input("x", TensorType(float32, SHAPE)))
    graph.set_outputs({"y": write(graph, x, **chosen)})
    infer(graph)
    after, _ = optimised(graph)
    assert kinds(after) == ["Relu", "LayerNormalization"]
    assert_same(graph, after, *SHAPE)


def test_a_variance_of_the_other_sign_is_none() -> None:
    graph = Graph("g")
    x = apply(graph, Relu(), graph.add_input("x", TensorType(float32, SHAPE)))
    graph.set_outputs({"y": flax(graph, x, swapped=True)})
    infer(graph)
    after, _ = optimised(graph)
    assert "LayerNormalization" not in kinds(after)


CHANNELS: dict[str, tuple[Form, tuple[int, ...]]] = {
    "of an image": (Form(axes=(1,), size=(5, 1, 1)), (2, 5, 8, 3)),
    "of a line": (Form(axes=(-2,), size=(1, 5, 1), square="mul"), SHAPE),
    "without scale and shift": (Form(axes=(1,), scale=False, shift=False), (2, 5, 8, 3)),
    "root mean square": (Form((1,), centred=False, shift=False, size=(5, 1, 1)), (2, 5, 8, 3)),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_channels_are_normalized_as_rows(name: str) -> None:
    form, shape = CHANNELS[name]
    graph = graph_of(form, shape)
    after, _ = optimised(graph)
    norm = "LayerNormalization" if form.centred else "RMSNormalization"
    assert kinds(after) == ["Relu", "Transpose", norm, "Transpose"]
    assert_same(graph, after, *shape)


KEPT: dict[str, tuple[Form, tuple[Dim, ...]]] = {
    "not the last axis": (Form(axes=(2,), scale=False, shift=False), (2, 5, 8, 3)),
    "channels and columns": (Form(axes=(1, 3), scale=False, shift=False), (2, 5, 8, 3)),
    "the first axis too": (Form(axes=(0, 2), scale=False, shift=False), SHAPE),
    "squares of two axes": (
        Form(mean_of_squares=ReduceSum(), axes=(1, 2), size=(5, 8)),
        SHAPE,
    ),
    "a cube": (Form(exponent=3.0), SHAPE),
    "an epsilon by feature": (Form(epsilon=np.full(8, 1e-3)), SHAPE),
    "a negative epsilon": (Form(epsilon=-1e-3), SHAPE),
    "an unknown size": (Form(scale=False, shift=False), (2, 5, None)),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_formulas_stay(name: str) -> None:
    graph = graph_of(*KEPT[name])
    _, log = optimised(graph)
    assert "fuse_norm" not in log.counts


@pytest.mark.parametrize("view", [Reshape(), Unsqueeze()], ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("shape", [SHAPE, ("batch", 5, 8)], ids=["known", "symbolic"])
def test_mean_and_variance_of_pytorch(view: Reshape | Unsqueeze, shape: tuple[Dim, ...]) -> None:
    """``(x - x.mean(-1)) / sqrt(x.var(-1) + eps)``: var has its own mean, and drops its axis."""

    def build(g: Graph, x: Value) -> Value:
        d = apply(g, Sub(), x, apply(g, MEAN, x, integers(-1)))
        other = apply(g, Sub(), x, apply(g, MEAN, x, integers(2)))
        squares = apply(g, Mul(), other, other)
        variance = apply(g, ReduceMean(keepdims=0), squares, integers(2))
        back = integers(2) if isinstance(view, Unsqueeze) else integers(-1, 5, 1)
        shifted = apply(g, Add(), apply(g, view, variance, back), np.array(1e-3, np.float32))
        return apply(g, Mul(), apply(g, Div(), d, apply(g, Sqrt(), shifted)), normal(8))

    graph = make(build, shape)
    after, _ = optimised(graph)
    assert kinds(after) == ["LayerNormalization"]
    assert_same(graph, after, *SHAPE)


READ_ELSEWHERE: dict[str, list[str]] = {
    # Without its mean, a LayerNormalization is an RMSNormalization of the difference, which stays.
    "mean": ["ReduceMean", "Sub", "RMSNormalization", "Neg"],
    "difference": ["ReduceMean", "Sub", "RMSNormalization", "Neg"],
    "root": ["ReduceMean", "Sub", "Mul", "ReduceMean", "Add", "Sqrt", "Div", "Neg"],
}


@pytest.mark.parametrize("what", READ_ELSEWHERE)
def test_what_others_read_stays(what: str) -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, SHAPE))
    mean = apply(graph, ReduceMean(), x, integers(-1))
    d = apply(graph, Sub(), x, mean)
    variance = apply(graph, ReduceMean(), apply(graph, Mul(), d, d), integers(-1))
    root = apply(graph, Sqrt(), apply(graph, Add(), variance, np.array(1e-5, np.float32)))
    y = apply(graph, Div(), d, root)
    other = {"mean": mean, "difference": d, "root": root}[what]
    graph.set_outputs({"y": y, "z": apply(graph, Neg(), other)})
    infer(graph)
    after, log = optimised(graph)
    assert kinds(after) == READ_ELSEWHERE[what]
    assert_same(graph, after, *SHAPE)
    if what == "root":
        (why,) = log.refused
        assert (why.name, why.reason) == ("fuse_norm", Reason.SHARED)
        assert why.nodes == ("ReduceMean", "Sub", "Mul", "ReduceMean.1", "Add", "Sqrt", "Div")
        assert "Neg 'Neg' reads 'Sqrt', too" in why.text


def test_the_mean_of_something_else_is_not_subtracted() -> None:
    """What is left is an RMSNormalization of the difference."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, SHAPE))
    other = apply(graph, Relu(), x)
    d = apply(graph, Sub(), x, apply(graph, ReduceMean(), other, integers(-1)))
    variance = apply(graph, ReduceMean(), apply(graph, Mul(), d, d), integers(-1))
    root = apply(graph, Sqrt(), apply(graph, Add(), variance, np.array(1e-5, np.float32)))
    graph.set_outputs({"y": apply(graph, Div(), d, root)})
    infer(graph)
    after, _ = optimised(graph)
    assert kinds(after) == ["Relu", "ReduceMean", "Sub", "RMSNormalization"]
    assert_same(graph, after, *SHAPE)


@pytest.mark.parametrize("mean", ["of squares", "given"])
def test_another_mean_than_that_of_what_is_normalized(mean: str) -> None:
    """As Keras writes it, but for squares of another tensor than what is subtracted from."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, SHAPE))
    given = graph.add_input("given", TensorType(float32, (*SHAPE[:-1], 1)))
    d = apply(graph, Relu(), x)
    variance = apply(graph, MEAN, apply(graph, Mul(), d, d), integers(-1))
    root = apply(graph, Sqrt(), apply(graph, Add(), variance, np.array(1e-3, np.float32)))
    factor = apply(graph, Mul(), apply(graph, Reciprocal(), root), normal(1, 1, 8))
    less = apply(graph, Neg(), variance if mean == "of squares" else given)
    other = apply(graph, Add(), apply(graph, Mul(), less, factor), normal(1, 1, 8))
    graph.set_outputs({"y": apply(graph, Add(), apply(graph, Mul(), x, factor), other)})
    infer(graph)
    after, _ = optimised(graph)
    assert "LayerNormalization" not in kinds(after)
