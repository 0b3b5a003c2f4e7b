"""The command that generates text."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from ...runtime.errors import UsageError
from .groups import Common, Group
from .help import BACKEND
from .option_values import backend_options_of, integers
from .options import (
    Backend,
    BackendOptions,
    Device,
    Fallback,
    MaxBytes,
    MaxDeviceBytes,
    Precision,
    PrefillChunk,
    Threads,
    Tune,
    Variant,
    exit_code,
    written_file,
)

if TYPE_CHECKING:
    from ..generate.generate import Asked, Written


@dataclass(frozen=True)
class PromptOptions(Group):
    """The prompt, or the input of an encoder."""

    title: ClassVar[str] = "Prompt"
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt", "-p", metavar="TEXT", help="Text to continue; - reads stdin; repeatable."
        ),
    ] = None
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--ids",
            metavar="1,2,3",
            help="Token ids to continue; needs no tokenizer; repeatable.",
        ),
    ] = None
    input_features: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npy", help="Input of an audio or image encoder: [batch, ...]."),
    ] = None
    audio: Annotated[
        Path | None,
        typer.Option(metavar="FILE.wav", help="Audio for a speech model such as Whisper."),
    ] = None
    language: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --audio: spoken language, such as en; default: detect."
        ),
    ] = None
    task: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --audio: transcribe or translate.")
    ] = None
    decoder_ids: Annotated[
        str,
        typer.Option(metavar="1,2,3", help="First tokens of an encoder-decoder's decoder."),
    ] = ""
    chat: Annotated[
        bool, typer.Option("--chat", help="Apply the chat template: the prompt is a user message.")
    ] = False
    system: Annotated[
        str, typer.Option(metavar="TEXT", help="With --chat: the system message.")
    ] = ""

    @property
    def asked(self) -> Asked:
        """The only input given.

        Raises:
            UsageError: none or several are given, or an option belongs to another kind of input.
        """
        from ..generate.generate import Asked

        texts = [sys.stdin.read() if text == "-" else text for text in self.prompt or ()]
        inputs = {
            "--prompt": texts,
            "--ids": self.ids,
            "--input-features": self.input_features,
            "--audio": self.audio,
        }
        given = [name for name, value in inputs.items() if value]
        if len(given) != 1:
            found = f"{' and '.join(given)} exclude each other; " if given else ""
            raise UsageError(
                f"{found}give one of --prompt TEXT, --ids 1,2,3, --input-features FILE.npy and "
                "--audio FILE.wav"
            )
        if self.system and not self.chat:
            raise UsageError("--system needs --chat")
        if not texts:
            if self.chat:
                raise UsageError("--chat needs --prompt")
            ids = [list(integers("--ids", row)) for row in self.ids or ()] or None
            return Asked(None, ids, self.input_features, self.audio)
        if not self.chat:
            return Asked(texts[0] if len(texts) == 1 else texts)
        if len(texts) > 1:
            raise UsageError("--chat takes one --prompt")
        messages = [{"role": "system", "content": self.system}] if self.system else []
        return Asked([*messages, {"role": "user", "content": texts[0]}])

    def as_settings(self) -> dict[str, Any]:
        """Return the settings of `Generator.generate` that describe the input."""
        begun = integers("--decoder-ids", self.decoder_ids) if self.decoder_ids else None
        return {"language": self.language, "task": self.task, "decoder_ids": begun}


@dataclass(frozen=True)
class DecoderOptions(Group):
    """The decoder and its backend."""

    title: ClassVar[str] = BACKEND
    variant: Variant = None
    backend: Backend = "numpy"
    fallback: Fallback = None
    precision: Precision = "float32"
    device: Device = 0
    tune: Tune = False
    backend_option: BackendOptions = None
    max_bytes: MaxBytes = None
    max_device_bytes: MaxDeviceBytes = None

    def as_options(self) -> dict[str, Any]:
        """Return the options by their names in `Generator`."""
        return {
            "backend": self.backend,
            "variant": self.variant,
            "fallback": self.fallback,
            "precision": self.precision,
            "device": self.device,
            "tune": self.tune,
            "backend_options": backend_options_of(self.backend_option),
            "max_bytes": self.max_bytes,
            "max_device_bytes": self.max_device_bytes,
        }


@dataclass(frozen=True)
class SamplingOptions(Group):
    """Sampling, and the end of a text."""

    title: ClassVar[str] = "Sampling"
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Maximum number of new tokens; default: the model's setting, or 128."
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Stop before this text; repeatable."),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(metavar="X", help="Sampling temperature; 0 for greedy decoding."),
    ] = None
    top_k: Annotated[
        int | None, typer.Option(metavar="N", help="Sample from the N most likely tokens.")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Nucleus sampling: the smallest set of tokens with total probability X.",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Sample from tokens at least X times as likely as the most likely one.",
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Penalty for tokens that already occur; above 1 makes them less likely.",
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Seed for sampling; default: the model's, or 0."),
    ] = None
    num_return_sequences: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of continuations per prompt.")
    ] = 1

    def as_settings(self) -> dict[str, Any]:
        """Return the settings by their names in `Generator.generate`."""
        return {**asdict(self), "stop": self.stop or ()}


@dataclass(frozen=True)
class CacheOptions(Group):
    """The KV caches and the prefill."""

    title: ClassVar[str] = "Caches"
    prefill_chunk: PrefillChunk = 1024
    capacity: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Capacity of the caches in tokens; default: the model's setting."
        ),
    ] = None
    cache: Annotated[
        Path | None,
        written_file(
            "FILE",
            "Prompt cache: read if it exists, so that only the rest of the prompt is computed; "
            "then written.",
        ),
    ] = None


def generate(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="A folder of onnxruntime-genai, optimum or transformers.js, or an ONNX file.",
            show_default=False,
        ),
    ],
    *,
    prompt: PromptOptions,
    decoder: DecoderOptions,
    sampling: SamplingOptions,
    caches: CacheOptions,
    twice: Annotated[
        bool,
        typer.Option("--twice", help="Generate twice; exit with 1 if the tokens differ."),
    ] = False,
    show_ids: Annotated[
        bool, typer.Option("--show-ids", help="Also print token ids of prompts and results.")
    ] = False,
    threads: Threads = None,
    common: Common,
) -> None:
    """Generate text with a decoder such as Llama, or an encoder-decoder such as Whisper.

    Examples:
        tercet generate llama --prompt "the quick" --max-new-tokens 8
        tercet generate whisper --audio sound.wav --language en
    """
    from ...runtime.text import printable
    from ..common.console import open_console, print_json, progress, silent
    from ..common.threads import use_threads
    from ..common.warned import HEARD
    from ..generate.generate import write

    is_terminal = sys.stdout.isatty()

    def give(text: str) -> None:
        sys.stdout.write(printable(text, "\n\t") if is_terminal else text)
        sys.stdout.flush()

    asked = prompt.asked
    # A spinner would overwrite the text as it arrives.
    with progress() if common.json else nullcontext(silent) as say, use_threads(threads):
        found = write(
            folder,
            asked,
            {**sampling.as_settings(), **prompt.as_settings()},
            cache=caches.cache,
            twice=twice,
            timeout=common.timeout,
            say=say,
            give=None if common.json else give,
            prefill_chunk=caches.prefill_chunk,
            capacity=caches.capacity,
            **decoder.as_options(),
        )
    if common.json:
        print_json(open_console(), {**found.to_dict(), "warnings": HEARD.to_list()})
    else:
        _show(found, with_ids=show_ids)
    raise typer.Exit(exit_code(found.ok, found.stopped))


def _show(found: Written, *, with_ids: bool) -> None:
    """End the text on stdout; write ids, times and failures to stderr."""
    sys.stdout.write("\n")
    if with_ids:
        for row in found.generation.prompts:
            typer.echo(f"prompt: {' '.join(map(str, row))}", err=True)
        for row in found.generation.ids:
            typer.echo(f"tokens: {' '.join(map(str, row))}", err=True)
    typer.echo(found.summary, err=True)
    if found.difference is not None:
        typer.echo(found.difference or "the second run had the same tokens", err=True)
    if found.stopped:
        typer.echo(f"not complete: {found.stopped}", err=True)
