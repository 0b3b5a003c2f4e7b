"""From claims to rows: steps, copies, reformats and views, and which tensors share memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .arena import Block
from .backend import Backend, Decline, Device, Format, Site, Step, Stream
from .host import HOST
from .ir import Graph, Node, Value
from .options import Options
from .partition import Assigned, Bars, Partition, partition, reads_of, results_of
from .types import TensorType
from .weights import WeightStore

Kind = Literal["step", "copy", "reformat", "view"]


@dataclass(slots=True, eq=False)
class Slot:
    """A tensor at one place and in one format.

    Attributes:
        value: what it holds.
        device: where.
        format: in which order.
        type: dtype and shape.
        root: the slot whose memory it uses; itself unless it is a view or made in place.
        first: row that writes it; -1 for inputs.
        last: last row that reads it.
        block: its place in the arena, for roots.
    """

    value: Value
    device: Device
    format: Format
    type: TensorType
    first: int
    last: int
    alias: Slot | None = None
    block: Block | None = None

    @property
    def root(self) -> Slot:
        """The slot that owns the memory."""
        slot = self
        while slot.alias is not None:
            slot = slot.alias
        return slot

    @property
    def nbytes(self) -> int:
        """Bytes in this format."""
        return self.format.nbytes(self.type)


@dataclass(slots=True)
class Row:
    """One thing that a run does, or a view, which it need not do."""

    kind: Kind
    nodes: tuple[Node, ...]
    device: Device
    backend: str
    kernel: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    step: Step | None = None
    run: Callable[[Stream], None] | None = None

    @property
    def title(self) -> str:
        """The nodes' names, or what is moved where."""
        if self.nodes:
            return " + ".join(node.name for node in self.nodes)
        return f"{self.inputs[0].value.name} -> {self.outputs[0].device.name}"


class Layout:
    """Rows and slots of a graph, before anything has an address."""

    def __init__(self, graph: Graph, stores: Mapping[Device, WeightStore]) -> None:
        self.graph = graph
        self.stores = stores
        self.rows: list[Row] = []
        self.slots: list[Slot] = []
        self.places: dict[Value, list[Slot]] = {}
        self.inputs: dict[str, Slot] = {}
        self.outputs: dict[str, Slot] = {}
        for value in graph.inputs:
            self.inputs[value.name] = self._slot(value, HOST, Format.PLAIN, -1)

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
        """Return `value` on `device` in `format`, with a visible row for each copy it takes."""
        places = self.places[value]
        for slot in places:
            if slot.device is device and slot.format is format:
                return slot
        here = [slot for slot in places if slot.device is device]
        source = here[0] if here else places[0]
        if source.device is not device and source.device is not HOST:
            source = self._in_format(source, format)
        if source.device is not device:
            source = self._move(source, device, source.format)
        return self._in_format(source, format)

    def _in_format(self, source: Slot, format: Format) -> Slot:
        """Return `source` in another format on its own device."""
        if source.format is format:
            return source
        if source.format.order(source.type.dims) == format.order(source.type.dims):
            slot = self._slot(source.value, source.device, format, len(self.rows))
            slot.alias = source
            return slot
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

    def view(self, node: Node) -> None:
        """Let the output of a view use the memory of its input."""
        value = node.inputs[0]
        if value is None:
            raise ValueError(f"view '{node.name}' has no input")
        source = self.fetch(value, self.places[value][0].device, Format.PLAIN)
        target = self._slot(node.output, source.device, Format.PLAIN, len(self.rows))
        target.alias = source
        row = Row("view", (node,), source.device, "plan", "view", (source,), (target,))
        self._emit(row)

    def step(self, assigned: Assigned, store: WeightStore) -> Decline | None:
        """Build a claim and add its row; return the decline where the backend changed its mind."""
        backend, claim = assigned.backend, assigned.claim
        if backend is None or claim is None:
            raise ValueError("only views run without a backend")
        reads = reads_of(assigned.nodes)
        results = results_of(self.graph, assigned.nodes)
        formats = {v: claim.formats.wants.get(v, Format.PLAIN) for v in reads}
        formats |= {v: claim.formats.gives.get(v, Format.PLAIN) for v in results}
        if claim.formats.follows and reads:
            leader = self._present(reads, backend.device)
            formats = dict.fromkeys((*reads, *results), leader)
        built = claim.build(Site(assigned.nodes, reads, results, formats, store))
        if isinstance(built, Decline):
            return built
        inputs = tuple(self.fetch(v, backend.device, formats[v]) for v in reads)
        at = len(self.rows)
        outputs = tuple(self._slot(v, backend.device, formats[v], at) for v in results)
        row = Row(
            "step",
            assigned.nodes,
            backend.device,
            backend.name,
            built.kernel,
            inputs,
            outputs,
            built,
        )
        self._emit(row)
        return None

    def _present(self, reads: Sequence[Value], device: Device) -> Format:
        """Return the format in which most bytes of `reads` already lie on `device`."""
        votes: dict[Format, int] = {}
        for value in reads:
            for slot in self.places[value]:
                if slot.device is device:
                    votes[slot.format] = votes.get(slot.format, 0) + slot.nbytes
        return max(votes, key=votes.__getitem__) if votes else Format.PLAIN

    def finish(self) -> None:
        """Bring the graph's results to the host."""
        for name, value in self.graph.outputs.items():
            if not value.is_constant:
                slot = self.fetch(value, HOST, Format.PLAIN)
                self.outputs[name] = slot
        for slot in self.outputs.values():
            slot.root.last = slot.last = len(self.rows)


def lay_out(
    graph: Graph,
    backends: Sequence[Backend],
    options: Options,
    stores: Mapping[Device, WeightStore],
) -> tuple[Layout, Partition]:
    """Partition a static graph, build every step and insert the copies.

    A backend may still decline while it builds; its node is then offered to the others.

    Raises:
        UnsupportedError: a node that no backend takes.
    """
    bars = Bars()
    _settle_views(graph)
    while True:
        found = partition(graph, backends, options, bars)
        layout = Layout(graph, stores)
        for assigned in found.steps:
            if assigned.backend is None:
                layout.view(assigned.nodes[0])
                continue
            declined = layout.step(assigned, stores[assigned.backend.device])
            if declined is not None:
                bars.add(assigned.backend, declined.node, declined.reason)
                break
        else:
            layout.finish()
            _alias_in_place(layout, found)
            return layout, found


def _settle_views(graph: Graph) -> None:
    """Make the views of constants constants, where no pass has done so: they have no slot."""
    for node in [node for node in graph.nodes if node.op.view]:
        source, result = node.inputs[0], node.output.type
        if source is None or source.data is None or not isinstance(result, TensorType):
            continue
        if result.is_static:
            graph.settle(node, [source.data.reshape(result.dims)])


def _alias_in_place(layout: Layout, found: Partition) -> None:
    """Give outputs the memory of inputs that die in the step, where the claim allows it."""
    claims = {assigned.nodes: assigned.claim for assigned in found.steps}
    lives = lives_of(layout)
    for number, row in enumerate(layout.rows):
        claim = claims.get(row.nodes) if row.kind == "step" else None
        for out, source in claim.in_place if claim else ():
            target = next((s for s in row.outputs if s.value is out), None)
            origin = next((s for s in row.inputs if s.value is source), None)
            if target is None or origin is None or target.alias is not None:
                continue
            root = origin.root
            others = [s for s in row.inputs if s is not origin and s.root is root]
            taken = any(s is not target and s.root is root for s in row.outputs)
            if others or taken or lives[root] > number or target.nbytes != root.nbytes:
                continue
            target.alias = origin
            lives[root] = max(lives[root], lives.pop(target))


def lives_of(layout: Layout) -> dict[Slot, int]:
    """Return for each root the last row that reads it or a view of it."""
    lives: dict[Slot, int] = {}
    for slot in layout.slots:
        lives[slot.root] = max(lives.get(slot.root, -1), slot.last)
    return lives
