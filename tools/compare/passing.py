"""What graph passes change, and which errors they and single steps hide, as whole graphs show.

Steps are compared on the optimised graph. It may lack a node that a runner computes wrongly: its
results for the two graphs differ then, though no pass is wrong. Or a step that is right alone is
wrong among others: it shares its memory with them, or is nothing to do where it is alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...runtime.base.record import record
from ...runtime.errors import TercetError, TimeLimitError, UnsupportedError
from ...runtime.ir.graph import Graph
from ..common.ended import RunnerEnded
from ..runners.replay import Player, SavedPlayer
from ..verdict.drawn import draws
from ..verdict.error_bounds import Finding
from .case import Case, Results


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
    case: Case, optimised: Graph, players: Sequence[Player], *, is_found: bool
) -> Passes:
    """Return what passes change, and whether they hide an error.

    Args:
        case: the model.
        optimised: what passes make of it.
        players: the reference, and the runners; nothing is found where they do not run the file's.
        is_found: whether a step of the optimised graph is wrong.
    """
    plain = case.written
    if any(map(draws, plain.nodes)):
        return Passes()
    reference, *runners = players

    def run(player: Player, graph: Graph) -> Results | None:
        try:
            return case.player(player, graph).run(graph, case.feeds)
        except (UnsupportedError, RunnerEnded):
            return None

    def differing(wanted: Results, found: Results, *sides: Player) -> list[Finding]:
        return [each for each in case.findings(wanted, found, *sides) if not each.ok]

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
    case: Case, graph: Graph, values: Results, sides: tuple[Player, Player]
) -> tuple[Finding, ...]:
    """Return the outputs that are wrong where a runner runs a whole graph.

    Args:
        case: the model.
        graph: the file's, or what passes make of it.
        values: what the reference computes in it.
        sides: the reference and the runner; nothing is found where that does not run the graph.
    """
    runner = sides[1]
    if isinstance(runner, SavedPlayer) or any(map(draws, graph.nodes)):
        return ()
    try:
        found = case.player(runner, graph).run(graph, case.feeds)
    except TimeLimitError:
        raise
    except TercetError:
        return ()
    wanted = {
        name: values[value.name] if value.data is None else value.data
        for name, value in graph.outputs.items()
    }
    findings = case.findings(wanted, found, *sides)
    return tuple(each for each in findings if each.verdict == "wrong")
