"""Patterns of a model that cost time or memory, and what to do about each.

A finding has a measure (nodes, bytes, launches) and a remedy. What a pass or a backend handles by
itself is none, so these rules look at what is left: at the optimised graph, and at the rows of a
placement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from ...runtime.ir.dtypes import FLOATS, float64, name_of
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import TensorType
from ...runtime.ops.control import If
from ...runtime.ops.elementwise import Cast
from ...runtime.passes.driver import Reason, RefusedRewrite
from ...runtime.plan.macs import macs
from ...runtime.session.placement import LATER
from ...runtime.session.slow import LARGE, made_of_constants
from ..common.console import bytes_text, counted
from .planned_cost import PlannedCost

#: Bytes that are worth a finding.
WORTH = 1 << 16
#: Share of all bytes, or of all launches, that is worth one.
SHARE = 0.1
#: Operators of steps that only move or convert elements.
MOVES = frozenset(
    {"Cast", "Concat", "DepthToSpace", "Expand", "Gather", "GatherElements", "GatherND", "Pad"}
    | {"ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Tile", "Transpose"}
)
#: Passes whose fusions save most.
FUSIONS = frozenset(
    ("fold_batchnorm", "fuse_activation", "fuse_attention", "fuse_groups", "fuse_norm")
)
#: Steps from which launches may be what a plan takes.
MANY_STEPS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One pattern.

    Attributes:
        rule: its kind, such as ``float64``.
        nodes: names of the nodes, or of the tensors where it is about these.
        text: what was found, with a measure.
        advice: what to do.
    """

    rule: str
    nodes: tuple[str, ...]
    text: str
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return asdict(self)


def lint(
    imported: Graph,
    optimised: Graph,
    refused: Iterable[RefusedRewrite],
    costs: Sequence[PlannedCost] = (),
) -> tuple[Finding, ...]:
    """Return the findings of all rules.

    Args:
        imported: the graph of the file.
        optimised: after the passes, with integer shapes if known.
        refused: rewrites that the passes refused.
        costs: the rows of a placement.
    """
    return (
        *_unread(imported),
        *_repeated(imported),
        *_float64(optimised),
        *_casts(optimised),
        *_from_constants(optimised),
        *_data_dependent(optimised),
        *_settings(optimised),
        *_not_fused(refused),
        *_on_the_host(costs),
        *_moves(costs),
        *_launches(costs),
    )


# ── the graph ────────────────────────────────────────────────────────────────────────────────────


def _unread(graph: Graph) -> Iterator[Finding]:
    unread = [v for v in graph.inputs if not graph.is_read(v)]
    if unread:
        yield Finding(
            "unread input",
            _names(unread),
            f"nothing reads {counted(len(unread), 'input')}, which every run is given",
            "export the model without",
        )


def _repeated(graph: Graph) -> Iterator[Finding]:
    """Find equal constants: of those of equal type and sum the bytes are compared by digest."""
    alike: dict[tuple[object, ...], list[Value]] = {}
    for value in graph.constants:
        if value.data is not None and value.data.nbytes >= WORTH and value.data.dtype.kind != "O":
            alike.setdefault((value.data.dtype, value.data.shape, _sample(value)), []).append(value)
    equal: dict[bytes, list[Value]] = {}
    for values in alike.values():
        for value in values if len(values) > 1 else ():
            key = sha256(np.ascontiguousarray(value.data).view(np.uint8).data).digest()
            equal.setdefault(key, []).append(value)
    groups = [values for values in equal.values() if len(values) > 1]
    spare = [value for values in groups for value in values[1:]]
    if spare:
        yield Finding(
            "repeated weights",
            _names(value for values in groups for value in values),
            f"{bytes_text(_bytes(spare))} of weights are copies of others",
            "tie them before the export, so that the file has one initializer for all",
        )


def _sample(value: Value) -> bytes:
    """Return some bytes that tell most constants apart without reading them all."""
    flat = np.asarray(value.data).reshape(-1)
    return flat[:: max(1, flat.size // 64)].tobytes()


def _float64(graph: Graph) -> Iterator[Finding]:
    nodes = [n for n in graph.walk() if _dtype(n.output) == float64 and macs(n)]
    if nodes:
        yield Finding(
            "float64",
            _names(nodes),
            f"{counted(len(nodes), 'product')} of {sum(macs(n) or 0 for n in nodes):,} "
            "multiply-accumulates in float64",
            "export the model in float32 unless it needs the digits: GPUs multiply float64 at a "
            "fraction of the rate, and CPUs at half",
        )


def _casts(graph: Graph) -> Iterator[Finding]:
    """Find casts between float types, except those of the model's inputs and outputs."""
    nodes = [node for node in graph.walk() if isinstance(node.op, Cast) and _is_inner(graph, node)]
    moved = _bytes(node.output for node in nodes)
    if moved >= max(WORTH, SHARE * _bytes(node.output for node in graph.walk())):
        kinds = sorted({name_of(node.output.tensor.dtype) for node in nodes})
        yield Finding(
            "casts",
            _names(nodes),
            f"{counted(len(nodes), 'Cast')} between float types write {bytes_text(moved)} in "
            f"{' and '.join(kinds)}",
            "convert the whole model to one type, or leave it in float32 and choose --precision",
        )


def _is_inner(graph: Graph, cast: Node) -> bool:
    (source,), target = cast.operands, cast.output
    is_border = source.producer is None or graph.is_output(target)
    return not is_border and _dtype(source) in FLOATS and _dtype(target) in FLOATS


def _from_constants(graph: Graph) -> Iterator[Finding]:
    fixed = made_of_constants(graph)
    nodes = [node for node in graph.nodes if node in fixed]
    if (nbytes := _bytes(node.output for node in nodes)) >= LARGE:
        yield Finding(
            "constants",
            _names(nodes),
            f"every run computes {bytes_text(nbytes)} from constants, which the limits of "
            "constant folding leave out of memory",
            "load with larger fold_bytes and fold_total, or store the results in the file",
        )


def _data_dependent(graph: Graph) -> Iterator[Finding]:
    """Find operators on whose results sizes depend; those of control flow have other remedies."""
    if not all(map(_is_sized, graph.inputs)):
        return
    unsized = [n for n in graph.nodes if not all(map(_is_sized, (*n.distinct_reads, *n.outputs)))]
    roots: list[Node] = []
    behind: set[Node] = set()
    for node in unsized:
        if not any(value.producer in behind for value in node.distinct_reads):
            roots.append(node)
        behind.add(node)
    if roots := [node for node in roots if not node.op.graphs()]:
        yield Finding(
            "data-dependent shape",
            _names(roots),
            f"{_kinds(roots)}: sizes of {len(unsized)} of {counted(len(graph.nodes), 'node')} "
            "depend on the data there",
            "a GPU waits there for the host: keep fixed sizes with a mask (Where, TopK) instead of "
            "selecting elements, or leave the selection to the caller",
        )


def _settings(graph: Graph) -> Iterator[Finding]:
    """Find branches that only inputs of one element choose, such as sampling rates and flags."""
    chosen: dict[frozenset[Value], list[Node]] = {}
    for node in graph.nodes:
        inputs = (
            _inputs_of(node.inputs[0], graph) if isinstance(node.op, If) else frozenset[Value]()
        )
        if inputs and all(_is_single(value) for value in inputs):
            chosen.setdefault(inputs, []).append(node)
    for inputs, nodes in chosen.items():
        names = sorted(value.name for value in inputs)
        yield Finding(
            "setting as input",
            _names(nodes),
            f"{' and '.join(names)} of one element {'chooses' if len(names) == 1 else 'choose'} "
            f"the branch of {counted(len(nodes), 'If')}",
            "if it is the same in every run, make it a constant, and only that branch is left: "
            + " ".join(f"--freeze-input {name}=FILE.npy" for name in names)
            + " (freeze= in Python)",
        )


def _inputs_of(value: Value | None, graph: Graph) -> frozenset[Value]:
    """Return the inputs of the graph from whose elements a value is computed."""
    seen: set[Value] = set()
    ahead = [] if value is None else [value]
    while ahead:
        each = ahead.pop()
        if each not in seen:
            seen.add(each)
            producer = each.producer
            ahead.extend(() if producer is None else producer.distinct_reads)
    return frozenset(seen.intersection(graph.inputs))


def _not_fused(refused: Iterable[RefusedRewrite]) -> Iterator[Finding]:
    """Find what another reader of an inner value prevents, one finding for each pass."""
    by_pass: dict[str, list[RefusedRewrite]] = {}
    for each in refused:
        if each.name in FUSIONS and each.reason in (Reason.SHARED, Reason.RESULT):
            by_pass.setdefault(each.name, []).append(each)
    for name, each in by_pass.items():
        yield Finding(
            "not fused",
            tuple(dict.fromkeys(node for one in each for node in one.nodes)),
            f"{name}, {counted(len(each), 'place')}: {each[0].text}",
            "the nodes become one step if nothing else reads what is computed between them",
        )


# ── the placement ────────────────────────────────────────────────────────────────────────────────


def _on_the_host(costs: Sequence[PlannedCost]) -> Iterator[Finding]:
    """Find steps that a GPU leaves to the host."""
    steps = _steps(costs)
    rows = [c.row for c in steps if not c.row.work.launches and c.row.reason not in ("", LATER)]
    if 0 < len(rows) < len(steps) and any(c.row.work.launches for c in steps):
        copied = sum(c.row.nbytes for c in costs if c.kind == "copy")
        yield Finding(
            "on the host",
            tuple(name for row in rows for name in row.nodes),
            f"the host runs {len(rows)} of {counted(len(steps), 'step')}, and {bytes_text(copied)} "
            f"are copied; {rows[0].operators}: {rows[0].reason}",
            "replace these operators, or let the caller compute them before or after the model",
        )


def _moves(costs: Sequence[PlannedCost]) -> Iterator[Finding]:
    moving = [
        c
        for c in costs
        if c.kind == "reformat" or (c.kind == "step" and MOVES.issuperset(_operators(c)))
    ]
    moved, total = sum(c.nbytes for c in moving), sum(c.nbytes for c in costs)
    if total and moved >= max(WORTH, SHARE * total):
        yield Finding(
            "moves",
            tuple(name for c in moving for name in c.row.nodes),
            f"{counted(len(moving), 'step')} only move or convert elements: {bytes_text(moved)} of "
            f"the {bytes_text(total)} that all steps read and write ({moved / total:.0%})",
            "keep one order of axes and one type from layer to layer; --cost lists the bytes of "
            "each step",
        )


def _launches(costs: Sequence[PlannedCost]) -> Iterator[Finding]:
    steps = _steps(costs)
    small = [c for c in steps if c.bound == "launch"]
    if len(steps) >= MANY_STEPS and len(small) > len(steps) / 2:
        yield Finding(
            "small steps",
            tuple(name for c in small for name in c.row.nodes),
            f"{len(small)} of {len(steps)} steps take less time than their launch",
            "run larger batches: they cost little more time",
        )


def _steps(costs: Iterable[PlannedCost]) -> list[PlannedCost]:
    return [c for c in costs if c.kind in ("step", "host")]


def _operators(cost: PlannedCost) -> list[str]:
    return cost.row.operators.split(" + ")


# ── values ───────────────────────────────────────────────────────────────────────────────────────


def _names(of: Iterable[Node | Value]) -> tuple[str, ...]:
    return tuple(each.name for each in of)


def _kinds(nodes: Iterable[Node]) -> str:
    return ", ".join(dict.fromkeys(node.kind for node in nodes))


def _dtype(value: Value) -> object:
    return value.type.dtype if isinstance(value.type, TensorType) else None


def _is_single(value: Value) -> bool:
    found = value.type
    return isinstance(found, TensorType) and found.is_static and found.size == 1


def _is_sized(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_static


def _bytes(values: Iterable[Value]) -> int:
    types = (value.type for value in values)
    return sum(t.nbytes for t in types if isinstance(t, TensorType) and t.is_static)


def first_of(nodes: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    more = len(nodes) - 3
    return ", ".join(nodes[:3]) + (f" and {more} more" if more > 0 else "")
