"""Types of the inputs of a decoder's step, of which some grow with the positions before it."""

from __future__ import annotations

from ..ir.grown import Grown
from ..ir.types import TensorType, constant_type
from .cache_layout import CachePair
from .step_inputs import StepInputs, Tokens


def types_of(inputs: StepInputs, count: int, room: int) -> dict[str, TensorType]:
    """Return the types of the inputs of a step of `count` tokens, caches included.

    Args:
        inputs: of the model.
        count: number of tokens.
        room: positions that the caches have room for.
    """
    layout, runs = inputs.layout, room - count + 1
    read = (Tokens.dummy(inputs.batch, before) for before in (0, 1))
    new = Tokens.dummy(inputs.batch, count)
    short, long = (inputs.feeds(each, new, cached=True) for each in read)
    types = {
        name: TensorType(data.dtype, _grown(data.shape, long[name].shape, runs))
        for name, data in short.items()
    }
    for role in ("use_cache", "logits_to_keep"):
        if (known := layout.inputs.get(role)) is not None:
            types[known.name] = constant_type(short[known.name])
    for each in layout.caches:
        sizes = each.sizes(inputs.batch, length_of(each, room))
        shape = tuple(
            Grown(0, 1, runs) if each.grows and axis == each.axis else size
            for axis, size in enumerate(sizes)
        )
        types[each.past] = TensorType(each.dtype, shape)
    return types


def length_of(each: CachePair, room: int) -> int:
    """Return the positions of a cache where those that grow have `room`."""
    return room if each.grows else each.room or each.window or room


def _grown(short: tuple[int, ...], long: tuple[int, ...], runs: int) -> tuple[int | Grown, ...]:
    """Return a shape whose sizes grow as much per step as from `short` to `long`."""
    sizes = zip(short, long, strict=True)
    return tuple(Grown(a, b - a, runs) if b > a else a for a, b in sizes)
