"""Cells as a search for architectures finds them: many small branches (PNAS; row E31)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import tercet
from tercet.runtime.types import Array

#: What a branch does: separable, asymmetric and dilated convolutions, pools, nothing.
BRANCHES = ("sep3", "sep5", "sep7", "1x7-7x1", "identity", "mean3", "max3", "dilated3")
CHANNELS, EXTENT, BLOCKS = 8, 9, 5


class Cells:
    """Random cells, one after the other; each reads the two before it."""

    def __init__(self, seed: int, cells: int = 2) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes, self.weights = list[NodeProto](), list[TensorProto]()
        states = ["x", self.conv("x", 1)]
        for _ in range(cells):
            states = [states[-1], self.cell(states[-2:])]
        self.output = states[-1]

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def conv(self, x: str, *kernel: int, group: int = 1, dilation: int = 1) -> str:
        """Return a convolution that keeps the extents, normal weights, and a Relu."""
        kernel = kernel * 2 if len(kernel) == 1 else kernel
        shape = (CHANNELS, CHANNELS // group, *kernel)
        scale = np.sqrt(2 / np.prod(shape[1:]))
        data = self.rng.normal(0, scale, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(data, f"w{len(self.weights)}"))
        pads = [(k - 1) * dilation // 2 for k in kernel] * 2
        attributes = {"group": group, "pads": pads, "dilations": [dilation] * 2}
        return self.node("Relu", self.node("Conv", x, self.weights[-1].name, **attributes))

    def branch(self, kind: str, x: str) -> str:
        window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        if kind.startswith("sep"):
            return self.conv(self.conv(x, int(kind[3:]), group=CHANNELS), 1)
        if kind == "1x7-7x1":
            return self.conv(self.conv(x, 1, 7), 7, 1)
        if kind == "dilated3":
            return self.conv(x, 3, dilation=2)
        if kind == "identity":
            return x
        return self.node("AveragePool" if kind == "mean3" else "MaxPool", x, **window)

    def cell(self, states: list[str]) -> str:
        """Return the blocks that no other block reads, side by side, in CHANNELS channels."""
        states, read = list(states), set[str]()
        for _ in range(BLOCKS):
            sides = []
            for _ in range(2):
                state = states[self.rng.integers(len(states))]
                read.add(state)
                sides.append(self.branch(str(self.rng.choice(BRANCHES)), state))
            states.append(self.node("Add", *sides))
        ends = [state for state in states[2:] if state not in read]
        joined = self.node("Concat", *ends, axis=1) if len(ends) > 1 else ends[0]
        return self.squeeze(joined, len(ends) * CHANNELS)

    def squeeze(self, x: str, channels: int) -> str:
        data = self.rng.normal(0, np.sqrt(1 / channels), (CHANNELS, channels, 1, 1))
        self.weights.append(
            numpy_helper.from_array(data.astype(np.float32), f"w{len(self.weights)}")
        )
        return self.node("Conv", x, self.weights[-1].name)

    def model(self, batch: int = 1) -> ModelProto:
        image = [batch, CHANNELS, EXTENT, EXTENT]
        graph = helper.make_graph(
            self.nodes,
            "cells",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
            [helper.make_tensor_value_info(self.output, TensorProto.FLOAT, image)],
            self.weights,
        )
        opset = [helper.make_opsetid("", 21)]
        return helper.make_model(graph, opset_imports=opset, ir_version=10)


def image_of(seed: int, batch: int) -> Array:
    return np.random.default_rng(seed).standard_normal(
        (batch, CHANNELS, EXTENT, EXTENT), np.float32
    )


def expected(model: ModelProto, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("seed", range(100))
def test_cells_on_numpy(seed: int) -> None:
    batch = 1 + seed % 2
    model, x = Cells(seed).model(batch), image_of(seed, batch)
    want = expected(model, x)
    with tercet.load(model) as found:
        got = found(x)[0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "cudnn"])
@pytest.mark.parametrize("seeds", [range(i, i + 10) for i in range(0, 100, 10)], ids=str)
def test_cells_side_by_side(seeds: range, backend: str) -> None:
    """Four lanes give bit by bit what one lane gives, run after run, and what numpy gives."""
    for seed in seeds:
        batch = 1 + seed % 2
        model, x = Cells(seed).model(batch), image_of(seed, batch)
        with tercet.load(model) as host:
            want = host(x)[0]
        with tercet.load(model, backend, lanes=1) as single:
            alone = single(x)[0]
        with tercet.load(model, backend) as wide:
            for _ in range(3):
                np.testing.assert_array_equal(wide(x)[0], alone)
        np.testing.assert_allclose(alone, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
