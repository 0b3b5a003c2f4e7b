"""Fuzzing that follows coverage, with atheris: what reaches new code is kept and changed further.

    python -m tercet.tools.workshop.fuzz.guided load -max_total_time=300 CORPUS

CORPUS is a folder that grows; a copy of tests/fuzz/corpus is a good beginning. The word before it
says what is tried; what follows goes to libFuzzer. A file that ends in anything but a result or an
error of tercet's is kept as ``crash-...``; one that takes ten seconds or a gigabyte, likewise.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from random import Random
from shlex import quote

import atheris  # pip install 'tercet[fuzz]'

with atheris.instrument_imports(include=["tercet"]):
    from google.protobuf.message import DecodeError

    from .... import load
    from ....importers import onnx as importer
    from ....runtime.errors import TercetError
    from .structure import damaged
    from .trial import SECONDS, inputs_for, options

LIMITS = ("-timeout=10", "-rss_limit_mb=1024", "-max_len=65536")
#: Share of the mutants whose structure is changed; of the others libFuzzer changes the bytes.
STRUCTURE = 0.7


def load_and_check(data: bytes) -> None:
    """Read a file: protobuf, checks, upgrade to the newest opset, types."""
    importer.load(data)


def infer_and_rewrite(data: bytes) -> None:
    """Load a model, which folds constants and rewrites the graph."""
    load(data, **options()).close()


def run(data: bytes) -> None:
    """Load a model and run it on random inputs."""
    with load(data, **options()) as model:
        given = inputs_for(model.inputs, ())
        if given is not None:
            model.run(given, timeout=SECONDS)


HARNESSES: dict[str, Callable[[bytes], None]] = {
    "load": load_and_check,
    "passes": infer_and_rewrite,
    "run": run,
}


def change(data: bytes, maximum: int, seed: int) -> bytes:
    """Return a mutant of a file, as libFuzzer asks for one."""
    rng = Random(seed)
    if rng.random() < STRUCTURE:
        with suppress(DecodeError, UnicodeError):  # protobuf reads names that it does not write
            made = damaged(data, rng).data
            if len(made) <= maximum:
                return made
    return atheris.Mutate(data, maximum)


def main() -> None:
    """Run the harness that the first argument names; libFuzzer ends the process."""
    harness = HARNESSES.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if harness is None:
        raise SystemExit(f"one of {', '.join(HARNESSES)} is wanted first\n\n{__doc__}")
    warnings.simplefilter("ignore")

    def one(data: bytes) -> None:
        with suppress(TercetError):
            harness(data)

    # What is merged is read by processes of their own, which libFuzzer starts by this name.
    again = f"{quote(sys.executable)} -m {__spec__.name} {sys.argv[1]}"
    atheris.Setup([again, *LIMITS, *sys.argv[2:]], one, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
