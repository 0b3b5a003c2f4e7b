"""Decoders with caches of either kind: static where a model has plans for them, else passed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..base.warned import warn
from ..errors import PerformanceWarning, UnsupportedError
from ..ir.types import Array
from ..plan.host import HOST
from .cache_layout import DecoderLayout
from .decoding import CachedDecoder
from .model import Model
from .passed_caches import PassedCaches
from .static_cache import StaticCaches
from .step_inputs import Embed, StepInputs

PassedDecoder = CachedDecoder[PassedCaches]
StaticCacheDecoder = CachedDecoder[StaticCaches]
#: A decoder with either kind of caches.
Opened = PassedDecoder | StaticCacheDecoder
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


def passed_decoder(
    model: Model,
    layout: DecoderLayout,
    batch: int = 1,
    capacity: int | None = None,
    embed: Embed | None = None,
) -> PassedDecoder:
    """Return a decoder whose caches are passed from run to run.

    Args:
        model: remains the caller's.
        layout: of the model.
        batch: number of sequences.
        capacity: maximum number of positions; if None, the limit of the file, or of memory.
        embed: computes embeddings of ids, for a model that takes those.

    Raises:
        InputError: `batch` or `capacity` does not fit the model.
    """
    inputs = StepInputs.of(model, layout, batch, capacity, embed)
    return CachedDecoder(inputs, PassedCaches(model, inputs))


def static_decoder(
    model: Model,
    layout: DecoderLayout,
    batch: int = 1,
    capacity: int | None = None,
    embed: Embed | None = None,
) -> StaticCacheDecoder:
    """Return a decoder whose caches stay in place; see `passed_decoder`.

    Raises:
        InputError: `batch` or `capacity` does not fit the model.
        UnsupportedError: a step of the model has no plan for all lengths; names the node.
        DeviceOutOfMemory: the device has no room for the caches.
    """
    inputs = StepInputs.of(model, layout, batch, capacity, embed)
    return CachedDecoder(inputs, StaticCaches(model, inputs))
