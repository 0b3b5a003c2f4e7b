"""A pass that undoes its own rewrites is stopped; one that leaves a broken graph is named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.errors import TercetWarning
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.verify import verify
from tercet.runtime.ops.elementwise import Abs, Neg
from tercet.runtime.options import Options
from tercet.runtime.passes.driver import VERIFY, Context, Pass, Rewrites, run_passes

from .graphs import apply, kinds, make


def swap(graph: Graph, _: Context) -> Iterator[str]:
    """Make an Abs of a Neg, and a Neg of an Abs."""
    while True:
        (node,) = graph.nodes
        graph.set_op(node, Abs() if isinstance(node.op, Neg) else Neg())
        yield f"node {node.name} is {node.kind} now"


def grow(graph: Graph, _: Context) -> Iterator[str]:
    """Insert a node behind the last one."""
    while True:
        ((name, value),) = graph.outputs.items()
        graph.set_outputs({name: apply(graph, Neg(), value)})
        yield "there is one more Neg"


def count(graph: Graph, _: Context) -> Iterator[str]:
    for number in range(1000):
        yield f"this is number {number}"


ENDLESS = {"swap": swap, "grow": grow}


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_pass(name: str) -> None:
    graph = make(lambda graph, x: apply(graph, Neg(), x), (2, 3))
    rewrites = Rewrites()
    passes = [Pass(name, ENDLESS[name], "a test wants it"), Pass("count", count, "behind it")]
    with pytest.warns(TercetWarning, match=rf"'{name}' found no end.*skip=\('{name}',\)"):
        run_passes(graph, passes, Context(Options(), evaluate), rewrites)
    verify(graph)
    assert 1000 < rewrites.counts[name] < 20_000
    assert rewrites.counts["count"] == 1000
    assert set(kinds(graph)) <= {"Abs", "Neg"}


def test_a_pass_that_breaks_a_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(graph: Graph, _: Context) -> Iterator[str]:
        """Take the reader out of what is read."""
        (x,) = graph.inputs
        x.consumers.clear()
        yield "nobody reads x"

    def run() -> None:
        graph = make(lambda graph, x: apply(graph, Neg(), x), (2, 3))
        passes = [Pass("forget", forget, "a test wants it")]
        run_passes(graph, passes, Context(Options(), evaluate), Rewrites())

    with pytest.raises(ValueError, match="pass 'forget' left a broken graph: 'x' has wrong consum"):
        run()
    monkeypatch.delenv(VERIFY)
    run()
