"""Attention with sinks between linear layers: one kernel, whose heads are columns of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Slice, Transpose
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Precision
from tercet.runtime.session.model import Model

from .dry import DryDevice, apply, launches, normal, planned_model
from .emulator import needs_compiler
from .samples import OPTIONS, Sample, compare

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

HALF = replace(OPTIONS, precision="float16")
LENGTH, SIZE = 24, 16
#: Heads and samples; shares that one head or one sample has are views, not transposes.
COUNTS = pytest.mark.parametrize(("heads", "batch"), [(4, 2), (1, 2), (4, 1)])


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def network(heads: int, batch: int, length: int = LENGTH) -> Graph:
    """Return the attention of gpt-oss between layers, with as many heads of keys as of queries."""
    graph, width = Graph("sinks"), heads * SIZE
    x = graph.add_input("x", TensorType(float32, (batch, length, width)))
    drawn = [normal(width, width) / width**0.5 for _ in range(4)]

    def by_head(place: int, *perm: int) -> Value:
        y = apply(graph, MatMul(), x, drawn[place])
        y = apply(graph, Reshape(), y, ints(0, -1, heads, SIZE))
        return apply(graph, Transpose(perm=perm), y)

    q, k, v = by_head(0, 0, 2, 1, 3), by_head(1, 0, 2, 3, 1), by_head(2, 0, 2, 1, 3)
    scores = apply(graph, MatMul(), apply(graph, Mul(), q, np.array(0.25, np.float32)), k)
    causal = np.where(np.tril(np.ones((length, length), bool)), 0, -np.inf).astype(np.float32)
    scores = apply(graph, Add(), scores, causal)
    sinks = np.broadcast_to(2 * normal(1, heads, 1, 1), (batch, heads, length, 1)).copy()
    weights = apply(graph, Softmax(axis=-1), apply(graph, Concat(axis=-1), scores, sinks))
    weights = apply(graph, Slice(), weights, ints(0), ints(-1), ints(3), ints(1))
    y = apply(graph, Transpose(perm=(0, 2, 1, 3)), apply(graph, MatMul(), weights, v))
    y = apply(graph, MatMul(), apply(graph, Reshape(), y, ints(0, -1, width)), drawn[3])
    graph.set_outputs({"y": y})
    infer(graph)
    return graph


@COUNTS
@pytest.mark.parametrize(
    ("precision", "entry"), [("float16", "attention_mma"), ("float32", "attention_f16x3")]
)
def test_nothing_is_moved(precision: Precision, entry: str, heads: int, batch: int) -> None:
    device = DryDevice()
    options = replace(OPTIONS, precision=precision)
    with Model(network(heads, batch), [NumpyBackend()], options, evaluate) as model:
        found = [launch.entry for launch in launches(planned_model(model, device))]
    assert found.count(entry) == 1
    assert not {"reduce_chain", "transpose", "copy_strided", "attention", "softmax"} & set(found)


@needs_compiler
@COUNTS
def test_results(heads: int, batch: int, emulated: CudaBackend) -> None:
    graph = network(heads, batch)
    feeds = {"x": normal(*graph.inputs[0].tensor.dims)}
    compare(Sample(graph, feeds), emulated, options=HALF, error=2e-3)
