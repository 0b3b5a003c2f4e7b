"""cuDNN's engines for each operation of a model: the heuristics' list, and measurements.

Nothing is run. The heuristics depend on the GPU, so one must be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from ...backends import open_backends
from ...runtime.options import Options
from ...runtime.session.model import Model
from ..common.console import Say, counted, grid, silent
from ..common.shapes import input_shapes
from .algorithms import on_paper

if TYPE_CHECKING:
    from ...backends.cudnn.choice import Chooser, EngineTask

#: Engines that a terminal shows of each list.
SHOWN = 8


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine with its knobs.

    Attributes:
        place: position in the heuristics' list, from 1.
        engine: cuDNN's name for it, such as ``eng41_k2=5_k18=0``.
        operation: the operations of its graph: ``conv+bias+relu``.
        behind: what a kernel does after it; empty if the graph does everything.
        compiled: whether cuDNN compiles it at run time.
        microseconds: measured time including that kernel; None if not measured.
    """

    place: int
    engine: str
    operation: str
    behind: str
    compiled: bool
    microseconds: float | None


@dataclass(frozen=True, slots=True)
class TaskRow:
    """An operation and the engines that cuDNN proposes.

    Attributes:
        nodes: names of its nodes.
        task: what it is.
        engines: in the heuristics' order.
        refused: why there are none; empty if there are.
    """

    nodes: tuple[str, ...]
    task: str
    engines: tuple[EngineRow, ...]
    refused: str = ""

    @property
    def measured(self) -> tuple[EngineRow, ...]:
        """The measured engines, fastest first."""
        found = [row for row in self.engines if row.microseconds is not None]
        return tuple(sorted(found, key=lambda row: row.microseconds or 0.0))

    @property
    def regret(self) -> float | None:
        """t(heuristics) / t(best) - 1; None if nothing was measured."""
        times = [row.microseconds for row in self.engines if row.microseconds is not None]
        return times[0] / min(times) - 1 if times else None


@dataclass(frozen=True, slots=True)
class EngineLists:
    """The engines of a model.

    Attributes:
        model: the file.
        target: cuDNN's version and the GPU.
        tasks: all tasks with their nodes.
    """

    model: str
    target: str
    tasks: tuple[TaskRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        tasks = [{**asdict(task), "regret": task.regret} for task in self.tasks]
        return {"model": self.model, "target": self.target, "tasks": tasks}


def engine_lists(
    file: Path,
    *,
    shapes: Sequence[str] = (),
    dims: Sequence[str] = (),
    say: Say = silent,
    **options: Any,
) -> EngineLists:
    """List cuDNN's engines for each operation of a model.

    Args:
        file: its path.
        shapes: ``name=1x3x224x224``; see `input_shapes`.
        dims: ``symbol=size``; 1 if not given.
        say: called with a description of each stage.
        **options: fields of `Options`.

    Raises:
        ModelError: the model cannot be read, or rejects these input shapes.
        BackendUnavailable: there is no GPU or no cuDNN.
    """
    say("loading")
    with on_paper(file, options) as (model, chosen):
        own = open_backends("cudnn", chosen)[0]
        from ...backends.cudnn.backend import CudnnBackend  # needs the CUDA packages

        if not isinstance(own, CudnnBackend):
            raise TypeError(f"{own.name} is not cuDNN")
        found = input_shapes(model.inputs, shapes, dims)
        say("asking cuDNN")
        session = own.chooser.session
        tasks = tasks_of(model, found, chosen)
        return EngineLists(
            model=str(file),
            target=f"cuDNN {session.vendor.version} on {session.target}",
            tasks=tuple(task_row(own.chooser, task, nodes) for task, nodes in tasks.items()),
        )


def tasks_of(
    model: Model, shapes: dict[str, tuple[int, ...]], options: Options
) -> dict[EngineTask, list[str]]:
    """Return the parts of a model that cuDNN could run, with their node names."""
    from ...backends.cudnn.backend import survey
    from ...backends.cudnn.registry import NodeGroup

    found: dict[EngineTask, list[str]] = {}
    for part in model.prepare(shapes).walk():
        for plan in part.plans:
            for wanted in survey(plan.graph, frozenset(plan.graph.nodes), options):
                if isinstance(wanted, NodeGroup):
                    found.setdefault(wanted.task, []).append(wanted.nodes[0].name)
    return found


def task_row(chooser: Chooser, task: EngineTask, nodes: Sequence[str]) -> TaskRow:
    """Return the engines proposed for a task, with measurements."""
    from ...backends.cudnn.library import NoPlan

    times = {(trial.division, trial.engine): trial.microseconds for trial in chooser.trials(task)}
    rows: list[EngineRow] = []
    refused: list[str] = []
    for number, division in enumerate(task.divisions):
        try:
            plans = task.graph(division, chooser.session).plans()
        except NoPlan as error:
            refused.append(str(error))
            continue
        title, behind = division.operation.title, division.rest.title
        for name, compiled in plans:
            time = times.get((number, name))
            rows.append(EngineRow(len(rows) + 1, name, title, behind, compiled, time))
    return TaskRow(tuple(nodes), str(task), tuple(rows), "" if rows else "; ".join(refused))


# ── in a terminal ────────────────────────────────────────────────────────────────────────────────


def show_engine_lists(console: Console, found: EngineLists) -> None:
    """Print for every task the heuristics' list, next to the fastest measured engines."""
    console.print(f"for {found.target}")
    for task in found.tasks:
        console.print()
        console.print(Text(", ".join(task.nodes), style="bold"))
        console.print(Text(task.task, style="dim"))
        if task.refused:
            console.print(Text(task.refused))
            continue
        _show(console, task)


def _show(console: Console, task: TaskRow) -> None:
    measured = task.measured
    chosen = {row.place for row in (*task.engines[:SHOWN], *measured[:SHOWN])}
    table = grid("", "engine", "graph", "then", "kind", "us", "fastest", left=5)
    for row in task.engines:
        if row.place not in chosen:
            continue
        time, rank = "", ""
        if row.microseconds is not None:
            time, rank = f"{row.microseconds:.1f}", str(measured.index(row) + 1)
        kind = "compiled" if row.compiled else "precompiled"
        table.add_row(str(row.place), row.engine, row.operation, row.behind, kind, time, rank)
    console.print(table)
    said = f"{counted(len(task.engines), 'engine')} proposed, {len(measured)} measured"
    regret = "" if task.regret is None else f"; regret of the heuristics {100 * task.regret:.1f} %"
    console.print(Text(said + regret, "dim"))
