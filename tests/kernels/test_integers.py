"""Products of bytes on tensor cores: what is launched, that it compiles, and every bit of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.conv import depthwise_bytes
from tercet.backends.cuda.gemm import int8 as module
from tercet.backends.cuda.gemm.tables.f16 import MULTISTAGE
from tercet.backends.cuda.gemm.tile import Config, CtaTile, TimedConfig
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.importers import onnx as importer
from tercet.runtime.ir.dtypes import float32, int8
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Mul
from tercet.runtime.ops.quantize import DynamicQuantizeLinear, MatMulInteger

from ..passes import drawn_layers
from ..passes import test_multiply_integers as quantized_layers
from .cubins import all_compile, assert_arguments
from .dry import DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .integer_samples import (
    TYPES,
    convolved,
    integers,
    product,
    quantized_convolution,
    quantized_product,
    samples,
    scales,
)
from .samples import OPTIONS, Sample, compare, results_of, scalar

#: Kernels that this module compiles, in more variants than samples.py has.
COMPILES = {"gemm/multistage.cu", "gemm/pack_int8.cu", "conv/depthwise_bytes.cu"}

# ── recipes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (product((128, 768), (768, 96)), ["mma_integer"]),
        (product((2, 9, 768), (2, 768, 96), constant=()), ["pack_integers", "mma_integer"]),
        (product((9, 30), (30, 8)), ["product"]),
        (product((9, 32), (32,)), ["product"]),
        (product((2, 3, 4, 32), (3, 32, 8)), ["product"]),
        (quantized_product((9, 32), (32, 8)), ["mma_integer"]),
        (convolved((1, 16, 9, 9), (8, 16, 3, 3)), ["mma_integer"]),
        (convolved((1, 3, 9, 9), (8, 3, 3, 3)), ["pack_image", "mma_integer"]),
        (convolved((1, 3, 9, 9), (8, 3, 3, 3), (3, 1)), ["conv_naive"]),
        (convolved((1, 16, 5, 5, 5), (8, 16, 3, 3, 3)), ["conv_naive"]),
        (convolved((1, 16, 9, 9), (16, 1, 3, 3), group=16), ["conv_naive"]),
        (convolved((1, 32, 9, 9), (16, 16, 3, 3), group=2), ["mma_integer"]),
        (quantized_convolution((1, 16, 9, 9), (8, 16, 1, 1)), ["mma_integer"]),
        (quantized_convolution((1, 8, 9, 9), (8, 1, 3, 3), group=8), ["depthwise_bytes"]),
        (quantized_convolution((1, 6, 9, 9), (6, 1, 3, 3), group=6), ["conv_naive", "requantize"]),
    ],
    ids=lambda value: str(value) if isinstance(value, Sample) else None,
)
def test_ways(found: Sample, expected: list[str]) -> None:
    assert entries_of(found.graph) == expected


def test_small_products_are_split_where_blocks_share_their_memory() -> None:
    graph = quantized_convolution((1, 128, 7, 7), (64, 128, 3, 3), pads=(1,) * 4).graph
    (launch,) = launches(planned(graph))
    assert launch.cluster[2] > 1
    assert launch.grid[2] == launch.cluster[2]
    device = DryDevice()
    device.compiler.target = A100
    (launch,) = launches(planned(graph, device))
    assert launch.grid[2] == 1


# ── compiling ────────────────────────────────────────────────────────────────────────────────────


def graphs() -> list[Graph]:
    """Everything that has a separate kernel, of every type, split and not."""
    image = (1, 64, 14, 14)
    return [
        *(product((64, 512), (512, 64), (3, 5), types).graph for types in TYPES),
        product((64, 512), (512, 64), constant=()).graph,
        product((4096, 64), (64, 4096), ((4096,),)).graph,
        quantized_product((128, 768), (768, 96), by_row=True).graph,
        quantized_convolution(image, (64, 64, 3, 3), pads=(1,) * 4).graph,
        quantized_convolution((32, 64, 56, 56), (64, 64, 1, 1)).graph,
        quantized_convolution((1, 3, 32, 32), (30, 3, 7, 7), strides=(2, 2)).graph,
        convolved((1, 64, 14, 14), (64, 32, 3, 3), (9, 1), group=2).graph,
        quantized_convolution((1, 24, 14, 14), (24, 1, 5, 5), group=24, strides=(2, 2)).graph,
        quantized_convolution((8, 96, 56, 56), (96, 1, 3, 3), group=96, pads=(1,) * 4).graph,
    ]


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    device = DryDevice()
    device.compiler.target = target
    for graph in graphs():
        planned(graph, device)
    all_compile(list(device.compiler.sources), target, cache, COMPILES)


def test_arguments_are_what_the_kernels_take(cache: Path) -> None:
    found = [launch for graph in graphs() for launch in launches(planned(graph))]
    assert_arguments(found, H200, cache)


# ── every bit ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("found", samples(), ids=str)
def test_every_bit(found: Sample, emulated: CudaBackend) -> None:
    compare(found, emulated)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("width", [7, 8, 9, 17])
def test_adjacent_pixels_of_a_thread(
    step: int, width: int, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depthwise_bytes, "BUSY", 0)
    attributes: dict[str, Any] = {"strides": (2, step), "pads": (1, 2, 0, 1), "group": 8}
    found = quantized_convolution((2, 8, 5, width), (8, 1, 3, 3), **attributes)
    (launch,) = launches(planned(found.graph))
    assert dict(launch.constants)["RUN"] == {1: 8, 2: 4}[step]
    compare(found, emulated)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("tile", [t for t in MULTISTAGE if t.wgmma][::4], ids=str)
def test_products_of_four_warps(
    tile: CtaTile, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hopper's own products, as the emulator does them."""
    compiler: Any = emulated.device.compiler
    compiler.target = H200
    monkeypatch.setattr(module, "choose", lambda *_: TimedConfig(0.0, Config(tile)))
    for types in TYPES:
        compare(product((70, 132), (132, 70), (13,), types), emulated)
    compare(quantized_convolution((1, 16, 9, 9), (40, 16, 3, 3), pads=(1,) * 4), emulated)


@pytest.mark.slow
@needs_compiler
def test_layers_that_are_quantized_in_a_run(emulated: CudaBackend) -> None:
    """What onnxruntime's quantize_dynamic makes of two linear layers, against numpy."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (2, 9, 36)))
    for i, (k, n) in enumerate(((36, 40), (40, 24))):
        w = graph.constant(integers(int8, k, n), f"w{i}")
        step, zero = graph.constant(scales(n), f"s{i}"), graph.constant(scalar(0, int8), f"z{i}")
        bias = graph.constant(normal(n), f"b{i}")
        quantized, scale, point = graph.insert(DynamicQuantizeLinear(), [x], 3).outputs
        sums = graph.insert(MatMulInteger(), [quantized, w, point, zero]).output
        factor = graph.insert(Mul(), [scale, step]).output
        real = graph.insert(Cast(to=float32), [sums]).output
        x = graph.insert(Add(), [graph.insert(Mul(), [real, factor]).output, bias]).output
    graph.set_outputs({"y": x})
    infer(graph)
    compare(Sample(graph, {"x": normal(2, 9, 36)}), emulated, error=1e-6)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", [*quantized_layers.MODELS, *quantized_layers.LEFT])
def test_layers_between_quantizers(name: str, emulated: CudaBackend) -> None:
    """Every bit is that of onnxruntime's optimiser."""
    proto = quantized_layers.model_of(name)
    graph = importer.load(proto).graph
    feeds = {"x": quantized_layers.input_of(proto)}
    options = replace(OPTIONS, integers=True)
    (found,) = results_of(Sample(graph, feeds), [emulated], options)
    np.testing.assert_array_equal(found, quantized_layers.optimised_by_onnxruntime(proto, feeds))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", drawn_layers.LAYERS)
def test_drawn_layers(kind: str, emulated: CudaBackend) -> None:
    """All of them have kernels, also those that are slower than floats; results are numpy's."""
    for seed in range(5):
        d = drawn_layers.drawn(kind, seed)
        graph = importer.load(d.model()).graph
        found = results_of(Sample(graph, d.feeds), [emulated], replace(OPTIONS, integers=True))
        with tercet.load(d.model(), integers=True) as model:
            np.testing.assert_array_equal(found[0], model(*d.feeds.values())[0], str(seed))
