"""Text generation with streaming output and timing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...generation.generator import Generator
from ...generation.prompts import Prompt
from ...generation.result import Generation
from ...runtime.errors import FileError, UsageError
from ...runtime.ir.types import Array
from ..common.archives import read_npy
from ..common.console import Say, counted, silent
from ..common.deadline import time_limit
from ..common.imports import clocked


@dataclass(frozen=True, slots=True)
class Asked:
    """The input of a generation; exactly one field is set.

    Attributes:
        prompt: texts, or the messages of a conversation.
        ids: token ids of each prompt.
        features: an .npy file with encoder input for audio or images.
        audio: a WAV file.
    """

    prompt: Prompt | None = None
    ids: Sequence[Sequence[int]] | None = None
    features: Path | None = None
    audio: Path | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a generation.

    Attributes:
        model: the decoder's file.
        backend: the backend and device.
        generation: the generated sequences with timing.
        load: seconds to load.
        difference: with `twice`, the first difference between both runs; empty if there is none.
            None without.
        stopped: why the result is incomplete; empty if it is complete.
    """

    model: str
    backend: str
    generation: Generation
    load: float
    difference: str | None = None
    stopped: str = ""

    @property
    def ok(self) -> bool:
        """Whether two runs gave equal tokens."""
        return not self.difference

    @property
    def summary(self) -> str:
        """Tokens and times on one line."""
        found = self.generation
        count = sum(map(len, found.prompts))
        read = counted(count, "token") if count else "features"
        rate = found.tokens_per_second
        return (
            f"{read} in the prompt, {found.tokens} generated in {found.seconds:.3g} s: first token "
            f"after {found.first_token:.3g} s" + (f", then {rate:.3g} tokens/s" if rate else "")
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything, times in milliseconds, for JSON."""
        return {
            "model": self.model,
            "backend": self.backend,
            "ok": self.ok,
            "load_ms": self.load * 1e3,
            **self.generation.to_dict(),
            "difference": self.difference,
            "stopped": self.stopped,
        }


def write(
    folder: Path,
    asked: Asked,
    how: Mapping[str, Any],
    *,
    cache: Path | None = None,
    twice: bool = False,
    timeout: float | None = None,
    say: Say = silent,
    give: Callable[[str], object] | None = None,
    **options: Any,
) -> Written:
    """Generate text or token ids.

    Args:
        folder: the decoder's folder or file.
        asked: the input.
        how: settings; see `Generator.generate`.
        cache: prompt cache file: read if it exists, then written.
        twice: generate everything again with empty caches, and compare tokens.
        timeout: time limit in seconds, after which partial results are returned; None for no limit.
        say: called with a description of each stage.
        give: called with text or ids as they are generated; several sequences are passed on at the
            end.
        **options: see `Generator`.

    Raises:
        TimeLimitError: the time limit passed before the first token.
        TercetError: see `Generator`.
    """
    written: Generation | None = None
    difference: str | None = None
    with time_limit(timeout, say) as (limit, tell):
        tell("loading")
        opening = partial(Generator, folder, reuse=cache is not None, **options)
        opened, loaded = clocked(opening)
        with opened as generator:
            title = str(generator.folder.model)
            device = f"{generator.model.backend} on {generator.model.device}"
            if cache is not None and cache.exists():
                generator.restore(cache)
            tell("reading the prompt")
            try:
                for piece in _pieces(generator, asked, how):
                    if give is not None:
                        give(piece)
            finally:
                with suppress(UsageError):  # the time limit passed before the first token
                    written = generator.last
            if cache is not None and generator.ids:
                generator.save(cache)
            if twice and written is not None:
                tell("generating again")
                generator.rewind(0)
                for _ in _pieces(generator, asked, how):
                    pass
                difference = _difference(written, generator.last)
    if written is None:
        raise limit.error()
    return Written(title, device, written, loaded, difference, limit.stopped)


def _pieces(generator: Generator, asked: Asked, how: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to show: one sequence piece by piece, several one after the other."""
    several = how.get("num_return_sequences", 1) > 1
    if asked.features is not None or asked.audio is not None:
        yield from _of_features(generator, asked, how, several=several)
        return
    if asked.ids is not None:
        one = {name: value for name, value in how.items() if name != "num_return_sequences"}
        if len(asked.ids) == 1 and not several:
            for number, token in enumerate(generator.stream_ids(asked.ids[0], **one)):
                yield f"{' ' if number else ''}{token}"
        else:
            found = generator.generate_ids(asked.ids, **how)
            yield "\n".join(" ".join(map(str, row)) for row in found.ids)
        return
    if asked.prompt is None:
        raise UsageError("there is nothing to continue: give --prompt or --ids")
    is_one = isinstance(asked.prompt, str) or isinstance(asked.prompt[0], Mapping)
    if is_one and not several:
        one = {name: value for name, value in how.items() if name != "num_return_sequences"}
        yield from generator.stream(asked.prompt, **one)
        return
    yield "\n\n".join(generator.generate(asked.prompt, **how).texts)


def _of_features(
    generator: Generator, asked: Asked, how: Mapping[str, Any], *, several: bool
) -> Iterator[str]:
    """Yield what is generated from features: one sequence piece by piece, several at the end."""
    if asked.audio is not None:
        features = generator.audio_features(asked.audio)
    else:
        features = _read_features(asked.features)
    rank = len(generator.features.shape or ()) if generator.features is not None else features.ndim
    if not several and (features.ndim < rank or len(features) == 1):
        one = {name: value for name, value in how.items() if name != "num_return_sequences"}
        yield from generator.stream_features(features, **one)
        return
    found = generator.generate_features(features, **how)
    yield "\n\n".join(
        " ".join(map(str, each.ids)) if each.text is None else each.text
        for each in found.continuations
    )


def _read_features(file: Path | None) -> Array:
    assert file is not None
    try:
        (found,) = read_npy(file).values()
    except OSError as error:
        raise FileError(error.errno, error.strerror, str(file)) from error
    return found


def _difference(first: Generation, second: Generation) -> str:
    """Return where two runs differ; empty if they do not."""
    for row, (one, other) in enumerate(zip(first.ids, second.ids, strict=True)):
        if one != other:
            at = next(
                (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)),
            )
            return f"sequence {row}: token {at} is not the same in the second run"
    return ""
