"""Convolutions of float32 that store the maxima of 2 x 2 results, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.gemm.atoms import F16X3, TF32X3
from tercet.backends.cuda.gemm.f32_tiles import tiles_of
from tercet.backends.cuda.gemm.tile import Config
from tercet.backends.cuda.recipe.targets import A100, H200
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.session.model import Model

from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS
from .test_split import device_for, force

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

SQUARES = {"kernel_shape": (2, 2), "strides": (2, 2)}
#: Error of an algorithm, as a share of the greatest result.
ERRORS = {"tensor_cores": 1e-6, "winograd_f2": 2e-6, "winograd_f4": 5e-6}


def graph_of(
    x: tuple[int, ...],
    w: tuple[int, ...],
    dtype: DType = float32,
    pool: dict[str, Any] = SQUARES,
    **attributes: Any,
) -> Graph:
    """Return MaxPool(Relu(Conv(x)))."""
    graph = Graph()
    image = graph.add_input("x", TensorType(dtype, x))
    weights = [graph.constant(a.astype(dtype)) for a in (normal(*w), normal(w[0]))]
    value = graph.insert(Conv(**attributes), [image, *weights]).output
    value = graph.insert(Relu(), [value]).output
    graph.set_outputs({"y": graph.insert(MaxPool(**pool), [value]).output})
    infer(graph)
    return graph


def assert_pooled(
    backend: CudaBackend, algorithm: str, x: Array, w: tuple[int, ...], **attributes: Any
) -> None:
    """Run on an emulated GPU, and compare with float64; one step does all."""
    options = replace(OPTIONS, conv=algorithm)
    with Model(graph_of(x.shape, w, **attributes), [backend], options, evaluate) as model:
        (kernel,) = (row.kernel for row in model.prepare().rows if row.kind == "step")
        assert "MaxPool 2x2" in kernel
        got = model.run({"x": x})["y"]
    wide = graph_of(x.shape, w, float64, **attributes)
    with Model(wide, open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        want = model.run({"x": x.astype(float64)})["y"]
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    limit = ERRORS[algorithm.removesuffix("_nonfused")] * want[finite].max()
    np.testing.assert_allclose(got[finite], want[finite], rtol=0, atol=limit)


@needs_compiler
@pytest.mark.parametrize("kind", ["", "_nonfused"])
@pytest.mark.parametrize("out", [2, 4])
def test_winograd(out: int, kind: str, emulated: CudaBackend) -> None:
    x = normal(2, 9, 10, 14)
    assert_pooled(emulated, f"winograd_f{out}{kind}", x, (7, 9, 3, 3), pads=(1, 1, 1, 1))


@needs_compiler
@pytest.mark.parametrize("atom", [F16X3, TF32X3], ids=lambda atom: atom.title)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 12, 10, 14), (20, 12, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((3, 100, 6, 4), (11, 100, 1, 1), {}),
        ((1, 12, 15, 9), (9, 12, 2, 4), {"strides": (2, 1), "pads": (1, 1, 0, 1)}),
    ],
)
def test_tensor_cores(
    atom: Any,
    splits: int,
    x: tuple[int, ...],
    w: tuple[int, ...],
    attributes: dict[str, Any],
    hopper: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Squares are rows of one warp, or of one thread that adds up the sums of a cluster."""
    force(monkeypatch, atom, Config(tiles_of(atom, H200)[1], splits))
    image = normal(*x)
    image[0, 1, 3, 2] = np.nan
    assert_pooled(hopper, "tensor_cores", image, w, **attributes)


VGG = ((32, 64, 56, 56), (64, 64, 3, 3))


@pytest.mark.parametrize(
    ("pool", "target", "algorithm", "entries"),
    [
        (SQUARES, H200, None, ["split_wgmma"]),
        (SQUARES, H200, "winograd_f4", ["winograd"]),
        (SQUARES, H200, "implicit_gemm", ["implicit_gemm", "pool"]),
        (SQUARES, A100, "tensor_cores", ["mma", "pool"]),
        ({"kernel_shape": (2, 2)}, H200, None, ["split_wgmma", "pool_columns"]),
        (SQUARES | {"pads": (1, 1, 1, 1)}, H200, None, ["split_wgmma", "pool"]),
    ],
)
def test_which_poolings_join(
    pool: dict[str, Any], target: Any, algorithm: str | None, entries: list[str]
) -> None:
    graph = graph_of(*VGG, pool=pool, pads=(1, 1, 1, 1))
    found = launches(planned(graph, device_for(target), conv=algorithm))
    assert [launch.entry for launch in found] == entries
