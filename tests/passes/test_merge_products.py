"""Queries, keys and values as one product: with caches, with norms, of two sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tercet.backends import open_backends
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float32, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Div, Exp, Mul
from tercet.runtime.ops.gather import Gather, TensorScatter
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Concat, Pad, Slice, Split, Transpose
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization, Softmax
from tercet.runtime.ops.packed import MatMulNBits
from tercet.runtime.ops.reduce import ReduceL2
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..randomness import restarting
from .graphs import apply, assert_same, kinds, make, normal, optimised, results

K, SIZE = 40, 4
RNG = restarting(11)


@dataclass(frozen=True)
class Product:
    """A product with constant weights.

    Attributes:
        heads: of its result.
        bits: of its weights; 0 for float32.
        block: of packed weights.
        zeros: what zero points are: nothing, ``packed`` or ``floats``.
        bias: whether one is added.
        normed: whether rows of its results are normalized, all heads at once (OLMo 2).
    """

    heads: int
    bits: int = 4
    block: int = 16
    zeros: str = ""
    bias: bool = False
    normed: bool = False

    def __call__(self, g: Graph, x: Value) -> Value:
        width = self.heads * SIZE
        if not self.bits:
            y = apply(g, MatMul(), x, normal(K, width))
        else:
            blocks = -(-K // self.block)
            size = (width, blocks, self.block * self.bits // 8)
            packed = RNG.integers(0, 256, size).astype(np.uint8)
            zeros = None
            if self.zeros == "packed":
                nbytes = -(-blocks * self.bits // 8)
                zeros = RNG.integers(0, 256, width * nbytes).astype(np.uint8)
            elif self.zeros:
                zeros = np.abs(normal(width * blocks)) * 5
            op = MatMulNBits(K=K, N=width, bits=self.bits, block_size=self.block)
            y = apply(g, op, x, packed, normal(width * blocks), zeros)
        y = apply(g, Add(), y, normal(width)) if self.bias else y
        return apply(g, RMSNormalization(), y, normal(width)) if self.normed else y


def decoder(products: list[Product], *, cached: str = "joined") -> Graph:
    """Return a layer whose keys and values are joined to caches, or written into their room."""
    g = Graph()
    x = g.add_input("x", TensorType(float32, (1, 3, K)))
    results: dict[str, Value] = {}
    for number, each in enumerate(products):
        shape = np.array([1, 3, each.heads, SIZE])
        heads = apply(g, Transpose(perm=(0, 2, 1, 3)), apply(g, Reshape(), each(g, x), shape))
        if cached and number:
            past = g.add_input(f"past{number}", TensorType(float32, (1, each.heads, 5, SIZE)))
            if cached == "joined":
                heads = apply(g, Concat(axis=2), past, heads)
            else:
                room = apply(g, Pad(), past, np.array([0, 0, 0, 0, 0, 0, 3, 0]))
                heads = apply(g, TensorScatter(axis=2), room, heads, np.array([5]))
        results[f"y{number}"] = heads
    g.set_outputs(results)
    infer(g)
    return g


@pytest.mark.parametrize(
    "products",
    [
        [Product(4, 0), Product(2, 0), Product(2, 0)],
        [Product(4), Product(2), Product(2)],
        [Product(4, bias=True), Product(2), Product(2, bias=True)],
        [Product(4, normed=True), Product(2, bias=True, normed=True), Product(2)],
        [Product(4, zeros="packed"), Product(2, zeros="packed"), Product(2, zeros="packed")],
        [Product(4, 2, zeros="packed"), Product(1, 2, zeros="packed")],
        [Product(3, 8, 32, "floats"), Product(1, 8, 32, "floats"), Product(1, 8, 32, "floats")],
    ],
    ids=str,
)
@pytest.mark.parametrize("cached", ["joined", "written"])
def test_products_are_one(products: list[Product], cached: str) -> None:
    graph = decoder(products, cached=cached)
    after, log = optimised(graph)
    assert log.counts["merge_products"] == 1
    assert sum(kind in ("MatMul", "MatMulNBits") for kind in map(_short, kinds(after))) == 1
    for found, wanted in zip(results(after), results(graph), strict=True):
        np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


def _short(kind: str) -> str:
    return kind.rpartition(":")[2]


@pytest.mark.parametrize(
    "products",
    [
        [Product(2), Product(2, 8)],
        [Product(2), Product(2, block=32)],
        [Product(2), Product(2, zeros="packed")],
        [Product(2, zeros="floats"), Product(2, zeros="packed")],
        [Product(2, 0), Product(2)],
    ],
    ids=str,
)
def test_products_that_are_not_alike_stay(products: list[Product]) -> None:
    after, log = optimised(decoder(products))
    assert "merge_products" not in log.counts
    assert len([kind for kind in kinds(after) if "MatMul" in kind]) == 2


def test_heads_that_nobody_keeps_stay() -> None:
    _, log = optimised(decoder([Product(4), Product(2), Product(2)], cached=""))
    assert "merge_products" not in log.counts


def heads(g: Graph, x: Value, *, normed: str) -> Value:
    """Return [1, heads, positions, size] of a layer of x, normalized as a whole or head by head."""
    count, (batch, length, _) = 3, x.tensor.dims
    y = apply(g, Add(), apply(g, MatMul(), x, normal(K, count * SIZE)), normal(count * SIZE))
    if normed == "whole":
        y = apply(g, RMSNormalization(axis=-1), y, normal(count * SIZE))
    y = apply(g, Reshape(), y, np.array([batch, length, count, SIZE]))
    if normed == "each":
        y = apply(g, LayerNormalization(axis=-1), y, normal(SIZE))
    y = apply(g, Transpose(perm=(0, 2, 1, 3)), y)
    if normed == "length":
        y = apply(g, Div(), y, apply(g, ReduceL2(), y, np.array([-1])))
        y = apply(g, Mul(), y, normal(count, 1, SIZE))
    infer(g)
    return y


def attended(g: Graph, q: Value, k: Value, v: Value) -> Value:
    scores = apply(g, MatMul(), q, apply(g, Transpose(perm=(0, 1, 3, 2)), k))
    y = apply(g, MatMul(), apply(g, Softmax(axis=-1), scores), v)
    batch, count, length, size = q.tensor.dims
    y = apply(g, Transpose(perm=(0, 2, 1, 3)), y)
    return apply(g, Reshape(), y, np.array([batch, length, count * size]))


@pytest.mark.parametrize("normed", ["whole", "each", "length", ""])
def test_heads_that_are_normalized(normed: str) -> None:
    """OLMo 2 normalizes rows of all heads of queries and keys, nGPT divides each by its length."""

    def build(g: Graph, x: Value) -> Value:
        return attended(g, *(heads(g, x, normed=how) for how in (normed, normed, "")))

    before = make(build, (2, 5, K))
    after, _ = optimised(before)
    assert kinds(after).count("MatMul") == 1
    assert_same(before, after, 2, 5, K)


@pytest.mark.parametrize(("length", "count"), [(5, 4), (2100, 5)])
def test_sequences_that_are_joined(length: int, count: int) -> None:
    """Queries and keys of text and of an image are normalized apart, and attend together."""

    def build(g: Graph, x: Value) -> Value:
        parts = [
            apply(g, Slice(), x, *map(np.array, ([a], [b], [1])))
            for a, b in ((0, 4), (4, x.tensor.dims[1]))
        ]
        infer(g)
        how = ("each", "each", "")
        both = [[heads(g, part, normed=each) for part in parts] for each in how]
        joined = [apply(g, Concat(axis=2), *each) for each in both]
        infer(g)
        return attended(g, *joined)

    before = make(build, (1, 4 + length, K))
    after, _ = optimised(before)
    assert kinds(after).count("MatMul") == count
    assert_same(before, after, 1, 4 + length, K)


@pytest.mark.parametrize("read", [False, True], ids=["normed", "read elsewhere"])
def test_latents_that_are_normalized(read: bool) -> None:
    """Queries' latent, and a second one beside keys that are rotated (DeepSeek-V3)."""

    def build(g: Graph, x: Value) -> Value:
        first, second = (apply(g, MatMul(), x, normal(K, width)) for width in (16, 12))
        sizes = g.constant(np.array([8, 4]))
        part, rest = g.insert(Split(axis=-1, num_outputs=2), [second, sizes], 2).outputs
        parts = [
            apply(g, RMSNormalization(axis=-1), each, normal(width))
            for each, width in ((first, 16), (part, 8))
        ]
        return apply(g, Concat(axis=-1), *parts, rest, *([first] if read else []))

    before = make(build, (2, 5, K))
    after, _ = optimised(before)
    assert kinds(after).count("MatMul") == 1 + read
    assert_same(before, after, 2, 5, K)


@pytest.mark.parametrize("bias", [False, True])
def test_layers_of_nodes_that_edges_read_are_one(bias: bool) -> None:
    """Both ends of each edge, and what the node itself adds; another layer reads the sum."""

    def layer(g: Graph, x: Value) -> Value:
        if bias:
            return apply(g, Gemm(transB=1), x, normal(8, 6), normal(8))
        return apply(g, MatMul(), x, normal(6, 8))

    def build(g: Graph, x: Value) -> Value:
        ends = g.add_input("ends", TensorType(int64, (5,)))
        taken = [apply(g, Gather(), layer(g, x), ends) for _ in range(2)]
        rows = apply(g, Mul(), apply(g, Add(), *taken), taken[0])
        y = apply(g, Add(), layer(g, x), rows)
        return apply(g, MatMul(), y, normal(8, 3))

    graph = make(build, (5, 6))
    after, log = optimised(graph)
    assert log.counts["merge_products"] == 1
    assert sum(kind in ("MatMul", "Gemm") for kind in kinds(after)) == 2
    feeds = {"x": normal(5, 6), "ends": np.array([3, 0, -1, 2, 2])}
    results = list[np.ndarray]()
    for each in (graph, after):
        with Model(each, open_backends("numpy", Options()), Options(), evaluate) as model:
            results += model.run(feeds).values()
    np.testing.assert_allclose(*results, rtol=0, atol=1e-4)


def test_layers_of_a_vector_that_all_of_a_sample_reads_are_one() -> None:
    """Scales and shifts of the blocks of a network for diffusion."""

    def build(g: Graph, x: Value) -> Value:
        y = g.constant(normal(3, 8, 2, 2))
        for _ in range(3):
            both = apply(g, Gemm(transB=1), x, normal(16, 6), normal(16))
            both = apply(g, Reshape(), both, np.array([3, 16, 1, 1]))
            by, more = g.insert(Split(axis=1, num_outputs=2), [both], 2).outputs
            infer(g)
            by = apply(g, Add(), by, np.ones((), np.float32))
            y = apply(g, Add(), apply(g, Mul(), y, by), more)
        return y

    graph = make(build, (3, 6))
    after, _ = optimised(graph)
    assert sum(kind in ("MatMul", "Gemm") for kind in kinds(after)) == 1
    assert_same(graph, after, 3, 6)


def test_layers_that_nothing_repeats_stay() -> None:
    """A policy's mean and its deviation."""

    def build(g: Graph, x: Value) -> Value:
        mean, log = (apply(g, Gemm(), x, normal(6, 16), normal(16)) for _ in range(2))
        return apply(g, Add(), mean, apply(g, Mul(), apply(g, Exp(), log), normal(3, 16)))

    after, _ = optimised(make(build, (3, 6)))
    assert kinds(after).count("Gemm") == 2
