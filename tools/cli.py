"""The command line: `tercet run`, `compare` and all the others.

Commands import what they need when they run, so that help is there at once.
"""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from .. import __version__
from ..runtime.errors import DeviceError, TercetError, UsageError
from ..runtime.text import message, printable
from .commands import files, machine, measuring, running, tuning
from .commands.data_dir import with_data_dir
from .commands.options import Debug

app = typer.Typer(
    name="tercet",
    epilog=(
        "Exit codes: 0 ok, 1 mismatch, 2 usage, 3 unsupported, 4 bad model, "
        "5 backend unavailable, 6 device fault, 7 out of time."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and end the process with its exit code.

    Args:
        arguments: those after the program's name; the process's own where None.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    _let_streams_take_anything()
    try:
        app(given, prog_name="tercet")
        code = 0
    except TercetError as error:
        code = _fail(error, str(error), error.exit_code, debug=debug)
    except OSError as error:
        code = _fail(error, _os_error_text(error), UsageError.exit_code, debug=debug)
    except MemoryError as error:
        text = f"the host has too little memory: {error}"
        code = _fail(error, text, DeviceError.exit_code, debug=debug)
    finally:
        _call_off_watchdog()
    raise SystemExit(code)


def _call_off_watchdog() -> None:
    """A command has ended; see `deadline.Watchdog`, which is there if it had a --timeout."""
    deadline = sys.modules.get(f"{__package__}.deadline")
    if deadline is not None:
        deadline.WATCHDOG.disarm()


def _let_streams_take_anything() -> None:
    """Have characters that the locale lacks written as escape sequences, not raise errors."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(error: BaseException, text: str, code: int, *, debug: bool) -> int:
    """Print an error, with the traceback if it is wanted; return the exit code."""
    if debug:
        trace = "".join(traceback.format_exception(error))
        typer.echo(printable(trace, "\n\t"), sys.stderr, nl=False)
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    typer.secho("error: ", sys.stderr, nl=False, fg="red", bold=True)
    typer.echo(message(text + notes), sys.stderr)
    return code


def _os_error_text(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"


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
    """Import an ONNX model, run it on numpy, CUDA or cuDNN, and compare them."""


#: In the order in which help lists them.
COMMANDS = (
    running.run,
    running.compare,
    running.bisect,
    files.export,
    files.simplify,
    files.extract,
    files.inspect,
    measuring.profile,
    measuring.bench,
    measuring.report,
    tuning.tune,
    machine.doctor,
    machine.conformance,
    machine.demo,
)
for command in COMMANDS:
    app.command()(with_data_dir(command))
