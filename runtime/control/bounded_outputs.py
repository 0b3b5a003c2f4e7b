"""Nodes with data-dependent output sizes on a device: run with upper bounds, then sliced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import UnsupportedError
from ..ir.dtypes import string
from ..ir.graph import Graph, Node, Value
from ..ir.infer import infer
from ..ir.types import Array, HostValue, TensorType, ValueType
from ..ops.counted import Counted, within_bounds
from ..plan.host import HOST
from ..plan.plan import Plan
from .resources import Resources


class Counting:
    """A node run in a separate plan with upper bounds as shapes; made by `counting`.

    Args:
        plan: runs the bounded operator; its inputs are named by position.

    Attributes:
        plan: as given.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        (node,) = plan.graph.nodes
        self._cuts = node.op.cuts if isinstance(node.op, Counted) else ()

    def run(self, values: Sequence[HostValue]) -> list[Array]:
        """Return the node's results for these inputs."""
        given = {str(i): value for i, value in enumerate(values) if isinstance(value, np.ndarray)}
        feeds = {v.name: given[v.name] for v in self.plan.graph.inputs}
        *results, found = self.plan.run(feeds).values()
        pairs = zip(results, self._cuts, strict=True)
        return [data if cut is None else _cut(data, cut, int(found[0])) for data, cut in pairs]


def _cut(data: Array, axis: int, count: int) -> Array:
    return data.take(range(min(count, data.shape[axis])), axis)


def counting(node: Node, resources: Resources) -> Counting | None:
    """Return a function that runs a node with data-dependent sizes on the requested device.

    Args:
        node: any node.
        resources: used to plan the bounded operator.
    """
    if resources.backends[0].device is HOST or not _finds_sizes(node):
        return None
    graph = bounded(node)
    if graph is None:
        return None
    try:
        budget, options = resources.budget, resources.options
        plan = Plan(graph, resources.backends, options, resources.stores, budget=budget)
    except UnsupportedError:
        return None
    return Counting(plan)


def bounded(node: Node) -> Graph | None:
    """Return a graph of the bounded form of a node alone; None if it has no such form.

    Its inputs are named by position.
    """
    op = within_bounds(node.op)
    if op is None or not all(_is_known(value.type) for value in node.distinct_reads):
        return None
    graph = Graph(node.name)
    inputs: list[Value | None] = []
    for place, value in enumerate(node.inputs):
        if value is None:
            inputs.append(None)
        elif value.data is None:
            inputs.append(graph.add_input(str(place), value.type))
        else:
            inputs.append(graph.constant(value.data, value.name))
    new = graph.insert(op, inputs, len(op.cuts) + 1, name=node.name, origin=(node,))
    graph.set_outputs({value.name: value for value in new.outputs})
    infer(graph)
    return graph


def _finds_sizes(node: Node) -> bool:
    """Whether the output sizes depend on data, whatever the file declares."""
    if within_bounds(node.op) is None:
        return False
    types = node.op.infer(*(None if value is None else value.type for value in node.inputs))
    found = types if isinstance(types, tuple) else (types,)
    return not all(map(_is_known, found))


def _is_known(type_: ValueType | None) -> bool:
    return isinstance(type_, TensorType) and type_.is_static and type_.dtype != string
