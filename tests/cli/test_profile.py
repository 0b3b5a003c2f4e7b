"""`tercet profile`: rows and their sums, control flow, devices, traces, peaks and differences."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import cycle, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser

from tercet import CustomOperator, load
from tercet.backends.numpy import NumpyBackend
from tercet.runtime.control.program import Program
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Relu, Sigmoid
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model
from tercet.tools.common import measure as measure_module
from tercet.tools.common.inputs import Inputs
from tercet.tools.common.measure import Repeat
from tercet.tools.profile import peaks as peaks_module
from tercet.tools.profile import profiling, row_timing
from tercet.tools.profile.memory_map import ArenaMap, PlacedTensor, arena_text
from tercet.tools.profile.peaks import Peaks, peaks_of
from tercet.tools.profile.profiling import Profile, profile, profile_model
from tercet.tools.profile.profiling_diff import diff_profiles
from tercet.tools.profile.trace_events import trace_events

from ..plan.fakes import FakeBackend, FakeDevice
from . import models
from .conftest import Tercet
from .fake_events import Driver, Recorder

QUICK = {"peaks": False, "repeat": 3}


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> Peaks:
    """Peaks that need no measuring."""
    found = Peaks("numpy", "cpu", "float32", 1, 1e10, 1e11)
    monkeypatch.setattr(peaks_module, "_measured", {})
    monkeypatch.setattr(peaks_module, "_host", lambda: (found.copy, found.flops))
    return found


def test_shows_rows_operators_and_memory(tercet: Tercet, peaks: Peaks) -> None:
    done = tercet("profile", "classifier.onnx", "--dim", "batch=2", "--repeat", 3)
    assert done.code == 0
    for words in (
        "10.0 GB/s copied, 100 GFLOP/s of float32",
        "image float32[2,3,8,8], random, seed 0",
        "Conv + Relu",
        "[2,3,8,8] [4,3,3,3] ->",
        "arena on cpu",
        "live bytes",
        "profiling overhead",
    ):
        assert words in " ".join(done.out.split())
    assert "more row" in tercet("profile", "classifier.onnx", "--top", 1, "--repeat", 1).out


def test_json_adds_up(tercet: Tercet, peaks: Peaks) -> None:
    found = tercet("profile", "classifier.onnx", "--repeat", 5, "--json").json
    rows = found["rows"]
    timed = [row["ms"] for row in rows if row["ms"] is not None]
    assert sum(timed) == pytest.approx(found["rows_ms"])
    for groups in ("by_operator", "by_shape"):
        assert sum(share["ms"] for share in found[groups]) == pytest.approx(found["rows_ms"])
    assert found["phases_ms"]["compute"] == pytest.approx(found["rows_ms"])
    assert found["watched_ms"]["runs"] == found["total_ms"]["runs"] == 5
    conv = rows[0]
    assert conv["nodes"] == ["conv", "norm", "relu"]
    assert conv["macs"] == 4 * 64 * 27
    # the image, its 27 weights of 4 filters, their biases and the result
    assert conv["nbytes"] == 4 * (3 * 64 + 27 * 4 + 4 + 4 * 64)
    assert conv["intensity"] == pytest.approx(2 * conv["macs"] / conv["nbytes"])
    assert conv["weights"] == ["float32[4,3,3,3]"]
    assert conv["bound"] == "memory"
    assert conv["roof"] == pytest.approx(1e3 * conv["nbytes"] / peaks.copy / conv["ms"])
    assert [row["kind"] for row in rows].count("view") == 1
    (arena,) = found["arenas"]
    assert max(arena["live"]) == arena["floor"] <= arena["nbytes"]


class Clock:
    """A clock that only operators advance, by the time that they say they take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (row_timing, measure_module):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)

    def operators(self) -> dict[tuple[str, str], Any]:
        """`Planned` is a row of a plan; `Single` is run between plans."""

        def wait(x: np.ndarray, *, seconds: float = 1.0) -> np.ndarray:
            self.now += seconds
            return x + 1

        def shape(x: TensorType, *, seconds: float = 1.0) -> TensorType:
            return x

        return {("t", "Planned"): CustomOperator(wait, shape), ("t", "Single"): wait}


def test_rows_make_up_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row has the time of its nodes, in plans and between them, and nothing is left over."""
    clock = Clock(monkeypatch)
    graph = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21, "t" : 1]>
        g (float[4] x) => (float[4] y) {
          a = t.Planned <seconds: float = 0.5> (x)
          b = Relu (a)
          c = t.Planned <seconds: float = 2.0> (b)
          d = t.Single <seconds: float = 4.0> (c)
          y = t.Planned <seconds: float = 8.0> (d)
        }""")
    x = np.ones(4, np.float32)
    found = profile(graph, inputs={"x": x}, repeat=8, peaks=False, operators=clock.operators())
    assert [row.seconds for row in found.rows] == [0.5, 0, 2.0, 4.0, 8.0]
    assert found.rows_seconds == found.phases["compute"] == sum(found.phases.values()) == 14.5
    assert set(found.total.samples) == set(found.watched.samples) == {14.5}
    assert (found.covered, found.overhead, found.phases["between"]) == (1, 0, 0)


def test_time_in_front_of_the_rows_feeds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    run = Program.run

    def slow(*arguments: Any) -> Any:
        clock.now += 1.5
        return run(*arguments)

    monkeypatch.setattr(Program, "run", slow)
    graph = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21, "t" : 1]>
        g (float[4] x) => (float[4] y) { y = t.Planned <seconds: float = 4.5> (x) }""")
    x = np.ones(4, np.float32)
    found = profile(graph, inputs={"x": x}, repeat=3, peaks=False, operators=clock.operators())
    assert (found.phases["feed"], found.rows_seconds, found.covered) == (1.5, 4.5, 1)


def loop() -> ModelProto:
    """A loop of `count` iterations, then a node whose result has its own size."""
    return parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[n,4] x, int64 count) => (float[n,4] b, int64[2,k] w) {
          cond = Constant<value = bool {1}>()
          a = Relu(x)
          b = Loop(count, cond, a) <
            body = body (int64 i, bool c, float[n,4] s) => (bool d, float[n,4] t) {
              d = Identity(c)
              t = Add(s, x)
            }
          >
          w = NonZero(b)
        }""")


def test_rows_of_a_network_are_its_nodes() -> None:
    """Every node of the optimised graph is in one row, which ran once in every run."""
    proto = models.classifier()
    found = profile(proto, "numpy", dims={"batch": 2}, repeat=3, peaks=False)
    with load(proto) as model:
        nodes = [name for node in model.graph.nodes for name in node.origin or (node.name,)]
    assert sorted(name for row in found.rows for name in row.nodes) == sorted(nodes)
    assert {row.calls for row in found.rows if row.seconds is not None} == {1}


def test_control_flow_and_nodes_outside_of_plans() -> None:
    x = np.ones((5, 4), np.float32)
    found = profile(loop(), inputs={"x": x, "count": np.array(7)}, **QUICK)
    rows = {row.operators: row for row in found.rows}
    assert rows["Loop"].kind == "control"
    assert rows["Loop"].seconds is None
    assert (rows["Add"].owner, rows["Add"].calls) == (rows["Loop"].nodes[0], 7)
    assert rows["NonZero"].kind == "host"
    assert rows["NonZero"].nbytes == x.nbytes + 2 * 20 * 8
    assert rows["Relu"].owner == ""
    assert "Add x7" in str(found)
    assert len([e for e in trace_events(found) if e["name"] == rows["Add"].title]) == 7


def test_a_model_that_is_control_flow_alone() -> None:
    graph = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[n] x, bool c) => (float[n] y) {
          y = If(c) <
            then_branch = yes () => (float[n] p) { p = Sigmoid(x) },
            else_branch = no () => (float[n] q) { q = Tanh(x) }
          >
        }""")
    feeds = {"x": np.ones(3, np.float32), "c": np.array(True)}
    found = profile(graph, inputs=feeds, **QUICK)
    assert [(row.operators, row.calls) for row in found.rows] == [("If", 0), ("Sigmoid", 1)]


def test_a_model_that_does_nothing() -> None:
    graph = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[n] x) => (float[2] y) { y = Constant<value = float[2] {1, 2}>() }""")
    found = profile(graph, inputs={"x": np.ones(3, np.float32)}, **QUICK)
    assert found.rows_seconds == 0
    assert "no steps: every output is an input or a constant" in str(found)
    assert "operator" not in str(found)  # the tables would be empty
    assert trace_events(found)


def on_a_device(*operators: Any, device: FakeDevice | None = None, peaks: bool = False) -> Profile:
    """Profile a chain of unary operators, as it is, on a fake device, numpy behind it."""
    graph = Graph("test")
    y = graph.add_input("x", TensorType(float32, (2, 3)))
    for i, op in enumerate(operators):
        y = graph.insert(op, [y], name=f"n{i}").output
    graph.set_outputs({"y": y})
    infer(graph)
    backends = FakeBackend(device or FakeDevice()), NumpyBackend()
    feeds = Inputs({"x": np.ones((2, 3), np.float32)}, {"x": "given"})
    with Model(graph, backends, Options(stop_at=0), lambda op, arrays, outputs: None) as model:
        return profile_model(model, feeds, "test", Repeat(3), peaks=peaks)


def test_a_device_has_uploads_and_downloads() -> None:
    found = on_a_device(Relu(), Sigmoid(), Relu())
    kinds = [(row.kind, row.kernel) for row in found.rows]
    assert kinds[0] == ("copy", "cpu to fake:0")
    assert kinds[-1] == ("copy", "fake:0 to cpu")
    assert found.phases["upload"] > 0 < found.phases["download"]
    assert {arena.device for arena in found.arenas} == {"cpu", "fake:0"}
    processes = {e["args"]["name"] for e in trace_events(found) if e["name"] == "process_name"}
    assert processes == {"cpu", "fake:0"}


def bound(model: Model, shapes: Any) -> Any:
    """A plan that nothing else uses; this device shares no memory with callers."""
    (plan,) = model.prepare(shapes, to="device").plans
    return nullcontext(SimpleNamespace(run=model.run, plan=plan))


class GraphDevice(FakeDevice):
    """A device with events: a run takes 4 ms, and 1, 2 and 0.5 ms for its first kernels."""

    __hash__ = object.__hash__

    def time(self, run: Any, stream: Any) -> float:
        before = stream.clock.get(stream.number, 0)
        run(stream)
        kernels = stream.clock.get(stream.number, 0) - before
        return 0.004 + sum((0.001, 0.002, 0.0005)[:kernels])


class TiredDevice(GraphDevice):
    """One that takes twice as long where no run has let it rest."""

    __hash__ = object.__hash__
    seen = 0

    def time(self, run: Any, stream: Any) -> float:
        factor = 2 if self.replays == self.seen else 1
        found = factor * super().time(run, stream)
        self.seen = self.replays
        return found


def test_rows_take_as_long_as_in_the_runs_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU lowers its clock while its rows are timed one after the other."""
    monkeypatch.setattr(Model, "bind", bound)
    found = on_a_device(Relu(), Relu(), Relu(), device=TiredDevice())
    times = [row.in_graph for row in found.rows if row.kind == "step"]
    assert times == pytest.approx([1e-3, 2e-3, 5e-4])


def test_rows_are_timed_within_the_graph_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of this device take the same time alone, wherever they are."""
    peaks = Peaks("fake", "fake:0", "float32", None, 48e3, 1e12, 1e5, 1e5, 5e-4)
    monkeypatch.setattr(profiling, "peaks_of", lambda *_: peaks)
    monkeypatch.setattr(Model, "bind", bound)
    found = on_a_device(Relu(), Relu(), Relu(), device=GraphDevice(), peaks=True)
    times = [(row.kind, row.in_graph) for row in found.rows]
    expected = [("copy", None), *(("step", pytest.approx(s)) for s in (1e-3, 2e-3, 5e-4))]
    assert times == [*expected, ("copy", None)]
    assert found.has_graph
    steps = [row for row in found.rows if row.kind == "step"]
    assert [row.limit for row in steps] == pytest.approx([1e-3] * 3)  # 48 bytes
    assert [row.bound for row in found.rows] == ["link", *["memory"] * 3, "link"]
    lost = {share.name: share.lost for share in found.by_kernel()}
    assert sum(lost[name] for name in lost if name != "copy") == pytest.approx(1e-3)
    text = " ".join(str(found).split())
    assert "alone in graph share" in text
    assert "of these" in text


def test_trace_is_what_chrome_reads(tercet: Tercet) -> None:
    command = ("profile", "classifier.onnx", "--repeat", 2, "--no-peaks", "--trace", "t.json")
    assert tercet(*command).code == 0
    events = json.loads(Path("t.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    (run,) = (event for event in events if event["name"] == "run")
    phases = [e for e in events if e["ph"] == "X" and e["tid"] == run["tid"] and e is not run]
    assert [phase["name"] for phase in phases] == ["feed", "rows", "fetch"]
    assert sum(phase["dur"] for phase in phases) == pytest.approx(run["dur"])
    rows = [event for event in events if event["ph"] == "X" and event["tid"] != run["tid"]]
    assert [row["name"] for row in rows] == ["conv + norm + relu", "pool", "fc", "softmax"]
    for before, after in pairwise(rows):
        assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    assert phases[0]["dur"] <= rows[0]["ts"] + 1e-6
    assert rows[-1]["ts"] + rows[-1]["dur"] <= phases[2]["ts"] + 1e-6


def test_differences() -> None:
    before = profile(models.adder(), **QUICK).to_dict()
    after = json.loads(json.dumps(before))
    after["rows"][0]["ms"] += 5
    after["rows"][0]["nodes"] = ["other"]
    after["total_ms"]["median"] *= 3
    found = diff_profiles(before, after)
    assert found.total.ratio == pytest.approx(3)
    assert found.rows[0].name == "other"
    assert found.rows[0].before is None
    assert found.rows[0].ratio is None
    assert sum(change.change for change in found.rows) == pytest.approx(5)
    assert sum(change.change for change in found.operators) == pytest.approx(5)
    same = diff_profiles(before, before)
    assert not any(change.change for change in (*same.rows, *same.operators, same.total))


def test_wrong_usage(tercet: Tercet) -> None:
    Path("no.json").write_text('{"rows": 1}')
    Path("bad.json").write_text("{")
    Path("odd.json").write_text('{"rows": 1, "total_ms": {}, "phases_ms": {}}')
    for command, words in (
        (["profile"], "give a model, or --diff"),
        (["profile", "classifier.onnx", "--diff", "no.json", "no.json"], "give a model"),
        (["profile", "--diff", "no.json", "no.json"], "no.json is not a profile"),
        (["profile", "--diff", "bad.json", "no.json"], "bad.json is not JSON"),
        (["profile", "--diff", "none.json", "no.json"], "none.json"),
        (["profile", "--diff", "odd.json", "odd.json"], "written by another version"),
        (["profile", "classifier.onnx", "-b", "nump"], "did you mean 'numpy'"),
        (["profile", "classifier.onnx", "--dim", "batch=0.5"], "--dim"),
    ):
        done = tercet(*command)
        assert done.code == 2
        assert words in done.err


# ── parts ────────────────────────────────────────────────────────────────────────────────────────


def test_arena_is_drawn() -> None:
    tensors = (
        PlacedTensor("a", 0, 512, -1, 1),
        PlacedTensor("b", 512, 512, 1, 2),
        PlacedTensor("c", 0, 256, 2, 3),
    )
    arena = ArenaMap(0, "cpu", 4, 1024, 1024, tensors)
    assert arena.live() == [512, 1024, 768, 256]
    lines, letters = arena_text(arena, width=8, height=4)
    assert lines == [".bb.", ".bb.", "aa..", "aacc"]
    assert {letter: tensor.name for letter, tensor in letters.items()} == {n: n for n in "abc"}
    assert arena_text(ArenaMap(0, "cpu", 0, 0, 0, ()))[1] == {}


def test_peaks_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks_module, "_measured", {})
    monkeypatch.setattr(peaks_module, "HOST_BYTES", 1 << 20)
    monkeypatch.setattr(peaks_module, "HOST_SIDE", 64)
    found = peaks_of([NumpyBackend()], Options())
    assert found.copy > 0 < found.flops
    assert found.rates.floor({"float32": found.flops}, 0).seconds == 1
    both = found.rates.floor({"float32": found.ridge}, 1)
    assert both.seconds == pytest.approx(1 / found.copy)
    assert peaks_of([NumpyBackend()], Options()) is found


def test_peaks_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks_module, "_measured", {})
    monkeypatch.setattr(peaks_module, "DEVICE_BYTES", 1 << 16)
    asked: list[Options] = []
    monkeypatch.setattr(peaks_module, "_product", lambda chain, options: asked.append(options) or 1)
    monkeypatch.setattr(peaks_module, "LAUNCHES", 3)
    device = FakeDevice()
    chosen = Options(precision="tf32", conv="naive", skip=("fold_pad",))
    found = peaks_of([FakeBackend(device)], chosen)
    assert asked == [Options(precision="tf32")], "peaks serve later profiles with other options"
    assert found.upload
    assert found.download
    assert found.threads is None
    assert found.flops == 2 * peaks_module.DEVICE_SIDE**3
    assert device.allocated == 0


def test_a_product_is_timed_as_the_faster_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks_module, "DEVICE_SIDE", 64)
    assert peaks_module._product([NumpyBackend()], Options()) > 0


def test_doctor_shows_peaks(tercet: Tercet, peaks: Peaks) -> None:
    assert "measured peaks" in tercet("doctor", "--peaks").out
    found = tercet("doctor", "--peaks", "--json").json["peaks"]
    assert found[0]["flops"] == peaks.flops
    assert tercet("doctor", "--json").json["peaks"] == []


def test_a_table_for_pandas() -> None:
    rows = profile(models.adder(), **QUICK).table()
    assert {type(value) for row in rows for value in row.values()} <= {int, float, str, type(None)}
    assert rows[0]["operators"] == "Add"


def test_events_surround_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CUDA device a row is recorded between two events, which are nodes of its graph."""
    events = pytest.importorskip(
        "tercet.backends.cuda.driver.events", reason="CUDA's packages not here"
    )
    calls: list[tuple[Any, ...]] = []
    driver = Driver(calls)
    monkeypatch.setattr(events, "driver", driver)
    monkeypatch.setattr(
        events, "check", lambda call, answer: answer[1] if len(answer) > 1 else None
    )
    watch = events.Stopwatch(Recorder())
    run = watch.around(lambda stream: calls.append(("work",)), recorded=True)
    assert [call[0] for call in calls] == ["create", "create", "record", "work", "record"]
    assert [call[2] for call in calls if call[0] == "record"] == [1, 1]
    assert run == "replay"
    assert watch.seconds() == pytest.approx(0.0025)
    watch.close()
    assert [call[0] for call in calls[-2:]] == ["destroy", "destroy"]


def test_rows_of_a_cuda_device_are_timed_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an empty pair of events takes at least, 1 ms here, is no part of a row."""
    events = pytest.importorskip(
        "tercet.backends.cuda.driver.events", reason="CUDA's packages not here"
    )
    watches: list[_Watch] = []

    def make(device: FakeDevice) -> _Watch:
        watches.append(_Watch(device))
        return watches[-1]

    monkeypatch.setattr(events, "Stopwatch", make)
    monkeypatch.setattr(row_timing, "_has_events", lambda device: device.name == "fake:0")
    found = on_a_device(Relu(), Relu())
    assert [row.seconds for row in found.rows] == pytest.approx([0.004] * 4)
    assert found.phases["upload"] == pytest.approx(0.004)
    assert len(watches) == 1 + 4
    assert all(watch.closed and watch.recorded for watch in watches)


class _Watch:
    """A stopwatch that measures 5 ms; the one with nothing in it 1 ms, or 4 on a busy device."""

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.closed, self.recorded, self.empty = device, False, False, False
        self._busy = cycle((0.004, 0.004, 0.001, 0.004))

    def around(self, run: Any, *, recorded: bool) -> Any:
        self.recorded = recorded
        self.empty = "_empty_seconds" in run.__qualname__
        return self.device.record(run)

    def seconds(self) -> float:
        return next(self._busy) if self.empty else 0.005

    def close(self) -> None:
        self.closed = True
