"""The start tokens of an encoder-decoder's decoder: start token, language and task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ..runtime.base.arguments import shown
from ..runtime.errors import UsageError, did_you_mean
from .config_file import ConfigFile, StatedToken

#: The default task of speech models.
TASK = "transcribe"


@dataclass(frozen=True, slots=True)
class Start:
    """The tokens that precede what a decoder generates.

    Attributes:
        ids: the first tokens: ``decoder_start_token_id`` and ``forced_bos_token_id``.
        languages: language tokens by name, for models that take one.
        tasks: task tokens by name, for models that take one.
        last: the tokens after language and task, such as "no timestamps".
        config: the configuration that states them, for errors.
        stated: all of these tokens, with their fields.
    """

    ids: tuple[int, ...]
    languages: Mapping[str, int] = field(default_factory=dict[str, int])
    tasks: Mapping[str, int] = field(default_factory=dict[str, int])
    last: tuple[int, ...] = ()
    config: ConfigFile | None = None
    stated: tuple[StatedToken, ...] = ()

    @classmethod
    def of(cls, says: ConfigFile, config: ConfigFile, nested: str) -> Start:
        """Read the start tokens from configurations.

        Args:
            says: the generation configuration.
            config: the model's configuration.
            nested: prefix of the decoder's fields in it.

        Raises:
            ModelError: there is no start token, or a field is malformed; the message names it.
        """
        name = "decoder_start_token_id"
        places = [(says, name), (config, name), (config, f"{nested}{name}")]
        places += [(says, "bos_token_id"), (config, f"{nested}bos_token_id")]
        stated = [
            StatedToken(file, at, found)
            for file, at in places
            if (found := file.token(at)) is not None
        ][:1]
        if not stated:
            raise says.error(name, "is not there; the decoder begins with it")
        by_name = {each: _by_name(says, each) for each in ("lang_to_id", "task_to_id")}
        languages, tasks = by_name.values()
        if not languages:
            forced = says.token("forced_bos_token_id")
            stated += [] if forced is None else [StatedToken(says, "forced_bos_token_id", forced)]
            stated += _forced(says, len(stated))
        ids = tuple(each.token for each in stated)
        for field_name, tokens in by_name.items():
            stated += [StatedToken(says, field_name, token) for token in tokens.values()]
        silent = says.token("no_timestamps_token_id")
        last = () if silent is None or silent in ids else (silent,)
        stated += [StatedToken(says, "no_timestamps_token_id", token) for token in last]
        return cls(ids, languages, tasks, last, says, tuple(stated))

    def tokens(
        self, language: str | None, task: str | None, detect: Callable[[Sequence[int]], list[int]]
    ) -> list[list[int]]:
        """Return the start tokens of each sequence.

        Args:
            language: a key of `languages`, such as ``en``; None to detect it.
            task: a key of `tasks`.
            detect: returns the most likely of these tokens for each sequence.

        Raises:
            UsageError: the model has no such language or task, or none at all.
        """
        if language is not None:
            spoken = [self._one("language", language, self.languages)]
        else:
            spoken = detect(sorted(self.languages.values())) if self.languages else []
        doing: list[int] = []
        if task is not None or self.tasks:
            doing = [self._one("task", task or TASK, self.tasks)]
        rows = [[each] for each in spoken] or [[]]
        return [[*self.ids, *row, *doing, *self.last] for row in rows]

    def _one(self, kind: str, name: str, known: Mapping[str, int]) -> int:
        if name in known:
            return known[name]
        where = "" if self.config is None else f" ({self.config.path})"
        if not known:
            raise UsageError(f"{kind}={shown(name)}: the model takes none{where}")
        hint = did_you_mean(name, known) or f" (known: {', '.join(sorted(known))})"
        raise UsageError(f"{kind}={shown(name)}: the model has no such {kind}{where}{hint}")


def _by_name(config: ConfigFile, name: str) -> dict[str, int]:
    """Return tokens by bare name: ``<|en|>`` becomes ``en``."""
    found = config.get(name)
    if found is None:
        return {}
    pairs = cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}
    if not pairs or not all(type(token) is int and token >= 0 for token in pairs.values()):
        raise config.error(name, f"{shown(found)}: expected tokens (whole numbers) by name")
    return {key.strip("<|>"): token for key, token in pairs.items()}


def _forced(config: ConfigFile, place: int) -> list[StatedToken]:
    """Return the tokens forced from a position onwards."""
    name = "forced_decoder_ids"
    found = config.get(name)
    pairs = cast("Sequence[Any]", found) if isinstance(found, list) else []
    forced: dict[int, int] = {}
    for pair in pairs if found is not None else ():
        row = cast("Sequence[Any]", pair) if isinstance(pair, list) else ()
        if len(row) != 2 or type(row[0]) is not int or type(row[1]) not in (int, type(None)):
            raise config.error(name, f"{shown(found)}: expected pairs of a place and a token")
        if row[1] is not None:
            forced[row[0]] = row[1]
    tokens: list[StatedToken] = []
    while place in forced:
        tokens.append(StatedToken(config, name, forced[place]))
        place += 1
    return tokens
