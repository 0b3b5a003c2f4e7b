"""Patterns: several nodes that a dedicated kernel computes together.

A module of a pattern has its class and the function that finds it, and is imported when a graph has
an operator at which that function is asked; its kernels come with the first pattern found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from enum import Enum, auto
from typing import Protocol

from ....runtime.base.record import record
from ....runtime.ir.graph import Node, Value
from ....runtime.plan.format import Format
from .launch import Recipe
from .operands import Tensor
from .setting import Setting, Stored

#: Returns the operand that a value is.
OperandOf = Callable[[Value], Tensor]


class Grouping(Enum):
    """How nodes are grouped where a pattern has no recipe."""

    PLAIN = auto()  # anchors with epilogues, and chains
    MOVED = auto()  # so, and nodes that move elements
    LAST = auto()  # so, after patterns of what no other group contains
    ALONE = auto()  # each node that is no view for itself


class Pattern(Protocol):
    """Nodes that a dedicated kernel computes together.

    No pattern has to say what it stores, or to look for readers that its last node waits for: all
    that others read has to be stored by its recipe, and groups that wait for themselves are not
    formed (`codegen.readers.Formed`).
    """

    @property
    def nodes(self) -> Collection[Node]:
        """All its nodes."""
        ...

    @property
    def reads_rows(self) -> bool:
        """Whether its kernel takes parts of rows of any tensor where it takes slices."""
        ...

    @property
    def follows(self) -> bool:
        """Whether it accepts any format, the same for all its tensors."""
        ...

    @property
    def in_place(self) -> tuple[tuple[Value, Value], ...]:
        """The results that may be stored in the memory of an input, each with that input."""
        ...

    @property
    def in_halves(self) -> tuple[Node, ...]:
        """The products whose rows may arrive in halves; the last one's results may leave so."""
        ...

    @property
    def regrouped(self) -> Grouping:
        """How its nodes are grouped where it has no recipe."""
        ...

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats that it requests, unless contiguous."""
        ...

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Recipe | str:
        """Return its recipe, or why there is none.

        Args:
            y: the result of its last node.
            operand: returns its other operands.
            setting: the GPU and the user's options.
            stored: how the result is stored.
        """
        ...

    def instead(self) -> tuple[Pattern | Rest, ...]:
        """Return what is tried instead if there is no recipe, in order."""
        ...


@record
class Rest:
    """Nodes to group anew.

    Attributes:
        nodes: the nodes.
        grouping: how.
    """

    nodes: Set[Node]
    grouping: Grouping = Grouping.PLAIN


class Whole:
    """What most patterns have in common: they request nothing, and are grouped anew."""

    __slots__ = ()
    reads_rows = False
    regrouped = Grouping.MOVED

    @property
    def follows(self) -> bool:
        """See `Pattern`."""
        return False

    @property
    def in_place(self) -> tuple[tuple[Value, Value], ...]:
        """See `Pattern`."""
        return ()

    @property
    def in_halves(self) -> tuple[Node, ...]:
        """See `Pattern`."""
        return ()

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats that it requests; see `Pattern`."""
        return {}

    def instead(self: Pattern) -> tuple[Pattern | Rest, ...]:
        """Return its nodes, to be grouped anew; see `Pattern`."""
        return (Rest(frozenset(self.nodes), self.regrouped),)
