"""What became of the suite on one backend, measured against what is expected of it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...runtime.errors import UsageError
from .judge import Outcome
from .suite import CATEGORIES, ConformanceCase

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is known about a backend.

    Attributes:
        reasons: why a case cannot be passed, by its id.
        by_chance: those of them that may be passed by luck; they never count as passed.
        may_decline: whether what the backend does not run is a gap rather than a failure.
    """

    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    by_chance: frozenset[str] = frozenset()
    may_decline: bool = False


def read_expectation(*backends: str) -> Expectation:
    """Return what is expected of backends that run cases together.

    ``expected.toml`` is for all, ``expected_BACKEND.toml`` for one, if it is there. They have
    tables ``[[not_passed]]`` with ``reason`` and ``cases``, and ``by_chance = true`` or not; and at
    the top, for one backend, ``may_decline = true`` or not.
    """
    reasons: dict[str, str] = {}
    lucky: set[str] = set()
    files = [HERE / "expected.toml", *(HERE / f"expected_{name}.toml" for name in backends)]
    found = [tomllib.loads(f.read_text(encoding="utf-8")) if f.is_file() else {} for f in files]
    for entry in (entry for data in found for entry in data.get("not_passed", ())):
        again = reasons.keys() & set(entry["cases"])
        if again:
            raise UsageError(f"{', '.join(sorted(again))} is expected not to pass for two reasons")
        reasons.update(dict.fromkeys(entry["cases"], entry["reason"]))
        lucky.update(entry["cases"] if entry.get("by_chance") else ())
    declines = [data.get("may_decline", False) for data in found[1:]]
    return Expectation(reasons, frozenset(lucky), all(declines))


@dataclass(frozen=True, slots=True)
class Score:
    """How many of some cases are passed."""

    passed: int
    cases: int

    @property
    def is_full(self) -> bool:
        """Whether all are."""
        return self.passed == self.cases

    def __str__(self) -> str:
        return f"{self.passed}/{self.cases}"


@dataclass(frozen=True, slots=True)
class NotPassed:
    """A case that is not passed.

    Attributes:
        case: its id.
        operator: see `ConformanceCase`.
        status: ``unsupported`` or ``failed``.
        reason: that of the expectation, if it is expected.
        expected: whether it is.
    """

    case: str
    operator: str
    status: Literal["unsupported", "failed"]
    reason: str
    expected: bool


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The score of a backend.

    Attributes:
        backend: who ran the cases.
        fallback: the backend that ran the nodes that it declines; empty for nobody.
        suite: version of `onnx`.
        environment: what the figures depend on besides.
        seconds: how long it took.
        categories: score by category.
        operators: score by operator, of cases in category ``node``.
        not_passed: with reasons.
        surprises: cases that are passed although they are expected not to be.
    """

    backend: str
    fallback: str
    suite: str
    environment: Mapping[str, str]
    seconds: float
    categories: Mapping[str, Score]
    operators: Mapping[str, Score]
    not_passed: tuple[NotPassed, ...]
    surprises: tuple[str, ...] = ()

    @property
    def score(self) -> Score:
        """Of all cases."""
        return total(self.categories.values())

    @property
    def unexpected(self) -> tuple[NotPassed, ...]:
        """Cases that should be passed and are not."""
        return tuple(found for found in self.not_passed if not found.expected)

    @property
    def ok(self) -> bool:
        """Whether everything is as expected."""
        return not self.unexpected and not self.surprises

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "backend": self.backend,
            "fallback": self.fallback,
            "suite": self.suite,
            "environment": dict(self.environment),
            "seconds": round(self.seconds, 1),
            "ok": self.ok,
            "score": asdict(self.score),
            "categories": {name: asdict(score) for name, score in self.categories.items()},
            "operators": {name: asdict(score) for name, score in self.operators.items()},
            "not_passed": [asdict(found) for found in self.not_passed],
            "surprises": list(self.surprises),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConformanceReport:
        """Return the inverse of `to_dict`."""
        return cls(
            data["backend"],
            data["fallback"],
            data["suite"],
            data["environment"],
            data["seconds"],
            {name: Score(**score) for name, score in data["categories"].items()},
            {name: Score(**score) for name, score in data["operators"].items()},
            tuple(NotPassed(**found) for found in data["not_passed"]),
            tuple(data["surprises"]),
        )


def total(scores: Iterable[Score]) -> Score:
    """Return the score of several together."""
    found = list(scores)
    return Score(sum(s.passed for s in found), sum(s.cases for s in found))


def assess(
    outcomes: Sequence[tuple[ConformanceCase, Outcome]], expected: Expectation, **about: Any
) -> ConformanceReport:
    """Return the report on cases that were run.

    Args:
        outcomes: every case with what became of it.
        expected: what is known about the backend.
        **about: backend, fallback, suite, environment and seconds, as `ConformanceReport` has them.
    """
    passed: dict[str, bool] = {}
    missed: list[NotPassed] = []
    surprises: list[str] = []
    for case, outcome in outcomes:
        lucky = case.id in expected.by_chance
        passed[case.id] = outcome.status == "passed" and not lucky
        if not passed[case.id]:
            missed.append(_not_passed(case, outcome, expected))
        elif case.id in expected.reasons:
            surprises.append(case.id)
    cases = sorted((case for case, _ in outcomes), key=lambda case: CATEGORIES.index(case.category))
    return ConformanceReport(
        categories=_scores((case.category, passed[case.id]) for case in cases),
        operators=dict(sorted(_scores((c.operator, passed[c.id]) for c in cases).items())),
        not_passed=tuple(sorted(missed, key=lambda found: found.case)),
        surprises=tuple(sorted(surprises)),
        **about,
    )


def _not_passed(case: ConformanceCase, outcome: Outcome, expected: Expectation) -> NotPassed:
    reason = expected.reasons.get(case.id)
    declined = outcome.status == "unsupported"
    known = reason is not None or (declined and expected.may_decline)
    status = "unsupported" if declined else "failed"
    return NotPassed(case.id, case.operator, status, reason or outcome.reason, known)


def _scores(found: Iterable[tuple[str, bool]]) -> dict[str, Score]:
    """Return the score by name; what has no name is left out."""
    tally: dict[str, list[bool]] = {}
    for name, passed in found:
        if name:
            tally.setdefault(name, []).append(passed)
    return {name: Score(sum(each), len(each)) for name, each in tally.items()}
