"""Selection of one position of a result per sequence, such as the scores after a prompt."""

from __future__ import annotations

from ..base.record import record
from ..ir.dtypes import int64
from ..ir.graph import Graph, Value
from ..ir.infer import infer_node
from ..ir.op import Op
from ..ir.types import TensorType
from ..ops.gather import GatherElements, GatherND
from ..ops.reduce import ArgMax


@record
class RowsOf:
    """The part of a result that a program returns.

    Attributes:
        output: name of the result, [batch, n, ...], of which one position per sequence is returned.
        greedy: whether to return the greatest element along the last axis of that position, and
            its index, as further results.
    """

    output: str
    greedy: bool = False

    @property
    def rows(self) -> str:
        """Name of the input with the positions."""
        return f"{self.output}.rows"

    @property
    def score(self) -> str:
        """Name of the result with the greatest element."""
        return f"{self.output}.greatest"

    @property
    def place(self) -> str:
        """Name of the result with the index of the greatest element."""
        return f"{self.output}.place"


def select_rows(graph: Graph, which: RowsOf) -> None:
    """Make a graph return one position per sequence instead of all.

    The output [batch, n, ...] becomes [batch, 1, ...]; an additional input, int64 [batch, 1, 1],
    gives the positions. With the pass `select_early`, no others are computed. With `greedy`, there
    are two additional outputs, [batch, 1, 1] and int64 [batch, 1, 1]: the first of the greatest
    elements, or the first NaN, and its index.
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
