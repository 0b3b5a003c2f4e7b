"""Pad: recorded as copies of slices where pads are constant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ....runtime.base.guard import need
from ....runtime.ir.types import Array
from ....runtime.ops.movement import Pad
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine.apply import left_to_kernel
from ..engine.chain import Chain
from ..engine.registry import builder, kernel
from ..engine.step import Bound, HostStep, Tape
from ..numerics.convert import blank

#: Elements before and after along each axis, negative to crop.
Widths = Sequence[tuple[int, int]]
#: Bytes of a result from which filling its margins takes less time than filling it.
LARGE = 1 << 15


@kernel(Pad)
def pad(
    op: Pad,
    data: Array,
    pads: Array,
    constant_value: Array | None = None,
    axes: Array | None = None,
    *,
    out: Array,
) -> None:
    """Add elements before and after, or crop where `pads` is negative."""
    widths = _widths(data.ndim, pads, axes)
    trimmed, grown = _trimmed(data, widths), _grown(widths)
    if op.mode == "constant":
        out.fill(blank(data.dtype) if constant_value is None else constant_value.item())
        out[_inside(trimmed.shape, grown)] = trimmed
    elif not any(map(any, grown)):  # np.pad takes no scalar
        np.copyto(out, trimmed)
    else:
        sizes = (a + size + b for (a, b), size in zip(grown, trimmed.shape, strict=True))
        need(prod(sizes) * data.itemsize, "the padded tensor")
        np.copyto(out, np.pad(trimmed, grown, _PAD_MODES[op.mode]))


_PAD_MODES: dict[str, Any] = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def _widths(rank: int, pads: Array, axes: Array | None) -> Widths:
    amounts = pads.reshape(-1).tolist()
    axes = np.arange(rank) if axes is None else axes.reshape(-1)
    widths = [(0, 0)] * rank
    for i, axis in enumerate(axes.tolist()):
        widths[axis % rank] = (amounts[i], amounts[i + len(amounts) // 2])
    return widths


def _trimmed(data: Array, widths: Widths) -> Array:
    """Return the part that is not cropped."""
    pairs = zip(widths, data.shape, strict=True)
    kept = (slice(max(0, -a), max(0, size + min(0, b))) for (a, b), size in pairs)
    return data[(*kept, ...)]  # a view of a scalar, too


def _grown(widths: Widths) -> Widths:
    return [(max(0, a), max(0, b)) for a, b in widths]


def _inside(shape: Sequence[int], grown: Widths) -> tuple[slice, ...]:
    """Return where the elements of an array of this shape are in the result."""
    return tuple(slice(a, a + size) for (a, _), size in zip(grown, shape, strict=True))


@builder(Pad)
def pad_by_slices(chain: Chain, site: BuildContext, options: Options) -> HostStep:
    """Copy slices; what would be reflected or wrapped several times is left to the function."""
    op, (data, pads, _, axes) = chain.head.op, (*chain.head.inputs, None, None)[:4]
    assert isinstance(op, Pad)
    assert data is not None
    assert pads is not None
    along = None if axes is None else axes.data
    if pads.data is None or (axes is not None and along is None) or data.tensor.dtype.hasobject:
        return left_to_kernel(chain, site)
    widths = _widths(len(data.tensor.dims), pads.data, along)
    pairs = zip(data.tensor.dims, widths, strict=True)
    left = [n + min(0, a) + min(0, b) for n, (a, b) in pairs]  # negative if margins are cropped
    most = [_longest(op.mode, n) if n >= 0 else -1 for n in left]
    if any(max(pair) > limit for pair, limit in zip(widths, most, strict=True)):
        return left_to_kernel(chain, site)
    return HostStep(chain.title, site, partial(_record, chain, widths))


def _longest(mode: str, size: int) -> float:
    """Return how many elements a slice may add to this many, which each are read once."""
    return {"constant": np.inf, "edge": np.inf if size else 0, "reflect": size - 1}.get(mode, size)


def _record(chain: Chain, widths: Widths, bound: Bound) -> list[Tape]:
    op, out = chain.head.op, bound[chain.output]
    assert isinstance(op, Pad)
    data, _, constant_value, *_ = (*map(bound.get, chain.head.inputs), None)
    assert data is not None
    trimmed, grown = _trimmed(data, widths), _grown(widths)
    inside = _inside(trimmed.shape, grown)
    copy = partial(np.copyto, out[(*inside, ...)], trimmed)
    if op.mode != "constant":
        return [[copy, *_margins(op.mode, out, inside)]]
    value = np.asarray(blank(out.dtype)) if constant_value is None else constant_value.reshape(())
    places = [out]
    if out.nbytes >= LARGE:
        places = [out[place] for place, _ in _outside(out.shape, inside)]
    return [[*(partial(np.copyto, place, value) for place in places), copy]]


Place = tuple[slice, ...]


def _outside(shape: Sequence[int], inside: Place) -> Iterator[tuple[Place, int]]:
    """Yield the margins along each axis, with those of the axes in front of it, and the axis."""
    for axis, part in enumerate(inside):
        lead, behind = (slice(None),) * axis, inside[axis + 1 :]
        if part.start:
            yield (*lead, slice(0, part.start), *behind), axis
        if part.stop < shape[axis]:
            yield (*lead, slice(part.stop, shape[axis]), *behind), axis


def _margins(mode: str, out: Array, inside: Place) -> Iterator[partial[None]]:
    """Yield the calls that copy what is inside to the margins, axis by axis."""
    for place, axis in _outside(out.shape, inside):
        first, last = inside[axis].start, inside[axis].stop
        here = place[axis]
        count, is_before = here.stop - here.start, here.stop <= first
        if mode == "edge":
            found = slice(first, first + 1) if is_before else slice(last - 1, last)
        elif mode == "wrap":
            found = slice(last - count, last) if is_before else slice(first, first + count)
        elif is_before:
            found = slice(first + 1, first + 1 + count)
        else:
            found = slice(last - 1 - count, last - 1)
        source = out[(*place[:axis], found, *place[axis + 1 :])]
        yield partial(np.copyto, out[place], np.flip(source, axis) if mode == "reflect" else source)
