"""Constants that are joined to images: planes of coordinates, or of the time."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..plan.nets import Net
from .dry import normal
from .emulator import needs_compiler


def model_of(
    count: int, batch: int, dtype: DType, backend: CudaBackend | NumpyBackend, *, first: bool
) -> Model:
    net = Net(batch, 16, 5, 6, dtype=dtype)

    def constant(*shape: int) -> Value:
        numbers = np.random.default_rng(shape[1]).standard_normal(shape)
        return net.graph.constant((numbers * 0.2).astype(dtype), "")

    image = net.add(Relu(), net.add(Conv(), net.x, constant(16, 16, 1, 1)))
    planes = constant(batch, count, 5, 6)
    both = net.join(*((planes, image) if first else (image, planes)))
    y = net.add(Conv(pads=(1,) * 4), both, constant(8, 16 + count, 3, 3))
    net.graph.set_outputs({"y": y})
    return Model(net.graph, [backend], Options(), evaluate)


@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
@pytest.mark.parametrize(
    ("count", "batch", "first"), [(2, 1, True), (8, 1, False), (3, 2, True), (1, 1, True)]
)
def test_results(count: int, batch: int, first: bool, dtype: DType, emulated: CudaBackend) -> None:
    x = normal(batch, 16, 5, 6).astype(dtype)
    exact = model_of(count, batch, np.dtype(np.float64), NumpyBackend(), first=first)
    wanted = exact.run({"x": x.astype(np.float64)})["y"]
    found = model_of(count, batch, dtype, emulated, first=first).run({"x": x})["y"]
    limit = (4e-3 if dtype == float16 else 1e-5) * np.abs(wanted).max()
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=0, atol=limit)
