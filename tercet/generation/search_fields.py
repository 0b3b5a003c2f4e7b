"""How a folder says that tokens are chosen: fields that are read, and fields that are not.

A field that would change tokens and is not supported is named in a warning. Fields that only say
how another runtime computes (``past_present_share_buffer``, ``use_cache``, ``assistant_…``), and
those of beam search (``length_penalty``, ``early_stopping``), which apply with ``num_beams`` alone,
are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

from ..runtime.base.arguments import shown
from ..runtime.errors import UsageError, did_you_mean
from .config_file import ConfigFile
from .settings import RULES

#: What transformers takes where nothing states `top_k`.
TOP_K = 50
#: Fields that change tokens and are not supported, each with the values that change nothing.
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "penalty_alpha": (0,),
    "typical_p": (1,),
    "top_h": (),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1,),
    "sequence_bias": (),
    "stop_strings": (),
    "watermarking_config": (),
    "dola_layers": (),
    "constraints": (),
    "force_words_ids": (),
    "token_healing": (False,),
    "max_time": (),
}
#: Fields of the section ``search`` of ``genai_config.json``; any other is a mistake.
_OF_GENAI = (
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "random_seed"),
    *("min_length", "max_length", "min_new_tokens", "max_new_tokens", "no_repeat_ngram_size"),
    *("suppress_tokens", "begin_suppress_tokens", "bad_words_ids"),
    *("early_stopping", "length_penalty", "diversity_penalty"),
    *("batch_size", "chunk_size", "past_present_share_buffer"),
)


def search_of_genai(config: ConfigFile) -> dict[str, float]:
    """Return the settings in ``search`` of ``genai_config.json``; see `search_of`.

    There, a `top_p` of 0 keeps all tokens, and a negative seed stands for any.
    """
    found = search_of(config, "search.", unlimited=0)
    seed = config.get("search.random_seed")
    if seed is not None and seed != -1:
        found["seed"] = _checked(config, "search.", "random_seed", "seed")
    return found


def search_of(
    config: ConfigFile, prefix: str = "", top_k: int = 0, unlimited: float = 1
) -> dict[str, float]:
    """Return the sampling settings of a folder; penalties apply to greedy decoding, too.

    Args:
        config: states them.
        prefix: of their names.
        top_k: what applies where it does not state that one; 0 for none.
        unlimited: a value of `top_p` for all tokens, besides 1.

    Raises:
        ModelError: one is malformed or out of range, whether or not it applies.
    """
    names = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")
    stated = [name for name in names if config.get(f"{prefix}{name}") is not None]
    found: dict[str, float] = {name: _checked(config, prefix, name) for name in stated}
    if found.get("top_p") == unlimited:
        found["top_p"] = 1.0
    if found.get("top_p") == 0:
        raise config.error(f"{prefix}top_p", "0: expected a number above 0")
    if not config.flag(f"{prefix}do_sample"):
        return {name: found[name] for name in names[:1] if name in found}
    return {"temperature": 1.0, "top_k": top_k, **found}


def _checked(config: ConfigFile, prefix: str, field: str, name: str = "") -> Any:
    """Return the value of a field by the rule of the argument of this name."""
    value = config.get(f"{prefix}{field}")
    try:
        return RULES[name or field](field, value)
    except UsageError as error:
        reason = str(error).removeprefix(f"{field}=")
        raise config.error(f"{prefix}{field}", reason) from error


def unsupported(
    config: ConfigFile,
    prefix: str = "",
    more: Mapping[str, tuple[object, ...]] = MappingProxyType({}),
) -> Iterator[str]:
    """Yield a sentence with the fields that change tokens elsewhere and not here, if there are any.

    Args:
        config: states them.
        prefix: of their names.
        more: further fields, each with the values that change nothing.
    """
    found = [
        f"{prefix}{name}={shown(value)}"
        for name, neutral in {**_UNSUPPORTED, **more}.items()
        if (value := config.get(f"{prefix}{name}")) is not None
        and value not in (*neutral, [], {}, "")
    ]
    if found:
        yield f"{config.path}: settings that tercet does not support: {', '.join(found)}"


def misspelt(config: ConfigFile) -> Iterator[str]:
    """Yield a sentence for each unknown field in ``search`` of ``genai_config.json``."""
    known = (*_OF_GENAI, *_UNSUPPORTED)
    for name in cast("Mapping[str, Any]", config.get("search") or {}):
        if name not in known:
            yield f"{config.path}: search.{name}: no such setting{did_you_mean(name, known)}"


def infeasible(config: ConfigFile, prefix: str = "") -> Iterator[str]:
    """Yield a sentence if a text ends before its minimum length."""
    for least, most in (("min_length", "max_length"), ("min_new_tokens", "max_new_tokens")):
        low, high = config.whole(f"{prefix}{least}"), config.whole(f"{prefix}{most}")
        if low and high and low > high:
            yield f"{config.path}: {prefix}{least}: {low}, but {most} is {high}"
