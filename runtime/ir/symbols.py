"""Symbolic dimensions of inputs: binding them to actual sizes, and resolving conflicts.

Exporters give one name to different sizes ("?", "dim"), and most runtimes ignore names. So a name
with the same size in all inputs is relied on, and any other counts as an unknown size.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Set
from contextlib import contextmanager

from .fresh_names import FreshNames, named, naming, sizes_in, unnamed
from .graph import Graph, Value
from .grown import Grown
from .infer import infer
from .types import TensorType, ValueType

#: The sizes of each symbol, each with the first input that has it.
Sizes = dict[str, dict[int | Grown, str]]


def sizes_of(inputs: Iterable[Value], types: Mapping[str, ValueType | None]) -> Sizes:
    """Return the sizes of symbols, from the types of actual inputs.

    Args:
        inputs: with declared types.
        types: actual types by input name; may be incomplete.
    """
    found: Sizes = {}
    for value in inputs:
        declared, given = value.type, types.get(value.name)
        if not isinstance(declared, TensorType) or not isinstance(given, TensorType):
            continue
        for symbol, size in zip(declared.shape or (), given.shape or (), strict=False):
            if isinstance(symbol, str) and isinstance(size, int | Grown):
                found.setdefault(symbol, {}).setdefault(size, value.name)
    return found


def ambiguous(sizes: Sizes) -> dict[str, str]:
    """Return the symbols with several sizes, each with a sentence about it."""
    return {
        symbol: " but ".join(f"{size} in input '{name}'" for size, name in each.items())
        for symbol, each in sizes.items()
        if len(each) > 1
    }


def loosened(graph: Graph, symbols: Set[str]) -> Graph:
    """Return a re-inferred copy of a graph in which some symbols are unknown sizes."""
    copy = graph.clone()
    for value in copy.inputs:
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            shape = tuple(None if size in symbols else size for size in value.type.shape)
            value.type = value.type.with_shape(shape)
    for node in copy.walk():
        for body in node.op.graphs():
            for value in body.inputs:
                value.type = None
        for value in node.outputs:
            value.type = None
    infer(copy)
    return copy


@contextmanager
def sizes_named(graph: Graph) -> Generator[None]:
    """Meanwhile, each unknown size of a graph's tensors has a name; see `fresh_names`."""
    names = FreshNames(graph)
    try:
        with naming(names):
            if None in sizes_in(graph):
                for value in graph.inputs:
                    value.type = named(value.type)
                infer(graph)
            yield
    finally:
        for each in graph.graphs() if names.given else ():
            for value in each.values.values():
                value.type = unnamed(value.type, names.given)
