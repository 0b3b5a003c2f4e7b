"""A Softmax with elementwise nodes around it: one kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.elementwise import Add, Cast, Div, Log, Mul, Neg, Sub, Tanh, Where
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.norm import LogSoftmax, Softmax
from tercet.runtime.ops.reduce import ReduceMax, ReduceSum

from .cubins import all_compile
from .dry import Net, launches, planned
from .emulator import needs_compiler
from .samples import Sample, compare, compare_one_kernel, sample_of

FILE = "reduce/row_chain.cu"
#: Kernels that this module compiles.
COMPILES = {"reduce/row_chain.cu"}


def masked(net: Net, *dims: int, hidden: float = -np.inf) -> Value:
    """Scores of which some are hidden, divided by a number for each head."""
    mask = np.arange(dims[-1]) % 3 > 0
    scores = net.apply(Div(), net.input(*dims), np.full((dims[1], 1, 1), 3, np.float32))
    return net.apply(Softmax(), net.apply(Where(), mask, scores, np.array(hidden, np.float32)))


def weighted(net: Net, *dims: int) -> Value:
    """Weights of which some are 0 afterwards, and their greatest."""
    weights = net.apply(Mul(), net.apply(Softmax(), net.input(*dims)), net.input(*dims))
    most = net.apply(ReduceMax(keepdims=1), weights, np.array([-1]))
    return net.apply(Sub(), weights, most)


def cast(net: Net, *dims: int) -> Value:
    """Scores in 16 bits, to which float32 masks are added, and whose weights are in 16 bits."""
    scores = net.apply(Cast(to=float32), net.input(*dims, dtype=float16))
    weights = net.apply(Softmax(), net.apply(Add(), scores, net.input(dims[-1])))
    return net.apply(Cast(to=float16), weights)


def entropy(net: Net, *dims: int) -> Value:
    """A reduction of what a Softmax gives."""
    weights = net.apply(Softmax(), net.input(*dims))
    product = net.apply(Mul(), weights, net.apply(Log(), weights))
    return net.apply(Neg(), net.apply(ReduceSum(keepdims=0), product, np.array([-1])))


def twice(net: Net, *dims: int) -> Value:
    return net.apply(Softmax(), net.apply(Softmax(), net.input(*dims)))


def after(net: Net, op: Softmax | LogSoftmax, *dims: int, dtype: DType = float32) -> Value:
    """Attention pooling of Tanh, or logarithms of it."""
    return net.apply(op, net.apply(Tanh(), net.input(*dims, dtype=dtype)))


def transposed(net: Net) -> Value:
    """Rows that are read through a Transpose."""
    heads = net.apply(Transpose(perm=(0, 2, 1, 3)), net.input(2, 5, 3, 32))
    return net.apply(Softmax(), net.apply(Mul(), heads, net.input(3, 1, 1)))


BUILDS: dict[str, Callable[[Net], Value]] = {
    "masked": lambda net: masked(net, 2, 3, 7, 40),
    "masked by a number": lambda net: masked(net, 2, 3, 5, 33, hidden=-1e9),
    "long rows": lambda net: masked(net, 1, 2, 1, 4000),
    "weighted": lambda net: weighted(net, 3, 77),
    "of 16 bits to 16 bits": lambda net: cast(net, 5, 64),
    "entropy": lambda net: entropy(net, 9, 33),
    "casts on both sides": lambda net: net.apply(
        Cast(to=float16),
        net.apply(Softmax(), net.apply(Cast(to=float32), net.input(5, 64, dtype=float16))),
    ),
    "twice": lambda net: twice(net, 6, 10),
    "read in 16 bits": lambda net: net.apply(
        Mul(), net.apply(Softmax(), net.input(6, 24, dtype=float16)), np.array(3, np.float16)
    ),
    "of 16 bits": lambda net: after(net, Softmax(), 6, 96, dtype=float16),
    "of bfloat16": lambda net: after(net, Softmax(), 6, 96, dtype=bfloat16),
    "of 64 bits": lambda net: after(net, Softmax(), 6, 30, dtype=float64),
    "logarithms": lambda net: after(net, LogSoftmax(), 6, 30),
    "logarithms read in 16 bits": lambda net: net.apply(
        Mul(), net.apply(LogSoftmax(), net.input(6, 24, dtype=float16)), np.array(3, np.float16)
    ),
    "transposed": transposed,
}


def limit(name: str) -> float:
    """The error that a sample may have."""
    return 8e-3 if "bfloat" in name else 1e-3 if "16" in name or "casts" in name else 5e-6


@needs_compiler
@pytest.mark.parametrize("name", BUILDS)
def test_one_kernel(name: str, emulated: CudaBackend) -> None:
    compare_one_kernel(BUILDS[name], FILE, emulated, limit(name))


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    plans = [launches(planned(sample_of(build).graph)) for build in BUILDS.values()]
    all_compile([launch.source for plan in plans for launch in plan], target, cache, COMPILES)


@needs_compiler
def test_large_scores(emulated: CudaBackend) -> None:
    """The greatest element is subtracted before exponentials are computed."""
    net = Net()
    x = net.input(4, 30)
    net.feeds[x.name] = np.linspace(1e4, 1.0001e4, 120, dtype=np.float32).reshape(4, 30)
    net.graph.set_outputs({"y": net.apply(Softmax(), net.apply(Neg(), x))})
    infer(net.graph)
    compare(Sample(net.graph, net.feeds), emulated)


@needs_compiler
def test_rows_that_are_hidden_are_nan(emulated: CudaBackend) -> None:
    net = Net()
    hidden = np.where(np.arange(4)[:, None] % 2, 0, -np.inf).astype(np.float32)
    net.graph.set_outputs({"y": net.apply(Softmax(), net.apply(Add(), net.input(4, 30), hidden))})
    infer(net.graph)
    compare(Sample(net.graph, net.feeds), emulated)


@pytest.mark.parametrize(
    "build",
    [
        lambda net: net.apply(Softmax(), net.input(8, 40)),
        lambda net: net.apply(Cast(to=float16), net.apply(Softmax(), net.input(8, 40))),
        lambda net: after(net, Softmax(), 2, 16384),
        lambda net: after(net, Softmax(axis=1), 3, 50, 40),
        lambda net: net.apply(
            Softmax(),
            net.apply(
                Mul(),
                net.apply(MatMul(), net.input(64, 32), net.input(32, 64)),
                np.array(2, np.float32),
            ),
        ),
    ],
    ids=[
        "alone",
        "with a Cast",
        "rows that do not fit",
        "columns",
        "behind what multiplies already",
    ],
)
def test_other_kernels(build: Callable[[Net], Value]) -> None:
    assert FILE not in {launch.file for launch in launches(planned(sample_of(build).graph))}


def test_what_others_read_is_stored() -> None:
    """Scores that are also reduced by another row."""
    net = Net()
    scores = net.apply(Tanh(), net.input(6, 40))
    most = net.apply(ReduceMax(keepdims=0), scores, np.array([0]))
    net.graph.set_outputs({"y": net.apply(Softmax(), scores), "most": most})
    infer(net.graph)
    assert FILE not in {launch.file for launch in launches(planned(net.graph))}
