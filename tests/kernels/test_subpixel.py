"""Transposed convolutions as convolutions of all phases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.conv.subpixel import pack_phases
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Add, Cast, Neg, Relu
from tercet.runtime.ops.movement import Concat

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned, single
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare

#: Image, weights and attributes, by what they are.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "a line": ((2, 16, 9), (16, 10, 16), {"strides": (8,), "pads": (4, 4)}),
    "as large as its stride": ((2, 16, 5, 6), (16, 24, 2, 2), {"strides": (2, 2)}),
    "twice its stride": ((1, 8, 5, 7), (8, 6, 4, 4), {"strides": (2, 2), "pads": (1,) * 4}),
    "no multiple": (
        (2, 8, 5, 4),
        (8, 5, 3, 5),
        {"strides": (2, 3), "pads": (1, 2, 1, 0), "output_padding": (1, 2)},
    ),
    "smaller than its stride": ((1, 8, 4, 3), (8, 8, 1, 2), {"strides": (2, 3)}),
    "stride 1": ((1, 8, 6, 5), (8, 9, 3, 3), {"pads": (1,) * 4}),
    "few channels": ((1, 3, 6, 5), (3, 3, 4, 4), {"strides": (2, 2), "pads": (1,) * 4}),
    "a volume": ((2, 8, 3, 4, 5), (8, 6, 2, 3, 2), {"strides": (2, 2, 1), "pads": (0, 1, 0) * 2}),
}
BY_NAME = {"ConvTranspose": "subpixel"}


def layer(name: str, dtype: DType, stored: DType | None = None) -> Sample:
    """Return a layer with a bias and the sum with another one behind it, `stored` as this dtype."""
    shape, weights, how = CASES[name]
    graph = Graph(name)
    x = graph.add_input("x", TensorType(dtype, shape))
    arrays = (normal(*weights), normal(weights[1]), normal(*weights)[::-1])
    w, b, other = (graph.constant(a.astype(dtype), f"w{i}") for i, a in enumerate(arrays))
    z = graph.insert(ConvTranspose(**how), [x, w, b]).output
    r = graph.insert(ConvTranspose(**how), [x, other]).output
    y = graph.insert(Relu(), [graph.insert(Add(), [z, r]).output]).output
    if stored is not None:
        y = graph.insert(Cast(to=stored), [y]).output
    graph.set_outputs({"y": y})
    infer(graph)
    return Sample(graph, {"x": normal(*shape).astype(dtype)})


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, dtype: DType, emulated: CudaBackend) -> None:
    compare(layer(name, dtype), emulated, options=replace(OPTIONS, algorithms=BY_NAME))


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("stride", [1, 2])
def test_parts_of_joined_channels(stride: int, dtype: DType, emulated: CudaBackend) -> None:
    """Each writes its own, in place, as those of a feature pyramid (SECOND, PointPillars)."""
    graph = Graph("joined")
    x = graph.add_input("x", TensorType(dtype, (2, 16, 5, 6)))
    how = ConvTranspose(strides=(stride, stride))
    weights = [graph.constant(normal(16, 8, stride, stride).astype(dtype), n) for n in "ab"]
    images = [x, graph.insert(Neg(), [graph.insert(Relu(), [x]).output]).output]
    sums = [graph.insert(how, list(pair)).output for pair in zip(images, weights, strict=True)]
    parts = [graph.insert(Relu(), [each]).output for each in sums]
    joined = graph.insert(Concat(axis=1), parts).output
    filters = graph.constant(normal(8, 16, 1, 1).astype(dtype), "c")
    graph.set_outputs({"y": graph.insert(Conv(), [joined, filters]).output})
    infer(graph)
    sample = Sample(graph, {"x": normal(2, 16, 5, 6).astype(dtype)})
    compare(sample, emulated, options=replace(OPTIONS, algorithms=BY_NAME))


@pytest.mark.parametrize(
    ("name", "last"), [("stride 1", "elementwise"), ("few channels", "interleave")]
)
def test_sums_of_float32_that_are_stored_as_float16(name: str, last: str) -> None:
    """What interleaves phases stores any dtype, products of float32 do not."""
    device = DryDevice(compiler=DryCompiler(target=H200))
    graph = layer(name, float32, float16).graph
    found = launches(planned(graph, device, algorithms=BY_NAME))
    assert found[-1].entry == last


@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(1, 64, 16, 16), (1, 64, 8, 8, 8)], ids=["plane", "volume"])
def test_it_is_chosen(shape: tuple[int, ...], dtype: DType) -> None:
    axes = len(shape) - 2
    arrays = [normal(*shape).astype(dtype), normal(64, 32, *(2,) * axes).astype(dtype)]
    graph = single("ConvTranspose", arrays, (1,), strides=(2,) * axes)
    entries = entries_of(graph)
    assert entries[-1] == "interleave"
    assert len(entries) == 2


def test_every_tap_reaches_one_phase() -> None:
    w = np.arange(2 * 3 * 5 * 4, dtype=np.float32).reshape(2, 3, 5, 4) + 1
    packed = pack_phases(w, (2, 3))
    assert packed.shape == (2 * 3 * 3, 2, 3, 2)
    assert sorted(packed[packed > 0]) == sorted(w.ravel())
    # Tap 3 of the rows is in phase 1, of the pixel before; tap 2 of the columns in phase 2.
    assert (packed.reshape(2, 3, 3, 2, 3, 2)[1, 2, :, :, 1, 1] == w[:, :, 3, 2].T).all()


@pytest.mark.slow
@pytest.mark.parametrize("target", [A100, H200], ids=["sm_80", "sm_90a"])
def test_compiles(target: Target, cubins: Path) -> None:
    device = DryDevice(compiler=DryCompiler(target=target))
    found = [
        launch
        for name in CASES
        for dtype in (float16, float32)
        for launch in launches(planned(layer(name, dtype).graph, device, algorithms=BY_NAME))
    ]
    all_compile(list(device.compiler.sources), target, cubins)
    assert_arguments(found, target, cubins)
