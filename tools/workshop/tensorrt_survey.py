"""Survey the claims of the tensorrt backend in a model, and the answers of TensorRT."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from ...backends.numpy import NumpyBackend, evaluate
from ...backends.regions.regions import Region, is_worthwhile, regions
from ...backends.regions.section import section, written_as
from ...backends.tensorrt.claims import OPSET, refusals
from ...importers.onnx.writing.versions import newest, schema_of
from ...runtime.errors import TercetError, UnsupportedError
from ...runtime.ir.dtypes import name_of
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.options import Options
from ...runtime.plan.backend import Claim, Decline, Device
from ...runtime.plan.host import HOST
from ...runtime.session.model import Model
from .tensorrt_worker import Verdict

#: Constants of that many elements count by value, as shapes and axes do; larger ones by type.
_FEW = 64


@dataclass(frozen=True, slots=True)
class SurveyedNode:
    """A node, or a region, and what became of it.

    Attributes:
        operator: its name; of a region, how many nodes it has.
        types: dtypes of inputs and outputs, each once.
        written: the opset that gave the operator its form; ``functions`` if it is written out.
        refusal: why the backend does not claim it; empty if it does.
        verdict: of parser and builder; None where it cannot be written for them at all.
        source: the model that had it first.
    """

    operator: str
    types: str
    written: str
    refusal: str
    verdict: Verdict | None
    source: str


@dataclass(slots=True)
class Survey:
    """A backend that claims nothing, and notes what the tensorrt backend would claim.

    Attributes:
        takes: whether the parser knows an operator.
        build: asks parser and builder.
        vendor: the library, for reasons.
        source: the model that is looked at.
        alone: whether to ask about each node alone; else only about those that no built region has.
        nodes: what came of each kind of node, by what the library sees of it.
        parts: what came of each region, by its digest.
    """

    takes: Callable[[str], bool]
    build: Callable[..., Verdict]
    vendor: str
    source: str = ""
    alone: bool = True
    nodes: dict[str, SurveyedNode] = field(default_factory=dict[str, SurveyedNode])
    parts: dict[str, SurveyedNode] = field(default_factory=dict[str, SurveyedNode])
    name: str = "tensorrt"

    @property
    def device(self) -> Device:
        """The host."""
        return HOST

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterable[Claim | Decline]:
        """Look at every node and region, and decline them all."""
        why = refusals(graph, free, self.takes, self.vendor)
        built: set[Node] = set()
        for region in regions(graph, {node for node, reason in why.items() if not reason}):
            if not all(node.op.view for node in region) and self._look_at_region(graph, region):
                built.update(region)
        for node, reason in why.items():
            self._look_at(graph, node, reason, node in built and not self.alone)
        return [Decline(n, "surveyed") for n in graph.nodes if n in free and not n.op.view]

    def _look_at(self, graph: Graph, node: Node, why: str, built: bool) -> None:
        """Ask parser and builder about a node, unless a region that it is in has been built."""
        key = signature(graph, node)
        if key not in self.nodes:
            written, verdict = self._asked(graph, node, built)
            types = ", ".join(dict.fromkeys(name_of(v.tensor.dtype) for v in _tensors(node)))
            operator = f"{node.op.domain}.{node.kind}" if node.op.domain else node.kind
            self.nodes[key] = SurveyedNode(operator, types, written, why, verdict, self.source)

    def _asked(self, graph: Graph, node: Node, built: bool) -> tuple[str, Verdict | None]:
        """Return how a node is written, and what parser and builder make of it."""
        if node.op.domain:
            return "-", None
        _, nodes, unsayable = written_as(graph, node, OPSET)
        opset = newest()[""] if unsayable else OPSET
        schema = schema_of(type(node.op), opset)
        own = schema is not None and (unsayable or nodes == (node,))
        written = str(schema.since_version) if schema is not None and own else "functions"
        if built:
            return written, Verdict("built")
        try:
            return written, self.build(section(graph, (node,), {}, opset))
        except UnsupportedError:
            return written, None

    def _look_at_region(self, graph: Graph, region: Region) -> Verdict:
        """Return the result of parser and builder for a region."""
        found = section(graph, region, {}, OPSET)
        if found.digest not in self.parts:
            small = "" if is_worthwhile(region) else "too small for an engine"
            types = ", ".join(sorted({name_of(t.type.dtype) for t in found.inputs}))
            size, verdict = str(len(region)), self.build(found)
            self.parts[found.digest] = SurveyedNode(
                size, types, str(OPSET), small, verdict, self.source
            )
        return self.parts[found.digest].verdict or Verdict("-")


def signature(graph: Graph, node: Node) -> str:
    """Return what a node is to the library: operator, types, and the values of small constants."""
    found = hashlib.sha256(f"{node.op.domain} {node.op!r} {node.op}".encode())
    for value in node.inputs:
        found.update(b"-" if value is None else _of_value(value))
    for value in node.outputs:
        is_read = bool(value.consumers) or graph.is_output(value)
        found.update(_of_value(value) + bytes([is_read]))
    return found.hexdigest()


def _of_value(value: Value) -> bytes:
    said = f"{name_of(value.tensor.dtype)}{value.tensor.dims}{value.is_constant}".encode()
    few = value.data is not None and value.data.size <= _FEW
    return said + (value.data.tobytes() if few and value.data is not None else b"")


def _tensors(node: Node) -> Iterator[Value]:
    yield from node.distinct_reads
    yield from node.outputs


def look_at(
    survey: Survey,
    source: str,
    graph: Graph,
    feeds: Mapping[str, Any] | None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> str:
    """Let a survey see every plan of a model; return why the model does not run, if so.

    Args:
        survey: what looks at it.
        source: the model's name.
        graph: as it was imported.
        feeds: inputs to run it on, on numpy; if None it is planned alone.
        shapes: of the inputs, to plan for.
    """
    survey.source = source
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Model(graph, (survey, NumpyBackend()), Options(), evaluate) as model:
                if feeds is None:
                    model.placement(shapes)
                else:
                    model.run(feeds)
        except TercetError as error:
            return f"{type(error).__name__}: {error}"
    return ""
