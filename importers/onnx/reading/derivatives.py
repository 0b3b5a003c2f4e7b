"""Differentiation rules: from the gradient of a node's result to those of its inputs.

A rule ``f(write, node, g)`` inserts nodes and returns one gradient per input; None for inputs on
which the result does not depend differentiably. The table is at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import numpy as np

from ....runtime.errors import ShapeError
from ....runtime.ir.dtypes import FLOATS, DType
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.infer import infer_node
from ....runtime.ir.op import Op, with_attributes
from ....runtime.ops import conv, matmul, movement, norm, reduce, shape
from ....runtime.ops.elementwise import (
    Add,
    Cast,
    Cos,
    Cosh,
    Div,
    Exp,
    Greater,
    Log,
    Mul,
    Neg,
    Pow,
    Sigmoid,
    Sign,
    Sin,
    Sinh,
    Sub,
    Where,
)
from ....runtime.ops.window import window

Gradients = tuple[Value | None, ...]
Rule = Callable[["GradientWriter", Node, Value], Gradients]


class GradientWriter:
    """Inserts nodes with inferred types in front of one."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph = graph
        self.node = node

    def __call__(self, op: Op, *inputs: Value | None) -> Value:
        """Add a node; return its output."""
        return self.nodes(op, inputs, 1).output

    def nodes(self, op: Op, inputs: tuple[Value | None, ...], outputs: int) -> Node:
        """Add a node."""
        made = self.graph.insert(op, inputs, outputs, before=self.node, origin=(self.node,))
        infer_node(made)
        return made

    def constant(self, data: Any, dtype: DType | None = None) -> Value:
        """Add a constant."""
        return self.graph.constant(np.array(data, dtype), f"{self.node.name}.constant")

    def number(self, data: float, like: Value) -> Value:
        """Add a scalar constant of the dtype of a value."""
        return self.constant(data, like.tensor.dtype)

    def filled(self, data: float, like: Value) -> Value:
        """Return a tensor filled with one number, with the type of a value."""
        return self(movement.Expand(), self.number(data, like), self(shape.Shape(), like))

    def like(self, g: Value, like: Value) -> Value:
        """Return the same elements in the shape of a value."""
        return self(shape.Reshape(allowzero=1), g, self(shape.Shape(), like))

    def summed(self, g: Value, like: Value) -> Value:
        """Return the sums over broadcast axes, in the shape of a value."""
        wide, narrow = g.tensor.shape, like.tensor.shape
        if wide is None or narrow is None:
            raise ShapeError(f"the rank of '{like.name}' or of what it is broadcast to is unknown")
        lead = len(wide) - len(narrow)
        axes = list(range(lead))
        for i, (a, b) in enumerate(zip(wide[lead:], narrow, strict=True), start=lead):
            if a is None or b is None or (a != b and b != 1):
                raise ShapeError(f"{g.tensor} and {like.tensor}: sizes are unknown")
            axes += [i] * (a != b)
        if not axes:
            return g
        return self.like(self(reduce.ReduceSum(), g, self.constant(axes)), like)


def _inputs(node: Node) -> tuple[Value, ...]:
    return tuple(value for value in node.inputs if value is not None)


# ── one and several variables, element by element ────────────────────────────────────────────────


def _unary(factor: Callable[[GradientWriter, Value, Value], Value]) -> Rule:
    """Return the rule of y = f(x), given its derivative f'(x) from x and y."""

    def rule(write: GradientWriter, node: Node, g: Value) -> Gradients:
        (x,) = _inputs(node)
        return (write(Mul(), g, factor(write, x, node.output)),)

    return rule


def _sigmoid(write: GradientWriter, x: Value, y: Value) -> Value:
    return write(Mul(), y, write(Sub(), write.number(1, y), y))


def _tanh(write: GradientWriter, x: Value, y: Value) -> Value:
    return write(Sub(), write.number(1, y), write(Mul(), y, y))


def _tan(write: GradientWriter, x: Value, y: Value) -> Value:
    return write(Add(), write.number(1, y), write(Mul(), y, y))


def _erf(write: GradientWriter, x: Value, y: Value) -> Value:
    bell = write(Exp(), write(Neg(), write(Mul(), x, x)))
    return write(Mul(), write.number(2 / sqrt(pi), y), bell)


def _relu(write: GradientWriter, node: Node, g: Value) -> Gradients:
    (x,) = _inputs(node)
    zero = write.number(0, x)
    return (write(Where(), write(Greater(), x, zero), g, zero),)


def _add(write: GradientWriter, node: Node, g: Value) -> Gradients:
    return tuple(write.summed(g, x) for x in _inputs(node))


def _sub(write: GradientWriter, node: Node, g: Value) -> Gradients:
    a, b = _inputs(node)
    return write.summed(g, a), write(Neg(), write.summed(g, b))


def _mul(write: GradientWriter, node: Node, g: Value) -> Gradients:
    a, b = _inputs(node)
    return write.summed(write(Mul(), g, b), a), write.summed(write(Mul(), g, a), b)


def _div(write: GradientWriter, node: Node, g: Value) -> Gradients:
    a, b = _inputs(node)
    part = write(Div(), g, b)
    of_b = write(Neg(), write(Mul(), part, node.output))
    return write.summed(part, a), write.summed(of_b, b)


def _pow(write: GradientWriter, node: Node, g: Value) -> Gradients:
    a, b = _inputs(node)
    exponent = write(Cast(to=a.tensor.dtype), b)
    lower = write(Pow(), a, write(Sub(), exponent, write.number(1, a)))
    of_a = write(Mul(), g, write(Mul(), exponent, lower))
    of_b = write(Mul(), g, write(Mul(), node.output, write(Log(), a)))
    is_float = b.tensor.dtype in FLOATS
    of_exponent = write(Cast(to=b.tensor.dtype), of_b) if is_float else None
    return write.summed(of_a, a), of_exponent and write.summed(of_exponent, b)


def _where(write: GradientWriter, node: Node, g: Value) -> Gradients:
    condition, a, b = _inputs(node)
    zero = write.number(0, g)
    of_a, of_b = write(Where(), condition, g, zero), write(Where(), condition, zero, g)
    return None, write.summed(of_a, a), write.summed(of_b, b)


def _cast(write: GradientWriter, node: Node, g: Value) -> Gradients:
    (x,) = _inputs(node)
    is_float = x.tensor.dtype in FLOATS and g.tensor.dtype in FLOATS
    return (write(Cast(to=x.tensor.dtype), g) if is_float else None,)


# ── whole tensors ────────────────────────────────────────────────────────────────────────────────


def _same(write: GradientWriter, node: Node, g: Value) -> Gradients:
    return (g,)


def _reshaped(write: GradientWriter, node: Node, g: Value) -> Gradients:
    return (write.like(g, _inputs(node)[0]),)


def _transpose(write: GradientWriter, node: Node, g: Value) -> Gradients:
    assert isinstance(node.op, movement.Transpose)
    rank = len(g.tensor.shape or ())
    order = tuple(int(i) for i in np.argsort(node.op.order(rank)))
    return (write(movement.Transpose(perm=order), g),)


def _expand(write: GradientWriter, node: Node, g: Value) -> Gradients:
    return write.summed(g, _inputs(node)[0]), None


def _concat(write: GradientWriter, node: Node, g: Value) -> Gradients:
    assert isinstance(node.op, movement.Concat)
    parts = _inputs(node)
    sizes = write.constant([part.tensor.dims[node.op.axis] for part in parts])
    op = movement.Split(axis=node.op.axis, num_outputs=len(parts))
    return write.nodes(op, (g, sizes), len(parts)).outputs


def _spread(write: GradientWriter, node: Node, g: Value) -> Value:
    """Return the gradient of a sum broadcast to every summed element."""
    x = _inputs(node)[0]
    kept = write(with_attributes(node.op, keepdims=1), *node.inputs)
    return write(movement.Expand(), write.like(g, kept), write(shape.Shape(), x))


def _reduce_sum(write: GradientWriter, node: Node, g: Value) -> Gradients:
    return (_spread(write, node, g),)


def _reduce_mean(write: GradientWriter, node: Node, g: Value) -> Gradients:
    sizes = (write(shape.Size(), value) for value in (_inputs(node)[0], node.output))
    many, few = (write(Cast(to=g.tensor.dtype), size) for size in sizes)
    return (write(Div(), _spread(write, node, g), write(Div(), many, few)),)


def _softmax(write: GradientWriter, node: Node, g: Value) -> Gradients:
    assert isinstance(node.op, norm.Softmax)
    y, axis = node.output, write.constant([node.op.axis])
    total = write(reduce.ReduceSum(), write(Mul(), g, y), axis)
    return (write(Mul(), y, write(Sub(), g, total)),)


def _log_softmax(write: GradientWriter, node: Node, g: Value) -> Gradients:
    assert isinstance(node.op, norm.LogSoftmax)
    total = write(reduce.ReduceSum(), g, write.constant([node.op.axis]))
    return (write(Sub(), g, write(Mul(), write(Exp(), node.output), total)),)


# ── products ─────────────────────────────────────────────────────────────────────────────────────


def _transposed(write: GradientWriter, x: Value) -> Value:
    """Return the transpose of every matrix."""
    rank = len(x.tensor.shape or ())
    if rank < 2:
        raise ShapeError(f"'{x.name}' is {x.type}; the gradient supports only matrices")
    return write(movement.Transpose(perm=(*range(rank - 2), rank - 1, rank - 2)), x)


def _matmul(write: GradientWriter, node: Node, g: Value) -> Gradients:
    a, b = _inputs(node)
    of_a = write(matmul.MatMul(), g, _transposed(write, b))
    of_b = write(matmul.MatMul(), _transposed(write, a), g)
    return write.summed(of_a, a), write.summed(of_b, b)


def _gemm(write: GradientWriter, node: Node, g: Value) -> Gradients:
    op = node.op
    assert isinstance(op, matmul.Gemm)
    a, b, *rest = _inputs(node)

    def product(x: Value, y: Value, trans_a: int, trans_b: int) -> Value:
        return write(matmul.Gemm(alpha=op.alpha, transA=trans_a, transB=trans_b), x, y)

    of_a = product(b, g, op.transB, 1) if op.transA else product(g, b, 0, 1 - op.transB)
    of_b = product(g, a, 1, op.transA) if op.transB else product(a, g, 1 - op.transA, 0)
    scaled = write(Mul(), g, write.number(op.beta, g))
    return (of_a, of_b, *(write.summed(scaled, c) for c in rest))


def _conv(write: GradientWriter, node: Node, g: Value) -> Gradients:
    op = node.op
    assert isinstance(op, conv.Conv)
    x, w, *rest = _inputs(node)
    size, kernel = x.tensor.dims[2:], w.tensor.dims[2:]
    if op.group != 1:
        raise ShapeError(f"group={op.group}; the gradient supports only one group")
    geometry = window(op, size, kernel)
    pads = (*geometry.pads_begin, *geometry.pads_end)
    strides, dilations = geometry.strides, geometry.dilations
    reached = zip(geometry.output, strides, geometry.extent, pads, geometry.pads_end, strict=False)
    ends = ((n - 1) * stride + extent - a - b for n, stride, extent, a, b in reached)
    rest_of_x = tuple(n - end for n, end in zip(size, ends, strict=True))
    back = conv.ConvTranspose(
        pads=pads, strides=strides, dilations=dilations, output_padding=rest_of_x
    )
    swap = movement.Transpose(perm=(1, 0, *range(2, 2 + len(size))))
    over = conv.Conv(pads=pads, strides=dilations, dilations=strides)
    taps = write(over, write(swap, x), write(swap, g))
    axes = list(range(2, 2 + len(size)))
    starts, ends_of_w, along = map(write.constant, ([0] * len(size), list(kernel), axes))
    of_w = write(swap, write(movement.Slice(), taps, starts, ends_of_w, along))
    over_channels = write.constant([0, *axes])
    biases = (write(reduce.ReduceSum(keepdims=0), g, over_channels) for _ in rest)
    return (write(back, g, w), of_w, *biases)


# ── the table ────────────────────────────────────────────────────────────────────────────────────

RULES: dict[str, Rule] = {
    "Abs": _unary(lambda write, x, y: write(Sign(), x)),
    "Add": _add,
    "Cast": _cast,
    "Concat": _concat,
    "Conv": _conv,
    "Cos": _unary(lambda write, x, y: write(Neg(), write(Sin(), x))),
    "Cosh": _unary(lambda write, x, y: write(Sinh(), x)),
    "Div": _div,
    "Erf": _unary(_erf),
    "Exp": _unary(lambda write, x, y: y),
    "Expand": _expand,
    "Flatten": _reshaped,
    "Gemm": _gemm,
    "Identity": _same,
    "Log": lambda write, node, g: (write(Div(), g, _inputs(node)[0]),),
    "LogSoftmax": _log_softmax,
    "MatMul": _matmul,
    "Mul": _mul,
    "Neg": lambda write, node, g: (write(Neg(), g),),
    "Pow": _pow,
    "Reciprocal": _unary(lambda write, x, y: write(Neg(), write(Mul(), y, y))),
    "ReduceMean": _reduce_mean,
    "ReduceSum": _reduce_sum,
    "Relu": _relu,
    "Reshape": _reshaped,
    "Sigmoid": _unary(_sigmoid),
    "Sin": _unary(lambda write, x, y: write(Cos(), x)),
    "Sinh": _unary(lambda write, x, y: write(Cosh(), x)),
    "Softmax": _softmax,
    "Softplus": _unary(lambda write, x, y: write(Sigmoid(), x)),
    "Sqrt": _unary(lambda write, x, y: write(Div(), write.number(0.5, y), y)),
    "Squeeze": _reshaped,
    "Sub": _sub,
    "Sum": _add,
    "Tan": _unary(_tan),
    "Tanh": _unary(_tanh),
    "Transpose": _transpose,
    "Unsqueeze": _reshaped,
    "Where": _where,
}
