"""Which results are stored in halves: those of which products want halves.

A kernel that can, stores its results in halves where all their readers want them so, and in both
formats where others read them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ...runtime.ir.dtypes import float32
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ops.attention import Attention
from ...runtime.ops.conv import Conv
from ...runtime.ops.matmul import Gemm, MatMul
from ...runtime.ops.norm import LayerNormalization, RMSNormalization
from ...runtime.plan.format import HALVES_BLOCK, Format
from .fusion import FusionGroup
from .recipe.setting import IN_HALVES, PLAIN, Stored

#: Operators whose kernels can store halves, with their epilogues.
ABLE = LayerNormalization | RMSNormalization | MatMul | Gemm | Attention | Conv


@dataclass(frozen=True)
class Cutting:
    """The products of a graph, and what they want.

    Attributes:
        graph: the graph.
        groups: its groups.
        cut: the values that kernels can store in halves, and the format; `find` adds them.
        formats: returns the formats that a group requests.
        is_made: returns whether there is a recipe of a group for formats of its tensors that
            stores its result in this way.
        gain: returns the microseconds that a convolution takes less with its image in halves.
        cost: returns those that it takes to store this many numbers in halves, and whether as they
            are as well.
        smaller: returns the groups to try instead of one.
    """

    graph: Graph
    groups: tuple[FusionGroup, ...]
    cut: dict[Value, Format]
    formats: Callable[[FusionGroup], Mapping[Value, Format]]
    is_made: Callable[[FusionGroup, Mapping[Value, Format], Stored], bool]
    gain: Callable[[FusionGroup], float]
    cost: Callable[[int, bool], float]
    smaller: Callable[[FusionGroup], tuple[FusionGroup, ...]]
    _wanted: dict[Node, Mapping[Value, Format]] = field(
        default_factory=dict[Node, Mapping[Value, Format]], init=False
    )
    _stored: dict[Value, Stored] = field(default_factory=dict[Value, Stored], init=False)
    _instead: dict[Node, tuple[FusionGroup, ...]] = field(
        default_factory=dict[Node, tuple[FusionGroup, ...]], init=False
    )

    @cached_property
    def heads(self) -> dict[Node, FusionGroup]:
        """The groups by their heads; patterns by what reads and stores halves in them."""
        return {head: group for group in self.groups for head in _heads_of(group)}

    @cached_property
    def _alone(self) -> frozenset[Node]:
        """The nodes that are groups of one."""
        return frozenset(group.nodes[0] for group in self.groups if len(group.nodes) == 1)

    @cached_property
    def _makers(self) -> dict[Value, FusionGroup]:
        """The groups with a head by their results."""
        return {group.result: group for group in self.heads.values()}

    def find(self) -> tuple[FusionGroup, ...]:
        """Find the values that kernels can store in halves, and return the groups.

        Products among these read halves themselves, or attention reads theirs, so nodes come in
        order. Attention that reads halves is one group with the Splits in front.
        """
        joined = list[FusionGroup]()
        for group in self.groups:
            parts = self._divided(group)
            if parts != (group,):
                self._replace(group, parts)
        for node in self.graph.nodes:
            attention = self._attention_of_halves(node)
            if attention is not None:
                joined.append(attention)
                self.heads.update(dict.fromkeys(attention.nodes, attention))
            group = self.heads.get(node)
            if group is not None and group.whole is not None and attention is None:
                group = self._made(group, node)
            if group is not None and self._is_able(node, group):
                is_image = isinstance(node.op, Conv)
                format = Format.PIXEL_HALVES if is_image else Format.HALVES
                self.cut[group.result] = format
        inside = {node for group in joined for node in group.nodes}
        found = (self._instead.get(group.nodes[0], (group,)) for group in self.groups)
        others = (g for groups in found for g in groups if inside.isdisjoint(g.nodes))
        return *others, *joined

    def _made(self, group: FusionGroup, node: Node) -> FusionGroup | None:
        """Return the group of the first node of a pattern in halves: another one without a recipe.

        That depends on whether its rows are cut, and what reads its results on that.
        """
        heads = _heads_of(group)
        if not heads or node is not heads[0] or self.is_made(group, self.formats(group), PLAIN):
            return group
        parts = self.smaller(group)
        for head in heads:
            del self.heads[head]
        self._replace(group, parts)
        return self.heads.get(node)

    def _divided(self, group: FusionGroup) -> tuple[FusionGroup, ...]:
        """Return a group; of a pattern with depthwise convolutions and no recipe, its parts."""
        depthwise = any(isinstance(n.op, Conv) and n.op.group > 1 for n in group.nodes)
        narrow = group.result.tensor.dtype != float32
        if group.whole is None or not depthwise or narrow or _heads_of(group):
            return (group,)
        if self.is_made(group, self.formats(group), PLAIN):
            return (group,)
        return tuple(each for part in self.smaller(group) for each in self._divided(part))

    def _replace(self, group: FusionGroup, parts: tuple[FusionGroup, ...]) -> None:
        """Have other groups take the place of one."""
        self._instead[group.nodes[0]] = parts
        self.heads.update((head, part) for part in parts for head in _heads_of(part))
        self._makers.update((part.result, part) for part in parts if _heads_of(part))

    def _attention_of_halves(self, node: Node) -> FusionGroup | None:
        """Return the attention that a node is, if its operands are products stored in halves."""
        if node not in self._alone or not isinstance(node.op, Attention):
            return None
        from .attention.cut_heads import cut_attention_at

        whole = cut_attention_at(self.graph, node)
        if whole is None or not self._alone.issuperset(whole.splits):
            return None
        joined = FusionGroup(self.graph.in_order(whole.nodes), None, whole=whole)
        if not self.is_made(joined, whole.formats, PLAIN):
            return None
        makers = [self._makers.get(value) for value in whole.rows]
        for maker in makers:
            if maker is None or not isinstance(_heads_of(maker)[-1].op, MatMul | Gemm):
                return None
            if not self.is_made(maker, self.formats(maker), IN_HALVES):
                return None
        self.cut.update(whole.formats)
        return joined

    def _is_able(self, head: Node, group: FusionGroup) -> bool:
        y, heads = group.result.tensor, _heads_of(group)
        if not isinstance(head.op, ABLE) or (heads and head is not heads[-1]):
            return False
        axis = 1 if isinstance(head.op, Conv) else -1
        if y.dtype != float32 or len(y.dims) < 2 or y.dims[axis] % HALVES_BLOCK:
            return False
        if isinstance(head.op, MatMul | Gemm) and group.whole is None:
            return self._wants(head, head.operands[0])
        if isinstance(head.op, Conv) and not self._pays(group.result):
            return False
        return self.is_made(group, self.formats(group), IN_HALVES)

    def _pays(self, value: Value) -> bool:
        """Whether convolutions gain more by an image in halves than it takes to store it so."""
        readers = [(node, self.heads.get(node)) for node in value.consumers]
        gains = {node: self.gain(group) for node, group in readers if group is not None}
        alike = all(gains.get(node, 0.0) > 0 for node in value.consumers)
        both = not alike or self.graph.is_output(value)
        gained = sum(max(gain, 0.0) for gain in gains.values())
        return gained > self.cost(value.tensor.size, both)

    def stored(self, value: Value) -> Stored:
        """Return how a value is stored best."""
        if value not in self.cut:
            return PLAIN
        if value not in self._stored:
            self._stored[value] = self._best(value)
        return self._stored[value]

    def _best(self, value: Value) -> Stored:
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
        if group is None or not (group.whole or isinstance(node.op, MatMul | Gemm | Conv)):
            return False
        if node not in self._wanted:
            self._wanted[node] = self.formats(group)
        found = self._wanted[node].get(value)
        return found is not None and found.in_halves


def _heads_of(group: FusionGroup) -> tuple[Node, ...]:
    """Return what reads and stores halves in a group: its head, or products of a pattern."""
    if group.whole is not None:
        return group.whole.in_halves
    return () if group.head is None else (group.head,)
