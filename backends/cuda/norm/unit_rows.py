"""Rows normalized to length 1, ``x / max(|x|, floor)``, as one kernel: `normalize_rows.cu`.

Exporters write it as three nodes, between two Casts if the rest is in half precision. The floor is
a number such as 1e-12, which float16 cannot represent; the kernel computes in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from ....runtime.ir.dtypes import bfloat16, float16, float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.elementwise import Cast, Clip, Max
from ....runtime.ops.reduce import ReduceL2
from ..algorithms.registry import Answer
from ..codegen.epilogue import Tail, epilogue_of
from ..recipe.operands import Tensor
from .norm_rows import normalize_rows


@dataclass(frozen=True, slots=True)
class UnitRows:
    """Nodes that divide rows by their length.

    Attributes:
        before: the nodes up to the quotient, which is the last one.
        epilogue: the elementwise nodes after it.
        x: the rows.
        floor: minimum of the length.
    """

    before: tuple[Node, ...]
    epilogue: tuple[Node, ...]
    x: Value
    floor: float

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset({*self.before, *self.epilogue})


def unit_rows_at(
    graph: Graph,
    quotient: Node,
    free: Set[Node],
    tail: Tail,
) -> UnitRows | None:
    """Return the length normalization that ends with this quotient, if there is one.

    Args:
        graph: the graph.
        quotient: the node.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
    """
    x, divisor = quotient.inputs
    limit = None if divisor is None else divisor.producer
    floor = None if limit is None else _floor(limit)
    length = None if limit is None or limit.inputs[0] is None else limit.inputs[0].producer
    if x is None or floor is None or limit is None or length is None or not _is_length(length, x):
        return None
    before = (length, limit, quotient)
    if x.producer is not None and _widens(x.producer) and x.consumers.keys() == {length, quotient}:
        before, x = (x.producer, *before), x.producer.distinct_reads[0]
    inner = [node.output for node in before[:-1]]
    if any(graph.is_output(v) or not v.consumers.keys() <= set(before) for v in inner):
        return None
    if not all(node in free for node in before):
        return None
    return UnitRows(before, tail(graph, quotient, free), x, floor)


def _floor(node: Node) -> float | None:
    """Return the positive lower bound that a node applies, if it does nothing else."""
    if not isinstance(node.op, Clip | Max):
        return None
    _, low, *high = (*node.inputs, None)
    if any(high) or low is None or low.data is None or low.data.size != 1:
        return None
    if low.tensor.dtype != float32:
        return None
    return floor if (floor := float(low.data.reshape(()))) > 0 else None


def _is_length(node: Node, x: Value) -> bool:
    """Whether a node computes the lengths of the rows of a value."""
    rank = x.tensor.rank or 0
    row_dims = (*x.tensor.dims[:-1], 1)
    sums = isinstance(node.op, ReduceL2) and node.inputs[0] is x and x.tensor.dtype == float32
    return sums and rank > 1 and node.output.tensor.dims == row_dims != x.tensor.dims


def _widens(node: Node) -> bool:
    return isinstance(node.op, Cast) and node.distinct_reads[0].tensor.dtype in (float16, bfloat16)


def unit_rows(found: UnitRows, y: Tensor, operand: Callable[[Value], Tensor]) -> Answer:
    """Return the launch, or why there is none."""
    quotient = found.before[-1].output
    epilogue = epilogue_of(found.epilogue, y, quotient)
    if isinstance(epilogue, str):
        return epilogue
    if len(epilogue.along) < len(epilogue.operands):
        return "constants per channel in its epilogue"
    axis, x = y.rank - 1, operand(found.x)
    launch = normalize_rows(y, x, None, None, axis, found.floor, epilogue, centred=False)
    return launch or "rows that do not fit into registers, or are not contiguous"
