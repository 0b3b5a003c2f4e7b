"""Stages of a graph: what a plan runs, what runs node by node after it, and what must wait."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from .nested_control import Nesting


@dataclass(slots=True)
class Stage:
    """A plan, and the nodes after it that run one by one.

    Attributes:
        plan: runs first, or None.
        inputs: the values that the plan reads.
        outputs: the values that it computes for readers outside it.
        nodes: nodes that run after it, in order.
    """

    plan: Plan | None = None
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    nodes: list[Node] = field(default_factory=list[Node])


def levels_of(nodes: Iterable[Node], alone: Container[Node]) -> list[tuple[list[Node], list[Node]]]:
    """Return stages: nodes that a plan can run, and nodes that run one by one after it.

    Args:
        nodes: in topological order.
        alone: nodes that no plan may run, whatever their types.
    """
    ready: dict[Value, int] = {}
    levels: list[tuple[list[Node], list[Node]]] = []
    for node in nodes:
        at = max((ready[v] for v in node.distinct_reads if v in ready), default=0)
        single = node in alone or bool(misfit(node))
        at = at | 1 if single else at + at % 2
        ready.update(dict.fromkeys(node.outputs, at))
        while len(levels) <= at // 2:
            levels.append(([], []))
        levels[at // 2][single].append(node)
    return levels


def late_nodes(graph: Graph, resources: Resources, *, is_body: bool) -> set[Node]:
    """Return the nodes that wait for data-dependent shapes, and belong to the tail.

    On the host this pays only for nodes that multiply matrices, and for shapes that the file
    declares; nodes that depend on them follow. Planning for new shapes takes longer than running a
    few cheap nodes one by one. Graph inputs without a size belong to loop bodies, and change from
    iteration to iteration. If no backend runs single nodes, a node whose size depends on a few
    elements waits for them, too.

    Args:
        graph: the graph of the nodes.
        resources: what its plans are made with.
        is_body: see `Program`.
    """
    on_host = resources.on_host
    changing = on_host and any(map(_is_unsized, graph.inputs))
    lonely = not any(isinstance(b, Interpreter) for b in resources.backends)
    # Graph inputs count in bodies only: elsewhere `Keys` has examined them already.
    looked_at = () if is_body else graph.inputs
    late: set[Node] = set()
    made: set[Value] = set()
    for node in graph.nodes:
        is_unsized = any(map(_is_unsized, node.distinct_reads))
        waits = is_unsized and isinstance(node.op, FlexAttention) and bool(node.op.graphs())
        if not changing:
            waits = waits or (is_unsized and (node.op.dense or not on_host))
            waits = waits or any(map(is_promised, node.distinct_reads))
            waits = waits or (lonely and _waits_for_elements(node, looked_at))
        if waits or not made.isdisjoint(node.distinct_reads):
            late.add(node)
            made.update(node.outputs)
    return late


def _waits_for_elements(node: Node, looked_at: Container[Value]) -> bool:
    """Whether elements known only in a run may determine a node's output size."""
    is_counted = within_bounds(node.op) is not None
    if is_counted or node.op.graphs() or not any(map(_is_unsized, node.outputs)):
        return False
    unknown = (v for v in node.distinct_reads if v.data is None and v not in looked_at)
    return any(is_deciding(v.type) for v in unknown)


def last_reads(stages: Iterable[Stage], kept: Container[Value]) -> dict[Node, list[Value]]:
    """Return, by node that runs alone, the values that are not read after it.

    Args:
        stages: all stages of a program.
        kept: values that must not be freed.
    """
    last: dict[Value, Node | None] = {}
    for stage in stages:
        last.update(dict.fromkeys(stage.inputs))
        for node in stage.nodes:
            last.update(dict.fromkeys((*node.distinct_reads, *node.outputs), node))
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


def nesting_of(graph: Graph, resources: Resources) -> Nesting | None:
    """Return what nests the control flow of a graph in plans; None if it has none, either."""
    if not any(node.op.graphs() for node in graph.nodes):
        return None
    from . import nested_control  # with what few graphs need

    return nested_control.nesting_of(resources)
