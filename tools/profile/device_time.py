"""What the device alone takes for a plan: its own rows, copies from and to the host left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...runtime.control.program import Program
from ...runtime.plan.backend import Stream
from ...runtime.plan.host import HOST
from ...runtime.plan.streams import is_capturable, stretches
from ...runtime.session.model import Model
from ..common.measure import Timing

if TYPE_CHECKING:
    from ...backends.cuda.device import CudaDevice

WARM_UP = 5


def device_times(model: Model, program: Program, runs: int = 200) -> Timing | None:
    """Return times of a program's rows on its CUDA device, on what its last run has left there.

    They are recorded as one graph, which is replayed between two events; what was fed is copied to
    the device again before each replay, outside the events.

    Args:
        model: whose program it is.
        program: which has run.
        runs: how often it is replayed.

    Returns:
        The times in seconds; None where there is no such device, or some rows are elsewhere.
    """
    own = model.backends[0].device
    rows = [row for row in program.rows if row.run is not None and row.kind != "copy"]
    if own is HOST or not hasattr(own, "time") or not program.is_plan:
        return None
    if any(row.device is not own for row in rows) or not is_capturable(rows):
        return None
    device: CudaDevice = own  # type: ignore[assignment]  # only CUDA's has events
    (plan,) = program.plans
    parts = [plan.together(stretch, copies=False) for stretch in stretches(plan.rows)]

    def run_all(stream: Stream) -> None:
        for part in parts:
            part(stream)

    replay: Any = device.record(run_all)
    stream = device.stream()

    def replay_once() -> float:
        for row in program.rows:
            if row.kind == "copy" and row.outputs[0].device is own and row.run is not None:
                row.run(stream)
        return device.time(replay, stream)

    for _ in range(WARM_UP):
        replay_once()
    return Timing(tuple(replay_once() for _ in range(runs)))
