"""Noise of a run: by how much numbers move, and random numbers that move them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from ...backends.numpy import evaluate
from ...runtime.ir.dtypes import float32, float64
from ...runtime.ir.op import with_attributes
from ...runtime.ir.types import Array
from ...runtime.ops.resize import GridSample
from .operators import BITS, BYTES, WHOLE

EXACT, FAIR, ROUGH = "exact", "fair", "rough"
#: No noise, but what exceeds the range of its format is infinite.
OVERFLOWING = "overflowing"
#: No noise, but results are rounded to their format, so that what is nearly equal may be equal.
STORED = "stored"
#: No noise, but what an operator leaves unspecified is NaN.
OPEN = "open"
#: How many times as far as rounding to nearest numbers are moved. Accumulators of half precision
#: are float32 nearly everywhere, so the formats themselves are all that makes it rough.
STRENGTH = {
    FAIR: {"float64": 2.0, "float32": 2.0, "tf32": 1.0, "float16": 1.0, "bfloat16": 1.0},
    ROUGH: {"float64": 16.0, "float32": 16.0, "tf32": 4.0, "float16": 4.0, "bfloat16": 4.0},
}
#: A table of noise of a prime length, read from a random place on.
_PRIME = 1_000_003


@lru_cache(maxsize=1)
def _table() -> Array:
    """Return the table twice, one behind the other, so that every part of it is a slice."""
    found = np.random.default_rng(0).uniform(-1, 1, _PRIME)
    return np.concatenate([found, found])


@dataclass(frozen=True, slots=True)
class Amount:
    """By which share of themselves numbers move, in fair and in rough runs."""

    fair: float = 0.0
    rough: float = 0.0

    def __mul__(self, times: float) -> Amount:
        return Amount(self.fair * times, self.rough * times)

    def __or__(self, other: Amount) -> Amount:
        """Return the greater ones."""
        return Amount(max(self.fair, other.fair), max(self.rough, other.rough))

    @classmethod
    def of(cls, name: str) -> Amount:
        """Return that of a format, for a number that is rounded once."""
        return cls(*(STRENGTH[kind][name] * 2.0 ** -BITS[name] for kind in (FAIR, ROUGH)))


#: That of what is not rounded.
NO_AMOUNT = Amount()


class Noise:
    """Random numbers between -1 and 1, as many as one wants at next to no cost; of one run.

    An even seed and the next one give the same numbers with opposite signs: of two that are nearly
    equal each is the greater one in one of both.
    """

    def __init__(self) -> None:
        self.start(EXACT, 0)

    def start(self, kind: str, seed: int, times: float = 1.0) -> None:
        """Begin a run.

        Args:
            kind: `EXACT`, `OVERFLOWING`, `STORED`, `OPEN`, `FAIR` or `ROUGH`.
            seed: another one gives other noise.
            times: how much further numbers move than they do by default.
        """
        self._kind, self._times = kind, times
        self._generator = np.random.default_rng((kind == FAIR, seed // 2))
        self._sign = -1.0 if seed % 2 else 1.0
        #: Constants of this run, which loops read more than once.
        self.constants: dict[int, Array] = {}

    @property
    def is_exact(self) -> bool:
        """Whether nothing moves in this run."""
        return self._kind in (EXACT, OVERFLOWING, STORED, OPEN)

    @property
    def overflows(self) -> bool:
        """Whether what exceeds the range of its format is infinite in this run."""
        return self._kind == OVERFLOWING

    @property
    def stores(self) -> bool:
        """Whether results are rounded to their format in this run."""
        return self._kind == STORED

    @property
    def opens(self) -> bool:
        """Whether what an operator leaves unspecified is NaN in this run."""
        return self._kind == OPEN

    def share(self, amount: Amount) -> float:
        """Return by which share of themselves numbers move in this run."""
        return 0.0 if self.is_exact else self._times * getattr(amount, self._kind)

    def __call__(self, shape: tuple[int, ...]) -> Array:
        """Return random numbers."""
        size = prod(shape)
        start = int(self._generator.integers(_PRIME))
        found = _table()[start : start + min(size, _PRIME)]
        if size > _PRIME:
            found = np.resize(found, size)
        return (self._sign * found).reshape(shape)


def moved(
    noise: Noise,
    x: Array,
    like: Array | None = None,
    *,
    amount: Amount = NO_AMOUNT,
    bits: int = 0,
    below: float = np.inf,
    smallest: float = 0.0,
    floor: float = 0.0,
    radius: int = 0,
    across: tuple[int, ...] = (),
    coordinates: Amount = NO_AMOUNT,
    rows: bool = False,
    steps: bool = True,
    negative: bool = True,
    greatest: float = np.inf,
    blocks: int = 0,
) -> Array:
    """Return numbers moved by at most a share of themselves; as they are in an exact run.

    Args:
        noise: where random numbers come from.
        x: any dtype; of what is not float64, bytes move by a step and all else stays.
        like: numbers of whose magnitude the share is taken where it is greater.
        amount: the share.
        bits: numbers of this many bits stay; whole ones where 0.
        below: the magnitude from which on none stays.
        smallest: the least magnitude that the share is taken of, where a number does not stay.
        floor: the least magnitude that the share is taken of; where there is one nothing stays.
        radius: how far away, along all axes but the first two, the greatest magnitude is looked
            for that the share is taken of; nothing stays.
        across: axes along which the greatest magnitude is looked for that the share is taken of;
            nothing stays.
        coordinates: the share of their indices by which elements are moved towards neighbours.
        rows: whether rows along the last axis are moved as a whole, too.
        steps: whether bytes move.
        negative: whether numbers may become negative.
        greatest: what a run that overflows has infinities beyond.
        blocks: how many elements along the last axis share the greatest magnitude that the share is
            taken of, or `WHOLE`; nothing stays.
    """
    if noise.overflows and x.dtype == float64:
        return np.where(np.abs(x) > greatest, np.copysign(np.inf, x), x)
    if noise.stores and x.dtype == float64 and bits:
        return _rounded(x, bits)
    share = noise.share(amount)
    if not share:
        return x
    if like is not None and like.shape != x.shape:
        like = None
    if x.dtype != float64:
        return _stepped(noise, x) if steps and x.dtype in BYTES else x
    with np.errstate(all="ignore"):
        size = x if like is None else np.maximum(np.abs(x), np.abs(like))
        size = np.maximum(np.abs(size), max(floor, smallest)) if floor or smallest else size
        size = _greatest_near(np.abs(size), radius) if radius else size
        size = greatest_of_block(np.abs(size), blocks) if blocks else size
        size = np.abs(size).max(across, keepdims=True) if across and size.size else size
        step = np.multiply(size, noise(x.shape), out=np.empty(x.shape))
        if rows:
            step += size * noise((*x.shape[:-1], 1))
        step *= share
        if smallest and not floor:  # what is rounded to zero does not pass it
            np.clip(step, -np.abs(x), np.abs(x), out=step)
        if not negative:
            np.maximum(step, -x, out=step)
        if not (floor or radius or across or blocks or coordinates != NO_AMOUNT) and like is None:
            step *= ~exact(x, bits, below)
        if positions := noise.share(coordinates):
            step += _slopes(x) * noise(x.shape) * positions
        step += x
    np.copyto(step, x, where=~np.isfinite(x))
    return step


def with_shifts(
    noise: Noise, y: Array, x: Array, scale: Array, *, amount: Amount, groups: int, epsilon: float
) -> Array:
    """Return normalized groups of channels, each channel of an image moved as a whole.

    That is what libraries do that compute x · scale + shift, with one shift for all elements.

    Args:
        noise: where random numbers come from.
        y: the result.
        x: what is normalized, [images, channels, *sizes].
        scale: one element per channel.
        amount: the share of a shift that it moves by.
        groups: how many there are; as many as channels where 0.
        epsilon: is added to variances.
    """
    share = noise.share(amount)
    if not share or not x.size:
        return y
    images, channels = x.shape[:2]
    rows = x.reshape(images, groups or channels, -1)
    shifts = np.abs(rows.mean(-1)) / np.sqrt(rows.var(-1) + epsilon)
    shifts = np.repeat(shifts, channels // shifts.shape[1], 1) * np.abs(scale)
    step = share * shifts * noise(shifts.shape)
    return y + step.reshape(*step.shape, *(1 for _ in x.shape[2:]))


def with_weights(
    noise: Noise, y: Array, x: Array, grid: Array, *, op: GridSample, amount: Amount, radius: int
) -> Array:
    """Return what is sampled, moved as rounded positions and weights move it.

    A weight is rounded by the terms that it is the sum of, however small it is itself: of pixels
    around a position each counts by its magnitude.

    Args:
        noise: where random numbers come from.
        y: the result.
        x: what is sampled, [images, channels, *sizes].
        grid: the positions.
        op: the operator.
        amount: the share of the greatest magnitude around a position that a result moves by.
        radius: how far from the nearest pixel the others are that have a weight.
    """
    share = noise.share(amount)
    if not share or not y.size:
        return y
    size = _greatest_near(np.where(np.isfinite(x), np.abs(x), 0), radius)
    padding = "border" if op.padding_mode == "zeros" else op.padding_mode
    found = evaluate(with_attributes(op, mode="nearest", padding_mode=padding), [size, grid], 1)
    return y if found is None else y + share * found[0] * noise(y.shape)


def by_steps(noise: Noise, x: Array, steps: Array, *, narrow: bool) -> Array:
    """Return a result; in a noisy run what its definition gives.

    Args:
        noise: of the run.
        x: the result.
        steps: what the definition gives.
        narrow: whether its steps may overflow; the result counts where they do.
    """
    if noise.is_exact:
        return x
    return np.where(np.isfinite(steps), steps, x) if narrow else steps


def _greatest_near(size: Array, radius: int) -> Array:
    """Return the greatest of the elements up to so far away along all axes but the first two."""
    width = 2 * radius + 1
    for axis in range(2, size.ndim):
        length = size.shape[axis]
        ends = [(radius, radius) if i == axis else (0, 0) for i in range(size.ndim)]
        found, covered = np.moveaxis(np.pad(size, ends), axis, 0), 1
        while 2 * covered <= width:
            found, covered = np.maximum(found[:-covered], found[covered:]), 2 * covered
        rest = width - covered
        size = np.moveaxis(np.maximum(found[:length], found[rest : rest + length]), 0, axis)
    return size


def greatest_of_block(size: Array, block: int) -> Array:
    """Return the greatest element of each block along the last axis in place of all of them."""
    if block == WHOLE:
        return np.broadcast_to(size.max(initial=0), size.shape)
    length = size.shape[-1]
    found = np.maximum.reduceat(size, range(0, length, block), axis=-1)
    return found[..., np.arange(length) // block]


def _slopes(x: Array) -> Array:
    """Return how far elements are from their neighbours times their indices, over all axes."""
    found = np.zeros(x.shape)
    for axis, length in enumerate(x.shape):
        if length > 1:
            away = np.abs(np.diff(x, axis=axis))
            steep = np.maximum(np.insert(away, 0, 0, axis), np.insert(away, length - 1, 0, axis))
            shape = [length if i == axis else 1 for i in range(x.ndim)]
            found += np.arange(length, dtype=float64).reshape(shape) * steep
    return found


def whole_below(x: Array, bits: int) -> float:
    """Return the magnitude below which whole numbers are no coincidence; infinite if all are whole.

    A format of so many bits has none but whole numbers above.
    """
    limit = 2.0 ** (bits - 1)
    size = np.abs(x[np.isfinite(x)])
    near = size[(size > 0) & (size < limit)]
    return np.inf if near.size and (np.rint(near) == near).all() else limit


def _stepped(noise: Noise, x: Array) -> Array:
    """Return bytes some of which are one more or less: fixed-point weights have few bits."""
    limits = np.iinfo(x.dtype)
    steps = np.rint(noise(x.shape) * 0.75).astype(np.int16)
    return np.clip(x + steps, limits.min, limits.max).astype(x.dtype)


def _rounded(x: Array, bits: int) -> Array:
    """Return float64 numbers rounded to so many bits, or to float32."""
    with np.errstate(all="ignore"):
        if bits == BITS["float32"]:
            narrow = x.astype(float32)
            return np.where(np.isfinite(narrow), narrow.astype(float64), x)
        part, power = np.frexp(x)
        return np.asarray(np.ldexp(np.rint(np.ldexp(part, bits)), power - bits))


def exact(x: Array, bits: int, below: float = np.inf) -> Array:
    """Return which float64 numbers stay: those of this many bits; whole ones where `bits` is 0.

    None stays whose magnitude is not below a limit.
    """
    if below < np.inf:
        return exact(x, bits) & (np.abs(x) < below)
    if not bits:
        return np.asarray(np.rint(x) == x)
    if bits == BITS["float32"]:
        return np.asarray(x.astype(float32) == x)
    part, _ = np.frexp(x)
    part = np.ldexp(part, bits)
    return np.asarray(np.rint(part) == part)
