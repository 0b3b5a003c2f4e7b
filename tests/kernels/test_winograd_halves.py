"""Winograd convolutions whose inputs are transformed into halves, on an emulated GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.gemm import batched
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.session.model import Model

from .cubins import all_compile, registers
from .dry import launches, normal, planned, single
from .emulator import needs_compiler
from .samples import OPTIONS
from .test_split import device_for

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: Kernels that this module compiles, and samples.py has not.
COMPILES = {"conv/winograd_halves.cu"}
#: Relative L2 errors of the transforms.
ERRORS = {2: 4e-7, 4: 1.5e-6}


def graph_of(x: Array, w: Array, dtype: DType) -> Graph:
    """Return a convolution of 3 x 3 windows with padding, without a bias."""
    graph = Graph()
    image = graph.add_input("x", TensorType(dtype, x.shape))
    filters = graph.constant(w.astype(dtype))
    graph.set_outputs({"y": graph.insert(Conv(pads=(1,) * 4), [image, filters]).output})
    infer(graph)
    return graph


def results(backend: CudaBackend, out: int, x: Array, w: Array) -> tuple[str, Array, Array]:
    """Return the kernels, what they compute, and the same in float64."""
    options = replace(OPTIONS, conv=f"winograd_f{out}_nonfused")
    with Model(graph_of(x, w, float32), [backend], options, evaluate) as model:
        (kernel,) = (row.kernel for row in model.prepare().rows if row.kind == "step")
        got = model.run({"x": x})["y"]
    reference = open_backends("numpy", OPTIONS)
    with Model(graph_of(x, w, float64), reference, OPTIONS, evaluate) as model:
        return kernel, got, model.run({"x": x.astype(float64)})["y"]


@needs_compiler
@pytest.mark.parametrize("out", [2, 4])
@pytest.mark.parametrize("magnitude", [1.0, 1e-30, 1e30])
def test_results(
    out: int, magnitude: float, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of tiles and of rows, images of any magnitude."""
    monkeypatch.setattr(batched, "HALVES_MARGIN", 1e3)
    x = normal(2, 128, 11, 13) * np.float32(magnitude)
    kernel, got, want = results(hopper, out, x, normal(40, 128, 3, 3))
    assert "winograd_inputs_in_halves" in kernel
    assert "in halves" in kernel
    assert np.linalg.norm(got - want) < ERRORS[out] * np.linalg.norm(want)


@needs_compiler
def test_refused(hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that float16 cannot hold are multiplied as before."""
    monkeypatch.setattr(batched, "HALVES_MARGIN", 1e3)
    w = normal(40, 64, 3, 3)
    w[:, 5] *= np.float32(1e-9)
    kernel, got, want = results(hopper, 4, normal(1, 64, 9, 9), w)
    assert "halves" not in kernel
    assert np.linalg.norm(got - want) < ERRORS[4] * np.linalg.norm(want)


@pytest.mark.parametrize(
    ("target", "shape", "filters", "there"),
    [
        (H200, (32, 512, 28, 28), 512, True),
        (H200, (32, 256, 14, 14), 256, False),  # hardly faster
        (H200, (32, 480, 28, 28), 512, False),  # no whole blocks of channels
        (A100, (32, 512, 28, 28), 512, False),
    ],
)
def test_they_compile_where_they_pay(
    target: Target, shape: tuple[int, ...], filters: int, there: bool, cache: Path
) -> None:
    """Products in halves are chosen where they pay, and their kernels compile without a stack."""
    layer = single("Conv", [normal(*shape), normal(filters, shape[1], 3, 3)], (1,), pads=(1,) * 4)
    found = launches(planned(layer, device_for(target), conv="winograd_f4_nonfused"))
    first = next(launch for launch in found if launch.entry.startswith("winograd_inputs"))
    assert first.entry.endswith("_in_halves") == there
    if there:
        all_compile([first.source], target, cache, COMPILES)
        assert registers(Compiler(target, cache).code(first.source))[1] == 0


def test_products_in_halves_are_estimated_apart_from_others() -> None:
    """Their factor differs, by which F(4x4, 3x3) is faster for the first layer, as measured."""

    def kernels(*shape: int) -> str:
        w = normal(shape[1], shape[1], 3, 3)
        found = launches(planned(single("Conv", [normal(*shape), w], (1,), pads=(1,) * 4)))
        return " ".join(launch.note for launch in found)

    assert "F(4x4,3x3)" in kernels(1, 512, 28, 28)
    assert "F(2x2,3x3)" in kernels(1, 512, 14, 14)
