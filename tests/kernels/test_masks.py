"""Masks of attention in 16 bits: how they reach threads, and what comes out beside float64."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.attention.heads import rows_of_mask
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.recipe.operands import Packed
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, bool_, float16, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.elementwise import Add
from tercet.runtime.ops.movement import Expand, Tile, Transpose
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.session.model import Model

from ..passes.graphs import apply
from .cubins import OptimizedPtxCompiler, registers
from .dry import DryCompiler, DryDevice, compiled_files, launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, OPTIONS, Sample, results_of, sample
from .transformer_samples import LOWEST, attention

LONG, SHORT, MMA = (f"attention/attention_{name}.cu" for name in ("long", "wgmma", "mma"))
WINDOWS = "attention/attention_windows.cu"


def launch_of(size: int, mask: Array) -> Any:
    """Return the launch of 32 heads of this size with as many queries as keys."""
    found = attention((4, 8, 8), mask.shape[2:], (size, size), float16, mask)
    return launches(planned(found.graph, DryDevice(compiler=DryCompiler(H200))))[0]


@pytest.mark.parametrize(
    ("size", "dtype"), [(64, float16), (64, float32), (128, float16), (128, bool_)], ids=str
)
def test_rows_of_masks_come_by_tma(size: int, dtype: DType, cache: Path) -> None:
    """Threads read nothing from memory."""
    launch = launch_of(size, np.zeros((1, 1, 1024, 1024), dtype))
    ptx = OptimizedPtxCompiler(H200, cache).code(launch.source).decode()
    assert "cp.async.bulk.tensor" in ptx
    assert not re.findall(r"ld\.global\S*", ptx)


@pytest.mark.parametrize("size", [64, 128])
def test_nothing_is_spilled(size: int, cache: Path) -> None:
    launch = launch_of(size, np.zeros((1, 1, 1024, 1024), float16))
    assert registers(Compiler(H200, cache).code(launch.source))[1] == 0


@pytest.mark.parametrize(
    ("size", "dtype"), [(64, float32), (128, bool_), (256, float16), (256, float32)], ids=str
)
def test_blocks_have_room(size: int, dtype: DType) -> None:
    """Threads read rows for which there is none."""
    launch = launch_of(size, np.zeros((1, 1, 1024, 1024), dtype))
    assert launch.shared <= H200.shared
    assert (dict(launch.constants)["MASK_WIDTH"] > 0) == (size < 256 or dtype != float32)


@pytest.mark.parametrize("dtype", [bool_, float16, bfloat16], ids=lambda dtype: dtype.name)
def test_rows_of_constants_are_aligned(dtype: DType) -> None:
    mask = (normal(2, 3, 5) > 0).astype(dtype)
    found = rows_of_mask(mask, 8)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[..., :5], mask)
    assert (found[..., 5:] == (False if dtype == bool_ else -np.inf)).all()


def exact(q: Array, k: Array, v: Array, mask: Array) -> Array:
    """Return the attention in float64; rows that see no key are 0."""
    q, k, v = (x.astype(float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    bias = np.where(mask, 0, -np.inf) if mask.dtype == bool_ else mask.astype(float64)
    hidden = np.full((*bias.shape[:-1], k.shape[2] - bias.shape[-1]), -np.inf)
    # Next to the lowest number of float32, scores are less than one unit.
    scores = q @ k.swapaxes(2, 3) * q.shape[3] ** -0.5 * (bias > LOWEST / 2).any(-1, keepdims=True)
    scores = scores + np.concatenate([bias, hidden], -1)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    return weights @ v / np.where(total > 0, total, 1)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("lengths", "size", "mask", "dtype", "constant", "file"),
    [
        ((130, 144), 64, (2, 4, 130, 144), float16, False, SHORT),
        ((70, 97), 64, (4, 70, 97), float32, True, SHORT),
        ((66, 144), 64, (2, 1, 66, 128), bool_, False, SHORT),
        ((130, 160), 96, (1, 1, 130, 160), float16, False, LONG),
        ((70, 90), 96, (2, 4, 70, 77), float32, True, LONG),
        ((70, 96), 96, (2, 1, 1, 96), float16, False, LONG),
        ((70, 96), 96, (1, 4, 1, 80), bool_, False, LONG),
        ((49, 49), 32, (2, 4, 49, 49), float16, True, MMA),
        ((49, 177), 32, (2, 4, 49, 177), float32, False, MMA),
    ],
    ids=str,
)
def test_masks(
    lengths: tuple[int, int],
    size: int,
    mask: tuple[int, ...],
    dtype: DType,
    constant: bool,
    file: str,
    hopper: CudaBackend,
) -> None:
    """Some keys are hidden, and a row sees none, or all of them as little as possible."""
    shapes = ((4, lengths[0]), (2, lengths[1]), (2, lengths[1]))
    q, k, v = (normal(2, *shape, size).astype(float16) for shape in shapes)
    drawn = normal(*mask)
    given = drawn > -0.5 if dtype == bool_ else np.where(drawn > -1, drawn, -np.inf).astype(dtype)
    given[..., 0, :] = False if dtype == bool_ else -np.inf
    if dtype == float32:
        given[..., 1, :] = LOWEST
        given[..., 2, :-8] = -1e9  # all keys of whole tiles
        given[..., 3, :-8] = -1e10
    found = sample("Attention", [q, k, v, given], constant=(3,) if constant else ())
    (y,) = results_of(found, [hopper])
    assert compiled_files(hopper) == {file}
    want = exact(q, k, v, given)
    np.testing.assert_allclose(y, want, rtol=0, atol=ERROR[float16] * np.abs(want).max())


@pytest.mark.parametrize(("samples", "repeats"), [(1, 0), (2, 2), (4, 0)], ids=str)
def test_masks_that_repeat_are_stored_once(samples: int, repeats: int) -> None:
    mask = np.concatenate([normal(samples, 8, 49, 50)] * (4 // samples))
    operands = [normal(4, 8, length, 64).astype(float16) for length in (49, 50, 50)]
    graph = sample("Attention", [*operands, mask], constant=(3,)).graph
    launch = launches(planned(graph, DryDevice(compiler=DryCompiler(H200))))[0]
    assert dict(launch.constants)["MASK_SAMPLES"] == repeats
    given = launch.arguments["mask"]
    assert isinstance(given, Packed)
    assert given.pack(mask).shape == (samples, 8, 49, 52)


@dataclass(frozen=True)
class Summed:
    """An attention of images whose positions add a number for each row and column of keys.

    Attributes:
        heads: samples, and heads of queries and of keys.
        queries, keys: height and width of the images.
        size: of a head.
        dtype: of all.
        file: the kernel.
        by_places: whether the first axis of a tensor is that of rows or columns of queries, as
            products with a matrix for each leave it.
    """

    heads: tuple[int, int, int]
    queries: tuple[int, int]
    keys: tuple[int, int]
    size: int
    dtype: DType
    file: str
    by_places: bool = True

    def sample(self) -> Sample:
        """Return it."""
        (batch, heads, shared), (high, wide), (rows, columns) = self.heads, self.queries, self.keys
        lengths = (high * wide, rows * columns, rows * columns)
        feeds = {
            name: normal(batch, count, length, self.size).astype(self.dtype)
            for name, count, length in zip("qkv", (heads, shared, shared), lengths, strict=True)
        }
        apart = (batch, heads, high, wide)
        feeds |= {
            "down": self.moved(normal(*apart, rows).astype(self.dtype), 2),
            "across": self.moved(normal(*apart, columns).astype(self.dtype), 3),
        }
        graph = Graph()
        given = {n: graph.add_input(n, TensorType(self.dtype, x.shape)) for n, x in feeds.items()}
        down = self.back(graph, given["down"], 2, (rows, 1))
        across = self.back(graph, given["across"], 3, (1, columns))
        mask = apply(graph, Add(), down, across)
        mask = apply(graph, Reshape(), mask, np.array([batch, heads, *lengths[:2]]))
        graph.set_outputs({"y": apply(graph, Attention(), *(given[n] for n in "qkv"), mask)})
        infer(graph)
        return Sample(graph, feeds)

    def moved(self, x: Array, axis: int) -> Array:
        """Return a term as a product leaves it."""
        if not self.by_places:
            return x
        moved = np.moveaxis(x, axis, 0)
        return moved.reshape(moved.shape[0], -1, moved.shape[-1])

    def back(self, graph: Graph, x: Value, axis: int, keys: tuple[int, int]) -> Value:
        """Return it as [samples, heads, rows, columns, rows of keys, columns of keys]."""
        dims = list((*self.heads[:2], *self.queries))
        if self.by_places:
            first = dims.pop(axis)
            x = apply(graph, Reshape(), x, np.array([first, *dims, max(keys)]))
            order = [1, 2, 3]
            order.insert(axis, 0)
            x = apply(graph, Transpose(perm=(*order, 4)), x)
            dims.insert(axis, first)
        return apply(graph, Reshape(), x, np.array([*dims, *keys]))

    def mask(self, feeds: Mapping[str, Array]) -> Array:
        """Return the mask in float64."""
        dims = list((*self.heads[:2], *self.queries))
        terms: list[Array] = []
        for name, axis, keys in (("down", 2, (-1, 1)), ("across", 3, (1, -1))):
            x = feeds[name].astype(float64)
            if self.by_places:
                others = [n for i, n in enumerate(dims) if i != axis]
                x = np.moveaxis(x.reshape(dims[axis], *others, -1), 0, axis)
            terms.append(x.reshape(*dims, *keys))
        return (terms[0] + terms[1]).reshape(*self.heads[:2], prod(self.queries), prod(self.keys))


SUMMED = (
    Summed((2, 4, 2), (10, 13), (12, 12), 64, float16, SHORT),
    Summed((2, 4, 2), (10, 13), (16, 9), 64, bfloat16, SHORT),
    Summed((2, 4, 4), (7, 10), (8, 12), 64, float32, "attention/attention_f16x3_wgmma.cu"),
    Summed((1, 1, 1), (18, 18), (8, 12), 64, float32, "attention/attention_cut.cu"),
    Summed((2, 4, 2), (6, 11), (16, 10), 96, float16, LONG),
    Summed((2, 4, 2), (6, 11), (16, 10), 96, float16, LONG, by_places=False),
    Summed((2, 4, 2), (7, 7), (7, 7), 32, float16, MMA),
    Summed((2, 4, 4), (7, 8), (6, 8), 48, float16, MMA),
    Summed((18, 4, 4), (7, 7), (7, 7), 32, float16, WINDOWS),
    Summed((2, 4, 4), (2, 3), (2, 3), 32, float16, "attention/attention_short.cu"),
)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("case", SUMMED, ids=str)
def test_masks_that_are_sums(case: Summed, hopper: CudaBackend) -> None:
    """One kernel reads both terms where they are."""
    found = case.sample()
    with Model(found.graph, [hopper], OPTIONS, evaluate) as model:
        y = model.run(found.feeds)["y"]
        assert len([row for row in model.placement() if row.kind == "step"]) == 1
    assert case.file in compiled_files(hopper)
    q, k, v, *_ = found.feeds.values()
    want = exact(q, k, v, case.mask(found.feeds))
    np.testing.assert_allclose(y, want, rtol=0, atol=ERROR[case.dtype] * np.abs(want).max())


@pytest.mark.parametrize(("batch", "pairs"), [(256, True), (512, False)])
def test_rows_of_keys_far_apart_are_read_one_by_one(batch: int, *, pairs: bool) -> None:
    """Kernels count pairs with 31 bits."""
    graph, apart = Graph(), (batch, 16, 4096)
    q, k, v = (graph.add_input(n, TensorType(float16, (*apart, 64))) for n in "qkv")
    down = graph.add_input("down", TensorType(float16, (64, 1, *apart)))
    across = graph.add_input("across", TensorType(float16, (*apart, 1, 64)))
    mask = apply(graph, Add(), apply(graph, Transpose(perm=(2, 3, 4, 0, 1)), down), across)
    mask = apply(graph, Reshape(), mask, np.array([*apart, 4096]))
    graph.set_outputs({"y": apply(graph, Attention(), q, k, v, mask)})
    infer(graph)
    (launch,) = launches(planned(graph, DryDevice(compiler=DryCompiler(H200))))
    assert bool(dict(launch.constants)["MASK_PAIRS"]) is pairs


@dataclass(frozen=True)
class Repeated:
    """An attention of eighteen samples with three masks, those of windows of images."""

    heads: tuple[int, int]
    lengths: tuple[int, int]
    size: int
    dtype: DType
    file: str

    @property
    def few(self) -> Array:
        """The three masks, of which each hides all keys of a row."""
        few = normal(3, self.heads[0], *self.lengths).astype(self.dtype)
        few[..., 0, :] = -np.inf
        return few

    def sample(self, *, tiled: bool) -> Sample:
        """Return it, with a constant mask, or with the Tile of one."""
        (heads, shared), (rows, keys) = self.heads, self.lengths
        shapes = (heads, rows), (shared, keys), (shared, keys)
        feeds = {
            name: normal(18, *shape, self.size).astype(self.dtype)
            for name, shape in zip("qkv", shapes, strict=True)
        }
        graph, times = Graph(), np.array([6, 1, 1, 1])
        inputs = [graph.add_input(n, TensorType(self.dtype, x.shape)) for n, x in feeds.items()]
        mask = apply(graph, Tile(), self.few, times) if tiled else np.tile(self.few, times)
        graph.set_outputs({"y": apply(graph, Attention(), *inputs, mask)})
        infer(graph)
        return Sample(graph, feeds)


REPEATED = (
    Repeated((4, 2), (130, 144), 64, float16, SHORT),
    Repeated((4, 2), (70, 97), 64, float32, "attention/attention_f16x3_wgmma.cu"),
    Repeated((4, 2), (66, 160), 96, float16, LONG),
    Repeated((4, 2), (49, 49), 32, float16, WINDOWS),
    Repeated((4, 4), (5, 6), 32, float16, "attention/attention_short.cu"),
)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("tiled", [False, True], ids=["constant", "Tile"])
@pytest.mark.parametrize("case", REPEATED, ids=str)
def test_masks_that_repeat(case: Repeated, tiled: bool, hopper: CudaBackend) -> None:
    found = case.sample(tiled=tiled)
    with Model(found.graph, [hopper], OPTIONS, evaluate) as model:
        y = model.run(found.feeds)["y"]
        assert len([row for row in model.placement() if row.kind == "step"]) == 1
    assert compiled_files(hopper) == {case.file}
    q, k, v = found.feeds.values()
    want = exact(q, k, v, np.tile(case.few, (6, 1, 1, 1)))
    np.testing.assert_allclose(y, want, rtol=0, atol=ERROR[case.dtype] * np.abs(want).max())


@needs_compiler
def test_masks_of_rows_that_all_keys_share(hopper: CudaBackend) -> None:
    """They are as long as the keys: those behind the end of a shorter one would be hidden."""
    feeds = {n: normal(2, 4, 24, 32).astype(float16) for n in "qkv"}
    feeds["mask"] = normal(2, 1, 24, 1).astype(float16)
    graph, dims = Graph(), np.array([2, 4, 24, 24])
    *heads, mask = (graph.add_input(n, TensorType(float16, x.shape)) for n, x in feeds.items())
    graph.set_outputs({"y": apply(graph, Attention(), *heads, apply(graph, Expand(), mask, dims))})
    infer(graph)
    with Model(graph, [hopper], OPTIONS, evaluate) as model:
        y = model.run(feeds)["y"]
    q, k, v, few = feeds.values()
    want = exact(q, k, v, np.broadcast_to(few, dims))
    np.testing.assert_allclose(y, want, rtol=0, atol=ERROR[float16] * np.abs(want).max())


@needs_compiler
@pytest.mark.parametrize("times", [(1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)], ids=str)
def test_masks_that_repeat_otherwise(times: tuple[int, ...], hopper: CudaBackend) -> None:
    """Heads, rows or keys in turn, which no kernel reads."""
    q, k, v = (normal(2, 4, rows, 32).astype(float16) for rows in (20, 24, 24))
    few = normal(*(n // by for n, by in zip((2, 4, 20, 24), times, strict=True))).astype(float16)
    graph, feeds = Graph(), {"q": q, "k": k, "v": v, "mask": few}
    *heads, mask = (graph.add_input(n, TensorType(float16, x.shape)) for n, x in feeds.items())
    mask = apply(graph, Tile(), mask, np.array(times))
    graph.set_outputs({"y": apply(graph, Attention(), *heads, mask)})
    infer(graph)
    with Model(graph, [hopper], OPTIONS, evaluate) as model:
        y = model.run(feeds)["y"]
    want = exact(q, k, v, np.tile(few, times))
    np.testing.assert_allclose(y, want, rtol=0, atol=ERROR[float16] * np.abs(want).max())


@needs_compiler
@pytest.mark.parametrize(
    ("given", "dims"),
    [
        ((6, 1, 1, 24), (6, 4, 20, 24)),
        ((1, 4, 20, 24), (6, 4, 20, 24)),
        ((3, 1, 20, 24), (6, 1, 20, 24)),
    ],
)
def test_computed_masks_are_repeated_where_they_are_read(
    given: tuple[int, ...], dims: tuple[int, ...], hopper: CudaBackend
) -> None:
    """For rows, heads or samples; those of a mask come in turn."""
    feeds = {
        n: normal(6, 4, rows, 32).astype(float16)
        for n, rows in zip("qkv", (20, 24, 24), strict=True)
    }
    feeds["mask"] = normal(*given).astype(float16)
    graph = Graph()
    *heads, mask = (graph.add_input(n, TensorType(float16, x.shape)) for n, x in feeds.items())
    times = np.array(dims) // np.array(given)
    op, by = (Tile(), times) if given[0] == 3 else (Expand(), np.array(dims))
    graph.set_outputs({"y": apply(graph, Attention(), *heads, apply(graph, op, mask, by))})
    infer(graph)
    with Model(graph, [hopper], OPTIONS, evaluate) as model:
        y = model.run(feeds)["y"]
        assert len([row for row in model.placement() if row.kind == "step"]) == 1
    q, k, v, few = feeds.values()
    want = exact(q, k, v, np.tile(few, times))
    np.testing.assert_allclose(y, want, rtol=0, atol=ERROR[float16] * np.abs(want).max())
