"""The page of all planted faults: which were found, where, and by how much they stick out.

    python -m tests.faults.page                  # to the screen
    python -m tests.faults.page --write docs/results/planted_faults.md

What counts as found is what the tests of this folder demand; this writes the figures behind it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tercet.runtime.plan.host import HOST
from tercet.tools.bisect.bisection import bisect
from tercet.tools.common.environment import device_environment
from tercet.tools.compare.layers import Layers, compare_layers

from . import test_kernels, test_passes
from .edits import FAULTS
from .networks import NETWORKS, inputs_of, network
from .test_edits import WRONG_IN_ONNX

HEAD = """# Planted faults

Written by `python -m tests.faults.page --write docs/results/planted_faults.md`; the tests in
`tests/faults` demand the same of every change. A fault counts as found where the tool names the
node, or the rewrite, in which it was planted, and nothing else. *Excess* is the difference at that
node by what rounding may cost there: from 1 on it is wrong.

"""


@dataclass(frozen=True)
class Row:
    """A fault, and what a tool said of it."""

    planted: str
    tool: str
    found: bool
    where: str
    excess: float | None = None
    runs: int | None = None

    def __str__(self) -> str:
        excess = "" if self.excess is None else f"{self.excess:.3g}"
        runs = "" if self.runs is None else str(self.runs)
        verdict = "found" if self.found else "**missed**"
        return f"| {self.planted} | {verdict} | {self.where} | {excess} | {runs} |"


def edits() -> Iterator[Row]:
    """Yield the faults in files, as `compare --layers` finds them."""
    for fault in FAULTS:
        feeds = inputs_of(fault.network)
        found = compare_layers(network(fault.network), ["numpy"], feeds, other=fault.planted())
        yield _layer_row(str(fault), found, lambda nodes, name=fault.node: nodes == (name,))


def kernels() -> Iterator[Row]:
    """Yield the faults in kernels, as `compare --layers` finds them."""
    for planted in test_kernels.PLANTED:
        pair = ["numpy", test_kernels.player({planted.node}, planted.damage)]
        found = compare_layers(network(planted.network), pair, inputs_of(planted.network))
        yield _layer_row(str(planted), found, lambda nodes, name=planted.node: name in nodes)


def kernels_by_halving() -> Iterator[Row]:
    """Yield the same faults, as `bisect` finds them."""
    for planted in test_kernels.PLANTED:
        pair = ["numpy", test_kernels.player({planted.node}, planted.damage)]
        feeds = inputs_of(planted.network)
        found = bisect(network(planted.network), pair, feeds, reduce=False)
        right = found.fault == "nodes" and planted.node in found.nodes
        where = " + ".join(found.nodes)
        yield Row(str(planted), "bisect", right, where, runs=found.runs)


def rewrites() -> Iterator[Row]:
    """Yield the faults in graph passes, as `bisect` finds them."""
    for planted in test_passes.PLANTED:
        feeds = inputs_of(planted.network)
        found = bisect(network(planted.network), None, feeds, passes=planted.passes, reduce=False)
        own = [rewrite for rewrite in found.rewrites if rewrite.name == planted.name]
        right = found.rewrite is not None and found.rewrite == own[planted.number - 1]
        where = ""
        if found.rewrite is not None:
            number, total = found.rewrite.number, len(found.rewrites)
            where = f"rewrite {number} of {total}, {found.rewrite.name}"
        yield Row(str(planted), "bisect", right, where, runs=found.runs)


def _layer_row(planted: str, found: Layers, is_right: Callable[[tuple[str, ...]], bool]) -> Row:
    wrong = [layer for layer in found.layers if layer.verdict == "wrong"]
    right = len(wrong) == 1 and found.first is wrong[0] and is_right(wrong[0].nodes)
    where = ", ".join(layer.name for layer in wrong)
    return Row(planted, "compare --layers", right, where, max((w.excess for w in wrong), default=0))


def alarms() -> Iterator[tuple[str, str, bool]]:
    """Yield comparisons of networks without a fault: the network, against whom, whether alarmed."""
    for name in NETWORKS:
        model, feeds = network(name), inputs_of(name)
        for other in ("itself", "onnxruntime", "onnx.reference"):
            if other == "onnx.reference" and name in WRONG_IN_ONNX:
                continue
            for cumulative in (False, True):
                found = (
                    compare_layers(model, ["numpy"], feeds, other=model, cumulative=cumulative)
                    if other == "itself"
                    else compare_layers(model, ["numpy", other], feeds, cumulative=cumulative)
                )
                yield name, f"{other}, {'cumulative' if cumulative else 'alone'}", not found.ok
        yield name, "bisect", not bisect(model, None, feeds).ok


SECTIONS = {
    "Faults in files, found by `compare --layers --other`": edits,
    "Faults in kernels, found by `compare --layers`": kernels,
    "The same faults in kernels, found by `bisect`": kernels_by_halving,
    "Faults in graph passes, found by `bisect`": rewrites,
}


def page() -> str:
    """Return the page."""
    tables = {title: list(rows()) for title, rows in SECTIONS.items()}
    checked = list(alarms())
    raised = [f"{name} against {other}" for name, other, alarmed in checked if alarmed]
    lines = [HEAD.rstrip(), ""]
    lines += [
        f"- {name}: {text}" for name, text in device_environment(HOST, ("numpy", "onnx")).items()
    ]
    lines += ["", "| | planted | found |", "|---|---|---|"]
    for title, rows in tables.items():
        lines.append(f"| {title} | {len(rows)} | {sum(row.found for row in rows)} |")
    lines += ["", f"Comparisons of the {len(NETWORKS)} networks without any fault: {len(checked)};"]
    lines.append(f"alarms: {len(raised)}{''.join(f', {one}' for one in raised)}.")
    for title, rows in tables.items():
        lines += ["", f"## {title}", "", "| planted | | where | excess | runs |"]
        lines += ["|---|---|---|---|---|", *map(str, rows)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", type=Path, help="the file to write")
    chosen = parser.parse_args()
    text = page()
    if chosen.write is None:
        print(text)
    else:
        chosen.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
