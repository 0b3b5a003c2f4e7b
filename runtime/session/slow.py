"""Avoidable slow paths: one warning each per model, with a remedy.

They are detected when a program is made, never during runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock

from ..base.warned import warn
from ..control.program import Program
from ..errors import PerformanceWarning
from ..ir.graph import Graph, Node
from ..ir.types import TensorType
from ..options import Options
from ..plan.backend import Device
from ..plan.rows import Row
from ..text import message

#: Minimum size in bytes of weights recomputed in every run that is worth a warning.
LARGE = 1 << 20
#: Number of evicted programs that is worth a warning.
MANY_DROPPED = 8


@dataclass(slots=True)
class SlowPaths:
    """Warns of avoidable work.

    Attributes:
        options: the model's.
        file: its path, or None.
    """

    options: Options
    file: str | None = None
    _told: set[str] = field(default_factory=set[str])
    _dropped: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def look(self, program: Program) -> None:
        """Warn of avoidable work in every run of a new program."""
        rows = program.rows
        remade = [row for row in _remade(program) if row_bytes(row) >= LARGE]
        if remade and self.options.stop_at is None and "fold_constants" not in self.options.skip:
            total = sum(map(row_bytes, remade))
            largest = max(map(row_bytes, remade))
            self._tell(
                "fold",
                f"every run computes {total >> 20} MiB of weights again in "
                f"{_counted(len(remade), 'step')}, such as {remade[0].title}, because the result "
                f"exceeds the limits of constant folding; load with fold_bytes={largest}, "
                f"fold_total={total} or more to keep it in memory",
            )
        moved = list(_between_steps(rows))
        if moved:
            between = " and ".join(sorted({d.name for row in moved for d in _devices(row)}))
            self._tell(
                "copies",
                f"every run copies {_counted(len(moved), 'tensor')} between {between}, because a "
                "fallback runs some of the nodes; model.placement() names them with the reason",
            )

    def dropped(self, maximum: int) -> None:
        """Record that a program was evicted because there were more than `maximum`."""
        self._dropped += 1
        if self._dropped == MANY_DROPPED:
            self._tell(
                "plans",
                f"more than {self._dropped + maximum} plans were made, one for each set of "
                f"input shapes, of which {maximum} are kept: planning takes longer than a run. "
                "Pad inputs to a few shapes, or load with a larger max_plans",
            )

    def _tell(self, kind: str, text: str) -> None:
        with self._lock:
            if kind in self._told:
                return
            self._told.add(kind)
        model = f"{self.file}: " if self.file else ""
        warn(message(f"{model}{text}"), PerformanceWarning)


def row_bytes(row: Row) -> int:
    """Return the bytes that a row writes, as far as known."""
    types = [slot.value.type for slot in row.outputs]
    return sum(t.nbytes for t in types if isinstance(t, TensorType) and t.is_static)


def _remade(program: Program) -> Iterator[Row]:
    """Yield the steps that depend only on constants."""
    for plan in program.plans:
        fixed = made_of_constants(plan.graph)
        yield from (
            row
            for row in plan.rows
            if row.kind == "step" and row.nodes and fixed.issuperset(row.nodes)
        )


def made_of_constants(graph: Graph) -> set[Node]:
    """Return the nodes that compute the same in every run."""
    found: set[Node] = set()
    for node in graph.nodes:
        reads = list(node.distinct_reads)
        known = all(value.is_constant or value.producer in found for value in reads)
        if reads and known and node.op.deterministic and not node.op.graphs():
            found.add(node)
    return found


def _between_steps(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the copies of what a step wrote to where a step of another device reads it.

    All others are of inputs, results and views of these.
    """
    steps = [row for row in rows if row.kind == "step"]
    written = {id(slot.root) for row in steps for slot in row.outputs}
    read = {id(slot.root) for row in steps for slot in row.inputs}
    for row in rows:
        if row.kind == "copy":
            (source,), (target,) = row.inputs, row.outputs
            if id(source.root) in written and id(target.root) in read:
                yield row


def _devices(row: Row) -> Iterator[Device]:
    for slot in (*row.inputs, *row.outputs):
        yield slot.device


def _counted(count: int, noun: str) -> str:
    """Return how many, such as ``1 step`` or ``2 steps``."""
    return f"{count} {noun}{'s' * (count != 1)}"
