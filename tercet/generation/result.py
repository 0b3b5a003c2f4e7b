"""Generated sequences and their timing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

#: Why a sequence ended: end-of-text token, stop string, ``max_new_tokens``, caches full.
Reason = Literal["end", "stop", "length", "capacity"]


@dataclass(frozen=True, slots=True)
class Continuation:
    """One generated sequence.

    Attributes:
        prompt: index of the prompt that it continues.
        ids: the new tokens, including the one that ended it.
        text: their text, without special tokens and the stop string; None if ids were requested.
        reason: why it ended.
    """

    prompt: int
    ids: tuple[int, ...]
    text: str | None
    reason: Reason

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {
            "prompt": self.prompt,
            "ids": list(self.ids),
            "text": self.text,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Generation:
    """The result of one call.

    Attributes:
        continuations: ordered by prompt.
        prompts: tokens of each prompt.
        reused: prompt tokens that the caches already held.
        first_token: seconds to the first token, prefill included.
        seconds: seconds to the last token.
    """

    continuations: tuple[Continuation, ...]
    prompts: tuple[tuple[int, ...], ...]
    reused: int
    first_token: float
    seconds: float

    @property
    def text(self) -> str:
        """The text of the first sequence; empty if ids were requested."""
        return self.continuations[0].text or ""

    @property
    def texts(self) -> list[str]:
        """The text of every sequence."""
        return [each.text or "" for each in self.continuations]

    @property
    def ids(self) -> list[list[int]]:
        """The new tokens of each sequence."""
        return [list(each.ids) for each in self.continuations]

    @property
    def tokens(self) -> int:
        """Total number of new tokens."""
        return sum(len(each.ids) for each in self.continuations)

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second over all sequences, first tokens excluded; 0 if there are none."""
        later = self.tokens - len(self.continuations)
        passed = self.seconds - self.first_token
        return later / passed if later > 0 and passed > 0 else 0.0

    def __str__(self) -> str:
        return "\n".join(self.texts)

    def to_dict(self) -> dict[str, Any]:
        """Return everything, times in milliseconds, for JSON."""
        return {
            "continuations": [each.to_dict() for each in self.continuations],
            "prompts": [list(each) for each in self.prompts],
            "prompt_tokens": sum(map(len, self.prompts)),
            "new_tokens": self.tokens,
            "reused_tokens": self.reused,
            "first_token_ms": self.first_token * 1e3,
            "total_ms": self.seconds * 1e3,
            "tokens_per_second": self.tokens_per_second,
        }
