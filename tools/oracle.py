"""The same model in float64: what the results would be with next to no rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..backends.numpy import NumpyBackend, evaluate
from ..runtime.dtypes import DType, float32, float64
from ..runtime.infer import infer
from ..runtime.ir import Graph, with_attributes
from ..runtime.model import Model
from ..runtime.op import attributes
from ..runtime.options import Options
from ..runtime.types import Array, TensorType


class Oracle:
    """Runs a graph in float64 on the numpy backend, unoptimised.

    Args:
        graph: an imported graph (`Model.imported`); stays as it is.
    """

    def __init__(self, graph: Graph) -> None:
        self._model = Model(
            in_float64(graph), [NumpyBackend()], Options(stop_at=0, max_plans=1), evaluate
        )

    def run(self, inputs: dict[str, Array], outputs: list[str] | None = None) -> dict[str, Array]:
        """Run on the model's own inputs; float32 ones are widened, float32 results are float64."""
        feeds = {name: _widened(np.asarray(data)) for name, data in inputs.items()}
        return self._model.run(feeds, outputs)

    def close(self) -> None:
        """Give the memory back."""
        self._model.close()


def in_float64(graph: Graph) -> Graph:
    """Return a copy of a graph in which every float32 tensor is float64."""
    copy = graph.clone()
    for value in copy.values.values():
        if isinstance(value.type, TensorType) and value.type.dtype == float32:
            value.type = replace(value.type, dtype=float64)
        if value.data is not None and value.data.dtype == float32:
            copy.set_data(value, _widened(value.data))
    for node in copy.nodes:
        changes = {
            name: float64
            for name in attributes(type(node.op))
            if isinstance(found := getattr(node.op, name), np.dtype) and _is_float32(found)
        }
        if changes:
            copy.set_op(node, with_attributes(node.op, **changes))
    infer(copy)
    return copy


def _is_float32(dtype: DType) -> bool:
    return dtype == float32


def _widened(data: Array) -> Array:
    """Return float32 data as float64, repeated elements still repeated, other data as it is."""
    if data.dtype != float32:
        return data
    if data.size and not any(data.strides):
        return np.broadcast_to(data.reshape(-1)[:1].astype(float64).reshape(()), data.shape)
    return data.astype(float64)
