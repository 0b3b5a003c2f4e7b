"""Rotated heads that exporters spell out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tercet.runtime.ir import Graph, Value
from tercet.runtime.ops.elementwise import Add, Mul, Neg
from tercet.runtime.ops.movement import Concat, Slice

from .graphs import apply, assert_same, kinds, make, optimised


@dataclass(frozen=True)
class Spelling:
    """How ``x * cos + concat(-x[half:], x[:half]) * sin`` is written.

    Attributes:
        shape: of x.
        cut: where the second half begins and the first one ends.
        end: of the second half.
        axis: of the halves.
        is_doubled: whether the halves of the tables are equal.
        tables: axes of 1 in front of the tables' own.
        commuted: whether operands are exchanged.
        negative_first: whether the half with the sign is the first one.
    """

    shape: tuple[int, ...] = (1, 3, 5, 8)
    cut: int = 4
    end: int = 1 << 40
    axis: int = 3
    is_doubled: bool = True
    tables: int = 2
    commuted: bool = False
    negative_first: bool = True

    def __call__(self, g: Graph, x: Value) -> Value:
        rng = np.random.default_rng(0)
        length, size = self.shape[-2:]
        angles = rng.standard_normal((length, size // 2))
        both = [angles, angles if self.is_doubled else angles + 1]
        table = np.concatenate(both, 1).reshape((1,) * self.tables + (length, size))
        cos, sin = np.cos(table).astype(np.float32), np.sin(table).astype(np.float32)

        def half(first: int, last: int) -> Value:
            return apply(g, Slice(), x, *(np.array([n]) for n in (first, last, self.axis)))

        second, first = half(self.cut, self.end), half(0, self.cut)
        parts = [apply(g, Neg(), second), first]
        if not self.negative_first:
            parts = [second, apply(g, Neg(), first)]
        other = apply(g, Concat(axis=self.axis), *parts)
        if self.commuted:
            return apply(g, Add(), apply(g, Mul(), sin, other), apply(g, Mul(), cos, x))
        return apply(g, Add(), apply(g, Mul(), x, cos), apply(g, Mul(), other, sin))


ROTATED = {
    "as PyTorch writes it": Spelling(),
    "operands exchanged": Spelling(commuted=True),
    "several samples": Spelling(shape=(4, 3, 5, 8)),
    "tables of two axes": Spelling(tables=0),
    "an axis from behind": Spelling(axis=-1),
    "the end as a number": Spelling(end=8),
    "one position": Spelling(shape=(2, 3, 1, 8)),
}


@pytest.mark.parametrize("name", ROTATED)
def test_it_is_recognised(name: str) -> None:
    graph = make(ROTATED[name], ROTATED[name].shape)
    after, _ = optimised(graph)
    assert kinds(after) == ["RotaryEmbedding"]
    assert_same(graph, after)


OTHERS = {
    "the sign on the other half": Spelling(negative_first=False),
    "tables whose halves differ": Spelling(is_doubled=False),
    "halves of unequal length": Spelling(cut=3),
    "another axis": Spelling(shape=(1, 3, 8, 8), axis=2),
    "three axes": Spelling(shape=(3, 5, 8), axis=2, tables=1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_formulas_stay(name: str) -> None:
    graph = make(OTHERS[name], OTHERS[name].shape)
    after, _ = optimised(graph)
    assert "RotaryEmbedding" not in kinds(after)
    assert_same(graph, after)
