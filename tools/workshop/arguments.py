"""Command lines of the workshop's tools."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from ..common.environment import ROOT

#: Where results that are part of the documentation go.
RESULTS = ROOT / "docs" / "results"


def parser(
    name: str, doc: str | None, output: Path | None = None, *, commit: bool = True
) -> ArgumentParser:
    """Return a parser with the options of every tool that records results.

    Args:
        name: the module's name.
        doc: its docstring, whose first line becomes the description.
        output: default of ``--output``; None to write no files unless it is given.
        commit: whether results name the commit, which ``--commit`` overrides.
    """
    made = ArgumentParser(
        prog=f"python -m tercet.tools.workshop.{name}",
        description=(doc or "").partition("\n")[0],
        allow_abbrev=False,
    )
    if commit:
        made.add_argument("--commit", default="", help="commit to record without a git checkout")
    made.add_argument(
        "--output", type=Path, metavar="FOLDER", default=output, help="folder of the result files"
    )
    return made
