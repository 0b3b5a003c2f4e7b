"""Operators that move elements: permuting, joining, slicing, padding, repeating."""

from __future__ import annotations

from functools import partial
from itertools import accumulate

import numpy as np

from ....runtime.ir.types import Array
from ....runtime.ops import movement
from ....runtime.ops.shapes import shape_text
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine import thread_pool
from ..engine.blocking import shares
from ..engine.chain import Chain
from ..engine.cost import ELEMENT, blocks_worth
from ..engine.registry import builder, kernel
from ..engine.step import Bound, HostStep, Tape
from ..numerics.convert import blank


@kernel(movement.Transpose, views=True)
def transpose(op: movement.Transpose, data: Array) -> Array:
    """Reorder the axes."""
    return data.transpose(op.order(data.ndim))


@kernel(movement.Expand)
def expand(op: movement.Expand, data: Array, wanted: Array, *, out: Array) -> None:
    """Broadcast."""
    sizes = tuple(wanted.tolist())
    if any(size not in (1, n) for size, n in zip(sizes[::-1], out.shape[::-1], strict=False)):
        raise ValueError(f"{shape_text(data.shape)} and {shape_text(sizes)} do not broadcast")
    np.copyto(out, data)


@kernel(movement.Tile)
def tile(op: movement.Tile, data: Array, repeats: Array, *, out: Array) -> None:
    """Repeat along each axis."""
    pairs = zip(repeats.reshape(-1), data.shape, strict=True)
    split = out.reshape([part for times, count in pairs for part in (int(times), count)])
    np.copyto(split, data.reshape([part for count in data.shape for part in (1, count)]))


@kernel(movement.Concat)
def concatenate(op: movement.Concat, *parts: Array | None, out: Array) -> None:
    """Concatenate the inputs of a node that runs alone."""
    np.concatenate([part for part in parts if part is not None], op.axis, out)


@builder(movement.Concat)
def concat(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Concatenate the inputs."""
    count = thread_pool.size()
    return HostStep(chain.title, site, partial(_record_concat, chain, count), count)


def _record_concat(chain: Chain, workers: int, bound: Bound) -> list[Tape]:
    """Copy every input to its place, distributed over threads by channels."""
    op, result = chain.head.op, bound[chain.output]
    assert isinstance(op, movement.Concat)
    axis, parts = op.axis % result.ndim, [bound[v] for v in chain.head.inputs if v is not None]
    ends = accumulate(part.shape[axis] for part in parts)
    lead = (slice(None),) * axis
    places = [
        result[(*lead, slice(end - part.shape[axis], end))]
        for part, end in zip(parts, ends, strict=True)
    ]
    pairs = list(zip(places, parts, strict=True))
    count = blocks_worth(2 * ELEMENT * result.size, workers)
    if axis != 1 or result.ndim < 3 or count == 1:
        return [[partial(np.copyto, place, part) for place, part in pairs]]
    images, positions = len(result), result[0, 0].size
    cuts = shares((images, 1, positions), count, -(-images // count) * positions)
    joined = [
        (place.reshape(*place.shape[:2], -1, copy=False), part.reshape(*part.shape[:2], -1))
        for place, part in pairs
    ]
    return [
        [
            partial(np.copyto, place[which, :, at], part[which, :, at])
            for place, part in joined
            for which, _, at in cut
        ]
        for cut in cuts
    ]


@kernel(movement.Split, views=True)
def split(op: movement.Split, data: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    """Split along an axis."""
    length = data.shape[op.axis]
    if sizes is None:
        count = op.num_outputs or 1
        part = -(-length // count)
        bounds = [min(length, part * i) for i in range(1, count)]
    else:
        bounds = list(accumulate(int(size) for size in sizes.reshape(-1)))[:-1]
    return tuple(np.split(data, bounds, op.axis))


@kernel(movement.Slice, views=True)
def slice_(
    op: movement.Slice,
    data: Array,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    """Slice some axes."""
    first, last = starts.reshape(-1).tolist(), ends.reshape(-1).tolist()
    along = range(len(first)) if axes is None else axes.reshape(-1).tolist()
    by = [1] * len(first) if steps is None else steps.reshape(-1).tolist()
    index = [slice(None)] * data.ndim
    for axis, start, end, step in zip(along, first, last, by, strict=True):
        low, high = movement.bounds_of_slice(start, end, step, data.shape[axis])
        index[axis] = slice(low, None if high < 0 else high, step)
    return data[tuple(index)]


@kernel(movement.DepthToSpace)
def depth_to_space(op: movement.DepthToSpace, x: Array, *, out: Array) -> None:
    """Rearrange channels to blocks of pixels."""
    n, c, h, w = x.shape
    b = op.blocksize
    if op.mode == "DCR":
        moved = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        moved = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    np.copyto(out.reshape(moved.shape), moved)


@kernel(movement.SpaceToDepth)
def space_to_depth(op: movement.SpaceToDepth, x: Array, *, out: Array) -> None:
    """Rearrange blocks of pixels to channels."""
    n, c, h, w = x.shape
    b = op.blocksize
    split = x.reshape(n, c, h // b, b, w // b, b)
    moved = split.transpose((0, 3, 5, 1, 2, 4) if op.mode == "DCR" else (0, 1, 3, 5, 2, 4))
    np.copyto(out.reshape(moved.shape), moved)


def need_lengths(lengths: Array, time: int) -> None:
    """Raise IndexError for sequence lengths that are negative or too large."""
    if lengths.size and (lengths.min() < 0 or lengths.max() > time):
        found = f"{lengths.min()} to {lengths.max()}"
        raise IndexError(f"lengths run from {found}, outside of 0 to {time}")


@kernel(movement.ReverseSequence)
def reverse_sequence(op: movement.ReverseSequence, x: Array, lengths: Array, *, out: Array) -> None:
    """Reverse the beginning of each sequence."""
    need_lengths(lengths, x.shape[op.time_axis])
    np.copyto(out, x)
    source, target = (np.moveaxis(a, (op.batch_axis, op.time_axis), (0, 1)) for a in (x, out))
    for i, length in enumerate(lengths.tolist()):
        target[i, :length] = source[i, :length][::-1]


@kernel(movement.CenterCropPad)
def center_crop_pad(op: movement.CenterCropPad, x: Array, wanted: Array, *, out: Array) -> None:
    """Crop the centre, or pad it with zeros."""
    out.fill(blank(out.dtype))
    source, target = [slice(None)] * x.ndim, [slice(None)] * x.ndim
    for axis, (have, want) in enumerate(zip(x.shape, out.shape, strict=True)):
        small, large = min(have, want), max(have, want)
        first = (large - small) // 2
        part = slice(first, first + small)
        (source if have > want else target)[axis] = part
    out[tuple(target)] = x[tuple(source)]
