"""First layers in half precision round the image that they pack: no kernel does only that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Value
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Cast, Relu
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..plan.nets import Net
from .dry import DryDevice, launches, normal, planned_model
from .emulator import needs_compiler

STEMS: tuple[dict[str, Any], ...] = (
    {"channels": 3, "size": 7, "strides": (6, 6), "pads": (3, 3, 3, 3)},
    {"channels": 3, "size": 3, "strides": (3, 3), "pads": (1, 1, 1, 1)},
    {"channels": 1, "size": 5, "strides": (4, 4)},
    {"channels": 5, "size": 3, "strides": (2, 2)},
)


def net_of(
    dtype: DType,
    channels: int,
    size: int,
    *,
    twice: bool = False,
    pool: bool = False,
    **window: Any,
) -> Net:
    """Return a Cast, a convolution and a Relu; `twice`: something else reads the image, too."""
    net = Net(2, channels, 18, 20, dtype=float64 if dtype == float64 else float32)
    w = (normal(16, channels, size, size) / size).astype(dtype)
    image = net.add(Cast(to=dtype), net.x)
    y = net.add(Relu(), net.add(Conv(**window), image, net.graph.constant(w, "")))
    if pool:
        y = net.add(MaxPool(kernel_shape=(2, 2), strides=(2, 2)), y)
    outputs: dict[str, Value] = {"y": y}
    if twice:
        outputs["z"] = net.add(Relu(), image)
    net.graph.set_outputs(outputs)
    return net


def kernels(net: Net) -> list[str]:
    options = Options(skip=("fold_constants",))
    model = Model(net.graph, [NumpyBackend()], options, evaluate)
    return [launch.entry for launch in launches(planned_model(model, DryDevice()))]


@pytest.mark.parametrize("stem", STEMS, ids=lambda stem: f"{stem['size']}x{stem['size']}")
def test_the_packing_rounds(stem: dict[str, Any]) -> None:
    assert kernels(net_of(float16, **stem))[0] == "pack_image"
    assert "elementwise" not in kernels(net_of(float16, pool=True, **stem))


@pytest.mark.parametrize("case", [{"twice": True, **STEMS[0]}, {"channels": 16, "size": 3}])
def test_what_others_read_or_nothing_packs_is_rounded_apart(case: dict[str, Any]) -> None:
    first = "shared_chain" if case.get("twice") else "elementwise"
    assert kernels(net_of(float16, **case))[0] == first


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("stem", STEMS, ids=lambda stem: f"{stem['size']}x{stem['size']}")
def test_results(stem: dict[str, Any], dtype: DType, emulated: CudaBackend) -> None:
    assert_exact(stem, dtype, emulated)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("stem", STEMS[:2], ids=lambda stem: f"{stem['size']}x{stem['size']}")
def test_results_of_hopper(stem: dict[str, Any], hopper: CudaBackend) -> None:
    assert_exact(stem, float16, hopper)


def assert_exact(stem: dict[str, Any], dtype: DType, backend: CudaBackend) -> None:
    net, exact = net_of(dtype, **stem), net_of(float64, **stem)
    x = normal(*net.x.tensor.dims)
    with Model(net.graph, [backend], Options(), evaluate) as model:
        found = np.asarray(model.run({"x": x})["y"]).astype(np.float64)
    with Model(exact.graph, [NumpyBackend()], Options(), evaluate) as model:
        wanted = model.run({"x": x.astype(np.float64)})["y"]
    limit = (1e-2 if dtype == bfloat16 else 1.5e-3) * np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=limit)
