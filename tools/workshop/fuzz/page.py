"""What a campaign found, as JSON and as a page of Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .campaign import Campaign
from .trial import BROKEN, Outcome

ENDS = ("ran", "loaded", "refused at load", "refused in the run", *BROKEN)
#: Share of the errors that must name the place, where it is known.
RIGHT = 0.95


def summary(
    campaign: Campaign, found: Mapping[int, Outcome], about: Mapping[str, str], command: str
) -> dict[str, Any]:
    """Return the counts of a campaign, and every mutant that broke the promise."""
    outcomes = list(found.values())
    kinds: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        kinds.setdefault(outcome.kind or "(lost)", Counter())[outcome.ended] += 1
    places = Counter(outcome.place for outcome in outcomes if outcome.place)
    known = places.total()
    return {
        "environment": dict(about),
        "command": command,
        "seed": campaign.seed,
        "mutants": len(outcomes),
        "ends": {end: sum(o.ended == end for o in outcomes) for end in ENDS},
        "kinds": {kind: dict(kinds[kind]) for kind in sorted(kinds)},
        "places": {**{p: places[p] for p in ("here", "near", "elsewhere")}, "known": known},
        "named": (places["here"] + places["near"]) / known if known else None,
        "seconds": max((o.seconds for o in outcomes), default=0.0),
        "megabytes": max((o.megabytes for o in outcomes), default=0.0),
        "broken": {str(n): o.to_dict() for n, o in sorted(found.items()) if o.ended in BROKEN},
    }


def passes(found: Mapping[str, Any]) -> bool:
    """Whether a campaign keeps the promise."""
    return not found["broken"] and (found["named"] is None or found["named"] >= RIGHT)


def markdown(found: Mapping[str, Any]) -> str:
    """Return the page."""
    about = ", ".join(f"{name}: {text}" for name, text in found["environment"].items())
    broken, places = found["broken"], found["places"]
    lines = [
        "# Fuzzing",
        "",
        f"`{found['command']}`",
        "",
        f"{about}.",
        "",
        f"{found['mutants']:,} mutants (docs/fuzzing.md says of what): {len(broken)} broke the "
        f"promise. The slowest took {found['seconds']:.1f} s, the largest "
        f"{found['megabytes']:.0f} MB of resident memory.",
        "",
        *_named(places, found["named"]),
        "",
        *_table(("what was changed", *ENDS), list(_rows(found["kinds"]))),
    ]
    if broken:
        lines += ["", "## What broke the promise", ""]
        lines += [f"- {n}: {o['ended']}: {o['error']} {o['message']}" for n, o in broken.items()]
    return "\n".join(lines) + "\n"


def _named(places: Mapping[str, int], named: float | None) -> list[str]:
    if named is None:
        return ["No error had a place that is known."]
    return [
        f"Of {places['known']:,} errors whose place is known, {named:.1%} name it: "
        f"{places['here']:,} the node or tensor that was changed, {places['near']:,} one that "
        f"reads it or that it reads; {places['elsewhere']:,} name neither."
    ]


def _rows(kinds: Mapping[str, Mapping[str, int]]) -> Sequence[tuple[str, ...]]:
    rows = [(kind, *(str(ends.get(end, 0)) for end in ENDS)) for kind, ends in kinds.items()]
    sums = [sum(ends.get(end, 0) for ends in kinds.values()) for end in ENDS]
    return [*rows, ("**all**", *(f"**{count}**" for count in sums))]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)]


def write(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write both files; return their paths."""
    from ...common.results import write as write_files

    texts = {"fuzz.json": json.dumps(found, indent=1) + "\n", "fuzz.md": markdown(found)}
    return write_files(folder, texts)
