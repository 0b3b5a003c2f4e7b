"""Values as polynomials of other values, however sums, products and quotients are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, cast

import ml_dtypes

from ..ir.dtypes import FLOATS, DType
from ..ir.graph import Node, Value
from ..ir.op import Op
from ..ops.elementwise import Add, Div, Mul, Neg, Pow, Sub
from .editing import number

#: A polynomial: the coefficient of each product of powers of the symbols.
Terms = Mapping[tuple[int, ...], float]

#: Maximum degree.
DEGREE = 4
#: Maximum number of nodes between a value and the x of its formula.
DEPTH = 6


def is_near(found: float, wanted: float, dtype: DType) -> bool:
    """Whether a constant of this dtype is an approximation of `wanted`."""
    if dtype not in FLOATS:
        return found == wanted
    limits = cast("Any", ml_dtypes.finfo)(dtype)
    return abs(found - wanted) <= 4 * float(limits.eps) * abs(wanted)


def agree(found: Terms, wanted: Terms, dtype: DType) -> bool:
    """Whether two polynomials are equal up to rounding of constants."""
    return found.keys() == wanted.keys() and all(
        is_near(found[key], wanted[key], dtype) for key in wanted
    )


class Expansion:
    """Expresses values as polynomials of symbols, and records the nodes that compute them.

    Args:
        symbols: values that stand for themselves.
        rank: of the first symbol; constants of higher rank are not part of the formula.
    """

    def __init__(self, symbols: tuple[Value, ...], rank: int | None) -> None:
        self.symbols, self.rank = symbols, rank
        self.nodes: set[Node] = set()

    def terms(self, value: Value | None, depth: int = DEPTH) -> Terms | None:
        """Return the polynomial, or None if the value is none of low degree."""
        if value is None:
            return None
        if value in self.symbols:
            return {tuple(int(value is symbol) for symbol in self.symbols): 1.0}
        constant = number(value, self.rank)
        if constant is not None:
            return {(0,) * len(self.symbols): constant}
        node = value.producer
        rule = _RULES.get(type(node.op)) if node is not None else None
        if node is None or rule is None or depth == 0:
            return None
        operands = [self.terms(x, depth - 1) for x in node.inputs]
        known = [x for x in operands if x is not None]
        found = rule(*known) if len(known) == len(operands) else None
        if found is not None:
            self.nodes.add(node)
        return found


def _add(a: Terms, b: Terms) -> Terms:
    total = {key: a.get(key, 0.0) + b.get(key, 0.0) for key in (*a, *b)}
    return {key: c for key, c in total.items() if c}


def _multiply(a: Terms, b: Terms) -> Terms | None:
    total: Terms = {}
    for (left, c), (right, d) in product(a.items(), b.items()):
        key = tuple(map(sum, zip(left, right, strict=True)))
        if sum(key) > DEGREE:
            return None
        total = _add(total, {key: c * d})
    return total


def _constant(terms: Terms) -> float | None:
    return next(iter(terms.values())) if len(terms) == 1 and not any(*terms) else None


def _scale(terms: Terms, factor: float) -> Terms:
    return {key: c * factor for key, c in terms.items()}


def _divide(a: Terms, b: Terms) -> Terms | None:
    divisor = _constant(b)
    return _scale(a, 1 / divisor) if divisor else None


def _power(a: Terms, b: Terms) -> Terms | None:
    exponent = _constant(b)
    if exponent not in (1, 2, 3):
        return None
    result: Terms | None = a
    for _ in range(int(exponent) - 1):
        result = result and _multiply(result, a)
    return result


def _subtract(a: Terms, b: Terms) -> Terms:
    return _add(a, _negate(b))


def _negate(a: Terms) -> Terms:
    return _scale(a, -1)


_RULES: dict[type[Op], Callable[..., Terms | None]] = {
    Add: _add,
    Sub: _subtract,
    Mul: _multiply,
    Div: _divide,
    Neg: _negate,
    Pow: _power,
}


def sources(value: Value, depth: int = DEPTH) -> Iterator[Value]:
    """Yield a value and what a few expandable nodes compute it from, nearest first.

    No value is yielded twice, and no constant.
    """
    layer = [value]
    seen: set[Value] = set()
    for _ in range(depth):
        fresh = [v for v in dict.fromkeys(layer) if v not in seen and v.data is None]
        yield from fresh
        seen.update(fresh)
        makers = [v.producer for v in fresh if v.producer and type(v.producer.op) in _RULES]
        layer = [v for maker in makers for v in maker.inputs if v is not None]
