"""Names that differ from all others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container


def unused(wanted: str, taken: Container[str]) -> str:
    """Return a name that is not taken; thousands may want the same, so numbers are bisected."""
    if wanted not in taken:
        return wanted
    number = 1
    while f"{wanted}.{number}" in taken:
        number *= 2
    numbers = range(number // 2 + 1, number)
    at = bisect_left(numbers, True, key=lambda each: f"{wanted}.{each}" not in taken)
    return f"{wanted}.{numbers.start + at}"
