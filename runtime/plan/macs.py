"""Multiply-accumulates of nodes.

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
LinearClassifier, LinearRegressor               rows x coefficients
=============================================== ==================================================
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ..ir.graph import Node, Value
from ..ir.types import TensorType
from ..ops.experts import Mixture, QMoE
from ..ops.matmul import einsum_terms
from ..ops.ml import LinearClassifier, LinearRegressor

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
    if not all(is_static(value) for value in (*node.distinct_reads, *node.outputs)):
        return None
    return rule(node)


def is_static(value: Value) -> bool:
    """Return whether a value is a tensor whose dimensions are integers."""
    return isinstance(value.type, TensorType) and value.type.is_static


def _linear(node: Node) -> int:
    assert isinstance(node.op, LinearClassifier | LinearRegressor)
    return prod(_dims(node, 0)[:-1]) * len(node.op.coefficients or ())


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
    under_dots: list[tuple[int, ...]] = []
    for at, term in enumerate(terms):
        dims = _dims(node, at)
        before, dot, after = term.partition(".")
        end = len(dims) - len(after)
        for letter, size in zip(before + after, dims[: len(before)] + dims[end:], strict=True):
            sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
        under_dots.append(dims[len(before) : end] if dot else ())
    broadcast = np.broadcast_shapes(*under_dots)
    return prod(sizes.values()) * prod(broadcast) * (len(terms) - 1)


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
    "LinearClassifier": _linear,
    "LinearRegressor": _linear,
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
