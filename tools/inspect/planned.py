"""What a backend does with a model: on the device here, or on a GPU that need not be present."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from ...backends import open_backends
from ...runtime.plan.backend import Backend
from ...runtime.plan.plan import Memory
from ...runtime.session.model import Model
from ...runtime.session.placement import Placement
from ..common.data_sheets import rates_of
from ..common.roofline import Rates
from .capability import Capability, capabilities_of
from .paper import describe_target, paper_memory, paper_rows
from .planned_cost import rates_here

if TYPE_CHECKING:
    from ...backends.cuda.recipe.targets import Target


class Planned:
    """A model as a backend plans it.

    Args:
        model: the model, which for a `gpu` has been loaded to plan alone.
        shapes: input shapes by name.
        backend: name of the backend.
        fallback: name of the backend for nodes that this one declines; None if there is none.
        gpu: the GPU to plan for instead of the device here; None for that.
    """

    def __init__(
        self,
        model: Model,
        shapes: Mapping[str, tuple[int, ...]],
        backend: str,
        fallback: str | None,
        gpu: Target | None,
    ) -> None:
        self._model, self._shapes, self._backend = model, shapes, backend
        self._fallback, self._gpu = fallback, gpu

    @cached_property
    def _behind(self) -> tuple[Backend, ...]:
        """The backends behind this one, which a model that is loaded to plan does not have."""
        if self._gpu is None or self._fallback is None:
            return ()
        return tuple(open_backends(self._fallback, self._model.options))

    @property
    def title(self) -> str:
        """The backend, with the GPU if that need not be present."""
        if self._gpu is None:
            return self._model.backend
        return f"{self._backend} on {describe_target(self._gpu)}"

    def prepare(self) -> None:
        """Plan for the device here."""
        if self._gpu is None:
            self._model.prepare(self._shapes)

    @property
    def placement(self) -> Placement:
        """The backend of each node, with its kernel."""
        if self._gpu is None:
            return self._model.placement(self._shapes)
        rows = paper_rows(self._model, self._gpu, self._shapes, self._behind, self._backend)
        return Placement(rows)

    def rates(self, precision: str) -> Rates | None:
        """Return how fast the device computes and reads; None if that is not known."""
        if self._gpu is None:
            return rates_here(self._model.backends, precision)
        return rates_of(self._gpu, precision)

    @property
    def memory(self) -> Memory:
        """The bytes that the plan holds."""
        if self._gpu is None:
            return self._model.memory(self._shapes)
        return paper_memory(self._model, self._gpu, self._shapes, self._behind)

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """Which operators the backend runs, and why not the others."""
        return capabilities_of(self._model, self._shapes, self._gpu, self._behind, self._backend)
