"""The TensorRT backend: claims regions of nodes that its parser accepts, each as one engine."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial
from typing import Protocol

from ...runtime.errors import UnsupportedError
from ...runtime.ir.graph import Graph, Node
from ...runtime.ops.recurrent import GRU, LSTM, RNN
from ...runtime.options import Options
from ...runtime.plan.backend import BuildContext, Claim, Decline, Device, Step, View
from ..regions.regions import MIN_NODES, Region, is_worthwhile, regions
from ..regions.section import Section, section
from .build import EngineSettings, SectionRefused
from .claims import OPSET, refusals
from .library import TensorrtLibrary
from .options import TensorrtOptions
from .step import Pointer


class EngineSource(Protocol):
    """Builds engines of sections: for the GPU of this machine, or only on paper."""

    vendor: TensorrtLibrary

    def takes(self, operator: str) -> bool:
        """Whether the parser supports an operator of ai.onnx."""
        ...

    def step(
        self, device: Device, pointer: Pointer, found: Section, settings: EngineSettings, size: int
    ) -> Step:
        """Return the step of a section of `size` nodes; raises `SectionRefused`."""
        ...


class TensorrtBackend:
    """Regions as TensorRT engines; see `runtime.backend.Backend`.

    Args:
        device: shared with the cuda kernels, which run declined nodes.
        engines: builds and caches engines.
        pointer: returns the address of a view on the device; CUDA's if None.
        minimum: minimum number of computing nodes of a region, unless one of them multiplies
            matrices.
    """

    name = "tensorrt"

    def __init__(
        self,
        device: Device,
        engines: EngineSource,
        pointer: Pointer | None = None,
        minimum: int = MIN_NODES,
    ) -> None:
        self.device = device
        self._engines = engines
        self._pointer = pointer or _on_cuda
        self._minimum = minimum

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim | Decline]:
        """Yield a claim for each region that is worth an engine, and a reason for other nodes."""
        why = refusals(graph, free, self._engines.takes, str(self._engines.vendor))
        for node, reason in why.items():
            if reason and not node.op.view:
                yield Decline(node, reason)
        for region in regions(graph, {node for node, reason in why.items() if not reason}):
            if is_worthwhile(region, self._minimum):
                yield Claim(region, partial(self._build, graph, region, options))
                continue
            for node in region:
                if not node.op.view:
                    yield Decline(node, f"its region of {len(region)} is too small for an engine")

    def _build(
        self, graph: Graph, region: Region, options: Options, site: BuildContext
    ) -> Step | Decline:
        settings = EngineSettings(
            tf32=options.precision == "tf32",
            workspace=options.workspace,
            level=5 if options.tune else 3,
            strip=options.of_backend("tensorrt", TensorrtOptions).strip_weights,
        )
        try:
            found = section(graph, region, options.ranges, OPSET)
            step = self._engines.step(self.device, self._pointer, found, settings, len(region))
        except UnsupportedError as error:
            return Decline(_named(region, str(error)), str(error))
        except SectionRefused as error:
            message = f"{self._engines.vendor}: {error.reason}"
            return Decline(_node(region, error.node), message)
        if [t.name for t in found.inputs] != [v.name for v in site.inputs]:
            raise ValueError(f"the section reads {found.inputs}, the step {site.inputs}")
        return step


def _node(region: Region, name: str) -> Node:
    """Return the node of this name, or one derived from it; else the most likely culprit.

    That is the last node with a loop, else the last that multiplies matrices, else the last that
    computes: the rest of the region is offered again.
    """
    for node in region:
        if name and (node.name == name or name in node.origin):
            return node
    computing = [node for node in region if not node.op.view]
    loops = [node for node in computing if isinstance(node.op, GRU | LSTM | RNN)]
    return (loops or [node for node in computing if node.op.dense] or computing)[-1]


def _named(region: Region, message: str) -> Node:
    """Return the node that a message names in quotes, else the most likely culprit."""
    return next((node for node in region if f"'{node.name}'" in message), _node(region, ""))


def _on_cuda(view: View) -> int:
    from ..cuda.driver.memory import pointer

    return pointer(view)
