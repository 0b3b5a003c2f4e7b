"""Products of two computed matrices of any strides: `strided.cu`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm import strided
from tercet.backends.cuda.gemm.schedules import strided as schedule
from tercet.backends.cuda.gemm.schedules.strided import tiles_of
from tercet.backends.cuda.gemm.tile import Config, TimedConfig
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Mul
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split, Transpose
from tercet.runtime.ops.shape import Reshape

from .cubins import all_compile
from .dry import DryCompiler, DryDevice, compiled_files, launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare, sample

FILE = "gemm/strided.cu"
COMPILES = {"gemm/strided.cu"}
#: From heads beside one another, [batch, rows, heads, size], to matrices, and to their transposes.
HEADS, TRANSPOSED = (0, 2, 1, 3), (0, 2, 3, 1)


@dataclass(frozen=True)
class Heads:
    """Scores of each head, multiplied by a table, times values; without a Softmax.

    Attributes:
        batch, rows, heads, size: the sizes.
        dtype: of queries, keys and values; products are float32.
        parts: whether all three are parts of one tensor.
        masked: whether scores are multiplied by a table.
    """

    batch: int
    rows: int
    heads: int
    size: int
    dtype: DType = float32
    parts: bool = False
    masked: bool = True

    def __str__(self) -> str:
        name = f"{self.batch}x{self.rows} {self.heads} of {self.size} {self.dtype.name}"
        return f"{name}{' parts' * self.parts}{'' if self.masked else ' unmasked'}"

    def sample(self) -> Sample:
        graph, width = Graph("heads"), self.heads * self.size
        whole = (self.batch, self.rows, 3 * width)
        single = (self.batch, self.rows, width)
        feeds: dict[str, Array]
        if self.parts:
            feeds = {"qkv": normal(*whole).astype(self.dtype)}
            x = graph.add_input("qkv", TensorType(self.dtype, whole))
            sizes = graph.constant(np.array([width] * 3), "sizes")
            q, k, v = graph.insert(
                Split(axis=-1, num_outputs=3), [x, sizes], 3, name="split"
            ).outputs
        else:
            feeds = {name: normal(*single).astype(self.dtype) for name in "qkv"}
            q, k, v = (graph.add_input(n, TensorType(self.dtype, single)) for n in "qkv")
        shape = graph.constant(np.array([self.batch, self.rows, self.heads, self.size]), "shape")

        def add(op: Any, *inputs: Value) -> Value:
            return graph.insert(op, list(inputs), 1, name=f"n{len(graph.nodes)}").output

        def transposed(x: Value, perm: tuple[int, ...]) -> Value:
            found = add(Transpose(perm=perm), add(Reshape(), x, shape))
            return found if self.dtype == float32 else add(Cast(to=float32), found)

        scores = add(MatMul(), transposed(q, HEADS), transposed(k, TRANSPOSED))
        if self.masked:
            table = normal(self.heads, self.rows, self.rows)
            scores = add(Mul(), scores, graph.constant(table, "table"))
        heads = add(Transpose(perm=HEADS), add(MatMul(), scores, transposed(v, HEADS)))
        flat = graph.constant(np.array([self.batch, self.rows, width]), "flat")
        graph.set_outputs({"y": add(Reshape(), heads, flat)})
        infer(graph)
        return Sample(graph, feeds)


SAMPLES = [
    Heads(1, 40, 2, 16),
    Heads(2, 33, 3, 20, parts=True),
    Heads(2, 24, 2, 16, float16, parts=True),
    Heads(1, 50, 2, 10, bfloat16),
    Heads(2, 19, 1, 7, float16, masked=False),
]


def transposed_products(dtype: DType = float32) -> Sample:
    """Products over pixels of two images, whose sum with a third is an image: [n, c, pixels]."""
    graph, feeds = Graph("images"), dict[str, Array]()

    def image(name: str, channels: int, dtype: DType = dtype) -> Value:
        feeds[name] = normal(3, channels, 22).astype(dtype)
        return graph.add_input(name, TensorType(dtype, (3, channels, 22)))

    def add(op: Any, *inputs: Value) -> Value:
        return graph.insert(op, list(inputs), 1, name=f"n{len(graph.nodes)}").output

    mixed = normal(3, 14, 10).astype(dtype)
    feeds["mixed"] = mixed
    by = graph.add_input("mixed", TensorType(dtype, mixed.shape))
    rows = add(Transpose(perm=(0, 2, 1)), image("x", 14))
    feeds["more"] = normal(3, 22, 10).astype(dtype)
    more = graph.add_input("more", TensorType(dtype, (3, 22, 10)))
    graph.set_outputs(
        {"y": add(Transpose(perm=(0, 2, 1)), add(Add(), add(MatMul(), rows, by), more))}
    )
    infer(graph)
    return Sample(graph, feeds)


def rounded_behind() -> Sample:
    """Float32 products of 16-bit floats that are rounded behind a view."""
    graph = Graph("rounded")
    feeds = {name: normal(4, 24, 16).astype(float16) for name in "ab"}
    a, b = (
        graph.insert(
            Cast(to=float32),
            [graph.add_input(n, TensorType(float16, (4, 24, 16)))],
            1,
            name=f"w{n}",
        ).output
        for n in "ab"
    )
    shape = graph.constant(np.array([2, 2, 24, 24]), "shape")
    b = graph.insert(Transpose(perm=(0, 2, 1)), [b], 1, name="t").output
    y = graph.insert(MatMul(), [a, b], 1, name="p").output
    y = graph.insert(Reshape(), [y, shape], 1, name="r").output
    graph.set_outputs({"y": graph.insert(Cast(to=float16), [y], 1, name="c").output})
    infer(graph)
    return Sample(graph, feeds)


def force(title: str, patch: pytest.MonkeyPatch) -> None:
    """Let every product be computed with one tile of `strided.cu`, whatever is the fastest."""

    def choose(problem: Any, types: Any, target: Any) -> TimedConfig:
        tile = next(tile for tile in tiles_of(*types) if str(tile) == title)
        return TimedConfig(0.0, Config(tile))

    for module in (strided, schedule):
        patch.setattr(module, "choose", choose)
    patch.setattr(strided, "_stack", lambda products: None)


@pytest.mark.parametrize("dtype", [float32, float16])
@pytest.mark.parametrize("batch", [1, 4])
def test_nothing_is_moved(batch: int, dtype: DType) -> None:
    """Neither the parts, nor the heads, nor the result; and 16-bit floats are not widened."""
    heads = Heads(batch, 128, 8, 64, dtype, parts=True)
    files = [launch.file for launch in launches(planned(heads.sample().graph))]
    assert files == [FILE if dtype == float32 else "gemm/multistage.cu", FILE]


def test_an_algorithm_that_was_asked_for_is_used() -> None:
    graph = Heads(1, 128, 8, 64).sample().graph
    entries = {each.entry for each in launches(planned(graph, algorithms={"MatMul": "gemm"}))}
    assert "gemm" in entries
    assert "strided_mma" not in entries


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
@pytest.mark.parametrize("across", [False, True])
def test_tiles_fit(across: bool, target: Target) -> None:
    for types in ((float32, float32), (float32, float16), (float16, float16)):
        for tile in tiles_of(*types):
            assert schedule.shared(tile, types, across, across) <= target.shared


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = DryDevice(compiler=DryCompiler(target))
    for title in ("128x64", "32x32/2"):
        force(title, monkeypatch)
        for heads in SAMPLES:
            planned(heads.sample().graph, device)
        planned(transposed_products().graph, device)
    sources = [source for source in device.compiler.sources if source.file == FILE]
    all_compile(sources, target, cache, COMPILES)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("title", ["64x64", "32x32/2"])
@pytest.mark.parametrize("heads", SAMPLES, ids=str)
def test_heads(
    heads: Heads, title: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(title, monkeypatch)
    compare(heads.sample(), hopper, error=1e-6)
    assert compiled_files(hopper) == {FILE}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [transposed_products(), transposed_products(float16), rounded_behind()],
    ids=["transposed", "transposed float16", "rounded"],
)
def test_results(made: Sample, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that are stored transposed, with an operand that is not, or in 16 bits."""
    force("32x32", monkeypatch)
    compare(made, hopper)
    assert compiled_files(hopper) == {FILE}


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("greatest", [1e30, 1e-30])
def test_range(greatest: float, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors near both ends of float32, next to an infinity and a NaN."""
    force("32x32", monkeypatch)
    a, b = normal(2, 20, 12) * np.float32(greatest), normal(2, 12, 9) / np.float32(greatest)
    a[0, 3, 5], b[1, 2, 4], b[0, 0, 0] = np.inf, -np.inf, np.nan
    compare(
        sample("MatMul", [a, b]), hopper, options=replace(OPTIONS, algorithms={"MatMul": "strided"})
    )


def mixed(batch: int, rows: int, columns: int) -> Graph:
    """Rows of each sample, mixed by constant weights."""
    graph = Graph("mixed")
    x = graph.add_input("x", TensorType(float32, (batch, rows, columns)))
    weights = graph.constant(normal(rows, rows), "weights")
    graph.set_outputs({"y": graph.insert(MatMul(), [weights, x]).output})
    infer(graph)
    return graph


def test_constant_weights_of_rows_are_a_left_factor() -> None:
    (launch,) = launches(planned(mixed(32, 128, 256)))
    assert launch.file == FILE


@needs_compiler
def test_results_of_constant_weights(hopper: CudaBackend) -> None:
    feeds = {"x": normal(3, 20, 24)}
    options = replace(OPTIONS, algorithms={"MatMul": "strided"})
    compare(Sample(mixed(3, 20, 24), feeds), hopper, options=options)
