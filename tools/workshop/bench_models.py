"""The models that benchmarks run: the light ones of the `onnx` package and the generated ones."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto

from ...runtime.ir.types import Array
from . import generated_convnets, generated_models, generated_transformers, light_models

_GENERATED = {
    **generated_models.MAKERS,
    **generated_convnets.MAKERS,
    **generated_transformers.MAKERS,
}
#: In alphabetical order. GoogLeNet is called inception_v1.
NAMES = tuple(sorted((*light_models.NAMES, *_GENERATED)))


def bench_model(name: str, seed: int = 0) -> ModelProto:
    """Return a model of `NAMES` that gives logits or hidden states, with random weights.

    Generated ones have a symbolic batch size, or 1.

    Args:
        name: one of `NAMES`.
        seed: seed of the weights.
    """
    if name in light_models.NAMES:
        return light_models.light_model(name, seed)
    return _GENERATED[name](seed)


def bench_inputs(model: ModelProto, batch: int = 1) -> dict[str, Array]:
    """Return inputs of a model: standard normal floats, and integers that are 0 or 1.

    0 and 1 are valid tokens of every vocabulary, segments of a sentence, and elements of a mask.

    Args:
        model: the model.
        batch: size of symbolic dimensions.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        if value.name in stored:
            continue
        shape = [dim.dim_value or batch for dim in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            feeds[value.name] = rng.standard_normal(shape, np.float32)
        else:
            feeds[value.name] = rng.integers(0, 2, shape, np.int64)
    return feeds
