"""Scans (cumulative sums and products) with the elementwise operators around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.reduce import Cumulative
from ....runtime.ops.shapes import normalize_axis
from ....runtime.plan.format import Format
from ....runtime.plan.partition import results_of
from ..recipe.launch import Recipe
from ..recipe.operands import Tensor
from ..recipe.pattern import OperandOf
from ..recipe.setting import Setting, Stored
from .elementwise import in_chains
from .moves import Movement
from .readers import readers_outside
from .stages import MovedChain

#: Maximum number of scans of a kernel, each of which waits for the one before.
MAX_SCANS = 4
#: Maximum numbers of nodes, and of tensors that they read.
MAX_NODES, MAX_OPERANDS = 24, 8


@record
class ScanChain(MovedChain):
    """Scans along one axis, and elementwise nodes of as many elements before, between and behind.

    Attributes:
        chain: these, in topological order; the last one's result is read elsewhere.
        moves: the movements through which they read.
    """

    chain: tuple[Node, ...]
    moves: tuple[Movement, ...] = ()

    @property
    def scans(self) -> tuple[Node, ...]:
        """The scans among the nodes."""
        return tuple(node for node in self.chain if isinstance(node.op, Cumulative))

    @property
    def axis(self) -> int:
        """The axis along which they run."""
        axis = scanned_axis(self.scans[0])
        assert axis is not None
        return axis

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats that it requests; see `Pattern`."""
        return {each.x: each.format for each in self.moves}

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        from .scan_kernel import scan_chain

        return scan_chain(self, y, operand)


def scanned_axis(node: Node) -> int | None:
    """Return the axis of a scan; None for another node, and unless the axis is known."""
    if not isinstance(node.op, Cumulative):
        return None
    x, axis = node.operands
    if axis.known is None:
        return None
    return normalize_axis(int(axis.known.reshape(-1)[0]), len(x.tensor.dims))


def scan_chain_at(
    graph: Graph, scan: Node, free: Set[Node], moved: Sequence[Movement]
) -> ScanChain | None:
    """Return a scan with what is around it, if there is anything.

    Args:
        graph: the graph.
        scan: the scan.
        free: nodes that may be taken.
        moved: movements that may be taken.
    """
    if scanned_axis(scan) is None:
        return None
    nodes = _before(graph, _behind(graph, scan, free), free)
    reads = _operands(nodes)
    joined = tuple(
        each
        for each in moved
        if each.y in reads and graph.sole_consumer(each.y) in nodes and _fits(each, scan)
    )
    if len(nodes) == 1 and not joined:
        return None
    return ScanChain(graph.in_order(nodes), joined)


def _behind(graph: Graph, scan: Node, free: Set[Node]) -> list[Node]:
    """Return a scan and nodes behind it, of which only the last one's result is read elsewhere."""
    found, fitting = [scan], 1
    while len(found) < MAX_NODES:
        node = next(iter(readers_outside(graph, (each.output for each in found), found)), None)
        if node is None or node not in free or not _joins(node, scan):
            break
        found.append(node)
        if not _is_small(found):
            break
        if results_of(graph, found) == node.outputs:
            fitting = len(found)
    return found[:fitting]


def _before(graph: Graph, nodes: Sequence[Node], free: Set[Node]) -> list[Node]:
    """Return nodes with those before them that nothing else reads."""
    found = list(nodes)
    while True:
        made = {node.output for node in found}
        sources = {value.producer for value in _operands(found)}
        for source in graph.in_order(node for node in sources if node is not None):
            fits = source in free and source.output not in made and _joins(source, nodes[0])
            fits = fits and not graph.is_read_outside(source.output, found)
            if fits and _is_small([*found, source]):
                found.append(source)
                break
        else:
            return found


def _joins(node: Node, scan: Node) -> bool:
    """Whether a node computes as many elements as a scan, one by one or along the same axis."""
    if node.output.tensor.dims != scan.output.tensor.dims:
        return False
    if isinstance(node.op, Cumulative) and isinstance(scan.op, Cumulative):
        return scanned_axis(node) == scanned_axis(scan) and node.op.reverse == scan.op.reverse
    return in_chains(node)


def _is_small(nodes: Sequence[Node]) -> bool:
    """Whether one kernel can have these nodes."""
    scans = sum(isinstance(node.op, Cumulative) for node in nodes)
    within = len(nodes) <= MAX_NODES and scans <= MAX_SCANS
    return within and len(_operands(nodes)) <= MAX_OPERANDS


def _operands(nodes: Sequence[Node]) -> list[Value]:
    """Return what nodes read; numbers and the axes of scans are part of the code."""
    made = {node.output for node in nodes}
    reads = dict.fromkeys(
        value
        for node in nodes
        for value in (node.operands[:1] if isinstance(node.op, Cumulative) else node.distinct_reads)
    )
    return [v for v in reads if v not in made and (v.data is None or v.data.size > 1)]


def _fits(movement: Movement, scan: Node) -> bool:
    """Whether a scan may read through nodes that move elements.

    Adjacent elements stay adjacent, and those of a line have one distance from each other.
    """
    walk = movement.walk(Tensor(movement.x))
    along = movement.factors[scanned_axis(scan) or 0]
    one_distance = sum(size > 1 for size in along) < 2
    same = movement.y.tensor.dims == scan.output.tensor.dims
    return walk.table is None and one_distance and same and movement.is_adjacent(movement.format)
