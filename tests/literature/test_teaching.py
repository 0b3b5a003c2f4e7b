"""Kernels that teach: the steps to a fast product, and a first convolution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.gemm.ladder import BLOCKS
from tercet.backends.cuda.ops.matmul import MATMUL
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.errors import UnsupportedError
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Sigmoid
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Backend
from tercet.runtime.session.model import Model

from ..kernels.algorithm_cases import Case, error
from ..kernels.cubins import all_compile
from ..kernels.dry import launches, normal, planned, single
from ..kernels.emulator import needs_compiler, open_emulated
from ..plan.nets import Net

#: Kernels that this module compiles.
COMPILES = {"gemm/ladder.cu", "conv/naive_nhwc.cu"}

CONV = Case((2, 5, 7, 9), (6, 5, 3, 3), ("naive_nhwc",), {"pads": (1, 0, 1, 2), "strides": (2, 1)})


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def kernels(request: Any, libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """The cuda backend, on a GPU or on the host's compiler."""
    if request.param == "cuda":
        from tercet.backends import open_backends

        return open_backends("cuda", Options())[0]
    return open_emulated(libraries, monkeypatch.setattr)


def multiply(m: int, k: int, n: int, way: str, backend: Backend) -> np.ndarray[Any, Any]:
    """Return a product by one way."""
    a, b = normal(m, k), normal(k, n)
    options = Options(algorithms={"MatMul": way})
    with Model(single("MatMul", [a, b]), [backend], options, evaluate) as model:
        (found,) = model.run({"x0": a, "x1": b}).values()
    return np.asarray(found)


@needs_compiler
@pytest.mark.parametrize("way", BLOCKS)
def test_every_step_multiplies(way: str, kernels: Backend) -> None:
    for m, k, n in ((3, 20, 36), (130, 12, 132)):
        exact = normal(m, k).astype(np.float64) @ normal(k, n)
        assert error(multiply(m, k, n, way, kernels), exact) <= 1e-6


@needs_compiler
def test_the_first_convolution(kernels: Backend) -> None:
    assert error(CONV.run(kernels, conv="naive_nhwc"), CONV.exact()) <= 1e-6


def test_the_first_convolution_leaves_residuals_to_others() -> None:
    """A residual may lie where its result does, and so where its sums do."""
    net = Net(1, 8, 6, 6)
    beside = net.add(Sigmoid(), net.x)
    w = net.graph.constant(normal(8, 8, 3, 3), "")
    y = net.add(Add(), net.add(Conv(pads=(1,) * 4), net.x, w), beside)
    net.graph.set_outputs({"y": y})
    infer(net.graph)
    found = [launch.title for launch in launches(planned(net.graph, conv="naive_nhwc"))]
    assert found == ["naive_nhwc", "elementwise Sigmoid+Add"]


@pytest.mark.parametrize("filters", [1024, 1025])
def test_a_block_has_room_for_1024_filters(filters: int) -> None:
    graph = single("Conv", [normal(1, 2, 4, 4), normal(filters, 2, 3, 3)], (1,))
    if filters <= 1024:
        (launch,) = launches(planned(graph, conv="naive_nhwc"))
        assert (launch.grid, launch.block) == ((2, 2, 1), filters)
        return
    with pytest.raises(
        UnsupportedError, match="1025 filters, one thread each: a block has at most"
    ):
        planned(graph, conv="naive_nhwc")


@pytest.mark.parametrize("shape", [(1, 64, 64), (64, 64, 64), (2048, 2048, 2048)])
def test_steps_are_not_taken_by_themselves(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    zeros = [np.broadcast_to(np.float32(0), dims) for dims in ((m, k), (k, n))]
    (launch, *_) = launches(planned(single("MatMul", zeros)))
    assert launch.file != "gemm/ladder.cu"
    assert {each.name for each in MATMUL.algorithms} >= set(BLOCKS)


def test_fours_are_a_reason() -> None:
    graph = single("MatMul", [normal(5, 6), normal(6, 8)])
    with pytest.raises(UnsupportedError, match="rows of 6 and 8 elements, not all multiples of 4"):
        planned(graph, algorithms={"MatMul": "gemm_vectors"})


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_they_compile(target: Target, tmp_path: Path) -> None:
    found = {
        launch.source: None
        for way in BLOCKS
        for launch in launches(
            planned(single("MatMul", [normal(8, 8), normal(8, 8)]), algorithms={"MatMul": way})
        )
    }
    graph = single("Conv", CONV.arrays, (1, 2), **CONV.how)
    found |= {launch.source: None for launch in launches(planned(graph, conv="naive_nhwc"))}
    all_compile(found, target, tmp_path, COMPILES)
