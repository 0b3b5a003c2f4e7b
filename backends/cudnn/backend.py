"""What cuDNN claims: convolutions with what follows them. Everything else it declines."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import partial

from ...runtime.backend import Claim, Decline, Format, Formats, Site
from ...runtime.ir import Graph, Node
from ...runtime.ops.conv import Conv, ConvTranspose
from ...runtime.ops.elementwise import Add, Relu, Sum
from ...runtime.ops.matmul import Gemm, MatMul
from ...runtime.options import Options
from ..cuda.device import CudaDevice
from .choice import Chooser, Task
from .conv import Pattern, describe, match
from .step import Bench, ConvolutionStep
from .vendor import NoPlan

_MATRIX_PRODUCT = (
    "cuDNN rounds it to TF32 (error 3e-4 on sm_90), or is 14 times slower, as a 1x1 convolution"
)
_REASONS = {
    Gemm: _MATRIX_PRODUCT,
    MatMul: _MATRIX_PRODUCT,
    Add: "follows no convolution that could add it",
    Sum: "follows no convolution that could add it",
    Relu: "follows no convolution that could apply it",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Nodes that cuDNN could run as one step.

    Attributes:
        pattern: the nodes and what they read.
        task: what an engine is needed for.
    """

    pattern: Pattern
    task: Task

    def formats(self) -> Formats:
        """Return the physical formats of what is read and given."""
        format = self.task.convolution.format
        if format is Format.PLAIN:
            return Formats()
        reads = (self.pattern.x, self.pattern.w, self.pattern.residual)
        wants = {v: format for v in reads if v is not None and not v.is_constant}
        return Formats(wants, {self.pattern.y: format})


def survey(graph: Graph, free: Set[Node], options: Options) -> Iterator[Wanted | Decline]:
    """Yield what cuDNN could run among the `free` nodes, and the reason for each of the rest."""
    taken: set[Node] = set()
    for node in graph.nodes:
        if node not in free or node in taken or node.op.view:
            continue
        if not isinstance(node.op, Conv | ConvTranspose):
            yield Decline(node, _REASONS.get(type(node.op), "only convolutions go to cuDNN"))
            continue
        convolution = describe(node, options.precision)
        if isinstance(convolution, str):
            yield Decline(node, convolution)
            continue
        pattern = match(graph, node, free - taken)
        taken.update(pattern.nodes)
        yield Wanted(pattern, Task(convolution, pattern.epilogue, options.workspace))


class CudnnBackend:
    """Convolutions as fused cuDNN graphs; see `runtime.backend.Backend`.

    Args:
        device: shared with the cuda kernels, which take what is declined.
        chooser: finds engines.
    """

    name = "cudnn"

    def __init__(self, device: CudaDevice, chooser: Chooser) -> None:
        self.device = device
        self._chooser = chooser

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim | Decline]:
        """Yield a claim for each convolution with what it can take along, a reason for the rest."""
        for found in survey(graph, free, options):
            if isinstance(found, Decline):
                yield found
            else:
                build = partial(self._build, found, options.tune)
                yield Claim(found.pattern.nodes, build, found.formats())

    def _build(self, wanted: Wanted, tune: bool, site: Site) -> ConvolutionStep | Decline:
        with Bench(self.device, wanted.task, filled=tune) as bench:
            try:
                choice = self._chooser.choose(wanted.task, bench, tune=tune)
            except NoPlan as error:
                session = self._chooser.session
                where = f"cuDNN {session.vendor.version} on {session.target}"
                return Decline(wanted.pattern.nodes[0], f"{where} has no engine: {error}")
        return ConvolutionStep(self.device, site, wanted.pattern, choice)
