"""Models whose layers of integers have biases of integers: nothing is left to round."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from .... import load
from ....backends.numpy import evaluate
from ....importers.onnx.writing.export import export
from ....runtime.passes.driver import Context
from ....runtime.passes.integers.integer_layers import LAYERS, Layer, layer_of, scale_of_sums


def with_whole_biases(proto: ModelProto) -> ModelProto:
    """Return a model in which a bias is what ``integers=True`` rounds it to.

    Layers between quantizers may have biases of floats. As layers of integers they have the nearest
    integers in the scale of the sums, as in onnxruntime, and then steps of results may be others.

    Args:
        proto: the model.
    """
    with load(proto, stop_at=0) as plain:
        graph, context = plain.imported.clone(), Context(plain.options, evaluate)
    for node in list(graph.nodes):
        layer = layer_of(graph, node, context, every=True) if isinstance(node.op, LAYERS) else ""
        if not isinstance(layer, Layer) or layer.top is None or layer.bias.integers is None:
            continue
        whole = layer.bias.integers * scale_of_sums(layer.operands, np.float32(1))
        adding = layer.bias.node or node
        adding_to = adding.inputs if layer.bias.node else (None, None, *adding.inputs[2:])
        for old in adding_to:
            if old is not None and old.data is not None and old.data.dtype == np.float32:
                new = graph.constant(whole.astype(np.float32).reshape(old.data.shape))
                graph.set_inputs(adding, [new if v is old else v for v in adding.inputs])
    return export(graph)
