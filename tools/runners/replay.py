"""Replay of graphs and parts of graphs on given values, on any runner."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ... import backends
from ...backends.numpy import evaluate
from ...importers.onnx.writing.expand import defined
from ...importers.onnx.writing.export import export
from ...importers.onnx.writing.masks import with_full_masks
from ...runtime.errors import UnsupportedError, UsageError
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.hints import Doubts
from ...runtime.ir.infer import specialise, specialise_as_asked
from ...runtime.ir.types import HostValue, TensorType, type_of
from ...runtime.options import Options
from ...runtime.passes import STATIC_PASSES, SYMBOLIC_PASSES, Pass, Rewrites
from ...runtime.passes import optimise as run_passes
from ...runtime.plan.backend import Backend
from ...runtime.plan.partition import Bars, partition
from ...runtime.session.model import Model
from ..common.archives import read_archive
from .onnxruntime_process import OnnxruntimeProcess
from .onnxruntime_runner import is_onnxruntime, require
from .repetition import run_on_others
from .runners import (
    RunnerSettings,
    check_names,
    check_options,
    default_names,
    is_backend,
    open_runner,
    options_of,
    process_for,
)

Values = Mapping[str, HostValue]
Repeated = Iterator[dict[str, HostValue]]

#: Minimum opsets of graphs for other programs: onnxruntime lacks the newest,
#: onnx.reference some of the oldest.
_OLDEST_ORT, _OLDEST_REFERENCE = {"": 13, "ai.onnx.ml": 1}, {"": 21, "ai.onnx.ml": 1}


class Player(Protocol):
    """Runs graphs without optimising them."""

    @property
    def name(self) -> str:
        """Its name for users."""
        ...

    @property
    def precision(self) -> str:
        """Compute precision of float32 tensors."""
        ...

    def run(self, graph: Graph, feeds: Values) -> dict[str, HostValue]:
        """Return the results of a graph by name.

        Raises:
            UnsupportedError: it cannot run this graph.
        """
        ...

    def run_repeatedly(self, graph: Graph, feeds: Values, runs: int) -> Repeated:
        """Yield the results of runs on the same inputs, and of two more after others if it can.

        Args:
            graph: the graph.
            feeds: its inputs.
            runs: how many; after others, there is one more, and the first one of another load.

        Raises:
            UnsupportedError: it cannot run this graph.
        """
        ...

    def units(self, graph: Graph) -> list[tuple[Node, ...]]:
        """Return the nodes that form each of its steps, in topological order."""
        ...


@dataclass(frozen=True, slots=True)
class BackendPlayer:
    """A player on tercet backends.

    Attributes:
        name: of the first backend.
        backends: the requested one, then fallbacks.
        options: their options, without passes.
        late: options of passes on bodies and on what waits for sizes, which run when these are
            known; None for no such passes.
    """

    name: str
    backends: tuple[Backend, ...]
    options: Options = field(default_factory=Options)
    late: Options | None = None

    @property
    def precision(self) -> str:
        """Compute precision of float32 tensors."""
        return self.options.precision

    def run(self, graph: Graph, feeds: Values) -> dict[str, HostValue]:
        with self.loaded(graph) as model:
            return model.run(dict(feeds))

    def run_repeatedly(self, graph: Graph, feeds: Values, runs: int) -> Repeated:
        with self.loaded(graph) as model:
            yield from (model.run(dict(feeds)) for _ in range(runs))
            run_on_others(model.run, feeds)
            yield model.run(dict(feeds))
        with self.loaded(graph) as model:  # what it keeps of the first inputs would do above
            run_on_others(model.run, feeds)
            yield model.run(dict(feeds))

    def loaded(self, graph: Graph) -> Model:
        """Return a model that runs a graph as it is; the caller closes it."""
        options = replace(self.options, stop_at=0, max_plans=1)
        if not all(backends.is_own(each.name) for each in self.backends):
            graph = with_own_constants(graph)
        return Model(graph, self.backends, options, evaluate, late=self.late)

    def units(self, graph: Graph) -> list[tuple[Node, ...]]:
        try:
            found = partition(graph, self.backends, self.options, Bars())
        except UnsupportedError:  # control flow or data-dependent sizes: no fusion to preserve
            return [(node,) for node in graph.nodes]
        return [assigned.nodes for assigned in found.steps]


@dataclass(frozen=True, slots=True)
class FilePlayer:
    """A program that reads ONNX and gets every graph as a separate model.

    Attributes:
        name: of the runner.
        precision: compute precision of float32 tensors.
        process: where onnxruntime runs.
        title: what errors call the model that graphs are parts of.
    """

    name: str
    precision: str = "float32"
    process: OnnxruntimeProcess | None = None
    title: str = "the model"

    def run(self, graph: Graph, feeds: Values) -> dict[str, HostValue]:
        """Return what it computes; operators that it refuses, by the functions that define them."""
        if any(node.op.graphs() for node in graph.nodes):
            graph = _without_sizes(graph)
        if any(value.type is None for value in graph.inputs):  # of a custom operator without rule
            types = {value.name: type_of(feeds[value.name], value.type) for value in graph.inputs}
            graph = specialise(graph, types, fold=False)
        try:
            return self._run(graph, feeds)
        except UnsupportedError as error:
            refused = set(re.findall(r"\w+", str(error)))
            plain = defined(graph, lambda node: node.kind in refused)
            if plain is graph:
                raise
        return self._run(plain, feeds)

    def _run(self, graph: Graph, feeds: Values) -> dict[str, HostValue]:
        oldest = _OLDEST_REFERENCE
        if is_onnxruntime(self.name):
            graph, oldest = with_full_masks(graph), _OLDEST_ORT
        model = export(graph, at_least=oldest)
        settings = RunnerSettings(tuple(graph.outputs), title=self.title, as_written=True)
        runner = open_runner(self.name, model, settings, self.process)
        try:
            wanted: dict[str, Any] = {value.name: feeds[value.name] for value in graph.inputs}
            return dict(runner.run(wanted))
        finally:
            runner.close()

    def run_repeatedly(self, graph: Graph, feeds: Values, runs: int) -> Repeated:
        yield from (self.run(graph, feeds) for _ in range(runs))

    def units(self, graph: Graph) -> list[tuple[Node, ...]]:
        return [(node,) for node in graph.nodes]


def open_player(name: str, settings: RunnerSettings | None = None) -> Player:
    """Return the player of a name: a backend, onnxruntime or onnx.reference.

    Raises:
        UsageError: the name is unknown.
        BackendUnavailable: it is unavailable on this machine.
    """
    check_names([name])
    chosen = settings or RunnerSettings()
    process = process_for(name, chosen)
    if is_onnxruntime(name):
        require(name)
    if not is_backend(name):
        return FilePlayer(name, process=process, title=chosen.title)
    options = options_of(chosen, name)
    fallback = chosen.fallback if chosen.fallback != name else None
    return BackendPlayer(name, backends.open_backends(name, options, fallback), options)


@dataclass(frozen=True, slots=True)
class SavedPlayer:
    """Tensors in a file, returned without computing anything."""

    name: str
    precision: str = "float32"

    def run(self, graph: Graph, feeds: Values) -> dict[str, HostValue]:
        found = read_archive(Path(self.name))
        return {name: found[name] for name in graph.outputs if name in found}

    def run_repeatedly(self, graph: Graph, feeds: Values, runs: int) -> Repeated:
        yield from (self.run(graph, feeds) for _ in range(runs))

    def units(self, graph: Graph) -> list[tuple[Node, ...]]:
        return [(node,) for node in graph.nodes]


def open_players(
    names: Sequence[str | Player] | None,
    settings: RunnerSettings,
    *,
    same: bool,
    files: bool = False,
) -> list[Player]:
    """Return a reference and runners; the reference always computes in float32.

    Args:
        names: at least two, or one if it may be both; all that are available if None.
        settings: the runners'.
        same: whether the reference may also be the runner.
        files: whether .npz files of tensors may be runners.

    Raises:
        UsageError: there are too few.
        BackendUnavailable: one of them is unavailable.
    """
    chosen = list(names) if names is not None else list(default_names())
    if len(chosen) == 1 and same:
        chosen *= 2
    if len(chosen) < 2:
        raise UsageError(f"layers are compared between two runners, not {len(chosen)}")
    check_options([name for name in chosen if isinstance(name, str)], settings)
    exact = replace(settings, precision="float32", operators=None)
    return [
        name
        if not isinstance(name, str)
        else SavedPlayer(name)
        if files and i and name.lower().endswith(".npz")
        else open_player(name, settings if i else exact)
        for i, name in enumerate(chosen)
    ]


# ── graphs ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class PassList:
    """The symbolic and the static passes."""

    before: tuple[Pass, ...] = SYMBOLIC_PASSES
    after: tuple[Pass, ...] = STATIC_PASSES


def prepared(
    imported: Graph,
    feeds: Values,
    options: Options,
    passes: PassList | None = None,
    rewrites: Rewrites | None = None,
) -> Graph:
    """Return a copy of a graph as a model runs it on these inputs: optimised, with bound shapes.

    Args:
        imported: as imported; not modified.
        feeds: a value for every input.
        options: `stop_at` counts symbolic and static rewrites.
        passes: passes to use instead of the default ones.
        rewrites: gets one entry per rewrite.
    """
    passes, log = passes or PassList(), rewrites if rewrites is not None else Rewrites()
    graph = imported.clone()
    run_passes(graph, passes.before, options, evaluate, log)
    bound = specialise_as_asked(
        graph, {v.name: type_of(feeds[v.name], v.type) for v in graph.inputs}
    )
    run_passes(bound, passes.after, options, evaluate, log)
    return bound


def as_written(imported: Graph, feeds: Values) -> Graph:
    """Return a copy of a graph with all nodes of its file, and the shapes that these inputs give.

    Args:
        imported: as imported; not modified.
        feeds: a value for every input.
    """
    types = {value.name: type_of(feeds[value.name], value.type) for value in imported.inputs}
    return specialise_as_asked(imported, types, fold=False)


def warn_of_declarations(model: Model, feeds: Values) -> None:
    """Warn of types that a model's file declares wrongly; players run graphs, and do not.

    Args:
        model: the loaded model.
        feeds: a value for every input.
    """
    Doubts(model.source.file).look(as_written(model.imported, feeds))


def _without_sizes(graph: Graph) -> Graph:
    """Return a copy without sizes, so that none are inferred in branches that are not taken."""
    copy = graph.clone()
    for value in (value for each in copy.graphs() for value in each.values.values()):
        if isinstance(value.type, TensorType) and value.data is None:
            rank = value.type.rank
            value.type = value.type.with_shape(None if rank is None else (None,) * rank)
    return copy


def live_values(graph: Graph) -> list[Value]:
    """Return the values of the nodes that are read, in order."""
    computed = (value for node in graph.nodes for value in node.outputs)
    return [value for value in computed if graph.is_read(value)]


def planned(player: Player, late: Options | None) -> Player:
    """Return a player that runs passes on what is inside a graph, as a model does.

    Args:
        player: one that may not be a backend's, and then optimises nothing itself.
        late: options of these passes; None for none.
    """
    return replace(player, late=late) if isinstance(player, BackendPlayer) else player


def late_passes(player: Player) -> Options | None:
    """Return the options of what a player optimises inside a graph; None if it does not."""
    return player.late if isinstance(player, BackendPlayer) else None


def are_own(*players: Player) -> bool:
    """Whether all players are tercet's."""
    return all(isinstance(player, BackendPlayer) for player in players)


def run_all(player: Player, graph: Graph, feeds: Values) -> dict[str, HostValue]:
    """Return all values that a graph computes, by name, and its inputs."""
    return {**feeds, **player.run(with_all_outputs(graph), feeds)}


def with_own_constants(graph: Graph) -> Graph:
    """Return a copy whose constants are copies, which native code may write to."""
    own = graph.clone()
    for value in (value for each in own.graphs() for value in each.values.values()):
        if value.data is not None:
            value.fix(value.data.copy())
    return own


def with_all_outputs(graph: Graph) -> Graph:
    """Return a copy of a graph whose results are all values that it computes."""
    every = graph.clone()
    every.set_outputs({value.name: value for value in live_values(every)})
    return every


def part_of(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """Return a graph of some nodes, with their outer inputs as graph inputs."""
    inside = set(nodes)
    reads = dict.fromkeys(
        value for node in nodes for value in node.distinct_reads if value.data is None
    )
    inputs = [value for value in reads if value.producer not in inside]
    made = [value for node in nodes for value in node.outputs]
    results = [value for value in made if graph.is_read_outside(value, inside)]
    return graph.cut(inputs, {value.name: value for value in results})


def feeds_of(part: Graph, values: Values) -> dict[str, HostValue]:
    """Return the inputs of a part from all computed values."""
    return {value.name: values[value.name] for value in part.inputs}
