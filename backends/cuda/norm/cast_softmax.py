"""Softmax that stores its results in another float type, instead of a Cast behind it.

In a half precision network, scores that nothing bounds are float32 and their weights are multiplied
in 16 bits, and a classifier gives float32 at its end.
"""

from __future__ import annotations

from collections.abc import Set

from ....runtime.base.record import record
from ....runtime.ir.dtypes import bfloat16, float16, float32
from ....runtime.ir.graph import Graph, Node
from ....runtime.ops.elementwise import Cast
from ....runtime.ops.norm import LogSoftmax, Softmax
from ..algorithms.registry import Answer
from ..ops.norm import softmax_of
from ..recipe.operands import Tensor
from ..recipe.pattern import Operand, Whole
from ..recipe.setting import Setting, Stored

FLOATS = frozenset({float16, bfloat16, float32})


@record
class CastSoftmax(Whole):
    """A Softmax or LogSoftmax, and the Cast of its result.

    Attributes:
        softmax: the node.
        cast: the one behind it.
    """

    softmax: Node
    cast: Node

    @property
    def nodes(self) -> tuple[Node, Node]:
        """Both."""
        return self.softmax, self.cast

    @property
    def follows(self) -> bool:
        """Whether it accepts any format; see `Pattern`."""
        return True

    def recipe(self, y: Tensor, operand: Operand, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        op = self.softmax.op
        assert isinstance(op, Softmax | LogSoftmax)
        return softmax_of(op, y, operand(self.softmax.operands[0]), setting.target)


def cast_softmax_at(graph: Graph, softmax: Node, free: Set[Node]) -> CastSoftmax | None:
    """Return a node with the Cast behind it, if nothing else reads its result.

    Args:
        graph: the graph.
        softmax: the node.
        free: nodes that may be taken.
    """
    cast = graph.sole_consumer(softmax.output)
    if cast is None or not isinstance(cast.op, Cast) or not free >= {softmax, cast}:
        return None
    types = {softmax.output.tensor.dtype, cast.output.tensor.dtype}
    return CastSoftmax(softmax, cast) if types <= FLOATS else None
