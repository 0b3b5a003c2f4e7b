"""The placement report: what runs where, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..base.notebook import Shown
from ..base.record import record
from ..control.if_step import Branches
from ..control.loop_step import Repetition
from ..control.program import Program
from ..errors import NodeRefusal
from ..ir.graph import Node, Value
from ..ir.unknown import NOBODY, REASON, Opaque
from ..plan.backend import Detailed, Estimated
from ..plan.format import Format
from ..plan.partition import misfit, obstacle
from ..plan.plan import Plan
from ..plan.rows import Row, Slot
from ..plan.work import Work, macs_by_dtype, work_of
from ..text import printable

#: The note on control flow decided by the host.
LATER = "its bodies are planned when they first run"
#: In place of a backend, for nodes that are planned when they first run.
WHEN_RUN = "when run"


@record
class PlacedRow:
    """One row of a plan.

    Attributes:
        kind: ``step``, ``copy``, ``reformat``, ``view``, ``host`` for nodes outside plans, or
            ``later`` for nodes that are planned when they first run.
        nodes: names of the file's nodes that it implements.
        operators: their operators, joined by ``+``; empty for copies.
        backend: the backend; a device for copies and for control flow that it decides, ``plan`` for
            views, ``host`` for control flow decided by the host, `WHEN_RUN` for what is planned
            later; rows of bodies follow their owner.
        kernel: the kernel, or what is copied where.
        inputs: name and type; the format unless contiguous; the tensor it is a slice of.
        outputs: likewise.
        nbytes: bytes written.
        work: the arithmetic and traffic of one call.
        reason: why backends with higher priority declined; empty if the first took it.
        details: the parts of the step, one line each, if it can list them.
        estimate: seconds that the step was expected to take when it was chosen; None if there was
            nothing to choose from.
    """

    kind: str
    nodes: tuple[str, ...]
    operators: str
    backend: str
    kernel: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nbytes: int
    work: Work
    reason: str
    details: tuple[str, ...] = ()
    estimate: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Placement(Shown):
    """Every row of a plan in execution order.

    Attributes:
        rows: one for each step, copy and view.
        notes: notes that apply to all rows, such as bucketed sizes.
    """

    rows: tuple[PlacedRow, ...]
    notes: tuple[str, ...] = ()

    def _about(self) -> str:
        return f"{len(self.rows)} rows, {len(self.copies)} copies between devices"

    def __iter__(self) -> Iterator[PlacedRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, node: str) -> PlacedRow:
        """Return the row of the node with this name; raises KeyError if there is none."""
        for row in self.rows:
            if node in row.nodes:
                return row
        raise KeyError(node)

    @property
    def copies(self) -> tuple[PlacedRow, ...]:
        """The rows that move data between devices."""
        return tuple(row for row in self.rows if row.kind == "copy")

    def __str__(self) -> str:
        widths = [(len(row.backend), len(row.kernel)) for row in self.rows]
        left = max((w[0] for w in widths), default=0)
        middle = min(max((w[1] for w in widths), default=0), 40)
        lines = [printable(note) for note in self.notes]
        for row in self.rows:
            title = " + ".join(row.nodes) if row.operators else ", ".join(row.inputs)
            why = f"  ({row.reason})" if row.reason else ""
            line = f"{row.backend:<{left}}  {row.kernel:<{middle}}  {title}{why}"
            lines.append(printable(line))
        return "\n".join(lines)


def describe(rows: Iterable[Row], refusals: Iterable[NodeRefusal]) -> Iterator[PlacedRow]:
    """Describe the rows of a plan, with the reasons of other backends."""
    return _placed(rows, _reasons(refusals))


def _planned(plan: Plan) -> Iterator[PlacedRow]:
    return describe(plan.rows, plan.refusals)


def placement_of(
    program: Program, described: Callable[[Plan], Iterable[PlacedRow]] = _planned
) -> Placement:
    """Describe a program, including those of its bodies and tail that have run.

    Args:
        program: the program.
        described: describes the rows of one of its plans.
    """
    return Placement(tuple(_rows_of(program, described)), program.notes)


def _rows_of(
    program: Program, described: Callable[[Plan], Iterable[PlacedRow]]
) -> Iterator[PlacedRow]:
    for stage in program.stages:
        if stage.plan is not None:
            yield from described(stage.plan)
        for node in stage.nodes:
            plan = program.plan_of(node)
            if plan is not None:
                yield from described(plan)
                continue
            yield _alone(node, program.why_on_host(node))
            for body in program.bodies_of(node):
                yield from _rows_of(body, described)
    if program.tail is not None:
        tails = [*program.tail]
        for tail in tails:
            yield from _rows_of(tail, described)
        if not tails:
            yield from map(_awaited, program.tail.graph.nodes)


def _placed(rows: Iterable[Row], reasons: dict[str, str]) -> Iterator[PlacedRow]:
    """Describe rows, with those of bodies after their owner."""
    for row in rows:
        yield _describe(row, reasons)
        for body in row.step.bodies if isinstance(row.step, Branches | Repetition) else ():
            yield from _placed(body.rows, {})


def _alone(node: Node, why: str) -> PlacedRow:
    """Describe a node outside plans; `why` is the reason why its device does not run it."""
    decides, unknown = bool(node.op.graphs()), isinstance(node.op, Opaque)
    return PlacedRow(
        kind="host",
        nodes=node.origin,
        operators=node.kind,
        backend=NOBODY if unknown else "host" if decides else "numpy",
        kernel=node.kind,
        inputs=_signatures(node.distinct_reads),
        outputs=_signatures(node.outputs),
        nbytes=0,
        work=Work(macs_by_dtype((node,)), 0, 0),
        reason=REASON
        if unknown
        else "; ".join(filter(None, (why, LATER)))
        if decides
        else obstacle(node),
    )


def _awaited(node: Node) -> PlacedRow:
    """Describe a node behind data-dependent shapes, which no run has given sizes yet."""
    what = misfit(node) or "it reads what depends on the data"
    return PlacedRow(
        kind="later",
        nodes=node.origin,
        operators=node.kind,
        backend=WHEN_RUN,
        kernel="",
        inputs=_signatures(node.distinct_reads),
        outputs=_signatures(node.outputs),
        nbytes=0,
        work=Work(macs_by_dtype((node,)), 0, 0),
        reason=f"planned when it first runs: {what}",
    )


def _signatures(values: Iterable[Value]) -> tuple[str, ...]:
    return tuple(f"{v.name}: {v.type or '?'}" for v in values)


def _reasons(refusals: Iterable[NodeRefusal]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for refusal in refusals:
        found.setdefault(refusal.node, []).append(f"{refusal.backend}: {refusal.reason}")
    return {node: "; ".join(texts) for node, texts in found.items()}


def _describe(row: Row, reasons: dict[str, str]) -> PlacedRow:
    texts = dict.fromkeys(reasons[n.name] for n in row.nodes if n.name in reasons)
    return PlacedRow(
        kind=row.kind,
        nodes=tuple(name for node in row.nodes for name in node.origin),
        operators=" + ".join(node.kind for node in row.nodes),
        backend=row.backend,
        kernel=_kernel(row),
        inputs=_texts(row.inputs),
        outputs=_texts(row.outputs),
        nbytes=0 if row.kind == "view" else sum(slot.nbytes for slot in row.outputs),
        work=work_of(row),
        reason="; ".join(texts),
        details=row.step.details if isinstance(row.step, Detailed) else (),
        estimate=row.step.estimate if isinstance(row.step, Estimated) else None,
    )


def _kernel(row: Row) -> str:
    """Return the kernel of a row, or, for a view of slices, the tensor that contains them."""
    roots = {s.root for s in (*row.inputs, *row.outputs) if s.nbytes != s.root.nbytes}
    if row.kind != "view" or not roots:
        return row.kernel
    return f"slices of {', '.join(repr(root.value.name) for root in roots)}"


def _texts(slots: Sequence[Slot]) -> tuple[str, ...]:
    def text(slot: Slot) -> str:
        order = "" if slot.format is Format.CONTIGUOUS else f" {slot.format.value}"
        root, place = slot.root, ""
        if slot.nbytes != root.nbytes:
            place = f" in '{root.value.name}' from byte {slot.offset_in_root}"
        return f"{slot.value.name}: {slot.type}{order}{place}"

    return tuple(text(slot) for slot in slots)
