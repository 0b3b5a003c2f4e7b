"""What writes: a decoder with its caches, what its encoder reads, and the loop over both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

from ..runtime.base.closable import Closable
from ..runtime.errors import InputError
from ..runtime.session.decoding import Decoder
from ..runtime.session.encoded_decoder import EncodedDecoder
from .beginning import beginnings
from .folder import Folder
from .loading import Models
from .loop import Loop, Progress, Row
from .prompts import Prompts
from .settings import Settings


class Writer(Closable):
    """Continues prompts with the models of a folder.

    Args:
        models: are closed with it.
        capacity: see `Generator`.
        chunk: number of tokens of a prompt that are read at a time; None for all at once.
        reuse: see `Generator`.

    Attributes:
        models: the same.
        capacity: the same.
        held: the tokens that the caches hold, of one sequence.
        progress: what there is so far of what is written.
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
        """Give back the caches and the models."""
        self._forget()
        self.models.close()

    def _forget(self) -> None:
        if self._decoder is not None:
            self._decoder.close()
        self._decoder, self.held = None, []

    def opened(self, batch: int) -> Decoder:
        """Return the decoder for so many sequences, with what it has read if they are as many."""
        if self._decoder is None or self._decoder.batch != batch:
            self._forget()
            self._decoder = self.models.open(batch, self.capacity)
        return self._decoder

    def rewind(self, length: int) -> int:
        """Forget all tokens but the first ones; see `Generator.rewind`."""
        kept = 0 if self._decoder is None else self._decoder.rewind(length)
        del self.held[kept:]
        return kept

    def run(
        self, prompts: Prompts, chosen: Settings, folder: Folder, ends: Sequence[int]
    ) -> Iterator[list[str]]:
        """Yield the text that every step adds to each sequence.

        Args:
            prompts: what is continued, or read by the encoder.
            chosen: how.
            folder: says what fills up shorter sequences, and which tokens may not come.
            ends: tokens that end a text.
        """
        start = perf_counter()
        owners = [number for number in range(prompts.count) for _ in range(chosen.count)]
        decoder = self.opened(len(owners))
        reused = self._reused(decoder, prompts.ids[0])
        seen = [prompts.ids[owner] for owner in owners]
        if isinstance(decoder, EncodedDecoder):
            seen = self._begun(decoder, prompts, owners, chosen, folder)
        draws = chosen.sampling.generators(len(owners))
        rows = [
            Row(owner, list(ids), draw, prompts.stream(owner, chosen.stops))
            for owner, ids, draw in zip(owners, seen, draws, strict=True)
        ]
        self.progress = Progress(prompts, rows, reused)
        is_encoded = self.models.encoder is not None
        loop = Loop(
            decoder,
            rows,
            chosen.sampling,
            frozenset(ends),
            chosen.max_new_tokens,
            folder.pad if folder.pad is not None else min(ends, default=0),
            None if is_encoded else self._chunk,
            folder.bans,
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
        chosen: Settings,
        folder: Folder,
    ) -> list[list[int]]:
        """Let the encoder read the prompts; return what the decoder begins with, by sequence."""
        encoder, start = self.models.encoder, folder.start
        assert encoder is not None
        assert start is not None
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
        """Return how many tokens of the prompt are read already, and forget the others."""
        same = 0
        if self._reuse and decoder.batch == 1:
            for old, new in zip(self.held, prompt[:-1], strict=False):
                if old != new:
                    break
                same += 1
        return self.rewind(same)
