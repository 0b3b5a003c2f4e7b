"""Chains of nodes that only move elements: what they do as one function, and as one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.codegen.moves import movement, moves
from tercet.backends.cuda.recipe.operands import Tensor
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int64,
)
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Exp, Mul, Not, Relu
from tercet.runtime.ops.gather import Gather, GatherElements
from tercet.runtime.ops.movement import Expand, Pad, Slice, Tile, Transpose
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.plan.format import Format

from .cubins import all_compile
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare

COMPILES = {"elementwise/moved.cu"}

if TYPE_CHECKING:
    from pathlib import Path

    from tercet.backends.cuda.backend import CudaBackend


class Chain:
    """A graph that moves elements of ``x``."""

    def __init__(self, *shape: int, dtype: DType = float16) -> None:
        self.graph = Graph("moves")
        self.value = self.graph.add_input("x", TensorType(dtype, shape))

    def add(self, op: Op, *numbers: object) -> Chain:
        constants = [self.graph.constant(np.asarray(n, np.int64), "") for n in numbers]
        self.value = self.graph.insert(op, [self.value, *constants]).output
        infer(self.graph)
        return self

    @property
    def dims(self) -> tuple[int, ...]:
        return self.value.tensor.dims

    def reshape(self, *dims: int) -> Chain:
        return self.add(Reshape(), dims)

    def transpose(self, *perm: int) -> Chain:
        return self.add(Transpose(perm=perm))

    def gather(self, index: object, axis: int) -> Chain:
        return self.add(Gather(axis=axis), index)

    def pad(self, *amounts: int) -> Chain:
        return self.add(Pad(), amounts)

    def slice(self, begin: int, end: int, axis: int, step: int = 1) -> Chain:
        return self.add(Slice(), [begin], [end], [axis], [step])


def halo(*, channels_last: bool = False) -> Chain:
    """Windows of an image that overlap, as heads of an attention (HaloNet)."""
    window = np.arange(2)[:, None] * 4 + np.arange(6)
    chain = Chain(2, 32, 8, 8).pad(0, 0, 1, 1, 0, 0, 1, 1)
    chain.gather(window, 2).transpose(0, 1, 2, 4, 3).gather(window, 3).transpose(0, 1, 2, 4, 5, 3)
    chain.reshape(4, 16, 4, 36)
    return chain.transpose(0, 2, 3, 1) if channels_last else chain


def skewed() -> Chain:
    """Scores by relative position as scores by position."""
    chain = Chain(6, 5, 9).pad(0, 0, 0, 0, 0, 1).reshape(6, 50).pad(0, 0, 0, 4).reshape(6, 6, 9)
    return chain.slice(0, 5, 1).slice(4, 9, 2)


def sheared(size: int = 8) -> Chain:
    """Scores by relative position as scores by position: places are linear in the positions."""
    chain = Chain(6, size, 2 * size - 1).pad(0, 0, 0, 0, 0, 1).reshape(6, 2 * size * size)
    chain.slice(0, size * (2 * size - 1), 1).reshape(6, size, 2 * size - 1)
    return chain.slice(size - 1, 2 * size - 1, 2)


def repeated() -> Chain:
    chain = skewed().reshape(2, 3, 5, 1, 5).add(Expand(), [2, 3, 5, 4, 5])
    return chain.transpose(0, 1, 2, 4, 3)


def strided() -> Chain:
    """Every second row and column of images, selected one by one."""
    return Chain(2, 8, 6, 6).slice(0, 6, 2, 2).slice(5, -7, 3, -2)


def tiled() -> Chain:
    return Chain(3, 8).add(Tile(), [2, 3]).gather(-1, 0)


def single() -> Chain:
    """One element, without axes, that is repeated again."""
    return Chain(5).gather(2, 0).add(Expand(), [3, 8]).slice(0, 2, 0)


def nothing() -> Chain:
    """What is left when nothing is selected: zeros."""
    return Chain(5, 8).slice(3, 3, 0).pad(1, 0, 2, 0).slice(0, 3, 0, 2)


def transposed() -> Chain:
    """One Transpose is left to its kernel."""
    return Chain(2, 5, 8).transpose(0, 2, 1)


CHAINS: dict[str, tuple[Callable[[], Chain], list[str]]] = {
    "halo": (halo, ["moved"]),
    "halo heads": (lambda: halo(channels_last=True), ["moved"]),
    "skewed": (skewed, ["moved"]),
    "sheared": (sheared, ["moved"]),
    "repeated": (repeated, ["moved"]),
    "strided": (strided, ["moved"]),
    "tiled": (tiled, ["moved"]),
    "single": (single, ["moved"]),
    "nothing": (nothing, ["pad", "copy_strided"]),
    "transposed": (transposed, ["transpose"]),
}


def graph_of(name: str) -> Graph:
    chain = CHAINS[name][0]()
    chain.graph.set_outputs({"y": chain.value})
    return chain.graph


@pytest.mark.parametrize("name", CHAINS)
def test_kernels(name: str) -> None:
    assert entries_of(graph_of(name)) == CHAINS[name][1]


@needs_compiler
@pytest.mark.parametrize("name", CHAINS)
def test_results(name: str, emulated: CudaBackend) -> None:
    graph = graph_of(name)
    feeds = {"x": normal(*graph.inputs[0].tensor.dims).astype(np.float16)}
    compare(Sample(graph, feeds), emulated)


def test_linear_places_need_no_table() -> None:
    """Threads compute several adjacent elements, which are read in parts that are aligned."""
    (launch,) = launches(planned(graph_of("sheared")))
    constants = dict(launch.constants)
    assert not constants["TABLED0"]
    assert (constants["VECTOR"], constants["INNER0"]) == (4, 1)
    graph = sheared(8).graph
    found = movement(graph.nodes)
    assert found is not None
    walk = found.walk(Tensor(found.x))
    assert (walk.origin, walk.strides[-2:], walk.table) == (7, (14, 1), None)


def test_a_table_has_only_what_is_not_linear() -> None:
    """Rows of patches with a row of zeros in front: places of rows, and the pixels of a patch."""
    chain = Chain(2, 3, 8, 12).add(Reshape(), [2, 3, 2, 4, 3, 4]).transpose(0, 2, 4, 1, 3, 5)
    graph = chain.add(Reshape(), [2, 6, 48]).add(Pad(), [0, 1, 0, 0, 0, 0]).graph
    found = movement(graph.nodes)
    assert found is not None
    walk = found.walk(Tensor(found.x))
    assert walk.table is not None
    assert walk.table.tolist() == [-1, 0, 4, 8, 48, 52, 56]
    assert walk.strides[-3:] == (96, 12, 1)
    graph.set_outputs({"y": chain.value})
    (launch,) = launches(planned(graph))
    constants = dict(launch.constants)
    assert (constants["VECTOR"], constants["INNER0"]) == (4, 4)


# ── what reads them ──────────────────────────────────────────────────────────────────────────────


def summed(graph: Graph, *values: Value) -> Graph:
    """Return the sum of values after Relu."""
    total = values[0]
    for value in values[1:]:
        total = graph.insert(Add(), [total, value]).output
    graph.set_outputs({"y": graph.insert(Relu(), [total]).output})
    infer(graph)
    return graph


def positions() -> Graph:
    """Scores of rows and columns by relative position, repeated and added (HaloNet, BoTNet)."""
    chain = repeated()
    first = chain.value
    chain.value = chain.graph.inputs[0]
    chain.pad(0, 0, 0, 0, 0, 1).reshape(6, 50).slice(0, 45, 1).reshape(6, 9, 5).slice(0, 5, 1)
    chain.reshape(2, 3, 1, 5, 5).add(Expand(), [2, 3, 4, 5, 5]).transpose(0, 1, 3, 4, 2)
    return summed(chain.graph, first, chain.value)


def selected() -> Graph:
    """A sum of some channels."""
    chain, values = Chain(2, 6, 5, 8), list[Value]()
    for channel in (0, 2, -1):
        chain.value = chain.graph.inputs[0]
        values.append(chain.gather(channel, 1).value)
    return summed(chain.graph, *values)


def masked(dtype: DType) -> Graph:
    """Padded elements of any dtype, compared with a part of others."""
    chain = Chain(2, 3, 6, dtype=dtype).pad(0, 1, 0, 0, 0, 0).slice(0, 2, 1).gather([5, 0, 3], 2)
    other = chain.graph.insert(Not() if dtype == bool_ else Cast(to=bool_), [chain.value]).output
    chain.graph.set_outputs({"y": other})
    infer(chain.graph)
    return chain.graph


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_all_dtypes_compile(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=DryCompiler(target))
    for dtype in (bool_, int8, int64, float16, bfloat16, float32, float64):
        assert entries_of(masked(dtype), device) == ["moved"]
    all_compile(device.compiler.sources, target, cache, COMPILES)


def last() -> Graph:
    """Elements that are far apart, multiplied by a constant along the axis before."""
    chain = Chain(3, 4, 5, 6).gather(2, 3)
    factors = chain.graph.constant(normal(4, 1).astype(float16), "")
    return summed(chain.graph, chain.graph.insert(Mul(), [chain.value, factors]).output)


def disentangled() -> Graph:
    """Scores of positions relative to queries, and to keys (DeBERTa)."""
    chain, values = Chain(6, 5, 16), list[Value]()
    for step, perm in ((1, (0, 1, 2)), (-1, (0, 2, 1))):
        chain.value = chain.graph.inputs[0]
        near = 8 + step * (np.arange(5)[:, None] - np.arange(5))
        chain.add(GatherElements(axis=-1), np.broadcast_to(near, (6, 5, 5))).transpose(*perm)
        values.append(chain.value)
    return summed(chain.graph, *values)


def decomposed() -> Graph:
    """Scores of rows and of columns, as those of pixels (MViTv2)."""
    chain, values = Chain(5, 2, 4, 6), list[Value]()
    for shape in ((2, 5, 4, 6, 1), (2, 5, 4, 1, 6)):
        chain.value = chain.graph.inputs[0]
        values.append(chain.transpose(1, 0, 2, 3).reshape(*shape).value)
    return summed(chain.graph, *values)


def decayed() -> Graph:
    """A decay of each row: columns of longer rows, as a column, whose exponentials are repeated."""
    chain = Chain(3, 4, 12).slice(4, 8, 2).reshape(3, 4, 4, 1)
    decay = chain.graph.insert(Exp(), [chain.value]).output
    state = chain.graph.constant(normal(4, 5).astype(float16), "")
    return summed(chain.graph, chain.graph.insert(Mul(), [decay, state]).output)


def unaligned() -> Graph:
    """Columns of a layer, some of which start between words: these are no views."""
    chain, values = Chain(3, 5, 16), list[Value]()
    layer = chain.graph.insert(Exp(), [chain.value]).output
    infer(chain.graph)
    for first in (0, 3):
        chain.value = layer
        values.append(chain.slice(first, first + 8, 2).value)
    return summed(chain.graph, *values)


def splines() -> Graph:
    """Neighbours along rows that views made, as B-splines of KANs: no channels, which are last."""
    chain = Chain(1, 64).reshape(1, 64, 1)
    knots = chain.graph.constant(normal(64, 11).astype(float16), "")
    layer = chain.graph.insert(Mul(), [chain.value, knots]).output
    infer(chain.graph)
    values = list[Value]()
    for first in (0, 1):
        chain.value = layer
        values.append(chain.slice(first, first + 10, 2).value)
    return summed(chain.graph, *values)


def heads() -> Graph:
    """All tokens of heads but the first, beside rows that become heads (CoaT); all are read, too.

    Tensors of four axes, but no images, whose order other nodes might choose.
    """
    chain = Chain(6, 104).slice(0, 96, 1).reshape(2, 12, 3, 8).transpose(0, 2, 1, 3)
    other, chain.value = chain.value, chain.graph.inputs[0]
    whole = chain.reshape(2, 3, 13, 8).value
    graph = summed(chain.graph, chain.slice(1, 13, 2).value, other)
    graph.set_outputs({**graph.outputs, "z": graph.insert(Exp(), [whole]).output})
    infer(graph)
    return graph


def several(count: int) -> Graph:
    """A function of many tensors of few elements, such as running statistics (TimesFM)."""
    graph, total = Graph("several"), None
    for i in range(count):
        x = graph.add_input(f"x{i}", TensorType(float32, (2, 1)))
        part = graph.insert(Exp(), [x]).output
        total = part if total is None else graph.insert(Add(), [total, part]).output
    assert total is not None
    graph.set_outputs({"y": total})
    infer(graph)
    return graph


@pytest.mark.parametrize("build", [unaligned, splines, heads])
@needs_compiler
def test_parts_that_other_nodes_read(build: Callable[[], Graph], emulated: CudaBackend) -> None:
    """Each kernel reads its part where it is: there are two."""
    graph = build()
    entries = entries_of(graph)
    assert len(entries) == 2
    assert set(entries) <= {"elementwise", "moved"}
    feeds = {"x": normal(*graph.inputs[0].tensor.dims).astype(np.float16)}
    compare(Sample(graph, feeds), emulated)


@needs_compiler
def test_many_operands_of_few_elements_are_one_kernel(emulated: CudaBackend) -> None:
    graph = several(12)
    assert entries_of(graph) == ["elementwise"]
    compare(Sample(graph, {value.name: normal(2, 1) for value in graph.inputs}), emulated)


READERS = {
    **{"decayed": decayed, "positions": positions, "selected": selected, "last": last},
    **{"disentangled": disentangled, "decomposed": decomposed},
}


@pytest.mark.parametrize("name", READERS)
def test_readers_are_one_kernel(name: str) -> None:
    entry = "elementwise" if name == "decomposed" else "moved"  # no table is needed
    assert entries_of(READERS[name]()) == [entry]


@needs_compiler
@pytest.mark.parametrize("name", READERS)
def test_results_of_readers(name: str, emulated: CudaBackend) -> None:
    graph = READERS[name]()
    feeds = {"x": normal(*graph.inputs[0].tensor.dims).astype(np.float16)}
    compare(Sample(graph, feeds), emulated)


# ── any chain ────────────────────────────────────────────────────────────────────────────────────


def drawn(rng: np.random.Generator) -> Chain:
    """Return a random chain of two to six nodes."""
    rank = int(rng.integers(2, 5))
    chain = Chain(*(int(n) for n in rng.choice([1, 2, 3, 4, 6], rank)))
    for _ in range(rng.integers(2, 7)):
        dims = chain.dims
        axis = int(rng.integers(len(dims)))
        kind = rng.choice(
            ["transpose", "reshape", "gather", "pick", "pad", "slice", "expand", "tile"]
        )
        if kind == "transpose":
            chain.transpose(*(int(i) for i in rng.permutation(len(dims))))
        elif kind == "reshape":
            size = int(np.prod(dims))
            first = int(rng.choice([n for n in range(1, size + 1) if size % n == 0]))
            rest = size // first
            second = int(rng.choice([n for n in range(1, rest + 1) if rest % n == 0]))
            chain.reshape(first, second, rest // second)
        elif kind == "gather":
            shape = [(), (2,), (2, 3)][rng.integers(1 if len(dims) > 3 else 2, 3) % 3]
            chain.gather(rng.integers(-dims[axis], dims[axis], shape), axis)
        elif kind == "pick":
            shape = [int(rng.integers(1, n + 1)) if i != axis else 3 for i, n in enumerate(dims)]
            alike = [1 if rng.integers(2) else n for n in shape]
            index = rng.integers(-dims[axis], dims[axis], alike)
            chain.add(GatherElements(axis=axis), np.broadcast_to(index, shape))
        elif kind == "pad":
            chain.pad(*(int(n) for n in rng.integers(0, 3, 2 * len(dims))))
        elif kind == "slice":
            step = int(rng.choice([1, 1, 2, -1]))
            begin, end = (0, dims[axis]) if step > 0 else (dims[axis] - 1, -dims[axis] - 1)
            chain.slice(begin, end, axis, step)
        elif kind == "expand":
            chain.add(Expand(), [2, *(n if n > 1 else 3 for n in dims)])
        else:
            chain.add(Tile(), rng.integers(1, 3, len(dims)))
        if np.prod(chain.dims) > 20000:
            break
    return chain


@pytest.mark.parametrize("format", [Format.CONTIGUOUS, Format.CHANNELS_LAST])
def test_places_of_random_chains(format: Format) -> None:
    """Every element is where nodes that run one after the other would take it from."""
    rng, composed = np.random.default_rng(5), 0
    for _ in range(150):
        chain = drawn(rng)
        graph = chain.graph
        assert all(moves(node) for node in graph.nodes)
        found = movement(graph.nodes)
        if found is None:
            continue
        composed += 1
        dims = found.x.tensor.dims
        memory = np.arange(1, np.prod(dims) + 1)
        x = memory.reshape(format.physical(dims))
        if format is Format.CHANNELS_LAST and len(dims) > 2:
            x = np.moveaxis(x, -1, 1)
        want = x
        for node in graph.nodes:
            others = [value.data for value in node.operands[1:]]
            results = evaluate(node.op, [np.ascontiguousarray(want), *others], 1)
            assert results is not None
            (want,) = results
        walk = found.walk(Tensor(found.x, format))
        sizes = [size for axis in found.factors for size in axis]
        at = np.indices(sizes)
        place = walk.origin + np.tensordot(walk.strides, at, 1)
        entry = 0 * place if walk.table is None else walk.table[np.tensordot(walk.slots, at, 1)]
        got = np.where(entry < 0, 0, memory[np.where(entry < 0, 0, place + entry)])
        np.testing.assert_array_equal(got.reshape(want.shape), want)
    assert composed > 100


@pytest.mark.parametrize(("index", "is_inside"), [(8, False), (-9, False), (7, True), (-8, True)])
def test_indices_outside_of_an_axis_are_left_to_their_node(index: int, *, is_inside: bool) -> None:
    chain = Chain(8, 2).add(GatherElements(axis=0), [[index, 0]]).transpose(1, 0)
    assert (movement(chain.graph.nodes) is not None) is is_inside


@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 1)], ids=str)
def test_few_axes_are_transposed(shape: tuple[int, ...]) -> None:
    chain = Chain(*shape).add(Transpose()).add(Transpose())
    chain.graph.set_outputs({"y": chain.value})
    assert not launches(planned(chain.graph))


#: Axes, and their order: matrices that are apart, in one or two axes, or whose rows are.
APART = [
    ((2, 40, 3, 4, 6), (2, 0, 3, 4, 1)),
    ((2, 40, 3, 24), (0, 2, 3, 1)),
    ((3, 20, 2, 33), (2, 0, 3, 1)),
]


def transposed_matrices(dims: tuple[int, ...], perm: tuple[int, ...], dtype: DType) -> Sample:
    graph = Graph("apart")
    x = graph.add_input("x", TensorType(dtype, dims))
    graph.set_outputs({"y": graph.insert(Transpose(perm=perm), [x]).output})
    infer(graph)
    return Sample(graph, {"x": normal(*dims).astype(dtype)})


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(("dims", "perm"), APART, ids=str)
def test_matrices_that_are_apart_are_transposed_in_tiles(
    dims: tuple[int, ...], perm: tuple[int, ...], dtype: DType, emulated: CudaBackend
) -> None:
    sample = transposed_matrices(dims, perm, dtype)
    assert entries_of(sample.graph) == ["transpose"]
    compare(sample, emulated)


def test_narrow_matrices_that_are_apart_are_copied() -> None:
    graph = transposed_matrices((2, 40, 3, 8), (2, 0, 3, 1), float16).graph
    assert entries_of(graph) == ["copy_strided"]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_a_padded_scalar_is_copied(mode: str) -> None:
    chain = Chain().add(Pad(mode=mode), [])
    chain.graph.set_outputs({"y": chain.value})
    assert entries_of(chain.graph) == ["copy_strided"]
