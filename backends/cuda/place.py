"""Results that depend on where they are: padding, triangles, reversed sequences, counting."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ...runtime.dtypes import DType
from ...runtime.ops.movement import CenterCropPad, Pad, ReverseSequence
from ...runtime.ops.shape import EyeLike, Range, Trilu
from ...runtime.ops.shapes import normalize_axes
from .compile import arithmetic
from .elementwise import ANY
from .launch import Launch, each
from .layout import Ints, order
from .operands import Arguments, Tensor, index_type
from .registry import Answer, kernel, need_dtypes, need_known
from .shape import words_of

_MODES = ("constant", "edge", "reflect", "wrap")


def _place(entry: str, y: Tensor, dtype: DType, args: Arguments, **constants: int | bool) -> Launch:
    """Return a launch of `place.cu`; `args` are what the entry takes besides y and its size."""
    index = index_type(y.extent, *(a.extent for a in args.values() if isinstance(a, Tensor)))
    all_constants = {"RANK": 1, "MODE": 0, "UPPER": False, "TIME_FIRST": False, **constants}
    return each(
        "place.cu",
        entry,
        y.size,
        {"y": y, "count": y.size, **args},
        types=(("Index", index), ("T", dtype), ("A", arithmetic(dtype))),
        constants=tuple(all_constants.items()),
    )


@kernel(Pad, follows=True)
def pad(
    op: Pad,
    y: Tensor,
    x: Tensor,
    pads: Tensor,
    value: Tensor | None = None,
    axes: Tensor | None = None,
) -> Answer:
    """Add elements before and behind, or take some away where `pads` is negative."""
    refused = need_known(pads=pads, axes=axes)
    if refused:
        return refused
    along = range(x.rank) if axes is None else normalize_axes(axes.ints, x.rank)
    amounts = pads.ints
    before, behind = [0] * x.rank, [0] * x.rank
    for i, axis in enumerate(along):
        before[axis], behind[axis] = amounts[i], amounts[i + len(amounts) // 2]
    return _padded(y, x, value, tuple(before), tuple(behind), _MODES.index(op.mode))


@kernel(CenterCropPad, follows=True)
def center_crop_pad(op: CenterCropPad, y: Tensor, x: Tensor, wanted: Tensor) -> Answer:
    """Take the middle, with zeros around it where there is not enough."""
    more = [want - have for want, have in zip(y.dims, x.dims, strict=True)]
    before = tuple(n // 2 if n >= 0 else -(-n // 2) for n in more)
    behind = tuple(n - first for n, first in zip(more, before, strict=True))
    return _padded(y, x, None, before, behind, 0)


def _padded(
    y: Tensor, x: Tensor, value: Tensor | None, before: Ints, behind: Ints, mode: int
) -> Answer:
    """Return what adds elements, after taking away those that negative numbers name."""
    sizes = tuple(n + min(a, 0) + min(b, 0) for n, a, b in zip(x.dims, before, behind, strict=True))
    if mode and y.size and not all(sizes):
        return f"{x.value.tensor} has no elements to repeat"
    offset = sum(-min(a, 0) * step for a, step in zip(before, x.strides, strict=True))
    grown = tuple(max(a, 0) for a in before)
    left = tuple(max(n, 0) for n in sizes)
    lie = order(x.rank, x.format)
    of_axes = {
        **{"results": y.dims, "before": grown, "sizes": left},
        **{"strides": x.strides, "places": y.strides},
    }
    args = {
        **{"x": x, "value": value, "offset": offset},
        **{name: tuple(these[a] for a in lie) for name, these in of_axes.items()},
    }
    launch = _place("pad", y, words_of(x.dtype), args, RANK=max(x.rank, 1), MODE=mode)
    return replace(launch, pitched=(x, y))


@kernel(Trilu)
def trilu(op: Trilu, y: Tensor, x: Tensor, k: Tensor | None = None) -> Answer:
    """Keep a triangle of every matrix."""
    args = {"x": x, "k": k, "rows": x.dims[-2], "columns": x.dims[-1]}
    return _place("triangle", y, words_of(x.dtype), args, UPPER=bool(op.upper))


@kernel(EyeLike)
def eye_like(op: EyeLike, y: Tensor, x: Tensor) -> Answer:
    """Fill a diagonal with ones."""
    refused = need_dtypes(ANY, y)
    if refused:
        return refused
    return _place("diagonal", y, y.dtype, {"columns": y.dims[1], "k": op.k})


@kernel(ReverseSequence)
def reverse_sequence(op: ReverseSequence, y: Tensor, x: Tensor, lengths: Tensor) -> Answer:
    """Reverse the beginning of each sequence."""
    args = {"x": x, "lengths": lengths, "second": x.dims[1], "inner": prod(x.dims[2:])}
    first = op.time_axis == 0
    return _place("reverse_sequence", y, words_of(x.dtype), args, TIME_FIRST=first)


@kernel(Range)
def range_(op: Range, y: Tensor, start: Tensor, limit: Tensor, delta: Tensor) -> Answer:
    """Count from `start`."""
    return _place("range", y, y.dtype, {"start": start, "delta": delta})
