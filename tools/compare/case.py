"""One model on some inputs: its graphs, who runs them as they are planned, and their judge.

`compare_layers` and `bisect` ask it. So they run what `compare` runs, the bodies of control flow
optimised as well, and judge outputs by what `compare` asks, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...runtime.ir.graph import Graph
from ...runtime.ir.types import HostValue
from ...runtime.options import Options
from ...runtime.passes import Rewrites
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
            log: gets one entry per rewrite.
            late: of the passes on bodies, which run when sizes are known; `options` if None.
        """
        graph = prepared(self._imported, self.feeds, options, self._passes, log)
        if self._passes is None:
            self._late[graph] = late or options
        return graph

    def player(self, player: Player, graph: Graph) -> Player:
        """Return a player that runs a graph as a model's is run, its bodies optimised with it."""
        return planned(player, self._late.get(graph))

    def findings(self, wanted: Results, found: Results, *sides: Player) -> list[Finding]:
        """Compare the outputs of whole graphs, of those who computed them."""
        precisions = self.options.precision, *(each.precision for each in sides)
        return self._bounds.judge(precisions, own=are_own(*sides)).findings(wanted, found)
