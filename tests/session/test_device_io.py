"""Arrays on the device in and out, and callers' streams, on a device that is as lazy as can be."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.importers.onnx import load
from tercet.runtime.errors import DeviceError, DeviceOutOfMemory, InputError, UsageError
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ir.verify import verify
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu, Sigmoid
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Backend
from tercet.runtime.plan.format import Format
from tercet.runtime.session.model import Model

from ..plan.fakes import FakeBackend
from ..plan.lazy import Foreign, LazyArray, LazyDevice, LazyStream
from ..threads import together


def chain(length: int = 3, *, constant: bool = False) -> Graph:
    graph = Graph("chain")
    x = graph.add_input("x", TensorType(float32, ("batch", 4)))
    y = x
    for i in range(length):
        op, inputs = (Relu(), [y]) if i % 2 else (Add(), [y, x])
        y = graph.insert(op, inputs, name=f"n{i}").output
    results = {"y": y}
    if constant:
        results["c"] = graph.constant(np.arange(3, dtype=np.float32), "c")
    graph.set_outputs(results)
    return graph


def expected(x: Array, length: int = 3) -> Array:
    y = x
    for i in range(length):
        y = np.maximum(y, 0) if i % 2 else y + x
    return y


def model_of(graph: Graph, device: LazyDevice, *others: Backend, **options: Any) -> Model:
    infer(graph)
    verify(graph)
    backends = (FakeBackend(device), *others)
    return Model(graph, backends, Options(**options), lambda op, arrays, outputs: None)


def data(seed: int, batch: int = 2) -> Array:
    return np.random.default_rng(seed).standard_normal((batch, 4), np.float32)


def test_device_in_device_out_does_not_wait() -> None:
    device = LazyDevice()
    with model_of(chain(), device) as model:
        x = data(0)
        model.prepare({"x": x.shape}, to="device")
        before = device.host_waits, [s.waits for s in device.opened]
        results = [model.run({"x": Foreign(x + i)}, to="device")["y"] for i in range(5)]
        assert (device.host_waits, [s.waits for s in device.opened]) == before
        assert device.replays == 0, "nothing has run yet"
        for i, y in enumerate(results):
            np.testing.assert_array_equal(y.numpy(), expected(x + i))
        assert device.recordings == 1


def test_what_goes_where() -> None:
    """Numpy's arrays and the device's go in and come out in all four ways."""
    device = LazyDevice()
    x = data(1)
    with model_of(chain(), device) as model:
        for given in (x, Foreign(x)):
            np.testing.assert_array_equal(model.run({"x": given})["y"], expected(x))
            there = model.run({"x": given}, to="device")["y"]
            assert isinstance(there, LazyArray)
            np.testing.assert_array_equal(there.numpy(), expected(x))
            again = model.run({"x": there}, to="device")["y"]
            np.testing.assert_array_equal(again.numpy(), expected(expected(x)))
    assert model.device == "fake:0"


def test_numpy_in_device_out_keeps_what_the_run_before_reads() -> None:
    """The pinned memory is filled again only when the device has read it."""
    device = LazyDevice()
    with model_of(chain(), device) as model:
        results = [model.run({"x": data(i)}, to="device")["y"] for i in range(4)]
        for i, y in enumerate(results):
            np.testing.assert_array_equal(y.numpy(), expected(data(i)))


def test_results_are_new_arrays_and_constants_are_results_too() -> None:
    device = LazyDevice()
    with model_of(chain(constant=True), device) as model:
        first = model.run({"x": data(0)}, to="device")
        second = model.run({"x": data(1)}, to="device")
        assert list(first) == ["y", "c"]
        np.testing.assert_array_equal(first["c"].numpy(), [0, 1, 2])
        np.testing.assert_array_equal(second["y"].numpy(), expected(data(1)))
        np.testing.assert_array_equal(first["y"].numpy(), expected(data(0)))


def test_streams_take_turns_on_one_plan() -> None:
    """The runs' results are right although the streams are emptied in the wrong order."""
    device = LazyDevice()
    streams = [LazyStream(f"mine {i}") for i in range(3)]
    with model_of(chain(), device) as model:
        results = [
            model.run({"x": Foreign(data(i))}, to="device", stream=streams[i % 3])["y"]
            for i in range(9)
        ]
        for i in reversed(range(9)):
            np.testing.assert_array_equal(results[i].numpy(), expected(data(i)))
    assert device.recordings == 1


def test_a_run_waits_for_the_stream_that_writes_its_inputs() -> None:
    device, producer = LazyDevice(), LazyStream("producer")
    x = np.zeros((2, 4), np.float32)
    with model_of(chain(), device) as model:
        producer.put(lambda: np.copyto(x, 1))
        given = Foreign(x, stream=producer)
        y = model.run({"x": given}, to="device", stream=LazyStream("mine"))["y"]
        np.testing.assert_array_equal(y.numpy(), expected(np.ones((2, 4), np.float32)))


def test_inputs_are_kept_until_the_device_has_read_them() -> None:
    import weakref

    device = LazyDevice()
    with model_of(chain(), device) as model:
        given = Foreign(data(0))
        seen = weakref.ref(given)
        y = model.run({"x": given}, to="device")["y"]
        del given
        gc.collect()
        assert seen() is not None
        y.numpy()
        model.run({"x": Foreign(data(1))}, to="device")["y"].numpy()
        gc.collect()
        assert seen() is None


def test_a_host_far_ahead_waits() -> None:
    device = LazyDevice()
    with model_of(chain(), device) as model:
        results = [model.run({"x": Foreign(data(i))}, to="device")["y"] for i in range(40)]
        assert 0 < device.replays < 40
        for i, y in enumerate(results):
            np.testing.assert_array_equal(y.numpy(), expected(data(i)))


def test_threads_on_streams_of_their_own() -> None:
    device = LazyDevice()
    wrong: list[int] = []
    with model_of(chain(), device) as model:

        def work(seed: int) -> None:
            stream = LazyStream(f"thread {seed}")
            for i in range(20):
                x = data(100 * seed + i, 1 + seed % 2)
                y = model.run({"x": x}, stream=stream)["y"]
                if not np.array_equal(y, expected(x)):
                    wrong.append(seed)

        together(work, 6)
    assert not wrong


def test_closing_waits_and_returns_every_byte() -> None:
    device = LazyDevice()
    model = model_of(chain(constant=True), device)
    results = model.run({"x": Foreign(data(0))}, to="device")
    model.close()
    assert device.replays == 1
    np.testing.assert_array_equal(results["y"].numpy(), expected(data(0)))
    for result in results.values():
        result.close()
    assert device.allocated == 0
    assert device.exchange.trims == 1
    with pytest.raises(UsageError, match="closed"):
        model.run({"x": Foreign(data(0))}, to="device")


def test_out_of_memory_for_results_is_typed_and_does_no_harm() -> None:
    device = LazyDevice()
    with model_of(chain(), device) as model:
        y = model.run({"x": Foreign(data(0))}, to="device")["y"]
        device.limit = device.allocated
        with pytest.raises(DeviceOutOfMemory):
            model.run({"x": Foreign(data(1))}, to="device")
        device.limit = 1 << 40
        again = model.run({"x": Foreign(data(2))}, to="device")["y"]
        np.testing.assert_array_equal(y.numpy(), expected(data(0)))
        np.testing.assert_array_equal(again.numpy(), expected(data(2)))


def test_channels_last_goes_in_as_it_is() -> None:
    graph = Graph("conv")
    x = graph.add_input("x", TensorType(float32, (1, 3, 4, 4)))
    weight = np.random.default_rng(1).standard_normal((3, 3, 1, 1), np.float32)
    y = graph.insert(Conv(), [x, graph.constant(weight, "w")], name="conv").output
    graph.set_outputs({"y": y})
    image = np.random.default_rng(2).standard_normal((1, 4, 4, 3), np.float32)
    want = np.einsum("nhwc,mc->nmhw", image, weight[:, :, 0, 0])
    with model_of(graph, LazyDevice()) as model:
        given = Foreign(image, format=Format.CHANNELS_LAST)
        np.testing.assert_allclose(model.run({"x": given})["y"], want, rtol=1e-6)
        kinds = [row.kind for row in model.placement()]
        assert kinds == ["step", "reformat", "copy"], "no reformat in front"


def test_a_fallback_in_between_still_works() -> None:
    graph = chain(2)
    y = graph.insert(Sigmoid(), [graph.outputs["y"]], name="s").output
    graph.set_outputs({"y": y})
    device = LazyDevice()
    with model_of(graph, device, NumpyBackend()) as model:
        there = model.run({"x": Foreign(data(3))}, to="device")["y"]
        want = 1 / (1 + np.exp(-expected(data(3), 2)))
        np.testing.assert_allclose(there.numpy(), want, rtol=1e-6)


# ── bound ────────────────────────────────────────────────────────────────────────────────────────


def test_bound_runs_where_its_tensors_are() -> None:
    device = LazyDevice()
    with model_of(chain(), device) as model, model.bind({"x": (2, 4)}) as bound:
        allocations = device.allocations
        y = bound.outputs["y"]
        for i in range(3):
            given = {"x": Foreign(data(i))} if i % 2 else {"x": data(i)}
            assert bound.run(given, stream=LazyStream(f"s{i}"))["y"] is y
            np.testing.assert_array_equal(y.numpy(), expected(data(i)))
        bound.run()
        np.testing.assert_array_equal(y.numpy(), expected(data(2)), "the input has stayed")
        assert device.allocations == allocations
        with pytest.raises(InputError, match=r"takes float32\[2,4\], contiguous"):
            bound.run({"x": data(0, batch=3)})
        with pytest.raises(InputError, match="no input 'z'"):
            bound.run({"z": data(0)})
    with pytest.raises(UsageError, match="closed"):
        bound.run()
    assert device.allocated == 0


def test_two_bound_have_plans_of_their_own() -> None:
    device = LazyDevice()
    with (
        model_of(chain(), device) as model,
        model.bind({"x": (2, 4)}) as a,
        model.bind({"x": (2, 4)}) as b,
    ):
        ya, yb = a.run({"x": data(0)})["y"], b.run({"x": data(1)})["y"]
        np.testing.assert_array_equal(ya.numpy(), expected(data(0)))
        np.testing.assert_array_equal(yb.numpy(), expected(data(1)))


def test_bound_on_the_host() -> None:
    graph = chain()
    infer(graph)
    with (
        Model(graph, (NumpyBackend(),), Options(), lambda op, arrays, outputs: None) as model,
        model.bind({"x": (2, 4)}) as bound,
    ):
        bound.inputs["x"][:] = data(0)
        for _ in range(2):
            np.testing.assert_array_equal(bound.run()["y"], expected(data(0)))
        np.testing.assert_array_equal(bound.run({"x": data(1)})["y"], expected(data(1)))
        with pytest.raises(UsageError, match="no streams"):
            bound.run(stream=1)


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Foreign(data(0), number=1), "input 'x' is on DLPack's device 12, number 1"),
        (Foreign(data(0).astype(np.float64)), "dtype float64; the model expects x: float32"),
        (Foreign(data(0)[0]), "the model expects an array of rank 2"),
        (Foreign(data(0)[:, :3].copy()), "axis 1 must be 4"),
    ],
)
def test_wrong_arrays(given: Foreign, text: str) -> None:
    with (
        model_of(chain(), LazyDevice()) as model,
        pytest.raises(InputError) as caught,
    ):
        model.run({"x": given}, to="device")
    assert text in str(caught.value)


def test_a_model_on_the_host_says_what_to_do() -> None:
    graph = chain()
    infer(graph)
    with Model(graph, (NumpyBackend(),), Options(), lambda op, arrays, outputs: None) as model:
        with pytest.raises(InputError, match="load the model with backend='cuda'"):
            model.run({"x": Foreign(data(0))})
        with pytest.raises(UsageError, match="no streams"):
            model.run({"x": data(0)}, stream=3)
        here = model.run({"x": data(0)}, to="device")["y"]
        np.testing.assert_array_equal(here, expected(data(0)))
        with pytest.raises(UsageError, match="neither 'host' nor 'device'"):
            model.run({"x": data(0)}, to="gpu")  # type: ignore[arg-type]  # wrong on purpose


def test_a_fault_on_the_device_is_heard_where_results_are_read() -> None:
    device = LazyDevice(fail_at=1)
    with model_of(chain(), device) as model:
        y = model.run({"x": Foreign(data(0))}, to="device")["y"]
        with pytest.raises(DeviceError, match="on fire"):
            y.numpy()


# ── what is no single plan, and what the host has to see ─────────────────────────────────────────


def loaded(text: str, device: LazyDevice, *others: Backend) -> Model:
    proto = parse_model('<ir_version: 10, opset_import: ["" : 21]>\n' + text)
    graph = load(proto).graph
    return Model(graph, (FakeBackend(device), *others), Options(), evaluate)


def test_control_flow_takes_and_gives_arrays_on_the_device() -> None:
    text = """
    g (bool c, float[n, 3] x) => (float[n, 3] y) {
      y = If (c) <
        then_branch = then () => (a) { a = Add (x, x) },
        else_branch = other () => (b) { b = Relu (x) }
      >
    }"""
    x = np.random.default_rng(0).standard_normal((2, 3), np.float32)
    with loaded(text, LazyDevice(), NumpyBackend()) as model:
        for yes in (True, False):
            want = x + x if yes else np.maximum(x, 0)
            given = {"c": np.array(yes), "x": Foreign(x)}
            np.testing.assert_array_equal(model.run(given)["y"], want)
            there = model.run(given, to="device")["y"]
            assert isinstance(there, LazyArray)
            np.testing.assert_array_equal(there.numpy(), want)
            (result,) = model.map([given])
            np.testing.assert_array_equal(result["y"], want)
        with pytest.raises(UsageError, match="no fixed addresses; use run"):
            model.bind({"x": (2, 3)})


def test_a_shape_on_the_device_is_brought_to_the_host() -> None:
    text = """
    g (float[n] x, int64[r] shape) => (y) {
      other = Reshape (x, shape)
      y = Relu (other)
    }"""
    x = np.random.default_rng(0).standard_normal(12).astype(np.float32)
    with loaded(text, LazyDevice()) as model:
        for shape in ((3, 4), (12, 1), (3, 4)):
            given = {"x": Foreign(x), "shape": Foreign(np.array(shape))}
            y = model.run(given, to="device")["y"]
            np.testing.assert_array_equal(y.numpy(), np.maximum(x.reshape(shape), 0))
