"""Inverses of matrices that are known to have ones on the diagonal and zeros above it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.contrib_linalg import Inverse
from tercet.runtime.ops.elementwise import Sub
from tercet.runtime.ops.shape import Trilu
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS

COMPILES = {"gemm/inverse_lower.cu"}
BATCH = 3


def system(size: int, dtype: DType, diagonal: int = -1) -> Graph:
    """Return the inverse of I - tril(x)."""
    graph = Graph("system")
    x = graph.add_input("x", TensorType(dtype, (BATCH, size, size)))
    below = graph.insert(Trilu(upper=0), [x, graph.constant(np.array(diagonal))]).output
    lower = graph.insert(Sub(), [graph.constant(np.eye(size, dtype=dtype)), below]).output
    graph.set_outputs({"y": graph.insert(Inverse(), [lower]).output})
    infer(graph)
    return graph


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=str)
@pytest.mark.parametrize("size", [1, 2, 7, 16, 45])
def test_they_are_inverted_by_halves(size: int, dtype: DType, emulated: CudaBackend) -> None:
    x = (normal(BATCH, size, size) / max(size, 4)).astype(dtype)
    want = np.linalg.inv(np.eye(size) - np.tril(x.astype(float64), -1))
    with Model(system(size, dtype), [emulated], OPTIONS, evaluate) as model:
        kernel = model.prepare().rows[-2].kernel
        got = model.run({"x": x})["y"]
    assert kernel.startswith("inverse_lower") is (size < 33 or dtype != float64), kernel
    error = {float16: 4e-3, float32: 1e-6, float64: 1e-14}[dtype]
    np.testing.assert_allclose(got.astype(float64), want, rtol=0, atol=error)


@pytest.mark.parametrize("diagonal", [0, 1])
def test_others_are_eliminated(diagonal: int) -> None:
    last = launches(planned(system(8, float32, diagonal)))[-1]
    assert last.entry == "inverse"


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_they_compile(target: Target, cache: Path) -> None:
    graphs = [system(64, float32), system(64, float16), system(20, float64)]
    found = [launches(planned(graph))[-1] for graph in graphs]
    all_compile({launch.source: None for launch in found}, target, cache, COMPILES)
    assert_arguments(found, target, cache)
