"""What graph passes change, and which errors they and single steps hide, as whole graphs show.

Steps are compared on the optimised graph. It may lack a node that a runner computes wrongly: its
results for the two graphs differ then, though no pass is wrong. Or a step that is right alone is
wrong among others: it shares its memory with them, or is nothing to do where it is alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...runtime.base.record import record
from ...runtime.errors import UnsupportedError
from ...runtime.ir.graph import Graph
from ...runtime.ir.types import HostValue
from ..common.ended import RunnerEnded
from ..runners.replay import Player, SavedPlayer, are_own
from ..verdict.drawn import draws
from ..verdict.error_bounds import Finding, Judge
from .layer_matcher import SAMPLES

Results = Mapping[str, HostValue]


@record
class Passes:
    """What passes change.

    Attributes:
        findings: outputs of the optimised graph that are not those of the file's, wherever the
            reference and a runner run both; a single one may be wrong about a node of one of them.
        hide_an_error: whether a node of the file's graph is wrong that the optimised one lacks.
    """

    findings: tuple[Finding, ...] = ()
    hide_an_error: bool = False


def seen_of_passes(
    plain: Graph,
    optimised: Graph,
    players: Sequence[Player],
    feeds: Results,
    precision: str,
    *,
    is_found: bool,
) -> Passes:
    """Return what passes change, and whether they hide an error.

    Args:
        plain: the file's graph.
        optimised: what passes make of it.
        players: the reference, and the runners; nothing is found where they do not run the file's.
        feeds: the inputs.
        precision: of the optimised graph.
        is_found: whether a step of the optimised graph is wrong.
    """
    if any(map(draws, plain.nodes)):
        return Passes()
    reference, *runners = players

    def run(player: Player, graph: Graph) -> Results | None:
        try:
            return player.run(graph, feeds)
        except (UnsupportedError, RunnerEnded):
            return None

    def differing(wanted: Results, found: Results, *sides: Player) -> list[Finding]:
        judge = Judge(plain, feeds, precision, maximum=SAMPLES, own=are_own(*sides))
        return [finding for finding in judge.findings(wanted, found) if not finding.ok]

    def changed(player: Player, wanted: Results) -> list[Finding]:
        found = run(player, optimised)
        return [] if found is None else differing(wanted, found, player)

    wanted = run(reference, plain)
    if wanted is None:
        return Passes()
    computing = (each for each in runners if not isinstance(each, SavedPlayer))
    others = [(each, found) for each in computing if (found := run(each, plain)) is not None]
    if findings := changed(reference, wanted):
        if others and not any(changed(*each) for each in others):
            return Passes((), not is_found)
        return Passes(tuple(findings))
    if is_found:
        return Passes()
    wrong = (differing(wanted, found, reference, each) for each, found in others)
    return Passes((), any(each.verdict == "wrong" for found in wrong for each in found))


def wrong_as_a_whole(
    graphs: Sequence[Graph], reference: Player, runner: Player, feeds: Results, precision: str
) -> tuple[Finding, ...]:
    """Return the outputs that are wrong where a runner runs a whole graph; of the first such one.

    Args:
        graphs: the optimised graph, or that of the file, or both.
        reference: who is right.
        runner: who may be wrong; nothing is found where it does not run a graph.
        feeds: the inputs.
        precision: of the runner.
    """
    if isinstance(runner, SavedPlayer) or any(draws(node) for g in graphs for node in g.nodes):
        return ()
    for graph in graphs:
        try:
            wanted, found = (player.run(graph, feeds) for player in (reference, runner))
        except (UnsupportedError, RunnerEnded):
            continue
        judge = Judge(graph, feeds, precision, own=are_own(reference, runner))
        findings = judge.findings(wanted, found)
        if wrong := tuple(each for each in findings if each.verdict == "wrong"):
            return wrong
    return ()
