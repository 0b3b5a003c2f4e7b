"""Repeats elementwise nodes for sums and products of what is otherwise only stored in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.dtypes import float32
from ...ir.graph import Graph, Node, Value
from ...ops.elementwise import Cast, Mul
from ...ops.matmul import MatMul
from ...ops.reduce import Reduce, ReduceSum
from ..driver import Context
from ..editing import Builder, drop, is_static, shape_of, stand_in
from ..pointwise import is_elementwise

#: Maximum number of nodes that are repeated, and maximum bytes that they read, as a share of those
#: of their result, which would be written and read.
_MOST, _WORTH = 12, 1.25


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Let each sum of a tensor compute what a Cast to 16 bits is the only other reader of.

    Features of linear attention, which products read in 16 bits, and sums, their normalizers, in
    float32: such a sum reads the operands of the elementwise nodes before it, which are hardly more
    bytes, and the tensor is not stored in float32. Nor is one of 16 bits that several products or
    sums read in float32, as each has a Cast of its own.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Cast) or not is_static(node.inputs[0]):
            continue
        for each in _widened(graph, node):
            if _is_sum(each, node.output):
                _repeat(graph, each, node.output, [node])
            else:
                own = Builder(graph, each, f"{each.name}.wide", (node,))(node.op, node.operands[0])
                graph.set_inputs(each, [own if v is node.output else v for v in each.inputs])
            yield f"{each.kind} '{each.name}' widens what it reads itself"
        drop(graph, node)
        if node not in graph:
            continue
        x = node.operands[0]
        if x.tensor.dtype != float32 or node.output.tensor.dtype.itemsize != 2:
            continue
        sums = [reader for reader in graph.in_order(x.consumers) if reader is not node]
        if graph.is_output(x) or not sums or not all(_is_sum(reader, x) for reader in sums):
            continue
        chain = _chain(graph, x)
        if not chain or _bytes_read(chain) > _WORTH * x.tensor.size * float32.itemsize:
            continue
        for each in sums:
            _repeat(graph, each, x, chain)
            yield f"{each.kind} '{each.name}' computes again what '{node.name}' rounds"


def _widened(graph: Graph, cast: Node) -> list[Node]:
    """Return the readers of a Cast from 16 bits if there are several, all products or sums."""
    x, y = cast.operands[0], cast.output
    readers = list(graph.in_order(y.consumers))
    widens = (x.tensor.dtype.itemsize, y.tensor.dtype) == (2, float32) and x.producer is not None
    if not widens or graph.is_output(y) or not all(_adds_up(each, y) for each in readers):
        return []
    return readers if len(readers) > 1 else []


def _adds_up(node: Node, x: Value) -> bool:
    """Whether a node reduces a value, or multiplies it by another computed one."""
    if isinstance(node.op, Reduce):
        return x not in node.operands[1:]
    others = [value for value in node.operands if value is not x]
    return isinstance(node.op, MatMul) and len(others) == 1 and others[0].data is None


def _is_sum(node: Node, x: Value) -> bool:
    """Whether a node is a reduction of a value, or the product of its rows and one vector each."""
    if isinstance(node.op, Reduce):
        return x not in node.operands[1:]
    if not isinstance(node.op, MatMul) or node.operands[0] is not x or node.operands[1] is x:
        return False
    dims, vector = x.tensor.dims, shape_of(node.operands[1])
    return len(dims) > 1 and vector == (*dims[:-2], dims[-1], 1)


def _chain(graph: Graph, x: Value) -> list[Node]:
    """Return the elementwise nodes that compute a value, in topological order, or [] if many."""
    found = list[Node]()
    todo = [x]
    while todo:
        value = todo.pop()
        node = value.producer
        is_own = value is x or graph.sole_consumer(value) is not None
        if node is None or not is_own or not is_elementwise(node.op) or len(node.outputs) > 1:
            continue
        if shape_of(value) == x.tensor.dims and all(map(is_static, node.distinct_reads)):
            found.append(node)
            todo += node.distinct_reads
    return list(graph.in_order(found)) if len(found) <= _MOST else []


def _bytes_read(chain: list[Node]) -> int:
    """Return how many bytes the operands of a chain have."""
    made = {node.output for node in chain}
    reads = {v for node in chain for v in node.distinct_reads if v not in made}
    return sum(v.tensor.size * v.tensor.dtype.itemsize for v in reads)


def _repeat(graph: Graph, node: Node, x: Value, chain: list[Node]) -> None:
    """Let a sum read nodes of its own."""
    add = Builder(graph, node, f"{node.name}.repeated", tuple(chain))
    known = dict[Value, Value]()
    for each in chain:
        inputs = [v if v is None else known.get(v, v) for v in each.inputs]
        known[each.output] = add(each.op, *inputs)
    if isinstance(node.op, Reduce):
        graph.set_inputs(node, [known[x], *node.inputs[1:]])
        return
    vector = node.operands[1]
    *stack, columns, _ = vector.tensor.dims
    products = add(Mul(), known[x], add.shaped(vector, (*stack, 1, columns)))
    axes = add.integers((-1,), "axes")
    stand_in(graph, [node], node, ReduceSum(keepdims=1), [products, axes])
