"""Einsums of two tensors become products of matrices."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.elementwise import Add, Mul, Relu
from tercet.runtime.ops.matmul import Einsum
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.reduce import ReduceMean
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised


def network(
    equation: str, shape: tuple[Dim, ...], weight: tuple[int, ...], swapped: bool = False
) -> Graph:
    def build(graph: Graph, x: Value) -> Value:
        w = normal(*weight)
        operands = (w, x) if swapped else (x, w)
        return apply(graph, Einsum(equation=equation), *operands)

    return make(build, shape)


@pytest.mark.parametrize(
    ("equation", "shape", "weight"),
    [
        ("ij,jk->ik", (3, 4), (4, 5)),
        ("ij,jk", (3, 4), (4, 5)),
        ("ij,kj->ki", (3, 4), (5, 4)),
        ("abc,cde->abde", (2, 3, 4), (4, 5, 6)),
        ("abcd,cde->abe", (2, 3, 4, 5), (4, 5, 6)),
        ("abc,cd->adb", (2, 3, 4), (4, 5)),
        ("aecd,abcd->acbe", (2, 5, 3, 4), (2, 6, 3, 4)),
        ("acbe,aecd->abcd", (2, 3, 6, 5), (2, 5, 3, 4)),
        ("bhid,bhjd->bhij", (2, 3, 4, 5), (2, 3, 6, 5)),
        ("abc,dbce->ade", (2, 3, 4), (5, 3, 4, 6)),
        # relative positions of SAM and MViTv2: a matrix for each row, or column, of an image
        ("byhwc,hkc->byhwk", (2, 3, 4, 5, 6), (4, 7, 6)),
        ("byhwc,wkc->byhwk", (2, 3, 4, 5, 6), (5, 7, 6)),
        ("abcd,bde->aebc", (2, 3, 4, 5), (3, 5, 6)),
        # masks of MaskFormer and DETR: several columns, or several terms, of a stack
        ("bqc,bchw->bqhw", (2, 5, 3), (2, 3, 4, 6)),
        ("bqnc,bnchw->bqnhw", (2, 5, 3, 4), (2, 3, 4, 6, 7)),
        ("abcd,aecd->abe", (2, 3, 4, 5), (2, 6, 4, 5)),
        # local attention of LongT5
        ("...qhd,...khd->...hqk", (2, 3, 4, 2, 5), (2, 3, 6, 2, 5)),
        ("...j,jk->...k", (2, 3, 4), (4, 5)),
        # random features of Performer: an ellipsis of fewer axes, or of none
        ("...id,...jd->...ij", (2, 3, 4, 5), (6, 5)),
        ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
        ("...ij,...jk->...ik", (2, 3, 5, 4), (3, 4, 6)),
    ],
)
def test_products(equation: str, shape: tuple[int, ...], weight: tuple[int, ...]) -> None:
    for swapped in (False, True):
        left, _, result = equation.partition("->")
        terms = left.split(",")
        text = ",".join(reversed(terms)) if swapped else left
        graph = network(
            f"{text}->{result}" if result else equation, shape, weight, swapped and bool(result)
        )
        after, log = optimised(graph)
        assert log.counts["lower_einsum"] == 1
        assert "Einsum" not in kinds(after)
        assert kinds(after).count("MatMul") == 1
        assert_same(graph, after)


@pytest.mark.parametrize(
    ("equation", "shape", "weight"),
    [
        ("abc,bd->adc", (2, 3, 4), (3, 5)),  # along a sequence (Linformer)
        ("abcd,efc->abefd", (2, 3, 4, 5), (6, 7, 4)),  # along the nodes of a graph (STGCN)
    ],
)
def test_one_matrix_for_a_stack(
    equation: str, shape: tuple[int, ...], weight: tuple[int, ...]
) -> None:
    graph = network(equation, shape, weight)
    after, log = optimised(graph)
    assert log.counts["lower_einsum"] == 1
    assert "Transpose" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize(
    ("equation", "shape", "weight"),
    [
        ("ij,j->i", (3, 4), (4,)),
        ("abcd,abd->abc", (2, 3, 4, 5), (2, 3, 5)),  # divisors of linear attention
        ("ab,abc->ac", (2, 3), (2, 3, 4)),
        ("ab,ab->a", (2, 3), (2, 3)),
    ],
)
def test_vectors(equation: str, shape: tuple[int, ...], weight: tuple[int, ...]) -> None:
    graph = network(equation, shape, weight)
    after, log = optimised(graph)
    assert log.counts["lower_einsum"] == 2
    assert "MatMul" in kinds(after)
    assert "Einsum" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize(
    "equation", ["bhk,bhkv->bhv", "bhkv,bhk->bhv", "bhv,bhkv->bhk", "bhkv,bhv->bhk", "kv,k->v"]
)
def test_matrices_stay_as_they_are_beside_vectors(equation: str) -> None:
    """States of linear attention are read by rows or by columns."""
    terms = equation.partition("->")[0].split(",")
    letters = max(terms, key=len)

    def build(graph: Graph, x: Value) -> Value:
        (missing,) = {*letters} - {*min(terms, key=len)}
        axes = np.array([letters.index(missing)])
        vector = apply(graph, ReduceMean(keepdims=0), x, axes)
        operands = [x if term == letters else vector for term in terms]
        return apply(graph, Einsum(equation=equation), *operands)

    graph = make(build, (2, 3, 4, 5)[-len(letters) :])
    after, _ = optimised(graph)
    assert "MatMul" in kinds(after)
    assert "Transpose" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("shape", [("batch", 4, 5, 6), (2, 4, "width", 6)])
def test_symbolic_rows_of_a_stack(shape: tuple[Dim, ...]) -> None:
    graph = network("bhwc,hkc->bhwk", shape, (4, 7, 6))
    after, log = optimised(graph)
    assert log.counts["lower_einsum"] == 1
    assert_same(graph, after, 2, 4, 5, 6)


@pytest.mark.parametrize("shape", [("batch", "time", 4), ("batch", 3, 4)])
def test_symbolic_sizes(shape: tuple[Dim, ...]) -> None:
    graph = network("abc,cde->abde", shape, (4, 5, 6))
    after, log = optimised(graph)
    assert log.counts["lower_einsum"] == 1
    assert_same(graph, after, 2, 3, 4)


def test_unknown_sizes_may_broadcast() -> None:
    """As torch.tensordot does, whose sizes only a run tells."""

    def build(graph: Graph, x: Value) -> Value:
        rows = apply(graph, Reshape(), x, np.array([0, -1], np.int64))
        columns = apply(graph, Reshape(), x, np.array([-1, 1], np.int64))
        return apply(graph, Einsum(equation="ij,jk->ik"), rows, columns)

    graph = make(build, ("a", "b", "c"))
    after, log = optimised(graph)
    assert "lower_einsum" not in log.counts
    assert_same(graph, after, 5, 1, 1)


@pytest.mark.parametrize(
    ("equation", "shape", "weight"),
    [
        ("ijk,kl->il", (3, 2, 4), (4, 5)),
        ("...ij,...jk->...ik", (2, 3, 4, 5), (1, 5, 6)),
        ("iij,jk->ik", (3, 3, 4), (4, 5)),
        ("ij,jk->ik", (3, 4), (1, 5)),
    ],
)
def test_what_stays(equation: str, shape: tuple[int, ...], weight: tuple[int, ...]) -> None:
    after, log = optimised(network(equation, shape, weight))
    assert "lower_einsum" not in log.counts
    assert kinds(after) == ["Einsum"]


@pytest.mark.parametrize(
    ("equation", "shape", "weight"),
    [
        ("ij,ij->ij", (3, 4), (3, 4)),
        ("ij,kl->ijkl", (3, 4), (5, 6)),
        ("bhcl,bclhp->bclhp", (2, 3, 4, 5), (2, 4, 5, 3, 6)),
        ("i,j->ji", (3,), (4,)),
        ("ij,->ji", (3, 4), ()),
    ],
)
def test_products_of_elements(
    equation: str, shape: tuple[int, ...], weight: tuple[int, ...]
) -> None:
    graph = network(equation, shape, weight)
    after, _ = optimised(graph)
    assert "Mul" in kinds(after)
    assert "Einsum" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize("equation", ["nhwpqc->nchpwq", "nhw...->...whn"])
def test_an_order_of_axes(equation: str) -> None:
    def build(graph: Graph, x: Value) -> Value:
        return apply(graph, Relu(), apply(graph, Einsum(equation=equation), x))

    graph = make(build, (2, 3, 4, 2, 3, 5))
    after, _ = optimised(graph)
    assert "Transpose" in kinds(after)
    assert "Einsum" not in kinds(after)
    assert_same(graph, after)


@pytest.mark.parametrize(
    ("equation", "shapes", "products"),
    [
        # the state-space duality of Mamba-2
        (
            "bcln,bcsn,bhcls,bcshp->bclhp",
            ((2, 3, 4, 5), (2, 3, 6, 5), (2, 2, 3, 4, 6), (2, 3, 6, 2, 7)),
            2,
        ),
        ("bcln,bhcl,bclhp->bchpn", ((2, 3, 4, 5), (2, 2, 3, 4), (2, 3, 4, 2, 6)), 1),
        ("ij,jk,kl->il", ((3, 4), (4, 5), (5, 2)), 2),
        ("...ij,...jk,...kl->...il", ((2, 3, 4), (2, 4, 5), (2, 5, 2)), 2),
    ],
)
def test_many_operands(equation: str, shapes: tuple[tuple[int, ...], ...], products: int) -> None:
    def build(graph: Graph, x: Value) -> Value:
        mean = apply(graph, ReduceMean(keepdims=0), x)
        others = (apply(graph, Add(), mean, normal(*shape)) for shape in shapes[1:])
        return apply(graph, Einsum(equation=equation), x, *others)

    graph = make(build, shapes[0])
    after, _ = optimised(graph)
    assert kinds(after).count("MatMul") == products
    assert "Einsum" not in kinds(after)
    assert_same(graph, after)


def test_attention_of_keras() -> None:
    """Projections to heads with a bias each, and scores, as Einsums."""

    def build(graph: Graph, x: Value) -> Value:
        def layer(equation: str, value: Value, *shape: int, bias: tuple[int, ...]) -> Value:
            y = apply(graph, Einsum(equation=equation), value, normal(*shape))
            return apply(graph, Add(), y, normal(*bias))

        q, k, v = (layer("abc,cde->abde", x, 12, 3, 8, bias=(3, 8)) for _ in range(3))
        q = apply(graph, Mul(), q, np.array(8**-0.5, np.float32))
        scores = apply(graph, Einsum(equation="aecd,abcd->acbe"), k, q)
        weights = apply(graph, Softmax(axis=-1), scores)
        y = apply(graph, Einsum(equation="acbe,aecd->abcd"), weights, v)
        return layer("abcd,cde->abe", y, 3, 8, 12, bias=(12,))

    graph = make(build, (2, 5, 12))
    after, log = optimised(graph)
    assert log.counts["lower_einsum"] == 6
    assert log.counts["fuse_attention"] == log.counts["join_heads"] == 1
    assert kinds(after) == ["MatMul", "Add", "Split", "Attention", "MatMul", "Add"]
    assert_same(graph, after, rel=5e-6)


def test_the_cheapest_order_of_three_operands() -> None:
    """Performer: the narrow result of a product is normalized, not one of its wide factors."""

    def build(graph: Graph, x: Value) -> Value:
        mean = apply(graph, ReduceMean(keepdims=0), x)
        context = apply(graph, Add(), mean, normal(2, 3, 32, 4))
        norm = apply(graph, Add(), mean, normal(2, 3, 5))
        equation = "...nd,...de,...n->...ne"
        return apply(graph, Einsum(equation=equation), x, context, norm)

    graph = make(build, (2, 3, 5, 32))
    after, _ = optimised(graph)
    (product,) = (node for node in after.nodes if node.kind == "MatMul")
    assert product.inputs[0] is after.inputs[0]
    assert "Transpose" not in kinds(after)
    assert_same(graph, after)
