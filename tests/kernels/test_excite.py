"""Squeeze-and-excite in two kernels: where they are, and their results against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.conv import excite
from tercet.backends.cuda.gemm.schedules import multistage, tma
from tercet.backends.cuda.gemm.tables.f16 import MULTISTAGE
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64, int64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, HardSigmoid, Mul, Relu, Sigmoid, Swish
from tercet.runtime.ops.matmul import Gemm
from tercet.runtime.ops.movement import Split
from tercet.runtime.ops.pool import GlobalAveragePool
from tercet.runtime.ops.reduce import ReduceMean
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.session.model import Model

from .cubins import assert_arguments
from .dry import DryCompiler, DryDevice, Net, apply, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare, on_numpy

if TYPE_CHECKING:
    from pathlib import Path

    from tercet.backends.cuda.backend import CudaBackend

COMPILES = {"conv/excite.cu", "gemm/multistage.cu", "gemm/wgmma_rs.cu", "reduce/reduce.cu"}
#: Relative L2 distance that nothing here may exceed.
BOUND = {float16: 1e-3, bfloat16: 8e-3, float32: 1e-6}


@dataclass(frozen=True)
class Case:
    """Images, and the row in between.

    Attributes:
        x: the images.
        hidden: elements of the row in between.
        light: see `excite.LIGHT`.
        bias: whether products have one.
        swapped: whether the factors come first where they meet the image.
        transposed: whether the weights are in columns.
        apart: whether the factors are the result.
        groups: of the convolution of which the images are the result; 0 without one.
    """

    x: tuple[int, int, int, int]
    hidden: int
    light: int = 16 << 10
    bias: bool = True
    swapped: bool = False
    transposed: bool = False
    apart: bool = False
    groups: int = 0


CASES = {
    "one block": Case((1, 32, 9, 8), 8),
    "no words": Case((1, 48, 5, 7), 13, bias=False),
    "a cluster": Case((1, 104, 7, 7), 26, 1 << 11, swapped=True),
    "few rows": Case((1, 64, 6, 6), 4, 256, transposed=True),
    "images": Case((3, 72, 11, 10), 20, 1 << 10),
    "parts": Case((2, 40, 23, 25), 10),
    "factors": Case((2, 136, 5, 5), 34, 1 << 12, apart=True),
    "large weights": Case((1, 960, 4, 4), 240),
    "long rows": Case((2, 1152, 3, 3), 48, 1 << 13),
}
#: Behind convolutions that leave totals.
BEHIND = {
    "tiles": Case((1, 128, 14, 13), 32, groups=8),
    "a cluster": Case((1, 168, 14, 14), 42, 1 << 12, groups=7),
    "no words": Case((1, 128, 13, 11), 10, bias=False, swapped=True, groups=8),
    "shared sums": Case((1, 64, 14, 13), 16, groups=1),
    "factors": Case((1, 48, 14, 14), 12, apart=True, groups=2),
}
#: The same in float32, in groups.
WIDE = Case((1, 240, 14, 14), 20, groups=10)


def graph_of(case: Case, dtype: DType, stored: DType) -> tuple[Graph, dict[str, Array]]:
    """Return the graph, with constants rounded to `stored`, and its inputs."""
    graph = Graph("excite")
    images, channels, *_ = case.x
    feeds = {"x": (normal(*case.x) + np.float32(0.5)).astype(stored).astype(dtype)}
    x = graph.add_input("x", TensorType(dtype, case.x))

    def product(value: Value, terms: int, count: int) -> Value:
        w = normal(count, terms) / np.float32(terms**0.5)
        constants = (w.T if case.transposed else w, normal(count))[: 1 + case.bias]
        op = Gemm(transB=int(not case.transposed))
        return apply(graph, op, value, *(a.astype(stored).astype(dtype) for a in constants))

    if case.groups:
        w = normal(channels, channels // case.groups, 3, 3) / np.float32(channels**0.5)
        constants = (a.astype(stored).astype(dtype) for a in (w, normal(channels)))
        op = Conv(pads=(1,) * 4, group=case.groups)
        x = apply(graph, Relu(), apply(graph, op, x, *constants))
    mean = apply(graph, GlobalAveragePool(), x)
    row = apply(graph, Reshape(), mean, np.array([images, channels], int64))
    hidden = product(row, channels, case.hidden)
    hidden = apply(graph, Relu() if case.swapped else Swish(), hidden)
    factors = product(hidden, case.hidden, channels)
    factors = apply(graph, HardSigmoid() if case.swapped else Sigmoid(), factors)
    if case.apart:
        graph.set_outputs({"y": factors, **({"x": x} if case.groups else {})})
        infer(graph)
        return graph, feeds
    factors = apply(graph, Reshape(), factors, np.array([images, channels, 1, 1], int64))
    y = apply(graph, Mul(), *((factors, x) if case.swapped else (x, factors)))
    graph.set_outputs({"y": y})
    infer(graph)
    return graph, feeds


def relative_error(got: Array, case: Case, stored: DType) -> float:
    """Return the L2 distance of results from those in float64, as a fraction of their norm."""
    want = on_numpy(*graph_of(case, float64, stored))["y"]
    return float(np.linalg.norm(got.astype(float64) - want) / np.linalg.norm(want))


@needs_compiler
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results(
    case: Case, dtype: DType, h200: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(excite, "LIGHT", case.light)
    graph, feeds = graph_of(case, dtype, dtype)
    with Model(graph, [h200], OPTIONS, evaluate) as model:
        kernels = [row.kernel for row in model.prepare().rows if row.kind == "step"]
        assert any("excite" in kernel for kernel in kernels), kernels
        got = model.run(feeds)["y"]
    assert relative_error(got, case, dtype) <= BOUND[dtype]


@needs_compiler
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *(
            pytest.param(case, dtype, id=f"{name} {dtype}")
            for name, case in BEHIND.items()
            for dtype in (float16, bfloat16)
        ),
        pytest.param(WIDE, float32, id="float32"),
    ],
)
def test_behind_convolutions(
    case: Case, dtype: DType, h200: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(excite, "LIGHT", case.light)
    graph, feeds = graph_of(case, dtype, dtype)
    with Model(graph, [h200], OPTIONS, evaluate) as model:
        (kernel,) = (row.kernel for row in model.prepare().rows if row.kind == "step")
        assert ("split_wgmma_totals" if dtype == float32 else "mma_totals") in kernel
        assert "excite" in kernel
        got = model.run(feeds)["y"]
    assert relative_error(got, case, dtype) <= BOUND[dtype]


def test_they_compile(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for case in (*CASES.values(), *BEHIND.values(), WIDE):
        monkeypatch.setattr(excite, "LIGHT", case.light)
        device = DryDevice(compiler=DryCompiler(H200))
        graphs = (graph_of(case, dtype, dtype)[0] for dtype in BOUND)
        made += [launch for graph in graphs for launch in launches(planned(graph, device))]
    made = [launch for launch in made if launch.file in COMPILES]
    assert {launch.file for launch in made} == COMPILES
    assert_arguments(made, H200, cache)


def test_totals_of_tiles_of_96_columns(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve words of a row, of which 128 threads do not have whole rows: not in clusters."""
    graph, _ = graph_of(Case((1, 192, 56, 56), 48, groups=2), float16, float16)
    first, gates = launches(planned(graph))
    assert (dict(first.constants)["BN"], first.entry, gates.entry) == (96, "mma_totals", "excite")
    assert_arguments([first], H200, cache)
    (wide,) = (tile for tile in MULTISTAGE if tile.bn == 96)
    monkeypatch.setattr(multistage, "_usable", lambda *_, **__: (wide,))
    monkeypatch.setattr(multistage, "choose", multistage.choose.__wrapped__)
    monkeypatch.setattr(tma, "choose", lambda *_, **__: None)
    graph, _ = graph_of(Case((1, 192, 14, 14), 48, groups=2), float16, float16)
    first, *_ = launches(planned(graph))
    assert (first.entry, first.cluster[2] > 1) == ("mma", True)


def test_images_without_pixels_are_not_averaged_so() -> None:
    """The mean of nothing is NaN, which the products read."""
    graph = Graph("empty")
    x = graph.add_input("x", TensorType(float16, (1, 64, 0, 7)))
    row = apply(graph, ReduceMean(keepdims=0), x, np.array([2, 3], int64))
    weights = np.ones((64, 64), np.float16)
    hidden = apply(graph, Relu(), apply(graph, Gemm(transB=1), row, weights))
    graph.set_outputs({"y": apply(graph, Gemm(transB=1), hidden, weights)})
    infer(graph)
    assert "excite" not in entries_of(graph)


def test_images_computed_from_the_averaged_one() -> None:
    """They wait for the convolution, so that it is a kernel of its own."""
    net = Net()
    x = net.input(1, 64, 9, 8, dtype=float16)
    w = (normal(2, 64, 64, 3, 3) / np.float32(24)).astype(np.float16)
    averaged = net.apply(Relu(), net.apply(Conv(pads=(1,) * 4), x, w[0]))
    image = net.apply(Relu(), net.apply(Conv(pads=(1,) * 4), averaged, w[1]))
    row = net.apply(Reshape(), net.apply(GlobalAveragePool(), averaged), np.array([1, 64]))
    hidden = net.apply(Relu(), net.apply(Gemm(), row, w[0, :, :, 0, 0]))
    factors = net.apply(Sigmoid(), net.apply(Gemm(), hidden, w[1, :, :, 0, 0]))
    factors = net.apply(Reshape(), factors, np.array([1, 64, 1, 1]))
    y = net.apply(Mul(), image, factors)
    net.graph.set_outputs({"y": y, "image": image})
    infer(net.graph)
    assert entries_of(net.graph) == ["mma", "mma", "reduce_columns", "excite"]


@needs_compiler
@pytest.mark.parametrize("added", [False, True])
def test_convolutions_of_slices(added: bool, h200: CudaBackend) -> None:
    """They are read in place by a convolution that leaves totals, also where it adds them."""
    net = Net()
    x = net.input(1, 64, 9, 8, dtype=float16)
    w = (normal(4, 64, 64, 3, 3) / np.float32(24)).astype(np.float16)
    both = net.apply(Relu(), net.apply(Conv(pads=(1,) * 4), x, w[:2].reshape(128, 64, 3, 3)))
    upper, lower = net.graph.insert(Split(axis=1, num_outputs=2), [both], 2).outputs
    image = net.apply(Relu(), net.apply(Conv(pads=(1,) * 4), lower, w[2]))
    if added:
        image = net.apply(Add(), image, lower)
    row = net.apply(Reshape(), net.apply(GlobalAveragePool(), image), np.array([1, 64]))
    hidden = net.apply(Relu(), net.apply(Gemm(), row, w[0, :, :, 0, 0]))
    factors = net.apply(Sigmoid(), net.apply(Gemm(), hidden, w[1, :, :, 0, 0]))
    y = net.apply(Mul(), image, net.apply(Reshape(), factors, np.array([1, 64, 1, 1])))
    other = net.apply(Conv(pads=(1,) * 4), upper, w[3])
    net.graph.set_outputs({"y": y, "other": other})
    infer(net.graph)
    entries = entries_of(net.graph)
    assert "mma_totals" in entries
    assert "copy_strided" not in entries
    compare(Sample(net.graph, net.feeds), h200, error=4e-3)


def test_where_they_are_not() -> None:
    """An older GPU, too many blocks or channels, and means that something else reads."""
    graph, _ = graph_of(CASES["one block"], float16, float16)
    assert "excite" in entries_of(graph)
    assert "excite" not in entries_of(graph, DryDevice(compiler=DryCompiler(A100)))
    large, _ = graph_of(Case((64, 64, 56, 56), 16), float16, float16)
    assert "excite" not in entries_of(large)
    for channels in (excite.MAX_CHANNELS, excite.MAX_CHANNELS + 8):
        many, _ = graph_of(Case((1, channels, 2, 1), 8), float16, float16)
        assert ("excite" in entries_of(many)) == (channels == excite.MAX_CHANNELS)
    shared, _ = graph_of(CASES["large weights"], float32, float32)
    for processors in (21, 22):  # of which sixteen, for a cluster, may be in one GPC
        device = DryDevice(compiler=DryCompiler(Target("sm_90a", processors, H200.shared)))
        assert ("excite" in entries_of(shared, device)) == (processors == 22)
    (mean,) = (node for node in graph.nodes if isinstance(node.op, GlobalAveragePool))
    graph.set_outputs({**graph.outputs, "mean": mean.output})
    assert "excite" not in entries_of(graph)


def test_epilogues_multiply() -> None:
    """A convolution of whose result nothing else is read multiplies it by the factors itself."""
    graph, _ = graph_of(Case((1, 64, 7, 7), 16, apart=True), float16, float16)
    factors = apply(graph, Reshape(), graph.outputs["y"], np.array([1, 64, 1, 1], int64))
    w = normal(64, 64, 1, 1).astype(np.float16)
    conv = apply(graph, Conv(), graph.inputs[0], w)
    graph.set_outputs({"y": apply(graph, Mul(), conv, factors)})
    infer(graph)
    *_, gates, last = launches(planned(graph))
    assert gates.entry == "excite"
    assert "Mul" not in gates.note
    assert "Mul" in last.note
