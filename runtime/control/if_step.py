"""An If as a step of a plan: the device takes one of two branches."""

from __future__ import annotations

from ..plan.backend import BuildContext, Run, View
from ..plan.bind import sequence
from ..plan.device_control import Decisions
from .body import Body, finder


class Branches:
    """Both branches, laid out in the same memory, as only one of them runs.

    Args:
        then: runs if the condition is true.
        other: runs if it is false.
        decisions: the device's conditional execution.

    Attributes:
        bodies: the two branches.
        kernel: see `Step`.
        nodes: approximate number of CUDA graph nodes.
        scratch: see `Step`; set by `at`.
        capturable: see `Step`.
    """

    capturable = True

    def __init__(self, then: Body, other: Body, decisions: Decisions) -> None:
        self.bodies = (then, other)
        self.kernel = f"conditional node of the graph, {then.steps} or {other.steps} steps"
        self.nodes = 2 + then.nodes + other.nodes
        self.scratch = 0
        self._decisions = decisions
        self._site: BuildContext | None = None

    def at(self, site: BuildContext) -> Branches:
        """Build the step: branches write the results that are read directly to its outputs."""
        self._site = site
        (node,) = site.nodes
        for body in self.bodies:
            pairs = zip(body.graph.outputs, node.outputs, strict=True)
            body.place(name for name, value in pairs if value in site.outputs)
        self.scratch = max(body.scratch for body in self.bodies)
        return self

    def bind(
        self, inputs: tuple[View, ...], outputs: tuple[View, ...], scratch: View | None
    ) -> Run:
        """Return a function that evaluates the condition and runs a branch at these addresses."""
        site = self._site
        if site is None or scratch is None or (cond := site.nodes[0].inputs[0]) is None:
            raise ValueError("the branches have no site, no memory or no condition")
        (node,), find = site.nodes, finder(site, inputs, outputs)
        runs: list[Run] = []
        for body in self.bodies:
            pairs = zip(body.graph.outputs, node.outputs, strict=True)
            targets = {name: find(value) for name, value in pairs if value in site.outputs}
            run = body.bind(scratch, body.captured(node, find), targets)
            copies = [
                target.device.copier(target, body.result(name, scratch, site.weights))
                for name, target in targets.items()
                if name not in body.outside
            ]
            runs.append(sequence([run, *copies]))
        then, other = runs
        return self._decisions.choose(find(cond), then, other)
