"""Failed commands: one message, and an exit code by kind.

With --json the message is also a JSON object on standard output: ``{"error": {"type", "message",
"exit_code", ...}}``, with the results beside it if only their files could not be written.
"""

from __future__ import annotations

import contextlib
import errno
import json as json_text
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import typer

from ...runtime.errors import (
    DeviceError,
    FileError,
    ModelError,
    TercetError,
    UnsupportedError,
    UsageError,
    did_you_mean,
)
from ...runtime.text import message, printable
from .as_option import as_option
from .ended import RunnerEnded

#: Exit codes: unexpected error; Ctrl-C; broken pipe.
INTERNAL, INTERRUPTED, CLOSED_PIPE = 9, 130, 141


class Unwritten(Exception):
    """Files of a result cannot be written, for an OSError that is the cause.

    Attributes:
        results: the result, for JSON.
    """

    def __init__(self, results: Mapping[str, Any]) -> None:
        super().__init__("files of a result cannot be written")
        self.results = results


def end_of(error: BaseException, *, debug: bool, json: bool) -> int:
    """Print how a command failed, and return the exit code.

    Args:
        error: the exception.
        debug: whether to print the traceback.
        json: whether standard output is JSON.
    """
    if is_closed_pipe(error):
        _discard_output()
        return CLOSED_PIPE
    results: Mapping[str, Any] = {}
    if isinstance(error, Unwritten) and error.__cause__ is not None:
        results, error = error.results, error.__cause__
    code, text = _judged(error)
    try:
        if debug:
            trace = "".join(traceback.format_exception(error))
            typer.echo(printable(trace, "\n\t"), sys.stderr, nl=False)
        _print(error, text, code)
        if json:
            from .console import finite

            found = finite({**results, "error": _described(error, text, code)})
            typer.echo(json_text.dumps(found, indent=2))
    except OSError:  # nobody can read it, or the disk is full, which may be the error itself
        _discard_output()
    return code


def is_closed_pipe(error: BaseException | None) -> bool:
    """Whether the reader of the output is gone, as with ``head``."""
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def _judged(error: BaseException) -> tuple[int, str]:
    """Return the exit code and text of an error."""
    if isinstance(error, TercetError):
        return error.exit_code, as_option(error.argument) if error.argument else str(error)
    if isinstance(error, OSError):
        known = isinstance(error.filename, str | bytes | os.PathLike) and error.strerror
        text = str(FileError(error.errno, error.strerror, error.filename) if known else error)
        if not known and error.errno == errno.ENOSPC:
            text = "no space left where standard output or a file was written; it is incomplete"
        return UsageError.exit_code, text
    if isinstance(error, MemoryError):
        return DeviceError.exit_code, f"the host has too little memory: {error}"
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED, "interrupted"
    if _is_usage(error):
        return UsageError.exit_code, _usage_text(error)
    from ...backends import blamed

    kind = type(error).__name__
    if other := blamed(error):
        return INTERNAL, (
            f"{kind}: {error}\n"
            f"  that is an error of {other}, not of tercet; --debug shows the traceback"
        )
    return INTERNAL, (
        f"internal error: {kind}: {error}\n"
        "  this is a bug of tercet; please report it with the output of `tercet doctor --json`\n"
        "  and of the same command with --debug, which shows where it happened"
    )


def _is_usage(error: BaseException) -> bool:
    """Whether it is an error of the option parser; typer has two places for these."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _is_help(error: BaseException) -> bool:
    """Whether nothing was asked for, which the parser answers with its help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def _usage_text(error: Any) -> str:
    """Return the parser's message in the form of others; the error gets a note on help."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tercet"
    text = _misfit(error) or str(error.format_message())
    text = text.removesuffix(".").replace(". Did you", "; did you")
    if similar := getattr(error, "possibilities", None):
        option = error.option_name
        text = f"no such option: {option}{did_you_mean(option, similar)}"
    options = context.command.params if context is not None else ()
    if "unexpected extra argument" in text and any(each.name == "other" for each in options):
        error.add_note(
            "of two models, the second follows --layers --other; runners follow --backend"
        )
    error.add_note(f"`{command} --help` describes its usage")
    return text[:1].lower() + text[1:]


#: What is expected, by kind of pydantic's errors, and by click's messages.
_KINDS = {
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "float_parsing": "a number",
    "greater_than_equal": "a {whole}number >= {ge:g}",
}
_MESSAGES = {
    r"'(.*)' is not a valid integer": "a whole number",
    r"'(.*)' is not a valid float": "a number",
    r"(\S+) is not in the range x>=(\S+?)\.?$": "a {whole}number >= {}",
}


def _misfit(error: Any) -> str:
    """Return what is wrong with an option's value in the words of other errors, if typer says it.

    Newer versions ask pydantic, older ones click.
    """
    option, asked = getattr(error, "param", None), getattr(error.__cause__, "errors", None)
    if option is None:
        return ""
    value, expected = None, ""
    whole = "whole " if _is_whole(option) else ""
    if callable(asked):
        first = cast("Sequence[dict[str, Any]]", asked())[0]
        value = first["input"]
        expected = _KINDS.get(first["type"], "").format(whole=whole, **first.get("ctx", {}))
    for pattern, what in _MESSAGES.items():
        if found := re.match(pattern, str(error.message)):
            value, expected = found[1], what.format(*found.groups()[1:], whole=whole)
    return f"{option.opts[-1]} {value}: expected {expected}" if expected else ""


def _is_whole(option: Any) -> bool:
    """Whether an option is a whole number: by its annotation, or by its type in click."""
    if kept := getattr(option, "type_descriptor", None):
        return kept.annotation is int
    return str(getattr(getattr(option, "type", None), "name", "")).startswith("integer")


def _print(error: Any, text: str, code: int) -> None:
    if code == INTERRUPTED:
        typer.echo("interrupted", sys.stderr)
    elif _is_help(error):
        typer.echo(error.format_message(), sys.stderr)
    else:
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
        colour = False if plain else None  # None: if it is a terminal
        typer.secho("error: ", sys.stderr, nl=False, color=colour, fg="red", bold=True)
        typer.echo(message(text + notes), sys.stderr)


def _described(error: BaseException, text: str, code: int) -> dict[str, Any]:
    """Return an error for JSON."""
    found: dict[str, Any] = {
        "type": type(error).__name__,
        "message": text,
        "notes": list(getattr(error, "__notes__", ())),
        "exit_code": code,
    }
    if isinstance(error, ModelError):
        found |= {"file": error.file, "where": error.where}
    if isinstance(error, RunnerEnded):
        found |= error.to_dict()
    if isinstance(error, UnsupportedError):
        names = ("node", "operator", "types", "backend", "reason")
        found["refusals"] = [{n: getattr(each, n) for n in names} for each in error.refusals]
    return found


def _discard_output() -> None:
    """Discard remaining output, so that the process ends silently."""
    try:
        if sys.__stdout__ is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())
    except (OSError, ValueError):  # it has no file
        return


def leave(code: int) -> NoReturn:
    """End the process immediately after interrupted work, which may have been an import.

    The work may hold locks, or another thread may be inside a library call: Python's own shutdown
    waits for both.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if (processes := sys.modules.get("multiprocessing")) is not None:
        for child in processes.active_children():
            child.kill()
    os._exit(code)
