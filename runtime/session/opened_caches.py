"""Static caches where a model has plans for them, else passed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..base.warned import warn
from ..errors import PerformanceWarning, UnsupportedError
from ..ir.types import Array
from ..plan.host import HOST
from .decoding import CachedDecoder
from .model import Model
from .passed_caches import PassedCaches
from .static_cache import StaticCaches
from .step_inputs import StepInputs

#: A decoder with either kind of caches.
Opened = CachedDecoder[PassedCaches] | CachedDecoder[StaticCaches]
#: Opens a decoder: the model, its inputs, and those that are the same in every step.
Open = Callable[[Model, StepInputs, Mapping[str, Array]], Opened]


def opened(
    model: Model, inputs: StepInputs, given: Mapping[str, Array] = MappingProxyType({})
) -> Opened:
    """Return a decoder with empty caches.

    Args:
        model: remains the caller's.
        inputs: of the model.
        given: inputs that are the same in every step, by name.

    Raises:
        InputError: the size of a buffer must be given; see `StepInputs.first_length`.
    """
    if inputs.layout.caches:
        try:
            return CachedDecoder(inputs, StaticCaches(model, inputs, given=given))
        except UnsupportedError as error:
            if model.backends[0].device is not HOST:  # where it costs little
                file = f"{model.source.file}: " if model.source.file else ""
                text = f"{file}caches are passed from run to run: {error}"
                warn(text, PerformanceWarning)
    store = PassedCaches(model, inputs)
    store.give(given)
    return CachedDecoder(inputs, store)
