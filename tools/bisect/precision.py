"""Finds the nodes that must stay float32 to meet a tolerance in half precision.

Every node that the pass `to_half` would convert is tried alone in half precision, with all others
in float32, which shows its own share of the error. Then as many of the worst ones stay float32 as
the tolerance requires, found by bisection; finally, ever smaller parts of that list are dropped as
long as the tolerance is met (delta debugging). No name of the resulting list, which
``--keep-float32`` accepts, can be dropped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...api import Loadable, Operators, load
from ...arguments import freezing, in_data_dir, public
from ...backends import settled
from ...runtime.base.arguments import one_of, refused
from ...runtime.base.files import write_text
from ...runtime.base.notebook import Shown
from ...runtime.errors import TercetError, TimeLimitError
from ...runtime.ir.dtypes import FLOATS, bfloat16, float16, float32
from ...runtime.ir.graph import Graph, Node
from ...runtime.ir.types import Array, TensorType, ValueType
from ...runtime.options import Options, Precision
from ..common.console import Say, silent
from ..common.deadline import time_limit
from ..common.inputs import Given, Inputs, asked, given_inputs
from ..common.search import smallest
from ..common.shapes import Dims, Shapes
from ..common.threads import use_threads
from ..common.views import shown
from ..compare.bodies import BodyRun, Values, has_bodies, visit_bodies
from ..compare.case import Case
from ..export.writing import model_title
from ..runners.replay import Player, open_player, run_all
from ..runners.runners import RunnerSettings, check_options
from ..verdict.error_bounds import flat
from ..verdict.float64_reference import Oracle
from .reduction import thinned

HALVES: Final = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True, repr=False)
class PrecisionResult(Shown):
    """The result of `keep_float32`; print it.

    An error is the largest difference of an output from float64, divided by the largest magnitude
    of that output; the worst output counts.

    Attributes:
        model: the file.
        backend: the backend.
        precision: of nodes that do not stay float32.
        inputs: the inputs.
        tolerance: the allowed error.
        candidates: the file's names of nodes that would compute in half precision.
        keep: the nodes that must stay float32.
        error: the error with these in float32.
        error_half: the error with none of them in float32.
        error_float32: the error with all of them in float32.
        alone: by candidate, the error with only it in half precision; empty if not needed.
        runs: number of runs.
        stopped: why `keep` may be longer than necessary; empty if it is minimal.
    """

    model: str
    backend: str
    precision: Precision
    inputs: Inputs
    tolerance: float
    candidates: tuple[str, ...]
    keep: tuple[str, ...]
    error: float
    error_half: float
    error_float32: float
    alone: Mapping[str, float] = field(default_factory=dict[str, float])
    runs: int = 0
    stopped: str = ""

    def _about(self) -> str:
        return f"{self.model}: {len(self.keep)} of {len(self.candidates)} nodes stay float32"

    @property
    def ok(self) -> bool:
        """Whether the tolerance can be met; if not, not even float32 meets it."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        return shown(self)

    def table(self) -> list[dict[str, Any]]:
        """Return one flat row per candidate, for `pandas.DataFrame`, worst first."""
        ranked = sorted(self.candidates, key=lambda name: -self.alone.get(name, 0.0))
        kept = set(self.keep)
        return [
            {"node": name, "keep": name in kept, "error_alone": self.alone.get(name)}
            for name in ranked
        ]

    @public()
    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the names to a file, one per line, for ``--keep-float32 @FILE``."""
        write_text(Path(file), "".join(f"{name}\n" for name in self.keep))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but arrays, for JSON."""
        return {
            "model": self.model,
            "ok": self.ok,
            "backend": self.backend,
            "precision": self.precision,
            "inputs": self.inputs.to_dict(),
            "tolerance": self.tolerance,
            "candidates": list(self.candidates),
            "keep": list(self.keep),
            "error": self.error,
            "error_half": self.error_half,
            "error_float32": self.error_float32,
            "alone": dict(self.alone),
            "runs": self.runs,
            "stopped": self.stopped,
        }


@public(precision=one_of(*HALVES))
@in_data_dir
@freezing
def keep_float32(
    source: Loadable,
    tolerance: float,
    precision: Precision = "float16",
    backend: str = "numpy",
    inputs: Given = None,
    *,
    seed: int = 0,
    shapes: Shapes = (),
    dims: Dims = (),
    fallback: str | None = None,
    freeze: Mapping[str, Any] | None = None,
    operators: Operators | None = None,
    external_data_dir: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    say: Say = silent,
    **options: Any,
) -> PrecisionResult:
    """Find the nodes that must stay float32 for outputs to meet a tolerance in half precision.

    Pass the list to ``tercet.load(..., keep_float32=found.keep)``.

    Args:
        source: a path, bytes, or a `ModelProto`.
        tolerance: largest allowed difference from float64, divided by the largest magnitude of the
            output.
        precision: ``float16`` or ``bfloat16``.
        backend: the backend to run on.
        inputs: arrays by name or in a list by position; an .npz file or a folder of ONNX test data;
            random ones if None.
        seed: seed of random inputs.
        shapes: of random inputs, by name: ``{"image": (1, 3, 224, 224)}``.
        dims: sizes of symbolic dimensions of random inputs: ``{"batch": 4}``; 1 if not given.
        fallback: backend for nodes that this one declines.
        freeze: arrays by name for inputs that become constants; see `tercet.load`.
        operators: custom operators; see `tercet.load`.
        external_data_dir: the folder of the model's external data; its own if None.
        threads: number of CPU threads of each runner; numpy's setting if None.
        timeout: time limit in seconds, after which the shortest list so far is returned; None for
            no limit.
        say: called with a description of each stage.
        **options: further fields of `Options`.

    Raises:
        UsageError: the precision is not a half precision, or the tolerance is not positive.
        BackendUnavailable, UnsupportedError: the backend is unavailable here, or cannot run the
            model.
        InputError: the inputs do not fit the model.
        ModelError: the model cannot be read.
        TimeLimitError: the time limit passed before there was any result.
    """
    if not tolerance > 0:
        raise refused("tolerance", tolerance, "a number > 0")
    settings = RunnerSettings((), fallback, precision, options, operators)
    check_options([backend], settings)
    player, given = open_player(backend, settings), asked(inputs, seed, shapes, dims)
    search: _Search | None = None
    feeds = Inputs({}, {})
    with (
        use_threads(threads),
        time_limit(timeout, say) as (limit, tell),
        load(source, stop_at=0, operators=operators) as model,
    ):
        feeds = given_inputs(model.inputs, given)
        with feeds.explained():
            wanted = settled(Options(**{"precision": precision, **options}), player.name)
            search = _Search(player, model.imported, feeds.arrays, wanted, tell)
            search.run(tolerance)
    if search is None or search.best is None:
        raise limit.error()
    return PrecisionResult(
        model_title(source),
        backend,
        precision,
        feeds,
        tolerance,
        search.candidates,
        search.best,
        search.errors[search.best],
        search.errors[()],
        search.errors[search.candidates],
        search.alone,
        len(search.errors),
        limit.stopped,
    )


class _Search:
    """Runs a model with some nodes in float32 and the rest in half precision."""

    def __init__(
        self, player: Player, imported: Graph, feeds: Mapping[str, Any], options: Options, say: Say
    ) -> None:
        self._player, self._imported, self._feeds = player, imported, feeds
        self._options, self._say = options, say
        self._case = Case(imported, feeds, options, say=say)
        say("running the model in float64")
        oracle = Oracle(imported)
        try:
            self._exact = flat(oracle.run(dict(feeds)))
        finally:
            oracle.close()
        wide = replace(options, precision="float32")
        self.candidates = _candidates(self._all_graphs(wide), self._all_graphs(options))
        self.errors: dict[tuple[str, ...], float] = {}
        self.alone: dict[str, float] = {}
        self.best: tuple[str, ...] | None = None

    def run(self, tolerance: float) -> None:
        """Find the shortest list; `best` is the shortest so far."""
        everything = self.candidates
        half, exact = self.error(()), self.error(everything)
        self.best = () if half <= tolerance else everything
        if half <= tolerance or exact > tolerance:
            return
        for name in everything:
            self.alone[name] = self.error(tuple(n for n in everything if n != name))
        ranked = sorted(everything, key=lambda name: -self.alone[name])

        def holds(names: Sequence[str]) -> bool:
            wanted = set(names)
            keep = tuple(name for name in everything if name in wanted)
            if self.error(keep) > tolerance:
                return False
            if self.best is None or len(keep) < len(self.best):
                self.best = keep
            return True

        count = smallest(len(ranked), lambda count: holds(ranked[:count]))
        thinned(ranked[:count], holds)

    def error(self, keep: tuple[str, ...]) -> float:
        """Return the error with some nodes in float32."""
        if keep not in self.errors:
            self._say(f"run {len(self.errors) + 1}: {len(keep)} nodes stay float32")
            options = replace(self._options, keep_float32=keep)
            graph = self._case.optimised(options)
            found = flat(self._case.player(self._player, graph).run(graph, self._feeds))
            types = {name: value.type for name, value in self._imported.outputs.items()}
            self.errors[keep] = _error(found, self._exact, types)
        return self.errors[keep]

    def _all_graphs(self, options: Options) -> list[Graph]:
        """Return what passes make of the model, and of the bodies that run."""
        graph = self._case.optimised(options)
        if not any(map(has_bodies, graph.nodes)):
            return [graph]
        values = run_all(self._player, graph, self._feeds)
        return [graph, *_bodies(self._player, graph, values, options)]


class _EnteredError(TercetError):
    """A body has run."""


def _bodies(player: Player, graph: Graph, values: Values, options: Options) -> Iterator[Graph]:
    """Yield what passes make of the first body that each node of control flow runs, and in it."""
    runs: list[BodyRun] = []

    def enter(run: BodyRun) -> None:
        runs.append(run)
        raise _EnteredError

    for node in filter(has_bodies, graph.nodes):
        try:
            visit_bodies(player, (node, node), values, options, enter)
        except TimeLimitError:
            raise
        except TercetError:  # or it cannot run alone, and then nothing is known of it
            pass
    for run in runs:
        yield run.ours.graph
        yield from _bodies(player, run.ours.graph, run.values, options)


def _candidates(wide: Iterable[Graph], narrow: Iterable[Graph]) -> tuple[str, ...]:
    """Return the file's names of nodes that are float32 in some graphs, and half in others."""
    found: dict[str, None] = {}
    before = {node.name: node for graph in wide for node in graph.nodes}
    for node in (node for graph in narrow for node in graph.nodes):
        same = before.get(node.name)
        if same is not None and _dtype(same) == float32 and _dtype(node) in (float16, bfloat16):
            found[node.origin[0] if node.origin else node.name] = None
    return tuple(found)


def _dtype(node: Node) -> np.dtype | None:
    type_ = node.outputs[0].type
    return type_.dtype if isinstance(type_, TensorType) else None


def _error(
    found: Mapping[str, Array],
    exact: Mapping[str, Array],
    types: Mapping[str, ValueType | None],
) -> float:
    """Return the largest difference divided by the largest magnitude; infinite if types differ.

    Args:
        found: the outputs.
        exact: the same in float64.
        types: of the file's outputs.
    """
    worst = 0.0
    for name, right in exact.items():
        ours, type_ = found.get(name), types.get(name)
        if ours is None or ours.shape != right.shape:
            return float("inf")
        if isinstance(type_, TensorType) and ours.dtype != type_.dtype:
            return float("inf")
        if right.dtype not in FLOATS:
            worst = max(worst, 0.0 if np.array_equal(ours, right) else float("inf"))
        elif right.size:
            with np.errstate(invalid="ignore"):
                apart = np.abs(np.subtract(ours, right, dtype=np.float64))
            same = (ours == right) | (np.isnan(ours) & np.isnan(right))
            maximum = float(np.max(np.where(same, 0.0, apart)))
            if maximum != maximum:
                return float("inf")
            scale = float(np.max(np.abs(right), where=np.isfinite(right), initial=0.0))
            worst = max(worst, maximum / scale if scale else maximum)
    return worst
