"""Tokens that may not come next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..base.record import record
from ..ir.types import Array


@record
class TokenBans:
    """Tokens that may not come next, given those before.

    Attributes:
        always: those that never occur.
        words: sequences whose last token may not follow the others.
        repeated: n-grams of this many tokens may not repeat; 0 for no limit.
        ends: those that may not occur in a sequence shorter than its minimum length.
    """

    always: tuple[int, ...] = ()
    words: tuple[tuple[int, ...], ...] = ()
    repeated: int = 0
    ends: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no token is forbidden."""
        return self == NO_BANS

    @property
    def reads_history(self) -> bool:
        """Whether tokens before the last one matter."""
        return bool(self.repeated or self.words)

    def tokens(self, seen: Sequence[int], least: int = 0) -> list[int]:
        """Return the forbidden tokens.

        Args:
            seen: all tokens so far, prompt included.
            least: minimum length of the sequence.
        """
        found = [*self.always, *self._words_after(seen)]
        if len(seen) < least:
            found += self.ends
        if self.repeated:
            found += self._again(seen)
        return found

    def apply(self, scores: Array, seen: Sequence[int], least: int = 0) -> Array:
        """Return scores [vocabulary], as float64, without forbidden tokens; see `tokens`."""
        return without(scores, [token for token in self.tokens(seen, least) if token < scores.size])

    def _words_after(self, seen: Sequence[int]) -> Iterator[int]:
        for *start, last in self.words:
            if not start or list(seen[-len(start) :]) == start:
                yield last

    def _again(self, seen: Sequence[int]) -> Iterator[int]:
        """Yield the tokens that would complete an n-gram which has already occurred."""
        size = self.repeated - 1
        last = list(seen[len(seen) - size :]) if 0 < size <= len(seen) else []
        for end in range(size, len(seen)):
            if list(seen[end - size : end]) == last:
                yield seen[end]


def without(scores: Array, tokens: Sequence[int]) -> Array:
    """Return scores [vocabulary] as float64, -inf for some tokens; NaN stays, as in `ban_graph`."""
    scores = scores.astype(np.float64)
    scores[tokens] = np.minimum(scores[tokens], -np.inf)
    return scores


#: Every token may come next.
NO_BANS = TokenBans()
