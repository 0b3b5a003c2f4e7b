"""`Generator`: generates text or token ids with exported decoders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from .. import api
from ..arguments import public
from ..runtime.base import arguments as rules
from ..runtime.base.arguments import unfit
from ..runtime.base.closable import CheckedClosable
from ..runtime.base.warned import warn
from ..runtime.errors import InputError, ModelWarning, UsageError
from ..runtime.ir.types import Array
from ..runtime.options import Precision
from ..runtime.session.cache_layout import DecoderLayout
from ..runtime.session.io_types import TensorInfo
from ..runtime.session.model import Model
from . import settings
from .cache_file import mark_of, read_caches, write_caches
from .folder import ModelFolder, read_folder
from .loading import Models
from .prompts import Ids, Prompt, Prompts, read_features, read_ids, read_texts
from .result import Generation
from .settings import GenerationSettings
from .sound import features_of_wav
from .tokens import FolderTokenizer
from .writer import Writer

#: Prompt tokens per prefill step; the step computes logits over the vocabulary for each of them.
PREFILL_CHUNK = 1024

RULES = {
    "folder": rules.path,
    "variant": rules.optional(rules.word("the name of a variant, such as 'q4'")),
    "capacity": rules.optional(rules.whole(1)),
    "prefill_chunk": rules.optional(rules.whole(1)),
    "reuse": rules.flag,
    "pairs": rules.optional(rules.mapping("outputs by input", value=rules.text)),
}


@rules.checked_methods
class Generator(CheckedClosable):
    """Generates text, or token ids, with a decoder and its tokenizer.

    Decoder-only models such as Llama continue a prompt. Encoder-decoders transform what the encoder
    reads: text (T5, Marian), speech (Whisper) or an image.

    The folder is one written by onnxruntime-genai's builder, optimum or transformers.js; for an
    ``.onnx`` file, the configuration is looked up in its folder. Text needs the extra
    ``tercet[generate]``; token ids do not.

    Not thread-safe. Use it as a context manager, or call `close`.

    Args:
        folder: the configuration that was read.
        backend: see `tercet.load`.
        variant: which of several models: a file name, or the suffix its exporter added, such as
            ``q4`` for ``model_q4.onnx``.
        capacity: maximum number of tokens of a prompt and its continuation; None for the value in
            the configuration.
        prefill_chunk: number of prompt tokens per prefill step, which bounds the memory that long
            prompts take; None for all at once.
        reuse: keep the caches of one sequence, and skip the part of the next prompt that they
            already hold. Splitting a prompt differently changes rounding, so tokens may differ from
            those of a prompt read as a whole; see `rewind`.
        pairs: cache outputs by the inputs that receive them in the next step, where their names do
            not match as past and present do.
        fallback: see `tercet.load`.
        precision: see `tercet.load`.
        whole_caches: let the decoder keep all positions in caches that are as long as a sliding
            window in the file, where the file leaves that open. If false, such caches are those
            of the file, whose rows move in every step, and cannot be rewound.
        **options: further fields of `Options`.

    Attributes:
        folder: what was read there.
        model: the loaded decoder.
        layout: its inputs and outputs.

    Raises:
        FileError, UsageError: no such folder, file or variant.
        ModelError: a configuration or a model that does not fit; the message names file and field.
        UnsupportedError: a pipeline of several models; or see `tercet.load`.
    """

    @public(**RULES)
    def __init__(
        self,
        folder: str | os.PathLike[str],
        backend: str | Sequence[str] = "numpy",
        *,
        variant: str | None = None,
        capacity: int | None = None,
        prefill_chunk: int | None = PREFILL_CHUNK,
        reuse: bool = False,
        pairs: Mapping[str, str] | None = None,
        fallback: str | Sequence[str] | None = None,
        precision: Precision = "float32",
        whole_caches: bool = True,
        **options: Any,
    ) -> None:
        self.folder: ModelFolder = read_folder(folder, variant)
        self._reuse, self._is_closed = reuse, False
        self._tokenizer: FolderTokenizer | None = None
        if reuse and self.folder.encoder is not None:
            reason = (
                f"caches belong to what {self.folder.encoder} has read; it is for decoders that "
                "continue a prompt"
            )
            raise unfit(UsageError, "reuse", reason, reuse)
        options |= {"backend": backend, "fallback": fallback, "precision": precision}
        load = partial(api.load, **options)
        models = Models(self.folder, pairs or {}, load, whole_caches=whole_caches)
        self.model: Model = models.model
        self.layout: DecoderLayout = models.layout
        self._encoder = models.encoder
        for text in (*self.folder.warnings, *models.warnings):
            warn(text, ModelWarning)
        context = None if self.folder.context is None else self.folder.context.size
        known = [each for each in (context, self.layout.room) if each is not None]
        self._writer = Writer(
            models, capacity or min(known, default=None), prefill_chunk, reuse=reuse
        )
        try:
            self._writer.opened(1)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        closed = ", closed" if self._is_closed else ""
        return f"<tercet.Generator {self.folder.model} on {self.model.backend}{closed}>"

    # ── texts ────────────────────────────────────────────────────────────────────────────────

    def generate(self, prompt: Prompt, **how: Any) -> Generation:
        """Continue a text, several texts, or a conversation.

        Args:
            prompt: a text, a list of texts generated as one batch, or the messages of one
                conversation, ``[{"role": "user", "content": "…"}]``, formatted by the folder's chat
                template.
            **how: settings; omitted ones are taken from the folder:

                - max_new_tokens: maximum per sequence; by default until the folder's `max_length`,
                  if that is less than the model's context, or else 128.
                - stop: one or several strings; the text ends before the first occurrence.
                - num_return_sequences: number of continuations per prompt.
                - temperature: divides the logits; 0 for greedy decoding.
                - top_k, top_p, min_p: see `SamplingSettings`; they imply temperature=1.
                - repetition_penalty: see `SamplingSettings`.
                - seed: seed of the sampler; equal seeds give equal tokens.
                - decoder_ids, language, task: see `generate_features`.

        Raises:
            InputError: a prompt is empty, or longer than the caches.
            ModelError: the folder has no tokenizer or no chat template, or the logits contain NaN.
            UnsupportedError: the libraries for text are not installed.
            UsageError: an argument is invalid.
        """
        prompts, chosen = self._texts(prompt, how)
        for _ in self._run(prompts, chosen):
            pass
        return self.last

    def stream(self, prompt: Prompt, **how: Any) -> Iterator[str]:
        """Continue one text and yield it piece by piece; `last` holds the complete result.

        No piece ends inside a character, or inside a possible stop string. The caller may leave the
        loop at any time.

        Args:
            prompt: a text, or the messages of a conversation.
            **how: as for `generate`, except num_return_sequences.

        Raises:
            UsageError: several texts are asked for; further errors are those of `generate`.
        """
        prompts, chosen = self._texts(prompt, how)
        if prompts.count > 1 or chosen.count > 1:
            raise UsageError("one text is streamed at a time; generate takes several")
        return (piece for (piece,) in self._run(prompts, chosen) if piece)

    # ── audio and images ─────────────────────────────────────────────────────────────────────

    def generate_features(self, features: Any, **how: Any) -> Generation:
        """Generate text from audio features or an image.

        Args:
            features: input of the encoder as the model's preprocessor returns it, float [batch, …]:
                Whisper's ``input_features``, ``pixel_values``; see `audio_features`. Without a
                batch axis, one sample.
            **how: as for `generate`, and:

                - decoder_ids: the tokens that the decoder starts with, instead of those of the
                  folder.
                - language: the spoken language, such as ``en``; detected if not given.
                - task: ``transcribe`` (the default) or ``translate``.

        Returns:
            The generated sequences, with texts if the folder has a tokenizer.

        Raises:
            InputError: the shape of the features does not fit.
            UsageError: the model takes text, or has no such language or task.
        """
        prompts, chosen = self._features(features, how)
        for _ in self._run(prompts, chosen):
            pass
        return self.last

    def stream_features(self, features: Any, **how: Any) -> Iterator[str]:
        """Generate text from audio features or an image, and yield it piece by piece.

        Args:
            features: as for `generate_features`.
            **how: as for `generate_features`, except num_return_sequences.

        Raises:
            UsageError: several texts are asked for; further errors are those of
                `generate_features`.
        """
        prompts, chosen = self._features(features, how)
        if prompts.count > 1 or chosen.count > 1:
            raise UsageError("one text is streamed at a time; generate_features takes several")
        if prompts.tokenizer is None:
            return (f"{token} " for token in self._tokens(prompts, chosen))
        return (piece for (piece,) in self._run(prompts, chosen) if piece)

    @property
    def features(self) -> TensorInfo | None:
        """The encoder input that `generate_features` takes; None for models that take text."""
        return None if self._encoder is None else self._encoder.features

    @public(file=rules.path)
    def audio_features(self, file: str | os.PathLike[str]) -> Array:
        """Compute the features of a WAV file as the folder's configuration specifies.

        Args:
            file: a WAV file of 8, 16, 24 or 32 bits, at the model's sampling rate.

        Returns:
            float32: a log-mel spectrogram [1, bands, frames], or [1, samples] for a
            model that takes raw samples.

        Raises:
            FileError, InputError: the file is missing, or its format, rate or length is
                unsupported.
            ModelError: the folder does not specify the features.
            UsageError: the model takes text.
        """
        if self.features is None:
            raise UsageError(f"{self.folder.path}: the model takes text, not audio")
        return features_of_wav(Path(file), self.folder)

    # ── token ids ────────────────────────────────────────────────────────────────────────────

    def generate_ids(self, ids: Ids, **how: Any) -> Generation:
        """Continue token ids; needs no tokenizer.

        Args:
            ids: token ids of one prompt, or a list of them per prompt.
            **how: as for `generate`, except stop.

        Raises:
            InputError: a prompt is empty, longer than the caches, or has an unknown id.
            ModelError: the logits contain NaN.
            UsageError: an argument is invalid.
        """
        prompts, chosen = self._ids(ids, how)
        for _ in self._run(prompts, chosen):
            pass
        return self.last

    def stream_ids(self, ids: Sequence[int], **how: Any) -> Iterator[int]:
        """Continue the token ids of one prompt and yield each new id.

        Args:
            ids: token ids of the prompt.
            **how: as for `generate_ids`, except num_return_sequences.

        Raises:
            UsageError: several sequences are asked for; further errors are those of `generate_ids`.
        """
        prompts, chosen = self._ids(ids, how)
        if prompts.count > 1 or chosen.count > 1:
            raise UsageError("one sequence is streamed at a time; generate_ids takes several")
        return self._tokens(prompts, chosen)

    def _tokens(self, prompts: Prompts, chosen: GenerationSettings) -> Iterator[int]:
        given = 0
        for _ in self._run(prompts, chosen):
            progress = self._writer.progress
            new = progress.rows[0].new if progress is not None else []
            yield from new[given:]
            given = len(new)

    # ── caches ───────────────────────────────────────────────────────────────────────────────

    @property
    def tokenizer(self) -> FolderTokenizer:
        """The folder's tokenizer, with `encode`, `decode` and `chat`."""
        if self._tokenizer is None:
            self._tokenizer = FolderTokenizer(self.folder)
        return self._tokenizer

    @property
    def last(self) -> Generation:
        """The last result; after an abandoned stream, the part that was generated.

        Raises:
            UsageError: nothing has been generated yet.
        """
        progress = self._writer.progress
        if progress is None or not progress.seconds:
            raise UsageError("nothing has been generated yet")
        return progress.generation

    @property
    def ids(self) -> list[int]:
        """The tokens held by the caches of a single sequence; excludes the last generated token."""
        return list(self._writer.held)

    @property
    def capacity(self) -> int | None:
        """Maximum number of tokens of a prompt and its continuation; None if unlimited."""
        return self._writer.capacity

    @public(length=rules.whole(0))
    def rewind(self, length: int) -> int:
        """Truncate the caches to their first tokens, so that the next prompt continues from there.

        This needs `reuse`; without it, every prompt is read from its beginning.

        Args:
            length: number of tokens to keep, at most the length of `ids`.

        Returns:
            The number of tokens kept: 0 if the model's caches (sliding windows, states) cannot be
            truncated; the next prompt is then read in full.

        Raises:
            UsageError: the caches hold fewer tokens.
        """
        held = self._writer.held
        if length > len(held):
            raise UsageError(f"length={length}: the caches hold {len(held)} tokens")
        return self._writer.rewind(length)

    @public(file=rules.path)
    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the caches to a file for `restore` in another process.

        Args:
            file: an .npz file, as large as the caches.

        Raises:
            UsageError: the caches are empty, or hold more than one sequence.
            FileError: it cannot be written.
        """
        held = self._writer.held
        if not held:
            raise UsageError("the caches hold no tokens of one sequence; generate first")
        write_caches(Path(file), self._mark, held, self._writer.opened(1).caches())

    @public(file=rules.path)
    def restore(self, file: str | os.PathLike[str]) -> int:
        """Load caches written by `save`, so that prompts that start with their tokens skip them.

        Args:
            file: a file written with the same model, on any backend.

        Returns:
            The number of tokens.

        Raises:
            UsageError: the generator was made without `reuse`.
            ModelError: it is not a cache file, or was written with another model.
            InputError: it holds more tokens than the capacity.
        """
        if not self._reuse:
            raise UsageError("restore is for a generator that was made with reuse=True")
        ids, caches = read_caches(Path(file), self._mark, self.layout)
        try:
            self._writer.opened(1).restore(ids, caches)
        except InputError as error:
            raise InputError(f"{file}: {error}") from error
        self._writer.held[:] = ids[0].tolist()
        return len(self._writer.held)

    @cached_property
    def _mark(self) -> str:
        return mark_of(self.model.imported)

    def check_open(self) -> None:
        """Raise UsageError if it is closed."""
        if self._is_closed:
            raise UsageError("the generator is closed")

    def close(self) -> None:
        """Release the caches and the model."""
        self._is_closed = True
        if hasattr(self, "_writer"):
            self._writer.close()
            if self._tokenizer is not None:
                self._tokenizer.close()

    # ── the work ─────────────────────────────────────────────────────────────────────────────

    def _texts(self, prompt: Prompt, how: Mapping[str, Any]) -> tuple[Prompts, GenerationSettings]:
        chosen = self._settings(how)
        prompts = read_texts(prompt, self.tokenizer)
        if self._encoder is not None:
            prompts = replace(prompts, is_answered=True)
        prompts.check(self.folder, self.layout, self.capacity)
        return prompts, chosen

    def _features(
        self, features: Any, how: Mapping[str, Any]
    ) -> tuple[Prompts, GenerationSettings]:
        chosen = self._settings(how)
        if self._encoder is None:
            raise UsageError(f"{self.folder.model} continues token ids; it reads no features")
        tokenizer = None if self.folder.tokenizer is None else self.tokenizer
        if chosen.stops and tokenizer is None:
            reason = "strings are found in texts; the folder has no tokenizer.json"
            raise unfit(UsageError, "stop", reason)
        return read_features(features, self._encoder.features, tokenizer), chosen

    def _ids(self, ids: Ids, how: Mapping[str, Any]) -> tuple[Prompts, GenerationSettings]:
        chosen = self._settings(how)
        if chosen.stops:
            reason = "strings are found in texts, and this makes none"
            raise unfit(UsageError, "stop", reason)
        prompts = read_ids(ids)
        prompts.check(self.folder, self.layout, self.capacity)
        return prompts, chosen

    def _settings(self, how: Mapping[str, Any]) -> GenerationSettings:
        folder, longest = self.folder, self.folder.max_length
        ends_at = None if longest is None else longest.size
        chosen = settings.generate(folder.search, folder.max_new_tokens, ends_at, **how)
        if chosen.is_begun and self.folder.start is None:
            raise UsageError(
                "decoder_ids, language and task are for encoder-decoders; this decoder begins with "
                "the prompt"
            )
        return chosen

    def _run(self, prompts: Prompts, chosen: GenerationSettings) -> Iterator[list[str]]:
        """Yield the text that each step adds to each sequence; `last` is the result so far."""
        return self._writer.run(prompts, chosen, self.folder, self._ends())

    def _ends(self) -> tuple[int, ...]:
        """Return the end-of-text tokens."""
        if self.folder.ends or self.folder.tokens is None:
            return self.folder.ends
        text = self.folder.tokens.text("eos_token")
        if text is None or self._tokenizer is None:
            return ()
        token = self._tokenizer.token(text)
        return () if token is None else (token,)
