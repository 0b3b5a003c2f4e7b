"""Depthwise convolutions on tensor cores: every tile."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.conv.depthwise_mma import TILES, DiagonalProblem, DiagonalTile
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import launches, planned
from .emulator import needs_compiler
from .samples import ERROR, OPTIONS
from .test_depthwise import DepthwiseCase, layer_of

#: Kernels that this module compiles, in more variants than samples.py has.
COMPILES = {"conv/depthwise_mma.cu"}

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

CASES: dict[str, DepthwiseCase] = {
    "same": ((2, 40, 15, 17), (7, 7), {"pads": (3, 3, 3, 3)}),
    "uneven": ((1, 8, 12, 17), (5, 4), {"pads": (0, 2, 3, 0)}),
    "inside": ((1, 72, 20, 13), (3, 6), {}),
    "stride": ((2, 16, 21, 34), (5, 5), {"pads": (2, 2, 2, 2), "strides": (2, 2)}),
    "strides": ((1, 8, 40, 18), (7, 3), {"pads": (3, 0, 3, 0), "strides": (3, 1)}),
}


def graph_of(case: str, dtype: DType, *, adds: bool = False) -> tuple[Graph, Array]:
    return layer_of(CASES[case], dtype, adds=adds)


def always(tile: DiagonalTile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks have this tile, also where another kernel is faster."""
    monkeypatch.setattr(DiagonalProblem, "tile", lambda self, name: tile)
    monkeypatch.setattr(DiagonalProblem, "refusal", "")


@needs_compiler
@pytest.mark.parametrize(
    ("case", "dtype", "tile"),
    [*product(CASES, [float16], TILES), ("same", bfloat16, TILES[0])],
    ids=str,
)
def test_every_tile(
    case: str,
    dtype: DType,
    tile: DiagonalTile,
    emulated: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    always(tile, monkeypatch)
    adds = case == "same"
    options = replace(OPTIONS, conv="depthwise")
    graph, x = graph_of(case, dtype, adds=adds)
    with Model(graph.clone(), [emulated], options, evaluate) as model:
        got = model.run({"x": x})["y"].astype(float64)
    with Model(graph, open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        want = model.run({"x": x})["y"].astype(float64)
    np.testing.assert_allclose(got, want, rtol=0, atol=ERROR[dtype] * np.abs(want).max())


def launch_of(*shape: int, kernel: int = 7, dtype: DType = float16, **how: Any) -> Launch:
    """Return the launch of a depthwise convolution of this image."""
    graph = Graph()
    image = graph.add_input("x", TensorType(dtype, shape))
    w = graph.constant(np.broadcast_to(dtype.type(1), (shape[1], 1, kernel, kernel)))
    how = {"pads": (kernel // 2,) * 4, **how}
    graph.set_outputs({"y": graph.insert(Conv(group=shape[1], **how), [image, w]).output})
    infer(graph)
    (launch,) = (found for found in launches(planned(graph)) if "depthwise" in found.entry)
    return launch


def entry_of(*shape: int, **how: Any) -> str:
    return launch_of(*shape, **how).entry


@pytest.mark.parametrize(("height", "rows"), [(7, 4), (14, 7), (28, 7), (32, 4), (56, 7)])
def test_tiles_leave_few_rows_empty(height: int, rows: int) -> None:
    assert dict(launch_of(32, 256, height, height).constants)["ROWS"] == rows


def test_large_windows_of_many_pixels_are_those_of_tensor_cores() -> None:
    assert entry_of(32, 96, 56, 56) == "depthwise_mma"
    assert entry_of(32, 96, 56, 56, dtype=bfloat16, strides=(2, 2)) == "depthwise_mma"
    assert entry_of(8, 768, 32, 32, kernel=9) == "depthwise_mma"
    assert entry_of(32, 768, 7, 7) == "depthwise_mma"
    assert entry_of(32, 96, 56, 56, dtype=float32) == "depthwise"
    assert entry_of(32, 96, 56, 56, kernel=5) == "depthwise"
    assert entry_of(32, 100, 56, 56) == "depthwise"
    assert entry_of(1, 96, 56, 56) == "depthwise_rows"
    assert entry_of(32, 96, 56, 56, kernel=11) != "depthwise_mma"
    assert entry_of(32, 96, 56, 56, pads=(6, 6, 6, 6), dilations=(2, 2)) != "depthwise_mma"


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_every_tile_compiles(target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for tile in TILES:
        always(tile, monkeypatch)
        for dtype in (float16, bfloat16):
            found += launches(planned(graph_of("same", dtype, adds=True)[0], conv="depthwise"))
    found = [launch for launch in found if launch.entry == "depthwise_mma"]
    assert len(found) == 2 * len(TILES)
    all_compile({launch.source: None for launch in found}, target, cache, COMPILES)
    assert_arguments(found, target, cache)
