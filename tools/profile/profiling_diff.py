"""Comparison of two saved profiles: which rows became faster, slower, appeared or vanished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...runtime.errors import InputError
from ..common.results import read_json, saved_by


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of both profiles.

    Attributes:
        name: a row's nodes, or an operator.
        before: milliseconds; None if it did not exist.
        after: likewise.
    """

    name: str
    before: float | None
    after: float | None

    @property
    def change(self) -> float:
        """Difference in milliseconds."""
        return (self.after or 0.0) - (self.before or 0.0)

    @property
    def ratio(self) -> float | None:
        """Time after divided by time before; None if either is missing."""
        return self.after / self.before if self.before and self.after is not None else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {**asdict(self), "change": self.change, "ratio": self.ratio}


@dataclass(frozen=True, slots=True)
class ProfileDifference:
    """The result of `diff_profiles`, largest changes first.

    Attributes:
        before: the first profile.
        after: the second profile.
        total: the uninstrumented run.
        rows: by their nodes; rows with the same nodes are added.
        operators: by operators.
    """

    before: str
    after: str
    total: Change
    rows: tuple[Change, ...]
    operators: tuple[Change, ...]

    def table(self) -> list[dict[str, Any]]:
        """Return one flat row per row of the run, for `pandas.DataFrame`."""
        return [change.to_dict() for change in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "before": self.before,
            "after": self.after,
            "total": self.total.to_dict(),
            "rows": [change.to_dict() for change in self.rows],
            "operators": [change.to_dict() for change in self.operators],
        }


def diff_profiles(
    before: Path | Mapping[str, Any], after: Path | Mapping[str, Any]
) -> ProfileDifference:
    """Compare two profiles.

    Args:
        before: a file written by ``tercet profile --json``, or `Profile.to_dict`.
        after: likewise.

    Raises:
        InputError: a file is not a profile.
        OSError: a file cannot be read.
    """
    first, second = read_profile(before), read_profile(after)
    with saved_by("tercet profile"):
        return _difference(first, second)


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> ProfileDifference:
    total = Change("run", first["total_ms"]["median"], second["total_ms"]["median"])
    pair = first["rows"], second["rows"]
    by_node, by_operator = (
        _changes(*(_sums(rows, key) for rows in pair)) for key in (_node, _operator)
    )
    return ProfileDifference(_title(first), _title(second), total, by_node, by_operator)


def read_profile(source: Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a saved profile as a dictionary; see `diff_profiles`."""
    found = read_json(source)
    if not isinstance(found, dict) or not {"rows", "total_ms", "phases_ms"} <= set(found):
        raise InputError(f"{source} is not a profile; `tercet profile MODEL --json` writes one")
    return found


def _title(found: Mapping[str, Any]) -> str:
    commit = found.get("environment", {}).get("tercet", "")
    return f"{found['model']} on {found['backend']}, {found['precision']}, tercet {commit}"


def _node(row: Mapping[str, Any]) -> str:
    return " + ".join(row["nodes"]) or f"{', '.join(row['reads'])}: {row['kernel']}"


def _operator(row: Mapping[str, Any]) -> str:
    return row["operators"] or row["kind"]


def _sums(rows: list[Mapping[str, Any]], key: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        if row["ms"] is not None:
            found[key(row)] = found.get(key(row), 0.0) + row["ms"]
    return found


def _changes(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[Change, ...]:
    names = dict.fromkeys([*before, *after])
    found = [Change(name, before.get(name), after.get(name)) for name in names]
    return tuple(sorted(found, key=lambda change: -abs(change.change)))
