"""A model whose operands are rounded to eight bits where the file allows it.

onnxruntime's CPU provider does so: a block of activations is divided by a 127th of its greatest
magnitude and rounded to whole numbers, which are multiplied by integers. That is arithmetic like
any other, so a runner that does it is held against a float64 run that does the same, and one that
does not against a run that does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...runtime.ir.custom import CustomOperator, declare
from ...runtime.ir.graph import Graph
from ...runtime.ir.op import Op
from ...runtime.ir.types import Array
from .noise import greatest_of_block
from .operators import byte_operands

#: The greatest whole number that a block is rounded to.
_GREATEST = 127


def _rounded(x: Array, *, block: int) -> Array:
    """Return elements rounded to multiples of a 127th of the greatest magnitude of their block."""
    if not x.size:
        return x
    with np.errstate(all="ignore"):
        step = greatest_of_block(np.abs(x), block) / _GREATEST
        return np.where(step > 0, np.rint(x / step) * step, x).astype(x.dtype)


_InBytes: Any = declare(
    "tercet.noise", "InBytes", CustomOperator(_rounded, lambda x, *, block: x.without_value())
)


def rounded_to_bytes(graph: Graph) -> Graph | None:
    """Return a copy in which blocks of activations are rounded; None if some are in other ways.

    Args:
        graph: imported; see `byte_operands` for what is rounded.
    """
    copy = graph.clone()
    for each in copy.graphs():
        for node in list(each.nodes):
            blocks = byte_operands(node)
            if len(blocks) > 1:  # states of a recurrent layer, in each step
                return None
            for i, block in blocks.items():
                x = node.operands[i]
                op: Op = _InBytes(block=block)
                made = each.insert(op, [x], before=node)
                made.output.type = x.type
                inputs = list(node.inputs)
                inputs[i] = made.output
                each.set_inputs(node, inputs)
    return copy
