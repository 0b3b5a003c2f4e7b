"""Which results are stored in halves: those of which products want halves.

A kernel that can, stores its results in `Format.HALVES` where all their readers want them so, and
in both formats where others read them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ...runtime.ir.dtypes import float32
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ops.attention import Attention
from ...runtime.ops.matmul import Gemm, MatMul
from ...runtime.ops.norm import LayerNormalization, RMSNormalization
from ...runtime.plan.backend import Format
from .algorithms.registry import PLAIN, Stored
from .fusion import FusionGroup

#: Operators whose kernels can store halves, with their epilogues.
ABLE = LayerNormalization | RMSNormalization | MatMul | Gemm | Attention
#: Terms that have one scale.
BLOCK = 64


@dataclass(frozen=True)
class Cutting:
    """The products of a graph, and what they want.

    Attributes:
        graph: the graph.
        groups: its groups.
        formats: returns the formats that a group requests.
        stores: returns whether there is a recipe that stores the result in halves.
    """

    graph: Graph
    groups: tuple[FusionGroup, ...]
    formats: Callable[[FusionGroup], Mapping[Value, Format]]
    stores: Callable[[FusionGroup], bool]
    _wanted: dict[Node, Mapping[Value, Format]] = field(
        default_factory=dict[Node, Mapping[Value, Format]], init=False
    )

    @cached_property
    def heads(self) -> Mapping[Node, FusionGroup]:
        """The groups by their heads."""
        return {group.head: group for group in self.groups if group.head is not None}

    def find(self, cut: set[Value]) -> None:
        """Add the values that kernels can store in halves.

        Products among these read halves themselves, so nodes come in order.
        """
        for node in self.graph.nodes:
            group = self.heads.get(node)
            if group is not None and self._is_able(node, group):
                cut.add(group.nodes[-1].output)

    def _is_able(self, head: Node, group: FusionGroup) -> bool:
        y = group.nodes[-1].output.tensor
        if group.pool is not None or not isinstance(head.op, ABLE):
            return False
        if y.dtype != float32 or len(y.dims) < 2 or y.dims[-1] % BLOCK:
            return False
        if isinstance(head.op, MatMul | Gemm):
            return self._wants(head, head.operands[0])
        return self.stores(group)

    def stored(self, value: Value) -> Stored:
        """Return how a value that can be cut is stored best."""
        wanted = [self._wants(node, read) for node, read in self._readers(value)]
        if not any(wanted):
            return PLAIN
        return Stored(True, not all(wanted) or self.graph.is_output(value))

    def _readers(self, value: Value) -> Iterator[tuple[Node, Value]]:
        """Yield what reads a value, views of whole rows aside, with the name that it reads."""
        for node in value.consumers:
            if node.op.view and node.output.tensor.dims[-1:] == value.tensor.dims[-1:]:
                yield from self._readers(node.output)
                if self.graph.is_output(node.output):
                    yield node, value
            else:
                yield node, value

    def _wants(self, node: Node, value: Value) -> bool:
        group = self.heads.get(node)
        if group is None or not isinstance(node.op, MatMul | Gemm):
            return False
        if node not in self._wanted:
            self._wanted[node] = self.formats(group)
        return self._wanted[node].get(value) is Format.HALVES
