"""The rows of a plan and their tensors, before addresses are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from ..ir.graph import Graph, Node, Value
from ..ir.types import TensorType
from .alias_transposes import has_same_rows, renamed, reshaped
from .arena import Allocation
from .backend import BuildContext, Claim, Decline, Device, Step, Stream, extent
from .contract import step_of
from .exchange import HOST_IO, IOPlacement
from .format import Format
from .host import HOST
from .partition import Assigned, reads_of, results_of
from .turns import Turns
from .weights import WeightStore

Kind = Literal["step", "copy", "reformat", "view"]


@dataclass(slots=True, eq=False)
class Slot:
    """A tensor in one place and format.

    Attributes:
        value: its value in the graph.
        device: the device of its memory.
        format: the order of its elements.
        type: dtype and shape.
        root: the slot whose memory it uses; itself unless it is a view or computed in place.
        first: index of the row that writes it; -1 for inputs.
        last: index of the last row that reads it.
        alias: the slot that contains it; None for roots.
        offset: its start in `alias`, in bytes.
        pitch: elements from one of its rows to the next if there are gaps, else 0; see
            `View.pitch`.
        block: its allocation in the arena, for roots.
    """

    value: Value
    device: Device
    format: Format
    type: TensorType
    first: int
    last: int
    alias: Slot | None = None
    offset: int = 0
    pitch: int = 0
    block: Allocation | None = None
    _above: tuple[Slot, int] | None = field(default=None, init=False, repr=False)

    @property
    def root(self) -> Slot:
        """The slot that owns the memory."""
        return self if self.alias is None else self._climb()[0]

    @property
    def offset_in_root(self) -> int:
        """Its start in the root's memory, in bytes."""
        return self._climb()[1]

    def _climb(self) -> tuple[Slot, int]:
        """Return the root and the start in it.

        Thousands of steps in place are as deep a chain. What a slot is in never changes, though a
        root may move to another slot, so all on the way remember how far they got.
        """
        path, slot = list[Slot](), self
        while slot.alias is not None:
            path.append(slot)
            slot = slot._above[0] if slot._above is not None else slot.alias
        offset = 0
        for below in reversed(path):
            offset += below.offset if below._above is None else below._above[1]
            below._above = slot, offset
        return slot, offset

    @property
    def extent(self) -> int:
        """Bytes from its first element to its last, gaps included."""
        return extent(self.format, self.type, self.pitch)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, without gaps."""
        return self.format.nbytes(self.type)


@dataclass(slots=True)
class Row:
    """One operation of a run, or a view, which does nothing.

    Attributes:
        kind: what it is.
        nodes: the graph's nodes that it stands for; none for copies and reformats.
        device: where it runs.
        backend: the name of a backend or device, or ``plan`` for views.
        kernel: the name of what runs, for reports.
        inputs: the slots that it reads.
        outputs: the slots that it writes.
        claim: the backend's offer, for steps.
        step: what the claim built.
        run: the bound step or copy, once everything is placed.
        stream: index of its stream, see `plan.streams`.
        apart: whether it runs before or after all others; see `plan.transfers`.
    """

    kind: Kind
    nodes: tuple[Node, ...]
    device: Device
    backend: str
    kernel: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    claim: Claim | None = None
    step: Step | None = None
    run: Callable[[Stream], None] | None = None
    stream: int = 0
    apart: bool = False

    @property
    def title(self) -> str:
        """The nodes' names, or what is moved where."""
        if self.nodes:
            return " + ".join(node.name for node in self.nodes)
        return f"{self.inputs[0].value.name} -> {self.outputs[0].device.name}"


class Layout:
    """Rows and slots of a graph before addresses are assigned.

    Args:
        graph: with integer shapes.
        stores: constants by device.
        ends: where inputs and results are.
        device: the one that `ends` refers to.
    """

    def __init__(
        self,
        graph: Graph,
        stores: Mapping[Device, WeightStore],
        ends: IOPlacement = HOST_IO,
        device: Device = HOST,
    ) -> None:
        self.graph = graph
        self.stores = stores
        self.rows: list[Row] = []
        self.slots: list[Slot] = []
        self.places: dict[Value, list[Slot]] = {}
        self.inputs: dict[str, Slot] = {}
        self.outputs: dict[str, Slot] = {}
        self._device, self._ends = device, ends
        self._turns = Turns()
        there = {**dict(ends.inputs), **dict.fromkeys(ends.lent, Format.CONTIGUOUS)}
        for value in graph.inputs:
            place = device if value.name in there else HOST
            format = there.get(value.name, Format.CONTIGUOUS)
            self.inputs[value.name] = self._slot(value, place, format, -1)
        self.lent = {self.inputs[name]: view for name, view in ends.lent.items()}

    def _slot(self, value: Value, device: Device, format: Format, first: int) -> Slot:
        slot = Slot(value, device, format, value.tensor, first, first)
        self.slots.append(slot)
        self.places.setdefault(value, []).append(slot)
        return slot

    def _emit(self, row: Row) -> None:
        for slot in row.inputs:
            slot.root.last = slot.last = len(self.rows)
        self.rows.append(row)

    def fetch(self, value: Value, device: Device, format: Format) -> Slot:
        """Return `value` on `device` in `format`, adding a row for each copy needed."""
        places = self.places[value]
        for slot in places:
            if slot.device is device and slot.format is format:
                return slot
        here = [slot for slot in places if slot.device is device]
        here.sort(key=lambda slot: not slot.format.is_plain)  # others have all bits
        source = here[0] if here else places[0]
        if source.device is not device and source.device is not HOST:
            source = self._in_format(source, format)
        if source.device is not device:
            there = self._seen_on(source, device)
            source = self._move(source, device, source.format) if there is None else there
        return self._in_format(source, format)

    def _seen_on(self, view: Slot, device: Device) -> Slot | None:
        """Return what a view shows, as another device has it already; None if it does not."""
        whole = view
        while whole.alias is not None and not whole.offset and whole.nbytes == whole.alias.nbytes:
            whole = whole.alias
        formats = {view.format, whole.format}
        if whole is view or formats != {Format.CONTIGUOUS}:
            return None
        for slot in self.places[whole.value]:
            if slot.device is device and slot.format is Format.CONTIGUOUS:
                shown = self._slot(view.value, device, Format.CONTIGUOUS, len(self.rows))
                shown.alias = slot
                return shown
        return None

    def _in_format(self, source: Slot, format: Format) -> Slot:
        """Return `source` in another format on its own device."""
        if source.format is format:
            return source
        if source.format.order(source.type.dims) == format.order(source.type.dims):
            slot = self._slot(source.value, source.device, format, len(self.rows))
            slot.alias = source
            return slot
        if source.format.plain is not format.plain:  # only numbers as they are change their order
            for other in (source.format, format):
                if not other.is_plain:
                    plain = self.fetch(source.value, source.device, other.plain)
                    return self._in_format(plain, format)
        return self._move(source, source.device, format)

    def _move(self, source: Slot, device: Device, format: Format) -> Slot:
        mover = source.device if device is HOST else device
        kind: Kind = "copy" if source.device is not device else "reformat"
        target = self._slot(source.value, device, format, len(self.rows))
        what = (
            f"{source.device.name} to {device.name}"
            if kind == "copy"
            else f"{source.format.value} to {format.value}"
        )
        self._emit(Row(kind, (), mover, mover.name, what, (source,), (target,)))
        return target

    def view(self, node: Node, asked: Set[Format]) -> None:
        """Make the output of a view share the memory of its input.

        Args:
            node: the view.
            asked: formats in which its result will be read.
        """
        value = node.inputs[0]
        if value is None:
            raise ValueError(f"view '{node.name}' has no input")
        device = self.places[value][0].device
        given = [slot.format for slot in self.places[value] if slot.device is device]
        found = reshaped(node, given, asked) or (Format.CONTIGUOUS, Format.CONTIGUOUS)
        self._see(node, self.fetch(value, device, found[0]), found[1])
        if found[0] is not Format.HALVES and Format.HALVES in given and has_same_rows(node):
            halves = self.fetch(value, device, Format.HALVES)
            self._slot(node.output, device, Format.HALVES, len(self.rows)).alias = halves

    def _see(self, node: Node, source: Slot, format: Format) -> None:
        target = self._slot(node.output, source.device, format, len(self.rows))
        target.alias = source
        row = Row("view", (node,), source.device, "plan", "view", (source,), (target,))
        self._emit(row)

    def rename(self, nodes: Sequence[Node], device: Device, asked: Set[Format]) -> bool:
        """Make the output of a Transpose share its input's memory, if the order of bytes allows it.

        Args:
            nodes: of a step.
            device: where it would run.
            asked: formats in which its result will be read.
        """
        value = nodes[0].inputs[0] if nodes[0].inputs else None
        if value is None or value.is_constant or len(nodes) > 1:
            return False
        here = [slot.format for slot in self.places[value] if slot.device is device]
        found = renamed(nodes[0], here or [Format.CONTIGUOUS], asked)
        if found is not None:
            self._see(nodes[0], self.fetch(value, device, found[0]), found[1])
        return found is not None

    def step(self, assigned: Assigned, asked: Set[Format] = frozenset()) -> None:
        """Add the row of a claim, not yet built, and the copies that it needs.

        Args:
            assigned: the claim.
            asked: formats in which its results will be read.
        """
        backend, claim = assigned.backend, assigned.claim
        if backend is None or claim is None:
            raise ValueError("only views run without a backend")
        reads = reads_of(assigned.nodes)
        results = tuple(dict.fromkeys((*results_of(self.graph, assigned.nodes), *claim.always)))
        formats = {v: claim.formats.wants.get(v, Format.CONTIGUOUS) for v in reads}
        formats |= {v: claim.formats.gives.get(v, Format.CONTIGUOUS) for v in results}
        if claim.formats.follows and reads:
            kept = claim.formats.wants
            leader = self._present([v for v in reads if v not in kept], backend.device, asked)
            formats = {**dict.fromkeys((*reads, *results), leader), **kept}
        inputs = tuple(self.fetch(v, backend.device, formats[v]) for v in reads)
        at = len(self.rows)
        stored = [(v, formats[v]) for v in results]
        stored += [(v, claim.formats.also[v]) for v in results if v in claim.formats.also]
        outputs = tuple(self._slot(v, backend.device, format, at) for v, format in stored)
        row = Row("step", assigned.nodes, backend.device, backend.name, "", inputs, outputs, claim)
        self._emit(row)

    def build(self, row: Row) -> Decline | None:
        """Build the step of a row; return the decline if the backend declines."""
        if row.claim is None:
            if row.kind == "reformat":
                self._turns.note(row)
            return None
        outputs = row.outputs[: len({slot.value for slot in row.outputs})]
        slots = (*row.inputs, *outputs)
        site = BuildContext(
            row.nodes,
            tuple(slot.value for slot in row.inputs),
            tuple(slot.value for slot in outputs),
            {slot.value: slot.format for slot in slots},
            self.stores[row.device],
            {slot.value: slot.pitch for slot in slots if slot.pitch},
            {slot.value: slot.format for slot in row.outputs[len(outputs) :]},
            self._turns.begins_at_end(row),
        )
        built = row.claim.build(site)
        if isinstance(built, Decline):
            return built
        row.step = step_of(row.backend, built)
        row.kernel = row.step.kernel
        self._turns.note(row)
        return None

    def _present(self, reads: Sequence[Value], device: Device, asked: Set[Format]) -> Format:
        """Return the format in which most bytes of `reads` are already on `device`.

        One that is asked of the results may have a tenth less. Of formats with equally many bytes,
        the most recent one: another row has requested it.
        """
        votes: dict[Format, int] = {}
        for value in reads:
            for slot in self.places[value]:
                if slot.device is device and slot.format.is_plain:
                    votes[slot.format] = votes.get(slot.format, 0) + slot.nbytes
        if not votes:
            return Format.CONTIGUOUS
        best = max(reversed(votes), key=votes.__getitem__)
        return (
            best
            if best in asked
            else next((f for f in votes if f in asked and votes[f] * 10 >= votes[best] * 9), best)
        )

    def finish(self) -> None:
        """Bring the graph's results to where they are requested.

        Inputs that callers put on the device are preserved, so that a run may follow without them.
        """
        for name, value in self.graph.outputs.items():
            if not value.is_constant:
                stays = self._ends.on_device or name in self._ends.kept
                slot = self.fetch(value, self._device if stays else HOST, Format.CONTIGUOUS)
                self.outputs[name] = slot
        there = {*dict(self._ends.inputs), *self._ends.stays}
        given = [slot for name, slot in self.inputs.items() if name in there]
        for slot in (*given, *self.outputs.values()):
            slot.root.last = slot.last = len(self.rows)


def lives_of(layout: Layout, begins: Sequence[int] = ()) -> dict[Slot, tuple[int, int]]:
    """Return for each root the first row that writes its memory and the last that reads it.

    Args:
        layout: the rows.
        begins: for each row, the one that counts as its first; see `StreamSchedule`.
    """
    lives: dict[Slot, tuple[int, int]] = {}
    for slot in layout.slots:
        begin = begins[slot.first] if 0 <= slot.first < len(begins) else slot.first
        first, last = lives.get(slot.root, (begin, slot.last))
        lives[slot.root] = min(first, begin), max(last, slot.last)
    return lives
