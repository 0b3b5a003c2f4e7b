"""Stages of a graph: what a plan can run, what runs one by one after it, and what must wait."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from ..ir.dtypes import string
from ..ir.graph import Graph, Node, Value
from ..ir.hints import is_promised
from ..ir.types import TensorType
from ..ops.attention import FlexAttention
from ..ops.counted import within_bounds
from ..plan.backend import Interpreter
from ..plan.partition import misfit
from ..plan.plan import Plan
from .resources import Resources, is_deciding


@dataclass(slots=True)
class Stage:
    """A plan, and the nodes after it that run one by one.

    Attributes:
        plan: what runs first, or None.
        inputs: the values that the plan reads.
        outputs: the values that it computes and that somebody outside it reads.
        nodes: what runs after it, in order.
    """

    plan: Plan | None = None
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    nodes: list[Node] = field(default_factory=list[Node])


def levels_of(nodes: Iterable[Node], alone: Container[Node]) -> list[tuple[list[Node], list[Node]]]:
    """Return stages: nodes that a plan can run, and those that run one by one after it.

    Args:
        nodes: in topological order.
        alone: those that no plan is to run, whatever their types are.
    """
    ready: dict[Value, int] = {}
    levels: list[tuple[list[Node], list[Node]]] = []
    for node in nodes:
        at = max((ready[v] for v in node.reads if v in ready), default=0)
        single = node in alone or bool(misfit(node))
        at = at | 1 if single else at + at % 2
        ready.update(dict.fromkeys(node.outputs, at))
        while len(levels) <= at // 2:
            levels.append(([], []))
        levels[at // 2][single].append(node)
    return levels


def late_nodes(graph: Graph, resources: Resources, *, is_body: bool) -> set[Node]:
    """Return the nodes that wait for data-dependent sizes, and belong to the tail.

    On the host that pays only for nodes that multiply matrices, and for sizes that the file says
    are always the same; it takes along what depends on them. To plan for new sizes takes longer
    than to run a few cheap nodes one by one. Graph inputs without a size belong to bodies of
    loops, and change from iteration to iteration.
    Where nobody runs single nodes, one whose size a few elements decide waits for them, too.

    Args:
        graph: whose nodes they are.
        resources: what its plans are made with.
        is_body: see `Program`.
    """
    on_host = resources.on_host
    changing = on_host and any(map(_is_unsized, graph.inputs))
    lonely = not any(isinstance(b, Interpreter) for b in resources.backends)
    # What the graph is given counts in bodies alone: elsewhere `Keys` has looked at it already.
    looked_at = () if is_body else graph.inputs
    late: set[Node] = set()
    made: set[Value] = set()
    for node in graph.nodes:
        is_unsized = any(map(_is_unsized, node.reads))
        waits = is_unsized and isinstance(node.op, FlexAttention) and bool(node.op.graphs())
        if not changing:
            waits = waits or (is_unsized and (node.op.dense or not on_host))
            waits = waits or any(map(is_promised, node.reads))
            waits = waits or (lonely and _waits_for_elements(node, looked_at))
        if waits or not made.isdisjoint(node.reads):
            late.add(node)
            made.update(node.outputs)
    return late


def _waits_for_elements(node: Node, looked_at: Container[Value]) -> bool:
    """Whether elements that only a run tells may decide on the size of a node's results."""
    is_counted = within_bounds(node.op) is not None
    if is_counted or node.op.graphs() or not any(map(_is_unsized, node.outputs)):
        return False
    unknown = (v for v in node.reads if v.data is None and v not in looked_at)
    return any(is_deciding(v.type) for v in unknown)


def last_reads(stages: Iterable[Stage], kept: Container[Value]) -> dict[Node, list[Value]]:
    """Return, by nodes that run one by one, the values that are not read after them.

    Args:
        stages: all of a program.
        kept: values that are not to be let go.
    """
    last: dict[Value, Node | None] = {}
    for stage in stages:
        last.update(dict.fromkeys(stage.inputs))
        for node in stage.nodes:
            last.update(dict.fromkeys((*node.reads, *node.outputs), node))
    found: dict[Node, list[Value]] = {}
    for value, node in last.items():
        if node is not None and value not in kept and value.data is None:
            found.setdefault(node, []).append(value)
    return found


def is_plannable(value: Value) -> bool:
    """Whether a plan can hold a value."""
    type_ = value.type
    return isinstance(type_, TensorType) and type_.is_static and type_.dtype != string


def _is_unsized(value: Value) -> bool:
    return isinstance(value.type, TensorType) and not value.type.is_static
