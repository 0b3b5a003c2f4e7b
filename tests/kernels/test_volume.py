"""Convolutions over three spatial axes, as products of windows."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.conv import volume
from tercet.backends.cuda.gemm.schedules import tma
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.plan.format import Format

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned, single
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare

#: Kernels, channels of the input, and attributes, by what they are.
KERNELS: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "all axes": ((3, 3, 3), 8, {"pads": (1,) * 6}),
    "strides": ((3, 3, 2), 12, {"strides": (2, 1, 2), "pads": (1, 0, 1, 0, 1, 0)}),
    "dilations": ((2, 3, 1), 8, {"dilations": (2, 2, 1), "pads": (0, 2, 0, 2, 2, 0)}),
    "a plane": ((1, 3, 3), 8, {"pads": (0, 1, 1, 0, 1, 1)}),
    "a plane, padded": ((1, 3, 3), 8, {"pads": (1, 1, 1, 0, 1, 1)}),
    "a line": ((3, 1, 1), 8, {"pads": (1, 0, 0, 1, 0, 0), "strides": (2, 1, 1)}),
    "a pixel": ((1, 1, 1), 8, {}),
    "few channels": ((3, 3, 3), 3, {"pads": (1,) * 6}),
    "one channel": ((3, 5, 5), 1, {"strides": (1, 2, 2), "pads": (1, 2, 2, 1, 2, 2)}),
    "odd channels": ((2, 2, 2), 9, {}),
}


def layers(name: str, dtype: DType) -> Sample:
    """Return a convolution whose input another one computes, with a residual behind it."""
    kernel, channels, attributes = KERNELS[name]
    graph = Graph(name)
    x = graph.add_input("x", TensorType(dtype, (2, 8, 5, 6, 7)))
    weights = (normal(channels, 8, 1, 1, 1), normal(10, channels, *kernel), normal(10, 3)[:, 0])
    first, second, bias = (graph.constant(w.astype(dtype), f"w{i}") for i, w in enumerate(weights))
    y = graph.insert(Conv(), [x, first]).output
    z = graph.insert(Conv(**attributes), [y, second, bias], name="volume").output
    r = graph.insert(Conv(**attributes), [y, second], name="other").output
    graph.set_outputs({"y": graph.insert(Relu(), [graph.insert(Add(), [z, r]).output]).output})
    infer(graph)
    return Sample(graph, {"x": normal(2, 8, 5, 6, 7).astype(dtype)})


@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_naive(name: str, dtype: DType) -> None:
    layout = planned(layers(name, dtype).graph, algorithms={"Conv": "volume"})
    entries = [launch.entry for launch in launches(layout)]
    assert not {"conv_naive", "conv_direct", "im2col"} & set(entries)
    (row,) = (row for row in layout.rows if any(node.name == "volume" for node in row.nodes))
    assert row.outputs[0].format is Format.CHANNELS_LAST


def test_large_layers_choose_it() -> None:
    x, w = np.zeros((1, 64, 8, 28, 28), np.float16), np.zeros((64, 64, 3, 3, 3), np.float16)
    for dtype, entries in ((np.float16, ["mma_bulk"]), (np.float32, ["split_wgmma"])):
        graph = single("Conv", [x.astype(dtype), w.astype(dtype)], (1,), pads=(1,) * 6)
        assert entries_of(graph) == entries


@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("kernel", [(7, 1, 1), (1, 3, 3)], ids=str)
def test_what_is_not_copied_may_be_large(kernel: tuple[int, ...], dtype: DType) -> None:
    """The second layer of S3D at batch 32: planes in a row have more elements than are copied."""
    graph = Graph("large")
    x = graph.add_input("x", TensorType(dtype, (32, 64, 16, 112, 112)))
    pads = tuple(size // 2 for size in kernel) * 2
    weights = graph.constant(normal(64, 64, *kernel).astype(dtype), "w")
    y = graph.insert(
        Conv(pads=pads, strides=(2, 1, 1) if kernel[0] > 1 else (1, 1, 1)), [x, weights]
    )
    graph.set_outputs({"y": y.output})
    infer(graph)
    assert not {"im2col", "conv_naive"} & {each.entry for each in launches(planned(graph))}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str, dtype: DType, emulated: CudaBackend) -> None:
    options = replace(OPTIONS, algorithms={"Conv": "volume"})
    compare(layers(name, dtype), emulated, options=options)


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", ["all axes", "odd channels"])
def test_stacked_planes(
    name: str, dtype: DType, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Volumes of more places than tables have, and GPUs without TF32."""
    monkeypatch.setattr(volume, "_has_places", lambda conv: False)
    sample, options = layers(name, dtype), replace(OPTIONS, algorithms={"Conv": "volume"})
    found = launches(planned(sample.graph, algorithms={"Conv": "volume"}))
    assert "im2col" in [launch.entry for launch in found]
    compare(sample, emulated, options=options)


@needs_compiler
@pytest.mark.parametrize("name", ["all axes", "a plane", "a line"])
def test_kernels_of_hopper(name: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume.multistage, "time_of", lambda *_: inf)
    sample, options = layers(name, float16), replace(OPTIONS, algorithms={"Conv": "volume"})
    planned_for = launches(planned(sample.graph, algorithms={"Conv": "volume"}))
    assert [launch.entry for launch in planned_for].count("mma_bulk") >= 2
    compare(sample, hopper, options=options)


#: Kernels and attributes of windows whose frames are read where they are.
FRAMES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "padded": ((3, 3, 3), {"pads": (1,) * 6}),
    "apart": (
        (3, 3, 2),
        {"strides": (2, 1, 1), "dilations": (2, 1, 1), "pads": (3, 1, 0, 0, 1, 1)},
    ),
}


@needs_compiler
@pytest.mark.parametrize("channels", [16, 48, 64])
@pytest.mark.parametrize("name", FRAMES)
def test_frames_in_place(
    name: str, channels: int, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, attributes = FRAMES[name]
    monkeypatch.setattr(volume, "_planes", volume._stacked)
    monkeypatch.setattr(
        volume, "_packing_time", lambda conv, planes: 1e3 if planes.packing else 0.0
    )
    graph = Graph(name)
    x = graph.add_input("x", TensorType(float16, (2, channels, 6, 9, 11)))
    weights = normal(channels, channels, 1, 1, 1), normal(24, channels, *kernel)
    first, second = (graph.constant(w.astype(float16), "w") for w in weights)
    y = graph.insert(Conv(), [x, first]).output
    graph.set_outputs({"y": graph.insert(Conv(**attributes), [y, second]).output})
    infer(graph)
    found = launches(planned(graph, algorithms={"Conv": "volume"}))
    assert [dict(launch.constants)["VOLUME"] for launch in found if launch.entry == "mma_bulk"][-1]
    options = replace(OPTIONS, algorithms={"Conv": "volume"})
    compare(
        Sample(graph, {"x": normal(2, channels, 6, 9, 11).astype(float16)}), hopper, options=options
    )


def residual(*dims: int, filters: int) -> Graph:
    """A convolution of frames, and what is added to it, both behind others."""
    graph = Graph("residual")
    x, channels = graph.add_input("x", TensorType(float16, dims)), dims[1]
    kernels = (
        (channels, channels, 1, 1, 1),
        (filters, channels, 3, 3, 3),
        (filters, channels, 1, 1, 1),
    )
    first, second, third = (graph.constant(normal(*k).astype(float16), "w") for k in kernels)
    y = graph.insert(Conv(), [x, first]).output
    z = graph.insert(Conv(pads=(1,) * 6), [y, second], name="frames").output
    r = graph.insert(Conv(), [y, third]).output
    graph.set_outputs({"y": graph.insert(Relu(), [graph.insert(Add(), [z, r]).output]).output})
    infer(graph)
    return graph


def test_residuals_of_volumes_are_added_by_tma() -> None:
    """Nothing else is as fast, although operands like the result are read last (ResNet-3D)."""
    (launch,) = (
        each
        for each in launches(planned(residual(32, 64, 16, 56, 56, filters=64)))
        if "Add" in each.note and "Relu" in each.note
    )
    assert launch.entry == "mma_bulk"
    assert dict(launch.constants)["VOLUME"]


@needs_compiler
def test_residuals_that_are_read_last(hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    suits = tma._suits
    monkeypatch.setattr(volume.multistage, "time_of", lambda *_: inf)
    monkeypatch.setattr(
        volume, "_packing_time", lambda conv, planes: 1e3 if planes.packing else 0.0
    )
    monkeypatch.setattr(
        tma,
        "_suits",
        lambda *a, along: suits(*a, along=along) and not tma._reads_ahead(a[2]),
    )
    graph, options = residual(2, 16, 6, 9, 11, filters=136), {"Conv": "volume"}
    found = [e for e in launches(planned(graph, algorithms=options)) if e.entry == "mma_bulk"]
    assert any(dict(launch.constants)["VOLUME"] and "Add" in launch.note for launch in found)
    sample = Sample(graph, {"x": normal(2, 16, 6, 9, 11).astype(float16)})
    compare(sample, hopper, options=replace(OPTIONS, algorithms=options))


@pytest.mark.slow
@pytest.mark.parametrize("target", [A100, H200], ids=["sm_80", "sm_90a"])
def test_compiles(target: Target, cubins: Path) -> None:
    graphs = [layers(name, dtype).graph for name in KERNELS for dtype in (float16, float32)]
    device = DryDevice(compiler=DryCompiler(target=target))
    found = [
        launch
        for graph in graphs
        for launch in launches(planned(graph, device, algorithms={"Conv": "volume"}))
    ]
    all_compile(list(device.compiler.sources), target, cubins)
    assert_arguments(found, target, cubins)
