"""Fresh names for unknown sizes, so that sizes which may differ are not taken for equal ones.

Passes compare sizes. While they run, each unknown size of an input, or of what a node computes, has
a name that no other size has: it equals itself in what follows from it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Generator, Set
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from .dtypes import string
from .graph import Graph
from .limited import Limited
from .types import Dim, OptionalType, SequenceType, TensorType, ValueType


class FreshNames:
    """Makes names that no size of a graph has.

    Attributes:
        given: those made so far.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._taken: frozenset[Dim] | None = None
        self.given: set[Dim] = set()

    def new(self) -> str:
        """Return one more name."""
        if self._taken is None:
            self._taken = frozenset(
                size for each in self._graph.graphs() for size in sizes_in(each)
            )
        number = len(self.given) + 1
        while (name := f"?{number}") in self._taken or name in self.given:
            number += 1
        self.given.add(name)
        return name


_OPEN: ContextVar[FreshNames | None] = ContextVar("fresh_names", default=None)


@contextmanager
def naming(names: FreshNames | None) -> Generator[None]:
    """Meanwhile, `named` takes its names from here; with None, it gives no names."""
    token = _OPEN.set(names)
    try:
        yield
    finally:
        _OPEN.reset(token)


def sizes_in(graph: Graph) -> set[Dim]:
    """Return all sizes of a graph's tensors, those in its bodies excepted."""
    types = (value.type for value in graph.values.values())
    return {size for type_ in types if isinstance(type_, TensorType) for size in type_.shape or ()}


def named(type_: ValueType | None) -> ValueType | None:
    """Return the type of a tensor with names for its unknown sizes, inside of `naming`."""
    names = _OPEN.get()
    if names is None or not isinstance(type_, TensorType) or None not in (type_.shape or ()):
        return type_
    shape = (names.new() if size is None else size for size in type_.shape or ())
    return TensorType(type_.dtype, tuple(shape), type_.value)


def unnamed(type_: ValueType | None, names: Set[Dim]) -> ValueType | None:
    """Return a type in which sizes of these names are unknown."""

    def left(size: Dim) -> Dim:
        is_of_one = isinstance(size, Limited) and size.size in names
        return None if is_of_one or size in names else size

    match type_:
        case SequenceType(element):
            return SequenceType(unnamed(element, names))
        case OptionalType(element):
            return OptionalType(unnamed(element, names))
        case TensorType(dtype, shape, value):
            if shape is not None:
                shape = tuple(map(left, shape))
            if value is not None and value.dtype.kind == "O" and dtype != string:
                elements = np.empty(value.shape, object)
                elements.reshape(-1)[:] = [left(size) for size in value.flat]
                value = elements
            return TensorType(dtype, shape, value)
        case _:
            return type_
