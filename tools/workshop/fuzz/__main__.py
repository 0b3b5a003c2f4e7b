"""``python -m tercet.tools.workshop.fuzz``: run a campaign, or one mutant of it again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from ...common.console import open_console
from ...common.environment import environment
from .campaign import Campaign, run_campaign, workers_for
from .numbering import add_numbering, numbers_of, verify_passes
from .page import passes, summary, write
from .seeds import all_seeds
from .trial import BROKEN, Outcome, runs, try_mutant


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 where the promise is kept, 1 where it is not."""
    parser = argparse.ArgumentParser(
        prog="python -m tercet.tools.workshop.fuzz", description=__doc__
    )
    add_numbering(parser, "mutants", 4000, "try one mutant here, with its traceback")
    parser.add_argument("--jobs", type=int, help="processes; one per CPU by default")
    parser.add_argument("--models", type=Path, action="append", default=[], help="more seeds")
    parser.add_argument("--output", type=Path, help="folder for fuzz.md and fuzz.json")
    parser.add_argument("--every", type=int, default=1000, help="write after so many")
    parser.add_argument("--commit", default="", help="what to record where there is no git")
    parser.add_argument("--save", type=Path, help="with --only: write the mutant's file")
    given = parser.parse_args(arguments)
    verify_passes()
    folders = tuple(given.models)
    lame = frozenset(s.name for s in all_seeds(folders) if s.is_from_folder and not runs(s))
    campaign = Campaign(given.seed, folders, lame)
    if given.only is not None:
        return _one(campaign, given.only, given.save)
    found: dict[int, Outcome] = {}
    console, until = open_console(), monotonic() + given.seconds
    about = environment(("numpy", "onnx"), given.commit)
    said = ("FOLDER" if Path(word).is_absolute() else word for word in arguments or sys.argv[1:])
    command = f"python -m tercet.tools.workshop.fuzz {' '.join(said)}".rstrip()

    def result() -> dict[str, Any]:
        return summary(campaign, found, about, command)

    for number, outcome in run_campaign(
        campaign, numbers_of(given), workers_for(given.jobs), until
    ):
        found[number] = outcome
        if outcome.ended in BROKEN:
            console.print(f"{number}: {outcome.ended}: {outcome.error} {outcome.message}")
        if len(found) % given.every == 0:
            console.print(f"{len(found)} of {given.count}", style="dim")
            if given.output:
                write(result(), given.output)
    last = result()
    for name, count in {**last["ends"], **last["places"]}.items():
        console.print(f"{name:20} {count}")
    if last["named"] is not None:
        console.print(f"{'name the place':20} {last['named']:.2%}")
    if given.output:
        write(last, given.output)
    return 0 if passes(last) else 1


def _one(campaign: Campaign, number: int, file: Path | None) -> int:
    mutant, seed = campaign.mutant(number, all_seeds(campaign.folders, campaign.without))
    if file is not None:
        file.write_bytes(mutant.data)
    outcome = try_mutant(mutant, seed.feeds)
    console = open_console()
    console.print(f"{seed.name}, {mutant.kind}, {mutant.places}")
    console.print(f"{outcome.ended}: {outcome.error} {outcome.message} ({outcome.place})")
    return int(outcome.ended in BROKEN)


if __name__ == "__main__":
    sys.exit(main())
