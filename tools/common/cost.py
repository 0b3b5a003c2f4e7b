"""The theoretical cost of a graph: multiply-accumulates, parameters and bytes.

One MAC is one multiplication whose product is added to a sum. Matrix products and convolutions
count as in the specification, including windows over padding; bias additions, activations, pooling
and normalisation count nothing. VGG-16 thus has 15.47 billion MACs.

=============================================== ==================================================
Conv, ConvInteger, QLinearConv, DeformConv      elements of y x (channels / group) x window
ConvTranspose                                   elements of x x (filters / group) x window
CausalConvWithState                             elements of y x window
Gemm, MatMul, MatMulInteger, QLinearMatMul      elements of y x length of the sum
MatMulNBits, MatMulBnb4                         likewise
MoE, QMoE                                       elements of x x chosen experts x results per
                                                element of all layers
Einsum                                          all letters' sizes multiplied, for each product
Attention, FlexAttention                        keys x (elements of q + elements of y), unmasked
RNN, GRU, LSTM                                  batch x length x (elements of w + elements of r)
=============================================== ==================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

from ...runtime.ir.dtypes import bool_, int64, name_of, string
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import TensorType
from ...runtime.ops.experts import Mixture, QMoE
from ...runtime.ops.matmul import einsum_terms

Rule = Callable[[Node], int]


def macs(node: Node) -> int | None:
    """Return the multiply-accumulates of one node; None if its shapes are not integers.

    None for nodes with control-flow bodies as well: how often a body runs is unknown.
    """
    if node.op.graphs():
        return None
    rule = _RULES.get(node.kind.rpartition("::")[2])
    if rule is None:
        return 0
    if not all(_is_static(value) for value in (*node.distinct_reads, *node.outputs)):
        return None
    return rule(node)


def _is_static(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_static


def _dims(node: Node, at: int) -> tuple[int, ...]:
    value = node.inputs[at]
    return () if value is None else value.tensor.dims


def _convolution(weights: int) -> Rule:
    def rule(node: Node) -> int:
        return node.output.tensor.size * prod(_dims(node, weights)[1:])

    return rule


def _transposed_convolution(node: Node) -> int:
    return prod(_dims(node, 0)) * prod(_dims(node, 1)[1:])


def _causal_convolution(node: Node) -> int:
    return node.output.tensor.size * _dims(node, 1)[-1]


def _gemm(node: Node) -> int:
    return node.output.tensor.size * _dims(node, 0)[0 if getattr(node.op, "transA", 0) else 1]


def _matmul(node: Node) -> int:
    return node.output.tensor.size * _dims(node, 0)[-1]


def _einsum(node: Node) -> int:
    terms, _ = einsum_terms(getattr(node.op, "equation", ""))
    sizes: dict[str, int] = {}
    under_dots: dict[int, int] = {}
    for at, term in enumerate(terms):
        dims = _dims(node, at)
        before, dot, after = term.partition(".")
        end = len(dims) - len(after)
        for letter, size in zip(before + after, dims[: len(before)] + dims[end:], strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
        for axis, size in enumerate(reversed(dims[len(before) : end] if dot else ())):
            under_dots[axis] = max(under_dots.get(axis, 1), size)
    return prod(sizes.values()) * prod(under_dots.values()) * (len(terms) - 1)


def _attention(node: Node) -> int:
    keys = _dims(node, 1)[-2]
    if len(node.inputs) > 4 and node.inputs[4] is not None:
        keys += _dims(node, 4)[-2]
    return keys * (prod(_dims(node, 0)) + node.output.tensor.size)


def _experts(node: Node) -> int:
    op = node.op
    assert isinstance(op, Mixture)
    at = 8 if isinstance(op, QMoE) else 6
    third = _dims(node, at) if len(node.inputs) > at else ()
    columns = _dims(node, 2)[1]
    inner = columns // op.parts(has_third=bool(third))
    return prod(_dims(node, 0)) * op.k * (columns + inner + (columns if third else 0))


def _recurrent(node: Node) -> int:
    positions = prod(_dims(node, 0)[:2])
    return positions * (prod(_dims(node, 1)) + prod(_dims(node, 2)))


_RULES: dict[str, Rule] = {
    "Attention": _attention,
    "CausalConvWithState": _causal_convolution,
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "ConvTranspose": _transposed_convolution,
    "DeformConv": _convolution(1),
    "Einsum": _einsum,
    "FlexAttention": _attention,
    "GRU": _recurrent,
    "Gemm": _gemm,
    "LSTM": _recurrent,
    "MatMul": _matmul,
    "MatMulBnb4": _matmul,
    "MatMulInteger": _matmul,
    "MatMulNBits": _matmul,
    "MoE": _experts,
    "QLinearConv": _convolution(3),
    "QLinearMatMul": _matmul,
    "QMoE": _experts,
    "RNN": _recurrent,
}


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """All nodes of one operator.

    Attributes:
        operator: its name.
        nodes: number of nodes.
        macs: their multiply-accumulates, as far as known.
        parameters: elements of constants that they are the first to read.
        unknown: number of nodes with unknown MACs.
    """

    operator: str
    nodes: int
    macs: int
    parameters: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Constants:
    """The constants of a graph.

    Attributes:
        parameters: number of elements, except int64, bool and string constants: these are shapes,
            axes and indices.
        nbytes: bytes of all constants.
        by_dtype: bytes by dtype.
    """

    parameters: int
    nbytes: int
    by_dtype: dict[str, int]


def operators(graph: Graph, bound: Graph | None = None) -> tuple[OperatorCost, ...]:
    """Return the cost of each operator of a graph, bodies included, most frequent first.

    Args:
        graph: the graph.
        bound: the same graph with integer shapes, used for MACs; nodes missing in it were shape
            arithmetic.
    """
    rows: dict[str, list[int]] = {}
    seen: set[Value] = set()
    for node in graph.walk():
        row = rows.setdefault(node.kind, [0, 0, 0, 0])
        row[0] += 1
        row[2] += _parameters(v for v in node.distinct_reads if v.is_constant and v not in seen)
        seen.update(node.distinct_reads)
    for node in (bound or graph).walk():
        cost = macs(node)
        rows[node.kind][1] += cost or 0
        rows[node.kind][3] += cost is None
    found = [OperatorCost(kind, *numbers) for kind, numbers in rows.items()]
    return tuple(sorted(found, key=lambda row: (-row.nodes, row.operator)))


@dataclass(frozen=True, slots=True)
class NodeCost:
    """One node of a file.

    Attributes:
        number: its position in the file, from 1.
        name: of the node.
        operator: its operator.
        output: type of its first output.
        macs: multiply-accumulates; None if unknown.
        parameters: elements of constants that it is the first to read.
        nbytes: bytes of inputs, constants and outputs; None if unknown.
    """

    number: int
    name: str
    operator: str
    output: str
    macs: int | None
    parameters: int
    nbytes: int | None


def nodes(graph: Graph, bound: Graph | None = None) -> tuple[NodeCost, ...]:
    """Return the cost of each node of a graph, bodies included, in order.

    Args:
        graph: the graph.
        bound: the same graph with integer shapes, in which costs are looked up by name; nodes
            missing in it were shape arithmetic and cost nothing.
    """
    known = {node.name: node for node in (bound or graph).walk()}
    seen: set[Value] = set()
    found: list[NodeCost] = []
    for number, node in enumerate(graph.walk(), 1):
        sized = known.get(node.name)
        own = _parameters(v for v in node.distinct_reads if v.is_constant and v not in seen)
        seen.update(node.distinct_reads)
        values = () if sized is None else (*sized.distinct_reads, *sized.outputs)
        static = all(_is_static(value) for value in values)
        found.append(
            NodeCost(
                number,
                node.name,
                node.kind,
                str((sized or node).output.type or "?"),
                0 if sized is None else macs(sized),
                own,
                sum(value.tensor.nbytes for value in set(values)) if static else None,
            )
        )
    return tuple(found)


def _parameters(values: Iterable[Value]) -> int:
    return sum(v.tensor.size for v in values if v.tensor.dtype not in (int64, bool_, string))


def constants(graph: Graph) -> Constants:
    """Return number and bytes of a graph's constants, bodies included."""
    found = dict.fromkeys(graph.constants)
    for node in graph.walk():
        found.update(dict.fromkeys(v for v in node.distinct_reads if v.is_constant))
    by_dtype: dict[str, int] = {}
    for value in found:
        name = name_of(value.tensor.dtype)
        by_dtype[name] = by_dtype.get(name, 0) + value.tensor.nbytes
    return Constants(_parameters(found), sum(by_dtype.values()), by_dtype)


def activations(graph: Graph) -> int | None:
    """Return the bytes of all computed values that depend on inputs; None if a shape is unknown."""
    total = 0
    live = {*graph.inputs, *graph.captures}
    for node in graph.nodes:
        if live.isdisjoint(node.distinct_reads):
            continue
        live.update(node.outputs)
        for value in node.outputs:
            if not isinstance(value.type, TensorType) or not value.type.is_static:
                return None
            total += value.type.nbytes
    return total
