"""Cumulative sums and products with the elementwise operators around them: one kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, float16, float32, float64, int32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.elementwise import Add, Cast, Exp, Log, Mul, Neg, Sigmoid, Sub
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.reduce import CumProd, CumSum
from tercet.runtime.ops.shape import Reshape

from .cubins import all_compile
from .dry import Net, launches, planned
from .emulator import needs_compiler
from .samples import Sample, compare, compare_one_kernel, sample_of

FILE = "reduce/scan_chain.cu"


def scan(net: Net, x: Value, axis: int, op: type[CumSum | CumProd] = CumSum, **how: int) -> Value:
    return net.apply(op(**how), x, np.array(axis, np.int64))


def gated(net: Net, dims: tuple[int, ...], axis: int, dtype: DType = float32) -> Value:
    """Write a gated recurrence as HGRN's: the sum of u exp(-l), times exp(l), l a sum itself."""
    gate, u = net.input(*dims, dtype=dtype), net.input(*dims, dtype=dtype)
    wide = [net.apply(Cast(to=float32), each) if dtype == float16 else each for each in (gate, u)]
    log = scan(net, net.apply(Log(), net.apply(Sigmoid(), wide[0])), axis)
    shrunk = net.apply(Mul(), wide[1], net.apply(Exp(), net.apply(Neg(), log)))
    total = net.apply(Mul(), scan(net, shrunk, axis), net.apply(Exp(), log))
    return net.apply(Cast(to=float16), total) if dtype == float16 else total


def transposed(net: Net) -> Value:
    """Sum chunks of steps, whose heads are transposed to the front, as linear attention does."""
    x = net.input(2, 12, 3, 8)
    chunks = net.apply(Reshape(), x, np.array([2, 2, 6, 3, 8]))
    return net.apply(Exp(), scan(net, net.apply(Transpose(perm=(0, 3, 1, 2, 4)), chunks), 3))


def shared(net: Net) -> Value:
    """Divide what is summed by its sum, both of a sum of a row and a column."""
    x = net.apply(Exp(), net.apply(Add(), net.input(5, 1, 40), net.input(12, 1)))
    return net.apply(Sub(), x, scan(net, x, 1, exclusive=1))


def products(net: Net) -> Value:
    x = net.input(4, 30, dtype=float64)
    return scan(net, scan(net, net.apply(Exp(), x), -1, CumProd, reverse=1), 1, reverse=1)


def integers(net: Net) -> Value:
    mask = net.input(3, 70, dtype=int32)
    return net.apply(Mul(), scan(net, mask, 1), mask)


BUILDS: dict[str, Callable[[Net], Value]] = {
    "beside": lambda net: gated(net, (3, 20, 35), 1),
    "beside, several tiles": lambda net: gated(net, (2, 150, 3), 1),
    "along": lambda net: gated(net, (5, 64), 1),
    "along, several warps": lambda net: gated(net, (3, 333), 1),
    "along, several tiles": lambda net: gated(net, (3, 1333), 1),
    "one warp": lambda net: gated(net, (2, 5, 7, 1), 2),
    "of 16 bits": lambda net: gated(net, (3, 24, 40), 1, float16),
    "of 16 bits, along": lambda net: gated(net, (4, 48), 1, float16),
    "transposed": transposed,
    "shared": shared,
    "products": products,
    "integers": integers,
}


def limit(name: str) -> float:
    """The error that a sample may have."""
    return 2e-3 if "16" in name else 5e-6


@needs_compiler
@pytest.mark.parametrize("name", BUILDS)
def test_one_kernel(name: str, emulated: CudaBackend) -> None:
    compare_one_kernel(BUILDS[name], FILE, emulated, limit(name))


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    plans = [launches(planned(sample_of(build).graph)) for build in BUILDS.values()]
    all_compile([launch.source for plan in plans for launch in plan], target, cache, {FILE})


def test_what_others_read_is_stored() -> None:
    """Nodes behind a scan whose sums are a result have kernels of their own."""
    net = Net()
    total = scan(net, net.apply(Exp(), net.input(3, 20, 35)), 1)
    net.graph.set_outputs({"total": total, "y": net.apply(Exp(), total)})
    infer(net.graph)
    first, second = launches(planned(net.graph))
    assert (first.file, "Exp+CumSum" in first.note) == (FILE, True)
    assert second.entry == "elementwise"


@needs_compiler
def test_an_output_in_front_of_a_scan_is_stored(emulated: CudaBackend) -> None:
    net = Net()
    negative = net.apply(Neg(), net.input(3, 40))
    total = scan(net, net.apply(Exp(), negative), 1)
    net.graph.set_outputs({"negative": negative, "y": total})
    compare(Sample(net.graph, net.feeds), emulated)


def test_few_long_lines_are_cut() -> None:
    net = Net()
    net.graph.set_outputs({"y": scan(net, net.apply(Exp(), net.input(2, 5000)), 1)})
    infer(net.graph)
    assert FILE not in {launch.file for launch in launches(planned(net.graph))}
