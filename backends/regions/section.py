"""A region as a separate model, which a compiler reads and whose digest identifies its engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
from onnx import TensorProto

from ...importers.onnx.writing.encode import tensor_head
from ...importers.onnx.writing.expand import expanded
from ...importers.onnx.writing.export import export
from ...importers.onnx.writing.save import save
from ...importers.onnx.writing.versions import refusal
from ...importers.onnx.writing.versions import results_of as live_results
from ...runtime.base.record import record
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.infer import infer
from ...runtime.ir.types import Array, TensorType
from ...runtime.plan.partition import reads_of, results_of
from .regions import Region

#: The opset of the models; every compiler here supports all of it.
OPSET = 20

Ints = tuple[int, ...]
#: Minimum, usual and maximum shape of an input.
Profile = tuple[Ints, Ints, Ints]
#: Minimum, usual and maximum size by symbolic dimension.
Ranges = Mapping[str, tuple[int, int, int]]


@record
class SectionTensor:
    """An input or output of a section: its name there, dtype and, for this plan, shape."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Section:
    """A region as a graph.

    Attributes:
        graph: in operators of `opset`; newer ones are replaced by their functions.
        inputs: its inputs, in the order of the step's.
        outputs: its outputs, likewise.
        profiles: shapes of inputs with symbolic dimensions; empty if there are none.
        opset: its version of ai.onnx.
    """

    graph: Graph
    inputs: tuple[SectionTensor, ...]
    outputs: tuple[SectionTensor, ...]
    profiles: Mapping[str, Profile]
    opset: int = OPSET

    @cached_property
    def digest(self) -> str:
        """The digest of operators, shapes, profiles and all elements of constants."""
        found = sha256()

        def hashed(name: str, data: Array) -> TensorProto:
            found.update(np.ascontiguousarray(data).tobytes())
            return tensor_head(name, data)

        model = export(self.graph, opsets={"": self.opset}, store=hashed)
        found.update(model.SerializeToString(deterministic=True))
        found.update(repr(sorted(self.profiles.items())).encode())
        return found.hexdigest()

    def write(self, folder: Path) -> Path:
        """Write an ONNX file, with large constants next to it; return its path."""
        path = folder / "section.onnx"
        save(self.graph, path, opsets={"": self.opset})
        return path


def section(graph: Graph, region: Region, ranges: Ranges, opset: int = OPSET) -> Section:
    """Return a region of a plan's graph as a model.

    Args:
        graph: all shapes static.
        region: its nodes.
        ranges: possible sizes of symbolic dimensions; if they include all dimensions of a region,
            and nothing in it depends on a size, one engine serves all sizes.
        opset: the version of ai.onnx to write it in.

    Raises:
        UnsupportedError: a node cannot be written in `opset`; names it.
    """
    reads, results = reads_of(region), results_of(graph, region)
    inputs, outputs = _tensors(reads), _tensors(results)
    found = _general(graph, region, reads, results, ranges)
    if found is not None:
        part, profiles = found
        return Section(expanded(part, opset), inputs, outputs, profiles, opset)
    part = graph.cut(reads, {value.name: value for value in results})
    infer(part)
    return Section(expanded(part, opset), inputs, outputs, {}, opset)


def written_as(graph: Graph, node: Node, opset: int) -> tuple[Graph, tuple[Node, ...], str]:
    """Return a node in terms of an opset: itself, or the expansions of its functions.

    Returns:
        The graph with the nodes, the nodes, and why they cannot be written; empty if they can.
    """
    results = results_of(graph, (node,))
    if not refusal(node, opset, set(results)):
        return graph, (node,), ""
    part = graph.cut(reads_of((node,)), {value.name: value for value in results})
    infer(part)
    part = expanded(part, opset)
    found = live_results(part)
    reasons = (refusal(each, opset, found) for each in part.walk())
    return part, tuple(part.walk()), next(filter(None, reasons), "")


def _tensors(values: Sequence[Value]) -> tuple[SectionTensor, ...]:
    return tuple(SectionTensor(value.name, value.tensor.without_value()) for value in values)


# ── symbolic dimensions ──────────────────────────────────────────────────────────────────────────


def _general(
    graph: Graph,
    region: Region,
    reads: Sequence[Value],
    results: Sequence[Value],
    ranges: Ranges,
) -> tuple[Graph, dict[str, Profile]] | None:
    """Return the region before its symbols were bound, with profiles; None if it has changed."""
    general = graph.general
    if general is None or not ranges:
        return None
    by_name = {node.name: node for node in general.nodes}
    if not all(_is_same(node, by_name.get(node.name)) for node in region):
        return None
    profiles: dict[str, Profile] = {}
    for value in reads:
        profile = _profile(general.values.get(value.name), value.tensor.dims, ranges)
        if profile is None:
            return None
        profiles[value.name] = profile
    inputs = [general.values[value.name] for value in reads]
    outputs = {value.name: general.values[value.name] for value in results}
    part = general.cut(inputs, outputs)
    infer(part)
    return part, profiles


def _is_same(node: Node, twin: Node | None) -> bool:
    """Whether a node has the same inputs and outputs in the plan as in the model."""
    if twin is None or twin.op != node.op or len(twin.inputs) != len(node.inputs):
        return False
    if [value.name for value in twin.outputs] != [value.name for value in node.outputs]:
        return False
    return all(map(_is_same_value, node.inputs, twin.inputs))


def _is_same_value(value: Value | None, twin: Value | None) -> bool:
    if value is None or twin is None:
        return value is twin
    if value.data is None or twin.data is None:
        return value.data is twin.data and value.name == twin.name
    return value.data is twin.data or (
        value.data.dtype == twin.data.dtype and np.array_equal(value.data, twin.data)
    )


def _profile(twin: Value | None, dims: Ints, ranges: Ranges) -> Profile | None:
    """Return the possible shapes of an input; None if unknown, or if `dims` is not among them."""
    if twin is None or not isinstance(twin.type, TensorType) or twin.type.shape is None:
        return None
    sizes: list[tuple[int, int, int]] = []
    for dim, now in zip(twin.type.shape, dims, strict=True):
        known = ranges.get(dim) if isinstance(dim, str) else (now, now, now)
        if known is None or not known[0] <= now <= known[2]:
            return None
        sizes.append(known)
    minimum, usual, maximum = (tuple(size[i] for size in sizes) for i in range(3))
    return minimum, usual, maximum
