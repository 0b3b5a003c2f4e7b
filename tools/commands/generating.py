"""The command that generates text."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from ...runtime.errors import UsageError
from .options import (
    BackendOptions,
    Debug,
    Device,
    Fallback,
    Json,
    Precision,
    Threads,
    Timeout,
    Tune,
    backend_options_of,
    exit_code,
    integers,
)


def generate(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="A folder of onnxruntime-genai, optimum or transformers.js, or an ONNX file.",
            show_default=False,
        ),
    ],
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt", "-p", metavar="TEXT", help="Text to continue; - reads it from stdin."
        ),
    ] = None,
    ids: Annotated[
        str,
        typer.Option("--ids", metavar="1,2,3", help="Token ids to continue; needs no tokenizer."),
    ] = "",
    input_features: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy", help="What an encoder of sound or pictures reads: [batch, ...]."
        ),
    ] = None,
    audio: Annotated[
        Path | None,
        typer.Option(metavar="FILE.wav", help="Sound for a speech model such as Whisper."),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --audio: what is spoken, such as en; else found."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --audio: transcribe, or translate.")
    ] = None,
    decoder_ids: Annotated[
        str,
        typer.Option(metavar="1,2,3", help="Tokens that an encoder's decoder begins with."),
    ] = "",
    chat: Annotated[
        bool, typer.Option("--chat", help="Apply the chat template: the prompt is a user message.")
    ] = False,
    system: Annotated[
        str, typer.Option(metavar="TEXT", help="With --chat: the system message.")
    ] = "",
    variant: Annotated[
        str | None,
        typer.Option(
            "--variant",
            "--file",
            metavar="NAME",
            help="Which of several model files: q4, model_q4.onnx.",
        ),
    ] = None,
    backend: Annotated[
        str, typer.Option("--backend", "-b", metavar="BACKEND", help="Backend to run on.")
    ] = "numpy",
    fallback: Fallback = None,
    precision: Precision = "float32",
    device: Device = 0,
    tune: Tune = False,
    backend_option: BackendOptions = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Maximum number of new tokens; default: the model's setting, or 128."
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Stop before this text; repeatable."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(metavar="X", help="Sampling temperature; 0 for greedy decoding."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="N", help="Sample from the N most likely tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Nucleus sampling: the smallest set of tokens with total probability X.",
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Sample from tokens at least X times as likely as the most likely one.",
        ),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Penalty for tokens that already occur; above 1 makes them less likely.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed for sampling.")] = 0,
    num_return_sequences: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of continuations per prompt.")
    ] = 1,
    prefill_chunk: Annotated[
        int, typer.Option(metavar="N", help="Tokens per prefill step; fewer take less memory.")
    ] = 1024,
    capacity: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Capacity of the caches in tokens; default: the model's setting."
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Prompt cache: read if the file exists, to skip what it holds of the prompt; "
            "then written.",
        ),
    ] = None,
    twice: Annotated[
        bool,
        typer.Option(
            "--twice", help="Generate twice and compare the tokens; exit with 1 if they differ."
        ),
    ] = False,
    show_ids: Annotated[
        bool, typer.Option("--show-ids", help="Also print token ids of prompts and results.")
    ] = False,
    threads: Threads = None,
    timeout: Timeout = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Generate text with a decoder such as Llama."""
    from ...runtime.text import printable
    from ..common.console import open_console, print_json, progress, silent
    from ..common.threads import use_threads
    from ..common.warned import HEARD
    from ..generate.generate import write

    is_terminal = sys.stdout.isatty()

    def give(text: str) -> None:
        sys.stdout.write(printable(text, "\n\t") if is_terminal else text)
        sys.stdout.flush()

    how: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "num_return_sequences": num_return_sequences,
        "language": language,
        "task": task,
        "decoder_ids": integers("--decoder-ids", decoder_ids) if decoder_ids else None,
    }
    if stop:
        how["stop"] = stop
    asked = _asked(prompt or [], ids, input_features, audio, chat=chat, system=system)
    # A spinner would draw over text that comes.
    with progress() if json else nullcontext(silent) as say, use_threads(threads):
        found = write(
            folder,
            backend,
            asked,
            how,
            cache=cache,
            twice=twice,
            timeout=timeout,
            say=say,
            give=None if json else give,
            variant=variant,
            prefill_chunk=prefill_chunk,
            capacity=capacity,
            fallback=fallback,
            precision=precision,
            device=device,
            tune=tune,
            backend_options=backend_options_of(backend_option),
        )
    if json:
        print_json(open_console(), {**found.to_dict(), "warnings": HEARD.to_list()})
        raise typer.Exit(exit_code(found.ok, found.stopped))
    sys.stdout.write("\n")
    if show_ids:
        for row in found.generation.prompts:
            typer.echo(f"prompt: {' '.join(map(str, row))}", err=True)
        for row in found.generation.ids:
            typer.echo(f"tokens: {' '.join(map(str, row))}", err=True)
    typer.echo(found.summary, err=True)
    if found.difference is not None:
        typer.echo(found.difference or "the second run had the same tokens", err=True)
    if found.stopped:
        typer.echo(f"not complete: {found.stopped}", err=True)
    raise typer.Exit(exit_code(found.ok, found.stopped))


def _asked(
    prompts: list[str],
    ids: str,
    features: Path | None,
    audio: Path | None,
    *,
    chat: bool,
    system: str,
) -> Any:
    """Return the only thing that is requested."""
    from ..generate.generate import Asked

    if sum(map(bool, (prompts, ids, features, audio))) != 1:
        raise UsageError(
            "give --prompt TEXT, --ids 1,2,3, --input-features FILE.npy or --audio FILE.wav"
        )
    if not prompts:
        if chat:
            raise UsageError("--chat is for texts: --prompt")
        return Asked(None, integers("--ids", ids) if ids else None, features, audio)
    texts = [sys.stdin.read() if text == "-" else text for text in prompts]
    if not chat:
        if system:
            raise UsageError("--system belongs to --chat")
        return Asked(texts[0] if len(texts) == 1 else texts)
    if len(texts) > 1:
        raise UsageError("--chat takes one --prompt")
    messages = [{"role": "system", "content": system}] if system else []
    return Asked([*messages, {"role": "user", "content": texts[0]}])
