"""Queries and keys that are rotated by the same angles, at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tercet.backends import open_backends
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Dim
from tercet.runtime.ops.attention import Attention, RotaryEmbedding
from tercet.runtime.ops.elementwise import Add
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from .graphs import apply, kinds, make, normal, optimised

BATCH, LENGTH, WIDTH, SIZE = 2, 5, 12, 4


@dataclass(frozen=True)
class Rotated:
    """Attention to parts of one product, two of which are rotated.

    Attributes:
        heads: of queries, and of keys and values.
        factor: of the queries' cosines and sines.
        sines: of the queries' sines alone, of no rotation.
        places: whether cosines and sines are rows of tables.
        interleaved: of the keys.
        partial: elements of a head that are rotated; 0 for all.
        tapped: whether rotated keys are read elsewhere.
        scale: of the scores.
    """

    heads: tuple[int, int] = (4, 2)
    factor: float = 1.0
    sines: float = 1.0
    places: bool = False
    interleaved: int = 0
    partial: int = 0
    tapped: bool = False
    scale: float | None = None

    def __call__(self, g: Graph, x: Value) -> Value:
        many, few = self.heads
        sizes = np.array([many * SIZE, few * SIZE, few * SIZE])
        product = apply(g, MatMul(), x, normal(WIDTH, int(sizes.sum())))
        q, k, v = g.insert(Split(axis=-1, num_outputs=3), [product, g.constant(sizes)], 3).outputs
        angles = normal(7 if self.places else LENGTH, (self.partial or SIZE) // 2)
        cos, sin = np.cos(angles), np.sin(angles)
        rows = (np.arange(BATCH)[:, None] + np.arange(LENGTH),) if self.places else ()
        if not self.places:
            cos, sin = (np.repeat(each[None], BATCH, 0) for each in (cos, sin))
        of_q = [np.float32(self.factor) * cos, np.float32(self.factor * self.sines) * sin]
        how = {"rotary_embedding_dim": self.partial}
        q = apply(g, RotaryEmbedding(num_heads=many, **how), q, *of_q, *rows)
        op = RotaryEmbedding(num_heads=few, interleaved=self.interleaved, **how)
        k = apply(g, op, k, cos, sin, *rows)
        y = apply(g, Attention(q_num_heads=many, kv_num_heads=few, scale=self.scale), q, k, v)
        y = apply(g, MatMul(), y, normal(many * SIZE, few * SIZE))
        return apply(g, Add(), y, k) if self.tapped else y


def checked(how: Rotated, batch: Dim = BATCH) -> list[str]:
    """Check that passes keep what a graph computes; return the operators that are left."""
    graph, raw = make(how, (batch, LENGTH, WIDTH)), Options(stop_at=0)
    after, _ = optimised(graph)
    x, found = normal(BATCH, LENGTH, WIDTH), list[np.ndarray]()
    for each in (graph, after):
        with Model(each.clone(), open_backends("numpy", raw), raw, evaluate) as model:
            found.append(model.run({"x": x})["y"])
    np.testing.assert_allclose(found[1], found[0], 1e-5, 1e-5)
    return kinds(after)


@pytest.mark.parametrize(
    "how",
    [
        Rotated(),
        Rotated(heads=(3, 3), scale=0.3),
        Rotated(places=True),
        Rotated(factor=0.35),
        Rotated(factor=0.35, places=True, scale=0.7),
        Rotated(partial=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [BATCH, "batch"])
def test_one_rotation(how: Rotated, batch: Dim) -> None:
    wanted = ["MatMul", "Split", "RotaryEmbedding", "Split", "Attention", "MatMul"]
    assert checked(how, batch) == wanted


@pytest.mark.parametrize(
    "how",
    [
        *(Rotated(interleaved=1), Rotated(tapped=True), Rotated(sines=1.1)),
        Rotated(partial=2, factor=0.35),  # the other elements have no factor
    ],
    ids=str,
)
def test_others_stay_apart(how: Rotated) -> None:
    assert checked(how).count("RotaryEmbedding") == 2
