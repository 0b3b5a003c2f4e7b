"""What a pass is, and how passes are run, counted and stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from ..base.guard import check_time
from ..ir.graph import Graph
from ..ir.op import Op
from ..ir.types import Array

#: Runs one operator on arrays (None: input left out) and returns its outputs; None where it
#: cannot, which leaves the node for the backends.
Evaluate = Callable[[Op, Sequence[Array | None], int], Sequence[Array] | None]


class PassOptions(Protocol):
    """Those of a user's choices (`runtime.options.Options`) that decide what passes do."""

    @property
    def precision(self) -> str: ...
    @property
    def keep_float32(self) -> tuple[str, ...]: ...
    @property
    def stop_at(self) -> int | None: ...
    @property
    def skip(self) -> tuple[str, ...]: ...
    @property
    def fold_bytes(self) -> int: ...
    @property
    def fold_total(self) -> int: ...
    @property
    def keep_quantized(self) -> bool: ...
    @property
    def finite(self) -> bool: ...
    @property
    def max_bytes(self) -> int | None: ...


@dataclass(slots=True)
class Context:
    """What a pass may need besides the graph.

    Attributes:
        options: the user's choices.
        evaluate: runs one operator on arrays.
        spent: bytes of constants that folding has made so far.
        refused: every rewrite that the pass now running could have made, and why it did not.
    """

    options: PassOptions
    evaluate: Evaluate
    spent: int = 0
    refused: list[Refusal] = field(default_factory=list["Refusal"])


@dataclass(frozen=True, slots=True)
class Pass:
    """One kind of rewrite.

    Attributes:
        name: a verb.
        run: makes one rewrite in place, then yields one sentence about it, repeatedly.
        reason: why it stands where it stands.
    """

    name: str
    run: Callable[[Graph, Context], Iterator[str]]
    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One change of a graph.

    Attributes:
        number: counted from 1 over all passes.
        name: the pass.
        text: what was done, with the names of the nodes.
    """

    number: int
    name: str
    text: str


class Reason(StrEnum):
    """Why nodes that a pattern fits stay as they are."""

    SHARED = "shared"  # somebody else reads what would go away
    RESULT = "result"  # a result of the model would go away
    SHAPE = "shape"  # sizes do not fit, or are not known
    TYPE = "type"  # the operator does not exist in this dtype
    NUMBERS = "numbers"  # constants would overflow, vanish or lose digits


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rewrite that was not made.

    Attributes:
        reason: its kind.
        nodes: names of the nodes that stay, in the graph's order.
        text: a sentence with these nodes and the reason.
    """

    reason: Reason
    nodes: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A rewrite that a pass did not make.

    Attributes:
        name: the pass.
        text: the nodes, and why they stay as they are.
        reason: its kind.
        nodes: names of the nodes.
    """

    name: str
    text: str
    reason: Reason = Reason.NUMBERS
    nodes: tuple[str, ...] = ()


@dataclass(slots=True)
class Rewrites:
    """Every rewrite of a graph in order, and those that were not made."""

    log: list[Rewrite] = field(default_factory=list[Rewrite])
    refused: list[Refused] = field(default_factory=list["Refused"])

    def __len__(self) -> int:
        return len(self.log)

    def __iter__(self) -> Iterator[Rewrite]:
        return iter(self.log)

    def copy(self) -> Rewrites:
        """Return a log that goes on from here by itself."""
        return Rewrites(list(self.log), list(self.refused))

    @property
    def counts(self) -> dict[str, int]:
        """Number of rewrites by pass."""
        return dict(Counter(rewrite.name for rewrite in self.log))


def run_passes(graph: Graph, passes: Sequence[Pass], context: Context, rewrites: Rewrites) -> None:
    """Run `passes` in order until `Options.stop_at` rewrites are made."""
    limit = context.options.stop_at
    for each in passes:
        if limit is not None and len(rewrites) >= limit:
            return
        if each.name in context.options.skip:
            continue
        check_time()
        for text in each.run(graph, context):
            check_time()
            rewrites.log.append(Rewrite(len(rewrites) + 1, each.name, text))
            if limit is not None and len(rewrites) >= limit:
                break
        known = set(rewrites.refused)
        found = (Refused(each.name, r.text, r.reason, r.nodes) for r in context.refused)
        rewrites.refused.extend(one for one in found if one not in known)
        context.refused.clear()
