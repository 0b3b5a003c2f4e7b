"""Reduction of a model to its smallest wrong part, with inputs and a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...importers.onnx.writing.export import About
from ...importers.onnx.writing.masks import with_full_masks
from ...importers.onnx.writing.save import save
from ...runtime.base.files import write_text
from ...runtime.errors import UnsupportedError
from ...runtime.ir.graph import Graph, Node
from ...runtime.ir.types import Array, HostValue
from ...version import __version__
from ..common.archives import write_archive
from ..common.search import smallest
from ..runners.replay import Values, feeds_of, part_of

#: Whether a graph is wrong on given inputs.
IsWrong = Callable[[Graph, Values], bool]

T = TypeVar("T")

#: The minimum opset of written parts.
_OPSET = 13


@dataclass(frozen=True, slots=True)
class Reduced:
    """A part of a model that alone is wrong.

    Attributes:
        graph: the part.
        feeds: its inputs, as the reference computed them.
        nodes: the file's names of its nodes.
    """

    graph: Graph = field(repr=False)
    feeds: dict[str, HostValue] = field(repr=False)
    nodes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return names and types, for JSON."""
        return {
            "nodes": list(self.nodes),
            "inputs": [f"{value.name}: {value.type}" for value in self.graph.inputs],
            "outputs": list(self.graph.outputs),
        }


def reduce_graph(
    graph: Graph, values: Values, is_wrong: IsWrong, suspects: Sequence[Node] = ()
) -> Reduced | None:
    """Return the smallest wrong range of nodes found by trimming both ends.

    Args:
        graph: as the file has it, with types of the inputs bound.
        values: all values that the reference computed, and the inputs.
        is_wrong: runs a part on some of these values.
        suspects: likely faulty nodes: tried individually first, then together.

    Returns:
        None if not even all nodes together are wrong on these values.
    """
    nodes = list(graph.nodes)

    def attempt(part: Sequence[Node]) -> bool:
        if not part:
            return False
        cut = part_of(graph, part)
        return is_wrong(cut, feeds_of(cut, values))

    trials = [*([node] for node in suspects), list(suspects), nodes]
    nodes = next((trial for trial in trials if attempt(trial)), [])
    if not nodes:
        return None
    nodes = _shortest(nodes, attempt)
    nodes = thinned(nodes, attempt)
    part = part_of(graph, nodes)
    names = tuple(dict.fromkeys(name for node in nodes for name in node.origin))
    return Reduced(part, feeds_of(part, values), names)


def _shortest(nodes: list[Node], attempt: Callable[[Sequence[Node]], bool]) -> list[Node]:
    """Trim nodes off the end, then off the start, as long as the rest stays wrong."""
    end = smallest(len(nodes), lambda count: attempt(nodes[:count]))
    nodes = nodes[:end]
    count = smallest(len(nodes), lambda count: attempt(nodes[len(nodes) - count :]))
    return nodes[len(nodes) - count :]


def thinned(items: list[T], attempt: Callable[[Sequence[T]], bool]) -> list[T]:
    """Drop items in ever smaller pieces as long as the rest has a property.

    Args:
        items: items that have the property.
        attempt: tests a subset.
    """
    size = len(items) // 2
    while size:
        at = 0
        while at < len(items):
            rest = items[:at] + items[at + size :]
            if rest and attempt(rest):
                items = rest
            else:
                at += size
        size //= 2
    return items


# ── files ────────────────────────────────────────────────────────────────────────────────────────

SCRIPT = """# A part of {model!a} that is right on {reference!a}, and wrong on {runner!a}.
# Written by tercet {version}. Ends with 1 as long as it is.

import sys
from pathlib import Path

from tercet.tools.bisect.bisection import bisect
from tercet.tools.common.inputs import InputRequest

FOLDER = Path(__file__).resolve().parent

found = bisect(
    FOLDER / "{stem}.onnx",
    {runners},
    InputRequest(folder=FOLDER / "{stem}.npz"),
    reduce=False,
    **{options},
)
print(found)
sys.exit(found.exit_code)
"""


def write_reduced(
    reduced: Reduced,
    folder: Path,
    *,
    model: str,
    runners: Sequence[str],
    options: dict[str, Any] | None = None,
) -> tuple[Path, Path, Path]:
    """Write ``reduced.onnx``, ``reduced.npz`` and ``reproduce.py`` to a folder.

    Args:
        reduced: the part.
        folder: the folder; created if missing.
        model: the model that the part was cut out of.
        runners: names of the reference and the runner.
        options: further options of the runners.

    Raises:
        UnsupportedError: an input is a list or something else that no .npz file can hold.
        OSError: the files cannot be written.
    """
    arrays = {name: _array(name, value) for name, value in reduced.feeds.items()}
    folder.mkdir(parents=True, exist_ok=True)
    stem = "reduced"
    files = folder / f"{stem}.onnx", folder / f"{stem}.npz", folder / "reproduce.py"
    about = About(version=__version__, metadata={"part of": model})
    graph = with_full_masks(reduced.graph)
    save(graph, files[0], at_least={"": _OPSET}, about=about)
    write_archive(files[1], arrays)
    reference, runner = runners
    write_text(
        files[2],
        SCRIPT.format(
            reference=reference,
            runner=runner,
            model=model,
            version=__version__,
            stem=stem,
            runners=list(runners),
            options=dict(options or {}),
        ),
    )
    return files


def _array(name: str, value: HostValue) -> Array:
    if not isinstance(value, np.ndarray | np.generic):
        raise UnsupportedError(
            f"'{name}' is a {type(value).__name__}, which an .npz file cannot hold"
        )
    return np.asarray(value)
