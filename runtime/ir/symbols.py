"""Symbolic dimensions of inputs: the sizes that callers give them, and what if they disagree.

Exporters give one name to sizes that are different ("?", "dim"), and most runtimes never look at
names. So a name that is one size in all inputs is relied on, and one that is not counts as an
unknown size, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from .graph import Graph, Value
from .grown import Grown
from .infer import infer
from .types import TensorType, ValueType

#: The different sizes of each symbol, each with the first input that has it.
Sizes = dict[str, dict[int | Grown, str]]


def sizes_of(inputs: Iterable[Value], types: Mapping[str, ValueType | None]) -> Sizes:
    """Return what types of actual inputs tell of the symbols in the declared ones.

    Args:
        inputs: with the types that the model declares.
        types: by the name of the input; inputs that are not there tell nothing.
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
    """Return the symbols with several sizes, and a sentence about each."""
    return {
        symbol: " but ".join(f"{size} in input '{name}'" for size, name in each.items())
        for symbol, each in sizes.items()
        if len(each) > 1
    }


def loosened(graph: Graph, symbols: Set[str]) -> Graph:
    """Return a copy of a graph, inferred anew, whose inputs have unknown sizes for some symbols."""
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
