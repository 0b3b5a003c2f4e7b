"""How near two names are: a suggestion for a misspelt name must not be far-fetched."""

from __future__ import annotations

from collections.abc import Iterable

#: Longer names are not compared, as a comparison takes quadratic time.
_LONGEST = 100
#: Shorter names are not abbreviations.
_SHORTEST = 3


def edit_distance(one: str, other: str, most: int) -> int:
    """Return the number of edits between two words, or ``most + 1`` if there are more.

    An edit inserts, deletes or replaces a letter, or swaps two neighbours (the optimal string
    alignment distance).

    Args:
        one: a word.
        other: another one.
        most: the largest number of interest.
    """
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        row = [i + 1]
        for j, against in enumerate(other):
            found = min(last[j] + (letter != against), last[j + 1] + 1, row[j] + 1)
            if i and j and letter == other[j - 1] and one[i - 1] == against:
                found = min(found, before[j - 1] + 1)
            row.append(found)
        if min(row) > most:
            return most + 1
        before, last = last, row
    return min(last[-1], most + 1)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` was probably meant to be, or None.

    That is the one with the fewest edits, of which a word of n letters may have n/3 (at least one),
    regardless of case; else the only one of at most twice its length that begins with it.

    Args:
        word: what was given.
        known: what there is, the preferred ones first.
    """
    if not word or len(word) > _LONGEST:
        return None
    folded, abbreviated = word.casefold(), list[str]()
    best, least = None, max(1, len(folded) // 3) + 1
    for name in known:
        other = name.casefold()
        distance = edit_distance(folded, other, least - 1)
        if distance < min(least, max(len(folded), len(other))):
            best, least = name, distance
        if other.startswith(folded) and _SHORTEST <= len(folded) >= len(other) - len(folded):
            abbreviated.append(name)
    return best or (abbreviated[0] if len(abbreviated) == 1 else None)
