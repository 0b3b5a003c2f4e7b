"""Plans on a device that is not the host: copies, formats, aliasing, fallback, errors, memory."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy import NumpyBackend
from tercet.runtime.errors import DeviceOutOfMemory, InputError, UnsupportedError, UsageError
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Node, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Dim, TensorType
from tercet.runtime.ir.verify import verify
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu, Sigmoid, Sum
from tercet.runtime.ops.shape import Flatten
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Backend, Claim, Decline
from tercet.runtime.session.model import Model

from ..threads import together
from .fakes import FakeBackend, FakeDevice


def graph_of(shape: tuple[Dim, ...], *, name: str = "x") -> tuple[Graph, Value]:
    graph = Graph("test")
    return graph, graph.add_input(name, TensorType(float32, shape))


def apply(graph: Graph, op, *inputs: Value, name: str | None = None) -> Value:
    return graph.insert(op, inputs, name=name).output


def model_of(graph: Graph, *backends: Backend, **options: Any) -> Model:
    infer(graph)
    verify(graph)
    return Model(graph, backends, Options(**options), lambda op, arrays, outputs: None)


def chain(length: int) -> Graph:
    graph, x = graph_of(("batch", 4, 5, 5))
    y = x
    for i in range(length):
        y = apply(graph, Relu() if i % 2 else Add(), *([y] if i % 2 else [y, x]), name=f"n{i}")
    graph.set_outputs({"y": y})
    return graph


def expected(x: np.ndarray, length: int) -> np.ndarray:
    y = x
    for i in range(length):
        y = np.maximum(y, 0) if i % 2 else y + x
    return y


def test_inputs_and_outputs_cross_once() -> None:
    device = FakeDevice()
    model = model_of(chain(6), FakeBackend(device))
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 5), np.float32)
    np.testing.assert_array_equal(model(x)[0], expected(x, 6))
    placement = model.placement()
    assert [row.kernel for row in placement.copies] == ["cpu to fake:0", "fake:0 to cpu"]
    assert [row.nbytes for row in placement.copies] == [x.nbytes, x.nbytes]
    assert placement["n1"].operators == "Add + Relu"


def test_steady_state_allocates_nothing_and_replays_one_recording() -> None:
    device = FakeDevice()
    model = model_of(chain(6), FakeBackend(device))
    x = np.ones((1, 4, 5, 5), np.float32)
    model(x)
    allocations = device.allocations
    for _ in range(50):
        model(x)
    assert device.allocations == allocations
    assert (device.recordings, device.replays) == (1, 51)


def test_every_run_enters_its_device() -> None:
    """The thread may have worked on another one in between, or on none yet."""
    devices = FakeDevice(), FakeDevice()
    models = [model_of(chain(4), FakeBackend(device)) for device in devices]
    x = np.ones((1, 4, 5, 5), np.float32)
    for model in models:
        model(x)
    before = [device.entered for device in devices]
    for model in models * 2:
        model(x)
    assert [d.entered - b for d, b in zip(devices, before, strict=True)] == [2, 2]


def test_what_cannot_be_captured_still_runs() -> None:
    device = FakeDevice()
    backend = FakeBackend(device)
    backend.capturable = False
    x = np.ones((1, 4, 5, 5), np.float32)
    np.testing.assert_array_equal(model_of(chain(4), backend)(x)[0], expected(x, 4))
    assert device.recordings == 0


def test_close_returns_every_byte() -> None:
    device = FakeDevice()
    model = model_of(chain(5), FakeBackend(device, scratch=1000))
    for batch in (1, 2, 3):
        model(np.ones((batch, 4, 5, 5), np.float32))
    assert device.allocated > 0
    model.close()
    assert device.allocated == 0
    assert all(buffer.nbytes == 0 for buffer in device.pinned)
    with pytest.raises(UsageError, match="closed"):
        model(np.ones((1, 4, 5, 5), np.float32))
    model.close()


def test_what_was_fed_stays_where_it_was_fed() -> None:
    """So that rows can be run again, for their time; results come to other memory of the host."""
    with model_of(chain(3), FakeBackend(FakeDevice())) as model:
        x = np.arange(160, dtype=np.float32).reshape(2, 4, 4, 5) - 80
        x = np.concatenate([x, x[:, :, :1]], 2)
        np.testing.assert_array_equal(model(x)[0], expected(x, 3))
        (plan,) = model.prepare({"x": x.shape}).plans
        (kept,) = plan._inputs.values()
        np.testing.assert_array_equal(kept, x)


def test_plans_by_shape_are_bounded() -> None:
    device = FakeDevice()
    with model_of(chain(3), FakeBackend(device), max_plans=2) as model:
        for batch in (1, 2, 3, 4, 5, 4):
            x = np.full((batch, 4, 5, 5), batch, np.float32)
            np.testing.assert_array_equal(model(x)[0], expected(x, 3))
        assert device.recordings == 5  # the second run of batch 4 found its plan
        assert device.allocated <= 2 * 4 * 256 * 8 * 5


def test_out_of_memory_is_typed_and_the_model_recovers() -> None:
    device = FakeDevice(limit=30_000)
    model = model_of(chain(3), FakeBackend(device))
    model(np.ones((1, 4, 5, 5), np.float32))
    before = device.allocated
    with pytest.raises(DeviceOutOfMemory, match="asked for"):
        model(np.ones((50, 4, 5, 5), np.float32))
    assert device.allocated == before
    assert sum(buffer.nbytes > 0 for buffer in device.pinned) == 1
    model(np.ones((1, 4, 5, 5), np.float32))


def test_formats_are_reformatted_once_and_visibly() -> None:
    graph, x = graph_of((1, 3, 4, 4))
    weight = np.random.default_rng(1).standard_normal((3, 3, 1, 1), np.float32)
    w = graph.constant(weight, "w")
    a = apply(graph, Conv(), x, w, name="conv1")
    b = apply(graph, Relu(), a, name="relu")
    c = apply(graph, Conv(), b, w, name="conv2")
    d = apply(graph, Add(), b, c, name="add")
    graph.set_outputs({"d": d, "b": b})
    model = model_of(graph, FakeBackend(FakeDevice()))
    data = np.random.default_rng(2).standard_normal((1, 3, 4, 4), np.float32)
    got = model.run({"x": data})
    mix = weight.reshape(3, 3)
    relu = np.maximum(np.einsum("nchw,mc->nmhw", data, mix), 0)
    np.testing.assert_allclose(got["b"], relu, rtol=1e-6)
    np.testing.assert_allclose(got["d"], relu + np.einsum("nchw,mc->nmhw", relu, mix), rtol=1e-5)
    moves = [row.kernel for row in model.placement() if row.kind == "reformat"]
    assert moves == ["contiguous to channels_last"] + ["channels_last to contiguous"] * 2


@pytest.mark.parametrize("shape", [(2, 3, 1, 1), (2, 1, 4, 5), (1, 1, 1, 1)])
def test_formats_of_equal_order_share_their_bytes(shape: tuple[int, ...]) -> None:
    graph, x = graph_of(shape)
    weight = np.random.default_rng(1).standard_normal((3, shape[1], 1, 1), np.float32)
    y = apply(graph, Conv(), apply(graph, Relu(), x), graph.constant(weight, "w"))
    graph.set_outputs({"y": y})
    model = model_of(graph, FakeBackend(FakeDevice()), skip=("lower_conv",))
    data = np.random.default_rng(2).standard_normal(shape, np.float32)
    exact = np.einsum("nchw,mc->nmhw", np.maximum(data, 0), weight[:, :, 0, 0])
    np.testing.assert_allclose(model(data)[0], exact, rtol=1e-5)
    kinds = [row.kind for row in model.placement()]
    assert kinds.count("reformat") == (0 if shape[2:] == (1, 1) else 1)


def test_results_are_reformatted_before_they_leave_the_device() -> None:
    graph, x = graph_of((1, 3, 4, 4))
    weight = np.random.default_rng(1).standard_normal((3, 3, 1, 1), np.float32)
    graph.set_outputs({"y": apply(graph, Conv(), x, graph.constant(weight, "w"))})
    model = model_of(graph, FakeBackend(FakeDevice()))
    model(np.ones((1, 3, 4, 4), np.float32))
    rows = [(row.kind, row.backend) for row in model.placement()]
    assert rows[-2:] == [("reformat", "fake:0"), ("copy", "fake:0")]


def test_views_cost_nothing() -> None:
    graph, x = graph_of((2, 3, 4, 5))
    y = apply(graph, Relu(), apply(graph, Flatten(), x, name="flat"), name="relu")
    graph.set_outputs({"y": y})
    model = model_of(graph, FakeBackend(FakeDevice()))
    data = np.random.default_rng(3).standard_normal((2, 3, 4, 5), np.float32)
    np.testing.assert_array_equal(model(data)[0], np.maximum(data, 0).reshape(2, 60))
    assert (model.placement()["flat"].kind, model.placement()["flat"].nbytes) == ("view", 0)


def test_in_place_needs_one_buffer() -> None:
    graph, x = graph_of((1, 1, 16, 16))
    y = x
    for i in range(10):
        y = apply(graph, Relu(), y, name=f"r{i}")
    graph.set_outputs({"y": y})
    memory = model_of(graph, FakeBackend(FakeDevice())).memory()
    assert memory.activations["fake:0"] == 1024
    assert memory.floor == memory.activations


def test_in_place_spares_what_is_read_later() -> None:
    graph, x = graph_of((4,))
    a = apply(graph, Relu(), x, name="a")
    b = apply(graph, Relu(), a, name="b")
    flat = apply(graph, Flatten(axis=0), a, name="view")
    c = apply(graph, Add(), b, a, name="c")
    graph.set_outputs({"c": c, "flat": flat, "x": x})
    data = np.array([-1, 2, -3, 4], np.float32)
    got = model_of(graph, FakeBackend(FakeDevice())).run({"x": data})
    np.testing.assert_array_equal(got["c"], 2 * np.maximum(data, 0))
    np.testing.assert_array_equal(got["flat"], np.maximum(data, 0)[None])
    np.testing.assert_array_equal(got["x"], data)


def test_add_of_a_value_to_itself() -> None:
    graph, x = graph_of((4,))
    graph.set_outputs({"y": apply(graph, Add(), x, x)})
    data = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(model_of(graph, FakeBackend(FakeDevice()))(data)[0], 2 * data)


def test_an_unsupported_node_lists_every_reason() -> None:
    graph, x = graph_of((1, 2))
    y = apply(graph, Sigmoid(), apply(graph, Sigmoid(), x, name="s1"), name="s2")
    graph.set_outputs({"y": y})
    with pytest.raises(UnsupportedError) as caught:
        model_of(graph, FakeBackend(FakeDevice())).prepare()
    text = str(caught.value)
    assert "2 nodes cannot run on fake" in text
    assert "Sigmoid 's1' (float32[1,2]) -> float32[1,2]: fake: fake runs no Sigmoid" in text
    assert "fallback" in text


def test_fallback_shows_each_copy() -> None:
    graph, x = graph_of((1, 2))
    a = apply(graph, Relu(), x, name="r1")
    b = apply(graph, Sigmoid(), a, name="s")
    graph.set_outputs({"y": apply(graph, Relu(), b, name="r2")})
    device = FakeDevice()
    model = model_of(graph, FakeBackend(device), NumpyBackend())
    data = np.array([[-1, 2]], np.float32)
    expect = 1 / (1 + np.exp(-np.maximum(data, 0)))
    for _ in range(3):
        np.testing.assert_allclose(model(data)[0], expect, rtol=1e-6)
    kinds = [row.kind for row in model.placement()]
    assert kinds == ["copy", "step", "copy", "step", "copy", "step", "copy"]
    assert model.placement()["s"].reason == "fake: fake runs no Sigmoid"
    assert device.recordings == 2


def test_a_backend_may_change_its_mind_while_building() -> None:
    device = FakeDevice()
    first, second = FakeBackend(device, "first"), FakeBackend(device, "second")
    first.declines_while_building = {"n2"}
    model = model_of(chain(4), first, second)
    x = np.random.default_rng(4).standard_normal((1, 4, 5, 5), np.float32)
    np.testing.assert_array_equal(model(x)[0], expected(x, 4))
    placement = model.placement()
    assert (placement["n0"].backend, placement["n2"].backend) == ("first", "second")
    assert placement["n2"].reason == "first: no engine for this one"
    assert [row.kind for row in placement].count("copy") == 2


def test_minds_changed_apart_from_each_other_are_heard_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each attempt to build asks all backends about all nodes, of which there may be thousands."""
    device, asked = FakeDevice(), list[int]()
    first, second = FakeBackend(device, "first"), FakeBackend(device, "second")
    first.declines_while_building = {f"n{i}" for i in range(0, 40, 4)}

    def claim(graph: Graph, free: Set[Node], options: Options) -> Iterable[Claim | Decline]:
        asked.append(len(free))
        return FakeBackend.claim(first, graph, free, options)

    monkeypatch.setattr(first, "claim", claim)
    model = model_of(chain(40), first, second)
    x = np.random.default_rng(4).standard_normal((1, 4, 5, 5), np.float32)
    np.testing.assert_array_equal(model(x)[0], expected(x, 40))
    placement = model.placement()
    assert all(placement[f"n{i}"].backend == "second" for i in range(0, 40, 4))
    assert len(asked) == 2


def test_nodes_that_cannot_be_one_step_are_offered_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step cannot wait for what reads a result of its own."""
    graph, x = graph_of((2, 3))
    a = apply(graph, Add(), x, x, name="first")
    graph.set_outputs({"y": apply(graph, Add(), a, apply(graph, Relu(), a), name="last")})
    backend = FakeBackend(FakeDevice())

    def claim(graph: Graph, free: Set[Node], options: Options) -> Iterable[Claim | Decline]:
        ends = [node for node in graph.nodes if node in free and node.kind == "Add"]
        if len(ends) == 2:
            yield Claim(tuple(ends), backend._builder(tuple(ends)))
            free = free - set(ends)
        yield from FakeBackend.claim(backend, graph, free, options)

    monkeypatch.setattr(backend, "claim", claim)
    data = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
    np.testing.assert_array_equal(model_of(graph, backend)(data)[0], 2 * data + 2 * data.clip(0))


def test_workspace_is_the_greatest_not_the_sum() -> None:
    memory = model_of(chain(6), FakeBackend(FakeDevice(), scratch=1000)).memory()
    assert memory.workspace["fake:0"] == 1024
    assert memory.workspace_sum["fake:0"] == 3000


def test_any_intermediate_can_be_asked_for() -> None:
    model = model_of(chain(5), FakeBackend(FakeDevice()))
    x = np.random.default_rng(5).standard_normal((1, 4, 5, 5), np.float32)
    got = model.run({"x": x}, outputs=["n0", "n2", "x"])
    assert list(got) == ["n0", "n2", "x"]
    np.testing.assert_array_equal(got["n0"], x + x)
    np.testing.assert_array_equal(got["n2"], expected(x, 3))
    with pytest.raises(InputError, match="did you mean 'n0'"):
        model.run({"x": x}, outputs=["n00"])


def test_threads_get_plans_of_their_own() -> None:
    model = model_of(chain(6), FakeBackend(FakeDevice()))
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((1 + seed % 2, 4, 5, 5), np.float32)
        for _ in range(30):
            if not np.array_equal(model(x)[0], expected(x, 6)):
                wrong.append(seed)

    together(work, 8)
    assert not wrong


@pytest.mark.parametrize(
    ("feeds", "text"),
    [
        ({}, "input 'x' is missing; the model expects x: float32[batch,4,5,5]"),
        ({"X": np.zeros((1, 4, 5, 5), np.float32)}, "no input 'X'; did you mean 'x'?"),
        ({"x": np.zeros((1, 4, 5, 5))}, "dtype float64; the model expects x: float32"),
        (
            {"x": np.zeros((4, 5, 5), np.float32)},
            "[4, 5, 5]; the model expects an array of rank 4: x: float32[batch,4,5,5]",
        ),
        ({"x": np.zeros((1, 3, 5, 5), np.float32)}, "axis 1 must be 4"),
    ],
)
def test_wrong_inputs(feeds: dict[str, np.ndarray], text: str) -> None:
    model = model_of(chain(2), FakeBackend(FakeDevice()))
    with pytest.raises(InputError) as caught:
        model.run(feeds)
    assert text in str(caught.value)


def test_all_missing_inputs_are_named() -> None:
    graph, x = graph_of(("n", 2))
    more = [graph.add_input(f"z{i}", TensorType(float32, ("n", 2))) for i in range(10)]
    graph.set_outputs({"y": apply(graph, Sum(), x, *more)})
    model = model_of(graph, FakeBackend(FakeDevice()))
    known = {value.name: np.zeros((1, 2), np.float32) for value in (x, *more)}
    two = {name: data for name, data in known.items() if name not in ("z3", "z7")}
    with pytest.raises(InputError, match=r"^2 inputs are missing; the model expects z3: .*, z7: "):
        model.run(two)
    with pytest.raises(InputError, match=r"^11 inputs are missing; .*\] and 3 more$"):
        model.run({})


def test_one_symbol_with_two_sizes_that_cannot_be_added() -> None:
    graph, x = graph_of(("n", 2))
    z = graph.add_input("z", TensorType(float32, ("n", 2)))
    graph.set_outputs({"y": apply(graph, Add(), x, z)})
    with pytest.raises(InputError, match="'n' is 3 in input 'x' but 4 in input 'z'"):
        model_of(graph, FakeBackend(FakeDevice())).run(
            {"x": np.zeros((3, 2), np.float32), "z": np.zeros((4, 2), np.float32)}
        )
