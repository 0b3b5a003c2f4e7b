"""An engine that is ready to run, and its execution contexts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...runtime.base.cache import Cache
from ...runtime.base.record import record
from ...runtime.errors import DeviceError
from ..regions.section import Ints
from .build import to_bytes
from .library import TensorrtLibrary

if TYPE_CHECKING:
    import tensorrt as trt


@record
class TensorrtEngine:
    """An engine that is ready to run.

    Attributes:
        vendor: the library.
        core: the `ICudaEngine`.
        key: its cache key.
        layers: number of layers.
        scratch: bytes of device memory that a run needs.
        store: the cache for kernels compiled in its first run.
    """

    vendor: TensorrtLibrary
    core: trt.ICudaEngine
    key: str
    layers: int
    scratch: int
    store: Cache

    def context(self, shapes: Mapping[str, Ints], addresses: Mapping[str, int]) -> ExecutionContext:
        """Return a context for these inputs, whose memory the caller provides.

        Args:
            shapes: by input.
            addresses: by input and output.

        Raises:
            DeviceError: the library does not accept one of them.
        """
        compiled = self.store.read(self._kernels) if self.vendor.product.for_rtx else None
        core, kernels = self.vendor.product.context(self.vendor.trt, self.core, compiled)
        if core is None:
            raise self.failed("create_execution_context")
        for name, shape in shapes.items():
            if not core.set_input_shape(name, shape):
                raise self.failed(f"set_input_shape('{name}', {shape})")
        context = ExecutionContext(self, core, kernels, compiled)
        context.point(addresses)
        return context

    def keep(self, kernels: bytes) -> None:
        """Store the kernels that an engine has compiled, for later processes."""
        self.store.write(self._kernels, kernels)

    def describe(self) -> str:
        """Return the engine's own description as JSON: layers, formats, precisions, tactics."""
        inspector = self.core.create_engine_inspector()
        kind = self.vendor.trt.LayerInformationFormat.JSON
        return str(inspector.get_engine_information(kind))

    def failed(self, call: str) -> DeviceError:
        """Return an error with the library's message for a failed call."""
        return DeviceError(
            f"{self.vendor}, engine {self.key[:8]}: {call}: {self.vendor.take_message()}"
        )

    @property
    def _kernels(self) -> str:
        return f"{self.key}.kernels"


@record
class ExecutionContext:
    """An execution context of an engine: shapes, addresses and scratch memory.

    Attributes:
        engine: the engine.
        core: the `IExecutionContext`.
        kernels: the runtime cache; None if the library has none.
        compiled: the previous contents of the runtime cache.
    """

    engine: TensorrtEngine
    core: trt.IExecutionContext
    kernels: Any
    compiled: bytes | None

    def point(self, addresses: Mapping[str, int]) -> None:
        """Set the addresses of inputs and outputs."""
        for name, address in addresses.items():
            if not self.core.set_tensor_address(name, address):
                raise self.engine.failed(f"set_tensor_address('{name}')")

    def work_in(self, address: int, nbytes: int) -> None:
        """Set the scratch memory."""
        self.core.set_device_memory(address, nbytes)

    def run(self, stream: int) -> None:
        """Enqueue a run on a stream, given by its handle."""
        if not self.core.execute_async_v3(stream):
            raise self.engine.failed("execute_async_v3")

    def keep(self) -> None:
        """Store the kernels that a first run has compiled."""
        if self.kernels is not None:
            compiled = to_bytes(self.kernels.serialize())
            if compiled != self.compiled:
                self.engine.keep(compiled)
