"""Random graphs, run in every way that there is: rewritten, as they are, by onnxruntime, planned.

    python -m tercet.tools.workshop.fuzz.differential --graphs 1000 --seed 1

What differs by more than rounding is printed with the graph's number; ``--only NUMBER --save FILE``
writes its model, which `tercet bisect` and `tercet compare` take from there.
"""

from __future__ import annotations

import argparse
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic

from onnx import ModelProto

from .... import load
from ....runtime.errors import TercetError
from ....runtime.ir.types import Array
from ....runtime.options import Precision
from ...common.console import open_console
from ...common.onnxruntime_errors import onnxruntime_errors
from ...export.export import export
from ...inspect.inspection import inspect
from ...verdict.error_bounds import Judge
from ..honest import honest, run_onnxruntime
from .graphs import random_model

#: Graphs of one campaign; the next one has others.
_APART = 1_000_000
PRECISIONS: tuple[Precision, ...] = ("float32", "float16")


def findings(proto: ModelProto, feeds: Mapping[str, Array], target: str = "") -> Iterator[str]:
    """Run a model in every way; yield what is wrong with it, a line each.

    Args:
        proto: the model.
        feeds: its inputs.
        target: a GPU to plan for, such as ``sm_90a``; none where empty.

    Raises:
        TercetError: it is refused, though it is a model.
    """
    refused: list[str] = []
    (_, reference), *others = honest(proto, feeds, refused, "float32")
    if not refused:
        others.append(("exported to onnxruntime", run_onnxruntime(export(proto).proto, feeds)))
    with load(proto, stop_at=0) as plain:
        judge = Judge(plain.imported, feeds)
        for name, found in others:
            for each in judge.outputs(reference, found):
                if not each.ok:
                    yield f"{name}: {each.verdict}: {each.output} {each.type}: {each.reason}"
    for precision in PRECISIONS if target else ():
        shapes = {name: data.shape for name, data in feeds.items()}
        inspect(proto, placement="cuda", target=target, precision=precision, shapes=shapes)


def _tried(proto: ModelProto, feeds: Mapping[str, Array], target: str) -> Iterator[str]:
    """Yield findings, and an error as one of them: none is due."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from findings(proto, feeds, target)
    except TercetError as error:
        yield f"{type(error).__name__}: {error}"
    except onnxruntime_errors() as error:
        yield f"onnxruntime refuses what was exported: {error}"
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError):
        yield f"untyped: {traceback.format_exc(limit=-3)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 where nothing was found, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="number of the campaign")
    parser.add_argument("--nodes", type=int, default=16, help="of each graph, about")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so many")
    parser.add_argument("--target", default="", help="also plan for a GPU, such as sm_90a")
    parser.add_argument("--only", type=int, help="the number of one graph")
    parser.add_argument("--save", type=Path, help="with --only: write its model")
    given = parser.parse_args(arguments)
    numbers = range(given.graphs) if given.only is None else [given.only]
    console, until = open_console(), monotonic() + given.seconds
    counted: Counter[str] = Counter()
    for number in numbers:
        if monotonic() > until:
            break
        proto, feeds = random_model(_APART * given.seed + number, given.nodes)
        if given.save and given.only is not None:
            given.save.write_bytes(proto.SerializeToString())
        counted["graphs"] += 1
        counted["nodes"] += len(proto.graph.node)
        for line in _tried(proto, feeds, given.target):
            counted["findings"] += 1
            console.print(f"{number}: {line}")
    console.print(", ".join(f"{count} {what}" for what, count in counted.items()))
    return int(counted["findings"] > 0)


if __name__ == "__main__":
    sys.exit(main())
