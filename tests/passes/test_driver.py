"""A pass that undoes its own rewrites is stopped; one that leaves a broken graph is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.errors import TercetWarning
from tercet.runtime.ir.dtypes import bool_
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import OPERATORS
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ir.verify import verify
from tercet.runtime.ops.control import If
from tercet.runtime.ops.elementwise import Abs, Neg
from tercet.runtime.options import Options
from tercet.runtime.passes import STATIC_PASSES, SYMBOLIC_PASSES
from tercet.runtime.passes.driver import VERIFY, Context, InModule, Pass, Rewrites, run_passes

from .graphs import apply, kinds, make


def swap(graph: Graph, _: Context) -> Iterator[str]:
    """Make an Abs of a Neg, and a Neg of an Abs."""
    while True:
        (node,) = graph.nodes
        graph.set_op(node, Abs() if isinstance(node.op, Neg) else Neg())
        yield f"node {node.name} is {node.kind} now"


def swap_once(graph: Graph, context: Context) -> Iterator[str]:
    yield next(swap(graph, context))


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


def test_a_pass_without_its_operators_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make(lambda graph, x: apply(graph, Neg(), x), (2, 3))
    passes = [
        Pass("of_loops", count, "a test wants it", at=(("Loop", "Scan"),)),
        Pass("of_halves", count, "a test wants it", narrow=True),
        Pass("of_signs", swap_once, "a test wants it", at=(("Neg",),)),
        Pass("of_what_is_new", count, "it is behind", at=(("Abs",),)),
        Pass("of_both", count, "a test wants it", at=(("Abs",), ("Loop", "Scan"))),
    ]
    with pytest.raises(ValueError, match="pass 'of_loops' is not for such a graph, and yet: this"):
        run_passes(graph, passes, Context(Options(), evaluate), Rewrites())
    monkeypatch.delenv(VERIFY)
    rewrites = Rewrites()
    run_passes(graph, passes, Context(Options(), evaluate), rewrites)
    assert rewrites.counts == {"of_signs": 1, "of_what_is_new": 1000}
    rewrites = Rewrites()
    run_passes(graph, passes, Context(Options(precision="float16"), evaluate), rewrites)
    assert rewrites.counts == {"of_halves": 1000, "of_what_is_new": 1000}


def test_operators_of_bodies_count() -> None:
    body = Graph()
    body.set_outputs({"y": apply(body, Neg(), np.ones(2, np.float32))})
    graph = Graph()
    condition = graph.add_input("condition", TensorType(bool_, ()))
    graph.set_outputs(
        {"y": apply(graph, If(then_branch=body, else_branch=body.clone()), condition)}
    )
    infer(graph)
    passes = [Pass("of_signs", count, "a test wants it", at=(("Neg",),))]
    rewrites = Rewrites()
    run_passes(graph, passes, Context(Options(), evaluate), rewrites)
    assert len(rewrites) == 1000


# Prints which modules of passes are imported to load and plan a graph of one node.
OF_ONE = """
import sys
import tercet
model = tercet.load("<ir_version: 10, opset_import: ['': 20]> g (float[2,3] x) => (float[2,3] y) "
                    "{ y = Relu(x) }".replace("'", chr(34)), backend="numpy")
model.prepare({"x": (2, 3)})
print(*(name.removeprefix("tercet.runtime.") for name in sys.modules))
"""
OF_OTHERS = {
    *("lower_einsum", "fuse_attention", "fuse_rotary", "compose_moves", "scores", "to_half"),
    *("ranges", "bucketing.rewriting"),
}


def test_a_network_imports_no_passes_that_it_lacks() -> None:
    """Nor what decides control flow."""
    alone = {name: value for name, value in os.environ.items() if name != VERIFY}
    done = subprocess.run(
        [sys.executable, "-c", OF_ONE], capture_output=True, text=True, env=alone, check=True
    )
    found = done.stdout.split()
    assert "passes.tidying.remove_identity" in found
    assert {f"passes.{name}" for name in OF_OTHERS}.isdisjoint(found)
    assert {"control.nested_control", "control.host_control"}.isdisjoint(found)


@pytest.mark.parametrize("each", [*SYMBOLIC_PASSES, *STATIC_PASSES], ids=lambda each: each.name)
def test_the_table_has_names_that_exist(each: Pass) -> None:
    assert {name for group in each.at for name in group} <= {name for _, name in OPERATORS}
    assert isinstance(each.run, InModule)
    module = import_module(f"tercet.runtime.passes.{each.run.module}")
    assert callable(getattr(module, each.run.name))
