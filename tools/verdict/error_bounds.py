"""Is a difference rounding, or is it an error? ``ok``, ``MISMATCH`` or ``inconclusive``.

What decides is measured on the very inputs that the runners get: the same graph runs in
float64, once as it is and some times with noise in every step (`shaken`). From these runs comes
what rounding may cost, element by element (`rounding`). A difference is *ok* if ordinary rounding
explains it, and if it is also so small that it would be agreement whatever the graph does. It is
*inconclusive* if far rougher rounding would explain it, but so would an error. All else is a
*MISMATCH*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import sqrt
from typing import Any

import numpy as np

from ...runtime.errors import TercetError, TimeLimitError
from ...runtime.ir.dtypes import COMPLEX, FLOATS, DType, string
from ...runtime.ir.graph import Graph
from ...runtime.ir.infer import specialise
from ...runtime.ir.types import Array, HostValue, TensorType, type_of
from ..common.ended import RunnerEnded
from ..common.nested import flat
from .accuracy import distance_of
from .agreement import Agreement, Tolerance, Word, agreement, missing, tolerance_for
from .amplifiers import Amplifier, first_amplifier
from .decisions import rule_decisions
from .drawn import draws_of, with_draws
from .in_bytes import rounded_to_bytes
from .noise import EXACT, FAIR, OPEN, OVERFLOWING, ROUGH
from .numerals import spelled_alike
from .operators import Ancestry, allows_bytes, ancestries
from .overflow import rule_overflow
from .rounding import (
    Evidence,
    Ruling,
    caps,
    rule_floats,
    rule_misplaced,
    rule_ordinary,
    tiny_of,
)
from .shaken import Shaken
from .spread import distance, farthest
from .unspecified import has_unspecified, opened_in_place, rule_unspecified

#: Where such a bound comes from; see `Tolerance.origin`.
MEASURED = "float64"
#: Samples that are looked at, until one more changes nothing.
COUNTS = (4, 12)
WORDS: tuple[Word, ...] = ("ok", "inconclusive", "MISMATCH")
_BYTES = "this file lets a runtime round activations to eight bits, which would explain it"
_IN_BYTES = "activations are rounded to eight bits, which this file lets a runtime do"
#: What the command line ends with.
MISMATCH_CODE, INCONCLUSIVE_CODE = 1, 8

Arrays = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Finding:
    """One tensor of a runner against the reference's.

    Attributes:
        agreement: by how much they differ, how much is allowed, and the verdict.
        excess: the difference by what is allowed; infinite where nothing is, or where types differ.
    """

    agreement: Agreement
    excess: float

    @property
    def ok(self) -> bool:
        """Whether the difference is no more than rounding."""
        return self.agreement.ok

    @property
    def verdict(self) -> str:
        """``equal``, ``within rounding``, ``inconclusive`` or ``wrong``."""
        if not self.ok:
            return "inconclusive" if self.agreement.verdict == "inconclusive" else "wrong"
        return "equal" if self.agreement.max_abs == 0 else "within rounding"

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {**self.agreement.to_dict(), "verdict": self.verdict, "excess": self.excess}


def overall(words: Sequence[Word]) -> Word:
    """Return the worst of several verdicts; ``ok`` where there is none."""
    return WORDS[max((WORDS.index(word) for word in words), default=0)]


def exit_code(
    word: Word, stopped: str = "", *, allow_inconclusive: bool = False, ended: bool = False
) -> int:
    """Return the exit code.

    Args:
        word: the verdict.
        stopped: why the work is incomplete; empty if it is complete.
        allow_inconclusive: whether what is inconclusive may pass.
        ended: whether another runtime crashed or did not answer.
    """
    if word == "MISMATCH":
        return MISMATCH_CODE
    if ended:
        return RunnerEnded.exit_code
    if stopped:
        return TimeLimitError.exit_code
    return INCONCLUSIVE_CODE if word == "inconclusive" and not allow_inconclusive else 0


class Judge:
    """Knows what a graph's results may be on some inputs; runs it in float64 when needed.

    Args:
        graph: unoptimised, or as both runners run it; stays as it is.
        feeds: a value for every input.
        precision: arithmetic of float32 tensors; the coarser one of the runners'.
        maximum: the maximum number of samples; fewer take less memory if there are many
            outputs.
        own: whether both runners are tercet's, which never round operands to eight bits.
        in_bytes: whether operands are rounded to eight bits where the file allows it.
        one_sided: whether the graph is only what one side was made from, such as what was read of
            a file: reasons do not say then which side is nearer to float64.
    """

    def __init__(
        self,
        graph: Graph,
        feeds: Mapping[str, HostValue],
        precision: str = "float32",
        maximum: int = COUNTS[-1],
        *,
        own: bool = False,
        in_bytes: bool = False,
        one_sided: bool = False,
    ) -> None:
        self._one_sided = one_sided
        self._graph, self._feeds, self._precision = graph, feeds, precision
        self._counts = tuple(count for count in COUNTS if count <= maximum) or (maximum,)
        self._ancestries = ancestries(graph, precision)
        self._runs: dict[str, Arrays] = {}
        self._samples: dict[str, list[Arrays]] = {ROUGH: [], FAIR: []}
        self._amplifier: Amplifier | None = None
        self._shaken: Shaken | None = None
        self._own, self._in_bytes = own, in_bytes
        self._draws = draws_of(graph)
        self._lenient: Judge | None = None
        self._maxima: Arrays = {}

    @property
    def exact(self) -> Arrays:
        """What the graph gives in float64, by name; empty where it does not run so."""
        return self._once(EXACT)

    def dtype(self, name: str) -> DType | None:
        """Return the dtype that the graph gives an output; None of what may be no tensor."""
        value = self._graph.outputs.get(name)
        return value.type.dtype if value and isinstance(value.type, TensorType) else None

    @property
    def overflown(self) -> Arrays:
        """The same where steps that exceed the range of their format are infinite."""
        return self._once(OVERFLOWING)

    def _once(self, kind: str) -> Arrays:
        """Return the results of a run without noise."""
        if kind not in self._runs:
            self._runs[kind] = self._run(kind)
        return self._runs[kind]

    def samples(self, name: str, kind: str, count: int) -> list[Array]:
        """Return an output in float64 with noise.

        Args:
            name: the output.
            kind: `shaken.ROUGH` or `shaken.FAIR`.
            count: how many; there are fewer where the graph does not run so.
        """
        return [found[name] for found in self._some(kind, count) if name in found]

    def _some(self, kind: str, count: int) -> list[Arrays]:
        """Return that many samples, as far as they can be had."""
        found = self._samples[kind]
        while len(found) < count and self.exact:
            found.append(self._run(kind, len(found)))
        return found[:count]

    def _run(self, kind: str, seed: int = 0) -> Arrays:
        """Return the results of a run in float64; none where the graph does not run so."""
        try:
            if self._shaken is None:
                graph, in_bytes = self._specialised(), self._in_bytes
                self._shaken = Shaken(graph, self._precision, in_bytes=in_bytes)
            return flat(self._shaken.run(self._feeds, kind, seed))
        except TercetError:
            return {}

    def _specialised(self) -> Graph:
        """Return the graph with the shapes that these inputs give it, where that can be told."""
        graph = opened_in_place(self._graph)
        try:
            types = {v.name: type_of(self._feeds[v.name], v.type) for v in graph.inputs}
            return specialise(graph, types, floats=False)
        except TercetError:
            return graph

    def error(self, name: str, found: Array) -> float | None:
        """Return the relative L2 distance of an output from float64; None where it is not known."""
        exact = self.exact.get(name)
        if exact is None or exact.shape != found.shape or exact.dtype == object:
            return None
        return distance_of(found, exact)

    def outputs(
        self, reference: Mapping[str, HostValue], found: Mapping[str, HostValue]
    ) -> list[Agreement]:
        """Compare all outputs; lists and dictionaries element by element."""
        return [finding.agreement for finding in self.findings(reference, found)]

    def findings(
        self, reference: Mapping[str, HostValue], found: Mapping[str, HostValue]
    ) -> list[Finding]:
        """Compare all outputs; lists and dictionaries element by element."""
        ours, theirs = flat(reference), flat(found)
        names = list(dict.fromkeys([*ours, *theirs]))
        return [self._finding(name, ours.get(name), theirs.get(name)) for name in names]

    def _finding(self, name: str, reference: Array | None, found: Array | None) -> Finding:
        if reference is None or found is None:
            side = "the reference" if reference is None else "the runner"
            present = reference if reference is not None else found
            return Finding(missing(name, present, side), float("inf"))
        result = self.agreement(name, reference, found)
        behind = self._draws.get(name, ())
        result = with_draws(result, behind, reference, found, same_generator=self._own)
        return Finding(result, result.excess)

    def agreement(
        self, name: str, reference: Array, found: Array, *, detailed: bool = False
    ) -> Agreement:
        """Compare one output.

        Args:
            name: the output.
            reference: what it is held against; it may be the wrong one just as well.
            found: the runner's.
            detailed: whether to tell how the differences are spread.
        """
        if reference.dtype == found.dtype == string:
            found = spelled_alike(self._graph.outputs.get(name), reference, found)
        nothing = Tolerance(0.0, 0.0, MEASURED)
        plain = agreement(name, reference, found, nothing, detailed=detailed)
        if plain.ok or reference.dtype != found.dtype:
            return plain
        ruling = self._ruling(name, reference, found, plain)
        reason = ruling.reason
        if ruling.word != "ok" and not self._one_sided:
            reason = "; ".join(part for part in (reason, self._who(name, reference, found)) if part)
        if ruling.word == "inconclusive" and self.exact and not self._one_sided:
            reason = f"{reason}{self._where_from()}"
        return replace(
            plain,
            verdict=ruling.word,
            reason=reason,
            tolerance=Tolerance(0.0, ruling.allowed, MEASURED),
            excess=ruling.excess,
        )

    # ── rulings ──────────────────────────────────────────────────────────────────────────────

    def _ruling(self, name: str, a: Array, b: Array, plain: Agreement) -> Ruling:
        """Judge two arrays that differ."""
        if name not in self.exact:
            return _without_float64(a, b, plain)
        ruling = self._by_noise(name, a, b, plain)
        if ruling.word != "ok":
            ruling = self._with_bytes(name, a, b, plain, ruling)

        def rule(a: Array, b: Array) -> Ruling:
            rest = agreement(name, a, b, Tolerance(0.0, 0.0))
            return Ruling("ok") if rest.ok else self._by_noise(name, a, b, rest)

        exact, value = self.exact[name], self._graph.outputs.get(name)
        if ruling.word == "MISMATCH" and has_unspecified(self._graph):
            opened = self._once(OPEN).get(name, exact)
            ruling = rule_unspecified(a, b, ruling, exact, opened, rule, value)
        if ruling.word == "MISMATCH" and name in self.overflown:
            ruling = rule_overflow(a, b, ruling, exact, self.overflown[name], rule)
        return ruling

    def _with_bytes(
        self, name: str, a: Array, b: Array, plain: Agreement, ruling: Ruling
    ) -> Ruling:
        """Judge a mismatch again, where a runner may have rounded operands to eight bits."""
        if self._own or self._in_bytes or not allows_bytes(self._graph):
            return ruling
        if (alone := self._each_alone(name, a, b)) is not None:
            return alone
        if self._lenient is None:
            counts, precision = self._counts[-1], self._precision
            self._lenient = Judge(self._graph, self._feeds, precision, counts, in_bytes=True)
        lenient = self._lenient._by_noise(name, a, b, plain)
        if lenient.word == "MISMATCH":
            return ruling
        said = f"{ruling.reason}; {_BYTES}"
        return replace(lenient, word="inconclusive", reason=said)

    @cached_property
    def _rounding(self) -> Judge | None:
        """The judge of runners that round activations; None where some are rounded otherwise."""
        graph = rounded_to_bytes(self._graph)
        return graph and Judge(graph, self._feeds, self._precision, self._counts[-1])

    def _each_alone(self, name: str, a: Array, b: Array) -> Ruling | None:
        """Return a ruling by which both are right, each in float64 with or without eight bits."""
        judges = [self, self._rounding] if self._rounding is not None else [self]
        worst = Ruling("ok", _IN_BYTES)
        for x in (a, b):
            rulings = (judge._alone(name, x) for judge in judges)
            found = next((each for each in rulings if each.word == "ok"), None)
            if found is None:
                return None
            if found.excess >= worst.excess:
                worst = replace(found, reason=_IN_BYTES)
        return worst

    def _alone(self, name: str, x: Array) -> Ruling:
        """Judge an array by float64 alone."""
        exact = self.exact.get(name)
        if exact is None or exact.shape != x.shape or string in (exact.dtype, x.dtype):
            return Ruling("MISMATCH")
        exact = exact.astype(x.dtype)
        plain = agreement(name, exact, x, Tolerance(0.0, 0.0, MEASURED))
        return Ruling("ok") if plain.ok else self._by_noise(name, exact, x, plain)

    def _by_noise(self, name: str, a: Array, b: Array, plain: Agreement) -> Ruling:
        """Judge two arrays that differ, with ever more samples until one more changes nothing."""
        ruling = Ruling("MISMATCH", plain.reason, excess=float("inf"))
        for count in self._counts:
            ruling = self._with_samples(name, a, b, plain, count)
            if ruling.word == "ok" or ruling.final:
                break
        return ruling

    def _with_samples(self, name: str, a: Array, b: Array, plain: Agreement, count: int) -> Ruling:
        measures = a.dtype in FLOATS | COMPLEX and a.shape == b.shape and not plain.misplaced
        wide = np.complex128 if a.dtype in COMPLEX else np.float64
        if measures and self.exact[name].shape == a.shape:
            known = self._evidence(name, a, count)
            if count == self._counts[-1]:
                known = replace(known, more=partial(self._farthest, name))
            ruling = rule_ordinary(a.astype(wide), b.astype(wide), known)
            if ruling.word == "ok":
                return ruling
        rough = self.samples(name, ROUGH, count)
        if a.shape != b.shape:
            return self._of_two_shapes(name, a, b, plain, rough)
        alike = [data for data in (self.exact[name], *rough) if data.shape == a.shape]
        if not alike:
            return replace(_without_float64(a, b, plain), final=False)
        if plain.misplaced:
            jumps = self._ancestry(name).decides
            return rule_misplaced(a, b, plain.reason, alike, jumps=jumps)
        exact, *rough = alike
        evidence = replace(self._evidence(name, a, count), exact=exact, rough=rough)
        if measures:
            return rule_floats(a.astype(wide), b.astype(wide), evidence)
        return rule_decisions(a, b, evidence)

    def _evidence(self, name: str, like: Array, count: int) -> Evidence:
        """Return what is known of an output without rough samples."""
        fair = [data for data in self.samples(name, FAIR, count) if data.shape == like.shape]
        past = self._ancestry(name)
        tiny = tiny_of(like.dtype, past.coarsest)
        scarce = sqrt(COUNTS[-1] / self._counts[-1])
        exact = self.exact[name]
        return Evidence(exact, (), fair, past.coarsest, tiny, past.decides, scarce)

    def _farthest(self, name: str, at: Array) -> Array:
        """Return how far some elements move in many fair samples; see `Evidence.more`."""
        if not self._maxima:
            self._maxima = farthest(partial(self._run, FAIR), self.exact)
        return self._maxima[name][at]

    def _ancestry(self, name: str) -> Ancestry:
        """Return what is known of an output, or of the list that it is an element of."""
        known = self._ancestries
        lists = (found for whole, found in known.items() if name.startswith(f"{whole}["))
        return known.get(name) or next(lists, Ancestry(decides=False, coarsest="float64"))

    def _of_two_shapes(
        self, name: str, a: Array, b: Array, plain: Agreement, rough: Sequence[Array]
    ) -> Ruling:
        """Judge shapes that differ: how many results there are may hinge on rounding, too."""
        shapes = {data.shape for data in (self.exact[name], *rough)}
        if {a.shape, b.shape} <= shapes:
            said = f"{plain.reason}; how many there are hinges on rounding"
            return Ruling("inconclusive", said, excess=float("inf"))
        final = not self._ancestry(name).decides or len(rough) >= self._counts[-1]
        return Ruling("MISMATCH", plain.reason, excess=float("inf"), final=final)

    def _who(self, name: str, reference: Array, found: Array) -> str:
        """Say whether one of both is far nearer to float64."""
        errors = self.error(name, reference), self.error(name, found)
        if errors[0] is None or errors[1] is None or reference.dtype not in FLOATS:
            return ""
        near, far = min(errors[0], errors[1]), max(errors[0], errors[1])
        if far < 100 * near or not far > 0:
            return ""
        nearer, other = ("reference", "runner") if near == errors[0] else ("runner", "reference")
        if not near or np.isinf(far):
            return f"the {other} is {far:.1e} from float64, the {nearer} {near:.1e}"
        times = f"{far / near:.0e} times as far"
        return f"the {other} is {times} from float64 ({far:.1e}) as the {nearer} ({near:.1e})"

    def _where_from(self) -> str:
        """Name the first node that makes noise grow."""
        if self._amplifier is None:
            self._amplifier = _attempt_amplifier(self._specialised(), self._feeds, self._precision)
        return f"; {self._amplifier}--layers compares node by node"


def _attempt_amplifier(graph: Graph, feeds: Mapping[str, HostValue], precision: str) -> Amplifier:
    try:
        return first_amplifier(graph, feeds, precision)
    except TercetError:
        return Amplifier()


def unmeasured(
    name: str, reference: Array, found: Array, precisions: tuple[str, ...] = ()
) -> Agreement:
    """Compare one output where there is no time to run the model in float64."""
    tolerance = tolerance_for(reference.dtype, precisions)
    plain = agreement(
        name, reference, found, replace(tolerance, relative=0, absolute=0), detailed=True
    )
    if plain.ok or reference.dtype != found.dtype:
        return plain
    ruling = _without_float64(reference, found, plain, precisions)
    bound = Tolerance(0.0, ruling.allowed)
    word, reason, excess = ruling.word, ruling.reason, ruling.excess
    return replace(plain, verdict=word, reason=reason, tolerance=bound, excess=excess)


def _without_float64(
    a: Array, b: Array, plain: Agreement, precisions: tuple[str, ...] = ()
) -> Ruling:
    """Judge where nothing was measured: what differs by hardly more than a unit is ok."""
    if a.shape != b.shape or a.dtype not in FLOATS | COMPLEX or plain.misplaced:
        return Ruling("MISMATCH", plain.reason, excess=float("inf"))
    usual = tolerance_for(a.dtype, precisions)
    apart = distance(a, b)
    near = caps(a, a, usual.relative / 16) + usual.absolute
    if (apart <= near).all():
        return Ruling("ok", "", float(near.max()), float((apart / near).max()))
    allowed = usual.bound(plain.scale)
    word: Word = "inconclusive" if plain.max_abs <= allowed else "MISMATCH"
    said = "what rounding costs is not known: the model did not run in float64"
    return Ruling(word, f"{plain.reason}; {said}", allowed, plain.max_abs / allowed)
