"""Convolutions over one axis of 16-bit floats, as those of images with one row."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm import f16
from tercet.backends.cuda.gemm.problem import MAX_EXTENT
from tercet.runtime.ir.dtypes import float16
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, LeakyRelu

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
    "longer than tables reach": ((1, MAX_EXTENT + 100), 3, {"pads": (1, 1)}),
}


def layers(name: str) -> Sample:
    """Return a convolution whose input another one computes, and which adds this input."""
    (samples, length), kernel, how = CASES[name]
    graph, channels = Graph(name), 16
    x = graph.add_input("x", TensorType(float16, (samples, 8, length)))
    groups = how.get("group", 1)
    arrays = (normal(channels, 8, 1), normal(channels, channels // groups, kernel))
    first, second = (graph.constant(w.astype(float16), f"w{i}") for i, w in enumerate(arrays))
    y = graph.insert(Conv(), [x, first]).output
    z = graph.insert(LeakyRelu(), [graph.insert(Conv(**how), [y, second]).output]).output
    infer(graph)
    if z.tensor.dims == y.tensor.dims:
        z = graph.insert(Add(), [z, y]).output
    graph.set_outputs({"y": z})
    infer(graph)
    return Sample(graph, {"x": normal(samples, 8, length).astype(float16)})


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f16, "MARGIN", inf)
    sample, options = layers(name), replace(OPTIONS, algorithms={"Conv": "tensor_cores"})
    entries = [
        each.entry for each in launches(planned(sample.graph, algorithms=options.algorithms))
    ]
    assert set(entries) == {"mma_bulk"}
    compare(sample, hopper, options=options)


def test_long_signals_are_not_copied() -> None:
    entries = [each.entry for each in launches(planned(layers("longer than tables reach").graph))]
    assert "im2col" not in entries
