"""The cuDNN backend: claims nodes that a family can express, and declines the rest with reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from copy import copy
from dataclasses import replace
from functools import partial

from ...runtime.ir.graph import Graph, Node
from ...runtime.options import Options
from ...runtime.plan.backend import BuildContext, Claim, Decline
from ..cuda.device import CudaDevice
from .arbitration import Arbiter, BackendComparison, CudaTimer
from .choice import Chooser, EngineChoice, EngineTask
from .families import FAMILIES
from .library import NoPlan
from .names import CUDNN
from .registry import NodeGroup
from .step import EngineBench, GraphStep


def survey(graph: Graph, free: Set[Node], options: Options) -> Iterator[NodeGroup | Decline]:
    """Yield the groups of `free` nodes that cuDNN could run, and a reason for each other node."""
    taken = {node for node in free if _other_algorithm(node, options)}
    for node in graph.nodes:
        if node in free and node in taken and (algorithm := _other_algorithm(node, options)):
            yield Decline(node, f"algorithm '{algorithm}' is requested, which is not cuDNN's")
        if node not in free or node in taken or node.op.view:
            continue
        family = FAMILIES.get(type(node.op))
        if family is None:
            yield Decline(node, f"no cuDNN graph starts with {node.kind}")
            continue
        found = family(graph, node, free - taken, options)
        if isinstance(found, str):
            yield Decline(node, found)
            continue
        taken.update(found.nodes)
        yield found


def _asked(node: Node, options: Options) -> str:
    """Return the algorithm that the user prefers for a node; empty for any."""
    return next(iter(options.algorithms_for(node.kind, (node.name, *node.origin))), "")


def _other_algorithm(node: Node, options: Options) -> str:
    """Return the algorithm that the user requests for a node unless it is cuDNN's; else empty."""
    asked = _asked(node, options)
    return "" if asked == CUDNN else asked


class CudnnBackend:
    """Fused cuDNN graphs; see `runtime.backend.Backend`.

    Args:
        device: shared with the cuda kernels, which run declined nodes.
        chooser: finds engines.
        timer: times the cuda kernels, which with `Options.tune` run the nodes for which they are
            faster.
    """

    name = "cudnn"

    def __init__(
        self, device: CudaDevice, chooser: Chooser, timer: CudaTimer | None = None
    ) -> None:
        self.device = device
        self.chooser = chooser
        self._timer = timer
        self._comparisons: Mapping[Node, BackendComparison | None] = {}

    def prepare(self, graph: Graph, free: Set[Node], options: Options) -> CudnnBackend:
        """Return a backend that knows, with `Options.tune`, for which nodes cuda is faster."""
        if not options.tune or self._timer is None:
            return self
        arbiter = self._timer.on(graph, free, options)
        prepared = copy(self)
        prepared._comparisons = {
            found.nodes[0]: self._fought(found, arbiter)
            for found in survey(graph, free, options)
            if isinstance(found, NodeGroup) and not _asked(found.nodes[0], options)
        }
        self.device.compiler.announce("")
        return prepared

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim | Decline]:
        """Yield claims for the nodes that cuDNN runs, and a reason for each other node."""
        for found in survey(graph, free, options):
            if isinstance(found, Decline):
                yield found
                continue
            comparison = self._comparisons.get(found.nodes[0])
            if comparison is not None and comparison.lost:
                yield Decline(found.nodes[0], comparison.lost)
                continue
            build = partial(self._build, found, options.tune, comparison)
            always = tuple(found.gives.values())
            yield Claim(found.nodes, build, found.formats, always=always)

    def _fought(self, wanted: NodeGroup, arbiter: Arbiter) -> BackendComparison | None:
        """Return the comparison; None if one side cannot run or measure the nodes."""
        self.device.compiler.announce(f"measuring cuDNN: {wanted.task.title}")
        try:
            choice = self._chosen(wanted.task, tune=True)
        except NoPlan:
            return None  # building the claim gives the reason
        return None if choice.microseconds is None else arbiter.meet(wanted, choice.microseconds)

    def _chosen(self, task: EngineTask, *, tune: bool) -> EngineChoice:
        with EngineBench(self.device, task, filled=tune) as bench:
            return self.chooser.choose(task, bench, tune=tune)

    def _build(
        self,
        wanted: NodeGroup,
        tune: bool,
        comparison: BackendComparison | None,
        site: BuildContext,
    ) -> GraphStep | Decline:
        first = wanted.nodes[0]
        task = wanted.task if wanted.at is None else wanted.at(site)
        if isinstance(task, str):
            return Decline(first, task)
        try:
            choice = self._chosen(task, tune=tune)
        except NoPlan as error:
            session = self.chooser.session
            where = f"cuDNN {session.vendor.version} on {session.target}"
            return Decline(first, f"{where} has no engine: {error}")
        if comparison is not None:
            choice = replace(choice, cuda_microseconds=comparison.theirs)
        return GraphStep(self.device, site, wanted, choice)
