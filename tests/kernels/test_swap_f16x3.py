"""Products of few rows of float32 by constants on Hopper: against float64, and what is planned."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm import image_halves
from tercet.backends.cuda.gemm.schedules import boxes, swap_f16x3
from tercet.backends.cuda.gemm.tile import Config, TimedConfig
from tercet.backends.cuda.recipe.targets import H200, Target
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Slice

from .cubins import assert_arguments
from .dry import apply, compiled_files, launches, normal, planned, single
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, results_of, sample

COMPILES = {"gemm/swap_f16x3.cu"}
#: Rows of a block, slices of K, and blocks that share a tile.
WAYS = ((24, 2, 1), (16, 2, 2), (40, 3, 3), (64, 2, 1))
ON_TENSOR_CORES: dict[str, Any] = {"conv": "tensor_cores"}


def forced(way: tuple[int, int, int], patch: pytest.MonkeyPatch) -> None:
    """Have products done in one way, or in the one most like it."""

    def ways_of(
        shape: Any, target: Target, *, ready: bool = False, windows: bool = False
    ) -> tuple[TimedConfig, ...]:
        def distance(config: Config) -> tuple[bool, bool, int]:
            tile = config.tile
            return config.splits != way[2], tile.slices != way[1], abs(tile.bm - way[0])

        found = min(swap_f16x3.configs(shape, target, ready=ready), key=distance)
        return (TimedConfig(0.0, found),)

    patch.setattr(swap_f16x3, "ways_of", ways_of)


def rows(m: int, k: int) -> Array:
    """Return rows of very different magnitudes."""
    return normal(m, k) * np.exp2(8 * normal(m, 1)).astype(np.float32)


def weights(k: int, n: int) -> Array:
    """Return weights of a layer."""
    return (normal(k, n) / np.float32(np.sqrt(k))).astype(np.float32)


def assert_close(got: Array, exact: Array) -> None:
    """Compare every row with float64."""
    errors = np.linalg.norm(got - exact, axis=-1) / np.linalg.norm(exact, axis=-1)
    assert errors.max() < 3e-7


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("algorithm", ["tensor_cores", "in_halves"])
@pytest.mark.parametrize(
    ("sizes", "way"),
    list(zip(((17, 64, 70), (40, 320, 132), (100, 768, 64), (128, 1280, 72)), WAYS, strict=True)),
    ids=str,
)
def test_layers(
    sizes: tuple[int, int, int],
    way: tuple[int, int, int],
    algorithm: str,
    h200: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that blocks cut, or in halves; the last ones have more steps than stages."""
    forced(way, monkeypatch)
    m, k, n = sizes
    x, w, bias = rows(m, k), weights(k, n), normal(n)
    found = sample("Gemm", [x, w, bias], (1, 2))
    (got,) = results_of(found, [h200], replace(OPTIONS, algorithms={"Gemm": algorithm}))
    others = {"gemm/pack_halves.cu"} if algorithm == "in_halves" else set[str]()
    assert compiled_files(h200) == COMPILES | others
    assert_close(got, x.astype(np.float64) @ w.astype(np.float64) + bias)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("terms", "way"), list(zip((96, 36, 164), WAYS, strict=False)), ids=str)
def test_terms_that_fill_no_step(
    terms: int, way: tuple[int, int, int], h200: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixels of 32 channels more than whole steps have, or fewer; behind them are others."""
    forced(way, monkeypatch)
    x, w = rows(40, terms + 28), weights(terms, 72)
    graph = Graph("some of the channels")
    value = graph.add_input("x", TensorType(x.dtype, (1, terms + 28, 5, 8)))
    bounds = (np.array([bound]) for bound in (0, terms, 1))
    part = apply(graph, Slice(), value, *bounds)
    graph.set_outputs({"y": apply(graph, Conv(), part, w.T[..., None, None].copy())})
    infer(graph)
    found = Sample(graph, {"x": x.T.reshape(1, -1, 5, 8).copy()})
    (got,) = results_of(found, [h200], replace(OPTIONS, **ON_TENSOR_CORES))
    assert compiled_files(h200) >= COMPILES
    assert_close(got[0].reshape(72, 40).T, x[:, :terms].astype(np.float64) @ w.astype(np.float64))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("way", WAYS[:2], ids=str)
def test_results_in_halves(
    way: tuple[int, int, int], h200: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer stores what the second one reads."""
    forced(way, monkeypatch)
    x, first, second = normal(76, 128), weights(128, 192), weights(192, 64)
    graph = Graph("two layers")
    value = graph.add_input("x", TensorType(x.dtype, x.shape))
    hidden = apply(graph, Relu(), apply(graph, MatMul(), value, first))
    graph.set_outputs({"y": apply(graph, MatMul(), hidden, second)})
    infer(graph)
    options = replace(OPTIONS, algorithms={"MatMul": "in_halves"})
    (got,) = results_of(Sample(graph, {"x": x}), [h200], options)
    assert compiled_files(h200) == COMPILES | {"gemm/pack_halves.cu"}
    exact = np.maximum(x.astype(np.float64) @ first.astype(np.float64), 0) @ second.astype(float)
    assert_close(got, exact)


@pytest.mark.slow
@needs_compiler
def test_pixels(h200: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution by 1x1 and a residual, with channels last."""
    forced((16, 2, 1), monkeypatch)
    x, w, residual = normal(2, 64, 3, 5), normal(72, 64, 1, 1), normal(2, 72, 3, 5)
    graph = Graph("residual")
    values = [
        graph.add_input(f"x{i}", TensorType(a.dtype, a.shape)) for i, a in enumerate((x, residual))
    ]
    y = apply(graph, Conv(), values[0], w)
    graph.set_outputs({"y": apply(graph, Add(), y, values[1])})
    infer(graph)
    found = Sample(graph, {"x0": x, "x1": residual})
    (got,) = results_of(found, [h200], replace(OPTIONS, **ON_TENSOR_CORES))
    assert compiled_files(h200) >= COMPILES
    exact = np.einsum("nchw,mc->nhwm", x.astype(float), w[..., 0, 0].astype(float))
    assert_close(got.transpose(0, 2, 3, 1), exact + residual.transpose(0, 2, 3, 1))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("way", WAYS[:2], ids=str)
def test_pixels_in_halves(
    way: tuple[int, int, int], h200: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A convolution by 3x3 reads them; their number is no multiple of eight."""
    forced(way, monkeypatch)
    monkeypatch.setattr(image_halves, "gain", lambda *_: 1e6)
    x, first, second = normal(2, 64, 3, 7), normal(64, 64, 1, 1) / 8, normal(64, 64, 3, 3) / 24
    graph = Graph("two convolutions")
    value = graph.add_input("x", TensorType(x.dtype, x.shape))
    hidden = apply(graph, Relu(), apply(graph, Conv(), value, first))
    near = graph.insert(Conv(pads=(1, 1, 1, 1)), [hidden, graph.constant(second)], name="near")
    graph.set_outputs({"y": near.output})
    infer(graph)
    found = Sample(graph, {"x": x})
    monkeypatch.setattr(image_halves, "compared", lambda *_: inf)
    options = replace(OPTIONS, **ON_TENSOR_CORES, algorithms={"near": "in_halves"})
    (got,) = results_of(found, [h200], options)
    assert compiled_files(h200) >= COMPILES | {"gemm/image_halves.cu"}
    assert "gemm/pack_halves.cu" not in compiled_files(h200)
    (want,) = results_of(found, open_backends("numpy", OPTIONS))
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


#: Kernel, stride, padding and dilation of the windows of an image in halves; filters.
WINDOWS = ((3, 1, 1, 1, 96), (1, 1, 0, 1, 64), (1, 2, 0, 1, 72), (3, 2, 2, 2, 192))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("window", "way"), list(zip(WINDOWS, WAYS, strict=True)), ids=str)
def test_windows_in_halves(
    window: tuple[int, ...],
    way: tuple[int, int, int],
    h200: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two images, with a residual; the last results are stored in halves, too."""
    forced(way, monkeypatch)
    monkeypatch.setattr(image_halves, "gain", lambda *_: 1e6)
    side, stride, pad, dilation, filters = window
    x, first = normal(2, 64, 5, 7), normal(192, 64, 1, 1) / 8
    second = normal(filters, 192, side, side) / np.float32(side * 14)
    graph = Graph("windows of halves")
    value = graph.add_input("x", TensorType(x.dtype, x.shape))
    hidden = apply(graph, Relu(), apply(graph, Conv(), value, first))
    op = Conv(pads=(pad,) * 4, strides=(stride,) * 2, dilations=(dilation,) * 2)
    y = graph.insert(op, [hidden, graph.constant(second), graph.constant(normal(filters))]).output
    infer(graph)
    added = normal(*y.tensor.dims)
    y = apply(graph, Add(), y, graph.add_input("added", TensorType(x.dtype, added.shape)))
    if filters % 64 == 0:
        last = graph.constant(normal(8, filters, 1, 1) / 8)
        y = graph.insert(Conv(), [apply(graph, Relu(), y), last]).output
    graph.set_outputs({"y": y})
    infer(graph)
    found = Sample(graph, {"x": x, "added": added})
    options = replace(OPTIONS, conv="in_halves,tensor_cores")
    (got,) = results_of(found, [h200], options)
    products = {file for file in compiled_files(h200) if file.startswith("gemm/")}
    assert products <= COMPILES | {"gemm/pack_halves.cu"}
    (want,) = results_of(found, open_backends("numpy", OPTIONS))
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("channels", "window", "way"),
    [
        (96, (3, 1, 1, 1, 96), (16, 2)),
        (24, (5, 1, 2, 1, 64), (8, 1)),
        (144, (3, 1, 2, 2, 48), (40, 3)),
        (72, (3, 2, 1, 1, 64), (16, 2)),
        (16, (5, 3, 2, 1, 40), (8, 1)),
    ],
    ids=str,
)
def test_windows_of_boxes(
    channels: int,
    window: tuple[int, ...],
    way: tuple[int, int],
    h200: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pixels of two images, some far greater than others, are cut once for all taps."""

    def ways_of(
        shape: Any, patches: boxes.Patches, target: Target, *, others: int
    ) -> tuple[TimedConfig, ...]:
        def distance(config: Config) -> tuple[bool, int]:
            return config.splits != way[1], abs(config.tile.bm - way[0])

        return (TimedConfig(-inf, min(boxes.configs(shape, patches, target), key=distance)),)

    monkeypatch.setattr(boxes, "ways_of", ways_of)
    side, stride, pad, dilation, filters = window
    x = normal(2, channels, 5, 7) * np.exp2(20 * normal(2, 1, 5, 7)).astype(np.float32)
    w = normal(filters, channels, side, side) / np.float32(side * 14)
    how: dict[str, Any] = {
        "pads": (pad,) * 4,
        "strides": (stride,) * 2,
        "dilations": (dilation,) * 2,
    }
    found = sample("Conv", [x, w, normal(filters)], (1, 2), **how)
    (got,) = results_of(found, [h200], replace(OPTIONS, **ON_TENSOR_CORES))
    assert compiled_files(h200) == COMPILES | {"move/transpose.cu"}
    (want,) = results_of(found, open_backends("numpy", OPTIONS))
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


@pytest.mark.slow
@needs_compiler
def test_what_is_not_finite(h200: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """An infinity or NaN stays in its row, whose results are those of float32."""
    forced((24, 2, 1), monkeypatch)
    x, w = normal(24, 128), weights(128, 64)
    x[3, 5], x[7, 9], x[9, 100] = np.inf, np.nan, -np.inf
    found = sample("MatMul", [x, w], (1,))
    (got,) = results_of(found, [h200], replace(OPTIONS, algorithms={"MatMul": "tensor_cores"}))
    exact = x.astype(np.float64) @ w.astype(np.float64)
    odd = [3, 7, 9]
    np.testing.assert_array_equal(got[odd], exact[odd].astype(np.float32))
    assert_close(np.delete(got, odd, 0), np.delete(exact, odd, 0))


@pytest.mark.parametrize(
    ("sizes", "note"),
    [
        ((197, 2304, 768), "3xf16 in halves w72x64/3"),
        ((197, 768, 768), "3xf16 in halves w40x64/3"),
        ((197, 3072, 768), "3xf16 in halves w104x64/2"),
        ((197, 768, 3072), "3xf16 in halves w72x64/3 split 3"),
        ((128, 768, 768), "3xf16 in halves w32x64/3 split 2"),
    ],
)
def test_products_of_encoders(sizes: tuple[int, int, int], note: str) -> None:
    """Those that were fastest in ViT-B and BERT-base on an H200."""
    m, n, k = sizes
    graph = sample("MatMul", [normal(m, k), weights(k, n)], (1,)).graph
    *_, last = launches(planned(graph, algorithms={"MatMul": "in_halves"}))
    assert (last.entry, last.note) == ("swap_f16x3", note)


@pytest.mark.parametrize(
    ("size", "note"),
    [
        ((64, 64, 56), "3xf16 in halves w48x64/2"),
        ((256, 256, 14), "3xf16 in halves w56x64/2 split 6"),
        ((512, 512, 7), "3xf16 in halves w56x64/2 split 8"),
    ],
)
def test_convolutions_of_resnet(size: tuple[int, int, int], note: str) -> None:
    """Those that were among the fastest in the network on an H200."""
    filters, channels, side = size
    arrays = [normal(1, channels, side, side), normal(filters, channels, 3, 3)]
    graph = single("Conv", arrays, (1,), pads=(1,) * 4)
    *_, last = launches(planned(graph, conv="in_halves"))
    assert (last.entry, last.note) == ("swap_f16x3_windows", note)


def test_convolutions_of_more_pixels_take_other_kernels() -> None:
    graph = single("Conv", [normal(8, 64, 56, 56), normal(64, 64, 3, 3)], (1,), pads=(1,) * 4)
    *_, last = launches(planned(graph, conv="in_halves"))
    assert last.entry == "convolve_halves"


def test_more_rows_take_other_kernels() -> None:
    graph = sample("MatMul", [normal(600, 768), weights(768, 768)], (1,)).graph
    *_, last = launches(planned(graph, algorithms={"MatMul": "in_halves"}))
    assert last.entry == "multiply_halves"


def test_it_compiles_and_arguments_match(cubins: Path) -> None:
    found = []
    for m, n, k in ((197, 768, 3072), (49, 2048, 512), (128, 768, 768)):
        for algorithm in ("in_halves", "tensor_cores"):
            graph = sample("MatMul", [normal(m, k), weights(k, n)], (1,)).graph
            found += launches(planned(graph, algorithms={"MatMul": algorithm}))[-1:]
    for filters, side in ((64, 56), (512, 7)):
        arrays = [normal(1, filters, side, side), normal(filters, filters, 3, 3)]
        graph = single("Conv", arrays, (1,), pads=(1,) * 4)
        for algorithm in ("in_halves", "tensor_cores"):
            found += launches(planned(graph, conv=algorithm))[-1:]
    swapped = [one for one in found if one.file in COMPILES]
    assert len(swapped) > 6
    assert {one.entry.removeprefix("swap_f16x3") for one in swapped} == {"", "_windows", "_boxes"}
    assert_arguments(swapped, H200, cubins)
