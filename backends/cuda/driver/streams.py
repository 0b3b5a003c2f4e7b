"""Streams, points in their order, and graphs that are recorded from them."""

from __future__ import annotations

from collections.abc import Callable
from sys import is_finalizing

from cuda.bindings import driver

from ....runtime.base import forks
from .status import check

_RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
_CONDITIONAL = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
_REPLACED = int(driver.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES)
#: Kinds of conditional nodes.
IF = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
WHILE = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE


class _Owned:
    """What the driver frees when nobody holds it any longer.

    Args:
        handle: the driver's handle.
        free: the driver's function that frees it.
    """

    __slots__ = ("_free", "_generation", "handle")

    def __init__(self, handle: object, free: Callable[[object], object]) -> None:
        self.handle, self._free = handle, free
        self._generation = forks.generation()

    def __del__(self, ends: Callable[[], bool] = is_finalizing) -> None:
        # A process that ends frees everything; one that was forked owns nothing.
        if not ends() and self._generation == forks.generation():
            self._free(self.handle)


class CudaEvent:
    """A point in the order of a stream; see `runtime.exchange.Event`.

    Args:
        timed: whether the time of the point is kept.
    """

    __slots__ = ("_owned", "handle")

    def __init__(self, *, timed: bool = False) -> None:
        kinds = driver.CUevent_flags
        flags = int(kinds.CU_EVENT_DEFAULT if timed else kinds.CU_EVENT_DISABLE_TIMING)
        self.handle = check("cuEventCreate", driver.cuEventCreate(flags))
        self._owned = _Owned(self.handle, driver.cuEventDestroy)

    def record(self, stream: CudaStream) -> None:
        """Set the point after everything enqueued on `stream` so far."""
        check("cuEventRecord", driver.cuEventRecord(self.handle, stream.handle))

    def precede(self, stream: CudaStream) -> None:
        """Make later work of `stream` wait for the point."""
        check("cuStreamWaitEvent", driver.cuStreamWaitEvent(stream.handle, self.handle, 0))

    def synchronize(self) -> None:
        """Wait on the host until the point is reached."""
        check("work before cuEventSynchronize", driver.cuEventSynchronize(self.handle))

    def seconds_since(self, earlier: CudaEvent) -> float:
        """Return the time from another point to this one, both timed and reached."""
        answer = driver.cuEventElapsedTime(earlier.handle, self.handle)
        return check("cuEventElapsedTime", answer) / 1e3

    @property
    def is_reached(self) -> bool:
        """Whether the device has reached the point."""
        status = driver.cuEventQuery(self.handle)
        if status[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        check("work before cuEventQuery", status)
        return True


class CudaStream:
    """A CUDA stream.

    Args:
        handle: the driver's handle.
        owner: keeps the stream alive; None for one that nobody frees.
    """

    __slots__ = ("handle", "owner")

    def __init__(self, handle: int, owner: object = None) -> None:
        self.handle, self.owner = handle, owner

    def mark(self) -> CudaEvent:
        """Record an event after everything enqueued on the stream so far."""
        event = CudaEvent()
        event.record(self)
        return event

    def wait(self, event: CudaEvent) -> None:
        """Make later work of the stream wait for an event of another stream."""
        event.precede(self)

    def synchronize(self) -> None:
        """Wait until all work of the stream is done; see `runtime.backend.Stream`."""
        answer = driver.cuStreamSynchronize(self.handle)
        if answer[0]:
            check("a kernel or copy before cuStreamSynchronize", answer)


class OwnStream(CudaStream):
    """A new stream of the current device, independent of the default one."""

    __slots__ = ()

    def __init__(self) -> None:
        flags = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        handle = check("creating a stream", driver.cuStreamCreate(flags))
        super().__init__(int(handle), _Owned(handle, driver.cuStreamDestroy))


class Recording(OwnStream):
    """The stream of a CUDA graph that is being recorded.

    Args:
        body: the graph of a conditional node that is recorded; None for a new graph.
    """

    __slots__ = ("_body",)

    def __init__(self, body: driver.CUgraph | None = None) -> None:
        super().__init__()
        self._body = body

    def record(self, run: Callable[[CudaStream], None]) -> driver.CUgraph:
        """Record what `run` enqueues on the stream, and return the graph."""
        # In any other mode, a garbage collection that frees memory of other models
        # during the capture would invalidate it.
        if self._body is None:
            answer = driver.cuStreamBeginCapture(self.handle, _RELAXED)
        else:
            answer = driver.cuStreamBeginCaptureToGraph(
                self.handle, self._body, None, None, 0, _RELAXED
            )
        check("cuStreamBeginCapture", answer)
        try:
            run(self)
        except BaseException:
            _, graph = driver.cuStreamEndCapture(self.handle)  # fails as well if it was invalidated
            if self._body is None and graph:
                driver.cuGraphDestroy(graph)
            raise
        return check("cuStreamEndCapture", driver.cuStreamEndCapture(self.handle))

    def condition(self) -> int:
        """Return a new condition of conditional nodes, which kernels set."""
        graph, *_ = self._recorded()
        answer = driver.cuGraphConditionalHandleCreate(graph, _context(), 0, 0)
        return int(check("cuGraphConditionalHandleCreate", answer))

    def branch(
        self, condition: int, kind: driver.CUgraphConditionalNodeType, bodies: int
    ) -> list[Recording]:
        """Add a conditional node behind all work so far, and return the streams of its bodies."""
        node = driver.CUgraphNodeParams()
        node.type, about = _CONDITIONAL, node.conditional
        about.handle = driver.CUgraphConditionalHandle(condition)
        about.type, about.size, about.ctx = kind, bodies, _context()
        # Beside the nodes at the end of the stream, CUDA 13 has data of their edges.
        graph, *ends, count = self._recorded()
        added = check("cuGraphAddNode", driver.cuGraphAddNode(graph, *ends, count, node))
        new = [[added], *[None] * (len(ends) - 1)]
        answer = driver.cuStreamUpdateCaptureDependencies(self.handle, *new, 1, _REPLACED)
        check("cuStreamUpdateCaptureDependencies", answer)
        return [Recording(body) for body in about.phGraph_out]

    def _recorded(self) -> tuple[driver.CUgraph, *tuple[object, ...]]:
        """Return the graph, the nodes at the end of the stream, and their number."""
        answer = driver.cuStreamGetCaptureInfo(self.handle)
        _, _, *found = check("cuStreamGetCaptureInfo", answer)
        return tuple(found)


def _context() -> driver.CUcontext:
    return check("cuCtxGetCurrent", driver.cuCtxGetCurrent())


class RecordedGraph:
    """A CUDA graph that can be launched.

    Args:
        run: enqueues what is recorded.
    """

    __slots__ = ("_owned", "handle")

    def __init__(self, run: Callable[[CudaStream], None]) -> None:
        stream = Recording()
        graph = stream.record(run)
        try:
            self.handle = check("cuGraphInstantiate", driver.cuGraphInstantiate(graph, 0))
        finally:
            driver.cuGraphDestroy(graph)
        self._owned = _Owned(self.handle, driver.cuGraphExecDestroy)
        check("cuGraphUpload", driver.cuGraphUpload(self.handle, stream.handle))
        stream.synchronize()

    def launch(self, stream: CudaStream) -> None:
        """Enqueue all of it."""
        answer = driver.cuGraphLaunch(self.handle, stream.handle)
        if answer[0]:
            check("graph launch", answer)
