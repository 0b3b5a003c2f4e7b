"""Patterns of nodes that compute one thing together, as data.

    X = Var("x")
    SIGMOID = Apply(Sigmoid, X, name="t")
    SWISH = Apply(Mul, X, "t")

A pattern is matched at a value and yields every `Match`: the nodes, and values and numbers by name.
Operands of Add, Mul, ... are tried in both orders. A name that occurs twice is one value. A number
is a one-element constant that adds no axes to what it is combined with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..base.record import record
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.types import Array
from ..ops.elementwise import Add, And, Div, Equal, Max, Min, Mul, Neg, Or, Xor
from .editing import dtype_of, number, rank_of
from .polynomial import Expansion, Terms, agree, sources

#: Commutative operators.
COMMUTATIVE: frozenset[type[Op]] = frozenset({Add, Mul, Max, Min, And, Or, Xor, Equal})


@record
class Match:
    """An occurrence of a pattern.

    Attributes:
        nodes: all matched nodes.
        values: by name in the pattern.
        numbers: by name in the pattern.
    """

    nodes: frozenset[Node] = frozenset()
    values: Mapping[str, Value] = field(default_factory=dict[str, Value])
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def get(self, name: str) -> Value | None:
        """Return a value, or None if an optional part did not match."""
        return self.values.get(name)

    def made(self, name: str) -> Node:
        """Return the node that computes a value."""
        node = self.values[name].producer
        if node is None:
            raise TypeError(f"no node computes '{name}'")
        return node

    def bound(self, name: str | None, value: Value) -> Match | None:
        """Return this with a name bound to a value; None if it is bound to another one."""
        if name is None:
            return self
        known = self.values.get(name)
        if known is not None:
            return self if known is value else None
        return Match(self.nodes, {**self.values, name: value}, self.numbers)

    def counted(self, name: str, found: float) -> Match:
        """Return this with a name bound to a number."""
        return Match(self.nodes, self.values, {**self.numbers, name: found})

    def over(self, nodes: frozenset[Node]) -> Match:
        """Return this with other nodes."""
        return Match(nodes, self.values, self.numbers)


class Pattern(Protocol):
    """What a value may look like."""

    def find(self, value: Value | None, match: Match) -> Iterator[Match]:
        """Yield `match` extended by this pattern, for every way it matches."""
        ...


#: A pattern; a string is any value with that name, a number a constant.
Spelled = Pattern | str | float


@record
class Var:
    """Any value; the same one wherever the name occurs."""

    name: str
    where: Callable[[Value], bool] | None = None

    def find(self, value: Value | None, match: Match) -> Iterator[Match]:
        if value is not None and (self.where is None or self.where(value)):
            found = match.bound(self.name, value)
            if found is not None:
                yield found


@record
class Number:
    """A one-element constant: this number, or any number with a name."""

    wanted: float | str
    where: Callable[[float], bool] | None = None

    def find(self, value: Value | None, match: Match, rank: int = 0) -> Iterator[Match]:
        found = number(value, rank)
        if found is None or (self.where is not None and not self.where(found)):
            return
        if isinstance(self.wanted, str):
            yield match.counted(self.wanted, found)
        elif found == self.wanted:
            yield match


@dataclass(frozen=True, slots=True, init=False)
class Apply:
    """The first output of an operator.

    Attributes:
        kinds: operator classes; or the operator with its attributes.
        inputs: patterns of the inputs; omitted ones match anything.
        name: of the result.
        where: a condition on the node.
        stays: whether the node is only examined: it may have other readers, and is not replaced.
    """

    kinds: tuple[type[Op], ...] | Op
    inputs: tuple[Pattern, ...]
    name: str | None
    where: Callable[[Node], bool] | None
    stays: bool

    def __init__(
        self,
        kinds: type[Op] | tuple[type[Op], ...] | Op,
        *inputs: Spelled,
        name: str | None = None,
        where: Callable[[Node], bool] | None = None,
        stays: bool = False,
    ) -> None:
        object.__setattr__(self, "kinds", (kinds,) if isinstance(kinds, type) else kinds)
        object.__setattr__(self, "inputs", tuple(map(spelled, inputs)))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "where", where)
        object.__setattr__(self, "stays", stays)

    def find(self, value: Value | None, match: Match) -> Iterator[Match]:
        node = None if value is None else value.producer
        if value is None or node is None or node.outputs[0] is not value or not self._fits(node):
            return
        start = match.bound(self.name, value)
        if start is None:
            return
        if not self.stays:
            start = start.over(start.nodes | {node})
        rank = max((rank_of(v) or 0 for v in node.distinct_reads if v.data is None), default=0)
        orders = [node.inputs]
        swaps = self.inputs and type(node.op) in COMMUTATIVE
        if swaps and node.inputs[0] is not node.inputs[1]:
            orders.append(node.inputs[::-1])
        for inputs in orders:
            yield from _each(self.inputs, inputs, start, rank)

    def _fits(self, node: Node) -> bool:
        if isinstance(self.kinds, tuple):
            fits = type(node.op) in self.kinds
        else:
            fits = node.op == self.kinds
        fits = fits and len(node.inputs) >= len(self.inputs)
        return fits and (self.where is None or self.where(node))


def _each(
    patterns: Sequence[Pattern], values: Sequence[Value | None], match: Match, rank: int
) -> Iterator[Match]:
    if not patterns:
        yield match
        return
    first = patterns[0]
    if isinstance(first, Number):
        ways = first.find(values[0], match, rank)
    else:
        ways = first.find(values[0], match)
    for way in ways:
        yield from _each(patterns[1:], values[1:], way, rank)


@dataclass(frozen=True, slots=True, init=False)
class OneOf:
    """Any of several patterns, tried in order."""

    choices: tuple[Pattern, ...]
    name: str | None

    def __init__(self, *choices: Spelled, name: str | None = None) -> None:
        object.__setattr__(self, "choices", tuple(map(spelled, choices)))
        object.__setattr__(self, "name", name)

    def find(self, value: Value | None, match: Match) -> Iterator[Match]:
        start = None if value is None else match.bound(self.name, value)
        if start is not None:
            for choice in self.choices:
                yield from choice.find(value, start)


@record
class Scaled:
    """A pattern times a number, in any number of steps including none.

    Attributes:
        pattern: of the scaled value; the longest way to it is tried first.
        name: of the number.
    """

    pattern: Pattern
    name: str

    def find(self, value: Value | None, match: Match) -> Iterator[Match]:
        if value is None:
            return
        steps = [(value, 1.0, match.nodes)]
        while (step := scaling(steps[-1][0])) is not None:
            inner, factor, node = step
            steps.append((inner, steps[-1][1] * factor, steps[-1][2] | {node}))
        for inner, factor, nodes in reversed(steps):
            start = match.over(nodes)
            for found in self.pattern.find(inner, start):
                yield found.counted(self.name, factor)


@dataclass(frozen=True, slots=True, init=False)
class Poly:
    """A polynomial, in whatever order its sums, products, quotients and powers are written.

    Attributes:
        terms: the coefficient of each product of powers of the symbols; a name matches any number.
        symbols: names of values. The first is searched for if its name is not bound yet.
    """

    terms: Mapping[tuple[int, ...], float | str]
    symbols: tuple[str, ...]

    def __init__(self, terms: Mapping[tuple[int, ...], float | str], *symbols: str) -> None:
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "symbols", symbols)

    def find(self, value: Value | None, match: Match) -> Iterator[Match]:
        dtype = dtype_of(value)
        if value is None or dtype is None:
            return
        first, *others = self.symbols
        known = match.get(first)
        for x in sources(value) if known is None else (known,):
            symbols = (x, *(match[name] for name in others))
            expansion = Expansion(symbols, rank_of(x))
            found = expansion.terms(value)
            start = None if found is None else match.bound(first, x)
            if found is None or start is None or found.keys() != self.terms.keys():
                continue
            start = start.over(start.nodes | expansion.nodes)
            for key, wanted in self.terms.items():
                if isinstance(wanted, str):
                    start = start.counted(wanted, found[key])
            if agree(found, self._exact(found), dtype):
                yield start

    def _exact(self, found: Terms) -> Terms:
        return {
            key: found[key] if isinstance(wanted, str) else wanted
            for key, wanted in self.terms.items()
        }


def spelled(pattern: Spelled) -> Pattern:
    """Return the pattern denoted by a name or number."""
    if isinstance(pattern, str):
        return Var(pattern)
    return Number(pattern) if isinstance(pattern, int | float) else pattern


def perhaps(kind: type[Op] | tuple[type[Op], ...], pattern: Pattern, *others: Spelled) -> Pattern:
    """Return a pattern with an optional operator around it, which is tried first."""
    return OneOf(Apply(kind, pattern, *others), pattern)


def scaling(value: Value) -> tuple[Value, float, Node] | None:
    """Return the value that another one is a multiple of, the factor, and the multiplying node.

    A sum with 0 is a multiple by 1.
    """
    node = value.producer
    if node is None:
        return None
    if isinstance(node.op, Neg) and node.inputs[0] is not None:
        return node.inputs[0], -1.0, node
    if isinstance(node.op, Div):
        x, divisor = node.inputs[0], number(node.inputs[1], rank_of(node.inputs[0]))
        return None if x is None or not divisor else (x, 1 / divisor, node)
    if isinstance(node.op, Mul | Add):
        for x, other in (node.inputs, node.inputs[::-1]):
            factor = number(other, rank_of(x))
            if factor is None or x is None or x.data is not None:
                continue
            if isinstance(node.op, Mul):
                return x, factor, node
            return None if factor else (x, 1.0, node)  # Paddle's scale is a Mul and an Add
    return None


def pairs(node: Node) -> Iterator[tuple[Value, Value]]:
    """Yield the two inputs of a node in both orders."""
    a, b = node.inputs
    if a is not None and b is not None:
        yield a, b
        yield b, a


def without_addend(graph: Graph, value: Value) -> tuple[Value, Array | None]:
    """Return what a constant is added to, which nothing else reads, and that constant.

    The value itself and None if it is no such sum.
    """
    node = value.producer
    if node is not None and isinstance(node.op, Add):
        for addend, other in pairs(node):
            if addend.data is not None and graph.sole_consumer(other) is node:
                return other, addend.data
    return value, None
