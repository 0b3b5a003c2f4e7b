"""Tuning: measures the algorithms of each node, and keeps the fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...api import load
from ..common.console import Say, announce_compiling, silent
from ..common.inputs import input_shapes
from .algorithms import nodes_of

if TYPE_CHECKING:
    from ...backends.cuda.tuning.tuner import AlgorithmTime, TuningResult


@dataclass(frozen=True, slots=True)
class TunedRow:
    """A task and its measurements.

    Attributes:
        nodes: number of nodes with it.
        result: the measurements.
    """

    nodes: int
    result: TuningResult

    @property
    def heuristic(self) -> AlgorithmTime:
        """The algorithm chosen by estimates."""
        return self.result.chosen


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of `tune`.

    Attributes:
        model: the file.
        device: the GPU.
        rows: one per task.
        measured: number of tasks measured in this call.
        seconds: duration of the measurement.
    """

    model: str
    device: str
    rows: tuple[TunedRow, ...]
    measured: int
    seconds: float

    @property
    def best(self) -> float:
        """Total microseconds of all nodes with their fastest algorithms."""
        return sum(row.nodes * row.result.best.microseconds for row in self.rows)

    @property
    def heuristic(self) -> float:
        """Total microseconds of all nodes with the algorithms chosen by estimates."""
        return sum(row.nodes * row.heuristic.microseconds for row in self.rows)

    @property
    def regret(self) -> float:
        """t(heuristic) / t(best) - 1."""
        return self.heuristic / self.best - 1 if self.best else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "model": self.model,
            "device": self.device,
            "measured": self.measured,
            "seconds": self.seconds,
            "best_us": self.best,
            "heuristic_us": self.heuristic,
            "regret": self.regret,
            "tasks": [
                {
                    "task": row.result.task,
                    "nodes": row.nodes,
                    "heuristic": row.result.heuristic,
                    "regret": row.result.regret,
                    "timings": [asdict(timing) for timing in row.result.timings],
                }
                for row in self.rows
            ],
        }


def tune(
    file: Path,
    *,
    again: bool = False,
    shapes: Sequence[str] = (),
    dims: Sequence[str] = (),
    say: Say = silent,
    **options: Any,
) -> Tuned:
    """Measure the algorithms of a model's nodes that have not been measured on this GPU.

    Args:
        file: the path.
        again: whether to measure known tasks again.
        shapes: ``name=1x3x224x224``; see `input_shapes`.
        dims: ``symbol=size``; 1 if not given.
        say: called with progress messages.
        **options: fields of `Options`.

    Raises:
        BackendUnavailable: there is no GPU to measure on.
        ModelError: the model cannot be read, or rejects these input shapes.
    """
    say("loading")
    with load(file, "cuda", **{"fallback": "numpy", **options, "tune": False}) as model:
        from ...backends.cuda.algorithms.registry import Setting
        from ...backends.cuda.device import open_device
        from ...backends.cuda.tuning.tuner import tuner_of, works_of

        announce_compiling(model, say)
        found = input_shapes(model.inputs, shapes, dims)
        nodes = nodes_of(model, found)
        device = open_device(model.options.cache, ordinal=model.options.device)
        works = [
            work
            for work in works_of(nodes, Setting(device.compiler.target, model.options))
            if not work.task.setting.asked
        ]
        tuner = tuner_of(device, model.options.cache)
        before = perf_counter()
        results = tuner.results(works, say, again=again)
        counts = Counter(work.task.signature for work in works)
        return Tuned(
            model=str(file),
            device=device.description,
            rows=tuple(TunedRow(counts[result.task], result) for result in results),
            measured=tuner.measured,
            seconds=perf_counter() - before,
        )
