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
        typer.Option("--prompt", "-p", metavar="TEXT", help="A text to continue; - reads it."),
    ] = None,
    ids: Annotated[
        str, typer.Option("--ids", metavar="1,2,3", help="Tokens to continue, without tokenizer.")
    ] = "",
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is what a user says; the model answers.")
    ] = False,
    system: Annotated[
        str, typer.Option(metavar="TEXT", help="With --chat: what the model is told to be.")
    ] = "",
    variant: Annotated[
        str | None,
        typer.Option(
            "--variant", "--file", metavar="NAME", help="Which model of several: q4, model_q4.onnx."
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
        typer.Option(metavar="N", help="The most tokens to write; 128 where nobody says."),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End in front of this text; repeat it for more."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(metavar="X", help="Draw tokens, logits divided by X; 0: the most likely."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="N", help="Draw among the N most likely tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(metavar="X", help="Draw among the fewest tokens that are X likely together."),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(metavar="X", help="Draw among tokens X times as likely as the first."),
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(metavar="X", help="Make tokens that were there less likely.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the draws.")] = 0,
    num_return_sequences: Annotated[
        int, typer.Option(metavar="N", min=1, help="How often each prompt is continued.")
    ] = 1,
    prefill_chunk: Annotated[
        int, typer.Option(metavar="N", help="Read prompts N tokens at a time, for less memory.")
    ] = 1024,
    capacity: Annotated[
        int | None,
        typer.Option(metavar="N", help="Room of the caches, in tokens; else as configured."),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Caches: read if there, so that a prompt that begins with them reads the rest; "
            "written.",
        ),
    ] = None,
    twice: Annotated[
        bool, typer.Option("--twice", help="Generate again and compare the tokens; 1 if others.")
    ] = False,
    show_ids: Annotated[
        bool, typer.Option("--show-ids", help="Print the tokens of prompts and results, too.")
    ] = False,
    threads: Threads = None,
    timeout: Timeout = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Continue a text, or answer it, with a decoder such as Llama."""
    from ...runtime.text import printable
    from ..common.console import open_console, print_json, progress, silent
    from ..common.threads import use_threads
    from ..common.warned import HEARD
    from ..generate.generate import Asked, write

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
    }
    if stop:
        how["stop"] = stop
    asked = Asked(*_asked(prompt or [], ids, chat=chat, system=system))
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


def _asked(prompts: list[str], ids: str, *, chat: bool, system: str) -> tuple[Any, Any]:
    """Return prompt and ids, one of them None."""
    if bool(prompts) == bool(ids):
        raise UsageError("give --prompt TEXT or --ids 1,2,3")
    if ids:
        if chat:
            raise UsageError("--chat is for texts, not for --ids")
        return None, integers("--ids", ids)
    texts = [sys.stdin.read() if text == "-" else text for text in prompts]
    if not chat:
        if system:
            raise UsageError("--system belongs to --chat")
        return texts[0] if len(texts) == 1 else texts, None
    if len(texts) > 1:
        raise UsageError("--chat takes one --prompt")
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": texts[0]}], None
