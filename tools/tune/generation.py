"""Compilation of a decoder's steps ahead of time, for a GPU that need not be present."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...arguments import public
from ...generation import settings
from ...generation.folder import ModelFolder, read_folder
from ...generation.generator import PREFILL_CHUNK
from ...generation.generator import RULES as GENERATOR_RULES
from ...generation.loading import pairs_of
from ...runtime.base import arguments as rules
from ...runtime.errors import UnsupportedError
from ...runtime.session.cache_layout import DecoderLayout
from ...runtime.session.sampling import GREEDY, Following
from ...runtime.session.static_cache import FIRST_ROOM, StaticCaches
from ...runtime.session.step_inputs import StepInputs, Tokens
from ..common.console import Say, silent
from ..common.deadline import limited
from .compilation import Compilation, planned_on_paper

#: Steps in flight: the one whose token is awaited, and the next; see `Decoder.follow`.
_DEPTH = 2


@public(**GENERATOR_RULES, batch=rules.whole(1))
@limited
def compile_generation(
    folder: str | os.PathLike[str],
    *,
    variant: str | None = None,
    target: str | None = None,
    batch: int = 1,
    capacity: int | None = None,
    prefill_chunk: int | None = PREFILL_CHUNK,
    fallback: str | None = None,
    precision: str = "float32",
    timeout: float | None = None,
    say: Say = silent,
    **options: Any,
) -> Compilation:
    """Compile the kernels with which the cuda backend generates text, and keep them in the cache.

    They are those of prompts of all lengths up to `prefill_chunk`, read at once or in parts of
    that size, and of the steps of one token, chosen greedily and as the folder says, while the
    caches grow to `capacity`. Options must be those of the run.

    Args:
        folder: what `tercet.Generator` takes.
        variant: see `tercet.Generator`.
        target: see `tercet.compile`.
        batch: number of sequences that are generated together.
        capacity: maximum number of positions; if None, those that caches have room for at first.
        prefill_chunk: see `tercet.Generator`.
        fallback: backend for nodes that cuda declines.
        precision: compute precision of float32 tensors.
        timeout: time limit in seconds; None for no limit.
        say: called with progress messages.
        **options: further fields of `Options`.

    Raises:
        UnsupportedError: the decoder reads what another model computes, or its steps are planned
            for each length.
        BackendUnavailable, FileError, KernelError, ModelError, UsageError: see `tercet.compile` and
            `tercet.Generator`.
    """
    found = read_folder(folder, variant)
    for other in (found.encoder, found.embedding):
        if other is not None:
            raise UnsupportedError(
                f"{found.model}: it reads what {other} computes, in sizes that only a run knows",
                remedy="run the first text with the cache where it is to be; it is compiled then",
            )
    given = {"precision": precision, **options}
    with planned_on_paper(str(found.model), target, fallback, given, say) as made:
        file, pairs = made.model.source.file, pairs_of(found, made.model, {})
        layout = DecoderLayout.of(made.model.imported, file=file, pairs=pairs)
        most = capacity or min([FIRST_ROOM, *_limits(found, layout)])
        if batch > 1:  # `Generator` begins with a step for one sequence
            StaticCaches(made.model, StepInputs.of(made.model, layout, 1, most, None)).close()
        inputs = StepInputs.of(made.model, layout, batch, most, None)
        chosen = {GREEDY, settings.generate(found.search, None).sampling}
        chunk = min(prefill_chunk or most, most)
        counts = [layout.step] if layout.step else list(_counts(chunk))
        for room in _rooms(most):
            caches = StaticCaches(made.model, inputs, room)
            try:
                for count in counts if room <= FIRST_ROOM else counts[-1:]:
                    say(f"{count} tokens, of up to {room}")
                    caches.program(count)
                read, first = Tokens.dummy(batch, 0), np.zeros(batch, np.int64)
                for how in chosen:
                    caches.chained(read, first, Following(how), _DEPTH)
            finally:
                caches.close()
        return made.compilation(str(found.model))


def _limits(folder: ModelFolder, layout: DecoderLayout) -> Iterator[int]:
    """Yield the numbers of positions that the folder and the model have at most."""
    for size in (None if folder.context is None else folder.context.size, layout.room):
        if size is not None:
            yield size


def _counts(chunk: int) -> Iterator[int]:
    """Yield the numbers of tokens that prompts of up to `chunk` are extended to, in turn."""
    count = 1
    while count < chunk:
        yield count
        count *= 2
    yield chunk


def _rooms(most: int) -> Iterator[int]:
    """Yield the sizes that caches have while they grow to `most` positions."""
    room = FIRST_ROOM
    while room < most:
        yield room
        room *= 2
    yield most
