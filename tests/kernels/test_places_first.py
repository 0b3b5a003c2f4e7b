"""Attention of rows whose places come before their samples reads and stores them as they are."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Add
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split, Transpose
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..plan.nets import Net
from .dry import DryDevice, launches, normal, planned_model
from .emulator import needs_compiler

OPTIONS = Options(stop_at=0)
HEADS, SIZE = 2, 16
WIDTH = HEADS * SIZE


def moved(net: Net, x: Value) -> Value:
    return net.add(Transpose(perm=(1, 0, 2)), x)


def attention(dtype: DType, *, places: int = 40, mask: bool = False, crossed: bool = False) -> Net:
    """Queries, keys and values are parts of rows, or keys and values are those of other places."""
    net = Net(places, 3, WIDTH, dtype=dtype)

    def layer(x: Value, width: int) -> Value:
        weights = normal(x.tensor.dims[-1], width) * 0.2
        return net.add(MatMul(), x, net.graph.constant(weights.astype(dtype), ""))

    parts = net.add(Split(axis=-1, num_outputs=3), layer(net.x, 3 * WIDTH), outputs=3, name="qkv")
    q, k, v = parts
    if crossed:
        other = layer(net.graph.add_input("other", TensorType(dtype, (24, 3, WIDTH))), 2 * WIDTH)
        k, v = net.add(Split(axis=-1, num_outputs=2), other, outputs=2, name="kv")
        q = layer(net.x, WIDTH)
    inputs = [moved(net, each) for each in (q, k, v)]
    if mask:
        inputs.append(net.graph.constant(np.tri(places, k.tensor.dims[0], dtype=bool), ""))
    op = Attention(q_num_heads=HEADS, kv_num_heads=HEADS)
    y = layer(moved(net, net.add(op, *inputs)), WIDTH)
    net.graph.set_outputs({"y": net.add(Add(), y, net.x)})
    return net


def model_of(net: Net, backend: CudaBackend | NumpyBackend) -> Model:
    return Model(net.graph, [backend], OPTIONS, evaluate)


@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
@pytest.mark.parametrize("crossed", [False, True])
def test_nothing_is_moved(dtype: DType, crossed: bool) -> None:
    layout = planned_model(model_of(attention(dtype, crossed=crossed), NumpyBackend()), DryDevice())
    found = [launch.entry for launch in launches(layout) if launch.entry != "split_pack"]
    assert len(found) == 3 + crossed, "an attention between layers"


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
@pytest.mark.parametrize("places", [5, 40, 200])
@pytest.mark.parametrize(("mask", "crossed"), [(False, False), (True, False), (False, True)])
def test_results(
    dtype: DType, places: int, mask: bool, crossed: bool, emulated: CudaBackend
) -> None:
    assert_exact(dtype, emulated, places=places, mask=mask, crossed=crossed)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
@pytest.mark.parametrize("mask", [False, True])
def test_results_of_hopper(dtype: DType, mask: bool, hopper: CudaBackend) -> None:
    assert_exact(dtype, hopper, places=150, mask=mask)


def assert_exact(
    dtype: DType, backend: CudaBackend, *, places: int, mask: bool = False, crossed: bool = False
) -> None:
    """Compare with numpy in float64, on the same rounded numbers."""
    net = attention(dtype, places=places, mask=mask, crossed=crossed)
    exact = attention(np.dtype(np.float64), places=places, mask=mask, crossed=crossed)
    feeds = {v.name: normal(*v.tensor.dims).astype(dtype) for v in net.graph.inputs}
    wide = {name: x.astype(np.float64) for name, x in feeds.items()}
    wanted = model_of(exact, NumpyBackend()).run(wide)["y"]
    found = model_of(net, backend).run(feeds)["y"].astype(np.float64)
    limit = (4e-3 if dtype == float16 else 1e-5) * np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=limit)
