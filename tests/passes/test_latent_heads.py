"""Heads of latent attention are rows, with what is rotated in front."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Add, Mul, Sub
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Expand, Slice, Split, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, assert_same, kinds, make, normal, optimised

HEADS, LENGTH, WIDTH = 3, 5, 16


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention, as transformers writes it.

    Attributes:
        kept, rotated, values: elements of a head that are not rotated, that are, and of values.
        apart: whether pairs are side by side, and put apart behind the rotation.
        other: whether those of the queries stay as they are then.
        first: whether rotated elements come first.
        bias: whether layers have one.
        read: whether the queries are a result, too.
        heads: of the keys that are rotated.
    """

    kept: int = 6
    rotated: int = 4
    values: int = 5
    apart: bool = True
    other: bool = False
    first: bool = False
    bias: bool = False
    read: bool = False
    heads: int = 1

    def __call__(self, g: Graph, x: Value) -> Value:
        q = self._heads(g, self._layer(g, x, HEADS * (self.kept + self.rotated)), HEADS)
        q_kept, q_rotated = self._cut(g, q, (self.kept, self.rotated), 3)
        layer = self._layer(g, x, WIDTH + self.heads * self.rotated)
        latent, alone = self._cut(g, layer, (WIDTH, self.heads * self.rotated), 2)
        alone = self._heads(g, alone, self.heads)
        both = self._layer(g, latent, HEADS * (self.kept + self.values))
        k_kept, v = self._cut(g, self._heads(g, both, HEADS), (self.kept, self.values), 3)
        q_rotated = self._rotated(g, q_rotated, apart=self.apart and not self.other)
        k_rotated = self._rotated(g, alone, apart=self.apart)
        if self.heads == 1:
            k_rotated = apply(g, Expand(), k_rotated, np.array([1, HEADS, 1, 1]))
        q, k = (
            apply(g, Concat(axis=-1), *((b, a) if self.first else (a, b)))
            for a, b in ((q_kept, q_rotated), (k_kept, k_rotated))
        )
        scores = apply(g, MatMul(), q, apply(g, Transpose(perm=(0, 1, 3, 2)), k))
        y = apply(g, MatMul(), apply(g, Softmax(axis=-1), scores), v)
        rows = apply(g, Transpose(perm=(0, 2, 1, 3)), y)
        shape = np.array([-1, LENGTH, HEADS * self.values])
        y = apply(g, Reshape(), rows, shape)
        if self.read:
            rows = apply(g, Transpose(perm=(0, 2, 1, 3)), q_kept)
            shape = np.array([-1, LENGTH, HEADS * self.kept])
            y = apply(g, Concat(axis=-1), y, apply(g, Reshape(), rows, shape))
        return y

    def _layer(self, g: Graph, x: Value, width: int) -> Value:
        infer(g)
        y = apply(g, MatMul(), x, normal(x.tensor.dims[-1], width) / 4)
        y = apply(g, Add(), y, normal(width)) if self.bias else y
        infer(g)
        return y

    def _heads(self, g: Graph, x: Value, count: int) -> Value:
        infer(g)
        size = x.tensor.dims[-1] // count
        cut = apply(g, Reshape(), x, np.array([0, LENGTH, count, size]))
        heads = apply(g, Transpose(perm=(0, 2, 1, 3)), cut)
        infer(g)
        return heads

    def _cut(self, g: Graph, x: Value, sizes: tuple[int, int], axis: int) -> tuple[Value, Value]:
        one, two = sizes
        swapped = self.first and axis == 3 and two == self.rotated
        given = [x, g.constant(np.array((two, one) if swapped else (one, two)))]
        parts = g.insert(Split(axis=axis, num_outputs=2), given, 2).outputs
        infer(g)
        return (parts[1], parts[0]) if swapped else (parts[0], parts[1])

    def _rotated(self, g: Graph, x: Value, *, apart: bool) -> Value:
        half = self.rotated // 2
        angles = np.random.default_rng(0).standard_normal((LENGTH, half))
        cos, sin = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
        steps = ((0, 1 << 40, 2), (1, 1 << 40, 2)) if apart else ((0, half, 1), (half, 1 << 40, 1))
        a, b = (
            apply(g, Slice(), x, *(np.array([n]) for n in (first, last, 3, step)))
            for first, last, step in steps
        )
        one = apply(g, Sub(), apply(g, Mul(), a, cos), apply(g, Mul(), b, sin))
        two = apply(g, Add(), apply(g, Mul(), b, cos), apply(g, Mul(), a, sin))
        return apply(g, Concat(axis=-1), one, two)


@pytest.mark.parametrize("batch", [2, 1])
@pytest.mark.parametrize(
    "how",
    [Latent(), Latent(apart=False), Latent(first=True), Latent(bias=True, kept=3, values=7)],
    ids=str,
)
def test_heads_are_rows(how: Latent, batch: int) -> None:
    before = make(how, (batch, LENGTH, WIDTH))
    after, log = optimised(before)
    assert log.counts["latent_heads"] == 1
    assert kinds(after).count("RotaryEmbedding") == 2
    assert not {"Transpose", "Gather"} & {*kinds(after)}
    (attention,) = (node for node in after.nodes if isinstance(node.op, Attention))
    assert attention.operands[0].tensor.dims == (batch, LENGTH, HEADS * (how.kept + how.rotated))
    assert_same(before, after, batch, LENGTH, WIDTH)


@pytest.mark.parametrize("how", [Latent(other=True), Latent(read=True), Latent(heads=3)], ids=str)
def test_others_stay(how: Latent) -> None:
    before = make(how, (2, LENGTH, WIDTH))
    after, log = optimised(before)
    assert "latent_heads" not in log.counts
    assert_same(before, after, 2, LENGTH, WIDTH)
