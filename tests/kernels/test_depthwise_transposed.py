"""Transposed depthwise convolutions, in every dtype that has a kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import ConvTranspose
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, OPTIONS

#: The kernel that this module compiles.
COMPILES = {"conv/depthwise_transposed.cu"}

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

DTYPES = (float32, float16, bfloat16)
#: Shape of the image, sides of the window, and attributes.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    # what CenterNet and BigVGAN upsample with
    "image": ((2, 16, 5, 7), (4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "line": ((2, 8, 13), (12,), {"strides": (2,), "pads": (3, 4)}),
    "uneven": ((1, 12, 5, 6), (3, 5), {"strides": (3, 2), "pads": (0, 2, 1, 0)}),
    "gaps": ((1, 8, 4, 5), (2, 2), {"strides": (3, 3), "output_padding": (1, 2)}),
    "no stride": ((3, 8, 6, 6), (3, 3), {"pads": (1, 1, 1, 1)}),
}


def graph_of(case: str, dtype: DType) -> tuple[Graph, Array]:
    """Return the convolution with bias and Relu, and its image, of rounded numbers."""
    shape, kernel, how = CASES[case]
    x, w, b = (normal(*dims).astype(dtype) for dims in (shape, (shape[1], 1, *kernel), shape[1:2]))
    graph = Graph()
    image = graph.add_input("x", TensorType(dtype, shape))
    inputs = [image, graph.constant(w), graph.constant(b)]
    y = graph.insert(ConvTranspose(group=shape[1], **how), inputs).output
    graph.set_outputs({"y": graph.insert(Relu(), [y]).output})
    infer(graph)
    return graph, x


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_results(case: str, dtype: DType, emulated: CudaBackend) -> None:
    graph, x = graph_of(case, dtype)
    with Model(graph.clone(), [emulated], replace(OPTIONS, conv="depthwise"), evaluate) as model:
        got = model.run({"x": x})["y"].astype(float64)
    with Model(graph, open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        want = model.run({"x": x})["y"].astype(float64)
    np.testing.assert_allclose(got, want, rtol=0, atol=ERROR[dtype] * np.abs(want).max())


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_it_is_taken_and_compiles(target: Target, cache: Path) -> None:
    found = [
        launch
        for case in CASES
        for dtype in DTYPES
        for launch in launches(planned(graph_of(case, dtype)[0]))
        if "transposed" in launch.entry
    ]
    assert [launch.entry for launch in found] == ["depthwise_transposed"] * 3 * len(CASES)
    all_compile({launch.source: None for launch in found}, target, cache, COMPILES)
    assert_arguments(found, target, cache)
