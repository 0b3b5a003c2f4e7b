"""Conformance results of one backend, compared with expectations."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from ...runtime.errors import UsageError
from .judge import CaseOutcome
from .suite import CATEGORIES, ConformanceCase

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expectations for a backend.

    Attributes:
        reasons: why a case cannot be passed, by its id.
        by_chance: those of them that may pass by chance; they never count as passed.
        may_decline: whether unsupported nodes count as gaps rather than failures.
    """

    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    by_chance: frozenset[str] = frozenset()
    may_decline: bool = False


def read_expectation(*backends: str) -> Expectation:
    """Return the expectations for backends that run cases together.

    ``expected.toml`` applies to all, ``expected_BACKEND.toml`` to one, if present. They have tables
    ``[[not_passed]]`` with ``reason`` and ``cases``, and optionally ``by_chance = true``, or
    ``since``, the version of ml_dtypes from which on it applies; and at the top, for one backend,
    optionally ``may_decline = true``.
    """
    reasons: dict[str, str] = {}
    lucky: set[str] = set()
    files = [HERE / "expected.toml", *(HERE / f"expected_{name}.toml" for name in backends)]
    found = [tomllib.loads(f.read_text(encoding="utf-8")) if f.is_file() else {} for f in files]
    for entry in (entry for data in found for entry in data.get("not_passed", ())):
        if _version(entry.get("since", "0")) > _version(version("ml-dtypes")):
            continue
        again = reasons.keys() & set(entry["cases"])
        if again:
            raise UsageError(f"{', '.join(sorted(again))} is expected not to pass for two reasons")
        reasons.update(dict.fromkeys(entry["cases"], entry["reason"]))
        lucky.update(entry["cases"] if entry.get("by_chance") else ())
    declines = [data.get("may_decline", False) for data in found[1:]]
    return Expectation(reasons, frozenset(lucky), all(declines))


def _version(text: str) -> tuple[int, ...]:
    """Return the major and the minor number of a version."""
    return tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())


@dataclass(frozen=True, slots=True)
class Score:
    """Number of passed cases."""

    passed: int
    cases: int

    @property
    def is_full(self) -> bool:
        """Whether all cases passed."""
        return self.passed == self.cases

    def __str__(self) -> str:
        return f"{self.passed}/{self.cases}"


@dataclass(frozen=True, slots=True)
class NotPassed:
    """A case that did not pass.

    Attributes:
        case: its id.
        operator: see `ConformanceCase`.
        status: ``unsupported`` or ``failed``.
        reason: the expected reason, if expected.
        expected: whether it is.
    """

    case: str
    operator: str
    status: Literal["unsupported", "failed"]
    reason: str
    expected: bool


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The results of a backend.

    Attributes:
        backend: the backend.
        fallback: the backend for nodes that it declines; empty for none.
        suite: version of `onnx`.
        environment: the environment of the measurement.
        seconds: duration.
        categories: score by category.
        operators: score by operator, for cases of category ``node``.
        not_passed: with reasons.
        surprises: cases that passed unexpectedly.
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
        """The score of all cases."""
        return total(self.categories.values())

    @property
    def unexpected(self) -> tuple[NotPassed, ...]:
        """Cases that should pass and do not."""
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
    """Return the sum of scores."""
    found = list(scores)
    return Score(sum(s.passed for s in found), sum(s.cases for s in found))


def assess(
    outcomes: Sequence[tuple[ConformanceCase, CaseOutcome]], expected: Expectation, **about: Any
) -> ConformanceReport:
    """Return the report of the cases that were run.

    Args:
        outcomes: every case with its outcome.
        expected: the expectations for the backend.
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


def _not_passed(case: ConformanceCase, outcome: CaseOutcome, expected: Expectation) -> NotPassed:
    reason = expected.reasons.get(case.id)
    declined = outcome.status == "unsupported"
    known = reason is not None or (declined and expected.may_decline)
    status = "unsupported" if declined else "failed"
    return NotPassed(case.id, case.operator, status, reason or outcome.reason, known)


def _scores(found: Iterable[tuple[str, bool]]) -> dict[str, Score]:
    """Return the scores by name; unnamed ones are dropped."""
    tally: dict[str, list[bool]] = {}
    for name, passed in found:
        if name:
            tally.setdefault(name, []).append(passed)
    return {name: Score(sum(each), len(each)) for name, each in tally.items()}
