"""What importing a file changes, as seen by a program that reads the file itself.

Steps are compared on the graph that tercet has read: another program gets it, or parts of it, as a
file that tercet writes. An error of the importer is the same on both sides then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...api import Loadable
from ...runtime.errors import UnsupportedError
from ...runtime.ir.graph import Graph
from ...runtime.ir.types import Array, HostValue
from ..common.ended import RunnerEnded
from ..common.nested import flat
from ..runners.replay import FilePlayer
from ..runners.runners import RunnerSettings, open_runner
from ..verdict.error_bounds import Finding, Judge

#: What is said of a file that only tercet reads.
NOT_READ = "what importing the file changes has not been compared"


def changed_by_import(
    source: Loadable, graph: Graph, player: FilePlayer, feeds: Mapping[str, HostValue]
) -> tuple[tuple[Finding, ...], str]:
    """Return the outputs that a program gives for a file, and not for what was read of it.

    Returns:
        What differs, and why the program does not run the file itself; empty if it does.

    Args:
        source: the file.
        graph: all that was read of it.
        player: the program; nothing is found where it does not run what was read.
        feeds: the inputs.
    """
    if not all(node.op.deterministic for node in graph.walk()):
        return (), ""
    # Without names of outputs the program reads the file, and its external data, by itself.
    settings = RunnerSettings(title=player.title, as_written=True)
    try:
        found = player.run(graph, feeds)
    except (UnsupportedError, RunnerEnded):
        return (), ""
    try:
        runner = open_runner(player.name, source, settings, player.process)
        try:
            given: dict[str, Any] = {value.name: feeds[value.name] for value in graph.inputs}
            results = runner.run(given)
            wanted = {name: results[name] for name in graph.outputs if name in results}
        finally:
            runner.close()
    except (UnsupportedError, RunnerEnded) as error:
        return (), str(error)
    if _same(flat(wanted), flat(found)):
        return (), ""
    judge = Judge(graph, feeds, "float32", own=False)
    return tuple(found for found in judge.findings(wanted, found) if not found.ok), ""


def _same(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    """Whether all bits are the same, which needs no judge."""

    def bits(x: Array) -> tuple[object, ...]:
        x = np.asarray(x)
        return x.dtype, x.shape, x.tolist() if x.dtype == object else x.tobytes()

    return a.keys() == b.keys() and all(bits(a[name]) == bits(b[name]) for name in a)
