"""Computes layers of quantized tensors on their integers, whose products and sums are exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from ...ir.dtypes import float32
from ...ir.graph import Graph, Value
from ...ir.op import Op, attributes
from ...ir.types import Array, TensorType
from ...ops.conv import Conv, ConvOp
from ...ops.elementwise import Add, Cast, Clip, Mul, Relu
from ...ops.matmul import Gemm
from ...ops.movement import Transpose
from ...ops.quantize import MatMulInteger, QLinearConv, QLinearMatMul, QuantizeLinear
from ...ops.shape import Squeeze, Unsqueeze
from ..driver import Context, Reason, RewriteRefusal
from ..editing import Builder, drop
from .integer_layers import LAYERS, Layer, Quantized, count_of, filters_of, layer_of, scale_of_sums

#: Axes of matrices that are filters of single pixels.
PIXEL = (2, 3)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Join DequantizeLinear, Conv, Gemm or MatMul, and QuantizeLinear, with ``Options.integers``.

    Quantizers write layers as those of floats, between conversions. A float sum depends on the
    order of its terms, and next to a tie the next QuantizeLinear makes a step of that; a sum of
    integers does not. Results are those of onnxruntime, whose optimiser does the same: sums of
    int32, times one factor, rounded to nearest. A Relu, or a Clip to what the result can hold, is
    part of the saturation.

    With True, all layers are joined that onnxruntime joins: biases of floats are rounded to the
    scale of the sums, and results that no QuantizeLinear reads are sums times a factor. A backend's
    choice (see `PassOptions.integers`) only has layers whose integers are those of the file.
    """
    choice = context.options.integers
    if not choice:
        return
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, LAYERS):
            continue
        layer = layer_of(graph, node, context, every=choice is True)
        if isinstance(layer, Layer) and choice is not True:
            layer = choice(*_to_be(layer)) or layer
        kind, name = node.kind, node.name
        if isinstance(layer, Layer):
            _join(graph, layer)
            yield f"{kind} '{name}' multiplies integers"
        elif layer:
            text = f"{kind} '{name}' is a layer of floats: {layer}"
            context.refused.append(RewriteRefusal(Reason.NUMBERS, (name,), text))


def _to_be(layer: Layer) -> tuple[Op, TensorType, TensorType]:
    """Return what a backend is asked about: the operator on integers, and types of its operands."""
    node, (image, weight) = layer.node, layer.operands
    shapes = [image.shape, weight.shape]
    if isinstance(node.op, Conv):
        op: Op = _convolution(node.op)
    elif layer.is_convolution:
        filters = filters_of(node, weight)
        shapes = [each and (*each, 1, 1) for each in (image.shape, cast(Array, filters).shape)]
        op = QLinearConv()
    else:
        op = QLinearMatMul() if layer.is_product else MatMulInteger()
    pairs = zip((image, weight), shapes, strict=True)
    x, w = (TensorType(each.zero.dtype, shape) for each, shape in pairs)
    return op, x, w


def _join(graph: Graph, layer: Layer) -> None:
    """Put nodes of integers in the place of a layer."""
    *_, end = nodes = layer.nodes
    origin = graph.in_order(nodes)
    add = Builder(graph, end, layer.node.name, origin)
    if layer.is_convolution:
        made = _convolved(add, layer)
    elif layer.is_product:
        made = add(QLinearMatMul(), *_operands(add, layer, _moved(add, layer.operands[1])))
    else:
        made = _summed(add, layer)
    for node in layer.between:
        if not isinstance(node.op, Relu | Clip):
            made = add(node.op, made, *node.inputs[1:])
    sources = [value.producer for node in nodes for value in node.distinct_reads]
    graph.redirect(end.output, made)
    for each in (*reversed(origin), *sources):
        drop(graph, each)


def _moved(add: Builder, tensor: Quantized) -> Value:
    """Return the integers of an operand, moved as its floats were."""
    value = tensor.integers
    if tensor.data is not None and (tensor.moved or value is None or value.data is None):
        return add.constant(tensor.data, "weight")
    for node in tensor.moved:
        value = add(node.op, value, *node.inputs[1:])
    return cast(Value, value)


def _operands(add: Builder, layer: Layer, w: Value) -> tuple[Value, ...]:
    """Return the first eight inputs of QLinearConv and QLinearMatMul."""
    (image, weight), result = layer.operands, cast("tuple[Array, Array]", layer.result)
    scale = layer.factor * image.scale.reshape(())
    one = [_scalar(each) for each in (scale, image.zero, *result)]
    x_scale, x_zero, y_scale, y_zero = (add.constant(data, "quantization") for data in one)
    by_filter = (_vector(weight.scale), _vector(weight.zero))
    w_scale, w_zero = (add.constant(data, "quantization") for data in by_filter)
    x = _moved(add, image)
    if isinstance(layer.node.op, Gemm) and layer.node.op.transA:
        x = add(Transpose(perm=(1, 0)), x)
    return x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero


def _convolution(op: Conv) -> QLinearConv:
    return QLinearConv(**{name: getattr(op, name) for name in attributes(ConvOp)})


def _convolved(add: Builder, layer: Layer) -> Value:
    """Return the result of a Conv, or of a product with a bias as one of single pixels."""
    node, integers, filters = layer.node, layer.bias.integers, None
    bias: tuple[Value, ...] = ()
    if not isinstance(node.op, Conv):
        filters = cast(Array, filters_of(node, layer.operands[1]))
    if integers is not None and integers.any():
        count = cast(int, count_of(node, layer.operands[1]))
        each = np.broadcast_to(integers.reshape(-1), (count,))
        bias = (add.constant(each, f"{node.name}.bias"),)
    if filters is None:
        w = _moved(add, layer.operands[1])
        return add(_convolution(cast(Conv, node.op)), *_operands(add, layer, w), *bias)
    w = add.constant(filters[:, :, None, None], f"{node.name}.weight")
    x, *others = _operands(add, layer, w)
    axes = add.integers(PIXEL, "axes")
    return add(Squeeze(), add(QLinearConv(), add(Unsqueeze(), x, axes), *others, *bias), axes)


def _summed(add: Builder, layer: Layer) -> Value:
    """Return a product step by step: sums, times a factor, perhaps quantized."""
    node, (image, weight), bias = layer.node, layer.operands, layer.bias
    x, w = _moved(add, image), _moved(add, weight)
    if isinstance(node.op, Gemm) and node.op.transA:
        x = add(Transpose(perm=(1, 0)), x)
    if isinstance(node.op, Gemm) and node.op.transB:
        w = add(Transpose(perm=(1, 0)), w)
    zeros = (add.constant(data, "zero") for data in (_scalar(image.zero), _vector(weight.zero)))
    sums = add(MatMulInteger(), x, w, *zeros)
    if bias.integers is not None and bias.integers.any():
        sums = add(Add(), sums, add.constant(bias.integers, f"{node.name}.bias"))
    factor = scale_of_sums(layer.operands, layer.factor)
    if layer.result is not None:
        factor = factor / layer.result[0].reshape(())
    real = add(Mul(), add(Cast(to=float32), sums), add.constant(_vector(factor), "factor"))
    if layer.result is not None:
        one, zero = (add.constant(_scalar(data)) for data in (np.ones(1, float32), layer.result[1]))
        return add(QuantizeLinear(), real, one, zero)
    if bias.integers is None:
        return add(Add(), real, add.constant(bias.floats, f"{node.name}.bias"))
    return real


def _scalar(data: Array) -> Array:
    return np.asarray(data).reshape(())


def _vector(data: Array) -> Array:
    return data.reshape(() if data.size == 1 else (-1,))
