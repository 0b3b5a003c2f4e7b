"""Control flow that a device decides on: If, Loop and Scan as steps of one plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

import tercet
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.importers.onnx import load
from tercet.runtime.control import loop_step
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from .deciding import AnyBackend, DecidingDevice
from .flows import FLOWS, HEADER, Flow, random_flow

Array = np.ndarray[Any, Any]


def deciding(
    source: onnx.ModelProto, *, fallback: bool = False, **options: Any
) -> tuple[Model, AnyBackend]:
    backend = AnyBackend(DecidingDevice())
    backends = (backend, *((NumpyBackend(),) if fallback else ()))
    return Model(load(source).graph, backends, Options(**options), evaluate), backend


def check(source: onnx.ModelProto, *feeds: dict[str, Array], **options: Any) -> Model:
    """Compare with numpy; return the closed model, whose last program was one plan."""
    model, backend = deciding(source, **options)
    with tercet.load(source, control="host") as reference:
        for feed in feeds * 2:
            want = reference.run(feed)
            got = model.run(feed)
            for name, data in want.items():
                assert (got[name].dtype, got[name].shape) == (data.dtype, data.shape)
                np.testing.assert_allclose(got[name], data, rtol=1e-6, atol=0, err_msg=name)
    assert isinstance(backend.device, DecidingDevice)
    assert backend.device.races == 0
    return model


def hosted(model: Model) -> list[str]:
    """Return why the host decides on control flow, as far as it does."""
    return [row.reason for row in model.placement() if row.backend == "host"]


@pytest.mark.parametrize("flow", FLOWS, ids=str)
@pytest.mark.parametrize(("streams", "unrolled"), [(1, 0), (4, 0), (4, 1024)])
def test_one_plan_that_the_device_decides_on(
    flow: Flow, streams: int, unrolled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_step, "UNROLLED", unrolled)
    model = check(flow.model, *flow.feeds, streams=streams)
    assert hosted(model) == []
    (program,) = model._programs.pool.idle
    assert program.is_plan
    device = model.backends[0].device
    assert isinstance(device, DecidingDevice)
    assert device.decisions.taken
    (stream,) = {plan._stream for plan in program.plans}
    assert getattr(stream, "waits", 0) == 2 * len(flow.feeds), "the host waits once a run"
    model.close()
    assert device.allocated == 0


@pytest.mark.parametrize("seed", range(12))
def test_control_flow_at_random(seed: int) -> None:
    source, feeds = random_flow(seed)
    model = check(source, *feeds)
    assert hosted(model) == []
    model.close()


#: What keeps a device from deciding, with a part of the reason.
HOSTED = {
    "growing": (
        """
        g (int64 m, float[3] x) => (y) {
          y = Loop (m, , x) <body = b (int64 i, bool going, float[k] v) => (bool next, float[j] w) {
            next = Identity (going)  w = Concat <axis = 0> (v, v) }>
        }""",
        {"m": np.array(2), "x": np.ones(3, np.float32)},
        "the shape of 'y' depends on the data",
    ),
    "sizes that differ": (
        """
        g (bool c, float[3] x) => (float[n] y) {
          y = If (c) <then_branch = t () => (a) { a = Concat <axis = 0> (x, x) },
                      else_branch = e () => (b) { b = Neg (x) }>
        }""",
        {"c": np.array(True), "x": np.ones(3, np.float32)},
        "the shape of 'y' depends on the data",
    ),
    "rows that end by the data": (
        """
        g (float[3] x, float limit) => (float[3] y, float[n] rows) {
          m = Constant <value = int64 {9}> ()
          y, rows = Loop (m, , x) <body = b (int64 i, bool g, float[3] v)
              => (bool more, float[3] w, float s) {
            w = Add (v, x)  s = ReduceMax <keepdims = 0> (w)  more = Less (s, limit) }>
        }""",
        {"x": np.ones(3, np.float32), "limit": np.array(4, np.float32)},
        "the shape of 'rows' depends on the data",
    ),
    "a body with work for the host": (
        """
        g (bool c, float[3] x, int64 z) => (float[3] y) {
          y = If (c) <then_branch = t () => (a) { s = SequenceConstruct (x, x)
                        a = SequenceAt (s, z) },
                      else_branch = e () => (b) { b = Neg (x) }>
        }""",
        {"c": np.array(False), "x": np.ones(3, np.float32), "z": np.array(0)},
        "(SequenceConstruct) of body 't': 's' is sequence",
    ),
    "a node that only numpy has": (
        """
        g (bool c, float[3] x) => (float[3] y) {
          y = If (c) <then_branch = t () => (a) { a = Erf (x) },
                      else_branch = e () => (b) { b = Neg (x) }>
        }""",
        {"c": np.array(True), "x": np.ones(3, np.float32)},
        "body 't': node 'a' (Erf): any: never heard of it",
    ),
    "a step that the device keeps out": (
        """
        g (bool c, float[3] x) => (float[3] y) {
          y = If (c) <then_branch = t () => (a) { a = Cos (x) },
                      else_branch = e () => (b) { b = Neg (x) }>
        }""",
        {"c": np.array(True), "x": np.ones(3, np.float32)},
        "a (any, banned): not in a body",
    ),
}


@pytest.mark.parametrize("case", HOSTED)
def test_the_host_decides_where_the_device_cannot(case: str) -> None:
    text, feeds, reason = HOSTED[case]
    source = parse_model(HEADER + text)
    model, backend = deciding(source, fallback=True)
    backend.banned, backend.declined = {"Cos"}, {"Erf"}
    with tercet.load(source) as reference, model:
        want = reference.run(feeds)
        for name, data in model.run(feeds).items():
            np.testing.assert_array_equal(data, want[name])
        (said,) = hosted(model)
    assert reason in said
    assert said.endswith("planned when they first run")


@pytest.mark.parametrize("options", [{"control": "host"}, {"check_each": True}])
def test_the_host_decides_if_it_is_asked_to(options: dict[str, Any]) -> None:
    flow = FLOWS[0]
    model = check(flow.model, *flow.feeds, **options)
    assert hosted(model) == ["its bodies are planned when they first run"]
    unknown: Any = "gpu"
    with pytest.raises(tercet.UsageError, match="control='gpu': expected one of device, host"):
        Options(control=unknown)


def test_stages_around_what_the_device_decides_on() -> None:
    """An If in front of a list and one behind it, in separate plans."""
    branch = "then_branch = t{0} () => (a{0}) {{ a{0} = Sin ({1}) }}, "
    branch += "else_branch = e{0} () => (b{0}) {{ b{0} = Add ({1}, x) }}"
    source = parse_model(
        HEADER
        + f"""
        g (bool c, float[3] x) => (float[3] z) {{
          y = If (c) <{branch.format(0, "x")}>
          s = SequenceConstruct (y, x)  one = Constant <value = int64 {{1}}> ()
          w = SequenceAt (s, one)
          v = Add (w, y)
          z = If (c) <{branch.format(1, "v")}>
        }}"""
    )
    model, backend = deciding(source, fallback=True)
    with tercet.load(source) as reference, model:
        for cond in (True, False):
            feeds = {"c": np.array(cond), "x": np.arange(3, dtype=np.float32)}
            want, got = reference.run(feeds)["z"], model.run(feeds)["z"]
            np.testing.assert_array_equal(got, want)
        rows = [row for row in model.placement() if row.operators == "If"]
    assert [row.kernel for row in rows] == ["conditional node of the graph, 1 or 1 steps"] * 2
    assert isinstance(backend.device, DecidingDevice)
    assert backend.device.allocated == 0


def test_carried_values_are_written_in_place_where_they_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One step a round and nothing else: no copy from the new value to the old one."""
    text = """
    g (int64 m, float[4] x) => (float[4] y) {
      y = Loop (m, , x) <body = b (int64 i, bool going, float[4] v) => (bool more, float[4] w) {
        more = Identity (going)  w = Add (v, x) }>
    }"""
    source = parse_model(HEADER + text)
    model, backend = deciding(source)
    copies: list[Any] = []
    own = backend.device.copier

    def copier(dst: Any, src: Any) -> Any:
        copies.append(dst)
        return own(dst, src)

    monkeypatch.setattr(backend.device, "copier", copier)
    with model:
        (y,) = model.run({"m": np.array(5), "x": np.ones(4, np.float32)}).values()
    np.testing.assert_array_equal(y, np.full(4, 6, np.float32))
    assert len(copies) == 4, "two inputs, the initial value and the result"
