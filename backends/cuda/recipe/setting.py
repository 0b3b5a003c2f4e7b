"""What a recipe may depend on besides its operands, and how its result is stored."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import field, replace
from typing import Any

from ....runtime.base.record import record
from ....runtime.ir.graph import Node, Value
from ....runtime.options import Options
from ....runtime.plan.format import Format
from .targets import Target

#: Why a recipe that estimates choose is not taken where `Setting.is_decided`.
DECIDED = "an algorithm that was asked for, or is measured"


@record
class TunedChoice:
    """The algorithm of a selector with which a network was measured to be fastest.

    Attributes:
        algorithm: its name.
        variant: its variant, such as a tile size; empty for its own choice.
    """

    algorithm: str
    variant: str = ""


@record
class Setting:
    """What a recipe may depend on besides its operands.

    Attributes:
        target: the GPU it is tuned for.
        options: the user's options.
        asked: algorithms requested for this node, in order of preference.
        algorithm: the algorithm that the recipe must use, once chosen; empty for any.
        form: its variant, such as a tile size; empty for the best estimate.
        choices: measured choices by `selection.key_of` a task; empty without tuning.
        cut: values that kernels can store in halves, and the format; see `cutting`.
        branches: how many others of their kind run beside nodes; see `conv.branches`.
        others: how many run beside this one.
        picks: previous choices of selectors, so that nothing is compared twice.
        tiles: previous choices of tiles by what they depend on, likewise.
    """

    target: Target
    options: Options
    asked: tuple[str, ...] = ()
    algorithm: str = ""
    form: str = ""
    choices: Mapping[str, TunedChoice] = field(default_factory=dict[str, TunedChoice], hash=False)
    cut: Mapping[Value, Format] = field(default_factory=dict[Value, Format], hash=False)
    branches: Mapping[Node, int] = field(default_factory=dict[Node, int], hash=False, repr=False)
    others: int = 0
    picks: dict[tuple[str, ...], tuple[str, str, str]] = field(
        default_factory=dict[tuple[str, ...], tuple[str, str, str]], compare=False, repr=False
    )
    tiles: dict[Hashable, Any] = field(
        default_factory=dict[Hashable, Any], compare=False, repr=False
    )

    @property
    def is_decided(self) -> bool:
        """Whether an algorithm was asked for, or measurements choose it: estimates may not."""
        return bool(self.asked or self.choices)

    @property
    def concurrent(self) -> bool:
        """Whether others of its kind run beside this node."""
        return self.others > 0

    def takes(self, algorithm: str) -> bool:
        """Whether a recipe may use this algorithm."""
        return self.algorithm in ("", algorithm)

    def cuts(self, rows: Value) -> bool:
        """Whether a kernel can store the rows of a product in halves."""
        while rows.producer is not None and rows.producer.op.view:
            rows = rows.producer.operands[0]
        return self.cut.get(rows) is Format.HALVES

    def for_node(self, node: Node) -> Setting:
        """Return the setting for one node, with the algorithms requested for it."""
        others = self.branches.get(node, 0)
        names = self.options.algorithms_for(node.kind, (node.name, *node.origin))
        asked = tuple(name for name in names if name != "cuda")
        if (asked, others) == (self.asked, self.others):
            return self
        return replace(self, asked=asked, others=others)


@record
class Stored:
    """How a result is stored.

    Attributes:
        halves: whether in halves.
        plain: whether as it is.
    """

    halves: bool = False
    plain: bool = True


PLAIN, IN_HALVES = Stored(), Stored(halves=True, plain=False)
