"""One position of a result for each sequence, such as the scores after a prompt."""

from __future__ import annotations

from ..ir.dtypes import int64
from ..ir.graph import Graph
from ..ir.infer import infer_node
from ..ir.types import TensorType
from ..ops.gather import GatherND


def rows_input(output: str) -> str:
    """Return the name of the input that says which positions of an output are computed."""
    return f"{output}.rows"


def select_rows(graph: Graph, output: str) -> None:
    """Let a graph return one position for each sequence instead of all.

    The output [batch, n, ...] becomes [batch, 1, ...]; a further input, int64 [batch, 1, 1], has
    the positions. With the pass `select_early` no others are computed.
    """
    value = graph.outputs[output]
    batch, *_ = value.tensor.shape or (None,)
    rows = graph.add_input(graph.fresh_name(rows_input(output)), TensorType(int64, (batch, 1, 1)))
    node = graph.insert(GatherND(batch_dims=1), (value, rows), name=rows_input(output))
    infer_node(node)
    graph.set_outputs({**graph.outputs, output: node.output})
