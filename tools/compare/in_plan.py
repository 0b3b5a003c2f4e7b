"""Rows of a runner's plan, each on the reference's tensors, at the addresses that a run uses.

A step that is planned alone may have another kernel, or another layout of its operands, than the
whole graph gives it. Here the plan is the whole graph's; before a row runs, what it reads is
replaced by the reference's tensors, so that no error of earlier rows is in what it gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ...runtime.ir.dtypes import uint8
from ...runtime.ir.graph import Graph
from ...runtime.ir.types import Array, HostValue, TensorType, type_of
from ...runtime.plan.backend import Stream, View
from ...runtime.plan.host import HOST, logical
from ...runtime.plan.plan import Plan
from ...runtime.plan.rows import Row, Slot
from ..runners.replay import BackendPlayer, part_of

Values = Mapping[str, HostValue]


def rows_in_plan(
    player: BackendPlayer, graph: Graph, values: Values, only: int | None = None
) -> Iterator[tuple[int, Graph, dict[str, HostValue]]]:
    """Yield the number of each row, its nodes as a graph, and the results of that graph.

    A row is left out if it reads what the reference does not have.

    Args:
        player: the runner.
        graph: what the reference ran, with the shapes of its inputs.
        values: what the reference computed, and the inputs, by name.
        only: the number of the only row that runs, in a plan of its own; None for all.
    """
    with player.loaded(graph) as model:
        program = model.prepare()
        rows = ((each.plan, row) for each in program.stages if each.plan for row in each.plan.rows)
        for number, (plan, row) in enumerate(rows):
            if row.step is None or row.run is None or only not in (None, number):
                continue
            part = part_of(plan.graph, row.nodes)
            made = {slot.value.name for slot in row.outputs}
            part.set_outputs({n: v for n, v in part.outputs.items() if n in made and n in values})
            is_fed = all(value.name in values for value in part.inputs)
            if part.outputs and is_fed and all(_fits(slot, values) for slot in row.inputs):
                yield number, part, _played(plan, row, values)


def _fits(slot: Slot, values: Values) -> bool:
    """Whether a slot has a constant, or can take the reference's tensor."""
    data = values.get(slot.value.name)
    if slot.value.data is not None:
        return True
    return isinstance(data, np.ndarray) and type_of(data) == slot.type


def _played(plan: Plan, row: Row, values: Values) -> dict[str, HostValue]:
    """Run a row on the reference's tensors; return what it gives, by name."""
    stream = row.device.stream()
    for slot in row.inputs:
        if slot.value.data is None:
            _write(plan.view_of(slot), np.asarray(values[slot.value.name]), stream)
    if row.run is not None:
        row.run(stream)
    stream.synchronize()
    return {slot.value.name: _read(plan.view_of(slot), stream) for slot in row.outputs}


def _write(view: View, data: Array, stream: Stream) -> None:
    """Write a tensor, and nothing of what lies between its rows."""
    if view.device is HOST:
        logical(view)[...] = data
        return
    there, here = _octets(view)
    view.device.copier(here, there)(stream)
    stream.synchronize()
    logical(_like(view, here))[...] = data
    view.device.copier(there, here)(stream)
    stream.synchronize()
    here.buffer.close()


def _read(view: View, stream: Stream) -> Array:
    if view.device is HOST:
        return logical(view).copy()
    there, here = _octets(view)
    view.device.copier(here, there)(stream)
    stream.synchronize()
    found = logical(_like(view, here)).copy()
    here.buffer.close()
    return found


def _octets(view: View) -> tuple[View, View]:
    """Return the memory of a tensor on a device, from its first element to its last, and a copy."""
    type_ = TensorType(uint8, (view.extent,))
    staging = view.device.staging(view.extent)
    return View(view.device, view.buffer, view.offset, type_), View(HOST, staging, 0, type_)


def _like(view: View, here: View) -> View:
    return View(HOST, here.buffer, 0, view.type, view.format, view.pitch)
