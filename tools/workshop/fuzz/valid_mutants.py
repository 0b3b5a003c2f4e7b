"""Small changes of valid models, run with all rewrites, with some, and with none.

    python -m tercet.tools.workshop.fuzz.valid_mutants --mutants 1000 --seed 1
    python -m tercet.tools.workshop.fuzz.valid_mutants --models tests/passes/recorded --seed 1
    python -m tercet.tools.workshop.fuzz.valid_mutants --seed 1 --only 123 --save FOLDER

A mutant is a motif of the random graphs, or a part of a network, with one to three `mutations`. One
that does not run without rewrites is none. The others give the same with rewrites, or with some of
them skipped, in float32, float64 or float16, for inputs of one size or of several, on onnxruntime
and on emulated kernels: what differs by more than rounding is printed, reduced to the nodes that
show it, and with the passes without which it does not differ.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ...common.console import open_console
from ...common.environment import environment
from .emulation import add_kernels, kernels_of
from .mutant_seeds import MutantSeeds, networks_of
from .mutants import DTYPES, FOUND, Ended, MutantDraws, run_mutants
from .mutants_page import summary, write
from .numbering import add_numbering, numbers_of, shown, verify_passes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 where nothing was found, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_numbering(parser, "mutants", 1000, "the number of one mutant")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--models", type=Path, action="append", default=[], help="parts of them")
    parser.add_argument("--motif", action="append", default=[], help="these motifs alone")
    parser.add_argument("--dtype", choices=list(DTYPES), action="append", help="these alone")
    parser.add_argument("--skipping", type=float, default=0.35, help="share without some passes")
    parser.add_argument("--sizes", type=float, default=0.25, help="share with symbolic sizes")
    parser.add_argument("--onnxruntime", type=float, default=0.15, help="share that it runs, too")
    parser.add_argument("--alike", type=int, default=1, help="how many in a row are of one model")
    add_kernels(parser)
    parser.add_argument("--save", type=Path, help="folder for what is wrong")
    parser.add_argument("--output", type=Path, help="folder for valid_mutants.md and .json")
    given = parser.parse_args(arguments)
    verify_passes()
    draws = MutantDraws(
        given.seed,
        MutantSeeds(networks_of(given.models), given.motif),
        {name: DTYPES[name] for name in given.dtype or DTYPES},
        given.skipping,
        given.sizes,
        given.onnxruntime,
        kernels_of(given),
        given.alike,
    )
    console = open_console()

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    found: list[Ended] = []
    for ended in run_mutants(
        draws,
        numbers_of(given),
        jobs=given.jobs,
        seconds=given.seconds,
        folder=given.save,
    ):
        found.append(ended)
        for i, line in enumerate(ended.lines):
            say(f"{ended.number}: {line}" if i == 0 else f"  {line[-600:]}")
    counted = Counter(ended.kind for ended in found)
    say(", ".join(f"{count} {kind}" for kind, count in counted.items()))
    if given.output:
        command = shown("valid_mutants", arguments)
        write(summary(found, environment(("numpy", "onnx")), command), given.output)
    return int(counted[FOUND] > 0)


if __name__ == "__main__":
    sys.exit(main())
