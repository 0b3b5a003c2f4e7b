"""Operators as ONNX defines them, by other operators: what a runtime may round between.

The specification defines many operators as functions: Softmax, Gelu, the norms. A runtime that runs
the function computes what it should, and in a narrow format each of its steps is rounded: softmax
then has the error of ``x - max(x)``, which is that of a number far larger than one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from ...importers.onnx.writing.expand import defined
from ...runtime.errors import TercetError
from ...runtime.ir.constraints import float64_for_float32
from ...runtime.ir.dtypes import FLOATS, DType, float32, float64
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.infer import infer
from ...runtime.ir.op import Op
from ...runtime.ir.types import TensorType, ValueType
from ...runtime.ops.elementwise import Add, Div, Mean, Sum
from .operators import COMPOSED, plain_kind, rounds
from .vector_machines import Machine, by_steps, has_sums

Types = tuple[ValueType | None, ...]


class Definitions:
    """The definitions of nodes; each is made once.

    Args:
        change: applied to every definition, with the dtype of what the node reads in it.
    """

    def __init__(self, change: Callable[[Graph, DType], Graph]) -> None:
        self._change = change
        self._known: dict[tuple[Op, int, Types], Graph | None] = {}

    def of(self, node: Node) -> Graph | None:
        """Return a graph of several nodes that computes a node's results, in this order.

        What the node reads are the graph's inputs, in this order: in float64, so that float32
        inside is what the definition asks for; in float32 where ONNX does not define it otherwise.

        Returns:
            None if the operator is not defined by others, or not for these types.
        """
        types = tuple(None if value is None else value.type for value in node.inputs)
        key = (node.op, len(node.outputs), types)
        if key not in self._known:
            given = ((dtype, _definition(node, dtype)) for dtype in (float64, float32))
            changed = (self._change(graph, dtype) for dtype, graph in given if graph is not None)
            self._known[key] = next(changed, None)
        return self._known[key]


def _with_dtype(type_: ValueType | None, dtype: DType) -> ValueType | None:
    if not isinstance(type_, TensorType):
        return type_
    return TensorType(dtype if type_.dtype in FLOATS else type_.dtype, type_.shape)


def _definition(node: Node, dtype: DType) -> Graph | None:
    if node.op.graphs() or plain_kind(node) in COMPOSED:
        return None
    graph = Graph(plain_kind(node))
    inputs = [
        None if value is None else graph.add_input(f"input{i}", _with_dtype(value.type, dtype))
        for i, value in enumerate(node.inputs)
    ]
    given = [value for value in inputs if value is not None]
    if isinstance(node.op, (Sum, Mean)):
        results: Sequence[Value] = (_added_up(graph, given, mean=isinstance(node.op, Mean)),)
    elif isinstance(node.op, Machine) and has_sums(node.op):
        results = by_steps(graph, node.op, given[0])
    else:
        results = graph.insert(node.op, inputs, len(node.outputs)).outputs
    graph.set_outputs({f"output{i}": value for i, value in enumerate(results)})
    try:
        with float64_for_float32():
            infer(graph)
            found = defined(graph, rounds)
    except TercetError:
        return None
    is_one = len(found.nodes) < 2
    return None if is_one or any(each.op.graphs() for each in found.nodes) else found


def _added_up(graph: Graph, values: Sequence[Value], *, mean: bool) -> Value:
    """Add one after the other: the specification does not say how."""
    total = reduce(lambda left, right: graph.insert(Add(), [left, right]).output, values)
    count = graph.constant(np.array(len(values), values[0].tensor.dtype))
    return graph.insert(Div(), [total, count]).output if mean else total
