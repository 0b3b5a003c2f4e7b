"""Settings of one call: the caller's, with the folder's as defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..runtime.base import arguments as rules
from ..runtime.base.arguments import refused
from ..runtime.session.sampling import SamplingSettings

#: Default number of new tokens, if neither the caller nor the folder gives one.
MAX_NEW_TOKENS = 128
#: Settings that enable sampling.
_DRAWS = ("temperature", "top_k", "top_p", "min_p")
#: The least number by which logits are divided: those of float32 stay within float64.
_LEAST = 1e-30


def _share(name: str, value: Any) -> float:
    found: float = rules.number(minimum=0)(name, value)
    if found > 1:
        raise rules.refused(name, value, "a number from 0 to 1")
    return found


def _factor(name: str, value: Any) -> float:
    found: float = rules.number()(name, value)
    if not _LEAST <= found <= 1 / _LEAST:
        raise rules.refused(name, value, f"a number from {_LEAST:g} to {1 / _LEAST:g}")
    return found


def _temperature(name: str, value: Any) -> float:
    found: float = rules.number()(name, value)
    if found and not _LEAST <= found <= 1 / _LEAST:
        raise rules.refused(name, value, f"0, or a number from {_LEAST:g} to {1 / _LEAST:g}")
    return found


def _stops(name: str, value: Any) -> tuple[str, ...]:
    found: tuple[str, ...] = rules.words("strings that end the text")(name, value)
    if not all(found):
        raise rules.refused(name, value, "strings that are not empty")
    return found


def _tokens(name: str, value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    token = rules.whole(0)
    found = tuple(token(name, each) for each in rules.items(name, value, "tokens"))
    if not found:
        raise rules.refused(name, value, "at least one token")
    return found


RULES = {
    "max_new_tokens": rules.optional(rules.whole(1)),
    "stop": _stops,
    "num_return_sequences": rules.whole(1),
    "temperature": rules.optional(_temperature),
    "top_k": rules.optional(rules.whole(0)),
    "top_p": rules.optional(_share),
    "min_p": rules.optional(_share),
    "repetition_penalty": rules.optional(_factor),
    "seed": rules.optional(rules.whole(0)),
    "decoder_ids": _tokens,
    "language": rules.optional(rules.text),
    "task": rules.optional(rules.text),
}


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """Settings of one call; see `Generator.generate`.

    `max_length` is the folder's limit of all tokens, if neither call nor folder limit the new ones.
    """

    max_new_tokens: int
    sampling: SamplingSettings
    stops: tuple[str, ...] = ()
    count: int = 1
    decoder_ids: tuple[int, ...] | None = None
    language: str | None = None
    task: str | None = None
    max_length: int | None = None

    def limit(self, length: int) -> int:
        """Return the maximum number of new tokens after this many."""
        return self.max_new_tokens if self.max_length is None else self.max_length - length

    @property
    def is_begun(self) -> bool:
        """Whether start tokens, a language or a task are set, for an encoder-decoder."""
        return any(each is not None for each in (self.decoder_ids, self.language, self.task))


@rules.checked(RULES)
def generate(
    search: Mapping[str, float],
    default_tokens: int | None,
    max_length: int | None = None,
    *,
    max_new_tokens: int | None = None,
    stop: str | Sequence[str] = (),
    num_return_sequences: int = 1,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int | None = None,
    decoder_ids: Sequence[int] | None = None,
    language: str | None = None,
    task: str | None = None,
) -> GenerationSettings:
    """Return the settings of one call.

    Args:
        search: the folder's settings.
        default_tokens: the folder's `max_new_tokens`.
        max_length: the folder's.
        max_new_tokens: maximum number of new tokens per sequence.
        stop: strings that end a text.
        num_return_sequences: number of continuations per prompt.
        temperature: divides the logits; 0 for greedy decoding.
        top_k: see `SamplingSettings`.
        top_p: see `SamplingSettings`.
        min_p: see `SamplingSettings`.
        repetition_penalty: see `SamplingSettings`.
        seed: seed of the sampler; None for the folder's, or 0.
        decoder_ids: tokens that the decoder of an encoder-decoder starts with.
        language: spoken language, for a speech model.
        task: ``transcribe`` or ``translate``, for a speech model.
    """
    begun = None if decoder_ids is None else tuple(decoder_ids)
    given = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
    }
    chosen = {**search, **{name: each for name, each in given.items() if each is not None}}
    if any(given[name] is not None for name in _DRAWS):
        chosen.setdefault("temperature", 1.0)
    if chosen.get("top_p") == 0:
        raise refused("top_p", chosen["top_p"], "a number above 0; a temperature of 0 is greedy")
    sampling = SamplingSettings(
        temperature=chosen.get("temperature", 0.0),
        top_k=int(chosen.get("top_k", 0)),
        top_p=chosen.get("top_p", 1.0),
        min_p=chosen.get("min_p", 0.0),
        repetition_penalty=chosen.get("repetition_penalty", 1.0),
        seed=int(chosen.get("seed", 0)),
    )
    length = max_new_tokens or default_tokens
    max_length = None if length else max_length
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    return GenerationSettings(
        length or MAX_NEW_TOKENS,
        sampling,
        stops,
        num_return_sequences,
        begun,
        language,
        task,
        max_length,
    )
