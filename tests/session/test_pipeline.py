"""Streams of batches, on a device that does nothing before it is waited for, and on the host."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.errors import DeviceError, DeviceOutOfMemory, InputError, UsageError
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..plan.lazy import Foreign, LazyDevice
from .test_device_io import chain, data, expected, model_of


def on_host() -> Model:
    graph = chain()
    infer(graph)
    return Model(graph, (NumpyBackend(),), Options(), evaluate)


def models() -> Iterator[tuple[Model, LazyDevice | None]]:
    device = LazyDevice()
    yield model_of(chain(), device), device
    yield on_host(), None


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("copy", [True, False])
def test_results_come_in_order_whatever_the_shapes(depth: int, copy: bool) -> None:
    batches = [data(i, 1 + i % 3) for i in range(17)]
    for model, device in models():
        with model:
            results = model.map(batches, copy=copy, depth=depth)
            for batch, result in zip(batches, results, strict=True):
                np.testing.assert_array_equal(result["y"], expected(batch))
        assert device is None or (device.allocated, device.recordings) == (0, 3)


def test_batches_in_every_form() -> None:
    x = data(0)
    for model, _ in models():
        with model:
            for batch in ({"x": x}, (x,), [x], x):
                (result,) = model.map([batch])
                np.testing.assert_array_equal(result["y"], expected(x))
            with pytest.raises(InputError, match="batch 0: 2 inputs were given; the model takes 1"):
                list(model.map([(x, x)]))


def test_copies_and_work_are_on_streams_of_their_own() -> None:
    device = LazyDevice()
    with model_of(chain(), device) as model:
        results = model.map([data(i) for i in range(6)])
        next(results)
        kinds = {(source, target): stream for source, target, stream in device.copied}
        assert len(set(kinds.values())) == 3
        assert kinds["cpu", "fake:0"] != kinds["fake:0", "cpu"] != kinds["fake:0", "fake:0"]
        assert device.replays == 1, "the others are under way"
        results.close()


def test_the_host_runs_ahead_by_depth() -> None:
    device = LazyDevice()
    taken: list[int] = []

    def source() -> Iterator[Array]:
        for i in range(10):
            taken.append(i)
            yield data(i)

    with model_of(chain(), device) as model:
        results = model.map(source(), depth=3)
        next(results)
        assert taken == [0, 1, 2, 3]
        assert len(list(results)) == 9


def test_steady_state_allocates_nothing() -> None:
    device = LazyDevice()
    with model_of(chain(), device) as model, model.pipeline() as pipeline:
        list(pipeline.map([data(i) for i in range(5)]))
        allocations, pinned = device.allocations, len(device.pinned)
        for _ in range(3):
            list(pipeline.map([data(i) for i in range(20)]))
        assert (device.allocations, len(device.pinned)) == (allocations, pinned)


def test_pinned_and_device_arrays_are_read_where_they_are() -> None:
    device = LazyDevice()
    with model_of(chain(), device) as model:
        pinned = [device.staging(32).memory.view(np.float32).reshape(2, 4) for _ in range(5)]
        for i, batch in enumerate(pinned):
            batch[...] = data(i)
        before = len(device.pinned)
        results = model.map(pinned, copy=False, depth=2)
        for i, result in enumerate(results):
            np.testing.assert_array_equal(result["y"], expected(data(i)))
        assert len(device.pinned) == before + 2, "two slots for results"
        there = [Foreign(data(i)) for i in range(5)]
        for i, result in enumerate(model.map(there)):
            np.testing.assert_array_equal(result["y"], expected(data(i)))


@pytest.mark.parametrize("bad", [0, 3, 7])
def test_a_bad_batch_comes_after_the_good_ones_before_it(bad: int) -> None:
    batches = [data(i) for i in range(8)]
    batches[bad] = np.zeros((2, 5), np.float32)
    for model, device in models():
        with model:
            rest = iter(batches)
            got: list[dict[str, Any]] = []
            with pytest.raises(InputError, match=f"batch {bad}: input 'x' has shape"):
                got.extend(model.map(rest))
            assert len(got) == bad
            got.extend(model.map(rest))
            assert len(got) == 7, "those behind it are not lost"
            want = [expected(b) for i, b in enumerate(batches) if i != bad]
            for result, y in zip(got, want, strict=True):
                np.testing.assert_array_equal(result["y"], y)
        assert device is None or device.allocated == 0


def test_an_error_of_the_source_comes_after_the_results_before_it() -> None:
    def source() -> Iterator[Array]:
        yield data(0)
        yield data(1)
        raise OSError("the disk is full")

    for model, _ in models():
        with model:
            got: list[dict[str, Any]] = []
            with pytest.raises(OSError, match="the disk is full") as caught:
                got.extend(model.map(source()))
            assert len(got) == 2
            assert caught.value.__notes__ == ["batch 2"]


def test_a_fault_names_its_batch_and_frees_everything() -> None:
    device = LazyDevice(fail_at=3)
    with model_of(chain(), device) as model:
        got: list[dict[str, Any]] = []
        with pytest.raises(DeviceError, match="batch 2: the device is on fire"):
            got.extend(model.map([data(i) for i in range(6)]))
        assert len(got) == 2
    assert device.allocated == 0


def test_out_of_memory_for_a_larger_batch() -> None:
    device = LazyDevice()

    def source() -> Iterator[Array]:
        yield data(0)
        device.limit = device.allocated
        yield data(1, 1000)

    with model_of(chain(), device) as model:
        got: list[dict[str, Any]] = []
        with pytest.raises(DeviceOutOfMemory, match="batch 1"):
            got.extend(model.map(source()))
        assert len(got) == 1
        device.limit = 1 << 40
        np.testing.assert_array_equal(next(model.map([data(2)]))["y"], expected(data(2)))
    assert device.allocated == 0


def test_an_early_end_frees_everything() -> None:
    device = LazyDevice()
    with model_of(chain(), device) as model:
        results = model.map(data(i) for i in range(20))
        next(results)
        held = device.allocated
        results.close()
        assert device.allocated < held
        given = [Foreign(data(i)) for i in range(6)]
        seen = [weakref.ref(array) for array in given]
        results = model.map(given)
        next(results)
        del given, results
        gc.collect()
        assert all(reference() is None for reference in seen)
    assert device.allocated == 0
    assert all(buffer.nbytes == 0 for buffer in device.pinned)


def test_shapes_in_turn_keep_few_lanes() -> None:
    device = LazyDevice()
    with model_of(chain(), device, max_plans=2) as model:
        batches = [data(i, 1 + i % 4) for i in range(16)]
        for batch, result in zip(batches, model.map(batches), strict=True):
            np.testing.assert_array_equal(result["y"], expected(batch))
    assert device.allocated == 0


def test_what_makes_no_sense() -> None:
    device = LazyDevice()
    with model_of(chain(), device) as model:
        with pytest.raises(UsageError, match="depth=0"):
            model.pipeline(depth=0)
        with pytest.raises(InputError, match="no tensor 'z'"):
            next(model.map([data(0)], ["z"]))
        with model.pipeline() as pipeline:
            first = pipeline.map([data(0), data(1)])
            next(first)
            with pytest.raises(UsageError, match="busy"):
                next(pipeline.map([data(0)]))
            assert len(list(first)) == 1
        with pytest.raises(UsageError, match="closed"):
            next(pipeline.map([data(0)]))
