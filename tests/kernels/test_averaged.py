"""1x1 convolutions with the mean over all pixels: which are one kernel, and against float64."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.conv import averaged
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, HardSwish, Relu
from tercet.runtime.ops.pool import GlobalAveragePool
from tercet.runtime.ops.reduce import ReduceMean
from tercet.runtime.session.model import Model

from .cubins import assert_arguments
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, OPTIONS, on_numpy

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

COMPILES = {"gemm/multistage.cu"}


@dataclass(frozen=True)
class Case:
    """A convolution of images, its windows, and the axes that a ReduceMean keeps or drops."""

    x: tuple[int, int, int, int]
    filters: int
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    adds: bool = False
    keepdims: int | None = None
    axes: tuple[int, ...] = (2, 3)
    is_read: bool = False


CASES = {
    "activation": Case((1, 40, 7, 7), 104),
    "residual": Case((3, 24, 5, 6), 72, adds=True),
    "many pixels": Case((2, 16, 9, 10), 40, keepdims=1),
    "no words": Case((2, 10, 4, 3), 33, adds=True, keepdims=0),
}
OTHERS = {
    "larger images": Case((1, 16, 14, 14), 64),
    "windows": Case((1, 16, 7, 7), 64, (3, 3)),
    "strides": Case((1, 16, 13, 13), 64, strides=(2, 2)),
    "columns": Case((1, 16, 7, 7), 64, keepdims=1, axes=(3,)),
    "read elsewhere": Case((1, 16, 7, 7), 64, is_read=True),
}


def graph_of(case: Case, dtype: DType, stored: DType) -> tuple[Graph, dict[str, Array]]:
    """Return the graph, with constants rounded to `stored`, and its inputs."""
    graph, feeds = Graph(), dict[str, Array]()

    def image(name: str, dims: tuple[int, ...]) -> Value:
        feeds[name] = normal(*dims).astype(stored).astype(dtype)
        return graph.add_input(name, TensorType(dtype, dims))

    constants = [
        graph.constant(a.astype(stored).astype(dtype))
        for a in (normal(case.filters, case.x[1], *case.kernel) / 4, normal(case.filters))
    ]
    conv = Conv(strides=case.strides)
    value = graph.insert(conv, [image("x", case.x), *constants]).output
    infer(graph)
    if case.adds:
        value = graph.insert(Add(), [value, image("z", value.tensor.dims)]).output
    value = graph.insert(Relu() if case.adds else HardSwish(), [value]).output
    if case.keepdims is None:
        mean = graph.insert(GlobalAveragePool(), [value]).output
    else:
        axes = graph.constant(np.array(case.axes, int64))
        mean = graph.insert(ReduceMean(keepdims=case.keepdims), [value, axes]).output
    graph.set_outputs({"y": mean, **({"value": value} if case.is_read else {})})
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
    monkeypatch.setattr(averaged, "LAUNCH", inf)
    device: CudaBackend = request.getfixturevalue(backend)
    graph, feeds = graph_of(case, dtype, dtype)
    with Model(graph, [device], OPTIONS, evaluate) as model:
        kernels = [row.kernel for row in model.prepare().rows if row.kind == "step"]
        assert len(kernels) == 1
        assert kernels[0].endswith(f"mean of {case.x[2] * case.x[3]}")
        got = model.run(feeds)["y"].astype(float64)
    want = on_numpy(graph_of(case, float64, dtype)[0], feeds)["y"]
    np.testing.assert_allclose(got, want, rtol=0, atol=ERROR[dtype] * np.abs(want).max())


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_others_are_two_kernels(case: Case) -> None:
    assert len(kernels(case)) > 1


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(Case((32, 320, 7, 7), 1280), float16), (CASES["activation"], float32)],
    ids=["large batch", "float32"],
)
def test_where_it_does_not_pay(case: Case, dtype: DType) -> None:
    assert len(kernels(case, dtype)) > 1


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_they_compile(target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averaged, "LAUNCH", inf)
    device = DryDevice(compiler=DryCompiler(target))
    graphs = (graph_of(case, t, t)[0] for case in CASES.values() for t in (float16, bfloat16))
    made = [launch for graph in graphs for launch in launches(planned(graph, device))]
    assert {launch.file for launch in made} == COMPILES
    assert_arguments(made, target, cache)
