"""Regions of random graphs: convex, apart from each other, complete, and none could be joined."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.backends.regions.regions import Region, is_worthwhile, regions
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Node, Value
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.matmul import MatMul

TYPE = TensorType(float32, (4, 4))


def random_graph(seed: int, size: int) -> tuple[Graph, set[Node]]:
    """Return a graph of Relu and Add, and a random half of its nodes."""
    rng = np.random.default_rng(seed)
    graph = Graph("random")
    values: list[Value] = [graph.add_input("x", TYPE)]
    for i in range(size):
        sources = [values[-1 - int(rng.integers(min(len(values), 5)))] for _ in range(2)]
        inputs = sources if rng.random() < 0.5 else sources[:1]
        op = Add() if len(inputs) == 2 else Relu()
        node = graph.insert(op, inputs, [f"v{i}"], name=f"n{i}")
        node.output.type = TYPE
        values.append(node.output)
    graph.set_outputs({"y": values[-1]})
    return graph, {node for node in graph.nodes if rng.random() < 0.6}


def reached(graph: Graph, start: set[Node]) -> set[Node]:
    """Return the nodes behind some others."""
    found: set[Node] = set()
    for node in graph.nodes:
        sources = {value.producer for value in node.distinct_reads}
        if sources & (start | found):
            found.add(node)
    return found


def is_convex(graph: Graph, nodes: set[Node]) -> bool:
    """Whether no path leaves the nodes and comes back."""
    outside = reached(graph, nodes) - nodes
    return not reached(graph, outside) & nodes


def has_circle(graph: Graph, found: list[Region]) -> bool:
    """Whether two regions, or regions through other nodes, wait for each other."""
    owner: dict[Node, int] = {node: i for i, part in enumerate(found) for node in part}
    for node in graph.nodes:
        owner.setdefault(node, len(found) + len(owner))
    sources: dict[int, set[int]] = {i: set() for i in owner.values()}
    for node in graph.nodes:
        for value in node.distinct_reads:
            if value.producer is not None and owner[value.producer] != owner[node]:
                sources[owner[node]].add(owner[value.producer])
    while ready := {i for i, waits in sources.items() if not waits}:
        sources = {i: waits - ready for i, waits in sources.items() if i not in ready}
    return bool(sources)


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs(seed: int) -> None:
    graph, taken = random_graph(seed, size=10 + seed)
    found = regions(graph, taken)
    nodes = [node for part in found for node in part]
    assert len(nodes) == len(set(nodes))
    assert set(nodes) == taken
    assert all(is_convex(graph, set(part)) for part in found)
    assert not has_circle(graph, found)
    edges = {(v.producer, node) for node in graph.nodes for v in node.distinct_reads}
    for i, first in enumerate(found):
        for second in found[i + 1 :]:
            if any((a, b) in edges or (b, a) in edges for a in first for b in second):
                rest = [part for part in found if part not in (first, second)]
                assert has_circle(graph, [*rest, (*first, *second)]), "these could be one region"


def test_everything_taken_is_one_region() -> None:
    graph, _ = random_graph(3, size=40)
    graph.sweep()
    (part,) = regions(graph, set(graph.nodes))
    assert list(part) == list(graph.nodes)


def test_what_is_worth_an_engine() -> None:
    graph = Graph("g")
    x = graph.add_input("x", TYPE)
    product = graph.insert(MatMul(), [x, x], ["a"], name="product")
    product.output.type = TYPE
    few = [graph.insert(Relu(), [x], [f"r{i}"], name=f"r{i}") for i in range(4)]
    assert is_worthwhile((product,))
    assert not is_worthwhile(tuple(few[:3]))
    assert is_worthwhile(tuple(few))
