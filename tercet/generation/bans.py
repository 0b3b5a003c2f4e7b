"""Tokens that a configuration forbids as the next one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ..runtime.base.arguments import shown
from .config_file import ConfigFile


@dataclass(frozen=True, slots=True)
class Bans:
    """Tokens forbidden by the fields that transformers' logits processors read.

    Attributes:
        always: ``suppress_tokens``.
        first: ``begin_suppress_tokens``: forbidden as the first new token.
        words: ``bad_words_ids``: sequences whose last token may not follow the others.
        repeated: ``no_repeat_ngram_size``: n-grams of this many tokens may not repeat; 0 for no
            limit.
        least: ``min_length``: minimum number of tokens, prompt included.
        least_new: ``min_new_tokens``: minimum number of new tokens.
        file: the configuration that states them; empty if there is none.
    """

    always: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    words: tuple[tuple[int, ...], ...] = ()
    repeated: int = 0
    least: int = 0
    least_new: int = 0
    file: str = field(default="", compare=False)

    @classmethod
    def of(cls, config: ConfigFile, prefix: str = "") -> Bans:
        """Read the fields from a configuration, where their names have a prefix.

        Raises:
            ModelError: a malformed field; the message names it.
        """
        return cls(
            config.tokens(f"{prefix}suppress_tokens"),
            config.tokens(f"{prefix}begin_suppress_tokens"),
            tuple(_words(config, f"{prefix}bad_words_ids")),
            config.whole(f"{prefix}no_repeat_ngram_size") or 0,
            config.whole(f"{prefix}min_length") or 0,
            config.whole(f"{prefix}min_new_tokens") or 0,
            str(config.path),
        )

    @property
    def is_empty(self) -> bool:
        """Whether no token is forbidden."""
        return self == Bans()

    def tokens(self, seen: Sequence[int], new: int, ends: Sequence[int]) -> list[int]:
        """Return the forbidden tokens.

        Args:
            seen: all tokens so far, prompt included.
            new: how many of them are new.
            ends: end-of-text tokens.
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
        """Yield the tokens that would complete an n-gram which has already occurred."""
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
