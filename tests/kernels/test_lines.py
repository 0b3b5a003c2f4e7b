"""Convolutions over one axis, as those of images with one row."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm import conv_f16, problem
from tercet.backends.cuda.gemm.windows import MAX_REACH
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, LeakyRelu
from tercet.runtime.ops.window import Window

from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare

#: Samples and length of the signal, length of the kernel, and attributes.
CASES: dict[str, tuple[tuple[int, int], int, dict[str, Any]]] = {
    "pads": ((2, 37), 3, {"pads": (1, 1)}),
    "strides": ((2, 50), 3, {"strides": (2,), "pads": (0, 1)}),
    "dilations": ((1, 70), 7, {"dilations": (5,), "pads": (15, 15)}),
    "a pixel": ((2, 33), 1, {}),
    "groups": ((1, 40), 5, {"pads": (2, 2), "group": 2}),
    "a long line": ((1, MAX_REACH - 1), 3, {"pads": (1, 1)}),
}


def layers(name: str, dtype: DType = float16) -> Sample:
    """Return a convolution whose input another one computes, and which adds this input."""
    (samples, length), kernel, how = CASES[name]
    graph, channels = Graph(name), 16
    x = graph.add_input("x", TensorType(dtype, (samples, 8, length)))
    groups = how.get("group", 1)
    arrays = (normal(channels, 8, 1), normal(channels, channels // groups, kernel))
    first, second = (graph.constant(w.astype(dtype), f"w{i}") for i, w in enumerate(arrays))
    y = graph.insert(Conv(), [x, first]).output
    z = graph.insert(LeakyRelu(), [graph.insert(Conv(**how), [y, second]).output]).output
    infer(graph)
    if z.tensor.dims == y.tensor.dims:
        z = graph.insert(Add(), [z, y]).output
    graph.set_outputs({"y": z})
    infer(graph)
    return Sample(graph, {"x": normal(samples, 8, length).astype(dtype)})


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_f16, "MARGIN", inf)
    sample, options = layers(name), replace(OPTIONS, algorithms={"Conv": "tensor_cores"})
    entries = [
        each.entry for each in launches(planned(sample.graph, algorithms=options.algorithms))
    ]
    assert set(entries) == {"mma_bulk"}
    compare(sample, hopper, options=options)


@pytest.mark.parametrize("dtype", [float16, float32])
def test_long_signals_are_not_copied(dtype: DType) -> None:
    found = launches(planned(layers("a long line", dtype).graph))
    files = {each.file for each in found if not each.file.startswith("move/")}
    tensor_cores = {"tma.cu"} if dtype == float16 else {"wgmma_rs.cu", "wgmma_rs_tma.cu"}
    assert files == {f"gemm/{file}" for file in tensor_cores}
    assert not any(each.entry == "im2col" for each in found)


@pytest.mark.parametrize("pad", [0, 1])
def test_where_numbers_of_columns_end(pad: int) -> None:
    """Windows reach from the first padding to the last element, and no further."""
    view = Window((3,), (1,), (1,), (pad,), (pad,), (MAX_REACH - 2 + pad,))
    assert problem.reach_of((MAX_REACH - pad,), view) == MAX_REACH


#: Numbers of columns that do not fit where tests let those of rows and columns have few places.
LINES = [name for name, (_, kernel, _) in CASES.items() if kernel > 1 and name != "a long line"]


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, float32])
@pytest.mark.parametrize("name", LINES)
def test_columns_of_all_bits(
    name: str, dtype: DType, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem, "MAX_REACH", 20)
    monkeypatch.setattr(conv_f16, "MARGIN", 0.0)
    sample, options = layers(name, dtype), replace(OPTIONS, algorithms={"Conv": "tensor_cores"})
    found = launches(planned(sample.graph, algorithms=options.algorithms))
    assert any(dict(each.constants).get("AXES") == 1 for each in found)
    compare(sample, hopper, options=options)
