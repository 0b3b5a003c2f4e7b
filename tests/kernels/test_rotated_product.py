"""Products whose first columns are heads that are rotated: one kernel, where these are whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm import f16, normalized
from tercet.backends.cuda.gemm.schedules import tma_persistent
from tercet.backends.cuda.gemm.tables.f16 import TMA_PERSISTENT
from tercet.backends.cuda.gemm.tile import Config, CtaTile, TimedConfig
from tercet.backends.cuda.recipe.targets import H200
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.attention import Attention, RotaryEmbedding
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split
from tercet.runtime.ops.norm import RMSNormalization

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare

COMPILES = {"gemm/swap_ab.cu", "gemm/tma_persistent.cu"}


@dataclass(frozen=True)
class Layer:
    """A product of rows, the rotation of queries and keys, and their attention.

    Attributes:
        batch, length: samples, and rows of each.
        terms: of the product.
        size: of a head.
        counts: heads of queries and of keys.
        dtype: of everything.
        bias: whether one is added.
        interleaved: whether pairs are adjacent.
        rotated: elements of a head that are rotated; 0 for all.
        placed: whether positions are given.
        apart: whether every sample has angles, or positions, of its own.
        values: whether columns of values are behind.
        kept: what else is a result: ``rows``, ``values``, or nothing.
        inner: terms of a product in front, whose rows are normalized; 0 without it.
    """

    batch: int = 8
    length: int = 128
    terms: int = 256
    size: int = 64
    counts: tuple[int, int] = (4, 2)
    dtype: DType = float16
    bias: bool = False
    interleaved: int = 0
    rotated: int = 0
    placed: bool = False
    apart: bool = False
    values: bool = True
    kept: str = ""
    inner: int = 0

    def sample(self) -> Sample:
        graph, (q, k) = Graph("layer"), self.counts
        widths = [(q + k) * self.size, *([k * self.size] if self.values else ())]
        x = normal(self.batch, self.length, self.inner or self.terms).astype(self.dtype)
        rows = graph.insert(Relu(), [graph.add_input("x", TensorType(x.dtype, x.shape))]).output
        if self.inner:
            scale = graph.constant((1 + normal(self.terms) / 4).astype(self.dtype))
            rows = self._times(graph, rows, self.inner, self.terms)
            rows = graph.insert(RMSNormalization(), [rows, scale]).output
        rows = self._times(graph, rows, self.terms, sum(widths))
        if self.bias:
            bias = graph.constant(normal(sum(widths)).astype(self.dtype))
            rows = graph.insert(Add(), [rows, bias]).output
        turned, values = rows, None
        if self.values:
            sizes = graph.constant(np.array(widths))
            turned, values = graph.insert(Split(axis=-1, num_outputs=2), [rows, sizes], 2).outputs
        feeds, places, count = {"x": x}, None, self.batch if self.apart else 1
        if self.placed:
            numbers = np.arange(count * self.length) * 7 % (self.length + 2)
            given = feeds["places"] = numbers.reshape(count, -1)
            places = graph.add_input("places", TensorType(given.dtype, given.shape))
        half = (self.rotated or self.size) // 2
        angles = normal(*((self.length + 2,) if self.placed else (count, self.length)), half)
        tables = [graph.constant(f(angles).astype(self.dtype)) for f in (np.cos, np.sin)]
        op = RotaryEmbedding(
            interleaved=self.interleaved, num_heads=q + k, rotary_embedding_dim=self.rotated
        )
        turned = graph.insert(op, [turned, *tables, places]).output
        sizes = graph.constant(np.array([q * self.size, k * self.size]))
        heads = graph.insert(Split(axis=-1, num_outputs=2), [turned, sizes], 2).outputs
        attention = Attention(q_num_heads=q, kv_num_heads=k)
        outputs = {"y": graph.insert(attention, [*heads, values or heads[1]]).output}
        kept = {"rows": rows, "values": values}.get(self.kept)
        graph.set_outputs(outputs if kept is None else {**outputs, "kept": kept})
        infer(graph)
        return Sample(graph, feeds)

    def _times(self, graph: Graph, x: Value, terms: int, columns: int) -> Value:
        weights = normal(terms, columns) / np.sqrt(terms)
        return graph.insert(MatMul(), [x, graph.constant(weights.astype(self.dtype))]).output


SAMPLES = {
    "heads": Layer(),
    "some rows": Layer(batch=1),
    "bias, of 128": Layer(size=128, counts=(3, 1), bias=True),
    "bfloat16, of 32": Layer(size=32, dtype=bfloat16, kept="values"),
    "of 256": Layer(32, terms=1024, size=256, counts=(4, 2)),
    "interleaved": Layer(interleaved=1, bias=True),
    "part": Layer(rotated=32, placed=True),
    "interleaved part": Layer(interleaved=1, rotated=20, apart=True),
    "positions of samples": Layer(placed=True, apart=True, length=75),
    "no values": Layer(values=False, length=197),
}
APART = {
    "few rows": Layer(batch=1, length=16),
    "float32": Layer(dtype=float32),
    "rows read elsewhere": Layer(kept="rows"),
    "heads of 48": Layer(size=48, counts=(4, 4)),
    "part of ten": Layer(rotated=20),
    "half a strip": Layer(size=32, counts=(2, 1)),
}
#: Small ones for the emulator.
SMALL = {
    "heads": Layer(2, 70, 72),
    "of 128": Layer(1, 40, 64, 128, (1, 1), bias=True),
    "bfloat16, of 32": Layer(3, 9, 40, 32, (3, 1), bfloat16, bias=True, apart=True),
    "interleaved part": Layer(2, 33, 64, interleaved=1, rotated=40),
    "part": Layer(2, 11, 200, rotated=32, placed=True),
    "positions of samples": Layer(3, 50, 64, 16, (6, 2), placed=True, apart=True, values=False),
}

#: Those of rows that are normalized as they are multiplied.
NORMALIZED = {
    "heads": Layer(1, 70, 768, inner=128),
    "bias, positions of samples": Layer(
        2, 40, 768, bias=True, placed=True, apart=True, interleaved=1, inner=128
    ),
    "bfloat16, of 32, a part": Layer(
        1, 150, 192, 32, (5, 1), bfloat16, bias=True, rotated=16, values=False, inner=64
    ),
}


def assert_rotates(found: list[str], *, together: bool) -> None:
    assert "mma_linear" in found
    assert ("rotate" in found) is not together


@pytest.mark.parametrize("name", SAMPLES)
def test_product_and_rotation_are_one_kernel(name: str) -> None:
    assert_rotates(entries_of(SAMPLES[name].sample().graph), together=True)


@pytest.mark.parametrize("name", NORMALIZED)
def test_norm_and_rotation_are_no_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalized, "SAVED", 100.0)
    found = entries_of(NORMALIZED[name].sample().graph)
    assert found.count("swap_ab") == 2
    assert not {"rotate", "normalize_rows"} & {*found}


@pytest.mark.parametrize("name", APART)
def test_others_stay_apart(name: str) -> None:
    assert "rotate" in entries_of(APART[name].sample().graph)


def test_compiles(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = DryDevice(compiler=DryCompiler(H200))
    monkeypatch.setattr(normalized, "SAVED", 100.0)
    graphs = [layer.sample().graph for layer in (*SAMPLES.values(), *NORMALIZED.values())]
    found = [one for graph in graphs for one in launches(planned(graph, device))]
    found = [launch for launch in found if launch.file in COMPILES]
    all_compile([launch.source for launch in found], H200, cache, COMPILES)
    assert_arguments(found, H200, cache)


def force(tile: CtaTile, patch: pytest.MonkeyPatch) -> None:
    """Let every product, of however few rows, be computed with one tile."""
    patch.setattr(f16, "MORE_ROWS", 0)
    patch.setattr(tma_persistent, "candidates", lambda *_: (TimedConfig(0.0, Config(tile)),))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", SMALL)
def test_results(name: str, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, number = SMALL[name], list(SMALL).index(name)
    tiles = [tile for tile in TMA_PERSISTENT if tile.bn % layer.size == 0]
    force(tiles[number % len(tiles)], monkeypatch)
    assert_rotates(entries_of(layer.sample().graph), together=True)
    compare(layer.sample(), emulated)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", NORMALIZED)
def test_results_of_normalized_rows(
    name: str, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(normalized, "SAVED", 100.0)
    compare(NORMALIZED[name].sample(), emulated)
