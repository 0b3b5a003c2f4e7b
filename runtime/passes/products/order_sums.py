"""Orders the sum of two layers and another tensor, so that each layer adds one tensor."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Graph, Node, Value
from ...ops.elementwise import Add
from ...ops.matmul import MatMul
from ...ops.packed import MatMulNBits
from ..driver import Context
from ..editing import Builder, drop, shape_of
from ..pattern import pairs, without_addend


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace (p + q) + x by p + (q + x) where p and q are results of linear layers, packed or not.

    In a block whose attention and MLP read the same tensor (GPT-J, GPT-NeoX, Phi, Falcon), both are
    added to it. A product reads one tensor as it stores its results, which is fast for one: in this
    order, each product adds one, the first x and the other the sum.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Add):
            continue
        found = next(
            (found for pair in pairs(node) if (found := _layers(graph, node, *pair))), None
        )
        if found is None:
            continue
        first, other, x = found
        add = Builder(graph, node, f"{node.name}.first", (node,))
        inner = next(v.producer for v in node.distinct_reads if v is not x)
        total = Builder(graph, node, node.name, (node,))(Add(), other, add(Add(), first, x))
        made = total.producer
        graph.replace(node, [total])
        drop(graph, inner)
        if made is not None:
            graph.rename(made, node.name)
        yield f"Add '{node.name}' adds the sum of '{first.name}' and '{x.name}'"


def _layers(graph: Graph, node: Node, x: Value, both: Value) -> tuple[Value, Value, Value] | None:
    """Return the layer that is computed first, the other one, and what is added to their sum."""
    inner = both.producer
    if inner is None or not isinstance(inner.op, Add) or graph.sole_consumer(both) is not node:
        return None
    if x.data is not None or _product_of(graph, x) is not None:
        return None
    if not shape_of(x) == shape_of(both) == shape_of(node.output) is not None:
        return None
    found = [(product, v) for v in inner.distinct_reads if (product := _product_of(graph, v))]
    if len(found) != 2 or any(shape_of(v) != shape_of(x) for _, v in found):
        return None
    (_, first), (_, other) = sorted(found, key=lambda each: each[0].position)
    return first, other, x


def _product_of(graph: Graph, value: Value) -> Node | None:
    """Return the product of a linear layer with a single reader."""
    if graph.sole_consumer(value) is None:
        return None
    node = without_addend(graph, value)[0].producer
    if node is None or not isinstance(node.op, MatMul | MatMulNBits):
        return None
    weight, *others = node.inputs[1:]
    if weight is None or any(each is not None and each.data is None for each in (weight, *others)):
        return None
    is_matrix = isinstance(node.op, MatMulNBits) or weight.tensor.rank == 2
    return node if is_matrix else None
