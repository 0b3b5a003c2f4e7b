"""Rotated heads that exporters spell out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import DType, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.elementwise import Add, Cast, Exp, Mul, Neg, Sub
from tercet.runtime.ops.gather import Gather, ScatterND
from tercet.runtime.ops.movement import Concat, Slice, Split, Transpose
from tercet.runtime.ops.reduce import ReduceSum
from tercet.runtime.ops.shape import Reshape

from .graphs import Build, apply, assert_same, kinds, make, optimised
from .rotary_graphs import cut, stacked, tables


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
        dtype: of x and the tables.
    """

    shape: tuple[int, ...] = (1, 3, 5, 8)
    cut: int = 4
    end: int = 1 << 40
    axis: int = 3
    is_doubled: bool = True
    tables: int = 2
    commuted: bool = False
    negative_first: bool = True
    dtype: DType = float32

    def __call__(self, g: Graph, x: Value) -> Value:
        rng = np.random.default_rng(0)
        length, size = self.shape[-2:]
        angles = rng.standard_normal((length, size // 2))
        both = [angles, angles if self.is_doubled else angles + 1]
        table = np.concatenate(both, 1).reshape((1,) * self.tables + (length, size))
        cos, sin = np.cos(table).astype(self.dtype), np.sin(table).astype(self.dtype)

        def half(first: int, last: int) -> Value:
            return apply(g, Slice(), x, *(np.array([n]) for n in (first, last, self.axis)))

        second, first = half(self.cut, self.end), half(0, self.cut)
        if self.negative_first:
            parts = [apply(g, Neg(), second), first]
        else:
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
    "the sign on the other half": Spelling(negative_first=False),
}


@pytest.mark.parametrize("name", ROTATED)
def test_it_is_recognised(name: str) -> None:
    graph = make(ROTATED[name], ROTATED[name].shape)
    after, _ = optimised(graph)
    assert kinds(after) == ["RotaryEmbedding"]
    assert_same(graph, after)


OTHERS = {
    "tables whose halves differ": Spelling(is_doubled=False),
    "halves of unequal length": Spelling(cut=3),
    "another axis": Spelling(shape=(1, 3, 8, 8), axis=2),
    "three axes": Spelling(shape=(3, 5, 8), axis=2, tables=1),
}


def test_float64_stays() -> None:
    """ONNX does not define the operator for it."""

    def build(g: Graph, x: Value) -> Value:
        wide = apply(g, Cast(to=float64), x)
        return apply(g, Cast(to=float32), Spelling(dtype=float64)(g, wide))

    graph = make(build, Spelling.shape)
    after, _ = optimised(graph)
    assert "RotaryEmbedding" not in kinds(after)
    assert_same(graph, after)


def neighbours(g: Graph, x: Value) -> Value:
    """``x * cos + stack(-x[1::2], x[::2]) * sin``, as timm writes it."""
    *_, length, size = x.tensor.dims
    cos, sin = (table.repeat(2, -1) for table in tables(length, size // 2))
    even, odd = (cut(g, x, 3, first, 1 << 40, 2) for first in (0, 1))
    rotated = apply(g, Reshape(), stacked(g, apply(g, Neg(), odd), even), np.array(x.tensor.dims))
    return apply(g, Add(), apply(g, Mul(), x, cos), apply(g, Mul(), rotated, sin))


def complex_numbers(g: Graph, x: Value) -> Value:
    """Real and imaginary parts apart, joined behind, as the first Llama was written."""
    *outer, length, size = x.tensor.dims
    cos, sin = tables(length, size // 2)
    pairs = apply(g, Reshape(), x, np.array([*outer, length, size // 2, 2]))
    real, imaginary = (apply(g, Gather(axis=-1), pairs, np.array(i)) for i in (0, 1))
    products = [
        apply(g, Mul(), a, b)
        for a, b in ((real, cos), (imaginary, sin), (real, sin), (imaginary, cos))
    ]
    parts = apply(g, Sub(), *products[:2]), apply(g, Add(), *products[2:])
    return apply(g, Reshape(), stacked(g, *parts), np.array(x.tensor.dims))


def half_by_half(g: Graph, x: Value) -> Value:
    """The halves of a head apart, joined behind."""
    *_, length, size = x.tensor.dims
    cos, sin = tables(length, size // 2)
    halves = g.insert(Split(axis=-1, num_outputs=2), [x], 2).outputs
    first, second = halves
    a = apply(g, Sub(), apply(g, Mul(), first, cos), apply(g, Mul(), second, sin))
    b = apply(g, Add(), apply(g, Mul(), second, cos), apply(g, Mul(), first, sin))
    return apply(g, Concat(axis=-1), a, b)


def first_part(g: Graph, x: Value) -> Value:
    """Only the first elements of a head are rotated, as in GPT-NeoX."""
    size = x.tensor.dims[-1]
    part = half_by_half(g, cut(g, x, 3, 0, size // 2))
    return apply(g, Concat(axis=-1), part, cut(g, x, 3, size // 2, 1 << 40))


def all_but_the_first(g: Graph, x: Value) -> Value:
    """The first position is not rotated, as class tokens are not."""
    rest = neighbours(g, cut(g, x, 2, 1, 1 << 40))
    return apply(g, Concat(axis=2), cut(g, x, 2, 0, 1), rest)


def all_but_the_last(g: Graph, x: Value) -> Value:
    rest = half_by_half(g, cut(g, x, 2, 0, -2))
    return apply(g, Concat(axis=-2), rest, cut(g, x, 2, -2, 1 << 40))


def split_positions(g: Graph, x: Value) -> Value:
    """Rotated positions are one part of a Split, as in DINOv3."""
    sizes = g.constant(np.array([2, x.tensor.dims[2] - 2]))
    first, rest = g.insert(Split(axis=-2, num_outputs=2), [x, sizes], 2).outputs
    infer(g)
    return apply(g, Concat(axis=-2), first, half_by_half(g, rest))


def rotated(build: Build, *, joined: bool) -> Build:
    """Heads that are transposed in front; behind, those of all samples may be counted together."""

    def of_rows(g: Graph, x: Value) -> Value:
        batch, heads, length, size = x.tensor.dims
        rows = apply(g, Transpose(perm=(0, 2, 1, 3)), apply(g, Exp(), x))
        rows = apply(g, Reshape(), rows, np.array([batch, length, heads * size]))
        by_head = apply(g, Reshape(), apply(g, Neg(), rows), np.array([batch, length, heads, size]))
        by_head = apply(g, Transpose(perm=(0, 2, 1, 3)), by_head)
        infer(g)
        y = build(g, by_head)
        if joined:  # one Reshape, as the exporter writes it
            view = y.producer
            assert view is not None
            stack = view.operands[0]
            y = apply(g, Reshape(), stack, np.array([batch * heads, length, size]))
        return y

    return of_rows


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_pairs_of_heads_that_have_been_transposed(batch: int, joined: bool) -> None:
    graph = make(rotated(complex_numbers, joined=joined), (batch, 3, 5, 8))
    after, _ = optimised(graph)
    assert kinds(after).count("RotaryEmbedding") == 1
    assert not {"Gather", "Concat", "Mul"} & set(kinds(after))
    assert_same(graph, after)


def matrices(g: Graph, x: Value, axis: int = -1) -> Value:
    """A matrix times each pair, as in the Perception Encoder."""
    *outer, length, size = x.tensor.dims
    cos, sin = tables(length, size // 2)
    rotations = np.stack([cos, -sin, sin, cos], -1).reshape(1, 1, length, size // 2, 2, 2)
    pairs = apply(g, Reshape(), x, np.array([*outer, length, size // 2, 1, 2]))
    products = apply(g, Mul(), pairs, rotations)
    sums = apply(g, ReduceSum(keepdims=0), products, np.array([axis]))
    return apply(g, Reshape(), sums, np.array(x.tensor.dims))


def every_other(g: Graph, x: Value) -> Value:
    """``y[..., 0::2] = a; y[..., 1::2] = b``, as Wan is written and traced."""
    *outer, length, size = x.tensor.dims
    cos, sin = tables(length, size // 2)
    pairs = apply(g, Reshape(), x, np.array([*outer, length, size // 2, 2]))
    first, second = (apply(g, Gather(axis=-1), pairs, np.array(i)) for i in (0, 1))
    y = apply(g, Transpose(perm=(3, 1, 2, 0)), g.constant(np.zeros(x.tensor.dims, np.float32)))
    for i, (op, a, b) in enumerate(((Sub(), cos, sin), (Add(), sin, cos))):
        part = apply(g, op, apply(g, Mul(), first, a), apply(g, Mul(), second, b))
        part = apply(g, Transpose(perm=(3, 1, 2, 0)), part)
        y = apply(g, ScatterND(), y, np.arange(i, size, 2)[:, None], part)
    return apply(g, Transpose(perm=(3, 1, 2, 0)), y)


def of_rows(g: Graph, x: Value) -> Value:
    """Heads behind positions, which are rows until they are taken apart."""
    batch, heads, length, size = x.tensor.dims
    rows = apply(g, Reshape(), apply(g, Exp(), x), np.array([batch, length, heads * size]))
    cos, sin = (table[0, 0, :, None] for table in tables(length, size // 2))
    pairs = apply(g, Reshape(), rows, np.array([batch, length, heads, size // 2, 2]))
    a, b = (apply(g, Gather(axis=-1), pairs, np.array(i)) for i in (0, 1))
    parts = (
        apply(g, Sub(), apply(g, Mul(), a, cos), apply(g, Mul(), b, sin)),
        apply(g, Add(), apply(g, Mul(), a, sin), apply(g, Mul(), b, cos)),
    )
    return apply(g, Reshape(), stacked(g, *parts), np.array([batch, length, heads, size]))


@pytest.mark.parametrize("batch", [1, 3])
def test_heads_behind_positions(batch: int) -> None:
    graph = make(of_rows, (batch, 3, 5, 8))
    after, _ = optimised(graph)
    assert kinds(after) == ["Exp", "Reshape", "RotaryEmbedding", "Reshape"]
    assert_same(graph, after)


@pytest.mark.parametrize("is_taken_apart", [False, True])
def test_pairs_whose_sizes_are_copied_of_five_axes(*, is_taken_apart: bool) -> None:
    """A view of four axes lacks the last one, and has another third one."""

    def build(g: Graph, x: Value) -> Value:
        pairs = apply(g, Reshape(), apply(g, Exp(), x), np.array([5, 0, 0, 3, 0]))
        if not is_taken_apart:
            return pairs
        a, b = (apply(g, Gather(axis=-1), pairs, np.array(i)) for i in (0, 1))
        return apply(g, Sub(), a, b)

    graph = make(build, (3, 1, 2, 5, 2))
    after, _ = optimised(graph)
    assert_same(graph, after)


SPELLINGS = [
    *(matrices, every_other),
    *(neighbours, complex_numbers, half_by_half, first_part),
    *(all_but_the_first, all_but_the_last, split_positions),
]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("build", SPELLINGS)
def test_every_spelling_is_one_operator(build: Build, batch: int) -> None:
    graph = make(build, (batch, 3, 5, 8))
    after, _ = optimised(graph)
    assert kinds(after) == ["RotaryEmbedding"]
    assert_same(graph, after)


def scrambled(g: Graph, x: Value) -> Value:
    """Pairs of no rotation: each element with the next one."""
    *_, length, size = x.tensor.dims
    cos, sin = (table.repeat(2, -1) for table in tables(length, size // 2))
    rotated = apply(g, Gather(axis=-1), x, np.roll(np.arange(size), 1))
    return apply(g, Add(), apply(g, Mul(), x, cos), apply(g, Mul(), rotated, sin))


def of_two(g: Graph, x: Value) -> Value:
    """The other elements are another tensor's."""
    *_, length, size = x.tensor.dims
    cos, sin = (table.repeat(2, -1) for table in tables(length, size // 2))
    rotated = apply(g, Gather(axis=-1), apply(g, Exp(), x), np.roll(np.arange(size), size // 2))
    return apply(g, Add(), apply(g, Mul(), x, cos), apply(g, Mul(), rotated, sin))


def mixed_heads(g: Graph, x: Value) -> Value:
    """Elements of other heads are added."""
    *_, length, size = x.tensor.dims
    cos, sin = (table.repeat(2, -1) for table in tables(length, size // 2))
    rotated = apply(g, Gather(axis=1), x, np.array([1, 2, 0]))
    return apply(g, Add(), apply(g, Mul(), x, cos), apply(g, Mul(), rotated, sin))


def sums_of_rows(g: Graph, x: Value) -> Value:
    """Of each matrix, rows are added: no element is that of one pair's rotation."""
    return matrices(g, x, axis=-2)


@pytest.mark.parametrize("build", [scrambled, of_two, mixed_heads, sums_of_rows])
def test_what_is_no_rotation_stays(build: Build) -> None:
    graph = make(build, (1, 3, 5, 8))
    after, _ = optimised(graph)
    assert len(kinds(after)) > 2
    assert_same(graph, after)


def test_rotated_positions_in_another_order_stay() -> None:
    def build(g: Graph, x: Value) -> Value:
        rest = neighbours(g, cut(g, x, 2, 1, 1 << 40))
        return apply(g, Concat(axis=2), rest, cut(g, x, 2, 0, 1))

    graph = make(build, (1, 3, 5, 8))
    after, _ = optimised(graph)
    assert kinds(after).count("Concat") == 1
    assert_same(graph, after)


@pytest.mark.parametrize("name", OTHERS)
def test_other_formulas_stay(name: str) -> None:
    graph = make(OTHERS[name], OTHERS[name].shape)
    after, _ = optimised(graph)
    assert "RotaryEmbedding" not in kinds(after)
    assert_same(graph, after)


def test_a_factor_before_a_rotation_is_one_behind_it() -> None:
    """ESM scales queries before they are rotated; scores have the factor then."""

    def build(g: Graph, x: Value) -> Value:
        scaled = apply(g, Mul(), x, np.array(0.25, np.float32))
        return apply(g, Exp(), Spelling()(g, scaled))

    graph = make(build, (1, 3, 5, 8))
    after, _ = optimised(graph)
    assert kinds(after) == ["RotaryEmbedding", "Mul", "Exp"]
    assert_same(graph, after)


@pytest.mark.parametrize("repeated", [False, True], ids=["alike", "repeated"])
def test_parts_of_a_head_by_different_positions(repeated: bool) -> None:
    """V-JEPA 2 repeats the angles of a part's pairs, so that those of a pair differ."""
    length, width, count = 4, 6, 2
    rng = np.random.default_rng(0)

    def rotary(g: Graph, part: Value) -> Value:
        angles = rng.standard_normal((length, width // 2))
        angles = np.tile(angles, 2) if repeated else np.repeat(angles, 2, 1)
        pairs = apply(g, Reshape(), part, np.array([1, 3, length, width // 2, 2]))
        first, second = (
            apply(g, Slice(), pairs, *(np.array([n]) for n in (i, i + 1, -1))) for i in range(2)
        )
        other = apply(g, Concat(axis=-1), apply(g, Neg(), second), first)
        other = apply(g, Reshape(), other, np.array([1, 3, length, width]))
        cos, sin = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
        return apply(g, Add(), apply(g, Mul(), part, cos), apply(g, Mul(), other, sin))

    def build(g: Graph, x: Value) -> Value:
        bounds = [*range(0, count * width + 1, width), 1 << 40]
        parts = [
            apply(g, Slice(), x, *(np.array([n]) for n in (*cut, 3))) for cut in pairwise(bounds)
        ]
        rotated = [rotary(g, part) for part in parts[:count]]
        return apply(g, Concat(axis=-1), *rotated, parts[count])

    graph = make(build, (1, 3, length, count * width + 2))
    after, _ = optimised(graph)
    assert kinds(after) == (["Gather", "Mul", "Mul", "Add"] if repeated else ["RotaryEmbedding"])
    assert_same(graph, after)
