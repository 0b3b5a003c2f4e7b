"""Nodes that run one by one are prepared in their first run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy import backend
from tercet.backends.numpy.backend import NumpyBackend, evaluate
from tercet.backends.numpy.numerics.elementwise import ELEMENTWISE
from tercet.runtime.ir.graph import Graph, Node
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Add
from tercet.runtime.ops.movement import Concat
from tercet.runtime.plan.host import HOST
from tercet.runtime.plan.weights import WeightStore


def _node(op: Op, *arrays: Array) -> Node:
    graph = Graph("alone")
    types = [TensorType(x.dtype, (None,) * x.ndim) for x in arrays]
    return graph.insert(op, [graph.add_input(f"x{i}", t) for i, t in enumerate(types)], 1)


def test_an_elementwise_function_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Op] = []

    def make(op: Op) -> Any:
        made.append(op)
        return np.add

    monkeypatch.setitem(ELEMENTWISE, Add, make)
    runner, store, x = NumpyBackend(), WeightStore(HOST), np.arange(3.0)
    node = _node(Add(), x, x)
    for count in (3, 2, 3):
        (found,) = runner.evaluate(node, [x[:count], x[:count]], store)
        assert np.array_equal(np.asarray(found), 2 * x[:count])
    assert len(made) == 1


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float16, np.int64, np.bool_, object])
def test_concat_makes_no_step(axis: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(backend, "_run_built")
    parts = [np.arange(6).reshape(2, 3).astype(dtype) for _ in range(3)]
    parts[1] = parts[1].take([], axis)
    if dtype is object:
        parts = [part.astype(str).astype(object) for part in parts]
    (found,) = NumpyBackend().evaluate(_node(Concat(axis=axis), *parts), parts, WeightStore(HOST))
    assert isinstance(found, np.ndarray)
    want = np.concatenate(parts, axis)
    assert (found.dtype, found.tolist()) == (want.dtype, want.tolist())
    folded = evaluate(Concat(axis=axis), parts, 1)
    assert folded is not None
    assert folded[0].tolist() == want.tolist()
