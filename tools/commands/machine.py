"""Commands about this machine and tercet itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .groups import Common
from .help import GENERAL
from .options import Backend, Debug, Fallback, Json, Timeout, several_backends, show, written_file


def doctor(
    *,
    require: Annotated[
        str | None,
        typer.Option(metavar="BACKEND", help="Exit with 5 unless this backend can run here."),
    ] = None,
    peaks: Annotated[
        bool, typer.Option("--peaks", help="Also measure bandwidth and FLOP/s of each device.")
    ] = False,
    common: Common,
) -> None:
    """Check the environment: what is installed, what is missing, and how to get it.

    Examples:
        tercet doctor
        tercet doctor --require numpy
    """
    from ...backends import check_name
    from ..common.console import progress
    from ..common.deadline import all_or_nothing
    from ..doctor.doctor import diagnose, show_diagnosis

    if require is not None:
        check_name(require)
    with progress() as say, all_or_nothing(common.timeout, say) as tell:
        found = diagnose(peaks=peaks, say=tell)
    show(found, show_diagnosis, json=common.json)
    if require is not None:
        found.require(require)


def conformance(
    backend: Backend = "numpy",
    fallback: Fallback = None,
    pattern: Annotated[
        str,
        typer.Option(
            "-k",
            metavar="PATTERN",
            help="Only cases whose category/name matches this regular expression.",
        ),
    ] = "",
    categories: Annotated[
        list[str] | None,
        typer.Option("--category", metavar="NAME", help="Only this category; repeatable."),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Time limit per case.", rich_help_panel=GENERAL),
    ] = 60,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Number of processes; default: one per CPU core, at most 8."
        ),
    ] = None,
    write: Annotated[
        Path | None,
        written_file("FILE.md", "Write a Markdown page of all backends measured so far."),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run ONNX's own test suite; show the score and the failures.

    Examples:
        tercet conformance -k softmax
    """
    from ..conformance.page import check_whole, write_page
    from ..conformance.run import run_suite
    from ..conformance.view import progress_bar, show_report

    check_whole(write, pattern, categories)
    with progress_bar() as tell:
        found = run_suite(
            backend,
            fallback,
            pattern=pattern,
            categories=categories or (),
            timeout=timeout,
            jobs=jobs,
            tell=tell,
        )
    page = None if write is None else lambda: write_page(write, found)
    show(found, show_report, json=json, write=page)
    raise typer.Exit(0 if found.ok else 1)


def demo(
    backends: Annotated[
        list[str] | None,
        several_backends("A backend to run on; repeatable; default: all that can run here."),
    ] = None,
    timeout: Timeout = None,
    debug: Debug = False,
) -> None:
    """Recognize handwritten digits on every available backend.

    Examples:
        tercet demo
    """
    from ..common.console import open_console
    from ..common.deadline import all_or_nothing
    from ..demo.demo import run_demo

    with all_or_nothing(timeout):
        code = run_demo(open_console(), backends)
    raise typer.Exit(code)
