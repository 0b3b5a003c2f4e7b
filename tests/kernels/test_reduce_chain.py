"""Reductions of elementwise chains, with a chain behind them: one kernel, and its results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.codegen import moves, reduction_kernel
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Cast, Exp, Less, Mul, Sub
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.movement import Pad, Slice, Split, Transpose
from tercet.runtime.ops.reduce import (
    Reduce,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceProd,
    ReduceSum,
)
from tercet.runtime.ops.resize import Resize
from tercet.runtime.ops.shape import Reshape

from .cubins import OptimizedPtxCompiler, all_compile
from .dry import Net, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare

FILE = "reduce/reduce_chain.cu"
COMPILES = {"reduce/reduce_chain.cu"}
DIMS = (3, 5, 6, 40)


def axes(*of: int) -> Array:
    return np.array(of, np.int64)


def number(of: float) -> Array:
    return np.array(of, np.float32)


Build = Callable[["Net"], Value]


def product(net: Net, *dims: int, other: tuple[int, ...] = ()) -> Value:
    return net.apply(Mul(), net.input(*dims), net.input(*(other or dims)))


def rows(net: Net, fold: Reduce | None = None) -> Value:
    return net.apply(fold or ReduceSum(), product(net, *DIMS), axes(-1))


def behind(net: Net) -> Value:
    mean = net.apply(ReduceMean(), product(net, *DIMS), axes(-1))
    return net.apply(Add(), net.apply(Exp(), mean), net.input(5, 1, 1))


def columns(net: Net, axis: int = 1, count: int = 5) -> Value:
    x = product(net, 3, count, 6, 40, other=(3, 1, 6, 1))
    return net.apply(ReduceSum(keepdims=0), x, axes(axis))


def apart(net: Net) -> Value:
    """Axes that are not adjacent, of a shape that no vectors fit."""
    return net.apply(ReduceMax(), product(net, 3, 7, 5, 3, other=(7, 1, 3)), axes(1, 3))


def all_of_it(net: Net) -> Value:
    return net.apply(ReduceMean(keepdims=0), product(net, 9, 31), axes(0, 1))


def short_rows(net: Net) -> Value:
    return net.apply(ReduceProd(), net.input(7, 9, 3), axes(2))


def halves(net: Net) -> Value:
    """Sums in float32 of what is stored in float16, which the result is as well."""
    x, y = (net.apply(Cast(to=float16), net.input(6, 11, 16)) for _ in range(2))
    wide = net.apply(Cast(to=float32), net.apply(Add(), x, y))
    total = net.apply(ReduceSum(), net.apply(Mul(), wide, wide), axes(1))
    return net.apply(Cast(to=float16), net.apply(Mul(), total, number(0.25)))


def alike(net: Net) -> Value:
    """The same operator before and behind, of float16."""
    x, y, z = (net.input(*dims, dtype=float16) for dims in (DIMS, DIMS, (3, 5, 6, 1)))
    total = net.apply(ReduceSum(), net.apply(Add(), x, y), axes(-1))
    return net.apply(Add(), total, z)


def moved(net: Net) -> Value:
    """An image beside another one, shifted: one place of a correlation."""
    a, b = net.input(2, 6, 9, 8), net.input(2, 6, 9, 8)
    around = net.apply(Pad(), b, axes(0, 0, 1, 1, 0, 0, 1, 1))
    shifted = net.apply(Slice(), around, axes(2, 0), axes(11, 8), axes(2, 3))
    return net.apply(ReduceMean(), net.apply(Mul(), a, shifted), axes(1))


def transposed(net: Net) -> Value:
    x = net.apply(Transpose(perm=(1, 0, 2)), net.input(20, 2, 12))
    y = net.apply(Slice(), net.input(2, 40, 12), axes(5, 2), axes(25, 12), axes(1, 2))
    y = net.apply(Pad(), y, axes(0, 0, 1, 0, 0, 1))
    return net.apply(ReduceSum(), net.apply(Mul(), x, y), axes(2))


def reassembled(net: Net) -> Value:
    """CARAFE: the neighbourhood of each pixel, repeated for those of a larger image, weighted."""
    image, weights = net.input(2, 16, 6, 5), net.input(2, 1, 9, 12, 10)
    x = net.apply(Pad(), image, axes(0, 0, 1, 1, 0, 0, 1, 1))
    for axis, size in ((2, 6), (4, 5)):
        places = np.arange(3)[:, None] + np.arange(size)
        x = net.apply(Gather(axis=axis), x, places)
    x = net.apply(Transpose(perm=(0, 1, 2, 4, 3, 5)), x)
    x = net.apply(Reshape(), x, axes(2, 144, 6, 5))
    scales = net.graph.constant(np.array([1, 1, 2, 2], np.float32))
    x = net.graph.insert(Resize(mode="nearest"), [x, None, scales]).output
    x = net.apply(Reshape(), x, axes(2, 16, 9, 12, 10))
    return net.apply(ReduceSum(keepdims=0), net.apply(Mul(), x, weights), axes(2))


def counted(net: Net) -> Value:
    less = net.apply(Less(), net.input(4, 33), number(0.1))
    return net.apply(ReduceSum(), net.apply(Cast(to=float32), less), axes(1))


GRAPHS: dict[str, Build] = {
    **{"rows": rows, "behind": behind, "columns": columns, "apart": apart, "all": all_of_it},
    **{
        "short_rows": short_rows,
        "halves": halves,
        "alike": alike,
        "moved": moved,
        "transposed": transposed,
    },
    **{"reassembled": reassembled, "counted": counted},
    "logsumexp": lambda net: rows(net, ReduceLogSumExp()),
    "outer": lambda net: columns(net, 0),
    "many": lambda net: columns(net, 1, 150),
}


def built(name: str) -> Net:
    net = Net()
    net.graph.set_outputs({"y": GRAPHS[name](net)})
    infer(net.graph)
    return net


@pytest.mark.parametrize("name", GRAPHS)
def test_one_kernel_computes_them(name: str) -> None:
    found = [launch.source.file for launch in launches(planned(built(name).graph))]
    assert found == [FILE]


@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
def test_results(name: str, emulated: CudaBackend) -> None:
    net = built(name)
    compare(Sample(net.graph, net.feeds), emulated)


def test_what_is_read_twice_is_stored() -> None:
    net = Net()
    x = product(net, 4, 40)
    net.graph.set_outputs({"y": net.apply(ReduceSum(), x, axes(1)), "x": x})
    infer(net.graph)
    assert FILE not in {launch.source.file for launch in launches(planned(net.graph))}


def test_long_rows_take_several_passes() -> None:
    net = Net()
    net.graph.set_outputs({"y": net.apply(ReduceSum(), product(net, 2, 1 << 18), axes(1))})
    infer(net.graph)
    assert FILE not in {launch.source.file for launch in launches(planned(net.graph))}


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    graphs = (built(name).graph for name in ("behind", "halves", "alike", "moved", "logsumexp"))
    sources = [launch.source for graph in graphs for launch in launches(planned(graph))]
    all_compile(sources, target, cache, COMPILES)


@needs_compiler
def test_channels_stay_adjacent(emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many elements that are moved are read in vectors of channels, and so are the results."""
    monkeypatch.setattr(moves, "MAX_SCATTERED", 0)
    monkeypatch.setattr(moves, "MAX_NEAR", 0)
    monkeypatch.setattr(reduction_kernel, "ENOUGH", 64)
    net = built("reassembled")
    (launch,) = (each for each in launches(planned(net.graph)) if each.source.file == FILE)
    assert dict(launch.source.constants)["VECTOR"] == 4
    compare(Sample(net.graph, net.feeds), emulated)


def windows(net: Net, dtype: DType = float32) -> Value:
    """Neighbours of each position, each weighed by what they share (dynamic convolutions)."""
    image = net.apply(Transpose(perm=(0, 3, 1, 2)), net.input(2, 12, 1, 8, dtype=dtype))
    padded = net.apply(Pad(), image, axes(0, 0, 2, 0, 0, 0, 2, 0))
    unfolded = net.apply(Gather(axis=2), padded, np.arange(5)[:, None] + np.arange(12))
    turned = net.apply(Transpose(perm=(0, 4, 3, 1, 2)), unfolded)
    each, weights = net.apply(Reshape(), turned, axes(24, 8, 5)), net.input(24, 1, 5, dtype=dtype)
    return net.apply(ReduceSum(keepdims=1), net.apply(Mul(), each, weights), axes(2))


@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16], ids=str)
def test_windows_are_read_in_place(
    dtype: DType, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "MAX_SCATTERED", 0)
    monkeypatch.setattr(moves, "MAX_NEAR", 0)
    net = Net()
    net.graph.set_outputs({"y": windows(net, dtype)})
    infer(net.graph)
    assert [each.source.file for each in launches(planned(net.graph))] == [FILE]
    compare(Sample(net.graph, net.feeds), emulated, error=1e-3 if dtype == float16 else 1e-6)


def unfolded(net: Net) -> Value:
    """Windows of pixels, weighed by what a group of channels shares (involution)."""
    image, weights = net.input(2, 8, 9, 12), net.input(2, 2, 1, 9, 9, 12)
    x = net.apply(Pad(), image, axes(0, 0, 1, 1, 0, 0, 1, 1))
    for axis, size in ((2, 9), (4, 12)):
        x = net.apply(Gather(axis=axis), x, np.arange(3)[:, None] + np.arange(size))
    x = net.apply(Transpose(perm=(0, 1, 2, 4, 3, 5)), x)
    x = net.apply(Reshape(), x, axes(2, 2, 4, 9, 9, 12))
    return net.apply(ReduceSum(keepdims=0), net.apply(Mul(), x, weights), axes(3))


@needs_compiler
def test_windows_of_many_pixels_are_read_where_they_are_padded(
    emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places of padded windows are in no order, those of windows of a padded image are."""
    monkeypatch.setattr(moves, "MAX_SCATTERED", 0)
    monkeypatch.setattr(moves, "MAX_NEAR", 0)
    net = Net()
    net.graph.set_outputs({"y": unfolded(net)})
    infer(net.graph)
    *before, last = (each.source.file for each in launches(planned(net.graph)))
    assert len(before) == 1
    assert last == FILE
    compare(Sample(net.graph, net.feeds), emulated)


@needs_compiler
def test_what_others_read_is_moved_for_all(emulated: CudaBackend) -> None:
    """A transposed tensor that a reduction and another node read is in memory for both."""
    net = Net()
    transposed = net.apply(Transpose(perm=(1, 2, 0)), net.input(8, 6, 16))
    mean = net.apply(ReduceMean(), net.apply(Mul(), transposed, transposed), axes(2))
    net.graph.set_outputs({"y": net.apply(Sub(), transposed, mean)})
    infer(net.graph)
    compare(Sample(net.graph, net.feeds), emulated)


@needs_compiler
def test_few_channels_last_take_several_passes(emulated: CudaBackend) -> None:
    """Sums over pixels of channels-last images are far apart, whatever order was expected."""
    net = Net()
    image = net.apply(Conv(), net.input(1, 8, 40, 40), normal(32, 8, 1, 1))
    parts = net.graph.insert(Split(axis=1, num_outputs=2), [image], 2).outputs
    total = net.apply(Add(), *parts)
    net.graph.set_outputs({"y": net.apply(ReduceMean(), total, axes(2, 3))})
    infer(net.graph)
    assert FILE not in {launch.source.file for launch in launches(planned(net.graph))}
    compare(Sample(net.graph, net.feeds), emulated)


@needs_compiler
@pytest.mark.parametrize("fold", [ReduceSum, ReduceMax, ReduceLogSumExp])
def test_many_rows_are_read_in_wide_words(fold: type[Reduce], emulated: CudaBackend) -> None:
    """Sums of branches over all pixels (SKNet, ResNeSt), by more threads than a warp has."""
    net = Net()
    branches = [net.input(2, 14, 15, 32, dtype=float16) for _ in range(2)]
    net.graph.set_outputs({"y": net.apply(fold(), net.apply(Add(), *branches), axes(1, 2))})
    infer(net.graph)
    (launch,) = (each for each in launches(planned(net.graph)) if each.source.file == FILE)
    constants = dict(launch.source.constants)
    assert (constants["VECTOR"], constants["SHARES"]) == (8, 128)
    compare(Sample(net.graph, net.feeds), emulated, error=1e-3)


def test_many_rows_are_requested_at_once(cache: Path) -> None:
    """What several rows need is on its way before the first of them is combined."""
    net = Net()
    branches = [net.input(32, 56, 56, 64, dtype=float16) for _ in range(2)]
    net.graph.set_outputs({"y": net.apply(ReduceMean(), net.apply(Add(), *branches), axes(1, 2))})
    infer(net.graph)
    (launch,) = launches(planned(net.graph))
    ptx = OptimizedPtxCompiler(H200, cache).code(launch.source).decode()
    before, _, _ = ptx.partition("cvt.f32.f16")
    assert before.count("ld.global.v4") == 2 * dict(launch.source.constants)["AHEAD"] == 16


@needs_compiler
@pytest.mark.parametrize("along", [True, False], ids=["along", "across"])
def test_rows_that_are_not_full(
    along: bool, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of several rows at once, or vectors of a row, are those that there are."""
    monkeypatch.setattr(reduction_kernel, "FEW_BLOCKS", 0)
    net = Net()
    dims = (3, 7, 1100) if along else (3, 1100, 8)
    x = product(net, *dims)
    net.graph.set_outputs({"y": net.apply(ReduceMean(), x, axes(2 if along else 1))})
    infer(net.graph)
    (launch,) = (each for each in launches(planned(net.graph)) if each.source.file == FILE)
    assert dict(launch.source.constants)["AHEAD"] > 1
    compare(Sample(net.graph, net.feeds), emulated)
