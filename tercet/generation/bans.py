"""Tokens that a configuration forbids as the next one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ..runtime.base.arguments import shown
from ..runtime.session.bans import TokenBans
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

    def following(self, ends: Iterable[int]) -> TokenBans:
        """Return the tokens forbidden behind the first new one.

        Args:
            ends: end-of-text tokens; none of them alone is a bad word.
        """
        last = tuple(sorted(ends))
        words = tuple(word for word in self.words if word[1:] or word[0] not in last)
        return TokenBans(
            self.always, words, self.repeated, last if self.least or self.least_new else ()
        )

    def length(self, prompt: int) -> int:
        """Return the minimum length of a sequence with a prompt of so many tokens."""
        return max(self.least, prompt + self.least_new)

    def tokens(self, seen: Sequence[int], new: int, ends: Iterable[int]) -> list[int]:
        """Return the forbidden tokens.

        Args:
            seen: all tokens so far, prompt included.
            new: how many of them are new.
            ends: end-of-text tokens.
        """
        found = self.following(ends).tokens(seen, self.length(len(seen) - new))
        return [*found, *(() if new else self.first)]


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
