"""The OpenVINO backend: claims regions of nodes whose results agree with the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from functools import partial

from ...runtime.errors import UnsupportedError
from ...runtime.ir import dtypes
from ...runtime.ir.dtypes import DType, name_of
from ...runtime.ir.graph import Graph, Node
from ...runtime.ir.op import Op
from ...runtime.options import Options
from ...runtime.plan.backend import BuildContext, Claim, Decline
from ...runtime.plan.host import HOST, HostDevice
from ...runtime.plan.partition import reads_of
from ..regions.regions import MIN_NODES, Region, regions
from ..regions.section import section
from .compiler import CompiledRegion, RegionCompiler, RegionRefused, layers_of
from .forms import MARK, spelled
from .step import CompiledRegionStep
from .trial import TrialRunner

#: Element types of tensors.
DTYPES: frozenset[DType] = frozenset(
    (dtypes.float32, dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.int64, dtypes.bool_)
)
#: Dtypes that the plugin converts to others between layers, and how.
WIDENED: Mapping[DType, str] = {
    dtypes.float16: "it computes float16 in float32, without rounding between layers",
    dtypes.bfloat16: "it computes bfloat16 in float32, without rounding between layers",
    dtypes.float64: "it computes float64 in float32",
}
#: Minimum number of result elements for which a single node is worth a call.
LARGE = 1 << 16


class OpenvinoBackend:
    """Regions as compiled models of OpenVINO's CPU plugin; see `runtime.backend.Backend`.

    Args:
        compiler: compiles and caches regions.
        minimum: minimum number of computing nodes of a region, unless one of them multiplies
            matrices or has a large result.
    """

    name = "openvino"

    def __init__(self, compiler: RegionCompiler, minimum: int = MIN_NODES) -> None:
        self._compiler = compiler
        self._minimum = minimum
        self._judge = TrialRunner(compiler)
        self._barred: dict[str, str] = {}

    @property
    def device(self) -> HostDevice:
        """The host, whose memory numpy and OpenVINO share."""
        return HOST

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim | Decline]:
        """Yield a claim for each region that is worth a call, and a reason for every other node."""
        taken: dict[Node, bool] = {}
        for node in graph.nodes:
            if node in free:
                reason, is_spelled = self._answer(graph, node, options)
                if reason and not node.op.view:
                    yield Decline(node, reason)
                if not reason:
                    taken[node] = is_spelled
        for region in regions(graph, taken.keys()):
            if self._is_worthwhile(region):
                plain = frozenset(node.name for node in region if not taken[node])
                yield Claim(region, partial(self._build, graph, region, plain, options))
                continue
            for node in region:
                if not node.op.view:
                    yield Decline(node, f"its region of {len(region)} is too small for a call")

    def _is_worthwhile(self, region: Region) -> bool:
        computing = [node for node in region if not node.op.view]
        if not computing or not reads_of(region):
            return False
        return len(computing) >= self._minimum or any(map(_is_large, computing))

    def _answer(self, graph: Graph, node: Node, options: Options) -> tuple[str, bool]:
        """Return why a node cannot be in a region (or empty), and whether it is decomposed."""
        reason = _misfit(node) or self._barred.get(_identity(node), "")
        if reason:
            return reason, False
        if node.op.dense:  # tried in its region, together with the nodes fused with it
            return "", False
        verdict = self._judge.node(graph, node, options.finite)
        return verdict.reason, verdict.spelled

    def _build(
        self,
        graph: Graph,
        region: Region,
        plain: frozenset[str],
        options: Options,
        site: BuildContext,
    ) -> CompiledRegionStep | Decline:
        where = f"OpenVINO {self._compiler.vendor.version}"
        try:
            found = spelled(section(graph, region, options.ranges), plain)
            approve = partial(self._approve, graph, region, plain, options.finite)
            engine = self._compiler.get(found, approve)
        except UnsupportedError as error:
            return Decline(_named(region, str(error)), str(error))
        except RegionRefused as error:
            return Decline(_node(region, error.node), f"{where}: {error.reason}")
        if [t.name for t in found.inputs] != [v.name for v in site.inputs]:
            raise ValueError(f"the section reads {found.inputs}, the step {site.inputs}")
        return CompiledRegionStep(found, engine, len(region))

    def _approve(
        self,
        graph: Graph,
        region: Region,
        plain: frozenset[str],
        finite: bool,
        engine: CompiledRegion,
    ) -> None:
        """Try fused layers, and products, which were not tried alone.

        Raises:
            RegionRefused: a layer is wrong; names the last node of it that computes.
        """
        wrong: list[RegionRefused] = []
        for nodes in fused(region, engine):
            if len(nodes) == 1 and not nodes[0].op.dense:
                continue
            verdict = self._judge.group(graph, nodes, finite, plain)
            if verdict.reason:
                last = [node for node in nodes if not node.op.view][-1]
                among = f" (fused: {' + '.join(n.kind for n in nodes)})" if nodes[1:] else ""
                self._barred[_identity(last)] = f"{verdict.reason}{among}"
                wrong.append(RegionRefused(last.name, self._barred[_identity(last)]))
        if wrong:
            raise wrong[0]


def _is_large(node: Node) -> bool:
    return node.op.dense or any(value.tensor.size >= LARGE for value in node.outputs)


def _identity(node: Node) -> str:
    return f"{node.name} {node.signature()}"


def _misfit(node: Node) -> str:
    """Return which tensor of a node has a type that OpenVINO lacks; empty if there is none."""
    op: Op = node.op
    if op.domain:
        return f"an operator of '{op.domain}'"
    if not op.deterministic:
        return "it draws random numbers"
    for value in (*node.distinct_reads, *node.outputs):
        dtype = value.tensor.dtype
        if dtype not in DTYPES:
            why = WIDENED.get(dtype)
            return f"'{value.name}' has dtype {name_of(dtype)}" + (f": {why}" if why else "")
        if 0 in value.tensor.dims:
            return f"'{value.name}' has no elements"
    return ""


def fused(region: Region, engine: CompiledRegion) -> list[tuple[Node, ...]]:
    """Return the nodes of a region, grouped by the layers in which OpenVINO runs them.

    A node that no layer names was rewritten into another one: it belongs to the layers of its
    readers.
    """
    owner = {name: node for node in region for name in (node.name, *(v.name for v in node.outputs))}
    part: dict[Node, set[Node]] = {node: {node} for node in region}

    def join(first: Node, second: Node) -> None:
        if part[first] is not part[second]:
            whole = part[first] | part[second]
            part.update(dict.fromkeys(whole, whole))

    remembered: set[Node] = set()
    for layer in layers_of(engine.core):
        nodes = [owner[n] for n in (name.split(MARK)[0] for name in layer.names) if n in owner]
        remembered.update(nodes)
        for node in nodes[1:]:
            join(nodes[0], node)
    for node in region:
        if node not in remembered:
            readers = [n for value in node.outputs for n in value.consumers if n in part]
            for reader in readers or [
                v.producer for v in node.distinct_reads if v.producer in part
            ]:
                join(node, reader)
    order = {node: i for i, node in enumerate(region)}
    distinct = {id(each): each for each in part.values()}.values()
    return [tuple(sorted(each, key=order.__getitem__)) for each in distinct]


def _node(region: Region, name: str) -> Node:
    """Return the node of this name, else the first computing node."""
    found = (node for node in region if name and node.name == name)
    return next(found, next(node for node in region if not node.op.view))


def _named(region: Region, message: str) -> Node:
    """Return the node that a message names in quotes, else the first computing node."""
    return next((node for node in region if f"'{node.name}'" in message), _node(region, ""))
