"""Rewrites the logarithm of a Sigmoid without the Sigmoid, which may round to 0 or to 1."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.dtypes import FLOATS
from ...ir.graph import Graph
from ...ops.elementwise import Log, Neg, Sigmoid, Softplus
from ..driver import Context
from ..editing import Builder, drop, dtype_of


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``log(sigmoid(x))`` by ``-softplus(-x)``.

    PyTorch exports its logsigmoid (gates of linear attention, xLSTM, contrastive losses) like that.
    The logarithm then has no pole, and no digits of small results are lost.
    """
    for node in list(graph.nodes):
        gate = node.inputs[0].producer if isinstance(node.op, Log) and node.inputs[0] else None
        if gate is None or not isinstance(gate.op, Sigmoid):
            continue
        (x,) = gate.operands
        if dtype_of(x) not in FLOATS:
            continue
        origin = (gate, node) if graph.sole_consumer(gate.output) is node else (node,)
        add = Builder(graph, node, node.name, origin)
        result = add(Neg(), add(Softplus(), add(Neg(), x)))
        graph.redirect(node.output, result)
        drop(graph, node)
        yield f"{node.kind} '{node.name}' of a Sigmoid is a Softplus"
