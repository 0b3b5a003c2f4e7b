"""The command line: `tercet run`, `compare`, ….

Commands import their dependencies when they run, so that help is fast.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command

from ..version import __version__
from .commands import files, generating, machine, measuring, running, tuning
from .commands.groups import with_groups
from .commands.help import SectionedCommand, SectionedGroup
from .commands.options import PROCESS, Debug
from .common.failures import INTERNAL, INTERRUPTED, end_of, is_closed_pipe, leave
from .common.interrupts import INTERRUPTS
from .common.warned import listening

#: Former names of options, which still work but are not in the help.
FORMER = {"again": "force", "conv": "conv-algorithm", "streams": "concurrency"}


app = typer.Typer(
    name="tercet",
    cls=SectionedGroup,
    epilog=(
        "Exit codes: 0 ok, 1 mismatch, 2 usage, 3 unsupported, 4 bad model, "
        "5 backend unavailable, 6 device fault, 7 out of time, 8 inconclusive, 9 internal error, "
        "10 another runtime crashed, 130 interrupted, 141 closed pipe."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: FORMER.get(name, name),
    },
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and end the process with its exit code.

    Args:
        arguments: those after the program's name; the process's arguments if None.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    PROCESS.is_command = arguments is None
    _begin_watchdog()
    _open_closed_streams()
    _let_streams_take_anything()
    try:
        with listening():
            code = _command()(given, prog_name="tercet", standalone_mode=False) or 0
        sys.stdout.flush()
        ended = KeyboardInterrupt() if code == INTERRUPTED else None
    except SystemExit as end:  # typer's own answer to a closed pipe
        code, ended = end.code, end.__context__ if is_closed_pipe(end.__context__) else None
    except BaseException as error:
        code, ended = INTERNAL, error
    finally:
        _call_off_watchdog()
    if INTERRUPTS.end() and not isinstance(ended, KeyboardInterrupt):
        ended, found = KeyboardInterrupt(), ended
        ended.__cause__ = found  # what it has become, or None if it was lost
    if ended is not None:
        code = end_of(ended, debug="--debug" in given, json="--json" in given)
    _leave_if_interrupted(code)
    raise SystemExit(code)


@cache
def _command() -> Callable[..., Any]:
    """Return all commands, which typer would otherwise make anew for each."""
    return get_command(app)


def _begin_watchdog() -> None:
    """Reset what a previous command left of its --timeout."""
    deadline = sys.modules.get(f"{__package__}.common.deadline")
    if deadline is not None:
        deadline.WATCHDOG.has_rung = False


def _call_off_watchdog() -> None:
    """Disarm the watchdog after a command; see `deadline.Watchdog`."""
    deadline = sys.modules.get(f"{__package__}.common.deadline")
    if deadline is not None:
        deadline.WATCHDOG.disarm()


def _leave_if_interrupted(code: object) -> None:
    """End the process if its work was interrupted; see `failures.leave`.

    Python itself ends by a signal if Ctrl-C met a text that it executes, such as a dataclass's.
    """
    deadline = sys.modules.get(f"{__package__}.common.deadline")
    has_rung = deadline is not None and deadline.WATCHDOG.has_rung
    if PROCESS.is_command and isinstance(code, int) and (has_rung or code == INTERRUPTED):
        leave(code)


def _open_closed_streams() -> None:
    """Discard output without a reader: Python has None for streams that were closed before."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until exit


def _let_streams_take_anything() -> None:
    """Write characters that the locale lacks as escape sequences instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tercet {__version__}")
        raise typer.Exit


@app.callback()
def tercet(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Run ONNX models on interchangeable backends, and find out why results differ.

    Start with `tercet doctor`, which shows the backends that can run here.
    """


#: By topic, in the order in which help lists them.
COMMANDS = {
    "Run and compare": (running.run, running.compare, running.bisect, generating.generate),
    "Inspect and write models": (
        *(files.inspect, files.export, files.simplify, files.extract, files.compress),
    ),
    "Measure and tune": (
        *(measuring.profile, measuring.bench, measuring.report, tuning.tune, tuning.compile),
    ),
    "Check": (machine.doctor, machine.conformance, machine.demo),
}
for topic, commands in COMMANDS.items():
    for command in commands:
        # The whole sentence: typer would truncate it, however wide the terminal is.
        summary = (command.__doc__ or "").partition("\n")[0]
        app.command(short_help=summary, cls=SectionedCommand, rich_help_panel=topic)(
            with_groups(command)
        )
