"""One model on some inputs: its graphs, who runs them as they are planned, and their judge.

`compare_layers` and `bisect` ask it. So they run what `compare` runs, the bodies of control flow
optimised as well, and judge outputs by what `compare` asks, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...runtime.ir.dtypes import float32
from ...runtime.ir.graph import Graph
from ...runtime.ir.types import HostValue
from ...runtime.options import Options
from ...runtime.passes import Rewrite, Rewrites
from ...runtime.passes.half.widen_halves import widen_halves
from ..common.console import Say, silent
from ..runners.replay import PassList, Player, are_own, as_written, planned, prepared
from ..verdict.error_bounds import Finding
from ..verdict.tolerances import Bounds, Chosen

Results = Mapping[str, HostValue]


class Case:
    """Prepares a model's graphs, and judges outputs of whole ones.

    Args:
        imported: the graph as imported; stays as it is.
        feeds: a value for every input.
        options: of the runners.
        passes: passes to use instead of the default ones.
        say: called with a description of each stage.

    Attributes:
        feeds, options: see above.
    """

    def __init__(
        self,
        imported: Graph,
        feeds: Results,
        options: Options,
        passes: PassList | None = None,
        say: Say = silent,
    ) -> None:
        self.feeds, self.options = feeds, options
        self._imported, self._passes = imported, passes
        self._late: dict[Graph, Options] = {}
        self._bounds = Bounds(imported, feeds, Chosen(), (), say)

    @cached_property
    def written(self) -> Graph:
        """The file's graph, with the shapes that the inputs give."""
        return as_written(self._imported, self.feeds)

    def optimised(
        self, options: Options, log: Rewrites | None = None, late: Options | None = None
    ) -> Graph:
        """Return what passes make of the graph.

        Args:
            options: of the passes; `stop_at` counts symbolic and static rewrites.
            log: gets one entry per rewrite, the last one for all that floats of 16 bits, kept in
                float32, change.
            late: of the passes on bodies, which run when sizes are known; `options` if None.
        """
        log = Rewrites() if log is None else log
        graph = prepared(self._imported, self.feeds, options, self._passes, log)
        if self._passes is None:
            self._late[graph] = late or options
            if options.widens:
                _widen(graph, options, log)
        return graph

    def player(self, player: Player, graph: Graph) -> Player:
        """Return a player that runs a graph as a model's is run, its bodies optimised with it."""
        return planned(player, self._late.get(graph))

    def findings(self, wanted: Results, found: Results, *sides: Player) -> list[Finding]:
        """Compare the outputs of whole graphs, of those who computed them."""
        precisions = self.options.precision, *(each.precision for each in sides)
        return self._bounds.judge(precisions, own=are_own(*sides)).findings(wanted, found)


def _widen(graph: Graph, options: Options, log: Rewrites) -> None:
    """Keep floats of 16 bits in float32, as a model does before it is planned."""
    before = set(graph.nodes)
    widen_halves(graph, lambda data: data.astype(float32), options.fold_total)
    made = [node for node in graph.nodes if node not in before and node.kind != "Cast"]
    if made:
        names = ", ".join(f"'{node.name}'" for node in made[:3])
        more = f" and {len(made) - 3} more" if len(made) > 3 else ""
        text = f"{names}{more} compute in float32"
        log.log.append(Rewrite(len(log) + 1, "widen_halves", text))
