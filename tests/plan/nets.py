"""Small graphs of 1x1 convolutions, concats and splits, for tests of plans."""

from __future__ import annotations

from typing import Any

import numpy as np

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.movement import Concat
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Backend
from tercet.runtime.session.model import Model


class Net:
    """A graph in the making, with 1x1 convolutions whose weights it makes."""

    def __init__(self, *shape: int, dtype: DType = float32) -> None:
        self.graph, self.rng = Graph("test"), np.random.default_rng(0)
        self.x = self.graph.add_input("x", TensorType(dtype, shape))

    def add(self, op: Op, *inputs: Value, name: str | None = None, outputs: int = 1) -> Any:
        node = self.graph.insert(op, inputs, outputs, name=name)
        infer(self.graph)
        return node.output if outputs == 1 else node.outputs

    def conv(self, x: Value, filters: int, name: str | None = None) -> Value:
        data = self.rng.standard_normal((filters, x.tensor.dims[1], 1, 1), np.float32)
        return self.add(Conv(), x, self.graph.constant(data, ""), name=name)

    def join(self, *inputs: Value, axis: int = 1, name: str = "cat") -> Value:
        return self.add(Concat(axis=axis), *inputs, name=name)

    def model(self, *backends: Backend, **outputs: Value) -> Model:
        self.graph.set_outputs(outputs)
        infer(self.graph)
        return Model(self.graph, backends, Options(), evaluate)
