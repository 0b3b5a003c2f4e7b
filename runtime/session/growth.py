"""Sizes that grow from run to run, such as a decoder's past: one program for all of them.

A program for fixed sizes runs faster than one for any size, but takes long to make. So the first
few sizes get separate programs; once growth in equal steps is observed, one program is made for
all further sizes. A size that recurs also gets its own program.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from ..base import forks
from ..ir.grown import Grown
from ..ir.types import Dim, TensorType, ValueType

Types = tuple[ValueType | None, ...]
#: Buckets have room for a power of two of growth steps, at least this many.
MIN_ROOM = 16
#: Sizes of all axes of all inputs.
_Sizes = tuple[int, ...]

#: Number of equal steps after which growth is assumed.
STEPS = 3
#: Number of recent sizes kept: several sequences may grow in turn.
REMEMBERED = 32
#: Recurrences of a size, among the recent ones, that justify a separate program.
AGAIN = 16


@dataclass(slots=True)
class _Family:
    """What is known about inputs of the same dtypes and ranks.

    Attributes:
        seen: sizes of the last programs made.
        spans: sizes of an earlier program, and their growth steps.
        runs: sizes of the last runs that have no separate program.
        least: minimum sum of sizes at which a program for all of them is tried.
    """

    seen: deque[_Sizes] = field(default_factory=lambda: deque[_Sizes](maxlen=REMEMBERED))
    spans: list[tuple[_Sizes, _Sizes]] = field(default_factory=list[tuple[_Sizes, _Sizes]])
    runs: deque[_Sizes] = field(default_factory=lambda: deque[_Sizes](maxlen=REMEMBERED))
    least: int = 0


def is_batch(types: Types) -> bool:
    """Whether only first axes grow: batches, whose padding would be computed in full."""
    return all(
        axis == 0
        for t in types
        if isinstance(t, TensorType)
        for axis, size in enumerate(t.shape or ())
        if isinstance(size, Grown)
    )


def rooms(types: Types) -> Iterator[int]:
    """Yield the capacities of buckets in growth steps, in increasing order.

    Args:
        types: with growing sizes.
    """
    firsts = [-(-size.first // size.step) for size in _grown_in(types)]
    room = MIN_ROOM
    while room < 2 * max(firsts, default=0):
        room *= 2
    while True:
        yield room
        room *= 2


def bounded_by(types: Types, room: int) -> Types:
    """Return types whose sizes grow up to the capacity of a bucket."""
    firsts = [-(-size.first // size.step) for size in _grown_in(types)]
    count = room - max(firsts, default=0) + 1
    return tuple(
        t.with_shape(tuple(_limited(size, count) for size in t.shape or ()))
        if isinstance(t, TensorType) and t.value is None
        else t
        for t in types
    )


def _limited(size: Dim, count: int) -> Dim:
    return Grown(size.first, size.step, count) if isinstance(size, Grown) else size


def _grown_in(types: Types) -> Iterator[Grown]:
    sizes = (size for t in types if isinstance(t, TensorType) for size in t.shape or ())
    return (size for size in sizes if isinstance(size, Grown))


def count_of(types: Types, general: Types) -> int:
    """Return the number of growth steps at which `general` has the sizes of `types`."""
    for type_, wide in zip(types, general, strict=True):
        if isinstance(type_, TensorType) and isinstance(wide, TensorType):
            for size, grown in zip(type_.shape or (), wide.shape or (), strict=True):
                if isinstance(grown, Grown) and isinstance(size, int):
                    return (size - grown.first) // grown.step
    return 0


class Growth:
    """Detects sizes that grow."""

    def __init__(self) -> None:
        self._families: dict[Hashable, _Family] = {}
        self._lock = forks.lock()

    def spanning(self, group: Hashable, types: Types) -> Types | None:
        """Return types with growing sizes that include these types; None if no growth is known.

        Args:
            group: further parts of the program's key.
            types: static types of the inputs, for which there is no program.
        """
        if not all(isinstance(t, TensorType) and t.is_static for t in types):
            return None
        tensors = [t for t in types if isinstance(t, TensorType)]
        sizes = tuple(size for type_ in tensors for size in type_.dims)
        key = group, tuple((type_.dtype, type_.rank) for type_ in tensors)
        with self._lock:
            family = self._families.setdefault(key, _Family())
            span = _span_of(family, sizes)
        return None if span is None else tuple(_grown(tensors, *span))

    def refuse(self, group: Hashable, types: Types) -> None:
        """Record that there is no program for all such sizes.

        Sizes twice as large are tried again: a window, for example, may be full by then, and its
        size constant.
        """
        tensors = [t for t in types if isinstance(t, TensorType)]
        key = group, tuple((type_.dtype, type_.rank) for type_ in tensors)
        with self._lock:
            family = self._families[key]
            family.least = 2 * sum(size for type_ in tensors for size in type_.dims)
            family.spans.clear()


def _span_of(family: _Family, sizes: _Sizes) -> tuple[_Sizes, _Sizes] | None:
    """Return the initial sizes and growth steps; None if these sizes get separate programs."""
    if sum(sizes) < family.least:
        return None
    for span in family.spans:
        if _is_within(sizes, *span):
            family.runs.append(sizes)
            return span if family.runs.count(sizes) < AGAIN else None
    for before in family.seen:
        step = tuple(a - b for a, b in zip(sizes, before, strict=True))
        if not any(step) or min(step) < 0:
            continue
        first = _back(sizes, step, STEPS)
        if all(_back(sizes, step, i) in family.seen for i in range(1, STEPS + 1)):
            family.spans.append((first, step))
            return first, step
    family.seen.append(sizes)
    return None


def _back(sizes: _Sizes, step: _Sizes, count: int) -> _Sizes:
    return tuple(size - count * by for size, by in zip(sizes, step, strict=True))


def _is_within(sizes: _Sizes, first: _Sizes, step: _Sizes) -> bool:
    """Whether growth leads to these sizes."""
    counts: set[int] = set()
    for size, begin, by in zip(sizes, first, step, strict=True):
        if by == 0:
            if size != begin:
                return False
            continue
        count, rest = divmod(size - begin, by)
        if rest or count < 0:
            return False
        counts.add(count)
    return len(counts) == 1


def _grown(types: list[TensorType], first: _Sizes, step: _Sizes) -> Iterator[TensorType]:
    sizes = iter(zip(first, step, strict=True))
    for type_ in types:
        shape = (next(sizes) for _ in type_.dims)
        yield TensorType(type_.dtype, tuple(Grown(a, by) if by else a for a, by in shape))
