"""Queries and keys that are normalized and rotated: one kernel, where it is what they compute."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.attention import Attention, RotaryEmbedding
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.movement import Split
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization
from tercet.runtime.ops.shape import Reshape

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare

COMPILES = {"attention/normalize_rotate.cu"}
BATCH, LENGTH = 2, 5


@dataclass(frozen=True)
class Heads:
    """Attention to heads that are normalized and rotated.

    Attributes:
        size: of a head.
        counts: heads of queries and of keys.
        dtype: of everything.
        whole: whether rows of all heads are normalized, rather than each.
        centred: whether the mean is subtracted, and a shift added.
        interleaved: whether pairs are adjacent.
        rotated: elements of a head that are rotated; 0 for all.
        placed: whether positions are given.
        others: what differs between queries and keys: ``epsilon``, or nothing.
        kept: whether the normalized queries are a result, too.
    """

    size: int = 16
    counts: tuple[int, int] = (4, 2)
    dtype: DType = float16
    whole: bool = False
    centred: bool = False
    interleaved: int = 0
    rotated: int = 0
    placed: bool = False
    others: str = ""
    kept: bool = False

    def sample(self) -> Sample:
        graph, (q, k) = Graph("heads"), self.counts
        widths = [q * self.size, k * self.size, k * self.size]
        x = normal(BATCH, LENGTH, sum(widths)).astype(self.dtype)
        rows = graph.insert(Relu(), [graph.add_input("x", TensorType(x.dtype, x.shape))]).output
        sizes = graph.constant(np.array(widths))
        parts = graph.insert(Split(axis=-1, num_outputs=3), [rows, sizes], 3).outputs
        feeds, places = {"x": x}, None
        if self.placed:
            feeds["places"] = np.array([[0, 3, 2, 4, 1], [4, 4, 1, 0, 2]])
            places = graph.add_input("places", TensorType(np.dtype(np.int64), (BATCH, LENGTH)))
        shape = (LENGTH, (self.rotated or self.size) // 2)
        rotated, normed = list[Value](), list[Value]()
        for number, count in enumerate(self.counts):
            angles = normal(*shape if self.placed else (BATCH, *shape))
            tables = [graph.constant(f(angles).astype(self.dtype)) for f in (np.cos, np.sin)]
            op = RotaryEmbedding(
                interleaved=self.interleaved, num_heads=count, rotary_embedding_dim=self.rotated
            )
            more = 0.1 if self.others and number else 0
            normed.append(self._normed(graph, parts[number], count, more))
            rotated.append(graph.insert(op, [normed[-1], *tables, places]).output)
        attention = Attention(q_num_heads=q, kv_num_heads=k)
        outputs = {"y": graph.insert(attention, [*rotated, parts[2]]).output}
        graph.set_outputs(outputs | ({"kept": normed[0]} if self.kept else {}))
        infer(graph)
        return Sample(graph, feeds)

    def _normed(self, graph: Graph, x: Value, count: int, more: float) -> Value:
        width = count * self.size if self.whole else self.size
        scales = [graph.constant(normal(width).astype(self.dtype)) for _ in range(2)]
        kind, given = (
            (LayerNormalization, scales) if self.centred else (RMSNormalization, scales[:1])
        )
        op = kind(axis=-1, epsilon=1e-3 + more)
        if self.whole:
            return graph.insert(op, [x, *given]).output
        shapes = [
            np.array(each) for each in ((BATCH, LENGTH, count, self.size), (BATCH, LENGTH, -1))
        ]
        heads = graph.insert(Reshape(), [x, graph.constant(shapes[0])]).output
        normed = graph.insert(op, [heads, *given]).output
        return graph.insert(Reshape(), [normed, graph.constant(shapes[1])]).output


SAMPLES = {
    "heads": Heads(),
    "of 128": Heads(128, (3, 1)),
    "of 256 in float32": Heads(256, (2, 1), dtype=float32),
    "of 64 in bfloat16": Heads(64, (2, 2), dtype=bfloat16),
    "layer": Heads(32, centred=True, dtype=float32),
    "interleaved": Heads(24, interleaved=1),
    "interleaved part": Heads(24, interleaved=1, rotated=16, dtype=float32),
    "part": Heads(64, rotated=32),
    "part of 48": Heads(48, rotated=16),
    "rows": Heads(32, (12, 2), whole=True),
    "long rows": Heads(64, (20, 10), whole=True, dtype=float32),
    "interleaved rows": Heads(40, (7, 7), whole=True, interleaved=1, centred=True),
    "positions": Heads(32, placed=True),
}
APART = {
    "other norms": Heads(others="epsilon"),
    "read elsewhere": Heads(kept=True),
    "halves of 12": Heads(24),
    "part of ten": Heads(48, rotated=20),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_norms_and_rotations_are_one_kernel(name: str) -> None:
    found = entries_of(SAMPLES[name].sample().graph)
    assert found.count("normalize_rotate") == 1
    assert not {"rotate", "normalize_rows"} & set(found)


@pytest.mark.parametrize("name", APART)
def test_others_stay_apart(name: str) -> None:
    found = entries_of(APART[name].sample().graph)
    assert "normalize_rotate" not in found
    assert found.count("rotate") == 2


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=DryCompiler(target))
    graphs = [heads.sample().graph for heads in SAMPLES.values()]
    found = [one for graph in graphs for one in launches(planned(graph, device))]
    found = [launch for launch in found if launch.file in COMPILES]
    all_compile([launch.source for launch in found], target, cache, COMPILES)
    assert_arguments(found, target, cache)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", [*SAMPLES, *APART])
def test_results(name: str, emulated: CudaBackend) -> None:
    compare((SAMPLES | APART)[name].sample(), emulated)
