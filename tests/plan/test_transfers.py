"""Large inputs and results, which a device copies from and to callers' memory, on a lazy device."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.base import copying
from tercet.runtime.errors import DeviceError, DeviceOutOfMemory
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Add, Relu, Sigmoid
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import View
from tercet.runtime.plan.host import HOST, HostBuffer
from tercet.runtime.plan.result_memory import MAX_PINNED
from tercet.runtime.plan.transfers import MIN_DOWNLOAD, MIN_UPLOAD
from tercet.runtime.session.model import Model
from tercet.runtime.session.overflow import Watch
from tercet.tools.profile.row_timing import Probe

from .fakes import FakeBackend, elements
from .lazy import LazyDevice, LazyStream

COUNT = MIN_UPLOAD // 4


def graph_of(count: int = COUNT) -> Graph:
    """Return y = relu(x + x) and z = relu(x), which is ready before `late` is read."""
    graph = Graph("large")
    x = graph.add_input("x", TensorType(float32, (count,)))
    late = graph.add_input("late", TensorType(float32, (count,)))
    twice = graph.insert(Add(), [x, x], name="twice").output
    y = graph.insert(Add(), [graph.insert(Relu(), [twice], name="r").output, late], name="s").output
    z = graph.insert(Relu(), [x], name="z").output
    graph.set_outputs({"z": z, "y": y})
    infer(graph)
    return graph


def expected(feeds: dict[str, Array]) -> dict[str, Array]:
    x, late = feeds["x"], feeds["late"]
    return {"z": np.maximum(x, 0), "y": np.maximum(x + x, 0) + late}


def model_of(device: LazyDevice, graph: Graph | None = None, **options: Any) -> Model:
    graph = graph_of() if graph is None else graph
    return Model(graph, [FakeBackend(device)], Options(**options), lambda op, a, outputs: None)


def data(seed: int, count: int = COUNT) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(count, np.float32) for name in ("x", "late")}


def check(results: dict[str, Array], feeds: dict[str, Array]) -> None:
    for name, wanted in expected(feeds).items():
        np.testing.assert_array_equal(results[name], wanted)


def address(array: Array) -> int:
    return array.__array_interface__["data"][0]


def is_pinned(device: LazyDevice, array: Array) -> bool:
    return device.exchange.is_pinned(array)


def test_a_small_input_has_memory_from_the_start() -> None:
    """So it may come before any row has run, even if it is read late."""
    graph = Graph("late")
    x, late = (graph.add_input(name, TensorType(float32, (16,))) for name in ("x", "late"))
    twice = graph.insert(Add(), [x, x]).output
    y = graph.insert(Relu(), [graph.insert(Add(), [twice, x]).output]).output
    graph.set_outputs({"y": graph.insert(Add(), [y, late]).output})
    infer(graph)
    with model_of(LazyDevice(), graph) as model:
        (plan,) = model.prepare().plans
        rows = [row for row in plan.rows if row.outputs[0].device is not HOST]
        copied = next(row.outputs[0].block for row in rows if row.inputs[0].value.name == "late")
        others = [row.outputs[0].block for row in rows if row.outputs[0].block is not copied]
        assert copied is not None
        before = [block for block in others if block is not None and block.first < copied.last]
        assert len(before) >= 2
        assert all(block.offset != copied.offset for block in before)


def test_an_input_and_a_view_of_it_are_copied_once() -> None:
    graph = Graph("views")
    x = graph.add_input("x", TensorType(float32, (4, 6)))
    shape = graph.constant(np.array([2, 12]))
    y = graph.insert(Relu(), [x], name="y").output
    seen = graph.insert(Reshape(), [x, shape]).output
    z = graph.insert(Add(), [seen, seen], name="z").output
    graph.set_outputs({"y": y, "z": z})
    infer(graph)
    values = np.random.default_rng(0).standard_normal((4, 6), np.float32)
    with model_of(LazyDevice(), graph) as model:
        model.run({"x": values})
        found = model.run({"x": values})
        copies = [row for row in model.placement() if row.kind == "copy"]
    assert len(copies) == 3
    np.testing.assert_array_equal(found["y"], np.maximum(values, 0))
    np.testing.assert_array_equal(found["z"], 2 * values.reshape(2, 12))


def test_a_large_result_and_a_view_of_it() -> None:
    graph = Graph("views")
    x = graph.add_input("x", TensorType(float32, (COUNT,)))
    y = graph.insert(Relu(), [x], name="y").output
    seen = graph.insert(Reshape(), [y, graph.constant(np.array([2, -1]))]).output
    graph.set_outputs({"y": y, "seen": seen})
    infer(graph)
    with model_of(LazyDevice(), graph) as model:
        for seed in range(3):
            values = data(seed)["x"]
            found = model.run({"x": values})
            np.testing.assert_array_equal(found["y"], np.maximum(values, 0))
            np.testing.assert_array_equal(found["seen"], found["y"].reshape(2, -1))


@pytest.mark.parametrize("options", [{"streams": 1}, {"streams": 4}, {"check_each": True}], ids=str)
def test_results_are_written_to_pinned_memory_of_the_caller(options: dict[str, Any]) -> None:
    device = LazyDevice()
    with model_of(device, **options) as model:
        for seed in range(4):
            feeds = data(seed)
            results = model.run(feeds)
            check(results, feeds)
            assert all(is_pinned(device, array) for array in results.values())
            assert list(results) == ["z", "y"]
        assert device.recordings == ("check_each" not in options)


def test_held_results_stay_and_further_ones_are_not_pinned() -> None:
    device = LazyDevice()
    with model_of(device) as model:
        runs = [(feeds, model.run(feeds)) for feeds in map(data, range(5))]
        for feeds, results in runs:
            check(results, feeds)
        pinned = [is_pinned(device, results["y"]) for _, results in runs]
        assert pinned == [True] * MAX_PINNED + [False] * (5 - MAX_PINNED)
    for feeds, results in runs:  # of a closed model
        check(results, feeds)


def test_a_loop_alternates_between_two_buffers() -> None:
    device = LazyDevice()
    with model_of(device) as model:
        result, places = None, set()
        for seed in range(6):
            result = model.run(data(seed))["y"]
            places.add(address(result))
        assert len(places) == MAX_PINNED
        assert result is not None


def test_memory_that_cannot_be_pinned_is_replaced() -> None:
    class Stingy(LazyDevice):
        def staging(self, nbytes: int) -> HostBuffer:
            if nbytes == MIN_UPLOAD:
                raise DeviceOutOfMemory("no more pinned memory")
            return super().staging(nbytes)

    device = Stingy()
    with model_of(device) as model:
        for seed in range(3):
            feeds = data(seed)
            results = model.run(feeds)
            check(results, feeds)
            assert not is_pinned(device, results["y"])


def pin(device: LazyDevice, feeds: dict[str, Array]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, array in feeds.items():
        found[name] = device.staging(array.nbytes).memory.view(array.dtype)
        found[name][...] = array
    return found


def test_pinned_inputs_are_read_where_they_are_and_let_go_of() -> None:
    device = LazyDevice()
    with model_of(device) as model:
        feeds = pin(device, data(0))
        for seed in range(3):
            feeds = pin(device, data(seed))
            check(model.run(feeds), feeds)
            mixed = {**data(seed + 10), "x": feeds["x"]}
            check(model.run(mixed), mixed)
        device.pinned.clear()
        held = gc.get_referrers(feeds["x"])
        assert [h for h in held if isinstance(h, HostBuffer)] == []
        (plan,) = model.prepare().plans
        staging = plan.inputs["x"].buffer
        assert isinstance(staging, HostBuffer)
        assert not np.shares_memory(staging.memory, feeds["x"])


class ScreeningDevice(LazyDevice):
    """Looks for infinities and NaN in place of the host."""

    def screen(self, view: View, found: HostBuffer) -> Any:
        def run(stream: LazyStream) -> None:
            def now() -> None:
                found.memory[0] = not np.isfinite(elements(view)).all()

            stream.put(now)

        return run


def test_the_device_looks_for_what_half_precision_made_infinite() -> None:
    device = ScreeningDevice()
    seen: list[set[str]] = []

    def look(watch: Watch, results: Any, feeds: Any, narrow: Any, finite: set[str]) -> None:
        seen.append(set(finite))

    graph = graph_of()
    with pytest.MonkeyPatch.context() as patch, model_of(device, graph) as model:
        patch.setattr(Watch, "look", look)
        object.__setattr__(model.options, "precision", "bfloat16")
        feeds = data(0)
        model.run(feeds)
        feeds["late"][7] = np.inf
        model.run(feeds)
        feeds["x"][-1] = np.nan
        model.run(feeds)
    assert seen == [{"y", "z"}, {"z"}, set()]


def test_inputs_of_another_layout_are_copied() -> None:
    device = LazyDevice()
    with model_of(device) as model:
        wide = device.staging(2 * MIN_UPLOAD).memory.view(np.float32)
        wide[...] = np.random.default_rng(0).standard_normal(wide.size, np.float32)
        feeds = {"x": wide[::2], "late": wide[::-2]}
        check(model.run(feeds), feeds)


def test_a_fault_waits_for_the_readers_of_pinned_inputs() -> None:
    device = LazyDevice(fail_at=1)
    with model_of(device) as model:
        feeds = pin(device, data(0))
        with pytest.raises(DeviceError, match="on fire"):
            model.run(feeds)
        assert all(not stream.work for stream in device.opened)
        check(model.run(feeds), feeds)


def test_small_tensors_are_part_of_the_recording() -> None:
    device = LazyDevice()
    count = MIN_DOWNLOAD // 4 - 1
    with model_of(device, graph_of(count)) as model:
        feeds = data(0, count)
        results = model.run(feeds)
        check(results, feeds)
        assert not is_pinned(device, results["y"])
        assert device.copied == []


def test_results_are_written_to_the_caller_from_fewer_bytes_on_than_inputs_are_read() -> None:
    device = LazyDevice()
    count = MIN_DOWNLOAD // 4
    with model_of(device, graph_of(count)) as model:
        feeds = data(0, count)
        results = model.run(feeds)
        check(results, feeds)
        assert all(is_pinned(device, array) for array in results.values())
        assert {target for _, target, _ in device.copied} == {"cpu"}


def test_a_tensor_given_twice_and_one_read_by_the_host() -> None:
    """Two names of one result, and an input and a result that the host reads as well."""
    graph = graph_of()
    x, y = graph.inputs[0], graph.outputs["y"]
    host = graph.insert(Sigmoid(), [x], name="host").output
    after = graph.insert(Sigmoid(), [y], name="after").output
    graph.set_outputs({"y": y, "again": y, "host": host, "after": after})
    infer(graph)
    device = LazyDevice()
    backends = (FakeBackend(device), NumpyBackend())
    with Model(graph, backends, Options(), evaluate) as model:
        for feeds in map(data, range(3)):
            results = model.run(feeds)
            wanted = expected(feeds)["y"]
            np.testing.assert_array_equal(results["y"], wanted)
            np.testing.assert_array_equal(results["again"], wanted)
            assert not np.shares_memory(results["y"], results["again"])
            np.testing.assert_allclose(results["host"], 1 / (1 + np.exp(-feeds["x"])), rtol=1e-6)
            np.testing.assert_allclose(results["after"], 1 / (1 + np.exp(-wanted)), rtol=1e-6)


def test_pieces_of_inputs_are_sent_while_others_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "LARGE", MIN_UPLOAD)
    monkeypatch.setattr(copying, "PIECE", MIN_UPLOAD // 3)
    monkeypatch.setattr(copying, "usable_cpus", lambda: 3)
    device = LazyDevice()
    with model_of(device) as model:
        for seed in range(3):
            feeds = data(seed)
            device.copied.clear()
            check(model.run(feeds), feeds)
            assert all(target != device.name for _, target, _ in device.copied)  # not as a whole
            mixed = {**data(seed + 10), "x": pin(device, data(seed))["x"]}
            check(model.run(mixed), mixed)


def test_a_profile_times_the_copies_of_a_run() -> None:
    device = LazyDevice()
    with model_of(device) as model:
        feeds = data(0)
        model.run(feeds)
        copied = Counter((source, target) for source, target, _ in device.copied)
        device.copied.clear()
        probe = Probe(model)
        spans = {span.key for span in probe.run(feeds).spans}
        assert Counter((source, target) for source, target, _ in device.copied) == copied
        rows = [row for row in probe.program(feeds).rows if row.apart]
        assert len(rows) == copied.total()
        assert {id(row) for row in rows} <= spans
        probe.close()
