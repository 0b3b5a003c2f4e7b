"""One position of a result for each sequence, such as the scores after a prompt."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.dtypes import int64
from ..ir.graph import Graph, Value
from ..ir.infer import infer_node
from ..ir.op import Op
from ..ir.types import TensorType
from ..ops.gather import GatherElements, GatherND
from ..ops.reduce import ArgMax


@dataclass(frozen=True, slots=True)
class RowsOf:
    """The part of a result that a program returns.

    Attributes:
        output: name of the result, [batch, n, ...]: one position for each sequence is returned.
        greedy: return the greatest element along the last axis of that position, and its place,
            as further results.
    """

    output: str
    greedy: bool = False

    @property
    def rows(self) -> str:
        """Name of the input that has the positions."""
        return f"{self.output}.rows"

    @property
    def score(self) -> str:
        """Name of the result that is the greatest element."""
        return f"{self.output}.greatest"

    @property
    def place(self) -> str:
        """Name of the result that has the place of the greatest element."""
        return f"{self.output}.place"


def select_rows(graph: Graph, which: RowsOf) -> None:
    """Let a graph return one position for each sequence instead of all.

    The output [batch, n, ...] becomes [batch, 1, ...]; a further input, int64 [batch, 1, 1], has
    the positions. With the pass `select_early` no others are computed. If `greedy`, there are
    two further outputs, [batch, 1, 1] and int64 [batch, 1, 1]: the first of the greatest elements,
    or the first NaN, and its place.
    """

    def insert(op: Op, *inputs: Value) -> Value:
        node = graph.insert(op, inputs, name=which.rows)
        infer_node(node)
        return node.output

    value = graph.outputs[which.output]
    batch, *_ = value.tensor.shape or (None,)
    rows = graph.add_input(graph.fresh_name(which.rows), TensorType(int64, (batch, 1, 1)))
    found = {which.output: insert(GatherND(batch_dims=1), value, rows)}
    if which.greedy:
        scores = found[which.output]
        place = found[which.place] = insert(ArgMax(axis=-1), scores)
        found[which.score] = insert(GatherElements(axis=-1), scores, place)
    graph.set_outputs({**graph.outputs, **found})
