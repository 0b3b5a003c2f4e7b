"""Heads that are columns of rows, normalized where they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Clip, Div, Relu
from tercet.runtime.ops.movement import Slice, Split
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization
from tercet.runtime.ops.reduce import ReduceL2
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..plan.nets import Net
from .dry import DryDevice, launches, normal, planned_model
from .emulator import needs_compiler

LENGTH, HEADS = 7, 3
Norm = Callable[[Net, Value], Value]


def constant(net: Net, *shape: int) -> Value:
    """Return numbers that every dtype represents."""
    data = np.round(16 * normal(*shape)) / 16
    return net.graph.constant(data.astype(net.x.tensor.dtype), "")


def layer_norm(net: Net, x: Value) -> Value:
    size = x.tensor.dims[-1]
    return net.add(LayerNormalization(), x, constant(net, size), constant(net, size))


def root_mean_square(net: Net, x: Value) -> Value:
    return net.add(RMSNormalization(), x, constant(net, x.tensor.dims[-1]))


def activated(net: Net, x: Value) -> Value:
    return net.add(Relu(), root_mean_square(net, x))


def unit(net: Net, x: Value) -> Value:
    axis = net.graph.constant(np.array([-1], np.int64), "axis")
    floor = net.graph.constant(np.array(1e-12, x.tensor.dtype), "floor")
    return net.add(Div(), x, net.add(Clip(), net.add(ReduceL2(), x, axis), floor))


def attention(norm: Norm, dtype: DType, size: int, *, slices: bool = False) -> Net:
    """Return attention to parts of one tensor, of which queries and keys are normalized.

    A Split has the parts, or Slices.
    """
    width = HEADS * size
    net = Net(2, LENGTH, 3 * width, dtype=dtype)
    rows = net.add(Relu(), net.x)
    if slices:
        bounds = [(i * width, (i + 1) * width, 2) for i in range(3)]
        cuts = ([net.graph.constant(np.array([n]), "bound") for n in each] for each in bounds)
        parts = [net.add(Slice(), rows, *each) for each in cuts]
    else:
        parts = net.add(Split(axis=-1, num_outputs=3), rows, outputs=3, name="split")

    def normalized(x: Value) -> Value:
        shapes = [np.array(s, np.int64) for s in ((2, LENGTH, HEADS, size), (2, LENGTH, width))]
        heads = net.add(Reshape(), x, net.graph.constant(shapes[0], "heads"))
        return net.add(Reshape(), norm(net, heads), net.graph.constant(shapes[1], "rows"))

    q, k = (normalized(x) for x in parts[:2])
    y = net.add(Attention(q_num_heads=HEADS, kv_num_heads=HEADS), q, k, parts[2])
    net.graph.set_outputs({"y": y})
    return net


def model_of(net: Net, backend: CudaBackend | NumpyBackend) -> Model:
    return Model(net.graph, [backend], Options(stop_at=0), evaluate)


NORMS = {"layer": layer_norm, "rms": root_mean_square, "relu": activated, "unit": unit}
CASES = [
    *((name, dtype) for name in ("layer", "rms", "relu") for dtype in (float16, float32)),
    *(("rms", bfloat16), ("unit", float32)),
]


@pytest.mark.parametrize("slices", [False, True])
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_nothing_is_copied(name: str, dtype: DType, slices: bool) -> None:
    net = attention(NORMS[name], dtype, 16, slices=slices)
    found = launches(planned_model(model_of(net, NumpyBackend()), DryDevice()))
    files = [launch.file for launch in found]
    assert files.count("norm/normalize_rows.cu") == 2
    assert not any(file.startswith("move/") for file in files)


def test_heads_that_are_no_part_of_rows_are_plain_rows() -> None:
    net = Net(2, LENGTH, HEADS * 16, dtype=float16)
    shapes = [np.array(s, np.int64) for s in ((2, LENGTH, HEADS, 16), (2, LENGTH, HEADS * 16))]
    heads = net.add(Reshape(), net.add(Relu(), net.x), net.graph.constant(shapes[0], "heads"))
    y = net.add(Reshape(), layer_norm(net, heads), net.graph.constant(shapes[1], "rows"))
    net.graph.set_outputs({"y": y})
    found = launches(planned_model(model_of(net, NumpyBackend()), DryDevice()))
    (norm,) = (launch for launch in found if launch.file == "norm/normalize_rows.cu")
    assert dict(norm.constants)["HEADS"] == 1


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("size", [8, 24, 40])
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_results(name: str, dtype: DType, size: int, emulated: CudaBackend) -> None:
    """Compare with numpy in float64, on the same rounded numbers."""
    model = model_of(attention(NORMS[name], dtype, size), emulated)
    (value,) = model.graph.inputs
    x = normal(*value.tensor.dims).astype(dtype)
    exact = model_of(attention(NORMS[name], np.dtype(np.float64), size), NumpyBackend())
    wanted = exact.run({"x": x.astype(np.float64)})["y"]
    found = model.run({"x": x})["y"].astype(np.float64)
    limit = {float16: 4e-3, bfloat16: 3e-2, float32: 1e-5}[dtype] * np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=limit)
