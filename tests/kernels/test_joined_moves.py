"""Concats of parts that nodes move or compute, as one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Cast, Div, Mul, Relu, Sub
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Expand, Slice, Transpose
from tercet.runtime.ops.shape import Reshape

from .cubins import all_compile
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare

COMPILES = {"elementwise/moved.cu"}

if TYPE_CHECKING:
    from pathlib import Path

    from tercet.backends.cuda.backend import CudaBackend

Built = tuple[Graph, Value]


def started(*shapes: tuple[int, ...]) -> tuple[Graph, list[Value]]:
    graph = Graph("joined")
    return graph, [graph.add_input(f"x{i}", TensorType(float16, s)) for i, s in enumerate(shapes)]


def apply(graph: Graph, op: Op, *inputs: Value | np.ndarray | list[int]) -> Value:
    given = (np.asarray(v) if isinstance(v, list) else v for v in inputs)
    values = [graph.constant(v, "") if isinstance(v, np.ndarray) else v for v in given]
    y = graph.insert(op, values).output
    infer(graph)
    return y


def tokens() -> Built:
    """A token for each of four frames beside their pixels, which came in another order."""
    g, (token, pixels) = started((2, 1, 16), (2, 6 * 4, 16))
    one = apply(g, Reshape(), apply(g, Expand(), token, [2, 4, 16]), [8, 1, 16])
    grid = apply(g, Transpose(perm=(0, 2, 1, 3)), apply(g, Reshape(), pixels, [2, 6, 4, 16]))
    rows = apply(g, Reshape(), grid, [8, 6, 16])
    return g, apply(g, Concat(axis=1), one, rows)


def neighbours() -> Built:
    """Differences beside what they are differences from, as numbers of another type."""
    g, (near, point) = started((2, 5, 3, 8), (2, 5, 1, 8))
    far = apply(g, Div(), apply(g, Sub(), near, point), np.array([2], np.float16))
    same = apply(g, Expand(), point, [2, 5, 3, 8])
    return g, apply(g, Concat(axis=-1), far, same)


def odd() -> Built:
    """Parts of three and five columns: each thread has one."""
    g, (near, point) = started((4, 6, 5), (4, 1, 3))
    wide = apply(g, Relu(), near)
    return g, apply(g, Concat(axis=2), apply(g, Expand(), point, [4, 6, 3]), wide)


def chosen() -> Built:
    """Rows in another order behind a constant one, and behind those a tensor as it is."""
    g, (x, z) = started((3, 4, 8), (3, 2, 8))
    rows = apply(g, Gather(axis=1), x, [3, 1, 0])
    fixed = normal(3, 1, 8).astype(np.float16)
    return g, apply(g, Concat(axis=1), fixed, rows, z)


def computed() -> Built:
    """Sums, one of what is moved, in float32."""
    g, (x, z) = started((2, 4, 6, 8), (2, 1, 8))
    turned = apply(g, Transpose(perm=(0, 2, 1, 3)), x)
    rows = apply(g, Reshape(), turned, [2, 24, 8])
    both = [apply(g, Cast(to=float32), apply(g, Add(), v, v)) for v in (rows, z)]
    return g, apply(g, Concat(axis=1), *both)


def scaled() -> Built:
    """A computed factor of all elements of a part, which is read before these."""
    g, (x, z, factor) = started((2, 4, 8), (4, 2, 8), ())
    turned = apply(g, Transpose(perm=(1, 0, 2)), z)
    return g, apply(g, Concat(axis=1), turned, apply(g, Mul(), factor, x))


BUILDS = {each.__name__: each for each in (tokens, neighbours, odd, chosen, computed, scaled)}


def made(build: Callable[[], Built]) -> Graph:
    graph, y = build()
    graph.set_outputs({"y": y})
    return graph


@pytest.mark.parametrize("name", BUILDS)
def test_one_kernel(name: str) -> None:
    assert entries_of(made(BUILDS[name])) == ["moved"]


@needs_compiler
@pytest.mark.parametrize("name", BUILDS)
def test_results(name: str, emulated: CudaBackend) -> None:
    graph = made(BUILDS[name])
    feeds = {v.name: normal(*v.tensor.dims).astype(np.float16) for v in graph.inputs}
    compare(Sample(graph, feeds), emulated)


@pytest.mark.parametrize(("name", "vector"), [("tokens", 8), ("neighbours", 8), ("odd", 1)])
def test_adjacent_elements_of_a_part_are_read_at_once(name: str, vector: int) -> None:
    (launch,) = launches(planned(made(BUILDS[name])))
    assert dict(launch.constants)["VECTOR"] == vector


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=DryCompiler(target))
    for build in BUILDS.values():
        entries_of(made(build), device)
    all_compile(device.compiler.sources, target, cache, COMPILES)


def images() -> Built:
    """Channels of images: the layer stores its own where they are."""
    g, (x, z) = started((2, 8, 4, 4), (2, 8, 1, 1))
    wide = apply(g, Expand(), z, [2, 8, 4, 4])
    weights = normal(8, 8, 1, 1).astype(np.float16)
    return g, apply(g, Concat(axis=1), wide, apply(g, Conv(), x, weights))


def activated() -> Built:
    """A product stores what follows it."""
    g, (x, z) = started((4, 6, 16), (4, 1, 16))
    y = apply(g, Relu(), apply(g, MatMul(), x, normal(16, 16).astype(np.float16)))
    return g, apply(g, Concat(axis=1), apply(g, Expand(), z, [4, 3, 16]), y)


def many() -> Built:
    """Rows of so many columns that separate kernels take less time."""
    g, (near, point) = started((64, 128, 8, 16), (64, 128, 1, 16))
    same = apply(g, Expand(), point, [64, 128, 8, 16])
    return g, apply(g, Concat(axis=-1), apply(g, Sub(), near, point), same)


def in_place() -> Built:
    """Nothing is moved but by the Concat."""
    g, (x, z) = started((4, 6, 16), (4, 3, 16))
    return g, apply(g, Concat(axis=1), apply(g, Slice(), x, [2], [4], [1]), z)


def beside_a_token() -> Built:
    """A sum of rows behind the first one of a tensor (CoaT), which is read where it is."""
    g, (x, z) = started((4, 6, 16), (4, 6, 16))
    y = apply(g, MatMul(), x, normal(16, 32).astype(np.float16))
    first = apply(g, Slice(), apply(g, Reshape(), y, [4, 192]), [0], [16], [1])
    token = apply(g, Reshape(), first, [4, 1, 16])
    return g, apply(g, Concat(axis=1), token, apply(g, Add(), z, z))


@needs_compiler
def test_a_slice_is_read_in_place(emulated: CudaBackend) -> None:
    graph = made(beside_a_token)
    entries = entries_of(graph)
    assert len(entries) == 2
    assert entries[-1] == "moved"
    feeds = {v.name: normal(*v.tensor.dims).astype(np.float16) for v in graph.inputs}
    compare(Sample(graph, feeds), emulated)


def test_what_layers_compute_is_no_part_of_it() -> None:
    entries = entries_of(made(activated))
    assert len(entries) == 2
    assert entries[-1] == "moved"


@pytest.mark.parametrize("build", [images, many, in_place])
def test_others_are_joined_as_before(build: Callable[[], Built]) -> None:
    assert "concat" in entries_of(made(build))
