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

#: What lines of the verdict have that rounding may explain.
IN_DOUBT = ": inconclusive: "


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
    """Return everything, for JSON; graphs of which all is inconclusive are in doubt."""
    lines = {number: list(said) for number, said in tally.findings.items()}
    doubts = {n for n, said in lines.items() if all(IN_DOUBT in line for line in said)}
    return {
        "environment": dict(about),
        "command": command,
        "counts": dict(tally.counts),
        "ways": dict(sorted(tally.ways.items())),
        "operators": dict(sorted(tally.operators.items())),
        "findings": {number: said for number, said in lines.items() if number not in doubts},
        "doubts": {number: said for number, said in lines.items() if number in doubts},
    }


def markdown(found: Mapping[str, Any]) -> str:
    """Return the page."""
    counts, wrong, doubts = Counter(found["counts"]), found["findings"], found["doubts"]
    text = (
        f"Written by `{found['command']}`, of which docs/fuzzing.md says what it draws and runs. "
        f"{counts['graphs']:,} graphs of {counts['nodes']:,} nodes: {len(wrong)} are findings, and "
        f"of {len(doubts)} rounding may explain what differs. onnxruntime crashed "
        f"{counts['crashes of onnxruntime']:,} times."
    )
    lines = [
        *head("Random graphs", text, found["environment"]),
        *_counts(("held against the reference", "times"), found["ways"]),
        "",
        *_counts(("operator", "graphs"), found["operators"]),
    ]
    for title, some in (("Findings", wrong), ("Doubts", doubts)):
        if some:
            lines += ["", f"## {title}", ""]
            lines += [f"- {number}: {line}" for number, said in some.items() for line in said]
    return "\n".join(lines) + "\n"


def _counts(titles: tuple[str, str], counts: Mapping[str, int]) -> list[str]:
    rows = [(name, f"{count:,}") for name, count in counts.items()]
    return table(titles, rows, numbers=(1,))


def write(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write both files; return their paths."""
    data = json.dumps(found, indent=1) + "\n"
    return write_files(folder, {"random_graphs.json": data, "random_graphs.md": markdown(found)})
