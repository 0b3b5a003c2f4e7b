"""The model in float64 with the decisions of one runner.

A number near the limit between two steps of a quantizer, or one of two nearly equal scores, may
go either way, and all that follows differs by far more than rounding. What follows is evidence only
against a float64 run that takes the same way: the results of all nodes that decide are replaced by
the runner's, and what the graph would have decided there itself is held against them. If noise
flips every decision that differs, and the outputs are then within rounding, the runner is right,
however far it is from others. A decision that no noise flips is an error, and its node the first
wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import zip_longest
from math import sqrt

import numpy as np

from ...runtime.ir.custom import CustomOperator, declare
from ...runtime.ir.dtypes import COMPLEX, FLOATS
from ...runtime.ir.graph import Graph, Value
from ...runtime.ir.types import Array, HostValue, TensorType
from ..common.nested import flat
from .agreement import Agreement, Tolerance, Word, agreement
from .decisions import rule_decisions
from .error_bounds import COUNTS, MEASURED, WORDS
from .noise import EXACT, FAIR, OVERFLOWING, ROUGH, STORED
from .operators import Ancestry, ancestries
from .overflow import AS_STORED, OVERFLOWS, rule_overflow
from .rounding import RARE, Evidence, Ruling, rule_floats, rule_misplaced, tiny_of
from .shaken import Shaken
from .spread import SLACK, farthest

#: Samples of each kind, every second of which is the one before with the other sign.
_COUNT = 8
#: By how much the greatest and the least decision at a place differ where noise takes few.
_FEW = 2
#: So many decisions may differ, by those that noise flips in a sample, and a few more.
_TIMES, _MORE = 2.0, 2

Arrays = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Way:
    """The verdict on an output of a runner by its own decisions.

    Attributes:
        word: the verdict.
        reason: why, in a sentence; empty where it is ok.
        allowed: the most that rounding may cost an element, given the decisions.
        excess: the greatest difference by that; infinite where a decision is wrong.
    """

    word: Word = "ok"
    reason: str = ""
    allowed: float = 0.0
    excess: float = 0.0


class Retrace:
    """Runs a model in float64 on the way of one runner.

    Args:
        graph: an imported graph, its shapes bound where that can be; stays as it is.
        feeds: a value for every input.
        precision: compute precision of float32 tensors.
        values: all that noise may flip, in order; see `decisions`.
        taken: the runner's outputs, and what it has decided, by name.

    Raises:
        TercetError: the graph does not run in float64.
    """

    def __init__(
        self,
        graph: Graph,
        feeds: Mapping[str, HostValue],
        precision: str,
        values: Sequence[Value],
        taken: Arrays,
    ) -> None:
        self._graph, self._feeds = graph, feeds
        self._taken, self._own = taken, dict[str, Array]()
        self._ancestries = ancestries(graph, precision)
        self._shaken = Shaken(self._forced(graph, values), precision)
        self._exact = self._run(EXACT)
        # What constants and shapes determine is folded, and never runs.
        ran = [value for value in values if value.name in self._own]
        self._decided = {value: Decided(self._own[value.name]) for value in ran}
        self._fair = [self._sample(FAIR, seed) for seed in range(_COUNT)]
        self._rough = [self._sample(ROUGH, seed) for seed in range(_COUNT)]
        for seed in range(_COUNT):
            self._sample(ROUGH, seed, SLACK)
        # Of many that are nearly equal, noise rarely chooses the first, and what is stored does.
        self._sample(STORED)

    def _run(self, kind: str, seed: int = 0, times: float = 1.0) -> Arrays:
        return flat(self._shaken.run(self._feeds, kind, seed, times))

    def _sample(self, kind: str, seed: int = 0, times: float = 1.0) -> Arrays:
        found = self._run(kind, seed, times)
        for value, decided in self._decided.items():
            decided.add(self._own[value.name], kind, is_wide=times > 1)
        return found

    def _forced(self, graph: Graph, values: Sequence[Value]) -> Graph:
        """Return a copy in which the runner's decisions take the place of the graph's own."""
        copy = graph.clone()
        names = {value.name for value in values}

        def taken(x: Array, *, name: str) -> Array:
            self._own[name] = _ordered(x).copy()  # the memory is used again
            found = self._taken[name]
            return found.astype(x.dtype) if found.shape == x.shape else x

        def same_type(x: TensorType, *, name: str) -> TensorType:
            return x

        op = declare("tercet.noise", "Taken", CustomOperator(taken, same_type))
        nodes = list(copy.nodes)
        for node, follower in zip_longest(nodes, nodes[1:]):
            for value in node.outputs:
                if value.name in names:
                    made = copy.insert(op(name=value.name), [value], before=follower)
                    made.output.type = value.type
                    copy.redirect(value, made.output)
                    copy.set_inputs(made, [value])
        return copy

    def decided(self, name: str) -> dict[Value, Decided]:
        """Return the decisions that an output hinges on."""
        outputs = self._graph.outputs
        above = _above(outputs[name if name in outputs else name.rpartition("[")[0]])
        return {value: each for value, each in self._decided.items() if value in above}

    def judged(self, name: str) -> Way:
        """Judge the decisions that an output hinges on, then the output itself.

        The first wrong decision counts, then a wrong output, then what is in doubt.
        """
        found = [
            Way(word, f"{_title(value)} decides otherwise {reason}", 0.0, float("inf"))
            for value, decided in self.decided(name).items()
            for word, reason in [self._decision(value, decided)]
            if word != "ok"
        ]
        found.append(self._output(name))
        return max(found, key=lambda way: WORDS.index(way.word))

    def _decision(self, value: Value, decided: Decided) -> tuple[Word, str]:
        """Judge what a runner decides; if wrong, without what an overflow changes."""
        taken, own = self._taken[value.name], decided.own
        word, reason = decided.judged(taken)
        if word == "MISMATCH" and taken.shape == own.shape:
            overflown = self._overflown_decisions[value.name]
            if overflown.shape == own.shape and not np.array_equal(overflown, own):
                same = overflown == own
                rest = decided.judged(np.where(same, _ordered(taken), own))
                if rest[0] != "MISMATCH":
                    is_stored = not _count(_ordered(taken)[~same], overflown[~same])
                    return "inconclusive", f"{reason}; {OVERFLOWS}{AS_STORED * is_stored}"
        return word, reason

    @cached_property
    def _overflown_decisions(self) -> Arrays:
        """What the float64 run would decide if steps beyond the range of their format overflow."""
        self._run(OVERFLOWING)
        return dict(self._own)

    def _output(self, name: str) -> Way:
        x, exact = self._taken[name], self._exact[name]
        if x.shape != exact.shape:
            return Way("inconclusive", "how many there are hinges on rounding")
        past = self._ancestries.get(name) or Ancestry(decides=False, coarsest="float64")
        ruling = self._ruling(name, past.coarsest, exact, x)
        if ruling.word == "MISMATCH":
            overflown = self._run(OVERFLOWING)[name]
            rule = partial(self._ruling, name, past.coarsest)
            ruling = rule_overflow(exact, x, ruling, exact, overflown, rule)
        reason = f"{ruling.reason}, whatever it decides" if ruling.reason else ""
        return Way(ruling.word, reason, ruling.allowed, ruling.excess)

    def _ruling(self, name: str, coarsest: str, exact: Array, x: Array) -> Ruling:
        fair, rough = ([each[name] for each in samples] for samples in (self._fair, self._rough))
        more = partial(self._farthest, name)
        tiny = tiny_of(x.dtype, coarsest)
        kept = exact, rough, fair, coarsest, tiny
        evidence = Evidence(*kept, jumps=False, scarce=sqrt(COUNTS[-1] / _COUNT), more=more)
        if x.dtype not in FLOATS | COMPLEX:
            return rule_decisions(exact, x, evidence)
        wide = np.complex128 if x.dtype in COMPLEX else np.float64
        plain = agreement(name, exact.astype(wide), x.astype(wide), Tolerance(0.0, 0.0))
        if plain.misplaced:
            return rule_misplaced(exact, x, plain.reason, [exact, *rough], jumps=False)
        return rule_floats(exact.astype(wide), x.astype(wide), evidence)

    def _farthest(self, name: str, at: Array) -> Array:
        return farthest(partial(self._run, FAIR), {name: self._exact[name]})[name][at]


def settled(found: Agreement, ways: Mapping[str, Retrace]) -> Agreement:
    """Judge an output of two runners, each by its own decisions.

    Args:
        found: the verdict without.
        ways: of the reference, then the runner, by name.

    Returns:
        The verdict of the worse one; that without, if the output hinges on no decision.
    """
    if not any(each.decided(found.output) for each in ways.values()):
        return found
    judged = {name: each.judged(found.output) for name, each in ways.items()}
    name, worst = max(judged.items(), key=lambda pair: WORDS.index(pair[1].word))
    is_reference = name == next(iter(ways))
    reason = f"the reference: {worst.reason}" if worst.reason and is_reference else worst.reason
    bound = Tolerance(0.0, worst.allowed, MEASURED)
    return replace(found, verdict=worst.word, reason=reason, tolerance=bound, excess=worst.excess)


def _above(value: Value) -> set[Value]:
    """Return a value and all that it is computed from."""
    found, waiting = {value}, [value]
    while waiting:
        node = waiting.pop().producer
        reads = set(node.distinct_reads) - found if node is not None else set[Value]()
        found |= reads
        waiting += reads
    return found


def _title(value: Value) -> str:
    node = value.producer
    if node is None:
        return ""
    return f"node '{node.origin[0] if node.origin else node.name}' ({node.kind})"


@dataclass(slots=True)
class Decided:
    """What the float64 run would decide, and what noise makes of it.

    Attributes:
        own: without noise.
        usual: the most elements that noise like that of rounding flips in a run.
        most: the most that noise flips, far more of it too.
        has_one_shape: whether noise does not change how many there are.
    """

    own: Array
    usual: int = 0
    most: int = 0
    has_one_shape: bool = True
    _near: tuple[Array, Array] = field(init=False)
    _far: tuple[Array, Array] = field(init=False)

    def __post_init__(self) -> None:
        self._near = self._far = (self.own, self.own)

    def add(self, sample: Array, kind: str, *, is_wide: bool = False) -> None:
        """Take in what a noisy run would decide.

        Args:
            sample: the decisions.
            kind: of its noise.
            is_wide: whether that is as much as is ever allowed.
        """
        if sample.shape != self.own.shape:
            self.has_one_shape = False
            return
        self._far = _widened(self._far, sample)
        if is_wide:
            return
        self._near = _widened(self._near, sample)
        count = _count(sample, self.own)
        self.most = max(self.most, count)
        if kind == FAIR:
            self.usual = max(self.usual, count)

    def judged(self, taken: Array) -> tuple[Word, str]:
        """Return whether noise flips every decision of a runner that differs, and why not."""
        if not self.has_one_shape or taken.shape != self.own.shape:
            return "inconclusive", "in how many there are, which hinges on rounding"
        taken = _ordered(taken).astype(self.own.dtype)
        count, size = _count(taken, self.own), taken.size
        wrong = _outside(taken, self._far)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            said = f"in {int(wrong.sum())} of {size} elements though no rounding flips them"
            where = f"[{','.join(map(str, at))}] is {taken[at]}, {self.own[at]} in float64"
            # Of indices that noise makes anything, no number of samples shows all that they may be.
            low, high = (limit[wrong].astype(np.float64) for limit in self._far)
            is_rare = wrong.sum() <= RARE * self.usual and (high - low > _FEW).all()
            return "inconclusive" if is_rare else "MISMATCH", f"{said}; {where}"
        said = f"in {count} of {size} elements; noise flips"
        if count > _TIMES * self.most + _MORE:
            return "MISMATCH", f"{said} {self.most} at most"
        if count > _TIMES * self.usual + _MORE or _outside(taken, self._near).any():
            return "inconclusive", f"{said} {self.usual} if it is like that of rounding"
        return "ok", ""


def _ordered(x: Array) -> Array:
    """Return numbers that numpy orders; narrow formats, which it does not, as float64."""
    return x if x.dtype.kind in "biuf" else x.astype(np.float64)


def _count(a: Array, b: Array) -> int:
    return int(np.count_nonzero((a != b) & ~((a != a) & (b != b))))


def _widened(limits: tuple[Array, Array], sample: Array) -> tuple[Array, Array]:
    """Return limits with one more sample: the lower is NaN where any is, the upper where all."""
    low, high = limits
    return np.minimum(low, sample), np.fmax(high, sample)


def _outside(taken: Array, limits: tuple[Array, Array]) -> Array:
    low, high = limits
    is_nan = np.where(taken != taken, low == low, high != high)
    return np.asarray((taken < low) | (taken > high) | is_nan)
