"""Combines a decoder, its caches and its encoder with the generation loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

from ..runtime.base.closable import Closable
from ..runtime.base.guard import planning
from ..runtime.errors import InputError
from ..runtime.session.decoding import Decoder
from ..runtime.session.encoded_decoder import EncodedDecoder
from .beginning import beginnings
from .folder import ModelFolder
from .loading import Models
from .loop import BatchRow, GenerationLoop, Progress
from .prompts import Prompts
from .settings import GenerationSettings


class Writer(Closable):
    """Continues prompts with the models of a folder.

    Args:
        models: closed together with it.
        capacity: see `Generator`.
        chunk: prompt tokens per prefill step; None for all at once.
        reuse: see `Generator`.

    Attributes:
        models: the same.
        capacity: the same.
        held: the tokens that the caches of a single sequence hold.
        progress: the result so far.
    """

    def __init__(
        self, models: Models, capacity: int | None, chunk: int | None, *, reuse: bool
    ) -> None:
        self.models, self.capacity = models, capacity
        self._chunk, self._reuse = chunk, reuse
        self._decoder: Decoder | None = None
        self.held: list[int] = []
        self.progress: Progress | None = None

    def close(self) -> None:
        """Release the caches and close the models."""
        self._forget()
        self.models.close()

    def _forget(self) -> None:
        if self._decoder is not None:
            self._decoder.close()
        self._decoder, self.held = None, []

    def opened(self, batch: int) -> Decoder:
        """Return a decoder for this many sequences; one that is open is reused."""
        if self._decoder is None or self._decoder.batch != batch:
            self._forget()
            with planning(f"a batch of {batch}"):
                self._decoder = self.models.open(batch, self.capacity)
        return self._decoder

    def rewind(self, length: int) -> int:
        """Truncate the caches to their first tokens; see `Generator.rewind`."""
        kept = 0 if self._decoder is None else self._decoder.rewind(length)
        del self.held[kept:]
        return kept

    def run(
        self, prompts: Prompts, chosen: GenerationSettings, folder: ModelFolder, ends: Sequence[int]
    ) -> Iterator[list[str]]:
        """Yield the text that each step adds to each sequence.

        Args:
            prompts: what is continued, or read by the encoder.
            chosen: the settings.
            folder: provides forbidden tokens.
            ends: end-of-text tokens.
        """
        start = perf_counter()
        decoder = self.opened(prompts.count * chosen.count)
        owners = [number for number in range(prompts.count) for _ in range(chosen.count)]
        reused = self._reused(decoder, prompts.ids[0])
        seen = [prompts.ids[owner] for owner in owners]
        if isinstance(decoder, EncodedDecoder):
            seen = self._begun(decoder, prompts, owners, chosen, folder)
        limit = chosen.limit(max(map(len, seen)))
        if limit < 1 and (says := folder.max_length) is not None:
            raise InputError(
                f"the prompt has {max(map(len, seen))} tokens, and with {says.size} the text ends "
                f"({says.config.path}: {says.field}); max_new_tokens overrides that"
            )
        rows = [
            BatchRow(owner, list(ids), prompts.stream(owner, chosen.stops))
            for owner, ids in zip(owners, seen, strict=True)
        ]
        self.progress = Progress(prompts, rows, reused)
        is_encoded = self.models.encoder is not None
        loop = GenerationLoop(
            decoder,
            rows,
            chosen.sampling,
            frozenset(ends),
            limit,
            self.models.pad(ends),
            None if is_encoded else self._chunk,
            folder.bans,
            None if folder.last is None else folder.last.token,
            (lambda tokens: None) if is_encoded else self.held.extend,
        )
        for pieces in loop:
            self.progress.tick(perf_counter() - start)
            yield pieces

    def _begun(
        self,
        decoder: EncodedDecoder,
        prompts: Prompts,
        owners: Sequence[int],
        chosen: GenerationSettings,
        folder: ModelFolder,
    ) -> list[list[int]]:
        """Run the encoder; return the tokens that the decoder starts with, by sequence."""
        encoder, start = self.models.encoder, folder.start
        assert encoder is not None
        assert start is not None
        limit = self.models.vocabulary
        if limit is not None and (most := max(chosen.decoder_ids or (0,))) >= limit:
            raise InputError(f"decoder_ids has the token {most}; {folder.model} knows {limit}")
        if prompts.features is not None:
            encoded = encoder.read_features(prompts.features)
        else:
            encoded = encoder.read_ids(prompts.ids)
        decoder.begin(encoded.repeated(owners))
        begun = beginnings(decoder, start, chosen)
        if self.capacity is not None and len(begun[0]) > self.capacity:
            raise InputError(
                f"the decoder begins with {len(begun[0])} tokens; its caches have room for "
                f"{self.capacity}"
            )
        return begun

    def _reused(self, decoder: Decoder, prompt: Sequence[int]) -> int:
        """Return how many prompt tokens the caches hold, and truncate the caches to them."""
        same = 0
        if self._reuse and decoder.batch == 1:
            for old, new in zip(self.held, prompt[:-1], strict=False):
                if old != new:
                    break
                same += 1
        return self.rewind(same)
