"""A loaded model: checks inputs, finds or makes a program for their types, and runs it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from sys import is_finalizing
from typing import Any, cast

from ..base.arguments import checked_methods, flag, whole, words
from ..base.budget import Budget, device_budget
from ..base.closable import CheckedClosable
from ..base.guard import bounded
from ..base.notebook import html_table, one_line
from ..control.program import Program
from ..control.resources import Resources
from ..errors import DeviceError, UsageError
from ..ir.graph import Graph
from ..ir.hints import Doubts
from ..ir.mapped import free, release
from ..ir.named import no_tensor
from ..ir.types import TensorType
from ..options import NARROW, Options
from ..passes import Evaluate, Rewrites
from ..passes.bucketing import Bucket
from ..plan.backend import Backend, Stream
from ..plan.exchange import Feed, IOPlacement
from ..plan.host import HOST
from ..plan.plan import Memory
from ..plan.weights import WeightStore
from .bound_plan import BoundModel
from .bucket_program import BucketProgram
from .io_boundary import IOBoundary, Place
from .io_types import TensorInfo, owned
from .kept_plans import KeptModel
from .known_arrays import KnownArrays
from .model_source import ModelSource
from .overflow import Watch
from .pipeline import DEPTH, BufferedPlan, Pipeline, Streams
from .placement import Placement, placement_of
from .program_cache import Optimised, ProgramCache
from .program_pool import PoolEntry
from .select_rows import RowsOf


@checked_methods
class Model(CheckedClosable):
    """A model that is ready to run on one backend, optionally with fallbacks.

    Thread-safe: each thread gets its own plan. Use it as a context manager, or call `close`, to
    free all host and device memory at a defined time.

    Args:
        graph: the imported graph; shapes may be symbolic.
        backends: the requested one, then fallbacks.
        options: see `Options`.
        evaluate: runs one operator on arrays, for constant folding.
        source: where the graph comes from; None for a graph made from another model's, whose
            user has been warned of what its file declares wrongly.
        made: the graph after the passes, if they have run already.
        kept: what is kept of it on disk; None if nothing is.
        late: options of the passes that run on bodies, and on what waits for sizes; `options` if
            None.
    """

    def __init__(
        self,
        graph: Graph,
        backends: Sequence[Backend],
        options: Options,
        evaluate: Evaluate,
        source: ModelSource | None = None,
        made: Optimised | None = None,
        kept: KeptModel | None = None,
        late: Options | None = None,
    ) -> None:
        self.source, self.options = source or ModelSource(), options
        self.backends, self._imported = tuple(backends), graph
        self._outputs = tuple(TensorInfo.of(v, name) for name, v in graph.outputs.items())
        self._is_released = False
        budget = Budget(options.max_bytes)
        devices = dict.fromkeys(each.device for each in backends)
        most = options.max_device_bytes
        self._stores = {each: WeightStore(each, device_budget(most)) for each in devices}
        self._stores[HOST] = WeightStore(HOST, budget)
        doubts = Doubts(self.source.file, is_told=source is None)
        stores = self._stores
        self._resources = Resources(self.backends, options, stores, evaluate, budget, doubts, late)
        self._watch = Watch(graph, options, evaluate, self.source.file)
        self._boundary = IOBoundary(graph, self.backends[0].device)
        with self._bounded():
            what = graph, self._boundary, self._resources, self._close_stores
            self._programs = ProgramCache(*what, self.source.file, made, kept)
        names = [info.name for info in self._boundary.inputs]
        self._known = KnownArrays(self._programs, names, self.source.mapped, budget)

    # ── description ──────────────────────────────────────────────────────────────────────────

    @property
    def backend(self) -> str:
        """Name of the requested backend."""
        return self.backends[0].name

    @property
    def device(self) -> str:
        """Name of its device: ``cpu`` or ``cuda:0``."""
        return self.backends[0].device.name

    @property
    def precision(self) -> str:
        """Compute precision of float32 tensors."""
        return self.options.precision

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs of `run`."""
        return self._boundary.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs of `run`; data-dependent sizes are shown as the file declares them."""
        return self._outputs

    @property
    def imported(self) -> Graph:
        """The graph as imported, before any pass. Must not be changed."""
        return self._imported

    @property
    def graph(self) -> Graph:
        """The graph after the passes, with symbolic shapes. Must not be changed."""
        return self._programs.graph_for(self._programs.default)

    @property
    def rewrites(self) -> Rewrites:
        """The rewrites that the passes made to it."""
        return self._programs.rewrites

    def trust_sizes(self) -> None:
        """Do not warn of symbolic dimensions with several sizes.

        This is for callers that know the role of each input, such as decoders.
        """
        self._programs.trusts_sizes = True

    def __repr__(self) -> str:
        reads, gives = (", ".join(map(str, each)) for each in (self.inputs, self.outputs))
        return one_line("Model", f"{self.backend}{self._closed()} ({reads}) -> ({gives})")

    def _repr_html_(self) -> str:
        """Return an HTML table of inputs and outputs for notebooks."""
        rows = [("input", str(each)) for each in self.inputs]
        rows += [("output", str(each)) for each in self.outputs]
        title = f"{self.source.file or 'model'} on {self.backend}, {self.precision}"
        return html_table(title + self._closed(), rows)

    def _closed(self) -> str:
        return ", closed" if self._programs.pool.is_closed else ""

    # ── running ──────────────────────────────────────────────────────────────────────────────

    def __call__(
        self, *arrays: Any, to: Place = "host", stream: Any = None, **named: Any
    ) -> list[Any]:
        """Run on inputs by position, by keyword or in one dict; return the outputs in order."""
        inputs = self._boundary.called(arrays, named)
        return list(self.run(inputs, to=to, stream=stream).values())

    def run(
        self,
        inputs: Mapping[str, Any] | Sequence[Any] | None = None,
        outputs: Iterable[str] | Mapping[str, Any] | None = None,
        *,
        to: Place = "host",
        stream: Any = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Run the model.

        onnxruntime's order, ``run(names, inputs)``, is accepted as well.

        Args:
            inputs: a value for every input that the outputs depend on, by name, or in a list by
                position for all: an array of matching dtype and shape (strings as an array of
                `str`; Python's numbers, alone or in lists, take the input's dtype), a list for a
                sequence, a dictionary for a map; an optional may be None. Arrays on the model's
                device (of PyTorch, CuPy or tercet; with ``__dlpack__`` or
                ``__cuda_array_interface__``) are used without a copy to the host.
            outputs: names of tensors to return, intermediate ones included; the model's outputs,
                and with them all inputs, if None.
            to: ``host`` for numpy arrays; ``device`` for arrays in the memory of the model's
                device, which are numpy arrays if that is the host.
            stream: the CUDA stream (of PyTorch, CuPy or cuda.core, or its handle) in whose order
                the work is done; the legacy default stream if None and arrays are on the device.
                With inputs and results on the device, the host does not wait for the work.
            timeout: time limit in seconds, planning included; None for no limit. It is checked
                between steps.

        Returns:
            New arrays, lists or dictionaries by name.

        Raises:
            InputError: a name, dtype, rank, shape or device does not fit.
            UnsupportedError: no backend runs some nodes; lists each with all reasons.
            LimitError: `Options.max_bytes` would be exceeded.
            DeviceError, ModelError: a node fails on its data.
            TimeLimitError: the time limit passed; the model can run again.

        Warns:
            PrecisionWarning: in half precision, results contain an infinity or NaN that float32
                would not; names the node to keep in float32. Checked for results on the host, but
                not in `map`, `bind` and with ``to="device"``.
        """
        named = cast("Mapping[str, Any]", inputs)
        if type(inputs) is not dict:
            named, outputs = self._boundary.arranged(inputs, outputs)
        if outputs is None and stream is None and timeout is None and type(to) is str:
            again = self._known.run(named) if to == "host" else None
            if again is not None:
                return again
        wanted = self._wanted(outputs)
        work = self._boundary.order(named.values(), to, stream)
        feeds = self._feeds(wanted, named, work)
        with self._bounded(timeout):
            return self._run(wanted, feeds, work, on_device=to == "device")

    def _feeds(
        self, wanted: tuple[str, ...], named: Mapping[str, Any], work: Stream | None
    ) -> dict[str, Feed]:
        """Check the inputs; return those that a program for these outputs takes."""
        needed = self._programs.needed(wanted)
        feeds = self._boundary.check(named, work, needed=needed)
        if len(feeds) > len(needed):
            return {name: feed for name, feed in feeds.items() if name in needed}
        return feeds

    def _bounded(self, timeout: float | None = None) -> bounded:
        """Return a context manager with the limits of a run."""
        return bounded(timeout, self._resources.budget)

    def _run(
        self,
        wanted: tuple[str, ...],
        feeds: dict[str, Feed],
        work: Stream | None,
        *,
        on_device: bool,
    ) -> dict[str, Any]:
        for file in self.source.mapped:
            file.check()
        is_narrow = self.options.precision in NARROW
        entry, program = self._programs.take(wanted, feeds, work, on_device=on_device)
        try:
            if work is not None and program.resident is not None:
                return program.resident.run(feeds, work)
            here = self._boundary.here(feeds, work)
            results = program.run(here)
            finite = program.plans[0].finite if is_narrow and program.is_plan else set[str]()
        finally:
            self._programs.pool.give(entry, program)
        if is_narrow:
            self._watch.look(results, here, self._programs.graph_for(wanted), finite)
        else:
            self._known.remember(here, entry)
        if not program.is_plan:
            results = owned(results, here)
        return self._boundary.there(results, work) if on_device else results

    def _wanted(self, outputs: Iterable[str] | None) -> tuple[str, ...]:
        """Return the requested output names; raises InputError for an unknown one."""
        if outputs is None:
            return self._programs.default
        wanted: tuple[str, ...] = words("names of tensors")("outputs", outputs)
        for name in wanted:
            if name not in self._imported.outputs and name not in self._imported.values:
                raise no_tensor(self._imported, name)
        return wanted

    def map(
        self,
        batches: Iterable[Any],
        outputs: Iterable[str] | None = None,
        *,
        copy: bool = True,
        depth: int = DEPTH,
    ) -> Generator[dict[str, Any]]:
        """Run many batches; yield their results in order.

        On a GPU, upload, compute and download of successive batches overlap. Batches may differ in
        shape.

        Args:
            batches: for each batch the inputs of `run`, or its arrays as a tuple or list, or a
                single array if the model has one input. Up to `depth` batches are read ahead.
            outputs: as for `run`.
            copy: False saves two host copies: batches in pinned memory (see `tercet.pinned`) must
                then stay unchanged until their results are returned, and results are valid only
                until the next ones are requested.
            depth: number of batches in flight, each of which takes pinned and device memory.

        Yields:
            Arrays by name.

        Raises:
            TercetError: as for `run`, with the index of the batch. The results of earlier batches
                are yielded first; later batches have not been read.
        """
        with self.pipeline(outputs, copy=copy, depth=depth) as pipeline:
            yield from pipeline.map(batches)

    def pipeline(
        self, outputs: Iterable[str] | None = None, *, copy: bool = True, depth: int = DEPTH
    ) -> Pipeline:
        """Return the pipeline behind `map`, to reuse its memory for several streams of batches.

        Args:
            outputs: as for `run`.
            copy: as for `map`.
            depth: as for `map`.
        """
        depth, copy = whole(1)("depth", depth), flag("copy", copy)
        wanted, exchange = self._wanted(outputs), self._boundary.exchange
        streams = Streams.of(self.backends[0].device)

        def check(batch: Any) -> tuple[Hashable, dict[str, Feed]]:
            work = streams.upload if exchange is not None else None
            feeds = self._feeds(wanted, self._boundary.named(batch), work)
            ends = self._programs.ends(feeds, on_device=True, all_there=True)
            return (self._programs.types(feeds), ends), feeds

        def buffered(feeds: Mapping[str, Feed]) -> BufferedPlan | None:
            if exchange is None:
                return None
            with self._bounded():
                found = self._programs.take(wanted, {**feeds}, streams.upload, all_there=True)
            entry, program = found
            release = partial(self._programs.pool.give, entry, program)
            if program.resident is None:
                release()
                return None
            program.resident.wait()
            return BufferedPlan(program.resident.plan, exchange, depth, release)

        def alone(feeds: Mapping[str, Feed]) -> dict[str, Any]:
            work = streams.compute if exchange is not None else None
            with self._bounded():
                return self._run(wanted, {**feeds}, work, on_device=False)

        maximum = self.options.max_plans
        return Pipeline(streams, check, buffered, alone, maximum=maximum, copy=copy)

    def bind(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        outputs: Iterable[str] | None = None,
    ) -> BoundModel:
        """Return a plan for these shapes whose inputs and results callers access in place.

        Args:
            shapes: as for `prepare`.
            outputs: as for `run`.

        Raises:
            UsageError: the model is not a single plan, because of control flow or data-dependent
                shapes.
        """
        entry, program = self._prepared(shapes, outputs, "device")
        release = partial(self._programs.pool.give, entry, program)
        if not program.is_plan:
            release()
            raise UsageError(
                "the model has control flow or data-dependent sizes, so its tensors have no fixed "
                "addresses; use run"
            )
        (plan,) = program.plans
        check = partial(self._boundary.check, needed=())
        return BoundModel(plan, program.resident, self._boundary.exchange, check, release)

    def prepare(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        outputs: Iterable[str] | None = None,
        *,
        to: Place = "host",
    ) -> Program:
        """Make (or find) the program for these input shapes without running it.

        Args:
            shapes: shape by input name; dimensions that are neither given nor fixed by the model
                are 1.
            outputs: as for `run`.
            to: ``device`` for the program that `run` uses with all inputs and results on the
                device.

        Returns:
            The idle program, to look at its plans, memory and graph.
        """
        entry, program = self._prepared(shapes, outputs, to)
        self._programs.pool.give(entry, program)
        return program

    def _prepared(
        self,
        shapes: Mapping[str, Sequence[int]] | None,
        outputs: Iterable[str] | None,
        to: Place,
    ) -> tuple[PoolEntry, Program]:
        self._boundary.order((), to, None)
        there = to == "device"
        wanted = self._wanted(outputs)
        needed = self._programs.needed(wanted)
        samples = self._boundary.samples({} if shapes is None else shapes, needed)
        with self._bounded():
            return self._programs.take(wanted, samples, known=False, all_there=there)

    def bucket(
        self,
        outputs: tuple[str, ...],
        types: Mapping[str, TensorType],
        room: int,
        ends: IOPlacement,
        rows_of: RowsOf | None = None,
        edit: Callable[[Bucket], Bucket] | None = None,
    ) -> BucketProgram:
        """Return a new program for growing sizes; the caller closes it."""
        with self._bounded():
            return self._programs.bucket(outputs, types, room, ends, rows_of, edit)

    def placement(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        outputs: Iterable[str] | None = None,
    ) -> Placement:
        """Return which backend runs each node, with which kernel, and why.

        Without `shapes` it describes the last program that computed these outputs (the model's if
        None), or the one for the inputs that ran last; see `prepare` for both.
        """
        return placement_of(self._described(shapes, outputs))

    def memory(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        outputs: Iterable[str] | None = None,
    ) -> Memory:
        """Return the bytes held by a program; see `placement`."""
        return self._described(shapes, outputs).memory

    def _described(
        self, shapes: Mapping[str, Sequence[int]] | None, outputs: Iterable[str] | None
    ) -> Program:
        if shapes is None:
            last = self._programs.latest(self._wanted(outputs))
            return last or self.prepare(self._programs.last_shapes(), outputs)
        return self.prepare(shapes, outputs)

    # ── closing ──────────────────────────────────────────────────────────────────────────────

    def check_open(self) -> None:
        """Raise UsageError if the model is closed."""
        self._programs.pool.check_open()

    def close(self) -> None:
        """Free all host and device memory; the model cannot run afterwards."""
        self._programs.pool.close()
        self._release()

    def _release(self) -> None:
        """Release memory-mapped files once the last run has ended."""
        if self._is_released:
            release(self.source.mapped, self._imported)

    def __del__(self, ends: Callable[[], bool] = is_finalizing) -> None:
        """Free the graph as imported, if the model has been closed and nobody keeps the graph."""
        if ends() or not getattr(self, "_is_released", False):
            return
        graphs = [self._imported]
        self._imported = self._watch.imported = Graph()
        free(graphs)

    def _close_stores(self) -> None:
        self._is_released = True
        for store in self._stores.values():
            store.close()
        if self._boundary.exchange is not None:
            with suppress(DeviceError):  # callers of failed runs already have the device's error
                self._boundary.exchange.trim()
