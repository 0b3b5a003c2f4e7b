"""Constants of a device: packed once, on several threads before they are bound."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Barrier, Event, get_ident
from threading import enumerate as enumerate_threads
from typing import Any

import numpy as np
import pytest

from tercet.runtime.base import parallel
from tercet.runtime.base.budget import Budget
from tercet.runtime.base.guard import bounded
from tercet.runtime.base.parallel import begin, in_parallel, same_threads, share
from tercet.runtime.errors import DeviceOutOfMemory, LimitError, TimeLimitError
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Array
from tercet.runtime.plan import weights
from tercet.runtime.plan.arena import ALIGNMENT
from tercet.runtime.plan.backend import PackedConstant, View
from tercet.runtime.plan.host import array
from tercet.runtime.plan.weights import WeightStore, as_it_is

from .fakes import FakeDevice


@pytest.fixture(autouse=True)
def four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "MAX_THREADS", 4)
    monkeypatch.setattr(parallel, "usable_cpus", lambda: 4)


def constants(count: int) -> list[Value]:
    graph = Graph("weights")
    return [graph.constant(np.full((2, 3), i, np.float32), f"w{i}") for i in range(count)]


def read(store: WeightStore, value: Value, layout: Hashable, pack: Any) -> Array:
    view = store.packed((value,), layout, pack)
    memory: Any = view.buffer
    found = memory.memory[view.offset :][: view.nbytes]
    return found.view(view.type.dtype).reshape(view.type.dims)


def test_constants_are_packed_at_the_same_time_and_once() -> None:
    store, values, together = WeightStore(FakeDevice()), constants(4), Barrier(4, timeout=20)
    calls: list[float] = []

    def pack(data: Array) -> Array:
        together.wait()  # all four are being packed, or this fails
        calls.append(float(data[0, 0]))
        return data + 1

    store.prepare([((value,), "more", pack) for value in values] * 2)
    assert sorted(calls) == [0, 1, 2, 3]
    for number, value in enumerate(values):
        assert (read(store, value, "more", pack) == number + 1).all()
    assert len(calls) == 4


def test_a_device_without_room_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device, values = FakeDevice(), constants(2)
    store, upload = WeightStore(device), device.upload
    monkeypatch.setattr(weights, "_SLIGHT", 0)

    def refuses(data: Array) -> Any:
        if data[0, 0] == 1:
            raise DeviceOutOfMemory("no 24 bytes")
        return upload(data)

    monkeypatch.setattr(device, "upload", refuses)
    with pytest.raises(DeviceOutOfMemory, match="no 24 bytes"):
        store.prepare(map(as_it_is, values))
    monkeypatch.undo()
    store.prepare(map(as_it_is, values))
    assert store.nbytes == 2 * 24


def test_what_fails_is_an_error_for_the_step_that_needs_it() -> None:
    store, (good, bad) = WeightStore(FakeDevice()), constants(2)

    def pack(data: Array) -> Array:
        if data[0, 0] == 1:
            raise ValueError("no such layout")
        return data

    store.prepare([((bad,), "some", pack), ((good,), "some", pack)])
    assert store.nbytes == 24  # the other one is there
    assert (read(store, good, "some", pack) == 0).all()
    with pytest.raises(ValueError, match="no such layout"):
        store.packed((bad,), "some", pack)


@pytest.mark.parametrize("cpus", [1, 4])
def test_one_is_there_while_others_are_packed(monkeypatch: pytest.MonkeyPatch, cpus: int) -> None:
    monkeypatch.setattr(parallel, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(weights, "_SLIGHT", 0)
    store, values, is_read = WeightStore(FakeDevice()), constants(9), Event()

    def pack(data: Array) -> Array:
        assert data[0, 0] == 0 or is_read.wait(20)
        return data + 1

    with store.preparing([((value,), "more", pack) for value in values]):
        assert (read(store, values[0], "more", pack) == 1).all()
        assert store.nbytes == 24
        is_read.set()
        assert (read(store, values[5], "more", pack) == 6).all()
    assert store.nbytes == 9 * 24


def test_others_are_not_waited_for_by_one_that_is_not_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weights, "_SLIGHT", 0)
    store, (other, *values) = WeightStore(FakeDevice()), constants(9)
    with store.preparing(map(as_it_is, values)):
        store.view(other)
        assert store.nbytes == 2 * 24  # the first of them, and the other
    assert store.nbytes == 9 * 24


def test_what_is_being_packed_ends_with_a_block_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_SLIGHT", 0)
    device = FakeDevice()
    store, values = WeightStore(device), constants(9)
    before = {thread.ident for thread in enumerate_threads()}
    with pytest.raises(KeyError), store.preparing(map(as_it_is, values)):
        raise KeyError
    assert {thread.ident for thread in enumerate_threads()} == before
    assert store.nbytes < 9 * 24
    store.prepare(map(as_it_is, values))
    assert store.nbytes == 9 * 24


def test_what_is_not_packed_is_stored_in_c_order() -> None:
    store = WeightStore(FakeDevice())
    columns = np.arange(6, dtype=np.float32).reshape(2, 3).T
    value = Graph("weights").constant(columns, "w")
    store.prepare([as_it_is(value)])
    view = store.view(value)
    memory: Any = view.buffer
    assert memory.memory[:24].view(np.float32).tolist() == columns.ravel().tolist()
    assert view.type.dims == (3, 2)


def test_host_weights_need_no_copy() -> None:
    from tercet.runtime.plan.host import HOST

    (value,) = constants(1)
    assert value.data is not None
    assert np.shares_memory(array(WeightStore(HOST).view(value)), value.data)


def test_results_come_in_the_order_of_the_items() -> None:
    assert list(in_parallel(lambda i: i * i, range(100))) == [i * i for i in range(100)]
    assert list(in_parallel(lambda i: i, ())) == []


def test_a_thread_that_helps_starts_no_others() -> None:
    alone = Barrier(2, timeout=20)

    def within(i: int) -> list[int]:
        alone.wait()  # both outer items have a thread; the inner ones have none of their own
        return list(in_parallel(lambda j: parallel._THREAD.helps + i + j, range(3)))

    assert list(in_parallel(within, range(2))) == [[1, 2, 3], [2, 3, 4]]
    assert not parallel._THREAD.helps


def test_the_first_error_stops_the_rest() -> None:
    seen: list[int] = []

    def work(i: int) -> None:
        seen.append(i)
        if i == 3:
            raise KeyError(i)

    with pytest.raises(KeyError, match="3"):
        share(work, range(10_000), parallel.WORTH_SHARING)
    assert len(seen) < 100


def test_a_deadline_holds_in_all_threads() -> None:
    from tercet.runtime.base.guard import check_time

    with pytest.raises(TimeLimitError), bounded(1e-9):
        list(in_parallel(lambda i: check_time(), range(4)))


def test_the_same_threads_do_all_work_of_a_block() -> None:
    together = Barrier(4, timeout=20)

    def thread(_: int) -> int:
        together.wait()  # each of the four has one of the four
        return get_ident()

    with same_threads():
        first, second = (set(in_parallel(thread, range(4))) for _ in range(2))
    assert len(first) == 4
    assert first == second
    assert not first & {each.ident for each in enumerate_threads()}


def test_what_fails_in_a_block_leaves_no_thread() -> None:
    def fails(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return get_ident()

    seen = list[int]()
    with pytest.raises(ValueError, match="three"), same_threads():
        seen.extend(in_parallel(fails, range(8)))
    assert seen
    assert not set(seen) & {each.ident for each in enumerate_threads()}


def test_a_device_packs_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    device, (first, second) = FakeDevice(), constants(2)

    def packed(pack: Any, sources: list[Array], copies: Any) -> Any:
        return device.upload(sources[0] + 5) if sources[0].any() else None

    monkeypatch.setattr(device, "packed", packed, raising=False)
    store = WeightStore(device)
    store.prepare([((first,), "less", np.negative)])
    assert not read(store, first, "less", np.negative).any()  # by the host
    assert (read(store, second, "less", np.negative) == 6).all()
    assert store.nbytes == 2 * 24


def test_what_is_packed_from_one_array_shares_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    device, (first, second) = FakeDevice(), constants(2)
    made = list[Any]()

    def packed(pack: Any, sources: list[Array], copies: dict[int, View]) -> View:
        for data in sources:
            if id(data) not in copies:
                made.append(copies.setdefault(id(data), device.upload(data)))
        return device.upload(pack(*sources))

    monkeypatch.setattr(device, "packed", packed, raising=False)
    store = WeightStore(device)
    store.prepare(
        [
            ((first,), "less", np.negative),
            ((second,), "less", np.negative),
            ((first,), "more", np.positive),
        ]
    )
    assert len(made) == 2
    assert device.allocated == store.nbytes  # the copies are gone
    assert (read(store, second, "less", np.negative) == -1).all()
    assert len(made) == 2


def test_tables_are_made_on_several_threads_as_well() -> None:
    store, (value,), threads = WeightStore(FakeDevice()), constants(1), set[int]()

    def table() -> Array:
        threads.add(get_ident())
        return np.arange(4)

    store.prepare([((), "first", table), ((), "second", table), as_it_is(value)])
    assert len(store._views) == 3
    assert get_ident() not in threads


def test_small_constants_share_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_SLIGHT", 100)
    device, graph = FakeDevice(), Graph("weights")
    small, empty, bits, large = (
        graph.constant(np.arange(count).reshape(1, count).astype(dtype), f"w{count}")
        for count, dtype in ((5, np.float32), (0, np.int64), (3, np.bool_), (50, np.float64))
    )
    store, uploads = WeightStore(device), list[Array]()
    upload = device.upload
    monkeypatch.setattr(device, "upload", lambda data: uploads.append(data) or upload(data))
    store.prepare(map(as_it_is, (small, empty, bits, large)))
    assert sorted(data.nbytes for data in uploads) == [400, 2 * ALIGNMENT]
    for value in (small, empty, bits, large):
        np.testing.assert_array_equal(read(store, value, *as_it_is(value)[1:]), value.data)
    assert len(uploads) == 2
    assert store.nbytes == 5 * 4 + 3 + 50 * 8


def test_an_allocation_of_small_constants_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_LARGE", 40)
    device, values, uploads = FakeDevice(), constants(3), list[int]()
    upload = device.upload
    monkeypatch.setattr(device, "upload", lambda data: uploads.append(data.nbytes) or upload(data))
    store = WeightStore(device)
    store.prepare(map(as_it_is, values))
    assert uploads == [2 * ALIGNMENT, ALIGNMENT]
    for number, value in enumerate(values):
        assert (read(store, value, *as_it_is(value)[1:]) == number).all()


def test_the_budget_is_asked_before_anything_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    device, values, uploads = FakeDevice(), constants(3), list[int]()
    upload = device.upload
    monkeypatch.setattr(device, "upload", lambda data: uploads.append(data.nbytes) or upload(data))
    store = WeightStore(device, Budget(2 * 24 + 10))
    wanted: list[PackedConstant] = [((value,), "more", lambda data: data + 1) for value in values]
    store.prepare(wanted)  # all three together are too many
    assert uploads == []
    for each in wanted[:2]:
        store.packed(*each)
    with pytest.raises(LimitError, match="packed constants"):
        store.packed(*wanted[2])
    assert uploads == [24, 24]


def test_work_goes_on_beside_the_caller_and_its_error_waits_for_the_end() -> None:
    goes_on, done = Event(), list[int]()

    def work(item: int) -> None:
        assert goes_on.wait(20)
        if item == 2:
            raise ValueError("not this one")
        done.append(item)

    with same_threads():
        end = begin(work, range(4), parallel.WORTH_SHARING)
        goes_on.set()  # before which none of it can be done
        with pytest.raises(ValueError, match="not this one"):
            end()
    assert sorted(done) == [0, 1, 3]


def test_work_without_threads_is_done_at_once() -> None:
    done = list[int]()
    begin(done.append, range(4), parallel.WORTH_SHARING)()
    assert sorted(done) == [0, 1, 2, 3]
    begin(done.append, range(4), 4)()
    assert len(done) == 8


def test_bytes_are_counted_while_others_store_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    store, (first, second) = WeightStore(FakeDevice()), constants(2)
    store.view(first)
    nbytes = View.nbytes

    def storing(view: View) -> int:
        store.view(second)  # as another thread may, which plans or closes a program
        return nbytes.__get__(view)

    with monkeypatch.context() as patch:
        patch.setattr(View, "nbytes", property(storing))
        assert store.nbytes == first.tensor.size * 4
    assert store.nbytes == 2 * first.tensor.size * 4
