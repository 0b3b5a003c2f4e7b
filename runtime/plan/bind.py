"""Binding rows to their addresses, once per plan, so that a run only replays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import TYPE_CHECKING

from ..ir.dtypes import uint8
from ..ir.types import TensorType
from .backend import Guarded, Joinable, Run, Stream, View
from .contract import run_of

if TYPE_CHECKING:
    from .rows import Row, Slot


def bind_row(
    row: Row, view: Callable[[Slot], View], workspace: Callable[[TensorType], View]
) -> Run | None:
    """Return a function that runs a row at its addresses; None for views.

    Args:
        row: a row of a plan or of a control-flow body.
        view: returns the view of a slot.
        workspace: returns scratch memory of the row's stream for a type.
    """
    if row.kind == "view":
        return None
    inputs, outputs = tuple(map(view, row.inputs)), tuple(map(view, row.outputs))
    if row.step is None:
        return row.device.copier(outputs[0], inputs[0])
    nbytes = row.step.scratch
    scratch = workspace(TensorType(uint8, (nbytes,))) if nbytes else None
    return run_of(row.backend, row.step.bind(inputs, outputs, scratch))


class _Sequence:
    """Runs in order."""

    __slots__ = ("runs",)

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = tuple(runs)

    def __call__(self, stream: Stream) -> None:
        for one in self.runs:
            one(stream)


def sequence(runs: Iterable[Run]) -> Run:
    """Return a function that enqueues several runs on a stream, in order."""
    return _Sequence([each for run in runs for each in _parts(run)])


def _parts(run: Run) -> Sequence[Run]:
    return run.runs if isinstance(run, _Sequence) else (run,)


def unguarded(run: Run) -> tuple[Callable[[], AbstractContextManager[object]], Run]:
    """Return the context that a run enters, and the run without it; see `Guarded`.

    A sequence of runs of several kinds is left as it is.
    """
    parts = _parts(run)
    guards = {part.guard for part in parts if isinstance(part, Guarded)}
    if len(guards) != 1:
        return nullcontext, run
    (guard,) = guards
    return guard, _Sequence([p.inside if isinstance(p, Guarded) else p for p in parts])


def joined(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with adjacent host runs joined where possible."""
    found: list[Run] = []
    for joinable, group in groupby(runs, key=lambda run: isinstance(run, Joinable)):
        together: Sequence[Run] = list(group)
        first = together[0]
        if joinable and isinstance(first, Joinable):
            made = first.joined(together[1:])
            together = together if made is None else [made]
        found += together
    return found
