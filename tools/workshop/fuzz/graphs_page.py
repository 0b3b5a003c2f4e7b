"""What a campaign of random graphs found, as JSON and as a page of Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...common.markdown import head, table
from ...common.results import write as write_files


@dataclass(frozen=True, slots=True)
class Tally:
    """What a campaign counted.

    Attributes:
        counts: graphs, their nodes, findings and crashes of onnxruntime.
        ways: how often each way to run a graph was held against the reference, by name.
        operators: graphs that have each operator.
        findings: lines by the number of the graph.
    """

    counts: Counter[str]
    ways: Counter[str]
    operators: Counter[str]
    findings: Mapping[str, Sequence[str]]


def summary(tally: Tally, about: Mapping[str, str], command: str) -> dict[str, Any]:
    """Return everything, for JSON."""
    return {
        "environment": dict(about),
        "command": command,
        "counts": dict(tally.counts),
        "ways": dict(sorted(tally.ways.items())),
        "operators": dict(sorted(tally.operators.items())),
        "findings": {number: list(lines) for number, lines in tally.findings.items()},
    }


def markdown(found: Mapping[str, Any]) -> str:
    """Return the page."""
    counts, wrong = Counter(found["counts"]), found["findings"]
    text = (
        f"Written by `{found['command']}`, of which docs/fuzzing.md says what it draws and runs. "
        f"{counts['graphs']:,} graphs of {counts['nodes']:,} nodes: {len(wrong)} are findings. "
        f"onnxruntime crashed {counts['crashes of onnxruntime']:,} times."
    )
    lines = [
        *head("Random graphs", text, found["environment"]),
        *_counts(("held against the reference", "times"), found["ways"]),
        "",
        *_counts(("operator", "graphs"), found["operators"]),
    ]
    if wrong:
        lines += ["", "## Findings", ""]
        lines += [f"- {number}: {line}" for number, said in wrong.items() for line in said]
    return "\n".join(lines) + "\n"


def _counts(titles: tuple[str, str], counts: Mapping[str, int]) -> list[str]:
    rows = [(name, f"{count:,}") for name, count in counts.items()]
    return table(titles, rows, numbers=(1,))


def write(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write both files; return their paths."""
    data = json.dumps(found, indent=1) + "\n"
    return write_files(folder, {"random_graphs.json": data, "random_graphs.md": markdown(found)})
