"""Names of caches: what they contain besides past and present."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Parts of names that distinguish past from present, or mark a cache.
_SIDES = re.compile(r"past|present|key_values|caches?|inputs?|outputs?|new|next|prev|in|out")
#: Parts of the names of cross-attention keys and values.
_CROSS = frozenset({"cross", "encoder"})


def core_of(name: str) -> tuple[str, ...]:
    """Return what identifies a cache besides past and present: ``("0", "key")``."""
    kept = _SIDES.sub(lambda m: "" if _is_word(name, m) else m[0], name.lower())
    return tuple(sorted(part for part in re.split(r"[^a-z0-9]+", kept) if part))


def _is_word(text: str, match: re.Match[str]) -> bool:
    around = text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]
    return not any(c.isalpha() for c in around)


def is_cross(name: str) -> bool:
    """Return whether a cache belongs to cross-attention, and is constant during decoding."""
    return not _CROSS.isdisjoint(core_of(name))


def by_core(names: Iterable[str]) -> dict[tuple[str, ...], list[str]]:
    """Return names by what identifies their cache."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        found.setdefault(core_of(name), []).append(name)
    return found
