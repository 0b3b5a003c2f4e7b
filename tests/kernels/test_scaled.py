"""1x1 convolutions of images with multiplied channels: which are one kernel, against float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.conv import scaled
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, HardSwish, Mul, Relu
from tercet.runtime.ops.movement import Concat
from tercet.runtime.session.model import Model

from .cubins import assert_arguments, assert_nothing_spills
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, OPTIONS, on_numpy

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

COMPILES = {"gemm/multistage.cu", "gemm/wgmma_rs.cu", "gemm/wgmma_rs_tma.cu"}


@dataclass(frozen=True)
class Case:
    """An image, whose gates are the first factor or the second, and a convolution of it."""

    x: tuple[int, int, int, int]
    filters: int
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    gates: tuple[int, ...] | None = None
    first: bool = False
    adds: bool = False
    joined: bool = False
    is_read: bool = False


CASES = {
    "gates": Case((3, 40, 7, 9), 24),
    "one image": Case((1, 264, 5, 6), 33),
    "residual": Case((5, 24, 5, 6), 72, adds=True, first=True),
    "slices": Case((3, 72, 9, 10), 40, joined=True, adds=True),
    "few rows": Case((4, 1032, 2, 1), 16),
}
#: In float32, with the kernels that compute them.
WIDE = {
    "gates": (Case((3, 40, 4, 8), 24), "split_wgmma"),
    "residual": (Case((5, 72, 4, 4), 72, adds=True, first=True), "split_wgmma"),
    "slices": (Case((3, 76, 8, 10), 40, joined=True, adds=True), "split_linear"),
    "many rows": (Case((4, 36, 16, 9), 40, adds=True), "split_linear"),
    "images beside": (Case((5, 76, 3, 7), 40), "split_wgmma"),
    "many beside": (Case((9, 36, 7, 9), 40, adds=True), "split_linear"),
}
OTHERS = {
    "no words": Case((2, 10, 4, 3), 32),
    "windows": Case((2, 16, 7, 7), 64, (3, 3)),
    "strides": Case((2, 16, 13, 13), 64, strides=(2, 2)),
    "gates of all images": Case((2, 16, 7, 7), 64, gates=(1, 16, 1, 1)),
    "gates of pixels": Case((2, 16, 7, 7), 64, gates=(2, 1, 7, 7)),
    "one pixel": Case((2, 16, 1, 1), 64),
    "read elsewhere": Case((2, 16, 7, 7), 64, is_read=True),
}


def graph_of(case: Case, dtype: DType, stored: DType) -> tuple[Graph, dict[str, Array]]:
    """Return the graph, with constants rounded to `stored`, and its inputs."""
    graph, feeds = Graph(), dict[str, Array]()

    def given(name: str, dims: tuple[int, ...]) -> Value:
        feeds[name] = normal(*dims).astype(stored).astype(dtype)
        return graph.add_input(name, TensorType(dtype, dims))

    n, channels, *_ = case.x
    constants = [
        graph.constant(a.astype(stored).astype(dtype))
        for a in (normal(case.filters, channels, *case.kernel) / 4, normal(case.filters))
    ]
    gates = given("gates", case.gates or (n, channels, 1, 1))
    x = given("x", case.x)
    if case.joined:
        x = graph.insert(Relu(), [x]).output
    factors = [x, gates]
    image = graph.insert(Mul(), factors[::-1] if case.first else factors).output
    value = graph.insert(Conv(strides=case.strides), [image, *constants]).output
    infer(graph)
    if case.adds:
        value = graph.insert(Add(), [value, given("z", value.tensor.dims)]).output
    value = graph.insert(Relu() if case.adds else HardSwish(), [value]).output
    if case.joined:
        value = graph.insert(Concat(axis=1), [value, x]).output
    graph.set_outputs({"y": value, **({"image": image} if case.is_read else {})})
    infer(graph)
    return graph, feeds


def kernels(case: Case, dtype: DType = float16, target: Target = H200) -> list[str]:
    return entries_of(graph_of(case, dtype, dtype)[0], DryDevice(compiler=DryCompiler(target)))


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["emulated", "h200"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results(
    case: Case,
    backend: str,
    dtype: DType,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaled, "LAUNCH", inf)
    monkeypatch.setattr(scaled, "LARGE", 0)
    device: CudaBackend = request.getfixturevalue(backend)
    graph, feeds = graph_of(case, dtype, dtype)
    with Model(graph, [device], OPTIONS, evaluate) as model:
        kernels = [row.kernel for row in model.prepare().rows if row.kind == "step"]
        assert sum("scaled" in kernel for kernel in kernels) == 1
        assert len(kernels) == 1 + case.joined  # what is joined is stored where it is read
        got = model.run(feeds)["y"].astype(float64)
    want = on_numpy(graph_of(case, float64, dtype)[0], feeds)["y"]
    np.testing.assert_allclose(got, want, rtol=0, atol=ERROR[dtype] * np.abs(want).max())


@needs_compiler
@pytest.mark.parametrize(("case", "entry"), WIDE.values(), ids=WIDE)
def test_float32(case: Case, entry: str, hopper: CudaBackend) -> None:
    graph, feeds = graph_of(case, float32, float32)
    with Model(graph, [hopper], OPTIONS, evaluate) as model:
        kernels = [row.kernel for row in model.prepare().rows if row.kind == "step"]
        assert [kernel.split()[0] for kernel in kernels][case.joined :] == [f"{entry}_scaled"]
        got = model.run(feeds)["y"].astype(float64)
    want = on_numpy(graph_of(case, float64, float32)[0], feeds)["y"]
    np.testing.assert_allclose(got, want, rtol=0, atol=ERROR[float32] * np.abs(want).max())


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_others_are_two_kernels(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaled, "LAUNCH", inf)
    monkeypatch.setattr(scaled, "LARGE", 0)
    assert "mma_scaled" not in kernels(case)


def test_where_it_pays() -> None:
    case = Case((32, 144, 56, 56), 24)
    assert kernels(case).count("mma_scaled") == 1
    assert "mma_scaled" not in kernels(case, float32)
    assert kernels(case, float32).count("split_linear_scaled") == 1
    assert "mma_scaled" not in kernels(replace(case, x=(32, 144, 28, 28)))
    assert "mma_scaled" not in kernels(replace(case, x=(32, 2048, 7, 7), filters=2048))


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_they_compile(target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaled, "LAUNCH", inf)
    monkeypatch.setattr(scaled, "LARGE", 0)
    device = DryDevice(compiler=DryCompiler(target))
    graphs = (graph_of(case, t, t)[0] for case in CASES.values() for t in (float16, bfloat16))
    made = [launch for graph in graphs for launch in launches(planned(graph, device))]
    products = [launch for launch in made if launch.file in COMPILES]
    assert len(products) == 2 * len(CASES)
    if target.has_wgmma:
        large = (Case((32, 144, 56, 56), n, adds=adds) for n in (24, 72) for adds in (False, True))
        small = (Case((32, c, 14, 14), c // 4, adds=True) for c in (240, 480, 672))
        cases = *large, *small, Case((32, 144, 28, 28), 40), Case((9, 264, 8, 8), 40)
        graphs = (graph_of(case, float32, float32)[0] for case in cases)
        made = [launch for graph in graphs for launch in launches(planned(graph, device))]
        wide = [launch for launch in made if launch.entry.endswith("scaled")]
        assert len(wide) == len(cases)
        assert {launch.file for launch in (*products, *wide)} == COMPILES
        assert_nothing_spills([launch.source for launch in wide], Compiler(target, cache))
        products += wide
    assert_arguments(products, target, cache)
