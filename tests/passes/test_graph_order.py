"""The order of a graph's nodes, and what rewriting costs as graphs grow."""

from __future__ import annotations

import random

import pytest

from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ir.unused_names import unused
from tercet.runtime.ir.verify import verify
from tercet.runtime.ops.elementwise import Add, Relu


def chain(count: int) -> Graph:
    """Return a chain of Relu nodes."""
    graph = Graph()
    value = graph.add_input("x", TensorType(float32, (2,)))
    for _ in range(count):
        value = graph.insert(Relu(), [value]).output
    graph.set_outputs({"y": value})
    return graph


@pytest.mark.parametrize("before", ["first", "last", "new", "any"])
def test_nodes_stay_in_order_however_many_are_put_in_between(before: str) -> None:
    """As a list does that inserts by index, beyond what fits between two floats."""
    graph, choose = chain(5), random.Random(0)
    x, place = graph.inputs[0], 2
    expected = list(graph.nodes)
    for _ in range(600):
        place = {"first": 0, "last": len(expected) - 1, "new": place}.get(
            before, choose.randrange(len(expected))
        )
        expected.insert(place, graph.insert(Add(), [x, x], before=expected[place]))
    assert list(graph.nodes) == expected
    some = choose.sample(expected, 100)
    assert list(graph.in_order(some)) == sorted(some, key=expected.index)
    for node in choose.sample([n for n in expected if isinstance(n.op, Add)], 300):
        graph.remove(node)
        expected.remove(node)
    assert list(graph.nodes) == expected
    verify(graph)
    copy = graph.clone()
    assert [node.name for node in copy.nodes] == [node.name for node in expected]
    verify(copy)


def test_nodes_of_other_graphs_are_refused() -> None:
    graph, other = chain(3), chain(3)
    with pytest.raises(ValueError, match="is not a node of this graph"):
        graph.insert(Relu(), [graph.inputs[0]], before=other.nodes[1])


def test_thousands_of_values_may_want_one_name() -> None:
    class Names(set[str]):
        asked = 0

        def __contains__(self, name: object) -> bool:
            self.asked += 1
            return super().__contains__(name)

    taken = Names()
    for number in range(3000):
        name = unused("w", taken)
        assert name == ("w" if number == 0 else f"w.{number}")
        taken.add(name)
    assert taken.asked < 3000 * 26
    taken.remove("w.1")
    assert unused("w", taken) not in taken
    taken.remove("w")
    assert unused("w", taken) == "w"
