"""Binding rows to their addresses, once per plan, so that a run only replays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..ir.dtypes import uint8
from ..ir.types import TensorType
from .backend import Run, Stream, View
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


def sequence(runs: Sequence[Run]) -> Run:
    """Return a function that enqueues several runs on a stream, in order."""

    def run(stream: Stream) -> None:
        for one in runs:
            one(stream)

    return run
