"""Rotations whose angles are computed from positions are one operator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tercet.backends import open_backends
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Cos, Mul, Neg, Sin
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Split, Tile, Transpose
from tercet.runtime.ops.shape import Reshape, Squeeze, Unsqueeze
from tercet.runtime.passes.attention import fuse_rotary
from tercet.runtime.session.model import Model

from .graphs import apply, assert_same, kinds, make, normal, optimised, passed
from .rotary_graphs import RAW, cut, stacked


@dataclass(frozen=True)
class Computed:
    """``x * cos + rotate(x) * sin`` where cos and sin follow from positions, as exporters write it.

    Attributes:
        shape: of x.
        rows: the axis of x that has the positions.
        interleaved: whether pairs are side by side.
        width: how many elements of a head are rotated; all if None.
        table: whether the cosines are rows of a table instead of being computed.
        scale: factor of cosines and sines, as long contexts have it.
        batch: of the positions.
        apart: what is added to the angle of the second one of a pair.
        bare: whether cosines and sines have no axis of samples; of a batch of 1.
        axes: how many axes the positions have, each with its pairs (Flux); interleaved.
    """

    shape: tuple[int, ...] = (2, 3, 5, 8)
    rows: int = 2
    interleaved: bool = False
    width: int | None = None
    table: bool = False
    scale: float = 1.0
    batch: int = 2
    apart: float = 0.0
    bare: bool = False
    axes: int = 1

    def __call__(self, g: Graph, x: Value) -> Value:
        size, length = self.width or self.shape[-1], self.shape[self.rows]
        rest = None if self.width is None else cut(g, x, 3, size, 1 << 40)
        x = x if self.width is None else cut(g, x, 3, 0, size)
        places = (np.arange(self.batch)[:, None] + np.arange(length)) % 7
        cos, sin = self._tables(g, places, size // 2)
        if self.bare:
            cos, sin = (apply(g, Squeeze(), each, np.array([0])) for each in (cos, sin))
        if self.interleaved:
            even, odd = (cut(g, x, 3, first, 1 << 40, 2) for first in (0, 1))
            pairs = stacked(g, apply(g, Neg(), odd), even)
            rotated = apply(g, Reshape(), pairs, np.array(x.tensor.dims))
        else:
            rotated = apply(
                g,
                Concat(axis=-1),
                apply(g, Neg(), cut(g, x, 3, size // 2, 1 << 40)),
                cut(g, x, 3, 0, size // 2),
            )
        y = apply(g, Add(), apply(g, Mul(), x, cos), apply(g, Mul(), rotated, sin))
        return y if rest is None else apply(g, Concat(axis=-1), y, rest)

    def _tables(self, g: Graph, places: np.ndarray, pairs: int) -> list[Value]:
        frequencies = (10.0 ** -np.arange(pairs)).astype(np.float32)
        positions = g.add_input("positions", TensorType(np.dtype(np.int64), places.shape))
        axis = np.array([3 - self.rows])
        if self.table:
            angles = np.tile(np.arange(7)[:, None] * frequencies, (1, 2)).astype(np.float32)
            angles[:, pairs:] += self.apart
            found = [apply(g, Gather(), f(angles), positions) for f in (np.cos, np.sin)]
            return [apply(g, Unsqueeze(), each, axis) for each in found]
        rows = apply(g, Unsqueeze(), positions, np.array([1]))
        rows = apply(g, Cast(to=float32), rows)
        columns = np.tile(frequencies[None, :, None], (self.batch, 1, 1))
        angle = apply(g, Transpose(perm=(0, 2, 1)), apply(g, MatMul(), columns, rows))
        if self.interleaved:
            shape = np.array([self.batch, places.shape[1], 2 * pairs // self.axes])
            parts = g.insert(Split(axis=-1, num_outputs=self.axes), [angle], self.axes).outputs
            both = [apply(g, Reshape(), repeated(g, part), shape) for part in parts]
        else:
            other = (
                apply(g, Add(), angle, np.array([self.apart], np.float32)) if self.apart else angle
            )
            both = [apply(g, Concat(axis=-1), angle, other)]
        found = list[Value]()
        for f in (Cos(), Sin()):
            parts = [apply(g, f, part) for part in both]
            whole = parts[0] if len(parts) == 1 else apply(g, Concat(axis=-1), *parts)
            found.append(apply(g, Unsqueeze(), whole, axis))
        scale = np.array(self.scale, np.float32)
        return [each if self.scale == 1 else apply(g, Mul(), each, scale) for each in found]


def repeated(g: Graph, part: Value) -> Value:
    """Return each element twice, along another axis."""
    infer(g)
    pair = apply(g, Unsqueeze(), part, np.array([-1]))
    infer(g)
    return apply(g, Tile(), pair, np.array([1, 1, 1, 2]))


def checked(how: Computed) -> list[str]:
    """Check that passes keep what a graph computes; return the operators of its rotation."""
    graph = make(how, how.shape)
    after, _ = optimised(graph)
    x = np.random.default_rng(0).standard_normal(how.shape, np.float32)
    places = np.random.default_rng(1).integers(0, 7, graph.inputs[1].tensor.dims)
    found = []
    for each in (graph, after):
        with Model(each.clone(), open_backends("numpy", RAW), RAW, evaluate) as model:
            found.append(model.run({"x": x, "positions": places})["y"])
    np.testing.assert_allclose(found[1], found[0], 1e-6, 1e-6)
    return kinds(after)


@pytest.mark.parametrize(
    "how",
    [
        Computed(),
        Computed(rows=1),
        Computed(interleaved=True),
        Computed(interleaved=True, rows=1),
        Computed(interleaved=True, axes=2),
        Computed(width=4),
        Computed(rows=1, width=4),
        Computed(rows=1, width=4, interleaved=True, batch=1),
        Computed(table=True),
        Computed(scale=1.2),
        Computed(batch=1),
        Computed(table=True, batch=1, width=6),
        Computed(shape=(1, 4, 1, 8), batch=1),
        Computed(shape=(1, 1, 4, 8), batch=1, rows=1),
        Computed(batch=1, bare=True),
        Computed(shape=(3, 3, 2, 8), rows=1, batch=1, bare=True),
        Computed(shape=(1, 3, 2, 8), rows=1, batch=1, bare=True, table=True),
    ],
    ids=str,
)
def test_angles_of_positions(how: Computed) -> None:
    found = checked(how)
    assert found.count("RotaryEmbedding") == 1
    assert found.count("Concat") == (2 if how.axes > 1 else 0)
    assert not {"Add", "Neg", "Slice"} & {*found}


@pytest.mark.parametrize("width", [None, 4])
def test_rows_of_heads_are_rotated_as_they_come(width: int | None) -> None:
    """A rotation by positions along axis 1 reads the rows from which a Reshape made heads."""
    how = Computed(rows=1, width=width, shape=(2, 5, 3, 8))

    def build(g: Graph, x: Value) -> Value:
        heads = apply(g, Reshape(), x, np.array(how.shape))
        infer(g)
        return apply(g, Reshape(), how(g, heads), np.array([2, 5, 24]))

    after, _ = optimised(make(build, (2, 5, 24)))
    (rotated,) = (node for node in after.nodes if node.kind == "RotaryEmbedding")
    assert rotated.inputs[0] is after.inputs[0]


def test_no_heads_are_not_rotated() -> None:
    """They make no rows."""
    assert "RotaryEmbedding" not in checked(Computed(rows=1, shape=(2, 5, 0, 8)))


@pytest.mark.parametrize("how", [Computed(apart=0.5), Computed(table=True, apart=0.5)], ids=str)
def test_pairs_of_two_angles_stay(how: Computed) -> None:
    assert "RotaryEmbedding" not in checked(how)


def test_angles_of_constants_that_are_not_folded() -> None:
    """As those of which there are too many bytes are."""

    def build(g: Graph, x: Value) -> Value:
        angles = np.tile(normal(1, 1, 5, 4), 2)
        second = apply(g, Neg(), cut(g, x, 3, 4, 1 << 40))
        rotated = apply(g, Concat(axis=-1), second, cut(g, x, 3, 0, 4))
        one, other = apply(g, Cos(), angles), apply(g, Sin(), angles)
        return apply(g, Add(), apply(g, Mul(), x, one), apply(g, Mul(), rotated, other))

    before = make(build, (2, 3, 5, 8))
    after, said = passed(before, fuse_rotary.run, "float32")
    assert said
    assert_same(before, after)
