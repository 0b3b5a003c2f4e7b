"""The backend: its device, and what it measures and claims there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from copy import copy
from importlib import import_module
from typing import TYPE_CHECKING

from ...runtime.ir.graph import Graph, Node
from ...runtime.options import Options
from ...runtime.plan.backend import Claim, Decline

if TYPE_CHECKING:
    from .device import CudaDevice
    from .recipe.setting import TunedChoice


class CudaBackend:
    """Runs nodes with hand-written kernels."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._choices: Mapping[str, TunedChoice] = {}

    @property
    def name(self) -> str:
        """``cuda``."""
        return "cuda"

    @property
    def device(self) -> CudaDevice:
        """The GPU."""
        return self._device

    @property
    def kept_as(self) -> str | None:
        """See `runtime.plan.keeping.Keeping`: what was measured here is kept elsewhere."""
        return None if self._choices else f"cuda on {self._device.compiler.target}"

    def provide(self) -> None:
        """Import what claims need."""
        import_module(".claims", __package__)

    def prepare(self, graph: Graph, free: Set[Node], options: Options) -> CudaBackend:
        """Return a backend that knows what is fastest in this graph, with `Options.tune`."""
        if not options.tune:
            return self
        from .tuning.network import tuned

        say = self._device.compiler.announce
        found = copy(self)
        result = tuned(self, graph, free, options, say)
        found._choices = {} if result is None else result.choices
        say("")
        return found

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim | Decline]:
        """Yield claims of groups; see `claims`."""
        from .claims import Claims

        return Claims(self._device, self._choices).of(graph, free, options)
