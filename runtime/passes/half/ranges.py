"""Magnitudes of tensors: proven bounds, and likely sizes.

A `ValueRange` has two sides. `low` and `high` are proven: a Sigmoid is between 0 and 1, a Softmax
times a tensor within that tensor. They are infinite if nothing is known, as in most of a network.
`size` estimates the root mean square, by four rules:

- training and normalization keep the results of layers with weights near `LIKELY`, so such a layer
  gives `LIKELY` unless the norm of its weights differs by more than a factor of `DOUBT`
- a normalization gives the size of its own scale and shift, whatever it reads
- sums grow with the number of their terms, products with their factors; an unknown size counts as
  `UNKNOWN` elements
- Exp, Pow, running products and quotients by numbers near 0 are unbounded

Single elements are several times as great as the size; `PEAK` is how many. Casts of integers and
results of Range are `counted`: positions and counts, of which a narrow type may not distinguish
neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from math import hypot, inf, isfinite, sqrt

import numpy as np

from ...base.parallel import in_parallel
from ...base.record import record
from ...ir.dtypes import DType, bool_, int8, uint8
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array, TensorType

#: Root mean square of inputs and of the outputs of ordinary layers.
LIKELY = 4.0
#: Ratio of the largest element to the root mean square.
PEAK = 32.0
#: Factor by which weights may suggest larger or smaller outputs than training produced.
DOUBT = 16.0
#: Size assumed for unbounded inputs of a layer: with the peak factor, beyond float16,
#: but small enough that training brings it back to ordinary sizes within a few layers.
GREAT = 2.0**14
#: Elements along an axis of unknown size.
UNKNOWN = 4096
#: Updates that each place of a sum gets, such as edges at a node, where sizes are unknown.
UPDATES = 64.0
#: Elements of a constant that one thread looks at.
_PART = 1 << 20
#: Elements that are squared at a time. For 10,000 or more OpenBLAS wakes a thread per core, and
#: these spin for a while, which takes the cores from the threads that look at other parts.
_ROW = 1 << 13
#: Elements from which constants are looked at by several threads.
_LARGE = 1 << 16


@record
class ValueRange:
    """What is known about the elements of a tensor.

    Attributes:
        size: the likely root mean square; infinite where nothing bounds it.
        low: no element is less.
        high: no element is greater.
        counted: whether they are counts or positions.
        shares: whether they are non-negative, with a sum of at most 1 along the last axis.
        steep: whether the bound may be reached at any size, as by 1 / x near 0.
        means: whether they are means of values, weighted by a Softmax.
    """

    size: float = LIKELY
    low: float = -inf
    high: float = inf
    counted: bool = False
    shares: bool = False
    steep: bool = False
    means: bool = False

    @property
    def bound(self) -> float:
        """The largest possible magnitude."""
        return max(abs(self.low), abs(self.high))

    @property
    def peak(self) -> float:
        """The largest magnitude to expect."""
        return self.bound if self.steep else min(self.bound, self.size * PEAK)

    @property
    def distance(self) -> float:
        """Minimum distance of every element from 0."""
        return max(self.low, -self.high, 0.0)

    def scaled(self, factor: float) -> ValueRange:
        """Return the range of the product with a number."""
        low, high = spread((self.low, self.high), (factor, factor))
        return ValueRange(times(self.size, abs(factor)), low, high, self.counted)

    def union(self, other: ValueRange) -> ValueRange:
        """Return the range of elements of either tensor."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return ValueRange(max(self.size, other.size), low, high, self.counted or other.counted)

    def clipped(self, low: float, high: float) -> ValueRange:
        """Return the range of elements that are limited to an interval."""
        return replace(self, low=min(max(self.low, low), high), high=min(max(self.high, low), high))

    def or_zero(self) -> ValueRange:
        """Return the range of elements some of which may be 0, or nearer to it."""
        return replace(self, low=min(self.low, 0.0), high=max(self.high, 0.0))

    def settled(self) -> ValueRange:
        """Return the same with the size limited by the bound."""
        return replace(self, size=min(self.size, self.bound))


#: The range of an unknown tensor.
UNBOUNDED = ValueRange(inf)


def times(a: float, b: float) -> float:
    """Multiply, with 0 for 0 · ∞: an infinite bound is not an element."""
    return 0.0 if a == 0 or b == 0 else a * b


def spread(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """Return the minimum and maximum product of elements of two intervals."""
    ends = [times(x, y) for x in a for y in b]
    return min(ends), max(ends)


def of_constant(data: Array) -> ValueRange:
    """Return the range of a constant's elements, with their own root mean square."""
    (found,) = of_constants([data])
    return found


def of_constants(arrays: Iterable[Array]) -> Iterator[ValueRange]:
    """Yield the ranges of constants; threads share the parts of all of them."""
    parts = [_parts(data) for data in arrays]
    every = list(chain.from_iterable(parts))
    found = in_parallel(_extent, every) if len(every) > 1 else map(_extent, every)
    for own in parts:
        extents = list(islice(found, len(own)))
        if not own:
            yield ValueRange()
        elif any(each[0] != each[0] for each in extents):
            yield UNBOUNDED
        else:
            low, high = min(each[0] for each in extents), max(each[1] for each in extents)
            size = sum(part.size for part in own)
            yield ValueRange(hypot(*(each[2] for each in extents)) / sqrt(size), low, high)


def _parts(data: Array) -> list[Array]:
    """Return the elements of a constant in parts; none if they are not numbers."""
    if data.size == 0 or data.dtype.kind not in "fVbiu":
        return []
    flat = (data.reshape(-1)[:1] if not any(data.strides) else data).ravel(order="K")
    return [flat[first : first + _PART] for first in range(0, flat.size, _PART)]


def _extent(numbers: Array) -> tuple[float, float, float]:
    """Return the least and the greatest number, and the norm; NaN if there is one."""
    if numbers.dtype.kind != "f" or numbers.dtype.itemsize < 4:
        numbers = numbers.astype(np.float32)
    return float(numbers.min()), float(numbers.max()), norm_of(numbers)


def norm_of(data: Array) -> float:
    """Return the Euclidean norm without overflow or underflow."""
    flat = data.ravel(order="K")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        square = _square(flat)
    if 1e-30 < square < 1e30:
        return sqrt(square)
    maximum = float(np.abs(flat).max(initial=0))
    if maximum == 0 or not isfinite(maximum):
        return maximum
    return maximum * float(np.linalg.norm(flat.astype(np.float64) / maximum))


def _square(flat: Array) -> float:
    """Return the sum of squares."""
    whole = flat.size - flat.size % _ROW
    rows, rest = flat[:whole].reshape(-1, _ROW), flat[whole:]
    return float(np.vecdot(rows, rows).sum(dtype=np.float64)) + float(np.vecdot(rest, rest))


def large_constants(nodes: Iterable[Node]) -> dict[Value, Array]:
    """Return the constants among what nodes read of which threads may take one each."""
    read = (value for node in nodes for value in node.distinct_reads)
    return {v: v.data for v in read if v.data is not None and v.data.size >= _LARGE}


def count_along(value: Value, axes: tuple[int, ...]) -> int:
    """Return the number of elements along some axes, `UNKNOWN` for each unknown one."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    total = 1
    for axis in axes:
        size = None if shape is None else shape[axis]
        total *= max(size, 1) if isinstance(size, int) else UNKNOWN
    return total


class Ranges:
    """The ranges of a graph's values, filled in topological order; see `range_rules.ranges_of`."""

    def __init__(self) -> None:
        self._found: dict[Value, ValueRange] = {}

    def __getitem__(self, value: Value) -> ValueRange:
        found = self._found.get(value)
        if found is None:
            found = ValueRange() if value.data is None else of_constant(value.data)
            self._found[value] = found
        return found

    def __setitem__(self, value: Value, found: ValueRange) -> None:
        self._found[value] = found

    def inputs(self, node: Node) -> Iterator[ValueRange]:
        """Yield the range of every input that is not omitted."""
        return (self[value] for value in node.inputs if value is not None)

    def copy(self, old: Value, new: Value) -> None:
        """Give a value the range of another one."""
        self._found[new] = self[old]


def measured_in(graph: Graph) -> Ranges:
    """Return the ranges of the large constants of a graph, which several threads look at."""
    ranges, large = Ranges(), large_constants(graph.nodes)
    for value, found in zip(large, of_constants(large.values()), strict=True):
        ranges[value] = found
    return ranges


# ── rules of several kinds of operators ──────────────────────────────────────────────────────────


#: Returns the ranges of a node's results; a single one is that of all of them.
Rule = Callable[[Node, Ranges], ValueRange | tuple[ValueRange, ...]]


def monotone(function: Callable[[float], float]) -> Rule:
    """Return the rule of a non-decreasing function that does not change magnitudes by much."""

    def rule(node: Node, ranges: Ranges) -> ValueRange:
        x = ranges[input_of(node, 0)]
        low, high = function(x.low), function(x.high)
        return replace(x, low=float(low), high=float(high), shares=False)

    return rule


#: Limits of booleans and bytes.
BYTE_LIMITS: dict[DType, tuple[float, float]] = {
    bool_: (0.0, 1.0),
    uint8: (0.0, 255.0),
    int8: (-128.0, 127.0),
}


def input_of(node: Node, place: int) -> Value:
    """Return an input that is not omitted."""
    value = node.inputs[place]
    assert value is not None
    return value


def power_of(x: float, power: float) -> float:
    """Return a power of a number that is not negative; infinity if it overflows."""
    try:
        return x**power
    except OverflowError:
        return inf


def of_first(node: Node, ranges: Ranges) -> ValueRange:
    """Return the range of the first input, for operators that move, select or average elements."""
    return replace(ranges[input_of(node, 0)], shares=False)


def of_union(node: Node, ranges: Ranges) -> ValueRange:
    """Return a range that contains those of all inputs."""
    first, *rest = ranges.inputs(node)
    for other in rest:
        first = first.union(other)
    return replace(first, shares=False)


def fixed(low: float, high: float, size: float = inf) -> Rule:
    """Return the rule of results between two numbers, and of at most this size."""
    return lambda node, ranges: ValueRange(min(size, max(abs(low), abs(high))), low, high)


def unbounded(node: Node, ranges: Ranges) -> ValueRange:
    """Return no bounds."""
    return UNBOUNDED
