"""Graphs of convolutions to claim, and what becomes of their nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tercet.backends.cudnn.backend import survey
from tercet.backends.cudnn.registry import NodeGroup
from tercet.runtime.ir.dtypes import DType, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Decline

#: Stands for a GPU and its memory where nothing is done with them.
NOTHING: Any = None


def surveyed(graph: Graph, **options: Any) -> list[NodeGroup | Decline]:
    infer(graph)
    return list(survey(graph, frozenset(graph.nodes), Options(**options)))


def claims(graph: Graph, **options: Any) -> list[str]:
    """Return what is taken together with convolutions."""
    found = [w for w in surveyed(graph, **options) if isinstance(w, NodeGroup)]
    found = [w for w in found if isinstance(w.nodes[0].op, Conv | ConvTranspose)]
    return ["+".join(node.kind for node in w.nodes) for w in found]


def declines(graph: Graph) -> dict[str, str]:
    """Return the reasons by the names of nodes."""
    found = [d for d in surveyed(graph) if isinstance(d, Decline)]
    return {d.node.name: d.reason for d in found}


def start(channels: int = 4, dtype: DType = float32) -> tuple[Graph, Value]:
    graph = Graph()
    return graph, graph.add_input("x", TensorType(dtype, (1, channels, 8, 8)))


def conv(graph: Graph, x: Value, name: str, *, bias: bool = True, dtype: DType = float32) -> Value:
    w = graph.constant(np.ones((4, 4, 3, 3), dtype), f"{name}.w")
    b = [graph.constant(np.ones(4, dtype), f"{name}.b")] if bias else []
    return graph.insert(Conv(pads=(1, 1, 1, 1)), [x, w, *b], name=name).output


def then(graph: Graph, op: Op, *inputs: Value, name: str | None = None) -> Value:
    return graph.insert(op, inputs, name=name).output
