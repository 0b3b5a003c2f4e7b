"""Tuning: a search over a planned model for faster ways to run groups of equal steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ...api import load
from ..common.console import Say, announce_compiling, silent
from ..common.shapes import input_shapes

if TYPE_CHECKING:
    from ...backends.cuda.tuning.tuner import CandidateTime, GroupResult, NetworkResult


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of `tune`.

    Attributes:
        model: the file.
        device: the GPU.
        networks: the measurements of each plan of the model; one, unless it has control flow.
        seconds: duration of the measurement.
    """

    model: str
    device: str
    networks: tuple[NetworkResult, ...]
    seconds: float

    @property
    def groups(self) -> tuple[GroupResult, ...]:
        """The groups of equal steps of all networks."""
        return tuple(group for network in self.networks for group in network.groups)

    @property
    def measured(self) -> int:
        """Number of groups measured in this call, the others being known."""
        return sum(len(network.groups) for network in self.networks if network.is_new)

    @property
    def before(self) -> float:
        """Microseconds with the algorithms chosen by estimates."""
        return sum(network.before for network in self.networks)

    @property
    def after(self) -> float:
        """Microseconds with the fastest algorithms."""
        return sum(network.after for network in self.networks)

    @property
    def regret(self) -> float:
        """How much longer the network takes by estimates: before / after - 1."""
        return self.before / self.after - 1 if self.after else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "model": self.model,
            "device": self.device,
            "measured": self.measured,
            "seconds": self.seconds,
            "before_us": self.before,
            "after_us": self.after,
            "regret": self.regret,
            "groups": [
                {
                    "task": group.task,
                    "steps": group.steps,
                    "kernel": group.kernel,
                    "before_us": group.before,
                    "after_us": group.after,
                    "chosen": group.chosen,
                    "candidates": [_candidate(timing) for timing in group.timings],
                }
                for group in self.groups
            ],
        }


def _candidate(timing: CandidateTime) -> dict[str, Any]:
    return {name: None if value == inf else value for name, value in asdict(timing).items()}


def tune(
    file: Path,
    *,
    again: bool = False,
    shapes: Sequence[str] = (),
    dims: Sequence[str] = (),
    say: Say = silent,
    **options: Any,
) -> Tuned:
    """Find the fastest algorithms of a model on this GPU, unless they are known.

    Args:
        file: the path.
        again: whether to measure again what is known.
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
        from ...backends.cuda.backend import CudaBackend
        from ...backends.cuda.tuning.network import tuned

        announce_compiling(model, say)
        program = model.prepare(input_shapes(model.inputs, shapes, dims))
        backend = model.backends[0]
        assert isinstance(backend, CudaBackend)
        chosen = replace(model.options, tune=True)
        before = perf_counter()
        found = [
            tuned(backend, plan.graph, set(plan.graph.nodes), chosen, say, again=again)
            for part in program.walk()
            for plan in part.plans
        ]
        return Tuned(
            model=str(file),
            device=backend.device.description,
            networks=tuple(result for result in found if result is not None),
            seconds=perf_counter() - before,
        )
