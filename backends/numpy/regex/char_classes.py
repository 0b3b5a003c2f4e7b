"""Character sets as ranges of code points: RE2's named classes, and case folding."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from string import hexdigits

#: Ranges of code points, inclusive; sorted, disjoint, and not adjacent.
Ranges = tuple[tuple[int, int], ...]

#: The largest code point.
LAST = sys.maxunicode


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return overlapping ranges as disjoint ones."""
    found: list[tuple[int, int]] = []
    for a, b in sorted(ranges):
        if found and a <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(b, found[-1][1]))
        else:
            found.append((a, b))
    return tuple(found)


def complement(ranges: Ranges) -> Ranges:
    """Return all other code points."""
    found: list[tuple[int, int]] = []
    after = 0
    for a, b in ranges:
        found += [(after, a - 1)] * (after < a)
        after = b + 1
    found += [(after, LAST)] * (after <= LAST)
    return tuple(found)


def ranges_of(text: str) -> Ranges:
    """Return the characters of a text."""
    return union((ord(char), ord(char)) for char in text)


_DIGITS, _LOWER, _UPPER = (48, 57), (97, 122), (65, 90)

#: Classes by the letter after a backslash.
PERL: dict[str, Ranges] = {
    "d": (_DIGITS,),
    "s": ranges_of("\t\n\f\r "),
    "w": union((_DIGITS, _LOWER, _UPPER, (95, 95))),
}
#: Classes by the name between colons.
POSIX: dict[str, Ranges] = {
    "alnum": union((_DIGITS, _LOWER, _UPPER)),
    "alpha": union((_LOWER, _UPPER)),
    "ascii": ((0, 127),),
    "blank": ranges_of("\t "),
    "cntrl": ((0, 31), (127, 127)),
    "digit": (_DIGITS,),
    "graph": ((33, 126),),
    "lower": (_LOWER,),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ranges_of("\t\n\v\f\r "),
    "upper": (_UPPER,),
    "word": PERL["w"],
    "xdigit": ranges_of(hexdigits),
}


@cache
def categories() -> dict[str, Ranges]:
    """Return the code points of every Unicode general category and group of categories."""
    found: dict[str, list[tuple[int, int]]] = {"Any": [(0, LAST)]}
    for name, codes in groupby(range(LAST + 1), lambda code: unicodedata.category(chr(code))):
        run = list(codes)
        for key in (name, name[0]):
            found.setdefault(key, []).append((run[0], run[-1]))
    return {key: union(ranges) for key, ranges in found.items()}


def _folded(char: str) -> str:
    """Return the simple case folding of a character."""
    if len(found := char.casefold()) == 1:
        return found
    return found if len(found := char.lower()) == 1 else char


@cache
def _cases() -> dict[int, tuple[int, ...]]:
    """Return, for every code point with case variants, all of them."""
    found: dict[str, list[int]] = {}
    for code in range(0x1F000):  # no case variants above
        found.setdefault(_folded(chr(code)), []).append(code)
    groups = [tuple(codes) for codes in found.values() if len(codes) > 1]
    return {code: codes for codes in groups for code in codes}


def in_every_case(ranges: Ranges) -> Ranges:
    """Return the ranges extended by all case variants."""
    cases = _cases()
    inside = (c for a, b in ranges for c in range(a, min(b, 0x1F000) + 1) if c in cases)
    return union((*ranges, *((other, other) for code in inside for other in cases[code])))
