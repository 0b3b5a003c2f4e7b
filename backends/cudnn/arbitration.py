"""Compares cuDNN with the cuda kernels, so that each group of nodes goes to the faster one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.base.record import record
from ...runtime.errors import DeviceOutOfMemory, LimitError, UnsupportedError
from ...runtime.ir.dtypes import FLOATS
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.infer import infer
from ...runtime.ir.types import Array, TensorType
from ...runtime.options import Options
from ...runtime.plan.backend import Claim, Device, View
from ...runtime.plan.format import Format
from ...runtime.plan.host import HOST
from ...runtime.plan.partition import reads_of, results_of
from ...runtime.plan.plan import Plan
from ...runtime.plan.weights import WeightStore
from ..cuda.backend import CudaBackend
from ..cuda.driver.clock import microseconds
from ..cuda.driver.streams import CudaStream
from ..cuda.tuning.records import Records
from ..cuda.tuning.tuner import digest
from .registry import NodeGroup


@record
class CudaTime:
    """The time that the cuda kernels take for some nodes.

    Attributes:
        microseconds: of the kernels, without format changes.
        formats: the physical formats of their inputs and outputs; see `_around`.
    """

    microseconds: float
    formats: tuple[Format, ...]


@record
class BackendComparison:
    """Times of cuDNN and the cuda kernels for the same nodes, including format changes.

    Attributes:
        ours: microseconds with cuDNN.
        theirs: microseconds with the cuda kernels.
        changes: the part of `ours` spent on format changes.
    """

    ours: float
    theirs: float
    changes: float = 0.0

    @property
    def lost(self) -> str:
        """Why the cuda kernels get the nodes; empty if cuDNN is at least as fast."""
        if self.ours <= self.theirs:
            return ""
        changes = f", {self.changes:.1f} us of them to change formats" if self.changes else ""
        return f"cuda kernels: {self.theirs:.1f} us, cuDNN: {self.ours:.1f} us{changes}"


class CudaTimer:
    """Measures the cuda kernels on parts of a graph; results are cached on disk.

    Args:
        backend: the cuda backend.
        folder: the cache of results.
    """

    def __init__(self, backend: CudaBackend, folder: Path) -> None:
        self._device = backend.device
        self._backend = backend
        self._records = Records(folder)
        self._context = f"kernels {digest()} on {backend.device.description}"
        self._known: dict[str, CudaTime | None] = {}
        self._changes: dict[str, float] = {}

    def on(self, graph: Graph, free: Set[Node], options: Options) -> Arbiter:
        """Return the arbiter for a graph."""
        plain = replace(options, algorithms={}, conv=None)
        groups: dict[Node, tuple[Node, ...]] = {}
        backend = self._backend.prepare(graph, free, plain)
        for answer in backend.claim(graph, free, plain):
            if isinstance(answer, Claim):
                groups.update(dict.fromkeys(answer.nodes, answer.nodes))
        return Arbiter(self, graph, plain, groups)

    def timed(self, graph: Graph, nodes: Sequence[Node], options: Options) -> CudaTime | None:
        """Return the time of the cuda kernels for some nodes; None if it cannot be measured.

        Args:
            graph: all shapes static.
            nodes: in topological order.
            options: the user's choices.
        """
        key = f"{self._context}: {signature(graph, nodes)}, workspace {options.workspace}"
        if options.precision == "tf32":
            key += ", tf32"
        if key not in self._known:
            found = _timed(self._records.load(key), len(_around(graph, nodes)))
            if found is None:
                found = self._measured(graph, nodes, options)
                if found is not None:
                    self._records.store(key, _entry(found))
            self._known[key] = found
        return self._known[key]

    def _measured(self, graph: Graph, nodes: Sequence[Node], options: Options) -> CudaTime | None:
        reads, results = reads_of(tuple(nodes)), results_of(graph, tuple(nodes))
        part = graph.cut(reads, {value.name: value for value in results})
        infer(part)
        devices: tuple[Device, ...] = (HOST, self._device)
        stores: dict[Device, WeightStore] = {device: WeightStore(device) for device in devices}
        alone = replace(options, streams=1, check_each=False)
        try:
            plan = Plan(part, [self._backend], alone, stores)
            try:
                return self._clocked(plan)
            finally:
                plan.close()
        except (UnsupportedError, LimitError, DeviceOutOfMemory):
            return None
        finally:
            for store in stores.values():
                store.close()

    def _clocked(self, plan: Plan) -> CudaTime:
        """Return the time of a plan's steps, run on whatever its memory contains."""
        plan.run({value.name: _numbers(value) for value in plan.graph.inputs})
        rows = [row for row in plan.rows if row.kind == "step" and row.run is not None]

        def run(stream: CudaStream) -> None:
            for row in rows:
                if row.run is not None:
                    row.run(stream)

        seen = {slot.value: slot.format for row in rows for slot in (*row.inputs, *row.outputs)}
        around = (*plan.graph.inputs, *plan.graph.outputs.values())
        formats = tuple(seen.get(value, Format.CONTIGUOUS) for value in around)
        return CudaTime(microseconds(self._device, run, self._device.stream()), formats)

    def change(self, type_: TensorType, before: Format, after: Format) -> float:
        """Return the microseconds that a format conversion of a tensor takes."""
        if before.order(type_.dims) == after.order(type_.dims):
            return 0.0
        key = f"{self._context}: {type_.without_value()}, {before.value} to {after.value}"
        if key not in self._changes:
            kept = _microseconds(self._records.load(key))
            if kept is None:
                kept = self._measured_change(type_, before, after)
                self._records.store(key, {"microseconds": kept})
            self._changes[key] = kept
        return self._changes[key]

    def _measured_change(self, type_: TensorType, before: Format, after: Format) -> float:
        buffers = [self._device.allocate(type_.nbytes) for _ in range(2)]
        try:
            views = [
                View(self._device, buffer, 0, type_, format)
                for buffer, format in zip(buffers, (before, after), strict=True)
            ]
            copy = self._device.copier(views[1], views[0])
            return microseconds(self._device, copy, self._device.stream())
        finally:
            for buffer in buffers:
                buffer.close()


@record
class Arbiter:
    """Decides between cuDNN and the cuda kernels for the nodes of one graph.

    Attributes:
        timer: measures the cuda kernels.
        graph: all shapes static.
        options: the user's choices, without algorithms.
        groups: by node, the nodes that the cuda backend would run together with it.
    """

    timer: CudaTimer
    graph: Graph
    options: Options
    groups: Mapping[Node, tuple[Node, ...]] = field(default_factory=dict[Node, tuple[Node, ...]])

    def meet(self, wanted: NodeGroup, ours: float) -> BackendComparison | None:
        """Return the comparison; None if the cuda kernels cannot run the nodes.

        If the cuda kernels would fuse further nodes (a pooling), their time is added to cuDNN's.

        Args:
            wanted: nodes that cuDNN could run.
            ours: microseconds of cuDNN for them.
        """
        mine = set(wanted.nodes)
        whole = {node for own in wanted.nodes for node in self.groups.get(own, (own,))}
        theirs = self.timer.timed(self.graph, self._sorted(whole), self.options)
        if theirs is None:
            return None
        formats = self._formats(whole, theirs)
        if whole != mine:
            behind = self.timer.timed(self.graph, self._sorted(whole - mine), self.options)
            if behind is None:
                return None
            ours += behind.microseconds
            formats = {**self._formats(whole - mine, behind), **formats}
        changes = self._changes(wanted, formats)
        return BackendComparison(ours + changes, theirs.microseconds, changes)

    def _formats(self, nodes: Set[Node], timed: CudaTime) -> dict[Value, Format]:
        """Return the formats that the cuda kernels read and write for some nodes."""
        return dict(zip(_around(self.graph, self._sorted(nodes)), timed.formats, strict=True))

    def _changes(self, wanted: NodeGroup, formats: Mapping[Value, Format]) -> float:
        """Return the cost of format changes between cuDNN and the surrounding cuda kernels.

        Inputs and results of the graph are contiguous, so that both sides may have to convert them.
        """
        if wanted.formats.follows:
            return 0.0
        total = 0.0
        ours = {**wanted.formats.wants, **wanted.formats.gives}
        for value in _around(self.graph, wanted.nodes):
            format, other = (known.get(value, Format.CONTIGUOUS) for known in (ours, formats))
            type_ = value.tensor
            if value.producer is None or self.graph.is_output(value):
                total += self.timer.change(type_, Format.CONTIGUOUS, format)
                total -= self.timer.change(type_, Format.CONTIGUOUS, other)
            else:
                total += self.timer.change(type_, other, format)
        return total

    def _sorted(self, nodes: Set[Node]) -> list[Node]:
        return [node for node in self.graph.nodes if node in nodes]


def _around(graph: Graph, nodes: Sequence[Node]) -> tuple[Value, ...]:
    """Return the non-constant inputs of some nodes, and their outputs."""
    return *reads_of(tuple(nodes)), *results_of(graph, tuple(nodes))


def _numbers(value: Value) -> Array:
    """Return sample data for values known only at run time; integers are 0, which is in range."""
    tensor = value.tensor
    if tensor.dtype not in FLOATS:
        return np.zeros(tensor.dims, tensor.dtype)
    numbers = np.random.default_rng(0).standard_normal(1 << 16, np.float32)
    return np.resize(numbers.astype(tensor.dtype), tensor.dims)


def signature(graph: Graph, nodes: Sequence[Node]) -> str:
    """Return everything that the speed of nodes depends on, without names: the cache key."""
    numbers: dict[Value, int] = {}

    def text(value: Value | None) -> str:
        if value is None:
            return "-"
        known = " constant" if value.is_constant else ""
        return f"{numbers.setdefault(value, len(numbers))} {value.tensor.without_value()}{known}"

    lines = (
        f"{node.op} ({', '.join(map(text, node.inputs))}) -> ({', '.join(map(text, node.outputs))})"
        for node in nodes
    )
    signature = "; ".join(lines)
    results = results_of(graph, tuple(nodes))
    return f"{signature}; gives {', '.join(str(numbers[value]) for value in results)}"


# ── on disk ──────────────────────────────────────────────────────────────────────────────────────


def _entry(found: CudaTime) -> dict[str, Any]:
    """Return the cache entry."""
    formats = [format.value for format in found.formats]
    return {"microseconds": found.microseconds, "formats": formats}


def _timed(entry: Mapping[str, Any] | None, count: int) -> CudaTime | None:
    """Return the time in a cache entry for this number of tensors; None if it is invalid."""
    if entry is None:
        return None
    try:
        formats = tuple(Format(text) for text in entry["formats"])
    except (LookupError, TypeError, ValueError):
        return None
    taken = _microseconds(entry)
    return None if taken is None or len(formats) != count else CudaTime(taken, formats)


def _microseconds(entry: Mapping[str, Any] | None) -> float | None:
    """Return the time in a cache entry; None if there is none."""
    taken = entry.get("microseconds") if entry is not None else None
    return taken if isinstance(taken, float) else None
