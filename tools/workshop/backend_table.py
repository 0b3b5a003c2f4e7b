"""Measure the cost of each backend: building, latency, and the first call with a new shape.

    python -m tercet.tools.workshop.backend_table
    python -m tercet.tools.workshop.backend_table resnet50_v15 --backend numpy --output docs/results

A backend that is fast once it is built may still be the wrong one if shapes change with every call.
So besides latency this measures, for every backend that can run here: the time from the model in
memory to its first result with an empty cache, the same with the cache that this has filled, and
the first call with a new batch size. Libraries are loaded beforehand.

Each row is printed and written as soon as it is measured; rows of earlier calls stay in the files
if they are of the same commit and machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from onnx import ModelProto

from ...api import load
from ...backends import available, open_backends
from ...one_operator import run_op
from ...runtime.errors import TercetError
from ...runtime.options import Options
from ..common.console import Say, open_console, print_table, progress
from ..common.environment import PACKAGES, device_environment
from ..common.markdown import head, table
from ..common.measure import Repeat, interleave, timed
from ..common.results import earlier, to_json, write
from ..run.run import share_of_backends
from ..verdict.accuracy import distance, exact_outputs
from .arguments import parser as make_parser
from .bench_models import bench_inputs, bench_model

#: With a symbolic batch, and of more than one kind of layer.
MODELS = ("resnet50_v15", "mobilenet_v2", "vit_base")
#: The first batch, and one that the model has not met when it comes.
FIRST, NEW = 1, 3
FILE = "backends.json"


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One model on one backend; times in milliseconds.

    Attributes:
        model: its name.
        backend: the backend to run on.
        cold: from the model to its first result, with nothing in the cache.
        warm: the same with what the first time has left there.
        latency: median of later calls, arrays in to arrays out.
        new_shape: the first call with a batch of another size.
        latency_new: median of later calls with that batch.
        error: relative L2 distance from float64, the worst output's.
        nodes: how many run where.
    """

    model: str
    backend: str
    cold: float
    warm: float
    latency: float
    new_shape: float
    latency_new: float
    error: float
    nodes: Mapping[str, int]

    @property
    def calls(self) -> float:
        """How many calls of the new shape take as long as the first one did."""
        return self.new_shape / self.latency_new


def measure(
    name: str, source: ModelProto, backend: str, say: Say, *, seconds: float = 0.5
) -> OperatorRow:
    """Return what one backend costs for one model.

    Args:
        name: the model's.
        source: with a symbolic batch.
        backend: the backend to run on.
        say: called with a description of each stage.
        seconds: for the later calls of each batch.

    Raises:
        TercetError: it does not run the model.
    """
    small, large = (bench_inputs(source, batch=batch) for batch in (FIRST, NEW))
    with TemporaryDirectory(prefix="tercet-") as folder:
        say(f"{name}: {backend}, nothing in the cache")
        begin = perf_counter()
        with load(source, backend, cache=folder) as model:
            model.run(small)
            cold = perf_counter() - begin
        say(f"{name}: {backend}, again")
        begin = perf_counter()
        with load(source, backend, cache=folder) as model:
            found = model.run(small)
            warm = perf_counter() - begin
            latency = _latency(lambda: model.run(small), seconds)
            new_shape = timed(lambda: model.run(large))
            latency_new = _latency(lambda: model.run(large), seconds)
            placement = model.placement({n: data.shape for n, data in small.items()})
    return OperatorRow(
        model=name,
        backend=backend,
        cold=1e3 * cold,
        warm=1e3 * warm,
        latency=1e3 * latency,
        new_shape=1e3 * new_shape,
        latency_new=1e3 * latency_new,
        error=distance(found, exact_outputs(source, small)),
        nodes=share_of_backends(placement),
    )


def _latency(call: Callable[[], object], seconds: float) -> float:
    repeat = Repeat(seconds=seconds, minimum=3, maximum=100)
    return interleave({"call": call}, repeat)["call"].median


# ── reports ──────────────────────────────────────────────────────────────────────────────────────

TITLES = (
    "model", "backend", "build ms", "again", "latency ms", "new shape ms", "then", "calls", "error",
    "nodes on",
)  # fmt: skip


def cells(row: OperatorRow) -> tuple[str, ...]:
    """Return a row of the table."""
    return (
        *(row.model, row.backend),
        *(f"{ms:.0f}" for ms in (row.cold, row.warm)),
        f"{row.latency:.2f}",
        f"{row.new_shape:.0f}",
        f"{row.latency_new:.2f}",
        *(f"{row.calls:.0f}", f"{row.error:.1e}"),
        ", ".join(f"{name} {count}" for name, count in row.nodes.items()),
    )


def markdown(rows: Sequence[OperatorRow], about: Mapping[str, str]) -> str:
    """Return the report as a Markdown page."""
    text = (
        "Written by `python -m tercet.tools.workshop.backend_table --output docs/results`. *Build* "
        "is the time from the model in memory to its first result with an empty cache; *again* is "
        "the same with the cache that this has filled. *Latency* is that of `Model.run` with batch "
        f"size {FIRST}, including copies; *new shape* is the first call with batch size {NEW}, "
        "*then* is that of later calls, and *calls* is how many of these take as long as the first "
        "one: if shapes change more often, use another backend. Errors are relative L2 distances "
        "from float64."
    )
    numbers = range(2, len(TITLES) - 1)
    lines = [*head("Cost of each backend", text, about), *table(TITLES, map(cells, rows), numbers)]
    return "\n".join([*lines, ""])


def save(rows: Sequence[OperatorRow], about: Mapping[str, str], folder: Path) -> list[Path]:
    """Write JSON and Markdown; return their paths."""
    results = [{**asdict(row), "calls": row.calls} for row in rows]
    texts = {FILE: to_json(about, results=results), "backends.md": markdown(rows, about)}
    return write(folder, texts)


def _row(entry: dict[str, Any]) -> OperatorRow:
    """Read what `save` has written."""
    return OperatorRow(**{name: data for name, data in entry.items() if name != "calls"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write if asked; return the exit code."""
    parser = make_parser("backend_table", __doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"{', '.join(MODELS)}, ...")
    parser.add_argument(
        "--backend", action="append", help="repeatable; default: all that can run here"
    )
    chosen = parser.parse_args(arguments)
    console = open_console()
    names = chosen.backend or [found.name for found in available() if found]
    rows: dict[tuple[str, str], OperatorRow] = {}
    try:
        device = open_backends(names[-1], Options())[0].device
        about = device_environment(device, PACKAGES, chosen.commit)
        if chosen.output:
            known = earlier(chosen.output / FILE, about, _row)
            rows = {(row.model, row.backend): row for row in known}
        with progress() as say:
            _load_libraries(names)
            for name in chosen.models:
                source = bench_model(name)
                for backend in names:
                    row = measure(name, source, backend, say)
                    rows[name, backend] = row
                    print(*cells(row), sep="  ", flush=True)
                    if chosen.output:
                        save(list(rows.values()), about, chosen.output)
    except TercetError as error:
        console.print(f"backend_table: {error}")
        return error.exit_code
    print_table(console, TITLES, map(cells, rows.values()), left=2)
    return 0


def _load_libraries(names: Sequence[str]) -> None:
    """Run an operator on each backend to load its libraries; raises BackendUnavailable."""
    image, kernel = np.ones((1, 1, 8, 8), np.float32), np.ones((1, 1, 3, 3), np.float32)
    for name in names:
        run_op("Conv", image, kernel, backend=name)


if __name__ == "__main__":
    raise SystemExit(main())
