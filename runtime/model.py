"""A loaded model: checks inputs, finds or makes a program for their shapes, runs it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from types import TracebackType
from typing import Any

import numpy as np

from .backend import Backend
from .errors import InputError, UnsupportedError, UsageError, did_you_mean
from .feeds import TensorInfo, check_value, own
from .host import HOST
from .infer import specialise
from .ir import Graph
from .options import Options
from .passes import AFTER_SHAPES, BEFORE_SHAPES, Evaluate, Rewrites, optimise
from .placement import Placement, placement_of
from .plan import Memory
from .program import Program
from .resources import Keys, Resources
from .types import HostValue, OptionalType, ValueType, type_of
from .weights import WeightStore


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model comes from.

    Attributes:
        file: its path, or None if it was given in memory.
        opsets: the file's opset by domain.
        ir_version: the file's version of the ONNX format.
        producer: the program that wrote it, with its version.
        metadata: the file's own properties.
        warnings: what is odd about the file, but does no harm.
    """

    file: str | None = None
    opsets: Mapping[str, int] = field(default_factory=dict[str, int])
    ir_version: int = 0
    producer: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()


class Model:
    """A model that is ready to run on one backend, with others behind it.

    Several threads may call `run` at once: each gets a plan of its own. Use it as a context
    manager, or call `close`, to have all memory of host and device back at a known time.

    Args:
        graph: the imported graph; symbolic shapes are fine.
        backends: the one that was asked for first, fallbacks behind it.
        options: see `Options`.
        evaluate: runs one operator on arrays, for constant folding.
        source: where the graph comes from.
    """

    def __init__(
        self,
        graph: Graph,
        backends: Sequence[Backend],
        options: Options,
        evaluate: Evaluate,
        source: Source | None = None,
    ) -> None:
        self.source = source or Source()
        self.options = options
        self.backends = tuple(backends)
        self._imported = graph
        self._inputs = tuple(TensorInfo.of(v) for v in graph.inputs)
        self._stores = {b.device: WeightStore(b.device) for b in backends}
        self._stores.setdefault(HOST, WeightStore(HOST))
        self._resources = Resources(self.backends, options, self._stores, evaluate)
        self._graphs: dict[tuple[str, ...], Graph] = {}
        self._keys = Keys()
        self._idle: OrderedDict[Hashable, list[Program]] = OrderedDict()
        self._busy: set[Program] = set()
        self._lock = Lock()
        self._closed = False
        self.rewrites = Rewrites()
        self._default = tuple(graph.outputs)
        self._graphs[self._default] = self._optimise(graph.clone(), self.rewrites)

    # ── description ──────────────────────────────────────────────────────────────────────────

    @property
    def backend(self) -> str:
        """Name of the backend that was asked for."""
        return self.backends[0].name

    @property
    def precision(self) -> str:
        """Arithmetic of float32 tensors."""
        return self.options.precision

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What `run` takes."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What `run` gives."""
        return tuple(TensorInfo.of(v, name) for name, v in self._imported.outputs.items())

    @property
    def imported(self) -> Graph:
        """The graph as it was read, before any pass. Not to be changed."""
        return self._imported

    @property
    def graph(self) -> Graph:
        """The graph after the passes, before shapes are bound. Not to be changed."""
        return self._graphs[self._default]

    def __repr__(self) -> str:
        reads = ", ".join(map(str, self.inputs))
        gives = ", ".join(map(str, self.outputs))
        return f"<tercet.Model {self.backend} ({reads}) -> ({gives})>"

    # ── running ──────────────────────────────────────────────────────────────────────────────

    def __call__(self, *arrays: Any) -> list[Any]:
        """Run on positional inputs; return the outputs in the model's order."""
        if len(arrays) != len(self._imported.inputs):
            raise InputError(
                f"{len(arrays)} inputs were given; the model takes {len(self._imported.inputs)}: "
                + ", ".join(map(str, self.inputs))
            )
        names = [v.name for v in self._imported.inputs]
        return list(self.run(dict(zip(names, arrays, strict=True))).values())

    def run(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None
    ) -> dict[str, Any]:
        """Run the model.

        Args:
            inputs: a value for every input: an array of its dtype and a shape that fits (strings
                as an array of `str`), a list for a sequence, a dictionary for a map; an optional
                may be None.
            outputs: names of the tensors wanted, any intermediate one too; the model's outputs
                where None.

        Returns:
            New arrays, lists or dictionaries by name.

        Raises:
            InputError: a name, dtype, rank or shape that does not fit.
            UnsupportedError: nodes that no backend runs, each with every reason.
            LimitError: something would take more than `Options.max_bytes`.
            DeviceError, ModelError: a node cannot work on the data that it gets.
        """
        feeds = self._check(inputs)
        wanted = self._default if outputs is None else self._check_outputs(outputs)
        key, program = self._take(wanted, feeds)
        try:
            results = program.run(feeds)
        finally:
            self._give(key, program)
        return results if program.is_plan else {n: own(v, feeds) for n, v in results.items()}

    def prepare(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        outputs: Iterable[str] | None = None,
    ) -> Program:
        """Build (or find) the program for these input shapes, without running it.

        Args:
            shapes: shape by input name; dimensions that are not given and not fixed by the model
                are 1.
            outputs: as for `run`.

        Returns:
            The program, idle; for its plans, memory and graph.
        """
        given = shapes or {}
        feeds: dict[str, HostValue] = {}
        for info in self._inputs:
            if info.dtype is None and info.type is not None:
                feeds[info.name] = None if isinstance(info.type, OptionalType) else []
                continue
            if info.dtype is None or (info.shape is None and info.name not in given):
                raise InputError(f"the shape of input '{info.name}' is not known; give one")
            default = tuple(d if isinstance(d, int) else 1 for d in info.shape or ())
            shape = tuple(given.get(info.name, default))
            feeds[info.name] = np.broadcast_to(np.zeros((), info.dtype), shape)
        for name in given:
            if name not in feeds:
                raise self._unknown_input(name)
        feeds = self._check(feeds)
        wanted = self._default if outputs is None else self._check_outputs(outputs)
        key, program = self._take(wanted, feeds, known=False)
        self._give(key, program)
        return program

    def placement(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        outputs: Iterable[str] | None = None,
    ) -> Placement:
        """Return which backend runs each node, with which kernel, and why.

        Without arguments it describes what ran last; see `prepare` for them.
        """
        return placement_of(self._described(shapes, outputs))

    def memory(
        self,
        shapes: Mapping[str, Sequence[int]] | None = None,
        outputs: Iterable[str] | None = None,
    ) -> Memory:
        """Return the bytes that a program holds; see `placement`."""
        return self._described(shapes, outputs).memory

    def _described(
        self, shapes: Mapping[str, Sequence[int]] | None, outputs: Iterable[str] | None
    ) -> Program:
        if not shapes and outputs is None:
            with self._lock:
                for programs in reversed(self._idle.values()):
                    if programs:
                        return programs[-1]
        return self.prepare(shapes, outputs)

    # ── closing ──────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Give back all memory of host and device; the model cannot run afterwards."""
        with self._lock:
            self._closed = True
            idle = [program for programs in self._idle.values() for program in programs]
            self._idle.clear()
            busy = bool(self._busy)
        for program in idle:
            program.close()
        if not busy:
            self._close_stores()

    def _close_stores(self) -> None:
        for store in self._stores.values():
            store.close()
        self._graphs.clear()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ── checks ───────────────────────────────────────────────────────────────────────────────

    def _unknown_input(self, name: str) -> InputError:
        known = [v.name for v in self._imported.inputs]
        return InputError(
            f"the model has no input '{name}'{did_you_mean(name, known)} "
            f"(inputs: {', '.join(map(str, self.inputs))})"
        )

    def _check(self, inputs: Mapping[str, Any]) -> dict[str, HostValue]:
        symbols: dict[str, tuple[int, str]] = {}
        feeds: dict[str, HostValue] = {}
        for info in self._inputs:
            if info.name in inputs:
                feeds[info.name] = check_value(info, inputs[info.name], symbols)
        for name in inputs:
            if name not in feeds:
                raise self._unknown_input(name)
        for info in self._inputs:
            if info.name not in feeds:
                raise InputError(f"input '{info.name}' is missing; the model wants {info}")
        return feeds

    def _check_outputs(self, outputs: Iterable[str]) -> tuple[str, ...]:
        wanted = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        for name in wanted:
            if name not in self._imported.outputs and name not in self._imported.values:
                known = list(self._imported.values)
                raise InputError(f"the model has no tensor '{name}'{did_you_mean(name, known)}")
        return wanted

    # ── plans ────────────────────────────────────────────────────────────────────────────────

    def _optimise(self, graph: Graph, rewrites: Rewrites) -> Graph:
        optimise(graph, BEFORE_SHAPES, self.options, self._resources.evaluate, rewrites)
        return graph

    def _graph_for(self, wanted: tuple[str, ...]) -> Graph:
        if wanted not in self._graphs:
            outputs = self._imported.outputs
            values = {n: outputs.get(n) or self._imported.values[n] for n in wanted}
            self._graphs[wanted] = self._optimise(self._imported.extract(values), Rewrites())
        return self._graphs[wanted]

    def _take(
        self, wanted: tuple[str, ...], feeds: Mapping[str, HostValue], *, known: bool = True
    ) -> tuple[Hashable, Program]:
        """Return a program for values of these types, which nobody else has, and its key.

        Args:
            wanted: names of the results.
            feeds: values of all inputs.
            known: whether elements count, or types alone.
        """
        inputs = self._imported.inputs
        values = [feeds[v.name] for v in inputs]
        types = tuple(type_of(feeds[v.name], v.type) for v in inputs)
        found, full = self._keys.find(types, values) if known else (types, types)
        key = (wanted, found)
        with self._lock:
            if self._closed:
                raise UsageError("the model is closed")
            idle = self._idle.get(key)
            if idle:
                self._idle.move_to_end(key)
                program = idle.pop()
                self._busy.add(program)
                return key, program
        try:
            with self._resources.lock:
                named = {v.name: type_ for v, type_ in zip(inputs, full, strict=True)}
                program = self._build(self._graph_for(wanted), named)
        except UnsupportedError:
            if not known or not self._keys.learn(types, values):
                raise
            return self._take(wanted, feeds)
        with self._lock:
            self._busy.add(program)
        return key, program

    def _build(self, graph: Graph, types: Mapping[str, ValueType | None]) -> Program:
        bound = specialise(graph, types)
        log = self.rewrites.copy()
        optimise(bound, AFTER_SHAPES, self.options, self._resources.evaluate, log)
        try:
            return Program(bound, self._resources)
        except UnsupportedError as error:
            if self.source.file:
                error.add_note(f"model: {self.source.file}")
            raise

    def _give(self, key: Hashable, program: Program) -> None:
        dropped: list[Program] = []
        with self._lock:
            self._busy.discard(program)
            if self._closed:
                dropped.append(program)
            else:
                self._idle.setdefault(key, []).append(program)
                self._idle.move_to_end(key)
                while sum(map(len, self._idle.values())) > self.options.max_plans:
                    oldest = next(k for k, idle in self._idle.items() if idle)
                    dropped.append(self._idle[oldest].pop(0))
                    if not self._idle[oldest]:
                        del self._idle[oldest]
            last = self._closed and not self._busy
        for old in dropped:
            old.close()
        if last:
            self._close_stores()
