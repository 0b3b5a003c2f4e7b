"""Chains that share tensors: one kernel with several results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.codegen import shared_chains
from tercet.backends.cuda.codegen.shared_chains import SharedChain
from tercet.backends.cuda.recipe.launch import Launch, accessed_by
from tercet.backends.cuda.recipe.pattern import OperandOf
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ops.elementwise import (
    Add,
    Cast,
    Equal,
    Exp,
    Mul,
    Neg,
    Sigmoid,
    Sub,
    Tanh,
    Where,
)
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.reduce import ReduceMax

from .cubins import all_compile
from .dry import Net, files_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare, sample_of_graph

COMPILES = {"elementwise/shared.cu"}
(FILE,) = COMPILES
DIMS = (3, 20)


def gates(net: Net, dtype: DType = float32) -> Graph:
    """A state and a gate of it, both of which are read elsewhere; one operand is a column."""
    x, column = net.input(*DIMS, dtype=dtype), net.input(3, 1, dtype=dtype)
    state = net.apply(Tanh(), net.apply(Add(), x, column))
    gate = net.apply(Mul(), net.apply(Sigmoid(), state), x)
    return net.outputs(state, gate)


def statistics(net: Net) -> Graph:
    """A comparison of bools that two results need (TimesFM), and a product."""
    x, y = net.input(2, 5), net.input(2, 5)
    same = net.apply(Equal(), x, y)
    first = net.apply(Where(), same, x, net.apply(Neg(), y))
    second = net.apply(Where(), same, y, net.apply(Exp(), x))
    return net.outputs(first, second, net.apply(Cast(to=float16), net.apply(Mul(), first, second)))


def siblings(net: Net) -> Graph:
    """Two functions of what is read by a layer, too."""
    x = net.apply(Exp(), net.input(*DIMS))
    product = net.apply(MatMul(), x, normal(20, 8))
    return net.outputs(net.apply(Neg(), x), net.apply(Tanh(), x), product)


def both_types(net: Net) -> Graph:
    """Many elements that a sum reads in float32 and a layer in half precision."""
    wide = net.apply(Exp(), net.apply(Sub(), net.input(40, 1000), net.input(40, 1)))
    factor = net.apply(Mul(), net.input(1, 1000), net.input(1, 1))
    return net.outputs(wide, net.apply(Cast(to=float16), net.apply(Mul(), wide, factor)))


def odd_rows(net: Net) -> Graph:
    """Many elements in rows of an odd number, beside a column and a row."""
    x = net.input(40, 999)
    low = net.apply(Tanh(), net.apply(Add(), x, net.input(40, 1)))
    return net.outputs(low, net.apply(Mul(), low, net.input(999)))


GRAPHS: dict[str, Callable[[Net], Graph]] = {
    "gates": gates,
    "gates of 16 bits": lambda net: gates(net, float16),
    "statistics": statistics,
    "siblings": siblings,
    "both types": both_types,
    "odd rows": odd_rows,
}


def samples() -> list[Sample]:
    """Return what runs under compute-sanitizer on a GPU; see tests/gpu/test_cuda_samples.py."""
    return [sample_of_graph(build) for build in GRAPHS.values()]


@pytest.mark.parametrize("name", GRAPHS)
def test_one_kernel(name: str) -> None:
    found = files_of(GRAPHS[name](Net(1)))
    assert found.count(FILE) == 1
    assert not any(file.startswith("elementwise/") and file != FILE for file in found)


def test_a_group_whose_kernel_forgets_a_result_is_taken_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = shared_chains.shared_chain

    def forgetful(found: SharedChain, operand: OperandOf) -> Launch | str:
        return whole(replace(found, results=found.results[:1]), operand)

    monkeypatch.setattr(shared_chains, "shared_chain", forgetful)
    graph = gates(Net(1))
    found = tuple(launches(planned(graph)))
    assert not any(launch.file == FILE for launch in found)
    stored = {value.name for value in accessed_by(found)}
    assert {value.name for value in graph.outputs.values()} <= stored


@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
def test_results(name: str, emulated: CudaBackend) -> None:
    compare(sample_of_graph(GRAPHS[name]), emulated, error=2e-3 if "16" in name else 1e-5)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    plans = [launches(planned(build(Net(1)))) for build in GRAPHS.values()]
    sources = [launch.source for plan in plans for launch in plan if launch.source.file == FILE]
    all_compile(sources, target, cache, COMPILES)


@needs_compiler
def test_no_kernel_waits_for_itself(emulated: CudaBackend) -> None:
    """A Softmax is between a tensor and the sum with it: they are two kernels."""
    net = Net(1)
    x = net.apply(Exp(), net.input(*DIMS))
    graph = net.outputs(net.apply(Add(), net.apply(Softmax(axis=-1), x), x))
    assert FILE not in files_of(graph)
    compare(Sample(graph, net.feeds), emulated)


@needs_compiler
def test_kernels_do_not_wait_for_each_other(emulated: CudaBackend) -> None:
    """Either of two pairs could be a kernel, but not both: each has what the other one reads."""
    net = Net(1)
    x, y = net.input(*DIMS), net.input(*DIMS)
    a, p = net.apply(Exp(), x), net.apply(Sigmoid(), y)
    tops = [net.apply(ReduceMax(), each, np.array([1], np.int64)) for each in (a, p)]
    b = net.apply(Mul(), a, tops[1])
    q = net.apply(Mul(), p, tops[0])
    graph = net.outputs(b, q)
    assert files_of(graph).count(FILE) <= 1
    compare(Sample(graph, net.feeds), emulated)


def test_threads_of_many_elements_have_words() -> None:
    graph = both_types(Net(1))
    (launch,) = (each for each in launches(planned(graph)) if each.source.file == FILE)
    constants = dict(launch.constants)
    assert (constants["VECTOR"], constants["OUTER0"], constants["OUTER1"]) == (4, 4, 4)
    (launch,) = (e for e in launches(planned(odd_rows(Net(1)))) if e.source.file == FILE)
    assert dict(launch.constants)["VECTOR"] == 1


@needs_compiler
@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed: int, emulated: CudaBackend) -> None:
    """Of elementwise nodes, with reductions between some of them."""
    rng, net = np.random.default_rng(seed), Net(1)
    values = [net.input(*DIMS) for _ in range(3)]
    for _ in range(30):
        a, b = (values[int(n)] for n in rng.integers(max(0, len(values) - 8), len(values), 2))
        kind = int(rng.integers(6))
        if kind == 0:
            values.append(net.apply(Softmax(axis=-1), a))
        elif kind == 1:
            top = net.apply(ReduceMax(), a, np.array([1], np.int64))
            values.append(net.apply(Add(), b, top))
        else:
            made = net.apply((Add(), Mul())[kind % 2], a, b)
            values.append(net.apply(Tanh(), made))
    unread = [value for value in values[3:] if not value.consumers]
    graph = net.outputs(*unread, values[int(rng.integers(3, len(values)))])
    compare(Sample(graph, net.feeds), emulated, error=1e-5)
