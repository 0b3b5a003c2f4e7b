"""The logarithm of a Sigmoid as a Softplus."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Log, Sigmoid

from .graphs import apply, kinds, optimised, run


def log_of_gate(*, shared: bool = False) -> Graph:
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (5,)))
    gate = apply(graph, Sigmoid(), x)
    graph.set_outputs({"y": apply(graph, Log(), gate)} | ({"gate": gate} if shared else {}))
    infer(graph)
    return graph


@pytest.mark.parametrize("shared", [False, True])
def test_large_gates_keep_their_digits(shared: bool) -> None:
    after, log = optimised(log_of_gate(shared=shared))
    assert log.counts["log_sigmoid"] == 1
    assert sorted(kinds(after)) == sorted(["Neg", "Softplus", "Neg", *["Sigmoid"][: int(shared)]])
    x = np.array([-120, -90, 0, 25, np.inf], np.float32)
    found = run(after, x, np.float32)
    expected = -np.logaddexp(0, -x.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_infinite_gate() -> None:
    after, _ = optimised(log_of_gate())
    found = run(after, np.array([-np.inf, np.nan, 0, 0, 0]), np.float32)
    np.testing.assert_array_equal(found[:2], [-np.inf, np.nan])
