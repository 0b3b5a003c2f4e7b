"""ViT and BERT as people export them from PyTorch, written here node by node, with random weights.

The small ones have a batch of one, as files for the edge do; those of the size of the papers have a
symbolic one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import sqrt

import numpy as np
from onnx import ModelProto, TensorProto, helper

from .generated_models import Sheet, image


def _vit(
    seed: int, *, name: str, width: int, heads: int, depth: int, batch: int | str
) -> ModelProto:
    """Return a vision transformer on 197 tokens of 16x16 pixels, as dynamo writes it."""
    sheet, tokens, size = Sheet(name, seed), 197, width // heads
    patches = sheet.weight(width, 3, 16, 16, scale=sqrt(1 / 768))
    bias = sheet.weight(width, scale=0.1, name="bias")
    x = sheet.node("Conv", "input", patches, bias, kernel_shape=[16, 16], strides=[16, 16])
    x = sheet.node("Reshape", x, sheet.integers(0, width, tokens - 1))
    x = sheet.node("Transpose", x, perm=[0, 2, 1])
    first = sheet.weight(1, 1, width, scale=1.0)
    if isinstance(batch, str):
        count = sheet.node("Shape", "input", start=0, end=1)
        shape = sheet.node("Concat", count, sheet.integers(1, width), axis=0)
        first = sheet.node("Expand", first, shape)
    x = sheet.node("Concat", first, x, axis=1)
    x = sheet.node("Add", x, sheet.weight(1, tokens, width, scale=0.5))
    split, joined = sheet.integers(0, tokens, 3, heads, size), sheet.integers(0, tokens, width)
    one, half_scale = sheet.integers(0), sheet.scalar(size**-0.25)

    def norm(x: str) -> str:
        parameters = sheet.norm_parameters(width)
        return sheet.node("LayerNormalization", x, *parameters, axis=-1, epsilon=1e-6)

    for _ in range(depth):
        y = sheet.node("Reshape", sheet.linear(norm(x), width, 3 * width), split)
        y = sheet.node("Transpose", y, perm=[2, 0, 3, 1, 4])
        parts = sheet.nodes_of("Split", (y,), 3, axis=0, num_outputs=3)
        q, k, v = (sheet.node("Squeeze", part, one) for part in parts)
        k = sheet.node("Transpose", k, perm=[0, 1, 3, 2])
        q, k = (sheet.node("Mul", part, half_scale) for part in (q, k))
        scores = sheet.node("Softmax", sheet.node("MatMul", q, k), axis=-1)
        y = sheet.node("Transpose", sheet.node("MatMul", scores, v), perm=[0, 2, 1, 3])
        y = sheet.linear(sheet.node("Reshape", y, joined), width, width)
        x = sheet.node("Add", x, y)
        y = sheet.gelu(sheet.linear(norm(x), width, 4 * width))
        x = sheet.node("Add", x, sheet.linear(y, 4 * width, width))
    x = sheet.node("Gather", norm(x), sheet.store(np.array(0, np.int64)), axis=1)
    return sheet.model(image(batch), (sheet.gemm(x, width, 1000), (batch, 1000)), 18)


def _decomposed_norm(sheet: Sheet, x: str, size: int) -> str:
    """Add a layer normalization as exporters spelled it out before opset 17."""
    scale, shift = sheet.norm_parameters(size)
    centred = sheet.node("Sub", x, sheet.node("ReduceMean", x, axes=[-1]))
    square = sheet.node("Pow", centred, sheet.scalar(2))
    variance = sheet.node("ReduceMean", square, axes=[-1])
    deviation = sheet.node("Sqrt", sheet.node("Add", variance, sheet.scalar(1e-12)))
    normal = sheet.node("Div", centred, deviation)
    return sheet.node("Add", sheet.node("Mul", normal, scale), shift)


def _bert(
    seed: int, *, name: str, width: int, heads: int, depth: int, batch: int | str
) -> ModelProto:
    """Return a BERT encoder on 128 tokens of a vocabulary of 30522, as TorchScript writes it.

    The result is the last hidden state.
    """
    sheet, tokens = Sheet(name, seed), 128
    names = ("input_ids", "attention_mask", "token_type_ids")
    words, kinds = (sheet.weight(n, width, scale=0.5, name="embeddings") for n in (30522, 2))
    x = sheet.node("Gather", words, "input_ids", axis=0)
    x = sheet.node("Add", x, sheet.node("Gather", kinds, "token_type_ids", axis=0))
    x = sheet.node("Add", x, sheet.weight(1, tokens, width, scale=0.5))
    x = _decomposed_norm(sheet, x, width)
    mask = sheet.node("Unsqueeze", "attention_mask", sheet.integers(1, 2))
    mask = sheet.node("Sub", sheet.scalar(1), sheet.node("Cast", mask, to=TensorProto.FLOAT))
    mask = sheet.node("Mul", mask, sheet.scalar(float(np.finfo(np.float32).min)))
    split = sheet.integers(0, tokens, heads, width // heads)
    joined, scale = sheet.integers(0, tokens, width), sheet.scalar(sqrt(width // heads))

    def by_head(y: str, *perm: int) -> str:
        y = sheet.node("Reshape", sheet.linear(y, width, width), split)
        return sheet.node("Transpose", y, perm=perm)

    for _ in range(depth):
        q, k, v = by_head(x, 0, 2, 1, 3), by_head(x, 0, 2, 3, 1), by_head(x, 0, 2, 1, 3)
        scores = sheet.node("Div", sheet.node("MatMul", q, k), scale)
        scores = sheet.node("Softmax", sheet.node("Add", scores, mask), axis=-1)
        y = sheet.node("Transpose", sheet.node("MatMul", scores, v), perm=[0, 2, 1, 3])
        y = sheet.linear(sheet.node("Reshape", y, joined), width, width)
        x = _decomposed_norm(sheet, sheet.node("Add", y, x), width)
        y = sheet.gelu(sheet.linear(x, width, 4 * width))
        y = sheet.linear(y, 4 * width, width)
        x = _decomposed_norm(sheet, sheet.node("Add", y, x), width)
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, (batch, tokens)) for n in names]
    return sheet.model(inputs, (x, (batch, tokens, width)), 16)


#: By name: a function of the seed of the weights. ``vit_base`` is ViT-B/16, ``vit_tiny`` ViT-Ti/16.
MAKERS: Mapping[str, Callable[[int], ModelProto]] = {
    "bert_base": partial(_bert, name="bert_base", width=768, heads=12, depth=12, batch="batch"),
    "bert_small": partial(_bert, name="bert_small", width=512, heads=8, depth=4, batch=1),
    "vit_base": partial(_vit, name="vit_base", width=768, heads=12, depth=12, batch="batch"),
    "vit_tiny": partial(_vit, name="vit_tiny", width=192, heads=3, depth=12, batch=1),
}
