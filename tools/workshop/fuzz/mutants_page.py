"""What a campaign of valid mutants found, as JSON and as a page of Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...common.results import write as write_files
from .mutants import FOUND, INVALID, SAME, Ended

ENDS = (SAME, INVALID, FOUND)


def summary(ended: Sequence[Ended], about: Mapping[str, str], command: str) -> dict[str, Any]:
    """Return the counts of a campaign, and all that it found."""

    def counts(keys: Mapping[Ended, Sequence[str]]) -> dict[str, dict[str, int]]:
        found: dict[str, Counter[str]] = {}
        for each, names in keys.items():
            for name in names:
                found.setdefault(name, Counter())[each.kind] += 1
        return {name: dict(found[name]) for name in sorted(found)}

    return {
        "environment": dict(about),
        "command": command,
        "mutants": len(ended),
        "ends": {kind: sum(each.kind == kind for each in ended) for kind in ENDS},
        "changes": counts({each: each.changes for each in ended}),
        "ways": counts({each: (each.dtype,) for each in ended if each.dtype}),
        "passes": dict(sorted(Counter(p for each in ended for p in set(each.passes)).items())),
        "findings": {str(each.number): list(each.lines) for each in ended if each.lines},
    }


def markdown(found: Mapping[str, Any]) -> str:
    """Return the page."""
    about = ", ".join(f"{name}: {text}" for name, text in found["environment"].items())
    ends = found["ends"]
    lines = [
        "# Small changes of valid models",
        "",
        f"`{found['command']}`",
        "",
        f"{about}.",
        "",
        f"{found['mutants']:,} mutants (docs/fuzzing.md says of what): {ends[SAME]:,} give the "
        f"same with rewrites and without, {ends[INVALID]:,} are no models, and {ends[FOUND]:,} "
        "are findings.",
        "",
        *_table(("what was changed", *ENDS), found["changes"]),
        "",
        *_table(("element type", *ENDS), found["ways"]),
        "",
        "| pass | mutants that it rewrites |",
        "| --- | ---: |",
        *(f"| `{name}` | {count} |" for name, count in found["passes"].items()),
    ]
    if found["findings"]:
        lines += ["", "## Findings", ""]
        for number, said in found["findings"].items():
            lines += [f"{number}:", "", "```", *said, "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(head: Sequence[str], rows: Mapping[str, Mapping[str, int]]) -> list[str]:
    rule = ["---", *["---:"] * len(ENDS)]
    cells = [(name, *(str(row.get(end, 0)) for end in ENDS)) for name, row in rows.items()]
    return [f"| {' | '.join(each)} |" for each in (head, rule, *cells)]


def write(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write both files; return their paths."""
    data = json.dumps(found, indent=1) + "\n"
    return write_files(folder, {"valid_mutants.json": data, "valid_mutants.md": markdown(found)})
