"""Sums of two layers and another tensor."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Add, Relu, Tanh
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.packed import MatMulNBits

from .graphs import apply, assert_same, kinds, make, normal, optimised, results

ROWS, WIDTH = 5, 6


def layer(g: Graph, x: Value, bias: bool = True, packed: bool = False) -> Value:
    if packed:
        words = np.arange(WIDTH * 8, dtype=np.uint8).reshape(WIDTH, 1, 8)
        op = MatMulNBits(K=WIDTH, N=WIDTH, bits=4, block_size=16)
        y = apply(g, op, x, words, normal(WIDTH))
    else:
        y = apply(g, MatMul(), x, normal(WIDTH, WIDTH))
    return apply(g, Add(), y, normal(WIDTH)) if bias else y


def sums(order: str, packed: bool):
    """Return a block whose layers p and q are added to x in this order."""

    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, Relu(), x)
        q = layer(g, apply(g, Tanh(), rows), bias=False, packed=packed)
        known = {"x": x, "p": layer(g, rows, packed=packed), "q": q}
        one, other, last = (known[name] for name in order)
        inner = apply(g, Add(), one, other)
        return apply(g, Add(), *((last, inner) if order[2] == "x" else (inner, last)))

    return build


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["pqx", "qpx", "pxq", "xqp"])
def test_each_layer_adds_one_tensor(order: str, packed: bool) -> None:
    graph = make(sums(order, packed), (2, ROWS, WIDTH))
    after, _ = optimised(graph)
    np.testing.assert_allclose(results(after), results(graph), rtol=1e-5, atol=1e-5)
    if not packed:  # float64 does not have these
        assert_same(graph, after)
    product = [node for node in after.nodes if "MatMul" in node.kind]
    of_x = [n for n in after.nodes if n.kind == "Add" and after.inputs[0] in n.distinct_reads]
    assert len(product) == 2
    (first,) = of_x  # it adds x to a layer, not to a sum of both
    (total,) = (n for n in after.nodes if n.kind == "Add" and first.output in n.distinct_reads)
    assert total.output is after.outputs["y"]


def test_what_others_read_stays() -> None:
    def build(g: Graph, x: Value) -> Value:
        both = apply(g, Add(), layer(g, x), layer(g, apply(g, Tanh(), x)))
        return apply(g, Add(), apply(g, Add(), both, apply(g, Relu(), x)), apply(g, Relu(), both))

    graph = make(build, (2, ROWS, WIDTH))
    after, log = optimised(graph)
    assert "order_sums" not in log.counts
    assert_same(graph, after)


def test_three_layers_stay() -> None:
    def build(g: Graph, x: Value) -> Value:
        found = [layer(g, f) for f in (x, apply(g, Tanh(), x), apply(g, Relu(), x))]
        return apply(g, Add(), apply(g, Add(), *found[:2]), found[2])

    graph = make(build, (2, ROWS, WIDTH))
    after, log = optimised(graph)
    assert "order_sums" not in log.counts
    assert kinds(after).count("MatMul") == 3
    assert_same(graph, after)
