"""Rows that are reduced more than once, or used again after they are reduced: one kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.codegen import row_kernel
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import (
    Abs,
    Add,
    Cast,
    Div,
    Exp,
    Mul,
    Reciprocal,
    Relu,
    Round,
    Sqrt,
    Sub,
)
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.reduce import (
    ReduceL1,
    ReduceLogSumExp,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceSum,
)

from .cubins import all_compile
from .dry import Net, launches, planned
from .emulator import needs_compiler
from .samples import Sample, compare, compare_one_kernel, sample_of

FILE = "reduce/row_chain.cu"
#: Kernels that this module compiles.
COMPILES = {"reduce/row_chain.cu"}


def over(net: Net, op: type, x: Value, *axes: int) -> Value:
    return net.apply(op(keepdims=1), x, np.array(axes, np.int64))


def by_deviation(net: Net, x: Value, *axes: int) -> Value:
    """Divide rows by their standard deviation, without subtracting the mean."""
    wide = x.tensor.dtype in (float16, bfloat16)
    apart = net.apply(Sub(), x, over(net, ReduceMean, x, *axes))
    apart = net.apply(Cast(to=float32), apart) if wide else apart
    square = over(net, ReduceMean, net.apply(Mul(), apart, apart), *axes)
    epsilon = np.array(1e-5, np.float64 if x.tensor.dtype == float64 else np.float32)
    by = net.apply(Reciprocal(), net.apply(Sqrt(), net.apply(Add(), square, epsilon)))
    return net.apply(Mul(), x, net.apply(Cast(to=x.tensor.dtype), by) if wide else by)


def squared_relu(net: Net, *dims: int) -> Value:
    """Weights of attention that are squares instead of exponentials, divided by a root."""
    square = net.apply(Relu(), net.input(*dims))
    square = net.apply(Mul(), square, square)
    total = net.apply(Sqrt(), over(net, ReduceSum, square, -1))
    return net.apply(Div(), square, net.apply(Add(), total, np.array(1e-6, np.float32)))


def quantized(net: Net, *dims: int) -> Value:
    """Round rows to 255 steps between their least and greatest element."""
    x = net.input(*dims)
    most, least = over(net, ReduceMax, x, -1), over(net, ReduceMin, x, -1)
    step = net.apply(Div(), net.apply(Sub(), most, least), np.array(255, np.float32))
    steps = net.apply(Round(), net.apply(Div(), net.apply(Sub(), x, least), step))
    return net.apply(Add(), net.apply(Mul(), steps, step), least)


def spread(net: Net) -> Value:
    """One number of each row, of two reductions."""
    x = net.input(7, 50)
    return net.apply(Sub(), over(net, ReduceMax, x, -1), over(net, ReduceMin, x, -1))


def entropy(net: Net) -> Value:
    """A reduction of what another reduction of the row is part of."""
    x = net.input(9, 33)
    log = net.apply(Sub(), x, over(net, ReduceLogSumExp, x, -1))
    return over(net, ReduceSum, net.apply(Mul(), net.apply(Exp(), log), log), -1)


def exponents(net: Net) -> Value:
    x = net.input(5, 300)
    return over(
        net, ReduceSum, net.apply(Exp(), net.apply(Sub(), x, over(net, ReduceMax, x, -1))), -1
    )


def beside_others(net: Net) -> Value:
    """Rows with factors per column and per row, and a residual."""
    x, residual = net.input(2, 6, 40), net.input(2, 6, 40)
    total = net.apply(Add(), x, residual)
    scaled = net.apply(Mul(), by_deviation(net, total, -1), net.input(40))
    return net.apply(Add(), net.apply(Mul(), scaled, net.input(2, 6, 1)), total)


def without_axes(net: Net) -> Value:
    """Square roots of variances along an axis that results do not have."""
    x = net.input(3, 30, 4)
    apart = net.apply(Sub(), x, over(net, ReduceMean, x, 1))
    square = net.apply(ReduceMean(keepdims=0), net.apply(Mul(), apart, apart), np.array([1]))
    return net.apply(Sqrt(), net.apply(Add(), square, np.array(1e-5, np.float32)))


def transposed(net: Net) -> Value:
    """Rows that are read through a Transpose."""
    heads = net.apply(Transpose(perm=(0, 2, 1, 3)), net.input(2, 5, 3, 32))
    lengths = net.apply(Add(), over(net, ReduceL1, heads, -1), np.array(1, np.float32))
    return net.apply(Div(), net.apply(Abs(), heads), lengths)


def of_images(net: Net) -> Value:
    """Channels of an image that a convolution has stored channels-last."""
    w = (np.arange(16 * 8 * 9, dtype=np.float32).reshape(16, 8, 3, 3) % 7 - 3) / 30
    image = net.apply(Conv(pads=(1, 1, 1, 1)), net.input(1, 8, 6, 6), w)
    return by_deviation(net, image, 1)


BUILDS: dict[str, Callable[[Net], Value]] = {
    "one row": lambda net: by_deviation(net, net.input(1, 100), -1),
    "short rows": lambda net: by_deviation(net, net.input(700, 4), -1),
    "odd rows": lambda net: by_deviation(net, net.input(5, 77), -1),
    "several warps": lambda net: by_deviation(net, net.input(3, 2048), -1),
    "a block": lambda net: by_deviation(net, net.input(2, 8192), -1),
    "of 16 bits": lambda net: by_deviation(net, net.input(6, 96, dtype=float16), -1),
    "of bfloat16": lambda net: by_deviation(net, net.input(6, 96, dtype=bfloat16), -1),
    "of 64 bits": lambda net: by_deviation(net, net.input(6, 30, dtype=float64), -1),
    "columns": lambda net: by_deviation(net, net.input(3, 50, 40), 1),
    "adjacent columns": lambda net: by_deviation(net, net.input(2, 9, 4096), 1),
    "adjacent columns of 16 bits": lambda net: by_deviation(
        net, net.input(9, 16384, dtype=float16), 0
    ),
    "few columns": lambda net: by_deviation(net, net.input(300, 3), 0),
    "two axes": lambda net: by_deviation(net, net.input(3, 10, 4, 12), 1, 3),
    "squared": lambda net: squared_relu(net, 2, 12, 128),
    "quantized": lambda net: quantized(net, 20, 64),
    "one result": spread,
    "entropy": entropy,
    "exponents": exponents,
    "beside others": beside_others,
    "without axes": without_axes,
    "transposed": transposed,
}


def limit(name: str) -> float:
    """The error that a sample may have."""
    return 8e-3 if "bfloat" in name else 1e-3 if "16" in name else 5e-6


@needs_compiler
@pytest.mark.parametrize("name", BUILDS)
def test_one_kernel(name: str, emulated: CudaBackend) -> None:
    compare_one_kernel(BUILDS[name], FILE, emulated, limit(name))


@needs_compiler
def test_channels_of_an_image(emulated: CudaBackend) -> None:
    sample = sample_of(of_images)
    assert [launch.file for launch in launches(planned(sample.graph))][-1] == FILE
    compare(sample, emulated)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    plans = [launches(planned(sample_of(build).graph)) for build in BUILDS.values()]
    all_compile([launch.source for plan in plans for launch in plan], target, cache, COMPILES)


@pytest.mark.parametrize(
    "build",
    [
        lambda net: over(net, ReduceMean, net.apply(Exp(), net.input(8, 40)), -1),
        lambda net: by_deviation(net, net.input(2, 16384), -1),
    ],
    ids=["rows that are read once", "rows that do not fit"],
)
def test_other_kernels(build: Callable[[Net], Value]) -> None:
    assert FILE not in {launch.file for launch in launches(planned(sample_of(build).graph))}


@needs_compiler
@pytest.mark.parametrize(("count", "shares"), [(9, 1), (16, 1), (40, 4)])
def test_short_rows_have_a_thread_each(
    count: int, shares: int, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of the windows of outlooking attention (VOLO), where there are many."""
    monkeypatch.setattr(row_kernel, "ENOUGH", 1)
    sample = sample_of(lambda net: squared_relu(net, 2, 70, count))
    (launch,) = launches(planned(sample.graph))
    assert launch.file == FILE
    assert dict(launch.constants)["SHARES"] == shares
    compare(sample, emulated)


@needs_compiler
def test_what_others_read_is_stored(emulated: CudaBackend) -> None:
    """A reduction that is a result as well ends a kernel."""
    net = Net()
    x = net.input(6, 40)
    total = over(net, ReduceSum, net.apply(Exp(), x), -1)
    net.graph.set_outputs({"total": total, "y": net.apply(Div(), x, total)})
    infer(net.graph)
    assert FILE not in {launch.file for launch in launches(planned(net.graph))}
    compare(Sample(net.graph, net.feeds), emulated)


@needs_compiler
def test_rows_that_are_a_result_themselves_are_moved_before(emulated: CudaBackend) -> None:
    net = Net()
    heads = net.apply(Transpose(perm=(0, 2, 1, 3)), net.apply(Exp(), net.input(2, 5, 3, 32)))
    y = net.apply(Sub(), heads, over(net, ReduceMean, heads, -1))
    net.graph.set_outputs({"heads": heads, "y": y})
    infer(net.graph)
    assert FILE in {launch.file for launch in launches(planned(net.graph))}
    compare(Sample(net.graph, net.feeds), emulated)


def several(net: Net) -> dict[str, Value]:
    """Rows in two types, and two numbers of each."""
    x = net.input(5, 48, dtype=float16)
    wide = net.apply(Cast(to=float32), x)
    most, least = over(net, ReduceMax, wide, -1), over(net, ReduceMin, wide, -1)
    exact = net.apply(Div(), net.apply(Sub(), wide, least), net.apply(Sub(), most, least))
    rounded = net.apply(Cast(to=float16), exact)
    return {"most": most, "least": least, "exact": exact, "rounded": rounded}


@needs_compiler
def test_several_results(emulated: CudaBackend) -> None:
    net = Net()
    net.graph.set_outputs(several(net))
    infer(net.graph)
    (launch,) = launches(planned(net.graph))
    assert launch.file == FILE
    compare(Sample(net.graph, net.feeds), emulated, error=1e-3)


@needs_compiler
def test_reductions_of_the_same_rows(emulated: CudaBackend) -> None:
    net = Net()
    x = net.apply(Exp(), net.input(4, 12, 10))
    kinds = (ReduceMean, ReduceMax, ReduceMin)
    net.graph.set_outputs({kind.__name__: over(net, kind, x, 1) for kind in kinds})
    infer(net.graph)
    (launch,) = launches(planned(net.graph))
    assert launch.file == FILE
    compare(Sample(net.graph, net.feeds), emulated)


@needs_compiler
def test_numbers_without_axes_are_broadcast_to_columns(emulated: CudaBackend) -> None:
    """Of as many rows as columns, numbers of rows then are at the places of columns."""
    net = Net()
    x = net.input(16, 16)
    least = net.apply(ReduceMin(keepdims=0), x, np.array([-1]))
    scaled = net.apply(Div(), x, over(net, ReduceSum, net.apply(Exp(), x), -1))
    net.graph.set_outputs({"y": net.apply(Add(), scaled, least)})
    infer(net.graph)
    assert len(launches(planned(net.graph))) == 2
    compare(Sample(net.graph, net.feeds), emulated)


def test_results_that_wait_for_each_other_are_apart() -> None:
    """What a reduction leads to, through another kernel, is not in the kernel of that reduction."""
    net = Net()
    x = net.input(16, 16)
    total = over(net, ReduceSum, x, -1)
    product = net.apply(MatMul(), net.apply(Div(), x, total), net.input(16, 16))
    net.graph.set_outputs({"y": net.apply(Add(), product, over(net, ReduceMax, product, -1))})
    infer(net.graph)
    found = [launch.file for launch in launches(planned(net.graph))]
    assert found.count(FILE) == 1
    assert len(found) == 3
