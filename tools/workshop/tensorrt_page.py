"""The support table of the tensorrt backend as a page: operator × dtype × opset."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..common.markdown import head, table
from .tensorrt_survey import SurveyedNode

#: Declines by the backend of nodes that the library may support, with their reasons.
CHOICES: Mapping[str, str] = {
    r"has dtype float64$": "the library computes float64 in float32",
    r"has dtype int8$": "the library does not say what becomes of sums beyond 8 bits",
    r"has dtype uint8$": "the library has hardly an operator for unsigned bytes",
    r"has no elements$": "there is nothing to compute, and no address to read it from",
    r"is not a constant$": "engines have shapes and axes fixed",
    r"loses its last axis here": "alone it is taken, with two recurrences it is not",
    r"cannot be tensor\(|^regions are written": "its form is newer than the regions' opset",
}
_LONGEST = 160


@dataclass(frozen=True, slots=True)
class SupportTable:
    """The whole table.

    Attributes:
        about: versions, machine, command, and what was looked at.
        nodes: every kind of node, once.
        regions: every region, once.
        failed: models that do not run here, with the reason.
    """

    about: Mapping[str, str]
    nodes: Sequence[SurveyedNode]
    regions: Sequence[SurveyedNode]
    failed: Mapping[str, str]


def choice(asked: SurveyedNode) -> str:
    """Return why the backend leaves what the library takes; empty where it has no reason."""
    found = (why for pattern, why in CHOICES.items() if re.search(pattern, asked.refusal))
    return next(found, "")


def is_wrong_claim(asked: SurveyedNode) -> bool:
    """Whether the backend claims what the library refuses."""
    return not asked.refusal and not asked.verdict


def is_wrong_refusal(asked: SurveyedNode) -> bool:
    """Whether the backend refuses what the library takes, without giving another reason."""
    return bool(asked.refusal and asked.verdict) and not choice(asked)


def page(found: SupportTable) -> tuple[str, int]:
    """Return the page, and how many claims and refusals on it are wrong."""
    nodes, regions = found.nodes, found.regions
    wrong = [each for each in nodes if is_wrong_claim(each)]
    missed = [each for each in nodes if is_wrong_refusal(each)]
    broken = [each for each in regions if not each.verdict]
    text = (
        "Written by `python -m tercet.tools.workshop.tensorrt_support`: every kind of node, and "
        "every region that the tensorrt backend forms, went through TensorRT's parser and builder. "
        "Nothing was run."
    )
    lines = [
        *head("What TensorRT supports", text, found.about),
        "| | nodes | regions |",
        "|---|---|---|",
        *_counts(nodes, regions),
        f"| **claimed here, refused there** | {len(wrong)} | {len(broken)} |",
        f"| **refused here without a reason, taken there** | {len(missed)} | |",
    ]
    for title, rows in (("Wrong claims", wrong), ("Wrong refusals", missed), ("Regions", broken)):
        if rows:
            lines += ["", f"## {title}", "", *map(_told, rows)]
    lines += ["", "## Operators", "", *_operators(nodes)]
    lines += ["", "## Refused by the library, with its words", "", *_refused(nodes)]
    lines += ["", "## Taken by the library, left to other kernels", "", *_left(nodes)]
    if found.failed:
        lines += ["", "## Models that do not run", ""]
        lines += [f"- {name}: {_short(why)}" for name, why in found.failed.items()]
    return "\n".join([*lines, ""]), len(wrong) + len(missed) + len(broken)


def _counts(nodes: Sequence[SurveyedNode], regions: Sequence[SurveyedNode]) -> list[str]:
    small = sum(bool(each.refusal) for each in regions)
    built, asked = sum(map(_built, nodes)), sum(each.verdict is not None for each in nodes)
    claimed = sum(not each.refusal for each in nodes)
    largest = max((int(each.operator) for each in regions), default=0)
    parts, whole = len(regions), sum(map(_built, regions))
    return [
        f"| asked about, each kind once: alone, or in a region that was built | {asked} "
        f"| {parts} (the largest of {largest} nodes) |",
        f"| built by the library | {built} | {whole} |",
        f"| refused by the library | {asked - built} | {parts - whole} |",
        f"| not to be written in any opset it reads | {len(nodes) - asked} | |",
        f"| claimed by the backend | {claimed} | {parts - small}, {small} too small |",
    ]


def _built(asked: SurveyedNode) -> bool:
    return bool(asked.verdict)


def _told(asked: SurveyedNode) -> str:
    why = asked.refusal or (asked.verdict.reason if asked.verdict is not None else "")
    return f"- {asked.operator} ({asked.types}), {asked.source}: {_short(why)}"


def _operators(nodes: Sequence[SurveyedNode]) -> list[str]:
    """Return a row per operator, dtypes and opset: how many kinds were taken and refused."""
    kinds: dict[tuple[str, str, str], Counter[str]] = {}
    for each in nodes:
        counts = kinds.setdefault((each.operator, each.types, each.written), Counter())
        counts["taken" if each.verdict else "refused"] += 1
        counts["claimed"] += not each.refusal
    counts = ("taken", "refused", "claimed")
    rows = ((*key, *(str(n[each] or "") for each in counts)) for key, n in sorted(kinds.items()))
    return table(("operator", "dtypes", "opset", *counts), rows)


def _refused(nodes: Sequence[SurveyedNode]) -> list[str]:
    words: dict[tuple[str, str, str], Counter[str]] = {}
    for each in nodes:
        if not each.verdict:
            said = each.verdict.reason if each.verdict is not None else "cannot be written for it"
            stage = each.verdict.stage if each.verdict is not None else "-"
            words.setdefault((each.operator, stage, _short(said)), Counter())[each.types] += 1
    rows = ((*key, "; ".join(sorted(types))) for key, types in sorted(words.items()))
    return table(("operator", "stage", "message", "dtypes"), rows)


def _left(nodes: Sequence[SurveyedNode]) -> list[str]:
    found: dict[str, Counter[str]] = {}
    for each in nodes:
        if each.verdict and each.refusal:
            found.setdefault(choice(each) or each.refusal, Counter())[each.operator] += 1
    return [
        f"- {why}: " + ", ".join(f"{name} ({n})" for name, n in sorted(names.items()))
        for why, names in sorted(found.items())
    ]


def _short(text: str) -> str:
    """Return the library's words on one line: without its places in source files, and not all."""
    text = re.sub(r"\(?In \w+ at /?[\w/.]+:\d+\)?|/_src[\w/.]+:\d+", "", text)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
