"""What a Resize does to its results before it stores them, and in which order it stores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Cast, Mul, Relu, Sigmoid
from tercet.runtime.ops.resize import Resize
from tercet.runtime.plan.format import Format

from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare

Build = Callable[[Graph, Value], Value]


def add(graph: Graph, op: Any, *inputs: Value | Array | None) -> Value:
    values = [graph.constant(v, "c") if isinstance(v, np.ndarray) else v for v in inputs]
    made = graph.insert(op, values).output
    infer(graph)
    return made


def conv(graph: Graph, x: Value, channels: int) -> Value:
    w = normal(channels, x.tensor.dims[1], 1, 1).astype(x.tensor.dtype)
    return add(graph, Conv(), x, w)


def resized(graph: Graph, x: Value, mode: str = "linear", scale: float = 2) -> Value:
    return add(graph, Resize(mode=mode), x, None, np.array([1, 1, scale, scale], np.float32))


def pyramid(graph: Graph, x: Value) -> Value:
    """A smaller image joins a larger one (feature pyramids, HRNet)."""
    large = resized(graph, conv(graph, x, 8), "nearest")
    small = add(graph, Sigmoid(), resized(graph, conv(graph, x, 8)))
    return conv(graph, add(graph, Relu(), add(graph, Add(), small, large)), 8)


def scaled(graph: Graph, x: Value) -> Value:
    """Factors of channels, of a result of the graph and of one that is read again."""
    factors = normal(5, 1, 1).astype(x.tensor.dtype)
    inner = add(graph, Mul(), resized(graph, conv(graph, x, 5), "nearest"), factors)
    return add(graph, Mul(), resized(graph, conv(graph, inner, 5), scale=1.5), factors)


def cropped(graph: Graph, x: Value) -> Value:
    """Pixels outside of the image take part."""
    op = Resize(coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=-3.0)
    roi, sizes = np.array([0, 0, 0.2, -0.2, 1, 1, 0.8, 1.3], np.float32), np.array([2, 3, 9, 8])
    return add(graph, Sigmoid(), add(graph, op, conv(graph, x, 3), roi, None, sizes))


def shrunk(graph: Graph, x: Value) -> Value:
    """Axis by axis: the second pass ends it."""
    op, less = Resize(mode="linear", antialias=1), np.array([1, 1, 0.25, 0.25], np.float32)
    y = add(graph, op, conv(graph, x, 4), None, less)
    return add(graph, Relu(), add(graph, Add(), y, np.float32(0.1).astype(y.tensor.dtype)[None]))


def sample(build: Build, dtype: DType) -> Sample:
    graph = Graph()
    x = graph.add_input("x", TensorType(dtype, (2, 6, 12, 10)))
    graph.set_outputs({"y": build(graph, x)})
    infer(graph)
    return Sample(graph, {"x": normal(2, 6, 12, 10).astype(dtype)})


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("build", [pyramid, scaled, cropped, shrunk])
def test_kernels(build: Build, dtype: DType, emulated: CudaBackend) -> None:
    made = sample(build, dtype)
    assert "elementwise" not in {each.entry for each in launches(planned(made.graph))}
    compare(made, emulated)


def test_a_result_that_grows_is_stored_in_its_order() -> None:
    """The head of a segmentation network: a smaller image is reordered, and nothing else moves."""

    def build(graph: Graph, x: Value) -> Value:
        return add(graph, Cast(to=float32), resized(graph, conv(graph, x, 21), scale=8))

    layout = planned(sample(build, float16).graph)
    (row,) = (row for row in layout.rows if any(node.kind == "Resize" for node in row.nodes))
    assert row.outputs[0].format is Format.CONTIGUOUS
    assert [node.kind for node in row.nodes] == ["Resize", "Cast"]
    assert row is layout.rows[-1] or layout.rows[-1].kind == "copy"
