"""The six phases of a GPU program once, then nothing but copy, compute, copy."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.backends import open_backends
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Mul
from tercet.runtime.ops.matmul import Gemm
from tercet.runtime.ops.movement import Slice
from tercet.runtime.ops.shape import Shape
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model
from tercet.tools.workshop.lifecycle import STEADY, trace_lifecycle

from ..plan.fakes import FakeBackend, FakeDevice
from ..plan.test_plan import chain, model_of


def weighted() -> Graph:
    graph = Graph("weighted")
    x = graph.add_input("x", TensorType(float32, (2, 4)))
    weight = graph.constant(np.ones((2, 4), np.float32), "w")
    graph.set_outputs({"y": graph.insert(Add(), [x, weight], name="add").output})
    return graph


def test_the_phases_once_and_then_only_three_of_them() -> None:
    device = FakeDevice()

    def make() -> Model:
        return model_of(weighted(), FakeBackend(device))

    events = trace_lifecycle(make, {"x": np.zeros((2, 4), np.float32)}, runs=3)
    first = [event.phase for event in events if event.run == 1]
    assert set(first) == {
        "allocate on the host",
        "allocate on the device",
        "copy weights",
        *STEADY,
    }
    assert first[-3:] == list(STEADY)
    for run in (2, 3):
        assert tuple(event.phase for event in events if event.run == run) == STEADY
    assert (events[-1].run, events[-1].phase) == (0, "free")
    assert events[-1].nbytes > 0 == device.allocated


def test_copies_are_of_the_inputs_and_results() -> None:
    x = np.zeros((2, 4, 5, 5), np.float32)
    events = trace_lifecycle(lambda: model_of(chain(4), FakeBackend(FakeDevice())), {"x": x})
    steady = [event for event in events if event.run == 2]
    assert [event.nbytes for event in steady] == [x.nbytes, 0, x.nbytes]


def test_sets_of_outputs_are_bounded() -> None:
    """Graphs of other results, and the weights that were folded for them, go as plans do."""
    graph, count = Graph("branches"), 20
    x = graph.add_input("x", TensorType(float32, (1, 64)))
    for number in range(count):
        weight = graph.constant(np.full((64, 64), number, np.float32))
        factor = graph.constant(np.full(64, 2, np.float32))
        product = graph.insert(Gemm(), [x, weight]).output
        graph.insert(Mul(), [product, factor], [f"y{number}"])
    infer(graph)
    graph.set_outputs({"y0": graph.values["y0"]})
    (backend,) = open_backends("numpy", Options())
    options = Options(max_plans=2)
    with Model(graph, [backend], options, evaluate) as model:
        for _ in range(2):
            for number in range(count):
                name = f"y{number}"
                result = model.run({"x": np.ones((1, 64), np.float32)}, outputs=[name])
                np.testing.assert_array_equal(result[name], np.full((1, 64), 128 * number))
        assert len(model._programs._graphs) == options.max_plans + 1
        (store,) = model._resources.stores.values()
        assert store.nbytes <= (options.max_plans + 1) * (64 * 64 + 64) * 4


@pytest.mark.parametrize("name", ["numpy", "fake"])
def test_constants_of_sizes_go_with_their_plans(name: str) -> None:
    """Rows of a table of positions, of which every length of a sequence has its own."""
    graph, width, maximum = Graph("positions"), 64, 3
    x = graph.add_input("x", TensorType(float32, ("seq", width)))
    table = np.arange(512 * width, dtype=np.float32).reshape(512, width)
    zero = graph.constant(np.array([0]), "zero")
    sizes = graph.insert(Shape(), [x]).output
    end = graph.insert(Slice(), [sizes, zero, graph.constant(np.array([1]), "one")]).output
    cut = graph.insert(Slice(), [graph.constant(table, "table"), zero, end, zero]).output
    graph.set_outputs({"y": graph.insert(Add(), [x, cut]).output})
    own = name == "fake"
    backends = [FakeBackend(FakeDevice())] if own else open_backends("numpy", Options())
    infer(graph)
    with Model(graph, backends, Options(max_plans=maximum), evaluate) as model:
        for length in [*np.random.default_rng(1).permutation(400)[:40] + 1, 1, 2, 3]:
            data = np.ones((length, width), np.float32)
            assert np.array_equal(model.run({"x": data})["y"], data + table[:length])
        left = maximum * 3 * width * 4
        assert sum(store.nbytes for store in model._resources.stores.values()) <= left
