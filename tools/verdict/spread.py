"""How far an output moves when all that computes it is moved: by element, slice and tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from ...runtime.ir.types import Array

#: What is allowed, by the farthest that a rough sample has moved.
SLACK = 3.0
#: The share of elements that move less than usual, or further. The farthest of twelve samples,
#: every second of which is the one before with the other sign, is below the deviation in a tenth of
#: all cases.
_USUAL = 0.1
#: How many fair samples are drawn for a few elements that are in doubt. The farthest of so many is
#: so many times as far as the farthest of twelve, every second of which is the one before with the
#: other sign, where noise is a sum of many terms.
_MANY, _FARTHER = 48, 1.4


class RoundingSpread:
    """How far the samples of an output move, by element and by slice.

    Args:
        exact: the result in float64.
        samples: others of its shape.
        tiny: what any number may move by.
        slack: what is allowed, by the farthest that a sample has moved.
        unbounded: whether an element that is NaN or infinite in some sample, but not in float64, or
            the reverse, may be anything; if not, the other samples count.

    Attributes:
        maximum: the farthest that each element moves in a sample where it is a number.
        square: its mean square distance in these.
        breaks: whether there is a sample where it is none.
        allowed: what it may differ by.
    """

    def __init__(
        self,
        exact: Array,
        samples: Sequence[Array],
        tiny: float,
        slack: float = SLACK,
        *,
        unbounded: bool = False,
    ) -> None:
        self._exact, self._samples = exact, samples
        self.maximum, self.square = np.zeros(exact.shape), np.zeros(exact.shape)
        self.breaks = np.zeros(exact.shape, bool)
        moves = np.zeros(exact.shape, int)
        for sample in samples:
            away = distance(exact, sample)
            known = np.isfinite(away)
            self.breaks |= ~known
            away[~known] = 0
            np.maximum(self.maximum, away, out=self.maximum)
            self.square += away * away
            moves += known
        self.square /= np.maximum(moves, 1)
        self._counts = ~self.breaks if self.breaks.any() else None
        allowed = slack * np.maximum(self.maximum, self._level()) + tiny
        self.allowed = np.where(self.breaks & unbounded, np.inf, allowed)
        self._tiny = tiny

    def widen(self, other: RoundingSpread) -> None:
        """Allow what other samples allow, too: near a pole, greater noise may move a result less.

        Args:
            other: of the same output.
        """
        np.maximum(self.allowed, other.allowed, out=self.allowed)
        np.maximum(self.square, other.square, out=self.square)

    def _level(self) -> Array:
        """Return how far each element moves at least, whatever few samples show of it by chance.

        That is how far its slices move on average, and the tensor nearly everywhere. Of an output
        whose magnitudes are far apart both are noise of its largest elements, next to which small
        ones may be anything. So an element moves no further than nearly all others do as a share
        of themselves. Noise that does not depend on magnitude has no such share: where terms
        cancel it is large, which leaves the other bounds.
        """
        level = np.full(self._exact.shape, np.sqrt(self._mean(self.square)))
        for axes in slices(self._exact.shape, 4):
            np.minimum(level, np.sqrt(self._mean(self.square, axes)), out=level)
        moving = self.maximum > 0
        if not moving.any():
            return level
        np.minimum(level, np.quantile(self.maximum[moving], _USUAL), out=level)
        size = np.abs(_finite(self._exact))
        known = moving & (size > 0)
        if known.any():
            share = np.quantile(self.maximum[known] / size[known], 1 - _USUAL)
            np.minimum(level, share * size, out=level, where=size > 0)
        return level

    def excess_of_slices(self, apart: Array, tensor: float, slice_: float, *, whole: bool) -> str:
        """Name a slice whose differences, taken together, are more than those of the samples.

        Args:
            apart: the differences.
            tensor: by how many times all of them may be so.
            slice_: the same for those of a slice.
            whole: whether only the tensor as a whole is looked at.
        """
        square = apart * apart
        for axes in [None] if whole else [None, *slices(apart.shape, 4)]:
            found = np.sqrt(self._mean(square, axes))
            usual = np.sqrt(self._mean(self.square, axes)) + self._tiny
            over = found / usual
            if float(np.max(over, initial=0.0)) > (tensor if axes is None else slice_):
                where = "the tensor" if axes is None else _slice_text(axes, over)
                return f"{where} is off by more than rounding explains, taken as a whole"
        return ""

    def excess_of_bias(
        self, signed: Array, times: float, floor: float = 0.0, *, whole: bool
    ) -> str:
        """Name a slice whose differences have one sign, or are one share, more than the samples'.

        Rounding to nearest moves a mean, and a factor between two results, by far less than it
        moves an element; truncation moves every element towards zero.

        Args:
            signed: the differences, as `signed_distance` gives them.
            times: by how many times they may.
            floor: a share of the elements that they may be in addition. Where there is one, those
                that samples move by half of themselves do not count: they may all become zero.
            whole: whether only the tensor as a whole is looked at.
        """
        exact, counts = _finite(self._exact), self._counts
        if floor:
            counts = (2 * self.maximum < np.abs(exact)) & ~self.breaks
        for axes in [None] if whole else [None, *slices(signed.shape, 4)]:
            mean, size = partial(self._mean, axes=axes, counts=counts), np.abs(exact)
            length = np.sqrt(mean(size * size))
            unit = np.conj(exact) / np.maximum(length, self._tiny)
            for how, along, scale in (
                ("to one side", 1.0, mean(size)),
                ("by a factor", unit, length),
            ):
                square = np.zeros(length.shape)
                for sample in self._samples:
                    square += np.square(np.abs(mean(along * signed_distance(self._exact, sample))))
                square /= max(len(self._samples), 1)
                usual = np.sqrt(np.maximum(square, square.mean())) + self._tiny
                over = np.abs(mean(along * signed)) / (times * usual + floor * scale)
                if float(np.max(over, initial=0.0)) > 1:
                    where = "the tensor" if axes is None else _slice_text(axes, over)
                    return f"{where} is off {how} by more than rounding explains"
        return ""

    def has_top(self, row: int, at: int) -> bool:
        """Whether the greatest element of a row along the last axis is ever there in a sample."""
        width = self._exact.shape[-1]
        rows = (x.reshape(-1, width)[row] for x in (self._exact, *self._samples))
        return any(int(np.where(np.isnan(x), -np.inf, x).argmax()) == at for x in rows)

    def _mean(
        self, data: Array, axes: tuple[int, ...] | None = None, counts: Array | None = None
    ) -> Array:
        """Return the mean of a tensor or of slices, by default of what no sample breaks."""
        keep = axes is not None
        counts = self._counts if counts is None else counts
        if counts is None:
            return np.asarray(np.mean(data, axes, keepdims=keep)) if data.size else np.zeros(())
        count = np.count_nonzero(counts, axes, keepdims=keep)
        return np.sum(data, axes, keepdims=keep, where=counts) / np.maximum(count, 1)


def distance(a: Array, b: Array) -> Array:
    """Return the differences.

    They are 0 between NaN and NaN, and between equal infinities, and infinite between what is not
    finite and anything else.
    """
    with np.errstate(all="ignore"):
        away = np.asarray(np.abs(np.subtract(a, b, dtype=np.result_type(a, b, np.float64))))
    finite = np.isfinite(away)
    if not finite.all():
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        away[~finite] = np.where(same, 0.0, np.inf)[~finite]
    return away


def farthest(
    sample: Callable[[int], Mapping[str, Array]], exact: Mapping[str, Array]
) -> dict[str, Array]:
    """Return how far all elements of floats move in many samples, as by the farthest of twelve.

    Args:
        sample: returns outputs by name, for the seed of a run.
        exact: the same without noise.
    """
    floats = {name: data for name, data in exact.items() if data.dtype.kind in "fc"}
    maxima = {name: np.zeros(data.shape) for name, data in floats.items()}
    for seed in range(_MANY):
        found = sample(seed)
        for name, data in floats.items():
            if name in found and found[name].shape == data.shape:
                away = distance(data, found[name])
                np.maximum(maxima[name], away, out=maxima[name], where=np.isfinite(away))
    return {name: data / _FARTHER for name, data in maxima.items()}


def slices(shape: tuple[int, ...], minimum: int) -> list[tuple[int, ...]]:
    """Return, for every axis whose slices have elements enough, all other axes."""
    found: list[tuple[int, ...]] = []
    for axis, length in enumerate(shape):
        others = tuple(i for i in range(len(shape)) if i != axis)
        if length > 1 and int(np.prod([shape[i] for i in others])) >= minimum:
            found.append(others)
    return found


def signed_distance(a: Array, b: Array) -> Array:
    """Return b - a, and 0 where that is not finite."""
    with np.errstate(all="ignore"):
        return _finite(b - a)


def _finite(data: Array) -> Array:
    return np.where(np.isfinite(data), data, 0)


def _slice_text(axes: tuple[int, ...], over: Array) -> str:
    axis = next(i for i in range(over.ndim) if i not in axes)
    return f"slice {int(over.argmax())} along axis {axis}"
