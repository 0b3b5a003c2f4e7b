"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.cuts import reduced_axes
from ...ops.reduce import Reduce
from ...ops.shape import Squeeze, Unsqueeze
from ...ops.shapes import normalize_axes
from ..driver import Context
from ..editing import rank_of

#: Elements compared before constants are read in full.
SAMPLE = 16


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Merge nodes with equal operator, attributes and inputs; constants are compared by content.

    Reductions, Squeeze and Unsqueeze may count an axis from the front or from the end, as PyTorch's
    mean and var do.
    """
    seen: dict[Hashable, Node] = {}
    for node in list(graph.nodes):
        if not node.op.deterministic or node.op.graphs():
            continue
        key = (node.op, len(node.outputs), _read(node))
        first = seen.setdefault(key, node)
        if first is node:
            continue
        graph.replace(node, first.outputs)
        yield f"{node.kind} '{node.name}' is the same as '{first.name}'"


def _read(node: Node) -> Hashable:
    """Return what a node reads, and along which axes if it has some."""
    inputs = tuple(None if v is None else _identity(v) for v in node.inputs)
    if not isinstance(node.op, Reduce | Squeeze | Unsqueeze) or len(inputs) != 2:
        return inputs
    data, axes = node.inputs
    rank = rank_of(node.output if isinstance(node.op, Unsqueeze) else data)
    if rank is None or axes is None or axes.data is None:
        return inputs
    if isinstance(node.op, Reduce):
        return inputs[0], reduced_axes(node)
    return inputs[0], frozenset(normalize_axes(axes.data.reshape(-1).tolist(), rank))


def _identity(value: Value) -> Hashable:
    return value if value.data is None else _Content(value.data)


@dataclass(frozen=True, slots=True, eq=False)
class _Content:
    """A constant, compared by dtype, shape and bytes."""

    data: Array

    def __hash__(self) -> int:
        sample = self.data.flat[:SAMPLE]
        content = tuple(sample) if sample.dtype == object else sample.tobytes()
        return hash((self.data.dtype.str, self.data.shape, content))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Content):
            return False
        a, b = self.data, other.data
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        if a is b or not a.size:
            return True
        if a.dtype == object:
            return bool((a == b).all())
        if not any((*a.strides, *b.strides)):
            a, b = a.flat[:1], b.flat[:1]
        return a.tobytes() == b.tobytes()
