"""Which node of a file makes the first infinity or NaN of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np

from ...backends.numpy import evaluate
from ...runtime.ir.dtypes import FLOATS
from ...runtime.ir.graph import Node, Value
from ...runtime.ir.types import Array, HostValue
from ...runtime.session.model import Model
from ...runtime.session.overflow import node_results
from ..common.nested import flat

#: Seconds after which the search is given up.
PATIENCE = 10.0
_KINDS: tuple[tuple[str, Callable[[Array], Any]], ...] = (
    ("infinities", np.isinf),
    ("NaN", np.isnan),
)


def origin_of(model: Model, inputs: Mapping[str, HostValue], found: Mapping[str, HostValue]) -> str:
    """Return where infinities and NaN in results come from, in words; empty if there are none.

    The nodes run on the host, one by one, in float32. A node makes them if its operands have none.

    Args:
        model: the model that ran.
        inputs: what it ran on.
        found: its results.
    """
    arrays = list(flat(found).values())
    kinds = [kind for kind in _KINDS if any(_has(kind[1], data) for data in arrays)]
    if not kinds:
        return ""
    imported = model.imported
    results = {n: imported.outputs.get(n) or imported.values[n] for n in found}
    graph = imported.extract(results, inputs)
    first: dict[str, str] = {}
    spoilt: dict[str, set[Value]] = {name: set() for name, _ in _KINDS}
    for value in graph.inputs:
        _note(f"input '{value.name}'", (value,), (inputs[value.name],), (), spoilt, first)
    try:
        for node, made in node_results(graph, inputs, evaluate, monotonic() + PATIENCE):
            _note(_named(node), node.outputs, made, node.distinct_reads, spoilt, first)
            if all(name in first for name, _ in kinds):
                break
    except TimeoutError:
        pass
    if not all(name in first for name, _ in kinds):
        return "not found one by one on the host; tercet compare --layers looks at each kernel"
    return ", ".join(f"first {name} in {who}" for name, who in first.items())


def _named(node: Node) -> str:
    return f"node '{node.name}' ({node.kind})"


def _note(
    who: str,
    outputs: Sequence[Value],
    results: Sequence[HostValue],
    reads: Sequence[Value],
    spoilt: Mapping[str, set[Value]],
    first: dict[str, str],
) -> None:
    """Note which results are spoilt, and who began it."""
    for name, test in _KINDS:
        bad = {v for v, data in zip(outputs, results, strict=False) if _has(test, data)}
        given = any(v in spoilt[name] or (v.data is not None and _has(test, v.data)) for v in reads)
        if bad and not given:
            first.setdefault(name, who)
        spoilt[name].update(bad)


def _has(test: Callable[[Array], Any], data: HostValue) -> bool:
    if not isinstance(data, np.ndarray) or data.dtype not in FLOATS:
        return False
    return bool(test(data).any())
