"""Operands of an attention are read from views of them that the graph has by then."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops.elementwise import Mul
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.norm import Softmax

from .graphs import apply, assert_same, kinds, make, optimised


@pytest.mark.parametrize("is_late", [False, True])
def test_keys_that_are_also_transposed_as_values_are(is_late: bool) -> None:
    """As a decoder returns them, in front of the attention or behind it."""
    returned: list[Value] = []

    def build(g: Graph, x: Value) -> Value:
        def keys_of_heads() -> None:
            returned.append(apply(g, Transpose(perm=(0, 2, 1, 3)), x))

        if not is_late:
            keys_of_heads()
        by_head = apply(g, Transpose(perm=(0, 2, 1, 3)), apply(g, Mul(), x, x))
        scores = apply(g, MatMul(), by_head, apply(g, Transpose(perm=(0, 2, 3, 1)), x))
        scores = apply(g, Mul(), scores, np.array(0.1, np.float32))
        y = apply(g, MatMul(), apply(g, Softmax(), scores), by_head)
        if is_late:
            keys_of_heads()
        return y

    graph = make(build, (2, 5, 3, 8))
    graph.set_outputs({**graph.outputs, "keys": returned[0]})
    after, _ = optimised(graph)
    assert "Attention" in kinds(after)
    assert_same(graph, after, rel=5e-6)
