"""What importing a file changes, as seen by a program that reads the file itself.

Steps are compared on the graph that tercet has read: another program gets it, or parts of it, as a
file that tercet writes. An error of the importer is the same on both sides then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...api import Loadable
from ...runtime.base.record import record
from ...runtime.errors import LimitError, UnsupportedError
from ...runtime.ir.graph import Graph
from ...runtime.ir.types import Array, HostValue
from ...runtime.options import Options
from ..common.ended import RunnerEnded
from ..common.nested import flat
from ..runners.onnx_files import OnnxFile
from ..runners.replay import FilePlayer, as_written, live_values, prepared
from ..runners.runners import RunnerSettings, open_runner
from ..verdict.drawn import draws
from ..verdict.error_bounds import Finding, Judge

#: What is said of a file that only tercet reads.
NOT_READ = "what importing the file changes has not been compared"


@record
class Imported:
    """What importing a file changes.

    Attributes:
        findings: the outputs that a program gives for the file, and not for what was read of it.
        node: the file's name of the first node of which this is so; empty if it is not known.
        unread: why the program does not run the file itself, or why its run says nothing; empty if
            neither is so.
    """

    findings: tuple[Finding, ...] = ()
    node: str = ""
    unread: str = ""


def changed_by_import(
    source: Loadable, imported: Graph, player: FilePlayer, feeds: Mapping[str, HostValue]
) -> Imported:
    """Return what a program gives for a file, and not for what was read of it.

    Args:
        source: the file.
        imported: all that was read of it.
        player: the program; nothing is found where it does not run what was read.
        feeds: the inputs.
    """
    written = as_written(imported, feeds)
    if any(map(draws, written.nodes)):
        return Imported()
    try:
        found = player.run(written, feeds)
    except (UnsupportedError, RunnerEnded):
        return Imported()
    try:
        results = _of_file(source, written, player, feeds)
    except (UnsupportedError, RunnerEnded) as error:
        return Imported(unread=str(error))
    graph, changed = written, _changed(source, written, player, feeds, results, found)
    folded = prepared(imported, feeds, Options(stop_at=0))
    if not changed.findings and len(folded.nodes) != len(written.nodes):
        try:  # elements that inference knows are constants there
            found = player.run(folded, feeds)
            graph, changed = folded, _changed(source, folded, player, feeds, results, found)
            if changed.findings:
                node = _first_mistaken(source, written, player, feeds)
                changed = replace(changed, node=node or changed.node)
        except (UnsupportedError, RunnerEnded):
            return changed
    if not changed.findings:
        return changed
    again = player.run(graph, feeds), _of_file(source, graph, player, feeds)
    for before, after in zip((found, results), again, strict=True):
        if not _same(flat(before), flat(after)):
            return Imported(unread=f"{player.name} gives something else in its second run")
    return changed


def _changed(
    source: Loadable,
    graph: Graph,
    player: FilePlayer,
    feeds: Mapping[str, HostValue],
    results: Mapping[str, Any],
    found: Mapping[str, HostValue],
) -> Imported:
    """Return in what the results of a file and of a graph differ."""
    wanted = {name: results[name] for name in graph.outputs if name in results}
    if _same(flat(wanted), flat(found)):
        return Imported()
    judge = Judge(graph, feeds, "float32", own=False, one_sided=True)
    findings = tuple(each for each in judge.findings(wanted, found) if not each.ok)
    return Imported(findings, _first_changed(source, graph, player, feeds) if findings else "")


def _of_file(
    source: Loadable,
    graph: Graph,
    player: FilePlayer,
    feeds: Mapping[str, HostValue],
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what a program gives for a file itself: its outputs, or the tensors that are named.

    Without names the program reads the file, and its external data, by itself.
    """
    settings = RunnerSettings(tuple(names), title=player.title, as_written=True)
    runner = open_runner(player.name, source, settings, player.process)
    try:
        given: dict[str, Any] = {value.name: feeds[value.name] for value in graph.inputs}
        return runner.run(given)
    finally:
        runner.close()


def _first_changed(
    source: Loadable, graph: Graph, player: FilePlayer, feeds: Mapping[str, HostValue]
) -> str:
    """Return the file's first node with a result that importing changes."""
    every = graph.clone()
    made = {**{value.name: value for value in live_values(every)}, **every.outputs}
    try:
        in_file = [name for node in OnnxFile(source).message().graph.node for name in node.output]
        names = [name for name in in_file if name in made]
        every.set_outputs({name: made[name] for name in names})
        found = player.run(every, feeds)
        wanted = _of_file(source, graph, player, feeds, names)
    except (LimitError, UnsupportedError, RunnerEnded):
        return ""
    judge = Judge(every, feeds, "float32", own=False)
    wrong = [each.agreement.output for each in judge.findings(wanted, found) if not each.ok]

    def is_wrong(name: str) -> bool:
        return any(each == name or each.startswith(f"{name}[") for each in wrong)

    node = next((made[name].producer for name in names if is_wrong(name)), None)
    return "" if node is None else ", ".join(node.origin or (node.name,))


def _first_mistaken(
    source: Loadable, written: Graph, player: FilePlayer, feeds: Mapping[str, HostValue]
) -> str:
    """Return the file's first node of which inference knows other elements than it has."""
    every = written.clone()
    every.set_outputs({value.name: value for value in live_values(every)})
    known = {value.name: value.known for value in every.outputs.values()}
    try:
        in_file = [name for node in OnnxFile(source).message().graph.node for name in node.output]
        names = [name for name in in_file if known.get(name) is not None]
        has = flat(_of_file(source, written, player, feeds, names)) if names else {}
    except (LimitError, UnsupportedError, RunnerEnded):
        return ""
    judge = Judge(every, feeds, "float32", own=False)
    wrong = judge.findings(has, flat({name: known[name] for name in has}))
    node = next((every.outputs[f.agreement.output].producer for f in wrong if not f.ok), None)
    return "" if node is None else ", ".join(node.origin or (node.name,))


def _same(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    """Whether all bits are the same, which needs no judge."""

    def bits(x: Array) -> tuple[object, ...]:
        x = np.asarray(x)
        return x.dtype, x.shape, x.tolist() if x.dtype == object else x.tobytes()

    return a.keys() == b.keys() and all(bits(a[name]) == bits(b[name]) for name in a)
