"""How fast the numpy backend is, beside onnxruntime: the nine light models, in one run.

    python -m tercet.tools.cpu_bench
    python -m tercet.tools.cpu_bench resnet50 squeezenet --reference

Models get seeded random weights (see `light_models`) and a batch of one image. Everybody has the
same number of threads, runs in turn, and is judged by the median; times of a busy machine mean
nothing, their ratio means more.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..runtime.errors import TercetError, did_you_mean
from ..runtime.types import Array
from .agreement import RELATIVE
from .console import grid, open_console, progress
from .contestants import ONNXRUNTIME, REFERENCE, Contestant, Settings, open_contestant
from .light_models import NAMES, light_inputs, light_model
from .measure import Repeat, Timing, interleave, timed
from .threads import use_threads

OWN = "numpy"


@dataclass(frozen=True, slots=True)
class Row:
    """One model.

    Attributes:
        name: the model.
        times: latencies by contestant.
        error: greatest difference from onnxruntime, as a share of its greatest logit.
    """

    name: str
    times: Mapping[str, Timing] = field(default_factory=dict[str, Timing])
    error: float = 0.0

    def milliseconds(self, who: str) -> float:
        """Return the median of one contestant."""
        return self.times[who].median * 1e3

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain types."""
        times = {who: timing.to_dict() for who, timing in self.times.items()}
        return {"model": self.name, "error": self.error, "milliseconds": times}


def measure(name: str, repeat: Repeat, *, reference: bool = False) -> Row:
    """Run one model on numpy and onnxruntime in turn, and on onnx.reference once if asked."""
    model = light_model(name)
    feeds = light_inputs(model)
    with progress() as say:
        say(f"{name}: loading")
        contestants = {who: open_contestant(who, model, Settings()) for who in (OWN, ONNXRUNTIME)}
        try:
            calls = {who: _call(contestant, feeds) for who, contestant in contestants.items()}
            got, want = (next(iter(call().values())) for call in calls.values())
            times = interleave(calls, repeat, say)
        finally:
            for contestant in contestants.values():
                contestant.close()
        if reference:
            say(f"{REFERENCE}: run 1")
            slow = open_contestant(REFERENCE, model, Settings())
            times[REFERENCE] = Timing((timed(_call(slow, feeds)),))
    return Row(name, times, float(np.abs(got - want).max() / np.abs(want).max()))


def _call(contestant: Contestant, feeds: Mapping[str, Array]) -> Callable[[], dict[str, Array]]:
    return partial(contestant.run, feeds)


def _show(rows: list[Row], reference: bool) -> None:
    console = open_console()
    titles = ["model", "onnxruntime ms", "numpy ms", "ratio", "error"]
    table = grid(*titles, *([f"{REFERENCE} ms", "speed-up"] if reference else []))
    for row in rows:
        own, other = row.milliseconds(OWN), row.milliseconds(ONNXRUNTIME)
        cells = [row.name, f"{other:.1f}", f"{own:.1f}", f"{own / other:.2f}", f"{row.error:.0e}"]
        if reference:
            slow = row.milliseconds(REFERENCE)
            cells += [f"{slow:.0f}", f"{slow / own:.1f}"]
        table.add_row(*cells)
    console.print(table)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tercet.tools.cpu_bench",
        description="Measure the numpy backend beside onnxruntime on the light models.",
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--reference", action="store_true", help="run onnx.reference, too, once")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each model; default: 3")
    parser.add_argument("--threads", type=int, help="for everybody; default: as numpy has them")
    parser.add_argument("--json", action="store_true", help="print JSON, no table")
    arguments = parser.parse_args()
    for name in arguments.models:
        if name not in NAMES:
            parser.error(f"there is no light model '{name}'{did_you_mean(name, NAMES)}")
    return arguments


def main() -> int:
    """Measure and print; return 1 where a result is wrong."""
    arguments = _parse()
    repeat = Repeat(seconds=arguments.seconds / 2, least=5)
    rows: list[Row] = []
    try:
        with use_threads(arguments.threads):
            for name in arguments.models or NAMES:
                rows.append(measure(name, repeat, reference=arguments.reference))
    except TercetError as error:
        open_console(stderr=True).print(str(error))
        return error.exit_code
    if arguments.json:
        print(json.dumps([row.to_dict() for row in rows], indent=2))
    else:
        _show(rows, arguments.reference)
    return int(any(row.error > RELATIVE["float32"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
