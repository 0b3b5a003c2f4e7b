"""Device time of a part of a plan, by a pair of events."""

from __future__ import annotations

from collections.abc import Callable

from cuda.bindings import driver

from .device import DriverDevice
from .status import check
from .streams import CudaStream

_EXTERNAL = int(driver.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL)


class Stopwatch:
    """Two events around some work.

    In a recorded graph they are nodes, so that a replay times the work alone without the launch,
    which takes longer than a small kernel.

    Args:
        device: the GPU.
    """

    def __init__(self, device: DriverDevice) -> None:
        self._device = device
        flags = int(driver.CUevent_flags.CU_EVENT_DEFAULT)
        self._begin = check("cuEventCreate", driver.cuEventCreate(flags))
        self._end = check("cuEventCreate", driver.cuEventCreate(flags))

    def around(
        self, run: Callable[[CudaStream], None], *, recorded: bool
    ) -> Callable[[CudaStream], None]:
        """Return a function that does the same work between two events.

        Args:
            run: enqueues the work.
            recorded: whether to record it as a graph; it must then be capturable.
        """
        flags = _EXTERNAL if recorded else 0

        def timed(stream: CudaStream) -> None:
            self._mark(self._begin, stream, flags)
            run(stream)
            self._mark(self._end, stream, flags)

        return self._device.record(timed) if recorded else timed

    def _mark(self, event: object, stream: CudaStream, flags: int) -> None:
        answer = driver.cuEventRecordWithFlags(event, stream.handle, flags)
        check("cuEventRecordWithFlags", answer)

    def seconds(self) -> float:
        """Return the time between the events of the last run, which must be complete."""
        answer = driver.cuEventElapsedTime(self._begin, self._end)
        return check("cuEventElapsedTime", answer) / 1e3

    def close(self) -> None:
        """Free the events; the work cannot be timed afterwards."""
        for event in (self._begin, self._end):
            check("cuEventDestroy", driver.cuEventDestroy(event))
