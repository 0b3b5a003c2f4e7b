"""What was generated, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

#: Why a sequence ended: a token that ends texts, a stop string, ``max_new_tokens``, no more room.
Reason = Literal["end", "stop", "length", "capacity"]


@dataclass(frozen=True, slots=True)
class Continuation:
    """One sequence that was generated.

    Attributes:
        prompt: number of the prompt that it continues, from 0.
        ids: the new tokens, the one that ended it among them.
        text: of these, without special tokens and without the stop string; None where ids were
            asked for.
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
    """What was generated for one call.

    Attributes:
        continuations: those of the first prompt, then those of the next one.
        prompts: tokens of each prompt.
        reused: tokens of the prompt that the caches had already.
        first_token: seconds to the first token: reading the prompt, and choosing.
        seconds: until the last one.
    """

    continuations: tuple[Continuation, ...]
    prompts: tuple[tuple[int, ...], ...]
    reused: int
    first_token: float
    seconds: float

    @property
    def text(self) -> str:
        """The text of the first sequence; empty where ids were requested."""
        return self.continuations[0].text or ""

    @property
    def texts(self) -> list[str]:
        """The text of every sequence."""
        return [each.text or "" for each in self.continuations]

    @property
    def ids(self) -> list[list[int]]:
        """The new tokens of every sequence."""
        return [list(each.ids) for each in self.continuations]

    @property
    def tokens(self) -> int:
        """Number of new tokens of all sequences."""
        return sum(len(each.ids) for each in self.continuations)

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second of all sequences, without the first of each; 0 if none."""
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
