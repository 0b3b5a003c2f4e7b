"""Can rounding explain that two results differ? The rule, on arrays alone.

There is the result in float64, and there are *samples*: results of the same graph in float64, every
step of which was moved at random, *fair* ones about as far as rounding does it and *rough* ones
many times as far (`shaken`). What is allowed is decided element by element, and for every slice of
the tensor: where the samples hardly move, neither may a runner, however large its neighbours
are. What fair samples explain is agreement; what not even rough ones do is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...runtime.ir.dtypes import DType
from ...runtime.ir.types import Array
from .agreement import Word, tolerance_for
from .operators import BITS, SMALLEST
from .spread import SLACK, RoundingSpread, distance, signed_distance, slices

#: What is allowed of a slice's differences taken together, by the average of the rough samples.
_TOGETHER = 2.0
#: What is agreement, by the farthest that a fair sample has moved, and for the tensor taken
#: together by their average. What sums in float32 cost depends on their order; what narrower
#: formats cost hardly does, as they are added up in float32.
_ORDINARY = {
    "float32": (10.0, 4.0),
    "tf32": (4.5, 2.0),
    "float16": (4.5, 2.0),
    "bfloat16": (4.5, 2.0),
}
#: The same for slices, of which there may be thousands, and in those formats for the mean of signed
#: differences: rounding to nearest goes either way, but a polynomial for a function need not.
_ORDINARY_SLICE = 4.0
#: A difference may be this share of the greatest magnitude of an output, and of each slice of it,
#: and still count as agreement. Beyond, rounding may explain it, but nothing proves it right. Half
#: of 1 %, because an error of 1 % may be on top of as much rounding of the other sign.
CAP = {"float32": 2.0**-11, "tf32": 0.005, "float16": 0.005, "bfloat16": 0.005}
_COARSE = ("tf32", "float16", "bfloat16")
#: Formats that runtimes round to nearest, and what a mean may be off by there because functions are
#: polynomials, in units of a rounding error. Truncation makes it 0.64 at least: uniform numbers of
#: one power of two, weighted by their magnitude. Tensor cores truncate factors to TF32.
_NEAREST, _BIASED = ("float16", "bfloat16"), 0.4
#: Elements beyond what samples allow are looked at in many more samples if they are so few, as a
#: share of all, and beyond it by so little: of a few samples all may be small there by chance. A
#: third as many samples are so by the cube of the factor.
_DOUBTFUL, _NEARLY = 0.001, 3.0
_LOCAL = 8.0
#: Maximum number of steps that no sample shows at their place, by that of a sample.
RARE = 0.1
#: Samples, and elements that no sample shows, of which fewer tell nothing.
_FEWEST = 3
#: The step below the smallest normal number, by that number: 2**-24 in float16.
_STEP = 2.0**-10
#: Beyond this many times what rounding explains, the number says no more.
_COUNTABLE = 1e9
#: Slices of fewer elements are not judged by their own magnitude.
_SLICE = 8


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is to be said of two arrays.

    Attributes:
        word: the verdict.
        reason: why, in a sentence; empty where it is ok.
        allowed: the most that any element may differ by.
        excess: the greatest difference of an element as a share of what it may differ by.
        at: the flat index of that element.
        final: whether more samples could not change it.
    """

    word: Word
    reason: str = ""
    allowed: float = 0.0
    excess: float = 0.0
    at: int | None = None
    final: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of an output from runs in float64; arrays of the output's shape.

    Attributes:
        exact: without noise.
        rough: with far more noise than rounding has.
        fair: with about as much as it has.
        arithmetic: the coarsest of the graph, which has a `CAP`.
        tiny: the smallest normal number of the output's dtype.
        jumps: whether the graph rounds, compares or selects, so that a step may hinge on noise.
        scarce: how many times as much is agreement because there are few fair samples.
        more: tells how far the elements at a mask move at most in many more fair samples, in units
            of the farthest of a few; None where no more are to be drawn.
    """

    exact: Array
    rough: Sequence[Array]
    fair: Sequence[Array]
    arithmetic: str
    tiny: float
    jumps: bool
    scarce: float = 1.0
    more: Callable[[Array], Array] | None = None

    @property
    def cap(self) -> float:
        """What counts as agreement at most; see `CAP`."""
        return CAP.get(self.arithmetic, CAP["float32"])

    @property
    def ordinary(self) -> tuple[float, float]:
        """What is agreement, for elements and for the tensor; see `_ORDINARY`."""
        element, tensor = _ORDINARY.get(self.arithmetic, _ORDINARY["float32"])
        return element * self.scarce, tensor * self.scarce


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────


def rule_ordinary(a: Array, b: Array, evidence: Evidence) -> Ruling:
    """Return whether ordinary rounding explains that floats differ: ``ok`` or ``inconclusive``.

    Args:
        a: the reference's, float64 or complex128; NaN and infinities stand where those of `b` do.
        b: the runner's.
        evidence: of the same shape; its rough samples are not read.
    """
    slack, together = evidence.ordinary
    exact, apart = evidence.exact, distance(a, b)
    spread = RoundingSpread(exact, evidence.fair, evidence.tiny, slack)
    known = _measured(apart, spread)
    if known.excess > 1 and _is_chance(apart, spread, slack, evidence):
        known = replace(known, excess=1.0)
    if known.excess > 1:
        over = apart > spread.allowed
        count, times = int(over.sum()), known.excess * slack
        said = f"{elements(count)} by up to {times:.3g} times what ordinary rounding moves them by"
        if spread.breaks[over].all():
            said = f"{elements(count)} where ordinary rounding may lead to NaN or infinity"
        return _but(known, "inconclusive", said, final=False)
    slice_ = _ORDINARY_SLICE * evidence.scarce
    said = spread.excess_of_slices(apart, together, slice_, whole=evidence.jumps)
    if evidence.arithmetic in _COARSE:
        said = said or spread.excess_of_bias(signed_distance(a, b), slice_, whole=evidence.jumps)
    said = said or _top_flipped(a, b, spread)
    if not said and evidence.jumps:
        said = _unlike_samples((a, b), exact, evidence.fair, evidence.tiny)
    if not said and (apart > caps(exact, a, evidence.cap)).any():
        said = "rounding may cost as much as an error"
    return _but(known, "inconclusive", said, final=False) if said else known


def _is_chance(apart: Array, spread: RoundingSpread, slack: float, evidence: Evidence) -> bool:
    """Whether differences are beyond what is allowed only because few samples were drawn."""
    over = apart > spread.allowed
    few = np.count_nonzero(over) <= max(1, _DOUBTFUL * apart.size)
    nearly = _NEARLY ** (evidence.scarce**2)
    if evidence.more is None or not few or (apart > nearly * spread.allowed).any():
        return False
    return bool((apart[over] <= slack * evidence.more(over) + evidence.tiny).all())


def rule_floats(a: Array, b: Array, evidence: Evidence) -> Ruling:
    """Judge floats of one shape, with NaN and infinities at the same places.

    Args:
        a: the reference's, float64 or complex128.
        b: the runner's.
        evidence: of the same shape.
    """
    ordinary = rule_ordinary(a, b, evidence)
    if ordinary.word == "ok":
        return ordinary
    apart = distance(a, b)
    spread = RoundingSpread(evidence.exact, evidence.rough, evidence.tiny, unbounded=True)
    spread.widen(RoundingSpread(evidence.exact, evidence.fair, evidence.tiny))
    known = _measured(apart, spread)
    if known.excess > 1:
        over = apart > spread.allowed
        count = int(over.sum())
        if evidence.jumps and _are_few(apart, over, evidence):
            said = f"{elements(count)} as rounding may make others differ, though not seen there"
            return _but(known, "inconclusive", said, final=False)
        share = f"{count} of {apart.size} elements" if apart.size > 1 else "it"
        verb = "differ" if count > 1 else "differs"
        return _but(
            known,
            "MISMATCH",
            f"{share} {verb} by more than rounding explains{_at_most(known.excess)}",
            final=not evidence.jumps
            and (known.excess > 30 or count > max(_FEWEST, 0.02 * apart.size)),
        )
    if whole := spread.excess_of_slices(apart, _TOGETHER, _TOGETHER, whole=evidence.jumps):
        return _but(known, "MISMATCH", whole, final=False)
    if bias := _bias(a, b, spread, evidence):
        return _but(known, "MISMATCH", bias, final=False)
    if flipped := _top_flipped(a, b, spread):
        return _but(known, "MISMATCH", flipped, final=False)
    rough, exact = evidence.rough, evidence.exact
    if evidence.jumps and (unlike := _unlike_samples((a, b), exact, rough, evidence.tiny)):
        return _but(known, "MISMATCH", unlike, final=False)
    return _beyond_ordinary(ordinary, a, b, evidence)


def _bias(a: Array, b: Array, spread: RoundingSpread, evidence: Evidence) -> str:
    """Name what is off to one side, or by a factor, in a format that is rounded to nearest."""
    floor = _BIASED * 2.0 ** -BITS.get(evidence.arithmetic, 0)
    if evidence.arithmetic not in _NEAREST:
        return ""
    signed = signed_distance(a, b)
    return spread.excess_of_bias(signed, _TOGETHER, floor, whole=evidence.jumps)


def _at_most(excess: float) -> str:
    """Tell how many times; without a number where rounding moves next to nothing."""
    if excess < _COUNTABLE:
        return f", at most {excess:.3g} times"
    return ", which is next to nothing there"


def _measured(apart: Array, spread: RoundingSpread) -> Ruling:
    """Return what elements may differ by, and by how much they do; not judged yet."""
    with np.errstate(over="ignore"):  # next to nothing may be allowed
        excess = np.divide(apart, spread.allowed, where=apart > 0, out=np.zeros(apart.shape))
    at = int(excess.argmax()) if excess.size else 0
    allowed = float(spread.allowed.max(initial=0.0))
    return Ruling("ok", "", allowed, float(excess.max(initial=0.0)), at)


def _are_few(apart: Array, at: Array, evidence: Evidence) -> bool:
    """Whether some differences are no larger than steps that noise makes elsewhere, and far rarer.

    A decision that falls the other way early in a graph has consequences at places that differ from
    one combination of such decisions to the next; no number of samples has all of them.
    """
    away = [distance(evidence.exact, sample) for sample in evidence.rough]
    steps = [np.where(np.isfinite(each), each, 0) for each in away]
    bound = caps(evidence.exact, evidence.exact, evidence.cap)
    usual = float(np.mean([np.count_nonzero(step > bound) for step in steps])) if steps else 0.0
    largest = max((float(step.max(initial=0.0)) for step in steps), default=0.0)
    return bool(np.count_nonzero(at) <= RARE * usual and float(apart[at].max()) <= largest)


def _unlike_samples(
    results: Sequence[Array], exact: Array, samples: Sequence[Array], tiny: float
) -> str:
    """Say that a result has values that neither runs with noise nor the other result have.

    Empty where it may be such a run.

    Where decisions make steps, the farthest sample says little about values between the steps. So
    each element has to be near that of some sample, by what elements move without a step: in one
    of four samples. A sample is held against the others in the same way; it tells how many elements
    have a value that no other has, because too few combinations of decisions were drawn. What is
    NaN or infinite in some sample may be anything. Where two results are near each other, nothing
    tells them apart: both round equal numbers to equal numbers, which noise does not.
    """
    if len(samples) < _FEWEST:
        return ""
    away = np.stack([distance(exact, sample) for sample in samples])
    known = np.isfinite(away)
    usual = np.quantile(np.where(known, away, 0), 0.25, axis=0)
    near = SLACK * np.maximum(usual, np.median(usual)) + tiny
    near = np.where(known.all(0), near, np.inf)
    pairs = zip(results, reversed(results), strict=True)
    strange = max(_strange(one, [exact, *samples, other], near) for one, other in pairs)
    if strange <= _FEWEST:
        return ""
    rest = ([*samples[:i], *samples[i + 1 :]] for i in range(len(samples)))
    among = [_strange(s, [exact, *r], near) for s, r in zip(samples, rest, strict=True)]
    if strange <= _TOGETHER * max(among) + _FEWEST:
        return ""
    return (
        f"{elements(strange)} from all values that rounding gives them, in a run with rounding "
        f"{max(among)} at most"
    )


def _strange(x: Array, others: Sequence[Array], near: Array) -> int:
    """Return how many elements have a value near none of those that others have there."""
    found = np.zeros(x.shape, bool)
    for other in others:
        found |= distance(x, other) <= near
    return int(np.count_nonzero(~found))


def _but(ruling: Ruling, word: Word, reason: str, *, final: bool) -> Ruling:
    return Ruling(word, reason, ruling.allowed, ruling.excess, ruling.at, final)


def _top_flipped(a: Array, b: Array, spread: RoundingSpread) -> str:
    """Name a row whose greatest element is elsewhere although rounding does not move it so far."""
    if a.ndim == 0 or a.shape[-1] < 2 or np.iscomplexobj(a):
        return ""
    rows, others = a.reshape(-1, a.shape[-1]), b.reshape(-1, a.shape[-1])
    tops, found = rows.argmax(1), others.argmax(1)
    allowed = spread.allowed.reshape(rows.shape)
    for row in map(int, np.flatnonzero(tops != found)):
        i, j = int(tops[row]), int(found[row])
        margin = float(rows[row, i] - rows[row, j])
        rounding = (allowed[row, i] + allowed[row, j]) * 2 / 3
        if margin > rounding and not (spread.has_top(row, i) and spread.has_top(row, j)):
            return (
                f"the greatest element of row {row} is {j}, not {i}, by a margin of {margin:.2g} "
                f"that rounding ({rounding:.2g}) does not flip"
            )
    return ""


def caps(exact: Array, reference: Array, cap: float) -> Array:
    """Return by how much each element may differ and still count as agreement.

    That is a share of the greatest magnitude of the tensor, and no more than a larger share of that
    of any slice through the element.
    """
    size = np.where(np.isfinite(exact), np.abs(exact), np.abs(np.nan_to_num(reference)))
    bound = np.full(size.shape, cap * float(size.max(initial=0.0)))
    for axes in slices(size.shape, _SLICE):
        np.minimum(bound, _LOCAL * cap * size.max(axes, keepdims=True), out=bound)
    return bound


def _beyond_ordinary(ordinary: Ruling, a: Array, b: Array, evidence: Evidence) -> Ruling:
    """Judge differences that rough rounding explains, but that are too large to be agreement.

    A decision makes a step, which may be larger than the cap on an element: a result of a few bits
    has no smaller ones. It is agreement if there are so few that the tensor as a whole is within
    the cap.
    """
    apart = distance(a, b)
    bound = caps(evidence.exact, a, evidence.cap)
    slack, _ = evidence.ordinary
    fair = RoundingSpread(evidence.exact, evidence.fair, evidence.tiny, slack)
    near = np.minimum(bound / 4, fair.allowed)
    unusual = apart > np.minimum(bound, fair.allowed)
    over = apart > bound
    if evidence.jumps and unusual.any() and _are_decisions(a, b, unusual, near, evidence):
        if not over.any() or _share(apart, evidence.exact) <= evidence.cap:
            return _but(ordinary, "ok", "", final=False)
        count = elements(int(np.count_nonzero(over)))
        said = f"{count} where rounding decides between two values"
        return _but(ordinary, "inconclusive", said, final=False)
    if not over.any():
        said = f"{ordinary.reason}; rougher rounding would explain it, and so would an error"
        return _but(ordinary, "inconclusive", said, final=False)
    worst = float((apart / np.maximum(bound, evidence.tiny)).max() * evidence.cap)
    beyond = over & (apart > SLACK * SLACK / slack * fair.allowed) & ~fair.breaks
    if evidence.jumps and beyond.any():
        beyond[beyond] = ~_are_both_seen(a, b, beyond, near, evidence)
    if evidence.fair and beyond.any():
        times = float((apart[beyond] / fair.allowed[beyond]).max()) * slack
        return _but(
            ordinary,
            "MISMATCH",
            f"differs by {times:.3g} times what runs with ordinary rounding differ by",
            final=False,
        )
    share = f"{worst:.1e} of" if worst < 1 else "as much as"
    said = f"rounding alone may cost this output {share} its magnitude, so nothing is proved"
    final = bool(evidence.fair) and not evidence.jumps
    return _but(ordinary, "inconclusive", said, final=final)


def _share(apart: Array, exact: Array) -> float:
    """Return the relative L2 distance that differences make of a tensor."""
    size = float(np.sqrt(_mean_square(exact)))
    found = float(np.sqrt(_mean_square(apart)))
    return found / size if size else float(found > 0)


def _mean_square(x: Array) -> float:
    finite = np.abs(x[np.isfinite(x)])
    return float(np.mean(finite * finite)) if finite.size else 0.0


def _are_decisions(a: Array, b: Array, over: Array, near: Array, evidence: Evidence) -> bool:
    """Whether every element is one of two values that samples have, too, and hardly any other.

    So it is where a comparison hinges on rounding: a box is kept or not, two rows change places. A
    result that merely amplifies noise has another value in every sample.
    """
    samples = _all_samples(evidence)
    first, second = _alike(a, over, near, samples), _alike(b, over, near, samples)
    both = (first > 0) & (second > 0)
    return bool((both & (first + second >= 0.9 * len(samples))).all())


def _are_both_seen(a: Array, b: Array, at: Array, near: Array, evidence: Evidence) -> Array:
    """Return for each of some elements whether samples have both values.

    A format of few bits rounds a value next to a limit onto it, always in the same way. Noise of
    the same size gets as far only by chance, so that all fair samples may be on one side.
    """
    samples = _all_samples(evidence)
    return (_alike(a, at, near, samples) > 0) & (_alike(b, at, near, samples) > 0)


def _all_samples(evidence: Evidence) -> list[Array]:
    return [evidence.exact, *evidence.rough, *evidence.fair]


def _alike(x: Array, at: Array, near: Array, samples: Sequence[Array]) -> Array:
    """Return for each of some elements how many samples have a value near it."""
    alike = [distance(sample[at], x[at]) <= near[at] for sample in samples]
    return np.sum(alike, 0, dtype=np.int64)


def rule_misplaced(
    a: Array, b: Array, reason: str, samples: Sequence[Array], *, jumps: bool
) -> Ruling:
    """Judge NaN and infinities of one side only: do samples differ in that there, too?

    Args:
        a: the reference's.
        b: the runner's.
        reason: what differs.
        samples: without noise, and with far more than rounding has.
        jumps: see `Evidence`.
    """
    at = _kinds(a) != _kinds(b)
    kinds = np.stack([_kinds(sample[at]) for sample in samples])
    if (kinds != kinds[0]).any(0).all():
        said = f"{reason}; whether it is finite hinges on rounding"
        return Ruling("inconclusive", said, excess=float("inf"))
    return Ruling("MISMATCH", reason, excess=float("inf"), final=not jumps)


def _kinds(x: Array) -> Array:
    """Tell finite numbers, NaN, and infinities of either sign from each other."""
    sign = np.where(np.real(x) < 0, 3, 2)
    return np.where(np.isnan(x), 1, np.where(np.isinf(x), sign, 0))


def tiny_of(dtype: DType, coarsest: str) -> float:
    """Return what any number of an output may move by.

    Runtimes flush what is below the normal numbers of float32, but not of float16.

    Args:
        dtype: of the output.
        coarsest: of the formats that it is computed in.
    """
    steps = [SMALLEST[name] * _STEP for name in (coarsest, dtype.name) if name in SMALLEST]
    return max(steps, default=tolerance_for(dtype).absolute)


def elements(count: int) -> str:
    """Say how many elements differ."""
    return "1 element differs" if count == 1 else f"{count} elements differ"
