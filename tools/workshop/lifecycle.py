"""Trace the memory of a model from the first run to the end: the phases of a GPU program.

Textbooks name six: allocate on the host, allocate on the device, copy there, compute, copy back,
free. Here the first two happen once, and so do the copies of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from rich.console import Console

from ...runtime.control.program import Program
from ...runtime.plan.backend import Device
from ...runtime.plan.host import HOST
from ...runtime.session.model import Model
from ..common.console import bytes_text, grid

Phase = Literal[
    "allocate on the host",
    "allocate on the device",
    "copy weights",
    "copy in",
    "compute",
    "copy out",
    "free",
]
#: The phases that a run in a steady state has.
STEADY: tuple[Phase, ...] = ("copy in", "compute", "copy out")


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """Something that happened, with everything of its kind right after it.

    Attributes:
        run: number of the run, from 1; 0 for the end.
        phase: what.
        times: how often.
        nbytes: bytes that were allocated, copied or freed; 0 for work.
    """

    run: int
    phase: Phase
    times: int
    nbytes: int


def trace_lifecycle(
    make: Callable[[], Model], feeds: Mapping[str, Any], runs: int = 2
) -> list[LifecycleEvent]:
    """Return what a model does, in order, from its making to its end.

    Args:
        make: loads the model, on its own device.
        feeds: its inputs.
        runs: how often it runs.
    """
    seen: list[LifecycleEvent] = []
    with make() as model:
        device = model.backends[0].device
        for run in range(1, runs + 1):
            with _watched(device, run, seen):
                model.run(feeds)
            seen += _rows(model.prepare(_shapes(feeds)), run)
        before = _allocated(device)
    seen.append(LifecycleEvent(0, "free", 1, before - _allocated(device)))
    return _merged(seen)


def _shapes(feeds: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: data.shape for name, data in feeds.items()}


def _allocated(device: Device) -> int:
    return int(getattr(device, "allocated", 0))


@contextmanager
def _watched(device: Device, run: int, seen: list[LifecycleEvent]) -> Iterator[None]:
    """Note every allocation and every upload of the device while this lasts."""
    phases: dict[str, Phase] = {
        "allocate": "allocate on the device",
        "staging": "allocate on the host",
        "upload": "copy weights",
    }

    def noting(phase: Phase, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(what: Any) -> Any:
            result = call(what)
            seen.append(
                LifecycleEvent(run, phase, 1, what if isinstance(what, int) else what.nbytes)
            )
            return result

        return noted

    for name, phase in phases.items():
        setattr(device, name, noting(phase, getattr(device, name)))
    try:
        yield
    finally:
        for name in phases:
            delattr(device, name)


def _rows(program: Program, run: int) -> Iterator[LifecycleEvent]:
    """Yield what a run of a program has done."""
    for row in program.rows:
        if row.kind == "view":
            continue
        if row.kind != "copy":
            yield LifecycleEvent(run, "compute", 1, 0)
            continue
        phase: Phase = "copy out" if row.outputs[0].device is HOST else "copy in"
        yield LifecycleEvent(run, phase, 1, row.outputs[0].nbytes)


def _merged(events: list[LifecycleEvent]) -> list[LifecycleEvent]:
    """Return neighbours of one kind as one."""
    found: list[LifecycleEvent] = []
    for (run, phase), group in groupby(events, key=lambda event: (event.run, event.phase)):
        same = list(group)
        found.append(LifecycleEvent(run, phase, len(same), sum(event.nbytes for event in same)))
    return found


def show_lifecycle(console: Console, events: list[LifecycleEvent]) -> None:
    """Print the phases."""
    table = grid("run", "phase", "times", "bytes", left=2)
    for event in events:
        size = bytes_text(event.nbytes) if event.nbytes else ""
        table.add_row(str(event.run) if event.run else "end", event.phase, str(event.times), size)
    console.print(table)
