"""Where does rounding grow? The first node whose outputs have far more noise than its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...runtime.ir.custom import CustomOperator, declare
from ...runtime.ir.graph import Graph, Node
from ...runtime.ir.types import Array, HostValue, TensorType
from .noise import ROUGH
from .shaken import Shaken

#: From this growth on a node amplifies.
_GROWTH = 16.0
#: Noise below this share of a tensor is harmless.
_HARMLESS = 1e-5
#: Elements of each tensor that are looked at.
_SEEN = 4096

Seen = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Amplifier:
    """A node that makes noise grow.

    Attributes:
        node: the file's name of it; empty where there is none.
        operator: what it computes.
        growth: noise of its result by that of its inputs, both as shares of the tensor.
    """

    node: str = ""
    operator: str = ""
    growth: float = 0.0

    def __str__(self) -> str:
        if not self.node:
            return ""
        times = f"{self.growth:.0f}-fold" if self.growth < 1e6 else "from nothing"
        return f"rounding grows {times} in node '{self.node}' ({self.operator}); "


def first_amplifier(graph: Graph, feeds: Mapping[str, HostValue], precision: str) -> Amplifier:
    """Run a graph in float64 with and without noise, and look at every tensor in between.

    Args:
        graph: its shapes bound, where that can be; stays as it is.
        feeds: a value for every input.
        precision: compute precision of float32 tensors.

    Returns:
        The first node that makes noise grow beyond what is harmless; where none does so alone,
        the one that makes it grow most.
    """
    seen: Seen = {}
    shaken = Shaken(_tapped(graph, seen), precision)
    shaken.run(feeds)
    exact = dict(seen)
    shaken.run(feeds, ROUGH)
    noisy = seen
    noise = {name: _noise(data, noisy[name]) for name, data in exact.items() if name in noisy}
    minimum = 2.0**-20
    best = Amplifier()
    for node in graph.nodes:
        found = _growth(node, noise, minimum)
        if found.growth >= _GROWTH:
            return found
        best = max(best, found, key=lambda each: each.growth)
    return best if best.growth > 2 else Amplifier()


def _growth(node: Node, noise: Mapping[str, float], minimum: float) -> Amplifier:
    after = max((noise.get(value.name, 0.0) for value in node.outputs), default=0.0)
    if after < _HARMLESS:
        return Amplifier()
    before = max((noise.get(value.name, 0.0) for value in node.distinct_reads), default=0.0)
    name = node.origin[0] if node.origin else node.name
    return Amplifier(name, node.kind, after / max(before, minimum))


def _noise(exact: Array, noisy: Array) -> float:
    if exact.shape != noisy.shape:
        return 1.0
    finite = np.isfinite(exact) & np.isfinite(noisy)
    exact, noisy = exact[finite], noisy[finite]
    apart, whole = (np.linalg.norm(data) for data in (noisy - exact, exact))
    return float(apart / whole) if whole else float(apart > 0)


def _tapped(graph: Graph, seen: Seen) -> Graph:
    """Return a copy that notes some elements of everything that it computes on its way."""
    copy = graph.clone()
    for node in list(copy.nodes):
        if node.op.graphs():
            continue
        after = copy.nodes.index(node) + 1
        follower = copy.nodes[after] if after < len(copy.nodes) else None
        for value in node.outputs:
            if not isinstance(value.type, TensorType) or value.type.dtype.kind not in "fiub":
                continue
            note = CustomOperator(partial(_note, seen, value.name), lambda x: x)
            op = declare("tercet.noise", "Tap", note)
            tap = copy.insert(op(), [value], before=follower)
            tap.output.type = value.type
            copy.redirect(value, tap.output)
            copy.set_inputs(tap, [value])
    return copy


def _note(seen: Seen, name: str, x: Array) -> Array:
    step = max(1, x.size // _SEEN)
    seen[name] = np.asarray(x).ravel()[::step].astype(np.float64)
    return x
