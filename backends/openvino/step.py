"""The step that runs a compiled region in the plan's memory."""

from __future__ import annotations

from ...runtime.base.record import record
from ...runtime.errors import DeviceError
from ...runtime.plan.backend import Run, View
from ...runtime.plan.host import array
from ..regions.section import Section
from .compiler import CompiledRegion, layers_of
from .library import gist


@record
class CompiledRegionStep:
    """A region with its engine.

    Attributes:
        section: the region as a model.
        engine: the compiled region.
        size: number of nodes of the region.
    """

    section: Section
    engine: CompiledRegion
    size: int
    scratch: int = 0
    capturable: bool = False

    @property
    def kernel(self) -> str:
        """The engine, for the placement report."""
        key, layers = self.engine.key[:8], self.engine.layers
        return f"engine {key}: {self.size} nodes as {layers} layers"

    @property
    def details(self) -> tuple[str, ...]:
        """The layers that OpenVINO reports; none in a forked process."""
        if not self.engine.vendor.uses.is_usable:
            return ()
        return tuple(map(str, layers_of(self.engine.core)))

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Run:
        """Return the function that runs the engine on these arrays, without copies.

        Raises:
            DeviceError: raised by the returned function if OpenVINO fails.
        """
        tensors = (*self.section.inputs, *self.section.outputs)
        named = zip(tensors, (*inputs, *outputs), strict=True)
        call = self.engine.request({tensor.name: array(view) for tensor, view in named})
        where = f"OpenVINO {self.engine.vendor.version}, {self.kernel}"

        def run(stream: object) -> None:
            try:
                call()
            except RuntimeError as error:
                raise DeviceError(f"{where}: {gist(error)}") from error

        return run
