"""Engines for a GPU that is not present: built, but never loaded.

TensorRT-RTX builds for compute capabilities by name, so that its engines can be planned without a
GPU. The layers of an engine can be inspected only on a GPU that runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...runtime.base.record import record
from ...runtime.base.worker import Worker
from ...runtime.errors import BackendUnavailable
from ...runtime.plan.backend import Device, View
from ..regions.section import Section
from .build import EngineBuilder, EngineSettings, SectionRefused
from .engines import key_of
from .library import TensorrtLibrary
from .step import Pointer
from .worker import Remote


@record
class Blueprint:
    """The step of an engine that was built only to be inspected.

    Attributes:
        vendor: the library.
        key: the engine's cache key.
        capability: the compute capability that it was built for.
        size: number of nodes of the section.
        nbytes: size of the engine.
    """

    vendor: TensorrtLibrary
    key: str
    capability: str
    size: int
    nbytes: int
    scratch: int = 0
    capturable: bool = True

    @property
    def kernel(self) -> str:
        """The engine, for the placement report."""
        target = f"built for compute capability {self.capability}"
        return f"engine {self.key[:8]}: {self.size} nodes, {self.nbytes} bytes, {target}"

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Callable[[Any], None]:
        """Raise BackendUnavailable.

        Raises:
            BackendUnavailable: always.
        """
        raise BackendUnavailable("tensorrt", f"{self.kernel}; it cannot run here", "use that GPU")


class PaperEngines:
    """Builds engines without loading them.

    Args:
        vendor: the library.
        capability: the compute capability to build for, such as ``8.9``.
        worker: the process that builds; this one if None.

    Raises:
        BackendUnavailable: the library builds nothing for this capability.
    """

    def __init__(self, vendor: TensorrtLibrary, capability: str, worker: Worker | None) -> None:
        self.vendor = vendor
        self._capability = capability
        self._builder = EngineBuilder(vendor, capability)
        self._builds = self._builder if worker is None else Remote(self._builder, worker)
        try:
            self._builder.probe()
        except SectionRefused as error:
            remedy = "name another target, or TERCET_TENSORRT=tensorrt_rtx"
            raise BackendUnavailable("tensorrt", f"{vendor}: {error.reason}", remedy) from None

    def takes(self, operator: str) -> bool:
        """Whether the parser supports an operator of ai.onnx."""
        return self._builder.takes(operator)

    def step(
        self, device: Device, pointer: Pointer, found: Section, settings: EngineSettings, size: int
    ) -> Blueprint:
        """Return the step of a section; the engine includes its weights.

        Raises:
            SectionRefused: the library does not accept it.
        """
        kept = replace(settings, strip=False)  # engines without weights need a driver
        built = self._builds.build(found, kept)
        key = key_of(self.vendor, self._capability, kept, found)
        return Blueprint(self.vendor, key, self._capability, size, len(built))
