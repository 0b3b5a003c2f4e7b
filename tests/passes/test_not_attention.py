"""What looks like attention and is none, or has other readers, stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Cast, Mul, Sub, Tanh
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Transpose
from tercet.runtime.ops.norm import Softmax

from .graphs import apply, assert_same, kinds, make, normal, optimised
from .test_fuse_attention import (
    CAUSAL,
    SPELLINGS,
    Spelling,
    attend,
    by_head,
    by_rows,
    guarded,
    hiding,
    joined,
    network,
    plus,
    then,
    times,
)

WRONG = {
    "a mask without an element for every key": Spelling(of_scores=plus(normal(1, 1, 5, 1))),
    "a mask that adds samples": Spelling(of_scores=plus(normal(4, 1, 5, 5))),
    "a vector": Spelling(of_scores=plus(normal(5))),
    "a scale below zero, which onnxruntime refuses": Spelling(of_q=times(-1)),
    "a fill that a score could be": Spelling(of_scores=hiding(CAUSAL, -1e4)),
    "a scale a key": Spelling(of_scores=lambda g, x: apply(g, Mul(), x, normal(1, 1, 1, 5))),
    "rows of NaN that have infinite scores": Spelling(
        of_scores=lambda g, x: apply(g, Sub(), x, np.where(CAUSAL, 0, -np.inf).astype(np.float32)),
        of_weights=guarded,
    ),
    "scores in float32 of weights that stay so": Spelling(
        of_q=lambda g, x: apply(g, Cast(to=float16), x),
        of_keys=lambda g, x: apply(g, Cast(to=float16), x),
        of_scores=lambda g, x: apply(g, Cast(to=float32), x),
    ),
    "a scale of what is masked": Spelling(of_scores=then(plus(normal(5, 5)), by_rows(3, 1, 1))),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_attention_would_not_do(name: str) -> None:
    shape = (1, 5, 24) if "samples" in name else (2, 5, 24)
    after, log = optimised(network(WRONG[name], shape))
    assert "fuse_attention" not in log.counts
    assert "Softmax" in kinds(after)


MORE_AXES = {
    "mask": plus(normal(2, 2, 3, 5, 5)),
    "scale": lambda graph, x: apply(graph, Mul(), x, normal(1, 1, 1, 1, 1)),
}


@pytest.mark.parametrize("step", MORE_AXES.values(), ids=MORE_AXES)
def test_more_axes(step: Callable[[Graph, Value], Value]) -> None:
    def build(graph: Graph, x: Value) -> Value:
        q, v = (by_head(graph, x, 3, 0, 2, 1, 3) for _ in range(2))
        return attend(graph, q, by_head(graph, x, 3, 0, 2, 3, 1), v, Spelling(of_scores=step))

    _, log = optimised(make(build, (2, 5, 24)))
    assert "fuse_attention" not in log.counts


@pytest.mark.parametrize("axis", [1, 2])
def test_another_axis(axis: int) -> None:
    def build(graph: Graph, x: Value) -> Value:
        scores = apply(graph, MatMul(), x, apply(graph, Transpose(perm=(0, 2, 1)), x))
        weights = apply(graph, Softmax(axis=axis), scores)
        return apply(graph, MatMul(), weights, x)

    _, log = optimised(make(build, (2, 5, 5)))
    assert log.counts.get("fuse_attention", 0) == (axis == 2)


@pytest.mark.parametrize("read", ["scores", "weights"])
def test_values_with_other_readers(read: str) -> None:
    graph = network(Spelling(of_scores=times(0.3)))
    softmax = next(node for node in graph.nodes if isinstance(node.op, Softmax))
    value = softmax.output if read == "weights" else softmax.inputs[0]
    assert value is not None
    graph.set_outputs({**graph.outputs, "seen": value})
    after, log = optimised(graph)
    assert "fuse_attention" not in log.counts
    assert "Softmax" in kinds(after)


def test_values_of_more_axes() -> None:
    def build(graph: Graph, x: Value) -> Value:
        q = by_head(graph, x, 3, 0, 2, 1, 3)
        keys = by_head(graph, x, 3, 0, 2, 3, 1)
        return attend(graph, q, keys, graph.constant(normal(4, 2, 3, 5, 8)), Spelling())

    _, log = optimised(make(build, (2, 5, 24)))
    assert "fuse_attention" not in log.counts


@pytest.mark.parametrize(("pixels", "fused"), [(256, True), (289, False)])
def test_channels_that_attend_with_many_pixels_stay_products(pixels: int, fused: bool) -> None:
    def build(g: Graph, x: Value) -> Value:
        keys = apply(g, Transpose(perm=(0, 1, 3, 2)), apply(g, Mul(), x, normal(1)))
        return attend(g, x, keys, apply(g, Mul(), x, normal(1)), Spelling(of_q=times(0.1)))

    graph = make(build, (1, 2, 6, pixels))
    after, _ = optimised(graph)
    assert ("Attention" in kinds(after)) == fused
    assert_same(graph, after)


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_a_vector_or_matrix_times_a_stack_of_matrices(shape: tuple[int, ...]) -> None:
    def build(g: Graph, x: Value) -> Value:
        scores = apply(g, MatMul(), x, normal(2, 4, 5))
        return apply(g, MatMul(), apply(g, Softmax(axis=-1), scores), normal(5, 3))

    graph = make(build, shape)
    after, _ = optimised(graph)
    assert "Attention" not in kinds(after)
    assert_same(graph, after)


def test_keys_that_are_no_transpose() -> None:
    def build(graph: Graph, x: Value) -> Value:
        keys = apply(graph, Concat(axis=2), x, x)
        v = apply(graph, Concat(axis=1), x, x)
        return attend(graph, x, keys, v, Spelling())

    _, log = optimised(make(build, (2, 8, 8)))
    assert "fuse_attention" not in log.counts


def test_heads_that_do_not_go_back_stay() -> None:
    def build(graph: Graph, x: Value) -> Value:
        q, v = (by_head(graph, x, 3, 0, 2, 1, 3) for _ in range(2))
        return attend(graph, q, by_head(graph, x, 3, 0, 2, 3, 1), v, Spelling())

    graph = make(build, (2, 5, 24))
    after, log = optimised(graph)
    assert log.counts["fuse_attention"] == 1
    assert "join_heads" not in log.counts
    assert_same(graph, after, rel=5e-6)


def test_products_of_different_tensors_stay() -> None:
    def build(graph: Graph, x: Value) -> Value:
        other = apply(graph, Tanh(), x)
        q, v = by_head(graph, other, 3, 0, 2, 1, 3), by_head(graph, x, 3, 0, 2, 1, 3)
        y = attend(graph, q, by_head(graph, x, 3, 0, 2, 3, 1), v, Spelling())
        return joined(graph, y, 24)

    graph = make(build, (2, 5, 24))
    after, log = optimised(graph)
    assert log.counts["merge_products"] == 1
    assert kinds(after).count("MatMul") == 2
    assert_same(graph, after, rel=5e-6)


def test_passes_can_be_left_out() -> None:
    graph = network(SPELLINGS["TorchScript"])
    after, log = optimised(graph, skip=("fuse_attention",))
    assert not {"fuse_attention", "join_heads", "merge_products"} & set(log.counts)
    assert "Softmax" in kinds(after)
