"""Where a model can be damaged: its graphs and functions, and what lies around each node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

GraphLike = GraphProto | FunctionProto


def bodies_of(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs_of(model: ModelProto, *, nested: bool = True) -> list[GraphLike]:
    """Return the graph, the functions and, with `nested`, all bodies in them."""
    found: list[GraphLike] = [model.graph, *model.functions]
    if nested:
        for graph in found:  # it grows meanwhile
            for node in graph.node:
                found.extend(bodies_of(node))
    return found


@dataclass(frozen=True, slots=True)
class Places:
    """Names by which a message shows that it knows where a mutant was damaged.

    Attributes:
        here: what was changed.
        near: what touches it, which contradicts it as much as it contradicts them.
    """

    here: frozenset[str] = frozenset()
    near: frozenset[str] = frozenset()

    def __or__(self, other: Places) -> Places:
        return Places(self.here | other.here, self.near | other.near)


def around_node(model: ModelProto, node: NodeProto) -> Places:
    """Return the places of a change to a node: it and what it writes; who touches it."""
    here = {node.name, *node.output}
    near = set(node.input)
    for other, within in _all_nodes(model):
        if near.intersection(other.output) or here.intersection(_reads(other)):
            near |= {other.name}
        if other.name == node.name:
            near |= within
    return Places(frozenset(here - {""}), frozenset(near - {""}))


def around_tensor(model: ModelProto, name: str) -> Places:
    """Return the places of a change to a tensor: it; its producer and readers."""
    near: set[str] = set()
    for other, within in _all_nodes(model):
        if name in other.output or name in _reads(other):
            near |= {other.name, *other.output, *within}
    return Places(frozenset({name} - {""}), frozenset(near - {name, ""}))


def _reads(node: NodeProto) -> set[str]:
    """Return what a node and the bodies in it read."""
    found = set(node.input)
    for body in bodies_of(node):
        for inner in body.node:
            found |= _reads(inner)
        found |= {output.name for output in body.output}
    return found


def _all_nodes(model: ModelProto) -> Iterator[tuple[NodeProto, set[str]]]:
    """Yield every node with the names of those that it is in the bodies of."""

    def walk(graph: GraphLike, within: set[str]) -> Iterator[tuple[NodeProto, set[str]]]:
        for node in graph.node:
            yield node, within
            for body in bodies_of(node):
                yield from walk(body, within | {node.name})

    yield from walk(model.graph, set())
    for function in model.functions:
        callers = {node.name for node in model.graph.node if node.op_type == function.name}
        yield from walk(function, callers)
