"""Convolutions by computed filters: those of all images, and those of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe.operands import Scratch
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: The kernels that this module compiles.
COMPILES = {"gemm/pack_filters.cu"}
BOUNDS = {float32: 2e-6, float16: 2e-3}


@dataclass(frozen=True)
class Case:
    """A convolution by computed filters.

    Attributes:
        x: the images.
        w: the filters; of all images, if these have their own.
        how: attributes.
        kernels: what packs the filters and computes the results, in float16.
        own: whether images have filters of their own.
        has_bias: whether there is a computed bias.
        is_template: whether filters are images themselves.
        transposed: whether the convolution is.
    """

    x: tuple[int, ...]
    w: tuple[int, ...]
    how: dict[str, Any] = field(default_factory=dict)
    kernels: tuple[str, ...] = ("pack_filters", "mma")
    own: bool = False
    has_bias: bool = False
    is_template: bool = False
    transposed: bool = False

    @property
    def count(self) -> int:
        """How many images have filters of their own; 1 if none has."""
        return self.x[0] if self.own else 1

    @property
    def group(self) -> int:
        """Groups of an image."""
        if self.transposed:
            return 1 if self.w[1] > 1 else self.x[1]
        return self.x[1] // self.w[1]


SINGLE = ("pack_filters", "depthwise_rows")
CASES = {
    "windows": Case((2, 16, 9, 7), (24, 16, 3, 3), {"pads": (1,) * 4}),
    "pixels": Case((1, 16, 9, 7), (24, 16, 1, 1), {"strides": (2, 2)}),
    "line": Case((2, 16, 30), (8, 16, 5), {"dilations": (2,)}, has_bias=True),
    "groups": Case((1, 32, 6, 5), (32, 8, 3, 3)),
    "joined groups": Case((1, 16, 6, 5), (16, 4, 3, 3), {"pads": (1,) * 4}),
    "even channels": Case((1, 12, 6, 5), (8, 12, 3, 3)),
    "odd channels": Case((1, 21, 6, 5), (8, 21, 3, 3), {}, ("pack_filters", "pad_channels", "mma")),
    "single channels": Case((2, 16, 9, 8), (16, 1, 3, 3), {}, SINGLE, has_bias=True),
    "no words": Case((2, 6, 9, 8), (6, 1, 5, 3), {}, ("pack_filters", "depthwise_pixels")),
    "images": Case((3, 16, 9, 7), (72, 16, 3, 3), {"pads": (1,) * 4}, own=True),
    "images with bias": Case((2, 16, 9, 7), (32, 16, 3, 3), own=True, has_bias=True),
    "correlation": Case((3, 16, 9, 8), (48, 1, 5, 5), {}, SINGLE, own=True),
    "template": Case((3, 16, 13, 12), (48, 1, 5, 5), {}, SINGLE[1:], own=True, is_template=True),
    "one template": Case((1, 16, 13, 12), (16, 1, 5, 5), {}, SINGLE[1:], is_template=True),
    "signals": Case(
        (3, 16, 40), (48, 1, 4), {"strides": (2,)}, ("depthwise",), own=True, is_template=True
    ),
    "transposed": Case(
        (2, 16, 5, 4),
        (16, 6, 3, 3),
        {"strides": (2, 2)},
        ("pack_filters", "mma", "col2im"),
        transposed=True,
    ),
    "transposed single channels": Case(
        (2, 16, 5, 4),
        (16, 1, 4, 4),
        {"strides": (2, 2)},
        ("pack_filters", "depthwise_transposed"),
        transposed=True,
    ),
}


def graph_of(case: Case, dtype: DType) -> Graph:
    """Return the convolution as exporters write it, of what is computed before."""
    graph = Graph()

    def shaped(value: Value, *sizes: int) -> Value:
        return graph.insert(Reshape(), [value, graph.constant(np.array(sizes))]).output

    n, c, *sides = case.x
    x = graph.insert(Relu(), [graph.add_input("x", TensorType(dtype, case.x))]).output
    form = (n, c, *case.w[2:]) if case.is_template else case.w
    w = graph.insert(Relu(), [graph.add_input("w", TensorType(dtype, form))]).output
    inputs = [shaped(x, 1, n * c, *sides) if case.own else x]
    inputs.append(shaped(w, *case.w) if case.is_template else w)
    if case.has_bias:
        inputs.append(graph.add_input("b", TensorType(dtype, case.w[:1])))
    kind = ConvTranspose if case.transposed else Conv
    y = graph.insert(kind(group=case.count * case.group, **case.how), inputs).output
    if case.own:
        infer(graph)
        y = shaped(y, n, case.w[0] // n, *y.tensor.dims[2:])
    graph.set_outputs({"y": graph.insert(Relu(), [y]).output})
    infer(graph)
    return graph


def feeds_of(graph: Graph) -> dict[str, Array]:
    """Return random inputs."""
    return {v.name: normal(*v.tensor.dims).astype(v.tensor.dtype) for v in graph.inputs}


def expected(case: Case, feeds: dict[str, Array], dims: tuple[int, ...]) -> Array:
    """Return the results by definition, in float64: tap by tap."""
    x, w = (np.maximum(feeds[name].astype(np.float64), 0) for name in "xw")
    w = w.reshape(case.w)
    y = np.zeros(dims)
    if case.has_bias:
        bias = feeds["b"].astype(np.float64).reshape(case.count, -1)
        y += bias.reshape(case.count, -1, *(1,) * (len(dims) - 2))
    for i, filters in zip(range(len(x)), each_image(case, w), strict=True):
        for taps in product(*map(range, case.w[2:])):
            chosen = filters[(slice(None), slice(None), *taps)]
            add_tap(case, x[i], y[i], chosen, taps)
    return np.maximum(y, 0)


def each_image(case: Case, w: Array) -> Iterator[Array]:
    """Return the filters of each image."""
    own = np.split(w, case.count)
    return (own[i if case.own else 0] for i in range(case.x[0]))


def add_tap(case: Case, x: Array, y: Array, w: Array, taps: tuple[int, ...]) -> None:
    """Add the terms of one tap, w [m, c / group] or [c, m / group], to the results of an image."""
    rank, group = len(taps), case.group
    strides = case.how.get("strides", (1,) * rank)
    moves = case.how.get("dilations", (1,) * rank)
    pads = case.how.get("pads", (0,) * 2 * rank)[:rank]
    inside, outside = (x, y) if case.transposed else (y, x)
    for place in product(*map(range, inside.shape[1:])):
        each = zip(place, strides, taps, moves, pads, strict=True)
        at = [p * s + t * d - b for p, s, t, d, b in each]
        if all(0 <= a < size for a, size in zip(at, outside.shape[1:], strict=True)):
            there = (slice(None), *at)
            here = (slice(None), *place)
            to, of = (there, here) if case.transposed else (here, there)
            blocks = x[of].reshape(group, -1)
            parts = w.reshape(group, -1, w.shape[1])
            terms = "gc,gcm->gm" if case.transposed else "gc,gmc->gm"
            y[to] += np.einsum(terms, blocks, parts).ravel()


@needs_compiler
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_results(case: Case, dtype: DType, emulated: CudaBackend) -> None:
    graph = graph_of(case, dtype)
    feeds, dims = feeds_of(graph), graph.outputs["y"].tensor.dims
    with Model(graph, [emulated], OPTIONS, evaluate) as model:
        got = model.run(feeds)["y"].astype(np.float64)
    want = expected(case, feeds, dims)
    np.testing.assert_allclose(got, want, rtol=0, atol=BOUNDS[dtype] * np.abs(want).max())


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_kernels(case: Case) -> None:
    """What is computed before and behind is elementwise."""
    found = entries_of(graph_of(case, float16))
    assert tuple(entry for entry in found if entry != "elementwise") == case.kernels


def test_they_start_when_filters_are_packed() -> None:
    """Kernels read constants before they wait for the kernel before them."""
    packing, product = launches(planned(graph_of(CASES["windows"], float16)))[-2:]
    assert (packing.early, product.early) == (True, False)
    there = product.args["b"]
    assert packing.args["y"] == there
    assert isinstance(there, Scratch)
    assert packing.scratch >= there.offset + 2 * prod(CASES["windows"].w)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_they_compile(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=DryCompiler(target))
    found = [
        launch
        for case in CASES.values()
        for launch in launches(planned(graph_of(case, float16), device))
        if launch.file in COMPILES
    ]
    all_compile({launch.source: None for launch in found}, target, cache, COMPILES)
    assert_arguments(found, target, cache)
