"""Masks of Attention in full, as onnxruntime (1.31) wants them.

ONNX broadcasts a mask to the scores; onnxruntime refuses one whose last two axes do not have the
sizes of queries and keys, such as the mask of a padded batch, [batch, 1, 1, keys].
"""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import int64
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.infer import infer
from ....runtime.ir.types import Dim, TensorType
from ....runtime.ops.attention import Attention
from ....runtime.ops.movement import Concat, Expand
from ....runtime.ops.shape import Shape


def with_full_masks(graph: Graph) -> Graph:
    """Return a graph whose masks have the sizes of queries and keys along their last two axes.

    Args:
        graph: with inferred types; not modified.

    Returns:
        A new graph with inferred types; the same one if there is nothing to do.
    """
    if not any(_lacks_rows(node) for node in graph.walk()):
        return graph
    copy = graph.clone()
    for each in list(copy.graphs()):
        for node in list(each.nodes):
            if _lacks_rows(node):
                _expand(each, node)
    infer(copy)
    return copy


def _lacks_rows(node: Node) -> bool:
    """Whether a mask has one row for all queries, of which there are more."""
    mask = _shape(node.inputs[3]) if isinstance(node.op, Attention) and len(node.inputs) > 3 else ()
    return len(mask) > 1 and mask[-2] == 1 and _queries(node) != 1


def _queries(node: Node) -> Dim:
    shape = _shape(node.inputs[0])
    return shape[-2] if shape else None


def _shape(value: Value | None) -> tuple[Dim, ...]:
    type_ = None if value is None else value.type
    return (type_.shape or ()) if isinstance(type_, TensorType) else ()


def _expand(graph: Graph, node: Node) -> None:
    q, mask, queries = node.inputs[0], node.inputs[3], _queries(node)
    assert q is not None
    if isinstance(queries, int):
        sizes = graph.constant(np.array([queries, 1], int64), "mask.shape")
    else:
        rows = graph.insert(Shape(start=-2, end=-1), [q], before=node, origin=(node,)).output
        one = graph.constant(np.array([1], int64), "mask.columns")
        sizes = graph.insert(Concat(axis=0), [rows, one], before=node, origin=(node,)).output
    full = graph.insert(Expand(), [mask, sizes], before=node, origin=(node,)).output
    graph.set_inputs(node, (*node.inputs[:3], full, *node.inputs[4:]))
