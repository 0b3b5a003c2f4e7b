"""Each pass: what it rewrites, what it leaves, and that the result is the same.

Results are compared with a run of the untouched graph in float64 through the numpy backend.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.base.collecting import no_collection
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Dim, TensorType
from tercet.runtime.ir.verify import verify
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Add, Div, Mul, Relu, Sub, Sum
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Concat, Expand, Slice, Tile, Transpose
from tercet.runtime.ops.norm import Dropout
from tercet.runtime.ops.pool import AveragePool
from tercet.runtime.ops.random import RandomNormal
from tercet.runtime.ops.reduce import ReduceMean
from tercet.runtime.ops.resize import Resize
from tercet.runtime.ops.shape import ConstantOfShape, Identity, Reshape, Shape
from tercet.runtime.options import Options
from tercet.runtime.passes import STATIC_PASSES, SYMBOLIC_PASSES, Rewrites, optimise
from tercet.runtime.passes.driver import VERIFY

from .graphs import Build, apply, assert_same, batchnorm, kinds, make, normal, optimised

FOLDS: dict[str, tuple[Build, tuple[int, ...], list[str]]] = {
    "conv": (
        lambda g, x: batchnorm(g, apply(g, Conv(), x, normal(5, 3, 3, 3), normal(5)), 5),
        (2, 3, 8, 8),
        ["Conv"],
    ),
    "conv without bias": (
        lambda g, x: batchnorm(g, apply(g, Conv(), x, normal(5, 3, 3, 3)), 5, epsilon=1e-2),
        (2, 3, 8, 8),
        ["Conv"],
    ),
    "grouped conv with pads": (
        lambda g, x: batchnorm(
            g, apply(g, Conv(group=2, pads=(1, 1, 1, 1)), x, normal(6, 2, 3, 3)), 6
        ),
        (2, 4, 8, 8),
        ["Conv"],
    ),
    "product of rows": (
        lambda g, x: batchnorm(
            g, apply(g, Reshape(), apply(g, MatMul(), x, normal(3, 5)), np.array([-1, 5])), 5
        ),
        (2, 4, 3),
        ["MatMul", "Add", "Reshape"],
    ),
    "product of rows, counted and back": (
        lambda g, x: apply(
            g,
            Reshape(),
            batchnorm(
                g,
                apply(
                    g,
                    Reshape(),
                    apply(g, Add(), apply(g, MatMul(), x, normal(3, 5)), normal(5)),
                    np.array([8, 5]),
                ),
                5,
            ),
            np.array([2, 4, 5]),
        ),
        (2, 4, 3),
        ["MatMul", "Add"],
    ),
    "what an Expand repeats": (
        lambda g, x: apply(
            g, Mul(), x, apply(g, Expand(), apply(g, Relu(), normal(3, 1)), np.array([2, 3, 4]))
        ),
        (2, 3, 4),
        ["Mul"],
    ),
    "1-D conv": (
        lambda g, x: batchnorm(g, apply(g, Conv(), x, normal(5, 3, 3), normal(5)), 5),
        (2, 3, 8),
        ["Conv"],
    ),
    "transposed conv": (
        lambda g, x: batchnorm(g, apply(g, ConvTranspose(), x, normal(3, 4, 3, 3), normal(4)), 4),
        (2, 3, 5, 5),
        ["ConvTranspose"],
    ),
    "grouped transposed conv": (
        lambda g, x: batchnorm(g, apply(g, ConvTranspose(group=2), x, normal(4, 3, 2, 2)), 6),
        (2, 4, 5, 5),
        ["ConvTranspose"],
    ),
    "gemm": (
        lambda g, x: batchnorm(
            g, apply(g, Gemm(alpha=0.5, beta=2.0, transB=1), x, normal(6, 4), normal(6)), 6
        ),
        (3, 4),
        ["Gemm"],
    ),
    "gemm with scalar bias": (
        lambda g, x: batchnorm(g, apply(g, Gemm(), x, normal(4, 6), normal(1)), 6),
        (3, 4),
        ["Gemm"],
    ),
    "bias behind conv": (
        lambda g, x: apply(g, Add(), normal(5, 1, 1), apply(g, Conv(), x, normal(5, 3, 1, 1))),
        (1, 3, 4, 4),
        ["Conv"],
    ),
    "conv, batch-norm, bias": (
        lambda g, x: apply(
            g, Add(), batchnorm(g, apply(g, Conv(), x, normal(5, 3, 1, 1)), 5), normal(1, 5, 1, 1)
        ),
        (1, 3, 4, 4),
        ["Conv"],
    ),
    "inception's scale layer": (
        lambda g, x: apply(
            g,
            Add(),
            apply(
                g,
                Mul(),
                batchnorm(g, apply(g, Conv(), x, normal(5, 3, 1, 1)), 5),
                normal(5, 1, 1),
            ),
            normal(5, 1, 1),
        ),
        (1, 3, 4, 4),
        ["Conv"],
    ),
    "densenet's scale layer": (
        lambda g, x: apply(
            g,
            Relu(),
            apply(
                g,
                Add(),
                apply(g, Mul(), batchnorm(g, apply(g, Relu(), x), 3), normal(3, 1, 1)),
                normal(3, 1, 1),
            ),
        ),
        (1, 3, 4, 4),
        ["Relu", "BatchNormalization", "Relu"],
    ),
    "difference and quotient": (
        lambda g, x: apply(
            g,
            Div(),
            apply(g, Sub(), normal(6), apply(g, Gemm(beta=0.5), x, normal(4, 6), normal(6))),
            normal(1) + 3,
        ),
        (3, 4),
        ["Gemm"],
    ),
    "a layer's scale behind a product of rows": (
        lambda g, x: apply(
            g,
            Mul(),
            apply(g, Add(), apply(g, MatMul(), x, normal(4, 6)), normal(6)),
            normal(1, 6),
        ),
        (2, 3, 4),
        ["MatMul", "Add"],
    ),
    "a quotient and a second bias behind a product of rows": (
        lambda g, x: apply(
            g,
            Add(),
            apply(
                g,
                Add(),
                apply(g, Div(), apply(g, MatMul(), x, normal(4, 6)), normal(1) + 3),
                normal(6),
            ),
            normal(6),
        ),
        (2, 3, 4),
        ["MatMul", "Add"],
    ),
    "three gemms": (
        lambda g, x: apply(
            g,
            Gemm(transB=1, alpha=2.0),
            apply(
                g,
                Gemm(beta=3.0),
                apply(g, Gemm(transB=1), x, normal(9, 8), normal(9)),
                normal(9, 9),
                normal(9),
            ),
            normal(7, 9),
            normal(7),
        ),
        (3, 8),
        ["Gemm"],
    ),
    "conv and 1x1 conv": (
        lambda g, x: apply(
            g,
            Conv(),
            apply(g, Conv(pads=(1, 1, 1, 1)), x, normal(6, 3, 3, 3), normal(6)),
            normal(4, 6, 1, 1),
            normal(4),
        ),
        (1, 3, 6, 6),
        ["Conv"],
    ),
    "identities": (
        lambda g, x: apply(
            g,
            Identity(),
            apply(g, Transpose(perm=(0, 1)), apply(g, Dropout(), apply(g, Relu(), x))),
        ),
        (3, 4),
        ["Relu"],
    ),
    "equal branches": (
        lambda g, x: apply(
            g,
            Concat(axis=0),
            *(apply(g, AveragePool(kernel_shape=(2, 2), strides=(2, 2)), x) for _ in range(3)),
        ),
        (1, 2, 4, 4),
        ["AveragePool", "Concat"],
    ),
}


@pytest.mark.parametrize("name", FOLDS)
def test_folds(name: str) -> None:
    build, shape, left = FOLDS[name]
    before = make(build, shape)
    after, log = optimised(before)
    assert kinds(after) == left
    assert len(log) > 0
    assert_same(before, after, *shape)
    origins = {origin for node in after.nodes for origin in node.origin}
    if left in (["Conv"], ["ConvTranspose"], ["Gemm"]):
        assert origins == {node.name for node in before.nodes}


KEPT: dict[str, tuple[Build, tuple[Dim, ...]]] = {
    "batch-norm in training": (
        lambda g, x: batchnorm(g, apply(g, Conv(), x, normal(5, 3, 1, 1)), 5, training_mode=1),
        (1, 3, 4, 4),
    ),
    "batch-norm alone": (lambda g, x: batchnorm(g, apply(g, Relu(), x), 3), (1, 3, 4, 4)),
    "an addend that varies over a row": (
        lambda g, x: apply(g, Add(), apply(g, Conv(), x, normal(5, 3, 1, 1)), normal(5, 1, 4)),
        (1, 3, 4, 4),
    ),
    "an addend that broadcasts the result": (
        lambda g, x: apply(g, Add(), apply(g, Conv(), x, normal(1, 3, 1, 1)), normal(6, 1, 1)),
        (1, 3, 4, 4),
    ),
    "an activation in between": (
        lambda g, x: apply(
            g, Gemm(), apply(g, Relu(), apply(g, Gemm(), x, normal(4, 4))), normal(4, 4)
        ),
        (2, 4),
    ),
    "a bottleneck": (
        lambda g, x: apply(g, Gemm(), apply(g, Gemm(), x, normal(64, 2)), normal(2, 64)),
        (2, 64),
    ),
    "a padded 1x1 conv behind a biased one": (
        lambda g, x: apply(
            g,
            Conv(pads=(1, 1, 1, 1)),
            apply(g, Conv(), x, normal(3, 3, 1, 1), normal(3)),
            normal(3, 3, 1, 1),
        ),
        (1, 3, 4, 4),
    ),
    "random numbers": (
        lambda g, x: apply(
            g,
            Add(),
            apply(g, RandomNormal(shape=(1, 2))),
            apply(g, RandomNormal(shape=(1, 2))),
        ),
        (1, 2),
    ),
    "a reversal": (
        lambda g, x: apply(
            g,
            Slice(),
            x,
            np.array([-1]),
            np.array([-99]),
            np.array([0]),
            np.array([-1]),
        ),
        (4, 2),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_keeps(name: str) -> None:
    before = make(*KEPT[name])
    after, _ = optimised(before)
    assert kinds(after) == kinds(before)


def test_a_conv_with_two_readers_keeps_its_batchnorm() -> None:
    def build(graph: Graph, x: Value) -> Value:
        conv = apply(graph, Conv(), x, normal(3, 3, 1, 1))
        return apply(graph, Add(), conv, batchnorm(graph, conv, 3))

    before = make(build, (1, 3, 4, 4))
    after, _ = optimised(before)
    assert kinds(after).count("BatchNormalization") == 1


def test_stop_at_counts_rewrites_over_all_passes() -> None:
    def build(graph: Graph, x: Value) -> Value:
        for _ in range(4):
            x = batchnorm(graph, apply(graph, Conv(), x, normal(3, 3, 1, 1)), 3)
            x = apply(graph, Relu(), apply(graph, Identity(), x))
        return x

    before = make(build, (1, 3, 4, 4))
    _, everything = optimised(before)
    assert everything.counts["remove_identity"] == 4
    assert everything.counts["fold_batchnorm"] == 4
    for limit in range(len(everything) + 1):
        after, log = optimised(before, stop_at=limit)
        assert [r.number for r in log] == list(range(1, limit + 1))
        assert list(log) == everything.log[:limit]
        assert_same(before, after, 1, 3, 4, 4)


def test_a_pass_can_be_skipped() -> None:
    before = make(FOLDS["conv"][0], (2, 3, 8, 8))
    after, log = optimised(before, skip=("fold_batchnorm",))
    assert kinds(after) == ["Conv", "BatchNormalization"]
    assert "fold_batchnorm" not in log.counts


def test_constant_folding_respects_its_budget() -> None:
    def simple(graph: Graph, x: Value) -> Value:
        return apply(graph, Mul(), x, apply(graph, Tile(), normal(2), np.array([2500])))

    before = make(simple, (1, 5000))
    folded, _ = optimised(before)
    assert kinds(folded) == ["Mul"]
    assert kinds(optimised(before, fold_bytes=19_999)[0]) == ["Tile", "Mul"]
    assert kinds(optimised(before, fold_total=19_999)[0]) == ["Tile", "Mul"]


def test_constants_that_are_replaced_make_room_for_others() -> None:
    """Weights that are standardized, as in an NFNet, take no more than they did."""

    def build(graph: Graph, x: Value) -> Value:
        for _ in range(3):
            w = graph.constant(normal(50, 50))
            for _ in range(3):
                mean = apply(graph, ReduceMean(keepdims=1), w, np.array([1]))
                w = apply(graph, Sub(), w, mean)
            x = apply(graph, MatMul(), x, w)
        return x

    before = make(build, (1, 50))
    assert kinds(optimised(before, fold_total=10_200)[0]) == ["MatMul"] * 3
    assert "Sub" in kinds(optimised(before, fold_total=9_999)[0])


def test_a_repeated_element_folds_beyond_fold_bytes_and_takes_no_memory() -> None:
    def build(graph: Graph, x: Value) -> Value:
        huge = apply(graph, ConstantOfShape(), np.array([1 << 14, 1 << 14]))
        return apply(graph, Mul(), x, huge)

    after, _ = optimised(make(build, (1, 1)))
    (constant,) = after.constants
    assert kinds(after) == ["Mul"]
    assert constant.data is not None
    assert constant.data.shape == (1 << 14, 1 << 14)
    assert not any(constant.data.strides)


def test_a_constant_in_another_shape_folds_without_a_copy() -> None:
    weights = normal(6, 4)

    def build(graph: Graph, x: Value) -> Value:
        return apply(graph, Mul(), x, apply(graph, Reshape(), weights, np.array([2, 3, 4])))

    after, _ = optimised(make(build, (2, 3, 4)))
    (constant,) = after.constants
    assert constant.data is not None
    assert constant.data.shape == (2, 3, 4)
    assert np.shares_memory(constant.data, weights)


def test_symbolic_shape_arithmetic_folds_once_shapes_are_known() -> None:
    from tercet.runtime.ir.infer import specialise

    def build(graph: Graph, x: Value) -> Value:
        rows = apply(graph, Slice(), apply(graph, Shape(), x), *(np.array([i]) for i in (0, 1)))
        return apply(graph, Reshape(), x, apply(graph, Concat(axis=0), rows, np.array([-1])))

    graph = make(build, ("batch", 3, 4))
    kept, _ = optimised(graph)
    assert kinds(kept)[-1] == "Reshape"
    bound = specialise(kept, {"x": TensorType(float32, (5, 3, 4))})
    optimise(bound, STATIC_PASSES, Options(), evaluate, Rewrites())
    assert kinds(bound) == ["Reshape"]
    assert bound.outputs["y"].tensor.shape == (5, 12)


@pytest.mark.parametrize("last", [0, 1])
def test_duplicate_constants_count_by_content(last: int) -> None:
    """All of it, also where only the last element tells two of them apart."""
    weight = normal(8, 3, 1, 1)
    other = weight.copy()
    other.flat[-1] += last

    def build(graph: Graph, x: Value) -> Value:
        a = apply(graph, Conv(), x, weight)
        b = apply(graph, Conv(), x, other)
        return apply(graph, Mul(), a, b)

    convolutions = ["Conv"] * (1 + last)
    assert kinds(optimised(make(build, (1, 3, 4, 4)))[0]) == [*convolutions, "Mul"]


def test_a_node_with_thousands_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging what it reads looks at those who read, not at everything that they read besides."""
    monkeypatch.delenv(VERIFY)
    graph, count = Graph("fan"), 3000
    x = graph.add_input("x", TensorType(float32, (2,)))
    reads = [graph.insert(Relu(), [x]).output for _ in range(count)]
    graph.set_outputs({"y": graph.insert(Sum(), reads).output, "z": reads[-1]})
    infer(graph)
    looked = 0

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal looked
        looked += event in ("call", "c_call")

    with no_collection():  # of what other tests left, whose finalizers would be counted
        sys.setprofile(look)
        try:
            optimise(graph, SYMBOLIC_PASSES, Options(), evaluate, Rewrites())
        finally:
            sys.setprofile(None)
    verify(graph)
    assert len(graph.nodes) == 2
    assert looked < 100 * count


@pytest.mark.parametrize(("precision", "count"), [("float32", 0), ("bfloat16", 0), ("float16", 1)])
def test_scales_that_float16_has_no_weights_for_stay(precision: str, count: int) -> None:
    """A network at the start of its training scales what its layers add by 1e-6."""

    def build(g: Graph, x: Value) -> Value:
        y = apply(g, Add(), apply(g, MatMul(), x, normal(4, 6)), normal(6))
        return apply(g, Mul(), y, np.full(6, 1e-6, np.float32))

    after, _ = optimised(make(build, (3, 4)), precision=precision)
    assert kinds(after).count("Mul") == count


@pytest.mark.parametrize(
    ("operands", "how", "left"),
    [
        ((None, None, np.array([2, 3, 4, 5])), {"mode": "linear"}, []),
        ((None, np.ones(4, np.float32)), {"mode": "cubic"}, []),
        ((None, np.array([1, 1, 1.1, 1], np.float32)), {}, ["Resize"]),
        ((None, None, np.array([2, 3, 4, 6])), {}, ["Resize"]),
    ],
)
def test_a_resize_to_the_same_size(operands: Any, how: dict[str, Any], left: list[str]) -> None:
    def build(graph: Graph, x: Value) -> Value:
        return apply(graph, Relu(), apply(graph, Resize(**how), x, *operands))

    before = make(build, (2, 3, 4, 5))
    after, _ = optimised(before)
    assert kinds(after) == [*left, "Relu"]
    if len(operands) == 3:  # scales are float32 in every precision
        assert_same(before, after, 2, 3, 4, 5)
