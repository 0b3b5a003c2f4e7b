"""The step that runs an engine on the plan's stream and in the plan's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...runtime.base.record import record
from ...runtime.errors import DeviceError
from ...runtime.plan.backend import Device, View
from ..regions.section import Section, SectionTensor
from .engine import ExecutionContext, TensorrtEngine
from .layers import layers as layers_of

#: The address of a view on the GPU.
Pointer = Callable[[View], int]


@record
class TensorrtStep:
    """A region with its engine.

    Attributes:
        device: the GPU.
        pointer: returns the address of a view there.
        section: the region as a model.
        engine: its engine.
        size: number of nodes of the region.
    """

    device: Device
    pointer: Pointer
    section: Section
    engine: TensorrtEngine
    size: int
    capturable: bool = True

    @property
    def kernel(self) -> str:
        """The engine, for the placement report."""
        key, layers = self.engine.key[:8], self.engine.layers
        memory = f", {self.scratch} bytes of scratch" if self.scratch else ""
        return f"engine {key}: {self.size} nodes as {layers} layers{memory}"

    @property
    def details(self) -> tuple[str, ...]:
        """The layers that the engine reports."""
        return tuple(str(layer) for layer in layers_of(self.engine.describe()))

    @property
    def scratch(self) -> int:
        """Device memory that a run needs."""
        return self.engine.scratch

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Callable[[Any], None]:
        """Return the function that runs the engine on these addresses.

        It runs once on zeros first: the library defers work that must not be recorded.
        """
        named = zip((*self.section.inputs, *self.section.outputs), (*inputs, *outputs), strict=True)
        addresses = {tensor.name: self.pointer(view) for tensor, view in named}
        shapes = {tensor.name: tensor.type.dims for tensor in self.section.inputs}
        context = self.engine.context(shapes, addresses)
        if scratch is not None:
            context.work_in(self.pointer(scratch), scratch.nbytes)
        self._rehearse(context)
        context.point(addresses)

        def run(stream: Any) -> None:
            context.run(stream.handle)

        return run

    def _rehearse(self, context: ExecutionContext) -> None:
        tensors: Sequence[SectionTensor] = (*self.section.inputs, *self.section.outputs)
        views = [self.device.upload(np.zeros(t.type.dims, t.type.dtype)) for t in tensors]
        try:
            where = zip(tensors, views, strict=True)
            context.point({t.name: self.pointer(view) for t, view in where})
            stream: Any = self.device.stream()
            context.run(stream.handle)
            stream.synchronize()
            context.keep()
        except DeviceError as error:
            raise DeviceError(f"{self.kernel}: first run: {error}") from error
        finally:
            for view in views:
                view.buffer.close()
