"""The cuDNN handle of a GPU, and the synchronization of its users."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import field
from threading import Lock
from typing import Any

from ...runtime.base.record import record
from ..cuda.driver.streams import CudaStream
from .library import CudnnLibrary


@record
class Session:
    """Plans and executes graphs on one GPU.

    A handle serves one caller and one stream at a time; `planning` and `execute` ensure that.

    Attributes:
        vendor: cuDNN.
        target: the GPU, such as ``NVIDIA H200 sm_90``; part of the key of every stored choice.
        place: the argument for creating graphs: a handle, or the properties of an absent GPU.
    """

    vendor: CudnnLibrary
    target: str
    place: Mapping[str, Any]
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)
    _last: list[CudaStream] = field(default_factory=list[CudaStream], repr=False, compare=False)

    @classmethod
    def here(cls, library: CudnnLibrary, ordinal: int) -> Session:
        """Open cuDNN on the GPU with this index, which must be the thread's current device."""
        frontend = library.frontend
        with library.calling("cudnnCreate"):
            handle = frontend.create_handle()
            properties = frontend.create_device_properties(ordinal).serialize()
        return cls(library, _target(properties), {"handle": handle})

    @classmethod
    def elsewhere(cls, library: CudnnLibrary, properties: str) -> Session:
        """Plan for a GPU described by its properties as JSON; nothing can be executed."""
        with library.calling("create_device_properties"):
            found = library.frontend.create_device_properties(properties)
        place = {"device_property": found, "sm_version": _architecture(properties)}
        return cls(library, _target(properties), place)

    @contextmanager
    def planning(self, call: str) -> Generator[None]:
        """Hold the handle exclusively within the block; see `CudnnLibrary.planning`."""
        with self._lock, self.vendor.planning(call):
            yield

    def execute(
        self, graph: Any, plan: int, pack: Mapping[int, int], workspace: int, stream: CudaStream
    ) -> None:
        """Launch one plan of a graph on a stream.

        Args:
            graph: the frontend's graph, with the plan built.
            plan: the plan's number.
            pack: address by tensor.
            workspace: address of the plan's scratch memory, 0 for none.
            stream: the CUDA stream.

        Raises:
            DeviceError: cuDNN reports an error.
        """
        handle = self.place["handle"]
        with self._lock, self.vendor.calling("cudnnBackendExecute"):
            self.vendor.frontend.set_stream(handle=handle, stream=stream.handle)
            self._last[:] = [stream]
            graph.execute_plan_at_index(pack, workspace, plan, handle)


def _target(properties: str) -> str:
    return f"{json.loads(properties)['deviceName']} sm_{_architecture(properties)}"


def _architecture(properties: str) -> int:
    return int(json.loads(properties)["deviceVer"]) // 10
