"""Attention that reads queries, keys and values in halves, as the products before store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.attention import cut_heads
from tercet.backends.cuda.attention.flash_mma import WarpShape
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Split
from tercet.runtime.plan.format import Format
from tercet.runtime.session.model import Model

from .cubins import assert_nothing_spills
from .dry import DryDevice, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS

HEADS, SIZE, BATCH, LENGTH = 3, 64, 2, 31
SHAPE = WarpShape(1, 2, 2, 16)
#: Terms of products that are estimated to be faster as three of float16.
TERMS = 768


def graph_of(
    size: int = SIZE, terms: int = 64, *, cross: bool = False, shown: bool = False
) -> Graph:
    """Return attention behind a product.

    Args:
        size: of a head.
        terms: of a product.
        cross: whether queries are a product of another tensor.
        shown: whether keys are results as well.
    """
    graph, hidden = Graph("attention"), HEADS * size
    x, z = (graph.add_input(name, TensorType(float32, (BATCH, LENGTH, terms))) for name in "xz")

    def parts(x: Value, name: str, count: int) -> Sequence[Value]:
        b = graph.constant(normal(terms, count * hidden), f"{name}.b")
        y = graph.insert(MatMul(), [x, b], 1, name=name).output
        split = Split(axis=-1, num_outputs=count)
        return (y,) if count == 1 else graph.insert(split, [y], count, name=f"{name}.s").outputs

    q, k, v = (*parts(z, "q", 1), *parts(x, "kv", 2)) if cross else parts(x, "qkv", 3)
    mask = graph.add_input("mask", TensorType(float32, (BATCH, 1, 1, LENGTH)))
    attention = Attention(q_num_heads=HEADS, kv_num_heads=HEADS)
    y = graph.insert(attention, [q, k, v, mask], 1, name="attention").output
    graph.set_outputs({"y": y, "keys": k} if shown else {"y": y})
    infer(graph)
    return graph


def exact(graph: Graph, feeds: Mapping[str, Array]) -> Array:
    """Return the attention in float64."""
    found = list[Array]()
    for node in graph.nodes:
        if isinstance(node.op, MatMul):
            x, b = node.operands
            assert b.data is not None
            y = feeds[x.name].astype(np.float64) @ b.data.astype(np.float64)
            found += np.split(y, y.shape[-1] // (HEADS * SIZE), axis=-1)
    q, k, v = (y.reshape(BATCH, LENGTH, HEADS, SIZE).swapaxes(1, 2) for y in found)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(SIZE) + feeds["mask"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    y = weights @ v / weights.sum(-1, keepdims=True)
    return y.swapaxes(1, 2).reshape(BATCH, LENGTH, -1)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("power", [-25, 0, 3])
def test_results(
    power: int, cross: bool, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors are those of float32; a hidden key is far greater than others."""
    monkeypatch.setattr(cut_heads, "choose", lambda *_: SHAPE)
    graph = graph_of(cross=cross)
    x, mask = normal(BATCH, LENGTH, 64) / 16, normal(BATCH, 1, 1, LENGTH)
    x *= np.float32(10.0**power)
    feeds = {"x": x, "z": np.roll(x, 1), "mask": mask}
    mask[..., 5], x[:, 5] = -np.inf, 1e4 * x[:, 5]
    with Model(graph.clone(), [hopper], OPTIONS, evaluate) as model:
        (got,) = model.run(feeds).values()
        formats = [slot.format for row in model.prepare().rows for slot in row.outputs]
        assert formats.count(Format.HALVES) == 1 + cross
        assert "reformat" not in {row.kind for row in model.prepare().rows}
    want = exact(graph, feeds)
    error = np.linalg.norm(got - want, axis=-1)
    assert (error <= 1e-6 * np.linalg.norm(want, axis=-1)).all()


@pytest.mark.parametrize("given", [{"size": 32}, {"shown": True}], ids=str)
def test_other_attention_reads_float32(given: Mapping[str, Any]) -> None:
    """Heads must have a separate scale, and nothing else may read them."""
    formats = [
        slot.format for row in planned(graph_of(terms=TERMS, **given)).rows for slot in row.outputs
    ]
    assert Format.HALVES not in formats
    formats = [slot.format for row in planned(graph_of(terms=TERMS)).rows for slot in row.outputs]
    assert formats.count(Format.HALVES) == 1


@pytest.mark.slow
def test_it_compiles(cache: Path) -> None:
    """With results whole and in halves; nothing spills."""
    device = DryDevice()
    planned(graph_of(terms=TERMS), device)
    sources = [x for x in device.compiler.sources if x.file == "attention/attention_f16x3.cu"]
    assert sources
    assert_nothing_spills(sources, Compiler(H200, cache))
