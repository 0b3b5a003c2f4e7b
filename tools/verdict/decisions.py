"""Can rounding explain that results differ that are no measurements? The rule, on arrays alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...runtime.ir.types import Array
from .rounding import RARE, Evidence, Ruling, elements

#: The share of differing decisions that fair samples have to show, where rough ones show all.
_SEEN = 0.9
#: Values of samples at one place: where there are fewer, rounding makes no others.
_MANY = 3
#: What the mean square by which samples of a measurement move is by that of two results, at least.
_NEARER = 4.0


def rule_decisions(a: Array, b: Array, evidence: Evidence) -> Ruling:
    """Judge integers, booleans, strings and floats of eight bits: all that is not a measurement.

    An element may differ only where the samples show both values at that very place: then the
    decision behind it is within rounding.
    """
    differs = np.asarray(a != b, bool)
    if not differs.any():
        return Ruling("ok")
    count, first = int(differs.sum()), int(differs.argmax())
    fair = _shown(a, b, differs, [evidence.exact, *evidence.fair])
    rough = fair | _shown(a, b, differs, [evidence.exact, *evidence.rough, *evidence.fair])
    if rough.all() and fair.mean() >= _SEEN and len(evidence.fair) > 0:
        values = _values_at(differs, evidence.fair)
        if values <= 2:
            return Ruling("ok", "", 0.0, 1.0, first, final=False)
        said = f"{elements(count)}, of which rounding makes up to {values} different values"
        return Ruling("inconclusive", said, 0.0, 1.0, first, final=False)
    if rough.all():
        said = f"{elements(count)}; far rougher rounding would explain it"
        return Ruling("inconclusive", said, 0.0, 1.0, first, final=False)
    steps = [np.count_nonzero(sample != evidence.exact) for sample in evidence.rough]
    if steps and np.count_nonzero(~rough) <= RARE * float(np.mean(steps)):
        said = f"{elements(count)} as rounding may make others differ, though not seen there"
        return Ruling("inconclusive", said, 0.0, 1.0, first, final=False)
    unseen = differs.copy()
    unseen[differs] = ~rough
    if _are_of_many(a, b, unseen, evidence):
        said = f"{elements(count)}, also where rounding makes another value nearly every time"
        return Ruling("inconclusive", said, 0.0, 1.0, first, final=False)
    where = int(np.flatnonzero(differs.ravel())[~rough][0])
    said = f"{elements(int((~rough).sum()))} though rounding does not decide there"
    return Ruling("MISMATCH", said, 0.0, float("inf"), where, final=not evidence.jumps)


def _shown(a: Array, b: Array, at: Array, samples: Sequence[Array]) -> Array:
    """Return for each of some elements whether samples have both values there."""
    first, second = a[at], b[at]
    has = [np.zeros(first.shape, bool), np.zeros(first.shape, bool)]
    for sample in samples:
        has[0] |= sample[at] == first
        has[1] |= sample[at] == second
    return has[0] & has[1]


def _values_at(at: Array, samples: Sequence[Array]) -> int:
    """Return the greatest number of different values that samples have at one place."""
    found = np.sort(np.stack([sample[at] for sample in samples]), 0)
    return int(np.max((found[1:] != found[:-1]).sum(0), initial=0)) + 1


def _are_of_many(a: Array, b: Array, unseen: Array, evidence: Evidence) -> bool:
    """Whether values that no sample has are of places where samples have ever new ones.

    Of numbers that are equal but for rounding, no number of samples has all orders. A sample is
    held against the others in the same way, and so tells at how many places values are new; but not
    against the one with the same noise of the other sign.

    Args:
        a: the reference's.
        b: the runner's.
        unseen: where samples lack one of both.
        evidence: of the same shape.
    """
    pairs = [[evidence.exact]]
    for samples in (evidence.rough, evidence.fair):
        pairs += [list(samples[i : i + 2]) for i in range(0, len(samples), 2)]
    places = np.stack([sample[unseen] for pair in pairs for sample in pair])
    values = np.sort(places, 0)
    is_of_many = (values[1:] != values[:-1]).sum(0) >= _MANY - 1
    if a.dtype.kind in "iu" and _are_between([a[unseen], b[unseen]], places, is_of_many):
        return True
    if not is_of_many.all() or not np.isin([x[unseen] for x in (a, b)], places).all():
        return False
    new = 0
    for i, pair in enumerate(pairs[1:], 1):
        others = [sample for other in (*pairs[:i], *pairs[i + 1 :]) for sample in other]
        new = max(new, *(_lacking(others, sample) for sample in pair))
    every = [sample for pair in pairs for sample in pair]
    return max(_lacking(every, a), _lacking(every, b)) <= new


def _are_between(results: Sequence[Array], places: Array, is_of_many: Array) -> bool:
    """Whether integers lie between those of samples, and far nearer to each other than these.

    Of a measurement in many steps, no number of samples has all values.

    Args:
        results: of both, at some places.
        places: the same of each sample, the one without noise first.
        is_of_many: whether samples have many values at a place.
    """
    a, b, exact, *others = (x.astype(np.float64) for x in (*results, *places))
    if _NEARER * np.mean(np.square(a - b)) > min(np.mean(np.square(x - exact)) for x in others):
        return False

    def outside(x: Array, others: Array) -> int:
        within = (x >= others.min(0)) & (x <= others.max(0)) & is_of_many
        return int(np.count_nonzero(~within))

    pairs = range(1, len(places), 2)
    usual = [outside(places[i], np.delete(places, (i, i + 1), 0)) for i in pairs]
    return max(outside(x, places) for x in results) <= max(usual, default=-1)


def _lacking(samples: Sequence[Array], x: Array) -> int:
    """Return how many elements of an array no sample has at their place."""
    return int(np.count_nonzero(np.all([sample != x for sample in samples], 0)))
