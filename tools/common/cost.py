"""The theoretical cost of a graph: multiply-accumulates, parameters and bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...runtime.ir.dtypes import bool_, int64, name_of, string
from ...runtime.ir.graph import Graph, Value
from ...runtime.ir.types import TensorType
from ...runtime.plan.macs import is_static, macs


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """All nodes of one operator.

    Attributes:
        operator: its name.
        nodes: number of nodes.
        macs: their multiply-accumulates, as far as known.
        parameters: elements of constants that they are the first to read.
        unknown: number of nodes with unknown MACs.
    """

    operator: str
    nodes: int
    macs: int
    parameters: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Constants:
    """The constants of a graph.

    Attributes:
        parameters: number of elements, except int64, bool and string constants: these are shapes,
            axes and indices.
        nbytes: bytes of all constants.
        by_dtype: bytes by dtype.
    """

    parameters: int
    nbytes: int
    by_dtype: dict[str, int]


def operators(graph: Graph, bound: Graph | None = None) -> tuple[OperatorCost, ...]:
    """Return the cost of each operator of a graph, bodies included, most frequent first.

    Args:
        graph: the graph.
        bound: the same graph with integer shapes, used for MACs; nodes missing in it were shape
            arithmetic.
    """
    rows: dict[str, list[int]] = {}
    seen: set[Value] = set()
    for node in graph.walk():
        row = rows.setdefault(node.kind, [0, 0, 0, 0])
        row[0] += 1
        row[2] += _parameters(v for v in node.distinct_reads if v.is_constant and v not in seen)
        seen.update(node.distinct_reads)
    for node in (bound or graph).walk():
        cost = macs(node)
        rows[node.kind][1] += cost or 0
        rows[node.kind][3] += cost is None
    found = [OperatorCost(kind, *numbers) for kind, numbers in rows.items()]
    return tuple(sorted(found, key=lambda row: (-row.nodes, row.operator)))


@dataclass(frozen=True, slots=True)
class NodeCost:
    """One node of a file.

    Attributes:
        number: its position in the file, from 1.
        name: of the node.
        operator: its operator.
        output: type of its first output.
        macs: multiply-accumulates; None if unknown.
        parameters: elements of constants that it is the first to read.
        nbytes: bytes of inputs, constants and outputs; None if unknown.
    """

    number: int
    name: str
    operator: str
    output: str
    macs: int | None
    parameters: int
    nbytes: int | None


def nodes(graph: Graph, bound: Graph | None = None) -> tuple[NodeCost, ...]:
    """Return the cost of each node of a graph, bodies included, in order.

    Args:
        graph: the graph.
        bound: the same graph with integer shapes, in which costs are looked up by name; nodes
            missing in it were shape arithmetic and cost nothing.
    """
    known = {node.name: node for node in (bound or graph).walk()}
    seen: set[Value] = set()
    found: list[NodeCost] = []
    for number, node in enumerate(graph.walk(), 1):
        sized = known.get(node.name)
        own = _parameters(v for v in node.distinct_reads if v.is_constant and v not in seen)
        seen.update(node.distinct_reads)
        values = () if sized is None else (*sized.distinct_reads, *sized.outputs)
        static = all(is_static(value) for value in values)
        found.append(
            NodeCost(
                number,
                node.name,
                node.kind,
                str((sized or node).output.type or "?"),
                0 if sized is None else macs(sized),
                own,
                sum(value.tensor.nbytes for value in set(values)) if static else None,
            )
        )
    return tuple(found)


def _parameters(values: Iterable[Value]) -> int:
    return sum(v.tensor.size for v in values if v.tensor.dtype not in (int64, bool_, string))


def constants(graph: Graph) -> Constants:
    """Return number and bytes of a graph's constants, bodies included."""
    found = dict.fromkeys(graph.constants)
    for node in graph.walk():
        found.update(dict.fromkeys(v for v in node.distinct_reads if v.is_constant))
    by_dtype: dict[str, int] = {}
    for value in found:
        name = name_of(value.tensor.dtype)
        by_dtype[name] = by_dtype.get(name, 0) + value.tensor.nbytes
    return Constants(_parameters(found), sum(by_dtype.values()), by_dtype)


def activations(graph: Graph) -> int | None:
    """Return the bytes of all computed values that depend on inputs; None if a shape is unknown."""
    total = 0
    live = {*graph.inputs, *graph.captures}
    for node in graph.nodes:
        if live.isdisjoint(node.distinct_reads):
            continue
        live.update(node.outputs)
        for value in node.outputs:
            if not isinstance(value.type, TensorType) or not value.type.is_static:
                return None
            total += value.type.nbytes
    return total
