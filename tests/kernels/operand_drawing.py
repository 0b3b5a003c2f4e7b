"""What dice say of a graph: numbers, sizes, and what a result is combined with, of every kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from tercet.runtime.ir.dtypes import DType, float16, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import (
    Abs,
    Add,
    Cast,
    Gelu,
    Max,
    Min,
    Mul,
    Neg,
    Relu,
    Sigmoid,
    Sub,
    Tanh,
    Where,
)
from tercet.runtime.ops.movement import Slice, Split

from .dry import normal

#: Numbers of rows and columns: one, primes, and around multiples of words and of tiles;
#: and multiples of words, which kernels that copy whole words need.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 17, 24, 31, 32, 33, 40, 63, 64, 65, 72, 80, 100)
WORDS = (8, 16, 24, 32, 40, 64, 72, 80, 96, 128, 136, 200)
UNARY = (Relu(), Sigmoid(), Tanh(), Neg(), Abs(), Gelu())
BINARY = (Add(), Sub(), Mul(), Max(), Min())


@dataclass
class Drawing:
    """A graph that grows by what dice say, and what it is fed.

    Attributes:
        dice: say what is next.
        dtype: of its numbers.
        wide: whether all are float64 instead, rounded to `dtype` where they are given.
        graph: has what was drawn.
        feeds: its inputs.
        said: what was drawn, in words.
        apart: values that may be of another dtype.
        sizes: to choose from.
    """

    dice: Random
    dtype: DType
    wide: bool = False
    graph: Graph = field(default_factory=lambda: Graph("drawn"))
    feeds: dict[str, Array] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    apart: list[Value] = field(default_factory=list)
    sizes: tuple[int, ...] = SIZES

    def numbers(self, dims: tuple[int, ...], scale: float) -> Array:
        draw = np.random.default_rng(self.dice.randrange(2**31))
        drawn = normal(*dims, scale=scale, draw=draw).astype(self.dtype)
        return drawn.astype(float64) if self.wide else drawn

    def flags(self, dims: tuple[int, ...]) -> Array:
        return np.random.default_rng(self.dice.randrange(2**31)).random(dims) < 0.6

    def fed(self, data: Array) -> Value:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = data
        return self.graph.add_input(name, TensorType(data.dtype, data.shape))

    def input(self, *dims: int, scale: float = 1.0) -> Value:
        return self.fed(self.numbers(dims, scale))

    def constant(self, *dims: int, scale: float = 1.0) -> Value:
        return self.graph.constant(self.numbers(dims, scale))

    def given(self, *dims: int, scale: float = 1.0) -> Value:
        """Return a constant or an input."""
        return (self.constant if self.dice.random() < 0.5 else self.input)(*dims, scale=scale)

    def ints(self, *values: int) -> Value:
        return self.graph.constant(np.array(values, np.int64))

    def apply(self, op: Op, *values: Value | None, outputs: int = 1, which: int = 0) -> Value:
        node = self.graph.insert(op, list(values), outputs)
        infer(self.graph)
        return node.outputs[which]

    def cast(self, x: Value, dtype: DType) -> Value:
        return self.apply(Cast(to=float64 if self.wide else dtype), x)

    def size(self) -> int:
        return self.dice.choice(self.sizes)

    def pick(self, *choices: Any) -> Any:
        return self.dice.choice(choices)

    def lead(self) -> tuple[int, ...]:
        """Return leading axes."""
        return self.pick((), (), (), (1,), (2,), (3,), (2, 3), (1, 2), (3, 1), (0,))


# ── what is read beside it ───────────────────────────────────────────────────────────────────────


def part(d: Drawing, *dims: int, axis: int = -1, scale: float = 1.0) -> Value:
    """Return a tensor: an input, part of a wider one, or one that a node computes."""
    way = d.pick("whole", "whole", "slice", "split", "computed")
    axis %= len(dims)
    if way == "computed":
        return d.apply(Relu(), d.input(*dims, scale=scale))
    if way == "whole" or not dims[axis]:
        return d.input(*dims, scale=scale)
    more = dims[axis] * 2 if way == "split" else dims[axis] + d.pick(1, 4, 8, 8)
    x = d.apply(Neg(), d.input(*dims[:axis], more, *dims[axis + 1 :], scale=scale))
    if way == "split":
        return d.apply(Split(axis=axis, num_outputs=2), x, outputs=2, which=d.pick(0, 1))
    start = d.pick(0, more - dims[axis])
    ends = d.ints(start), d.ints(start + dims[axis]), d.ints(axis)
    return d.apply(Slice(), x, *ends)


def shape_beside(d: Drawing, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape that broadcasts to `dims`."""
    rank = len(dims)
    way = d.pick("scalar", "one", "last", "second", "rows", "full", "full", "any", "any", "sample",
                 "line", "matrix")  # fmt: skip
    if way == "scalar" or not rank:
        return ()
    if way == "one":
        return (1,) * d.dice.randrange(1, rank + 1)
    if way == "last":
        return d.pick(dims[-1:], (*(1,) * (rank - 1), dims[-1]))
    if way == "second" and rank > 2:
        return d.pick((1, dims[1]), (dims[1],), dims[:1] + dims[1:2])[-2:] + (1,) * (rank - 2)
    if way == "rows" and rank > 1:
        return dims[-2], 1
    if way == "sample":
        return (*dims[:1], *(1,) * (rank - 2), dims[-1])[-rank:]
    if way == "line":
        return (*dims[:-1], 1)
    if way == "matrix":
        return dims[-2:]
    if way == "any":
        kept = tuple(size if d.dice.random() < 0.5 else 1 for size in dims)
        return kept[d.dice.randrange(rank) if d.dice.random() < 0.3 else 0 :]
    return dims


def beside(d: Drawing, y: Value) -> Value:
    """Return what is read beside a result."""
    dims = y.tensor.dims
    way = d.pick("constant", "constant", "constant", "computed", "computed", "own", "part", "part")
    if way == "own":
        same = [v for v in d.graph.inputs if v.tensor == y.tensor]
        same += [n.output for n in d.graph.nodes if n.output.tensor == y.tensor]
        same = [v for v in same if v not in d.apart]
        if same:
            return d.dice.choice(same)
    if way == "part" and dims:
        return part(d, *dims, axis=d.pick(-1, 1) if len(dims) > 2 else -1)
    shape = shape_beside(d, dims)
    if way == "constant":
        return d.constant(*shape)
    if d.dice.random() < 0.3:
        return d.apply(Sigmoid(), d.input(*shape))
    return d.input(*shape)


def mask(d: Drawing, y: Value) -> Value:
    """Return flags that are read beside a result."""
    data = d.flags(shape_beside(d, y.tensor.dims))
    return d.graph.constant(data) if d.dice.random() < 0.7 else d.fed(data)


def behind(d: Drawing, y: Value, count: int) -> Value:
    """Return what some nodes behind a result compute."""
    for _ in range(count):
        way = d.pick("binary", "binary", "binary", "where", "where", "unary", "gate", "cast")
        d.said.append(way)
        if way == "binary":
            sides = y, beside(d, y)
            y = d.apply(d.dice.choice(BINARY), *sides[:: d.pick(1, 1, -1)])
        elif way == "where":
            sides = y, beside(d, y)
            y = d.apply(Where(), mask(d, y), *sides[:: d.pick(1, 1, -1)])
        elif way == "unary":
            y = d.apply(d.dice.choice(UNARY), y)
        elif way == "gate":
            y = d.apply(Mul(), y, d.apply(Sigmoid(), y))
        elif way == "cast":
            narrow = d.cast(y, d.pick(float16, float32))
            apart = d.apply(Relu(), narrow)
            d.apart += (narrow, apart)
            y = d.cast(apart, d.dtype)
    return y
