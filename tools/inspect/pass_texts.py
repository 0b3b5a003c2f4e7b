"""The graph as text before and after each pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import pairwise
from pathlib import Path

from ...backends.numpy import evaluate
from ...runtime.base.files import write_text
from ...runtime.ir.graph import Graph
from ...runtime.ir.infer import specialise
from ...runtime.ir.types import ValueType
from ...runtime.options import Options
from ...runtime.passes import STATIC_PASSES, SYMBOLIC_PASSES, Rewrites, optimise

#: Pseudo-passes: the imported graph, and the binding of shapes.
IMPORTED, BOUND = "imported", "shapes bound"


@dataclass(frozen=True, slots=True)
class PassText:
    """A graph after a pass.

    Attributes:
        name: the pass; `IMPORTED` for the imported graph, `BOUND` for bound shapes.
        rewrites: number of rewrites.
        text: the graph, one node per line.
    """

    name: str
    rewrites: int
    text: str


def pass_texts(
    imported: Graph, options: Options, types: Mapping[str, ValueType] | None = None
) -> tuple[PassText, ...]:
    """Return the imported graph, and the graph after each pass that changed it.

    Args:
        imported: as imported; not modified.
        options: budgets, `skip` and `stop_at`.
        types: of the inputs; if None, passes that need shapes do not run.
    """
    graph, log = imported.clone(), Rewrites()
    found = [PassText(IMPORTED, 0, str(graph))]

    def note(name: str, before: int) -> None:
        text = str(graph)
        if text != found[-1].text or len(log) > before:
            found.append(PassText(name, len(log) - before, text))

    for each in SYMBOLIC_PASSES:
        before = len(log)
        optimise(graph, (each,), options, evaluate, log)
        note(each.name, before)
    if types is not None:
        graph = specialise(graph, types)
        note(BOUND, len(log))
        for each in STATIC_PASSES:
            before = len(log)
            optimise(graph, (each,), options, evaluate, log)
            note(each.name, before)
    return tuple(found)


def differences_of(texts: Sequence[PassText]) -> list[tuple[str, str]]:
    """Return for each text but the first its name, and a unified diff from the previous one."""
    found: list[tuple[str, str]] = []
    for number, (before, after) in enumerate(pairwise(texts), 1):
        names = file_name(number - 1, before), file_name(number, after)
        lines = unified_diff(
            before.text.splitlines(), after.text.splitlines(), *names, n=1, lineterm=""
        )
        found.append((after.name, "\n".join(lines)))
    return found


def file_name(number: int, text: PassText) -> str:
    """Return the name of a file written by `write_texts`: ``03-fold_batchnorm.txt``."""
    return f"{number:02}-{text.name.replace(' ', '_')}.txt"


def write_texts(folder: Path, texts: Sequence[PassText]) -> list[Path]:
    """Write every text to a separate file; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for number, text in enumerate(texts):
        file = folder / file_name(number, text)
        write_text(file, text.text + "\n")
        files.append(file)
    return files
