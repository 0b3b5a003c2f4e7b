"""Bodies of control flow: graphs of known types whose memory the owning step provides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..errors import ModelError
from ..ir.graph import Graph, Node, Value
from ..ir.infer import specialise
from ..ir.types import Array, TensorType, ValueType
from ..passes import STATIC_PASSES, SYMBOLIC_PASSES, Rewrites, lower, optimise
from ..plan.arena import ALIGNMENT, Allocation, aligned, pack
from ..plan.backend import BuildContext, Run, View, Weights
from ..plan.bind import bind_row, joined, sequence
from ..plan.rows import Layout, Row, Slot, lives_of
from ..plan.streams import assign, side_by_side
from .resources import Resources


def opened(
    body: Graph, captured: Sequence[Value], resources: Resources, known: Mapping[int, Array]
) -> Graph:
    """Return a body with its captures as additional inputs, after the model's passes.

    Args:
        body: one of a node's bodies.
        captured: the values that its captures stand for.
        resources: used by the passes.
        known: elements of inputs that are the same in every run, by position.
    """
    graph = body.opened(captured)
    inputs = graph.inputs
    for place, data in known.items():
        graph.freeze(inputs[place], data)
    optimise(graph, SYMBOLIC_PASSES, resources.late_options, resources.evaluate, Rewrites())
    return graph


def settled(graph: Graph, types: Sequence[ValueType | None], resources: Resources) -> Graph:
    """Return an opened body specialised for these input types, after the passes of a plan."""
    named = {v.name: type_ for v, type_ in zip(graph.inputs, types, strict=True)}
    bound = specialise(graph, named)
    optimise(bound, STATIC_PASSES, resources.late_options, resources.evaluate, Rewrites())
    lower(bound)
    return bound


class Body:
    """Rows that a device executes whenever it decides to.

    The caller says where inputs are, and may say where results go; everything else is in scratch
    memory, which is shared with bodies that never run at the same time. Inputs that a Concat joins
    with others (see `alias_slices`) are copied there first.

    Args:
        layout: of a graph whose inputs and results are all on the device.
        captures: positions in `Node.captures`, by name of the corresponding input.
        maximum: maximum number of streams for its rows.

    Attributes:
        graph: what it runs.
        rows: in execution order.
        outside: names of results that are written to addresses of the caller; set by `place`.
        scratch: bytes of scratch memory; set by `place`.
    """

    def __init__(self, layout: Layout, captures: Mapping[str, int], maximum: int) -> None:
        self.graph = layout.graph
        self.rows = layout.rows
        self.outside: frozenset[str] = frozenset()
        self.scratch = 0
        self._layout = layout
        self._captures = captures
        self._schedule = assign(self.rows, maximum)
        inputs = layout.inputs.items()
        self._given = {slot: name for name, slot in inputs if slot.alias is None}
        self._copied = {slot: name for name, slot in inputs if slot.alias is not None}
        self._own = self._own_roots()
        self._workspaces: dict[int, int] = {}
        self._places: dict[Slot, View] = {}

    def _own_roots(self) -> dict[str, Slot]:
        """Return the root tensors of results that neither are inputs nor exceed the result."""
        taken, found = set(self._given), dict[str, Slot]()
        for name, slot in self._layout.outputs.items():
            if slot.root not in taken and slot.nbytes == slot.root.nbytes:
                found[name] = slot.root
                taken.add(slot.root)
        return found

    @property
    def steps(self) -> int:
        """Number of operations per run, including decisions left to the device."""
        return sum(row.kind != "view" for row in self.rows) + len(self._copied)

    @property
    def nodes(self) -> int:
        """Approximate number of CUDA graph nodes, nested bodies included."""
        sizes = (getattr(row.step, "nodes", 1) for row in self.rows if row.kind != "view")
        return sum(sizes) + len(self._copied)

    def reads(self, input: str) -> bool:
        """Whether an input affects the results."""
        slot = self._layout.inputs[input]
        roots = (one.root for row in self.rows for one in row.inputs)
        return slot.root in {*roots, *(result.root for result in self._layout.outputs.values())}

    def source(self, output: str) -> str | None:
        """Return the input whose memory a result aliases; None if it has its own."""
        slot = self._layout.outputs.get(output)
        return None if slot is None else self._given.get(slot.root)

    def succeeds(self, output: str, input: str) -> bool:
        """Whether a result may overwrite an input because the input is not read afterwards."""
        root, old = self._own.get(output), self._layout.inputs[input]
        if root is None or any(slot.root is old for slot in self._layout.outputs.values()):
            return False
        first, _ = lives_of(self._layout, self._schedule.begins)[root]
        reading = (n for n, row in enumerate(self.rows) if row.kind != "view" and old in _of(row))
        last = max(reading, default=-1)
        return last < first or (last == first >= 0 and _overwrites(self.rows[first], root, old))

    # ── memory ───────────────────────────────────────────────────────────────────────────────

    def place(self, outside: Iterable[str]) -> None:
        """Place everything in scratch memory except inputs and, if possible, these results."""
        self.outside = frozenset(name for name in outside if name in self._own)
        elsewhere = {*self._given, *(self._own[name] for name in self.outside)}
        lives = lives_of(self._layout, self._schedule.begins)
        blocks: list[Allocation] = []
        for slot in self._layout.slots:
            if slot.alias is None and slot not in elsewhere:
                slot.block = Allocation(aligned(slot.nbytes), *lives[slot])
                blocks.append(slot.block)
        end = pack(blocks)
        need: dict[int, int] = {}
        for row in self.rows:
            if row.step is not None and row.step.scratch:
                need[row.stream] = max(need.get(row.stream, 0), row.step.scratch)
        for stream, nbytes in need.items():
            self._workspaces[stream] = end
            end += aligned(nbytes)
        self.scratch = max(end, ALIGNMENT)

    def captured(self, node: Node, view: Callable[[Value], View]) -> dict[str, View]:
        """Return the views of the inputs that stand for captures.

        Args:
            node: the owner of the body.
            view: returns the view of a captured value.
        """
        return {name: view(node.captures[place]) for name, place in self._captures.items()}

    def bind(self, memory: View, inputs: Mapping[str, View], results: Mapping[str, View]) -> Run:
        """Return the function that runs the body.

        Args:
            memory: `scratch` bytes.
            inputs: view of each input.
            results: views for the results in `outside`; others are ignored.
        """
        self._places = {slot: inputs[name] for slot, name in self._given.items()}
        self._places |= {self._own[name]: results[name] for name in self.outside}
        for slot, place in self._places.items():
            if place.nbytes < slot.nbytes:
                raise ModelError(
                    f"'{slot.value.name}' {slot.type} of body '{self.graph.name}' gets {place.type}"
                )
        copied = ((self._view(slot, memory), inputs[name]) for slot, name in self._copied.items())
        copies = [target.device.copier(target, source) for target, source in copied]
        for row in self.rows:
            row.run = self._bind(row, memory)
        if any(row.stream for row in self.rows):
            run = side_by_side(self.rows, self._schedule, range(len(self.rows)))
            return sequence([*copies, run])
        return sequence(joined([*copies, *(row.run for row in self.rows if row.run is not None)]))

    def _bind(self, row: Row, memory: View) -> Run | None:
        def workspace(type_: TensorType) -> View:
            return part(memory, self._workspaces[row.stream], type_)

        return bind_row(row, lambda slot: self._view(slot, memory), workspace)

    def _view(self, slot: Slot, memory: View) -> View:
        base, offset = self._places.get(slot.root), slot.offset_in_root
        if base is None:
            block = slot.root.block
            if block is None:
                raise ValueError(f"'{slot.value.name}' has no place in the body's memory")
            base, offset = memory, block.offset + offset
        place = part(base, offset, slot.type)
        return replace(place, format=slot.format, pitch=slot.pitch)

    def result(self, output: str, memory: View, weights: Weights) -> View:
        """Return the view of a result after a run."""
        slot = self._layout.outputs.get(output)
        if slot is None:
            return weights.view(self.graph.outputs[output])
        return self._view(slot, memory)


def _of(row: Row) -> set[Slot]:
    return {slot.root for slot in row.inputs}


def _overwrites(row: Row, root: Slot, old: Slot) -> bool:
    """Whether a row reads each element of `old`, and nothing else of `root`, before writing it."""
    origins = [slot for slot in row.inputs if slot.root is old]
    targets = [slot for slot in row.outputs if slot.root is root]
    if row.claim is None or len(origins) != 1 or len(targets) != 1 or root in _of(row):
        return False
    (origin,), (target,) = origins, targets
    same = origin.nbytes == old.nbytes == target.nbytes
    return same and (target.value, origin.value) in row.claim.in_place


def finder(
    site: BuildContext, inputs: Sequence[View], outputs: Sequence[View]
) -> Callable[[Value], View]:
    """Return a function that maps values to the views that a bound step reads and writes."""
    views = dict(zip(site.inputs, inputs, strict=True))
    views.update(zip(site.outputs, outputs, strict=True))
    return lambda value: views[value] if value.data is None else site.weights.view(value)


def part(memory: View, offset: int, type_: TensorType) -> View:
    """Return a tensor that starts `offset` bytes into another."""
    return View(memory.device, memory.buffer, memory.offset + offset, type_)
