"""`Generator`: text, or token ids, from the decoders that people have."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..arguments import public
from ..runtime.base import arguments as rules
from ..runtime.base.closable import Closable
from ..runtime.errors import InputError, UsageError
from ..runtime.ir.types import Array
from ..runtime.options import Precision
from ..runtime.session.cache_layout import DecoderLayout
from ..runtime.session.io_types import TensorInfo
from ..runtime.session.model import Model
from . import settings
from .cache_file import mark_of, read_caches, write_caches
from .folder import Folder, read_folder
from .loading import Models
from .prompts import Ids, Prompt, Prompts, read_features, read_ids, read_texts
from .result import Generation
from .settings import Settings
from .sound import features_of_wav
from .tokens import Tokenizer
from .writer import Writer

#: Tokens of a prompt that are read at a time: each of them has as many scores as there are tokens.
PREFILL_CHUNK = 1024

_RULES = {
    "folder": rules.path,
    "variant": rules.optional(rules.word("the name of a variant, such as 'q4'")),
    "capacity": rules.optional(rules.whole(1)),
    "prefill_chunk": rules.optional(rules.whole(1)),
    "reuse": rules.flag,
    "pairs": rules.optional(rules.mapping("outputs by input", value=rules.text)),
}


@rules.checked_methods
class Generator(Closable):
    """Generates text, or token ids, with a decoder and its tokenizer.

    The decoder continues a prompt, as Llama does; or it writes what it makes of what an encoder has
    read: a text (T5, Marian), sound (Whisper) or a picture.

    The folder is one that onnxruntime-genai's builder, optimum or transformers.js wrote; or it is
    an ``.onnx`` file, whose folder is looked at for the rest. Texts need the extra
    ``tercet[generate]``; token ids do not.

    One thread may use it at a time. Use it as a context manager, or call `close`.

    Args:
        folder: the path of either.
        backend: see `tercet.load`.
        variant: which of several models: the name of its file, or what its exporter has added to
            it, such as ``q4`` for ``model_q4.onnx``.
        capacity: maximum number of tokens of a prompt and what follows; what the configuration
            says if None.
        prefill_chunk: number of tokens of a prompt that are read at a time, so that long ones take
            less memory; None for all at once.
        reuse: do not read again what the caches of one sequence hold already, where the next prompt
            begins with it. What is read in other parts is rounded otherwise, and tokens may differ
            from those of a prompt that is read as a whole; see `rewind`.
        pairs: names of outputs by those of the inputs into which they go in the next step, where
            they are not alike but for past and present.
        fallback: see `tercet.load`.
        precision: see `tercet.load`.
        **options: further fields of `Options`.

    Attributes:
        folder: what was read there.
        model: the decoder's.
        layout: what it takes and gives.

    Raises:
        FileError, UsageError: no such folder, file or variant.
        ModelError: a configuration or a model that does not fit; names file and field.
        UnsupportedError: a pipeline of several models; or what `tercet.load` says.
    """

    @public(**_RULES)
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
        **options: Any,
    ) -> None:
        self.folder: Folder = read_folder(folder, variant)
        self._reuse = reuse
        self._tokenizer: Tokenizer | None = None
        if reuse and self.folder.encoder is not None:
            raise UsageError(
                f"reuse=True: caches belong to what {self.folder.encoder} has read; it is for "
                "decoders that continue a prompt"
            )
        options |= {"backend": backend, "fallback": fallback, "precision": precision}
        models = Models(self.folder, pairs or {}, **options)
        self.model: Model = models.model
        self.layout: DecoderLayout = models.layout
        self._encoder = models.encoder
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
        return f"<tercet.Generator {self.folder.model} on {self.model.backend}>"

    # ── texts ────────────────────────────────────────────────────────────────────────────────

    def generate(self, prompt: Prompt, **how: Any) -> Generation:
        """Continue a text, several texts, or a conversation.

        Args:
            prompt: a text, a list of them, which are generated together, or the messages of one
                conversation, ``[{"role": "user", "content": "…"}]``, put together by the folder's
                chat template.
            **how: of these, what is not given is as the folder has it:

                - max_new_tokens: the most for each sequence; 128 if not given.
                - stop: a string, or several, before which the text ends.
                - num_return_sequences: how often each prompt is continued.
                - temperature: what logits are divided by; 0 takes the most likely token.
                - top_k, top_p, min_p: see `Sampling`; without temperature, that is 1.
                - repetition_penalty: see `Sampling`.
                - seed: of the draws, 0 where it is not given: the same seed, the same tokens.
                - decoder_ids, language, task: see `generate_features`.

        Raises:
            InputError: a prompt without tokens, or longer than the caches.
            ModelError: the folder has no tokenizer, or no chat template; the logits have NaN.
            UnsupportedError: the libraries for texts are not installed.
            UsageError: an argument that does not fit.
        """
        prompts, chosen = self._texts(prompt, how)
        for _ in self._run(prompts, chosen):
            pass
        return self.last

    def stream(self, prompt: Prompt, **how: Any) -> Iterator[str]:
        """Continue one text, and yield it in pieces as it comes; `last` has the whole.

        No piece ends within a character, nor within what may be a stop string. A caller may leave
        the loop at any time.

        Args:
            prompt: a text, or the messages of a conversation.
            **how: as for `generate`, but for num_return_sequences.
        """
        prompts, chosen = self._texts(prompt, how)
        if prompts.count > 1 or chosen.count > 1:
            raise UsageError("one text is streamed at a time; generate takes several")
        return (piece for (piece,) in self._run(prompts, chosen) if piece)

    # ── sound and pictures ───────────────────────────────────────────────────────────────────

    def generate_features(self, features: Any, **how: Any) -> Generation:
        """Write what a decoder makes of sound or of a picture.

        Args:
            features: what the encoder takes, as the model's preprocessor makes it, float [batch,
                …]: Whisper's ``input_features``, ``pixel_values``; see `audio_features`. One
                without a batch is a batch of one.
            **how: as for `generate`, and:

                - decoder_ids: the tokens that the decoder begins with, in place of those of the
                  folder.
                - language: what is spoken, such as ``en``; found out where it is not given.
                - task: ``transcribe`` where it is not given, or ``translate``.

        Returns:
            What was written; with texts where the folder has a tokenizer.

        Raises:
            InputError: features of another shape.
            UsageError: the model takes texts; or no such language or task.
        """
        prompts, chosen = self._features(features, how)
        for _ in self._run(prompts, chosen):
            pass
        return self.last

    def stream_features(self, features: Any, **how: Any) -> Iterator[str]:
        """Write what a decoder makes of one sound or picture, in pieces as they come.

        Args:
            features: as for `generate_features`.
            **how: as for `generate_features`, but for num_return_sequences.
        """
        prompts, chosen = self._features(features, how)
        if prompts.count > 1 or chosen.count > 1:
            raise UsageError("one text is streamed at a time; generate_features takes several")
        if prompts.tokenizer is None:
            return (f"{token} " for token in self._tokens(prompts, chosen))
        return (piece for (piece,) in self._run(prompts, chosen) if piece)

    @property
    def features(self) -> TensorInfo | None:
        """What `generate_features` takes; None of a model that takes texts."""
        return None if self._encoder is None else self._encoder.features

    @public(file=rules.path)
    def audio_features(self, file: str | os.PathLike[str]) -> Array:
        """Return the features of a sound, as ``preprocessor_config.json`` says.

        Args:
            file: a WAV file of 8, 16, 24 or 32 bits, at the model's sampling rate.

        Returns:
            Float32 [1, bands, frames] of the logarithms of a mel spectrogram, or [1, samples] of a
            model that takes the samples themselves.

        Raises:
            FileError, InputError: no such file, or none of this kind, rate or length.
            ModelError: the folder does not say how.
        """
        if self.features is None:
            raise UsageError(f"{self.folder.path}: the model takes no sound, but a text")
        return features_of_wav(Path(file), self.folder)

    # ── token ids ────────────────────────────────────────────────────────────────────────────

    def generate_ids(self, ids: Ids, **how: Any) -> Generation:
        """Continue tokens, or those of several prompts; needs no tokenizer.

        Args:
            ids: those of a prompt, or a list for each of several.
            **how: as for `generate`, but for stop.
        """
        prompts, chosen = self._ids(ids, how)
        for _ in self._run(prompts, chosen):
            pass
        return self.last

    def stream_ids(self, ids: Sequence[int], **how: Any) -> Iterator[int]:
        """Continue the tokens of one prompt, and yield each new one as it comes.

        Args:
            ids: those of the prompt.
            **how: as for `generate_ids`, but for num_return_sequences.
        """
        prompts, chosen = self._ids(ids, how)
        if prompts.count > 1 or chosen.count > 1:
            raise UsageError("one sequence is streamed at a time; generate_ids takes several")
        return self._tokens(prompts, chosen)

    def _tokens(self, prompts: Prompts, chosen: Settings) -> Iterator[int]:
        given = 0
        for _ in self._run(prompts, chosen):
            progress = self._writer.progress
            new = progress.rows[0].new if progress is not None else []
            yield from new[given:]
            given = len(new)

    # ── what is kept ─────────────────────────────────────────────────────────────────────────

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer: `encode`, `decode`, `chat`."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self.folder)
        return self._tokenizer

    @property
    def last(self) -> Generation:
        """What was generated last; of a stream that was left, what there is of it."""
        progress = self._writer.progress
        if progress is None or not progress.seconds:
            raise UsageError("nothing has been generated yet")
        return progress.generation

    @property
    def ids(self) -> list[int]:
        """The tokens that the caches hold, of one sequence; the last one is not among them."""
        return list(self._writer.held)

    @property
    def capacity(self) -> int | None:
        """Largest number of tokens of a prompt and what follows; None where memory bounds it."""
        return self._writer.capacity

    @public(length=rules.whole(0))
    def rewind(self, length: int) -> int:
        """Forget all tokens but the first ones, so that the next prompt reads what lies after.

        That is for `reuse`; without it every prompt is read from its beginning.

        Args:
            length: number of tokens to keep, at most as many as `ids` has.

        Returns:
            The number that is kept: 0 where the model's caches (sliding windows, states) cannot go
            back, and the next prompt is read as a whole.
        """
        held = self._writer.held
        if length > len(held):
            raise UsageError(f"length={length}: the caches hold {len(held)} tokens")
        return self._writer.rewind(length)

    @public(file=rules.path)
    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the caches to a file, for `restore` in another process.

        Args:
            file: an .npz file, as large as the caches.

        Raises:
            UsageError: the caches hold nothing, or more than one sequence.
            FileError: it cannot be written.
        """
        held = self._writer.held
        if not held:
            raise UsageError("the caches hold no tokens of one sequence; generate first")
        write_caches(Path(file), self._mark, held, self._writer.opened(1).caches())

    @public(file=rules.path)
    def restore(self, file: str | os.PathLike[str]) -> int:
        """Take the caches that `save` wrote, so that a prompt that begins with them reads the rest.

        Args:
            file: written with the same model, on any backend.

        Returns:
            The number of tokens.

        Raises:
            UsageError: the generator was made without `reuse`.
            ModelError: it is not a file of caches, or one of another model.
            InputError: it has more tokens than there is room for.
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

    def close(self) -> None:
        """Give back the caches and the model."""
        if hasattr(self, "_writer"):
            self._writer.close()

    # ── the work ─────────────────────────────────────────────────────────────────────────────

    def _texts(self, prompt: Prompt, how: Mapping[str, Any]) -> tuple[Prompts, Settings]:
        chosen = self._settings(how)
        prompts = read_texts(prompt, self.tokenizer)
        if self._encoder is not None:
            prompts = replace(prompts, is_answered=True)
        prompts.check(self.folder, self.layout, self.capacity)
        return prompts, chosen

    def _features(self, features: Any, how: Mapping[str, Any]) -> tuple[Prompts, Settings]:
        chosen = self._settings(how)
        if self._encoder is None:
            raise UsageError(f"{self.folder.model} continues token ids; it reads no features")
        tokenizer = None if self.folder.tokenizer is None else self.tokenizer
        if chosen.stops and tokenizer is None:
            raise UsageError("stop: strings are found in texts; the folder has no tokenizer.json")
        return read_features(features, self._encoder.features, tokenizer), chosen

    def _ids(self, ids: Ids, how: Mapping[str, Any]) -> tuple[Prompts, Settings]:
        chosen = self._settings(how)
        if chosen.stops:
            raise UsageError("stop: strings are found in texts; generate and stream give them")
        prompts = read_ids(ids)
        prompts.check(self.folder, self.layout, self.capacity)
        return prompts, chosen

    def _settings(self, how: Mapping[str, Any]) -> Settings:
        chosen = settings.generate(self.folder.search, self.folder.max_new_tokens, **how)
        if chosen.is_begun and self.folder.start is None:
            raise UsageError(
                "decoder_ids, language and task are for encoder-decoders; this decoder begins with "
                "the prompt"
            )
        return chosen

    def _run(self, prompts: Prompts, chosen: Settings) -> Iterator[list[str]]:
        """Yield the text that every step adds to each sequence; `last` is what there is so far."""
        return self._writer.run(prompts, chosen, self.folder, self._ends())

    def _ends(self) -> tuple[int, ...]:
        """Return the tokens that end a text."""
        if self.folder.ends or self.folder.tokens is None:
            return self.folder.ends
        text = self.folder.tokens.text("eos_token")
        if text is None or self._tokenizer is None:
            return ()
        token = self._tokenizer.token(text)
        return () if token is None else (token,)
