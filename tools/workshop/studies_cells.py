"""Random networks of cells as in architecture search: many small branches."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

#: Kinds of branches: separable, asymmetric and dilated convolutions, pools, identity.
BRANCHES = ("sep3", "sep5", "sep7", "1x7-7x1", "identity", "mean3", "max3", "dilated3")
BLOCKS = 5


class Cells:
    """Random cells, one after the other; each reads the two before it.

    Args:
        seed: seed of branches and weights.
        cells: number of cells.
        channels: number of channels of every tensor.
        extent: height and width of every tensor.
    """

    def __init__(self, seed: int, cells: int = 2, channels: int = 8, extent: int = 9) -> None:
        self.rng = np.random.default_rng(seed)
        self.channels, self.extent = channels, extent
        self.nodes, self.weights = list[NodeProto](), list[TensorProto]()
        states = ["x", self._conv("x", 1)]
        for _ in range(cells):
            states = [states[-1], self._cell(states[-2:])]
        self.output = states[-1]

    def _node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def _conv(self, x: str, *kernel: int, group: int = 1, dilation: int = 1) -> str:
        """Return a convolution that keeps the extents, normal weights, and a Relu."""
        kernel = kernel * 2 if len(kernel) == 1 else kernel
        shape = (self.channels, self.channels // group, *kernel)
        weights = self._stored(shape, np.sqrt(2 / np.prod(shape[1:])))
        pads = [(k - 1) * dilation // 2 for k in kernel] * 2
        attributes = {"group": group, "pads": pads, "dilations": [dilation] * 2}
        return self._node("Relu", self._node("Conv", x, weights, **attributes))

    def _stored(self, shape: tuple[int, ...], scale: float) -> str:
        data = self.rng.normal(0, scale, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(data, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def _branch(self, kind: str, x: str) -> str:
        window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        if kind.startswith("sep"):
            return self._conv(self._conv(x, int(kind[3:]), group=self.channels), 1)
        if kind == "1x7-7x1":
            return self._conv(self._conv(x, 1, 7), 7, 1)
        if kind == "dilated3":
            return self._conv(x, 3, dilation=2)
        if kind == "identity":
            return x
        return self._node("AveragePool" if kind == "mean3" else "MaxPool", x, **window)

    def _cell(self, states: list[str]) -> str:
        """Return the blocks that no other block reads, side by side, in as many channels."""
        states, read = list(states), set[str]()
        for _ in range(BLOCKS):
            sides: list[str] = []
            for _ in range(2):
                state = states[self.rng.integers(len(states))]
                read.add(state)
                sides.append(self._branch(str(self.rng.choice(BRANCHES)), state))
            states.append(self._node("Add", *sides))
        ends = [state for state in states[2:] if state not in read]
        joined = self._node("Concat", *ends, axis=1) if len(ends) > 1 else ends[0]
        before = len(ends) * self.channels
        weights = self._stored((self.channels, before, 1, 1), np.sqrt(1 / before))
        return self._node("Conv", joined, weights)

    def model(self, batch: int = 1) -> ModelProto:
        """Return the model: ``x`` and its result are [batch, channels, extent, extent]."""
        image = [batch, self.channels, self.extent, self.extent]
        graph = helper.make_graph(
            self.nodes,
            "cells",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
            [helper.make_tensor_value_info(self.output, TensorProto.FLOAT, image)],
            self.weights,
        )
        opset = [helper.make_opsetid("", 21)]
        return helper.make_model(graph, opset_imports=opset, ir_version=10)
