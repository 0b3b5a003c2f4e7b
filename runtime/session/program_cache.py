"""The program cache: finds or makes the program for given inputs and requested outputs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

from ..base.collecting import no_collection
from ..base.parallel import same_threads
from ..base.warned import warn
from ..control.program import Program
from ..control.resources import Keys, Resources, Types, is_deciding
from ..errors import (
    DeviceOutOfMemory,
    InputError,
    LimitError,
    ModelError,
    ModelWarning,
    UnsupportedError,
)
from ..ir.graph import Graph, Value
from ..ir.infer import blame_sizes, fold_known, infer, specialise
from ..ir.mapped import free
from ..ir.symbols import ambiguous, loosened, sizes_of
from ..ir.types import Array, Dim, TensorType, ValueType, constant_type, type_of
from ..options import Options
from ..passes import STATIC_PASSES, SYMBOLIC_PASSES, Evaluate, Rewrites, lower, optimise
from ..passes.bucketing import Bucket, bucketed
from ..passes.half.widen_halves import WidenedConstants, widen_halves
from ..plan.backend import Interpreter, Stream
from ..plan.exchange import HOST_IO, Feed, IOPlacement, Lent
from ..plan.format import Format
from ..plan.layout import lay_out
from ..plan.weights import arrays_of
from .bucket_program import BucketProgram
from .flags import flags_of
from .growth import Growth, bounded_by, count_of, is_batch, rooms
from .io_boundary import IOBoundary
from .kept_plans import KeptModel
from .program_pool import IdlePrograms, PoolEntry, ProgramPool
from .select_rows import RowsOf, select_rows
from .slow import SlowPaths

#: Names of results and inputs, symbols with several sizes, and inputs with their elements.
_Elements = tuple[tuple[str, tuple[Dim, ...] | bytes | None], ...]
_Wanted = tuple[tuple[str, ...], frozenset[str], frozenset[str], _Elements, RowsOf | None]


class Optimised(NamedTuple):
    """The graph of all outputs of a model, with symbolic shapes, and what the passes did to it."""

    graph: Graph
    rewrites: Rewrites


@same_threads()
def optimised(graph: Graph, options: Options, evaluate: Evaluate) -> Optimised:
    """Return an imported graph after the passes; it is not changed itself."""
    made = Optimised(graph.clone(), Rewrites())
    optimise(made.graph, SYMBOLIC_PASSES, options, evaluate, made.rewrites)
    return made


class ProgramCache:
    """The programs of one model, by requested outputs, input types and placement.

    Args:
        graph: as imported.
        boundary: of the model.
        resources: what programs are made with.
        closed: called when the last program is closed, after `ProgramPool.close`.
        file: the model's path, for errors.
        made: the graph of all outputs, if it has been made already.
        kept: what is kept of the model on disk; None if nothing is.

    Attributes:
        rewrites: what the passes did to the graph of all outputs.
        pool: the idle programs, and those in use.
        trusts_sizes: whether the caller vouches for the inputs, so that a symbol with several sizes
            is an error of the file.
    """

    def __init__(
        self,
        graph: Graph,
        boundary: IOBoundary,
        resources: Resources,
        closed: Callable[[], None],
        file: str | None = None,
        made: Optimised | None = None,
        kept: KeptModel | None = None,
    ) -> None:
        self._kept = kept
        self._imported, self._file = graph, file
        self._declared = {value.name: value.type for value in graph.inputs}
        self.trusts_sizes = False
        self._boundary, self._resources = boundary, resources
        self._graphs: OrderedDict[_Wanted, Graph] = OrderedDict()
        self._widened = WidenedConstants()
        self._warned: set[str] = set()
        self._keys = Keys()
        self._growth = Growth()
        # On the host alone, single nodes of any size run between plans; on devices,
        # growing sizes get buckets.
        self._flags = flags_of(graph)
        may_grow = bool(self._flags) or not any(node.op.graphs() for node in graph.nodes)
        on_host = resources.on_host
        interprets = any(isinstance(each, Interpreter) for each in resources.backends)
        self._may_span = may_grow and on_host and interprets
        self._may_bucket = may_grow and not on_host
        self._on_closed = closed
        self._slow = SlowPaths(resources.options, file)
        self.pool = ProgramPool(resources.options.max_plans, self._close, self._slow.dropped)
        for budget in resources.budgets:
            budget.reserve = IdlePrograms(self.pool, budget)
        if made is None:
            made = optimised(graph, resources.options, resources.evaluate)
        self.rewrites = made.rewrites
        self.default = tuple(graph.outputs)
        self._needed = {self.default: frozenset(info.name for info in boundary.inputs)}
        self._whole: _Wanted = self.default, self._needed[self.default], frozenset(), (), None
        self._graphs[self._whole] = made.graph

    def _close(self) -> None:
        graphs = [self._imported, *self._graphs.values()]
        self._imported = Graph(self._imported.name)
        self._graphs.clear()
        self._widened.clear()
        if self._kept is not None:
            self._kept.close()
        free(graphs)
        closed, self._on_closed = self._on_closed, _do_nothing
        closed()

    # ── graphs ───────────────────────────────────────────────────────────────────────────────

    def _optimise(self, graph: Graph, rewrites: Rewrites) -> Graph:
        resources = self._resources
        optimise(graph, SYMBOLIC_PASSES, resources.options, resources.evaluate, rewrites)
        return graph

    def needed(self, wanted: tuple[str, ...]) -> frozenset[str]:
        """Return the names of the inputs that a program for these outputs takes.

        They are those that the outputs depend on, and all for the outputs of the model.
        """
        if wanted not in self._needed:
            graph = self._imported
            found = graph.needed(self._values(wanted).values())
            self._needed[wanted] = frozenset(v.name for v in graph.inputs if v in found)
        return self._needed[wanted]

    def _values(self, wanted: tuple[str, ...], graph: Graph | None = None) -> dict[str, Value]:
        """Return these values of the imported graph, or of a copy, by name."""
        graph = graph or self._imported
        return {name: graph.outputs.get(name) or graph.values[name] for name in wanted}

    def graph_for(
        self,
        wanted: tuple[str, ...],
        inputs: Iterable[str] | None = None,
        unknown: frozenset[str] = frozenset(),
        flags: tuple[tuple[str, TensorType], ...] = (),
        rows_of: RowsOf | None = None,
    ) -> Graph:
        """Return the graph for these outputs, after the passes, with symbolic shapes.

        Besides that of all outputs, up to `max_plans` graphs are kept.

        Args:
            wanted: names of the outputs.
            inputs: names of the inputs, all that the outputs depend on among them; `needed` if
                None.
            unknown: symbols with several sizes.
            flags: types with the elements of known inputs; see `flags_of`.
            rows_of: the part of an output that is returned.
        """
        elements = tuple((name, type_.elements) for name, type_ in flags)
        given = self.needed(wanted) if inputs is None else frozenset(inputs)
        key = wanted, given, unknown, elements, rows_of
        with self._resources.lock:
            if key not in self._graphs:
                self.pool.check_open()
                graph = loosened(self._imported, unknown) if unknown else self._imported
                found = graph.extract(self._values(wanted, graph), given)
                if flags:
                    known = dict(flags)
                    for value in found.inputs:
                        value.type = known.get(value.name, value.type)
                    infer(found)
                if rows_of is not None:
                    select_rows(found, rows_of)
                self._graphs[key] = self._optimise(found, Rewrites())
            self._graphs.move_to_end(key)
            if len(self._graphs) > self._resources.options.max_plans + 1:
                self._drop(next(each for each in self._graphs if each != self._whole))
            return self._graphs[key]

    def _drop(self, key: _Wanted) -> None:
        """Drop a graph, and the weights that only it has."""
        self._forget([self._graphs.pop(key)])

    def _forget(self, graphs: Sequence[Graph]) -> None:
        """Drop graphs of which no program is left, and the weights that only they have."""
        alone = set[int]().union(*map(arrays_of, graphs))
        for kept in (self._imported, *list(self._graphs.values())):
            alone -= arrays_of(kept)
        gone = self._widened.forget(alone)
        alone = alone.union(map(id, gone)) - self._widened.ids
        for store in self._resources.stores.values():
            store.forget(alone)
        for graph in graphs:
            graph.dissolve()

    @no_collection()
    @same_threads()
    def _build(
        self,
        wanted: tuple[str, ...],
        types: Mapping[str, ValueType | None],
        ends: IOPlacement,
        room: int | None = None,
        rows_of: RowsOf | None = None,
        edit: Callable[[Bucket], Bucket] | None = None,
    ) -> Program:
        """Make a program; with `room`, one for a bucket of growing sizes."""
        kept, whole = None, self._graphs.get(self._whole)  # None since the model was closed
        is_default = wanted == self.default and room is None and rows_of is None
        if self._kept is not None and whole is not None and is_default:
            kept = self._kept.program(types, ends, whole, self._resources)
            if kept is not None and kept.graph is not None:
                return self._ended(Program(kept.graph, self._resources, ends=ends, laying=kept))
        unclear = ambiguous(sizes_of(self._imported.inputs, types))
        known = tuple(
            (name, type_)
            for name in self._flags
            if isinstance(type_ := types.get(name), TensorType) and type_.known is not None
        )
        try:
            general = self.graph_for(wanted, types, frozenset(unclear), known, rows_of)
            bound = specialise(general, types)
        except ModelError as error:
            if not unclear:
                blame_sizes(error, self._imported.inputs, types)
                raise
            found = ", and ".join(f"'{symbol}' is {text}" for symbol, text in unclear.items())
            raise InputError(f"{found}; the model cannot work on such inputs: {error}") from error
        self._warn(unclear)
        self._resources.doubts.look(bound)
        resources, log = self._resources, self.rewrites.copy()
        optimise(bound, STATIC_PASSES, resources.options, resources.evaluate, log)
        bucket = None
        if room is not None:
            infer(bound)  # taken branches are inlined now
            fold_known(bound)
            bucket = bucketed(bound, room)
            bucket = bucket if edit is None else edit(bucket)
            optimise(bound, STATIC_PASSES, resources.options, resources.evaluate, log)
        self._widen(bound, general)
        lower(bound)
        if unclear or known or resources.doubts.is_told or log.endless:
            kept = None  # its warnings would not be repeated
        try:
            if bucket is not None:
                program: Program = BucketProgram(bucket, resources, ends)
            else:
                program = Program(bound, resources, ends=ends, laying=kept or lay_out)
        except UnsupportedError as error:
            if self._file:
                error.add_note(f"model: {self._file}")
            raise
        if kept is not None:
            kept.end()
        return self._ended(program)

    def _widen(self, graph: Graph, general: Graph) -> None:
        """Keep floats of 16 bits in float32, if the options ask for it; see `widen_halves`.

        Programs share constants of the graph without sizes; others may be those of their sizes.
        """
        options = self._resources.options
        if options.widens:
            constants = partial(self._widened.of, arrays_of(general))
            widen_halves(graph, constants, options.fold_total)

    def _ended(self, program: Program) -> Program:
        """Return a program that has been made, or read."""
        # Sizes make constants of shapes and tables, which no other program reads.
        program.on_closed = self._forget
        self._slow.look(program)
        return program

    def _warn(self, unclear: Mapping[str, str]) -> None:
        """Warn of symbols with several sizes, once each."""
        for symbol, text in unclear.items():
            if symbol not in self._warned and not self.trusts_sizes:
                self._warned.add(symbol)
                message = f"dimension '{symbol}' is {text}; it is taken as unknown"
                warn(": ".join(filter(None, (self._file, message))), ModelWarning)

    # ── programs ─────────────────────────────────────────────────────────────────────────────

    def ends(self, feeds: Mapping[str, Feed], *, on_device: bool, all_there: bool) -> IOPlacement:
        """Return where inputs and results are.

        Args:
            feeds: values of the inputs.
            on_device: whether results are requested there.
            all_there: whether all inputs and results are there.
        """
        there: list[tuple[str, Format]] = []
        for info in self._boundary.inputs:
            feed = feeds.get(info.name)
            if isinstance(feed, Lent):
                there.append((info.name, feed.view.format))
            elif feed is not None and all_there and isinstance(info.type, TensorType):
                there.append((info.name, Format.CONTIGUOUS))
        on_device = all_there or (on_device and self._boundary.exchange is not None)
        return IOPlacement(tuple(there), on_device) if there or on_device else HOST_IO

    def types(self, feeds: Mapping[str, Feed]) -> tuple[ValueType | None, ...]:
        """Return the types of the inputs, in the order of `feeds`."""
        found: list[ValueType | None] = []
        for name, feed in feeds.items():
            found.append(
                feed.type if isinstance(feed, Lent) else type_of(feed, self._declared[name])
            )
        return tuple(found)

    def take(
        self,
        wanted: tuple[str, ...],
        feeds: dict[str, Feed],
        work: Stream | None = None,
        *,
        known: bool = True,
        on_device: bool = False,
        all_there: bool = False,
    ) -> tuple[PoolEntry, Program]:
        """Return an exclusive program for these values, and the entry to return it to.

        Args:
            wanted: names of the outputs.
            feeds: values of the inputs, in order; those that determine shapes are copied to the
                host.
            work: the stream that reads inputs on the device.
            known: whether the key includes elements, or types alone.
            on_device: see `ends`.
            all_there: see `ends`.
        """
        ends = self.ends(feeds, on_device=on_device, all_there=all_there)
        types = self.types(feeds)
        values = [None if isinstance(feed, Lent) else feed for feed in feeds.values()]
        found, full = self._keys.find(types, values) if known else (types, types)
        entry, program = self.pool.take((wanted, found, ends))
        if program is not None:
            return entry, program
        if known and found is types and ends is HOST_IO and (self._may_span or self._may_bucket):
            lent = self._spanning(wanted, types, feeds)
            if lent is not None:
                return lent
        try:
            with self._resources.lock:
                program = self._build(wanted, dict(zip(feeds, full, strict=True)), ends)
        except UnsupportedError:
            if not known or not (self._keys.learn(types, values) or self._fetch(feeds, work)):
                raise
            there = {"on_device": on_device, "all_there": all_there}
            return self.take(wanted, feeds, work, **there)
        self.pool.add(program)
        return entry, program

    def _spanning(
        self, wanted: tuple[str, ...], types: Types, feeds: Mapping[str, Feed]
    ) -> tuple[PoolEntry, Program] | None:
        """Return a program for all sizes that growth leads to; None if they get their own."""
        flags = {name: cast("Array", feeds[name]).copy() for name in self._flags if name in feeds}
        group = wanted, *(data.tobytes() for data in flags.values())
        general = self._growth.spanning(group, types)
        if general is None:
            return None
        general = tuple(
            constant_type(flags[name]) if name in flags else type_
            for name, type_ in zip(feeds, general, strict=True)
        )
        try:
            if self._may_bucket:
                return self._bucket(group, types, general, tuple(feeds))
            entry, program = self.pool.take((*group, general, HOST_IO))
            if program is None:
                with self._resources.lock:
                    named = dict(zip(feeds, general, strict=True))
                    program = self._build(wanted, named, HOST_IO)
                self.pool.add(program)
        except (UnsupportedError, ModelError, LimitError, DeviceOutOfMemory):
            self._growth.refuse(group, types)
            return None
        return entry, program

    def _bucket(
        self,
        group: tuple[tuple[str, ...], *tuple[bytes, ...]],
        types: Types,
        general: Types,
        names: tuple[str, ...],
    ) -> tuple[PoolEntry, Program] | None:
        """Return the program of the smallest bucket with room for these sizes.

        None if an index is outside of an axis of such a size, which planning for it alone says.
        """
        if is_batch(general):
            raise UnsupportedError("batches have no buckets")
        count = count_of(types, general)
        for room in rooms(general):
            if room <= count:
                continue
            entry, program = self.pool.take((*group, general, room))
            if program is None:
                with self._resources.lock:
                    named = dict(zip(names, bounded_by(general, room), strict=True))
                    program = self._build(group[0], named, HOST_IO, room)
                self.pool.add(program)
            if isinstance(program, BucketProgram) and program.most < count:
                self.pool.give(entry, program)
                continue
            if isinstance(program, BucketProgram) and program.least > count:
                self.pool.give(entry, program)
                return None
            return entry, program
        raise UnsupportedError("no bucket has room")

    def bucket(
        self,
        wanted: tuple[str, ...],
        types: Mapping[str, TensorType],
        room: int,
        ends: IOPlacement,
        rows_of: RowsOf | None = None,
        edit: Callable[[Bucket], Bucket] | None = None,
    ) -> BucketProgram:
        """Return a new program for growing sizes; the caller closes it.

        Args:
            wanted: names of the outputs.
            types: of all inputs, with growing sizes.
            room: see `Bucket`.
            ends: where inputs and results are.
            rows_of: the part of an output that is returned; see `select_rows`.
            edit: rewrites the graph of the bucket.

        Raises:
            UnsupportedError: there is no such program; names the node.
        """
        with self._resources.lock:
            program = self._build(wanted, types, ends, room, rows_of, edit)
        assert isinstance(program, BucketProgram)
        return program

    def latest(self, wanted: tuple[str, ...]) -> Program | None:
        """Return the idle program that last computed these outputs, or None."""
        return self.pool.latest(lambda key: cast("tuple[object, ...]", key)[0] == wanted)

    def last_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs of the last run, as far as known."""
        program = self.pool.latest(lambda key: True)
        values = program.graph.inputs if program is not None else ()
        types = {value.name: value.type for value in values}
        return {n: t.dims for n, t in types.items() if isinstance(t, TensorType) and t.is_static}

    def _fetch(self, feeds: dict[str, Feed], work: Stream | None) -> bool:
        """Copy inputs that may determine shapes to the host from now on; False if none do."""
        small = {n: f for n, f in feeds.items() if isinstance(f, Lent) and is_deciding(f.type)}
        self._boundary.wanted_here.update(small)
        feeds.update(self._boundary.here(small, work))
        return bool(small)


def _do_nothing() -> None:
    """Callers of models that are closed twice have been told."""
