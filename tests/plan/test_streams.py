"""Branches side by side: who waits for whom, what may share memory, and when it is done at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.errors import UsageError
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.movement import Concat
from tercet.runtime.options import Options
from tercet.runtime.plan.plan import Plan
from tercet.runtime.plan.streams import _dependencies, segments
from tercet.runtime.session.model import Model

from .fakes import FakeBackend, FakeDevice, FakeStream
from .nets import Net

Array = np.ndarray[Any, Any]


def branches(count: int, depth: int) -> Graph:
    """Return the sum of chains that begin with one value and add their number `depth` times."""
    graph = Graph("branches")
    x = graph.add_input("x", TensorType(float32, (4, 8)))
    start = graph.insert(Relu(), [x], name="start").output
    ends: list[Value] = []
    for i in range(count):
        y, own = start, graph.constant(np.full((4, 8), i, np.float32), f"c{i}")
        for j in range(depth):
            y = graph.insert(Add(), [y, own], name=f"b{i}_{j}").output
        ends.append(y)
    total = ends[0]
    for i, end in enumerate(ends[1:]):
        total = graph.insert(Add(), [total, end], name=f"sum{i}").output
    graph.set_outputs({"y": total, "start": start})
    infer(graph)
    return graph


def planned(
    graph: Graph, device: FakeDevice, *, scratch: int = 0, fill: float = 0.5, **options: Any
) -> tuple[Plan, Array]:
    """Return the plan of a graph that has run, and what came out."""
    backend = FakeBackend(device, scratch=scratch)
    backend.fill = fill
    model = Model(graph, [backend], Options(**options), evaluate)
    x = np.random.default_rng(0).standard_normal((4, 8), np.float32)
    model.run({"x": x})
    got = model.run({"x": x})["y"]
    (plan,) = model.prepare({"x": (4, 8)}).plans
    return plan, got


def streams_of(plan: Plan) -> dict[str, int]:
    return {row.nodes[0].name: row.stream for row in plan.rows if row.nodes}


def test_each_branch_has_a_stream() -> None:
    device = FakeDevice()
    plan, got = planned(branches(4, 3), device)
    streams = streams_of(plan)
    for i in range(4):
        assert len({streams[f"b{i}_{j}"] for j in range(3)}) == 1
    assert {streams[f"b{i}_0"] for i in range(4)} == {0, 1, 2, 3}
    assert device.races == 0
    start = np.maximum(np.random.default_rng(0).standard_normal((4, 8), np.float32), 0)
    np.testing.assert_allclose(got, 4 * start + 3 * (0 + 1 + 2 + 3), rtol=1e-6)


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_no_more_streams_than_the_user_wants(streams: int) -> None:
    device = FakeDevice()
    plan, _ = planned(branches(5, 3), device, streams=streams)
    assert {row.stream for row in plan.rows} == set(range(streams))
    assert device.races == 0


def test_rows_that_fill_the_device_run_one_after_the_other() -> None:
    plan, _ = planned(branches(4, 3), FakeDevice(), fill=2.0)
    assert {row.stream for row in plan.rows} == {0}


def test_streams_are_counted_from_one() -> None:
    with pytest.raises(UsageError, match="streams=0: expected a whole number >= 1"):
        Options(streams=0)


def test_streams_that_cannot_wait_have_one_stream() -> None:
    class Plain:
        def __init__(self, inner: FakeStream) -> None:
            self.touch, self.synchronize = inner.touch, inner.synchronize

    class PlainDevice(FakeDevice):
        def stream(self) -> Any:
            return Plain(FakeStream(self))

    device = PlainDevice()
    plan, _ = planned(branches(4, 3), device)
    assert {row.stream for row in plan.rows} == {0}
    assert device.races == 0


def test_a_chain_stays_in_its_stream() -> None:
    plan, _ = planned(branches(1, 6), FakeDevice())
    assert {row.stream for row in plan.rows} == {0}
    assert not any(plan.schedule.waits)


def beside(count: int, width: int, height: int) -> Graph:
    """Return a chain of sums of matrices, joined with sums that read only a small matrix."""
    graph = Graph("beside")
    x = graph.add_input("x", TensorType(float32, (height, width)))
    z = graph.add_input("z", TensorType(float32, (4, width)))

    def plus(y: Value, number: int, name: str) -> Value:
        own = graph.constant(np.full((1, width), number, np.float32))
        return graph.insert(Add(), [y, own], name=name).output

    small = graph.insert(Relu(), [z], name="small").output
    y = graph.insert(Relu(), [x], name="start").output
    for i in range(4):
        y = plus(y, i, f"chain{i}")
    alone = [plus(small, 10 + i, f"alone{i}") for i in range(count)]
    graph.set_outputs({"y": graph.insert(Concat(axis=0), [y, *alone], name="end").output})
    infer(graph)
    return graph


@pytest.mark.parametrize(
    ("count", "width", "height", "stays"),
    [(1, 8, 1 << 15, True), (1, 300, 1 << 10, False), (2, 8, 1 << 15, False), (1, 8, 4, False)],
    ids=["small", "large", "two", "all small"],
)
def test_a_small_row_by_itself_is_in_the_stream_of_a_large_reader(
    count: int, width: int, height: int, stays: bool
) -> None:
    device = FakeDevice()
    backend = FakeBackend(device, dense=("Concat",))
    model = Model(beside(count, width, height), [backend], Options(), evaluate)
    draw = np.random.default_rng(0)
    feeds = {"x": draw.standard_normal((height, width), np.float32)}
    feeds["z"] = draw.standard_normal((4, width), np.float32)
    got = model.run(feeds)["y"]
    (plan,) = model.prepare({name: data.shape for name, data in feeds.items()}).plans
    streams = streams_of(plan)
    assert (streams["alone0"] == streams["end"]) is stays
    assert device.races == 0
    x, z = (np.maximum(data, 0) for data in feeds.values())
    np.testing.assert_allclose(
        got, np.concatenate([x + 6, *(z + 10 + i for i in range(count))]), rtol=1e-6
    )


def test_step_by_step_there_is_one_stream() -> None:
    plan, _ = planned(branches(4, 3), FakeDevice(), check_each=True)
    assert {row.stream for row in plan.rows} == {0}


def test_each_stream_has_a_workspace_of_its_own() -> None:
    device = FakeDevice()
    plan, _ = planned(branches(3, 2), device, scratch=100)
    assert device.races == 0
    assert plan.memory.workspace["fake:0"] == 3 * 256
    single, _ = planned(branches(3, 2), FakeDevice(), scratch=100, streams=1)
    assert single.memory.workspace["fake:0"] == 256


def test_the_arena_knows_what_runs_at_the_same_time() -> None:
    net = Net(1, 8, 4, 4)
    a, b = (net.conv(net.add(Relu(), net.conv(net.x, 64)), 8) for _ in range(2))
    net.graph.set_outputs({"y": net.add(Add(), a, b)})
    floors: list[int] = []
    for streams in (1, 2):
        model = Model(
            net.graph,
            [FakeBackend(FakeDevice())],
            Options(streams=streams, skip=("merge_sums", "merge_convolutions")),
            evaluate,
        )
        floors.append(model.memory().floor["fake:0"])
    assert floors[0] == (8 + 8 + 64) * 64
    assert floors[1] >= (8 + 64 + 64) * 64


def test_waits_that_others_imply_are_left_out() -> None:
    plan, _ = planned(branches(2, 4), FakeDevice())
    crossing = sum(len(waits) for waits in plan.schedule.waits)
    assert crossing == 3, "where the branch begins, where it ends, and before the copy"


def test_rows_in_one_place_depend_on_the_latest_alone() -> None:
    """Thousands of residual additions in place are planned in linear time."""
    plan, _ = planned(branches(3, 40), FakeDevice())
    numbers = [i for i, row in enumerate(plan.rows) if row.kind != "view"]
    found = _dependencies(plan.rows, numbers)
    assert sum(map(len, found.values())) < 2 * len(numbers)
    assert max(map(len, found.values())) <= 3


def test_a_race_is_seen() -> None:
    """The fake device must find what the plans are tested for."""
    device = FakeDevice()
    plan, _ = planned(branches(2, 2), device)
    (segment,) = segments(plan.rows)
    object.__setattr__(plan.schedule, "waits", ((),) * len(plan.rows))
    plan.together(segment)(FakeStream(device))
    assert device.races > 0


def test_without_the_copies_the_order_is_kept() -> None:
    device = FakeDevice()
    plan, _ = planned(branches(4, 3), device)
    (segment,) = segments(plan.rows)
    plan.together(segment, copies=False)(FakeStream(device))
    assert device.races == 0


def test_parts_of_a_segment_run_one_after_the_other() -> None:
    """Rows of a later part wait for none: all streams have met before it."""
    device = FakeDevice()
    plan, got = planned(branches(4, 3), device)
    (segment,) = segments(plan.rows)
    middle = (segment.start + segment.stop) // 2
    stream = FakeStream(device)
    for part in (range(segment.start, middle), range(middle, segment.stop)):
        plan.together(part, copies=False)(stream)
        stream.synchronize()
    assert device.races == 0
    x = np.random.default_rng(0).standard_normal((4, 8), np.float32)
    np.testing.assert_array_equal(plan.run({"x": x})["y"], got)
