"""Profiles on a GPU: rows timed by events make up the run; benchmarks have the device's time."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.tools.bench.bench import Schedule, bench
from tercet.tools.profile.profiling import profile
from tercet.tools.workshop.light_models import light_inputs, light_model

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def large_convolutions() -> tuple[bytes, dict[str, np.ndarray]]:
    """A few convolutions on a large batch: what they take dwarfs every launch."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((64, 64, 3, 3), np.float32) / 24 for i in range(4)}
    nodes = [
        helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"x{i + 1}"], pads=[1] * 4) for i in range(4)
    ]
    nodes.append(helper.make_node("GlobalAveragePool", ["x4"], ["y"]))
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x0", kind, [128, 64, 112, 112])],
        [helper.make_tensor_value_info("y", kind, [128, 64, 1, 1])],
        [numpy_helper.from_array(data, name) for name, data in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return proto.SerializeToString(), {"x0": rng.standard_normal((128, 64, 112, 112), np.float32)}


@pytest.mark.parametrize("backend", ["cuda", "cudnn"])
def test_rows_make_up_the_run(backend: str) -> None:
    source, feeds = large_convolutions()
    found = profile(source, backend, feeds, repeat=10, peaks=False)
    assert found.covered == pytest.approx(1, abs=0.05)
    assert found.phases["upload"] > 0 < found.phases["download"]
    assert all(row.seconds is not None for row in found.rows if row.kind != "view")


@pytest.mark.parametrize("backend", ["cuda", "cudnn"])
def test_the_run_stays_below_the_roof(backend: str) -> None:
    """As a whole: a small row may be faster than memory, where its data are in the cache."""
    proto = light_model("resnet50")
    found = profile(proto, backend, light_inputs(proto), repeat=5)
    peaks = found.peaks["cuda:0"]
    assert 1e11 < peaks.copy < 1e13
    assert 1e12 < peaks.flops < 1e15
    minimum = sum(row.limit or 0 for row in found.rows)
    assert 0 < minimum < found.rows_seconds


@pytest.mark.parametrize("backend", ["cuda", "cudnn"])
def test_rows_are_shorter_in_their_graph(backend: str) -> None:
    """A kernel starts there as the one before it ends."""
    proto = light_model("resnet50")
    found = profile(proto, backend, light_inputs(proto), repeat=5)
    assert found.peaks["cuda:0"].launch is not None
    assert 1e-7 < found.peaks["cuda:0"].launch < 1e-5
    steps = [row for row in found.rows if row.kind == "step"]
    assert all(row.in_graph is not None and row.limit is not None for row in steps)
    within, alone = (
        sum(row.in_graph or 0 for row in steps),
        sum(row.seconds or 0 for row in steps),
    )
    assert sum(row.limit or 0 for row in steps) < within < alone


def test_bench_has_the_devices_time() -> None:
    proto = light_model("squeezenet")
    found = bench(proto, ["cuda"], light_inputs(proto), schedule=Schedule(duration=0.5))
    (case,) = found.cases
    assert case.device is not None
    assert case.device.median < case.steady.median
    assert case.error is not None
    assert case.error < 1e-5
    assert "GPU" in found.environment
