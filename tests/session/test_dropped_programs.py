"""What programs and models held is free once they are closed, without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import numpy as np
import pytest
from onnx.parser import parse_model

import tercet
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.graph import Node, Value
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..plan.fakes import FakeBackend
from ..plan.lazy import LazyDevice

CONTROL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 4] x, bool c) => (float[n, 4] y) {
    a = Relu (x)
    y = If (c) <
        then_branch = t () => (float[n, 4] u) { s = Shape (x)  r = Reshape (x, s)  u = Relu (r) },
        else_branch = e () => (float[n, 4] v) { v = Relu (a) }>
}
"""
PLAIN = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 4] x) => (float[n, 4] y) { a = Relu (x)  b = Add (a, x)  y = Relu (b) }
"""


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def evict(model: Model) -> None:
    """Prepare programs of which the model keeps one; nodes and values of others are freed."""
    counts: list[int] = []
    for rows in range(2, 9):
        program = model.prepare({"x": (rows, 4)})
        assert program.graph.nodes
        del program
        counts.append(sum(isinstance(each, Node | Value) for each in gc.get_objects()))
    assert counts[-1] <= counts[1]


@pytest.mark.parametrize("text", [PLAIN, CONTROL], ids=["plain", "control"])
def test_graphs_of_evicted_programs_are_freed(text: str) -> None:
    with tercet.load(parse_model(text), max_plans=1) as model:
        evict(model)


def test_graphs_for_a_device_are_freed() -> None:
    options = Options(max_plans=1)
    with tercet.load(parse_model(PLAIN)) as host:
        backends = [FakeBackend(LazyDevice())]
        with Model(host.imported, backends, options, evaluate) as model:
            evict(model)


LAYER = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 4] x) => (float[n, 2] y)
    <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { a = MatMul (x, w)  y = Relu (a) }
"""


def test_weights_of_closed_models_are_freed() -> None:
    with tercet.load(parse_model(LAYER)) as model:
        model.run({"x": np.ones((3, 4), np.float32)})
        data = model.imported.values["w"].data
        assert data is not None
        weights = ref(data)
        del data
    assert model.imported.nodes
    with pytest.raises(tercet.UsageError, match="closed"):
        _ = model.graph
    del model
    assert weights() is None


def test_graphs_that_callers_keep_stay() -> None:
    with tercet.load(parse_model(LAYER)) as model:
        imported, optimised = model.imported, model.graph
    assert [node.kind for node in imported.nodes] == ["MatMul", "Relu"]
    assert optimised.nodes
