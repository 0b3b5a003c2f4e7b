"""Where nodes that only move elements take them from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod

import numpy as np

from ..ir.graph import Node
from ..ir.op import Op
from ..ir.types import Array

#: Evaluates one operator on arrays (None: omitted input) and returns its outputs; None if it
#: cannot, which leaves the node to the backends.
Evaluate = Callable[[Op, Sequence[Array | None], int], Sequence[Array] | None]


class MovedPlaces:
    """Asks once for all equal nodes, such as those of the layers of a network.

    Args:
        evaluate: runs an operator on arrays.
    """

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._known: dict[Hashable, Sequence[Array] | None] = {}

    def of(self, node: Node, shapes: Sequence[tuple[int, ...]]) -> Sequence[Array] | None:
        """Return the elements that each output consists of; None if the node cannot be evaluated.

        Args:
            node: its inputs behind those that are moved are constants.
            shapes: of the inputs that are moved. They may differ from those in the graph, such as
                by rows of one element.

        Returns:
            int64 arrays, not to be written to, of elements counted in C order through all inputs.
        """
        others = [None if v is None else v.data for v in node.inputs[len(shapes) :]]
        settings = [None if v is None else (v.dtype, v.shape, v.tobytes()) for v in others]
        key = (node.op, tuple(shapes), tuple(settings), len(node.outputs))
        if key not in self._known:
            numbers, start = list[Array](), 0
            for shape in shapes:
                end = start + prod(shape)
                numbers.append(np.arange(start, end).reshape(shape))
                start = end
            self._known[key] = self._evaluate(node.op, [*numbers, *others], len(node.outputs))
        return self._known[key]
