"""Tokens that may not come next, as configurations forbid them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..runtime.base.arguments import shown
from .config_file import ConfigFile


@dataclass(frozen=True, slots=True)
class Bans:
    """What transformers' processors of logits forbid.

    Attributes:
        always: ``suppress_tokens``.
        first: ``begin_suppress_tokens``: not as the first new token.
        words: ``bad_words_ids``: sequences whose last token may not follow the others.
        repeated: ``no_repeat_ngram_size``: so many tokens in a row come once; 0 for any.
        least: ``min_length``: the prompt of the decoder and what follows have so many tokens.
        least_new: ``min_new_tokens``: what follows has so many.
    """

    always: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    words: tuple[tuple[int, ...], ...] = ()
    repeated: int = 0
    least: int = 0
    least_new: int = 0

    @classmethod
    def of(cls, config: ConfigFile) -> Bans:
        """Read them; raises ModelError that names a field that is none."""
        return cls(
            config.tokens("suppress_tokens"),
            config.tokens("begin_suppress_tokens"),
            tuple(_words(config, "bad_words_ids")),
            config.whole("no_repeat_ngram_size") or 0,
            config.whole("min_length") or 0,
            config.whole("min_new_tokens") or 0,
        )

    def tokens(self, seen: Sequence[int], new: int, ends: Sequence[int]) -> list[int]:
        """Return the tokens that may not follow.

        Args:
            seen: what the decoder has read, and what it wrote.
            new: number of those that it wrote.
            ends: tokens that end the text.
        """
        found = [*self.always, *(() if new else self.first), *self._words_after(seen)]
        if len(seen) < self.least or new < self.least_new:
            found += ends
        if self.repeated:
            found += self._again(seen)
        return found

    def _words_after(self, seen: Sequence[int]) -> Iterator[int]:
        for *start, last in self.words:
            if not start or list(seen[-len(start) :]) == start:
                yield last

    def _again(self, seen: Sequence[int]) -> Iterator[int]:
        """Yield what has followed the last tokens before."""
        size = self.repeated - 1
        last = list(seen[len(seen) - size :]) if 0 < size <= len(seen) else []
        for end in range(size, len(seen)):
            if list(seen[end - size : end]) == last:
                yield seen[end]


def _words(config: ConfigFile, field: str) -> Iterator[tuple[int, ...]]:
    found = config.get(field)
    if found is None:
        return
    words = cast("Sequence[Any]", found) if isinstance(found, list) else None
    for each in [None] if words is None else words:
        word = cast("Sequence[Any]", each) if isinstance(each, list) else ()
        if not word or not all(type(token) is int and token >= 0 for token in word):
            raise config.error(field, f"{shown(found)}: expected lists of tokens (whole numbers)")
        yield tuple(word)
