"""A plan: one graph with integer shapes, laid out in memory, every step bound once.

Fixed addresses make the arena, CUDA graphs and a fast Python loop one mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace

from ..base.budget import Budget
from ..base.copying import copy
from ..base.guard import check_time, is_timed, planning
from ..base.nvtx import nvtx_range
from ..base.record import record
from ..errors import DeviceError, LimitError
from ..ir.graph import Graph
from ..ir.types import Array, TensorType
from ..options import NARROW, Options
from .arena import Allocation, aligned, pack, peak
from .backend import (
    Backend,
    Buffer,
    Device,
    Forking,
    Reading,
    Run,
    Screening,
    Step,
    Stream,
    View,
    knows,
)
from .bind import bind_row, joined, sequence
from .exchange import HOST_IO, Exchange, IOPlacement, exchange_of
from .host import HOST, array
from .layout import LayOut, lay_out
from .result_memory import ResultMemory
from .rows import Layout, Row, Slot, lives_of
from .streams import assign, is_capturable, segments, side_by_side
from .transfers import MIN_UPLOAD, Download, Screen, Upload, set_apart
from .weights import WeightStore


@record
class Memory:
    """Bytes held by a plan or model.

    Attributes:
        activations: arena by device.
        floor: maximum number of bytes alive at any time, by device: a lower bound of every arena.
        tensors: all activations by device, as if each had its own memory.
        workspace: scratch bytes by device: the sum over streams of their largest step.
        workspace_sum: scratch of all steps, as if each had its own.
        weights: constants by device.
    """

    activations: Mapping[str, int]
    floor: Mapping[str, int]
    tensors: Mapping[str, int]
    workspace: Mapping[str, int]
    workspace_sum: Mapping[str, int]
    weights: Mapping[str, int]

    @staticmethod
    def total(parts: Sequence[Memory], weights: Mapping[str, int]) -> Memory:
        """Return the bytes of several plans of one model, which share weights."""

        def added(kind: str) -> dict[str, int]:
            sums: dict[str, int] = {}
            for part in parts:
                for device, nbytes in getattr(part, kind).items():
                    sums[device] = sums.get(device, 0) + nbytes
            return sums

        kinds = (field.name for field in fields(Memory) if field.name != "weights")
        return Memory(**{kind: added(kind) for kind in kinds}, weights=weights)


@dataclass(slots=True)
class _Arena:
    buffer: Buffer
    size: int
    floor: int
    tensors: int


class Plan:
    """A layout with addresses that runs repeatedly, for one caller at a time.

    Attributes:
        graph: the graph with integer shapes.
        rows: in execution order.
        refusals: what backends declined.
        memory: bytes by kind and device.
        device: the first backend's, to which `ends` refers.
        ends: where inputs and results are.
        constants: results that are constant.
        inputs: the view of each input.
        outputs: the view of each non-constant result after a run.
        schedule: which row runs on which stream, and what it waits for.
        taken: bytes taken from each budget.
    """

    def __init__(
        self,
        graph: Graph,
        backends: Sequence[Backend],
        options: Options,
        stores: Mapping[Device, WeightStore],
        ends: IOPlacement = HOST_IO,
        nesting: Backend | None = None,
        budget: Budget | None = None,
        laying: LayOut = lay_out,
    ) -> None:
        layout, found = laying(graph, backends, options, stores, ends, nesting)
        self.graph = graph
        self.ends = ends
        self.rows = layout.rows
        self.refusals = found.refusals
        self._check_each = options.check_each
        self._is_narrow = options.precision in NARROW
        self._budget = Budget(options.max_bytes) if budget is None else budget
        self.taken: dict[Budget, int] = {}
        self.device = backends[0].device
        self._stream = self.device.stream()
        can_fork = isinstance(self._stream, Forking) and not self._check_each
        self._max_streams = options.streams if can_fork else 1
        self._buffers: list[Buffer] = []
        self._runs: list[Run] = []
        self._joined: list[Run] = []
        self.inputs: Mapping[str, View] = {}
        self.outputs: Mapping[str, View] = {}
        self._lent = layout.lent
        self._inputs: dict[str, Array] = {}
        self._outputs: dict[str, Array] = {}
        self._results = ResultMemory(self.device.staging)
        self._copied: tuple[tuple[str, Callable[[], Array]], ...] | None = None
        self._uploads: dict[str, Upload] = {}
        self._downloads: dict[str, Download] = {}
        self._names = tuple(graph.outputs)
        self.constants = {n: v.data for n, v in graph.outputs.items() if v.data is not None}
        try:
            self._place(layout, stores)
        except BaseException:
            self.close()
            raise

    def _place(self, layout: Layout, stores: Mapping[Device, WeightStore]) -> None:
        """Allocate memory, bind every row to its addresses, and record."""
        exchange = exchange_of(self.device)
        uploads, downloads = ({}, {}) if exchange is None else set_apart(layout, self.ends)
        self._given = {row.outputs[0]: row.inputs[0] for row in downloads.values()}
        self.schedule = assign(self.rows, self._max_streams)
        self._arenas = self._allocate(layout, stores)
        self._workspaces = self._allocate_workspaces(stores)
        with ExitStack() as preparing:  # rows are bound while threads pack the constants of others
            for device, store in stores.items():
                steps = (row.step for row in self.rows if row.device is device)
                read = (c for step in steps if knows(step, Reading) for c in step.constants)
                preparing.enter_context(store.preparing(read))
            for row in self.rows:
                check_time()
                with planning(f"step '{row.title}'"):
                    row.run = None if row.apart else self._bind(row)
        if exchange is not None:
            self._bind_apart(uploads, downloads, exchange)
        self.memory = self._measure(stores)
        self.inputs = {n: self._view(s) for n, s in layout.inputs.items()}
        self.outputs = {n: self._view(s) for n, s in layout.outputs.items()}
        kept = {*self.ends.lent, *self.ends.kept}
        here = {n: v for n, v in self.inputs.items() if v.device is HOST and n not in kept}
        self._inputs = {n: array(v) for n, v in here.items()}
        here = {n: v for n, v in self.outputs.items() if v.device is HOST and n not in kept}
        self._outputs = {n: array(v) for n, v in here.items()}
        if self._names and all(n in self._outputs for n in self._names):
            copies = ((n, self._results.copying(n, self._outputs[n])) for n in self._names)
            self._copied = tuple(copies)
        self._runs = self._chain()
        self._joined = joined(self._runs)

    # ── memory ───────────────────────────────────────────────────────────────────────────────

    def _allocate(
        self, layout: Layout, stores: Mapping[Device, WeightStore]
    ) -> dict[Device, _Arena]:
        lives = lives_of(layout, self.schedule.begins)
        for slot in layout.inputs.values():  # inputs are preserved, so that rows can be run again
            if slot.device is HOST and slot in lives and self.device is not HOST:
                lives[slot] = (lives[slot][0], len(self.rows))
        given = set(layout.inputs.values())
        for row in self.rows:  # so that small inputs may come at any time, before any row has run
            slot = row.outputs[0] if row.kind == "copy" and row.inputs[0] in given else None
            if slot is not None and slot.nbytes < MIN_UPLOAD:
                lives[slot.root] = (0, lives[slot.root][1])
        by_device: dict[Device, list[Slot]] = {HOST: []} if self.constants else {}
        for slot in layout.slots:
            if slot.alias is None and slot not in self._lent and slot not in self._given:
                by_device.setdefault(slot.device, []).append(slot)
        arenas: dict[Device, _Arena] = {}
        for device, slots in by_device.items():
            for slot in slots:
                slot.block = Allocation(aligned(slot.nbytes), *lives[slot])
            blocks = [slot.block for slot in slots if slot.block is not None]
            size = pack(blocks)
            if device is HOST:
                self._take_host(size, layout)
            else:
                self._take(stores[device].budget, size)
            # The accelerator copies from and to the host's arena, so it is pinned.
            owner = self.device if device is HOST else device
            buffer = owner.staging(size) if device is HOST else device.allocate(size)
            self._buffers.append(buffer)
            total = sum(block.nbytes for block in blocks)
            arenas[device] = _Arena(buffer, size, peak(blocks), total)
        return arenas

    def _take_host(self, arena: int, layout: Layout) -> None:
        """Take the host memory of the plan and its results from the model's budget."""
        scratch = [r.step.scratch for r in self.rows if r.step is not None and r.device is HOST]
        given = (slot for name, slot in layout.outputs.items() if name not in self.ends.kept)
        results = sum(slot.nbytes for slot in given)
        results += sum(data.nbytes for data in self.constants.values())
        results += sum(slot.nbytes for slot in self._given)  # one to write, one that callers hold
        total = arena + max(scratch, default=0) + (0 if self.ends.on_device else results)
        self._take(self._budget, total)

    def _take(self, budget: Budget | None, nbytes: int) -> None:
        """Take bytes from the budget of a device's memory, until the plan is closed."""
        if budget is None:
            return
        try:
            budget.take(nbytes, "the plan")
        except LimitError as error:
            raise LimitError(f"{error}{self._largest()}") from None
        self.taken[budget] = self.taken.get(budget, 0) + nbytes

    def _largest(self) -> str:
        """Return which step has the largest result, as the end of a sentence."""
        if not self.rows:
            return ""
        row = max(self.rows, key=lambda r: sum(slot.nbytes for slot in r.outputs))
        made = ", ".join(f"'{slot.value.name}' {slot.type}" for slot in row.outputs)
        return f"; its largest step is {row.title}, which gives {made}"

    def _allocate_workspaces(
        self, stores: Mapping[Device, WeightStore]
    ) -> dict[tuple[Device, int], Buffer]:
        """Allocate, for each stream of each device, the largest scratch memory of its steps."""
        need: dict[tuple[Device, int], int] = {}
        for row in self.rows:
            if row.step is not None and row.step.scratch:
                key = row.device, row.stream
                need[key] = max(need.get(key, 0), row.step.scratch)
        found: dict[tuple[Device, int], Buffer] = {}
        for key, nbytes in need.items():
            if key[0] is not HOST:  # the host's is part of what the plan takes there
                self._take(stores[key[0]].budget, aligned(nbytes))
            found[key] = key[0].allocate(aligned(nbytes))
            self._buffers.append(found[key])
        return found

    def _measure(self, stores: Mapping[Device, WeightStore]) -> Memory:
        scratch: dict[str, int] = {}
        for row in self.rows:
            if row.step is not None:
                scratch[row.device.name] = scratch.get(row.device.name, 0) + row.step.scratch
        workspace: dict[str, int] = {}
        for (device, _), buffer in self._workspaces.items():
            workspace[device.name] = workspace.get(device.name, 0) + buffer.nbytes
        return Memory(
            activations={d.name: a.size for d, a in self._arenas.items()},
            floor={d.name: a.floor for d, a in self._arenas.items()},
            tensors={d.name: a.tensors for d, a in self._arenas.items()},
            workspace=workspace,
            workspace_sum=scratch,
            weights={d.name: s.nbytes for d, s in stores.items()},
        )

    def _view(self, slot: Slot) -> View:
        slot = self._given.get(slot, slot)
        lent, block = self._lent.get(slot.root), slot.root.block
        if lent is not None:
            offset = lent.offset + slot.offset_in_root
            return View(slot.device, lent.buffer, offset, slot.type, slot.format, slot.pitch)
        if block is None:
            raise ValueError(f"'{slot.value.name}' has no place in the arena")
        buffer, offset = self._arenas[slot.device].buffer, block.offset + slot.offset_in_root
        return View(slot.device, buffer, offset, slot.type, slot.format, slot.pitch)

    # ── binding ──────────────────────────────────────────────────────────────────────────────

    def _bind_apart(
        self, uploads: Mapping[str, Row], downloads: Mapping[str, Row], exchange: Exchange
    ) -> None:
        """Bind the copies of large inputs and results."""
        for name, row in uploads.items():
            target, staging = self._view(row.outputs[0]), self._view(row.inputs[0])
            row.run = self._uploads[name] = Upload(target, staging, exchange)
        for name, row in downloads.items():
            source = self._view(row.inputs[0])
            self._results.reserve(name, source.nbytes)
            screen = self._screen(source)
            download = Download(name, source, self._results, exchange, screen)
            row.run = self._downloads[name] = download

    def _screen(self, view: View) -> Screen | None:
        """Return what looks for infinities and NaN in a result; None if nobody asks."""
        if not self._is_narrow or not isinstance(self.device, Screening):
            return None
        found = self.device.staging(4)
        self._buffers.append(found)
        run = self.device.screen(view, found)
        return None if run is None else Screen(run, found.memory)

    def _bind(self, row: Row) -> Run | None:
        def workspace(type_: TensorType) -> View:
            return View(row.device, self._workspaces[row.device, row.stream], 0, type_)

        return bind_row(row, self._view, workspace)

    def bind_instead(self, row: Row, step: Step, scratch: Buffer) -> Run | None:
        """Return a function that runs another step for a row, at the row's addresses.

        Args:
            row: a row of this plan, which stays as it is.
            step: computes the same outputs, in the same formats.
            scratch: its scratch memory.
        """
        return bind_row(
            replace(row, step=step), self._view, lambda type_: View(row.device, scratch, 0, type_)
        )

    def view_of(self, slot: Slot) -> View:
        """Return where a tensor of this plan is."""
        return self._view(slot)

    def _chain(self) -> list[Run]:
        """Return the calls of a run: recorded segments of device rows, and host rows."""
        runs: list[Run] = [*self._uploads.values()]
        pending = segments(self.rows)
        for number, row in enumerate(self.rows):
            if pending and number == pending[0].start:
                runs += self._segment(pending.pop(0))
            if row.device is HOST and row.run is not None:
                runs.append(row.run)
        if self.ends.on_device and runs and runs[-1] is _synchronize:
            runs.pop()  # callers wait for results where they read them
        if self._downloads:
            if runs and runs[-1] is _synchronize:
                runs.pop()
            runs += [*self._downloads.values(), _synchronize]
        return runs

    def _segment(self, segment: range) -> list[Run]:
        """Return a segment of device rows, recorded if possible, followed by a wait."""
        rows = [r for r in self.rows[segment.start : segment.stop] if r.run and not r.apart]
        if not rows:
            return []
        together = self.together(segment)
        recorded = None
        if is_capturable(rows) and not self._check_each:
            recorded = rows[0].device.record(together)
        return [recorded or together, _synchronize]

    def together(self, segment: range, *, copies: bool = True) -> Run:
        """Return a function that enqueues a segment of device rows on a stream and side streams.

        Args:
            segment: indices of the rows.
            copies: whether to include rows that move data between devices.
        """
        rows = self.rows[segment.start : segment.stop]
        if any(row.stream for row in rows):
            return side_by_side(self.rows, self.schedule, segment, copies=copies)
        wanted = [row for row in rows if not row.apart and (copies or row.kind != "copy")]
        return sequence([row.run for row in wanted if row.run is not None])

    # ── running ──────────────────────────────────────────────────────────────────────────────

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run once.

        Args:
            feeds: an array of the plan's dtype and shape for every input.

        Returns:
            New arrays by output name.
        """
        self.device.enter()  # pinned host memory depends on it, too
        for name in self._inputs:
            self.feed(name, feeds[name])
        self._execute(self._stream)
        return self.results()

    def feed(self, name: str, data: Array) -> None:
        """Copy a host input to its view; the next run reads a large one that is pinned."""
        if name in self._uploads:
            self._uploads[name].feed(data)
        else:
            copy(self._inputs[name], data)

    def results(self) -> dict[str, Array]:
        """Return the results on the host, once after each run; they are the caller's."""
        if self._copied is not None and not self._uploads:
            return {name: copied() for name, copied in self._copied}
        results = {name: data.copy() for name, data in self.constants.items()}
        results |= {n: self._results.copy(n, data) for n, data in self._outputs.items()}
        results |= {name: download.take() for name, download in self._downloads.items()}
        self._release_inputs()
        return {name: results[name] for name in self._names if name in results}

    @property
    def finite(self) -> set[str]:
        """Names of results of the last run that the device knows to have no infinity or NaN."""
        return {name for name, download in self._downloads.items() if download.is_finite}

    def execute(self, stream: Stream | None = None) -> None:
        """Run on inputs that are already in the arena; results stay there.

        Args:
            stream: whose order the work follows; the plan's own if None. The host waits only for
                results on the host.
        """
        self.device.enter()
        self._execute(stream or self._stream)

    def _execute(self, stream: Stream) -> None:
        try:
            if self._check_each:
                self._execute_each(stream)
            elif is_timed():
                self._execute_timed(stream)
            else:
                for run in self._joined:
                    run(stream)
        except BaseException:
            if self._uploads:
                with suppress(DeviceError):  # the first error says more
                    stream.synchronize()
                self._release_inputs()
            raise

    def _release_inputs(self) -> None:
        for upload in self._uploads.values():
            upload.release()

    def _execute_timed(self, stream: Stream) -> None:
        for run in self._runs:
            check_time()
            run(stream)
        check_time()

    def _execute_each(self, stream: Stream) -> None:
        for row in self.rows:
            if row.run is None:
                continue
            check_time()
            try:
                with nvtx_range(row.title):
                    row.run(stream)
                    stream.synchronize()
            except DeviceError as error:
                where = f"{row.title} ({row.backend}, {row.kernel})"
                raise type(error)(f"{where}: {error}") from error

    def close(self) -> None:
        """Release all memory; the plan cannot run afterwards."""
        for budget, nbytes in self.taken.items():
            budget.give(nbytes)
        self.taken.clear()
        self._runs, self._joined = [], []
        self.inputs, self.outputs = {}, {}
        self._inputs, self._outputs, self._copied = {}, {}, None
        self._uploads, self._downloads = {}, {}
        self._results.close()
        for row in self.rows:
            row.run = None
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()


def _synchronize(stream: Stream) -> None:
    stream.synchronize()
