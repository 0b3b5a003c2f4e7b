"""Who runs a node of the cudnn backend: cuDNN or the cuda kernels, by time or because asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tercet
from tercet.backends import open_backends
from tercet.backends.numpy import evaluate
from tercet.runtime.ops.conv import Conv
from tercet.runtime.options import Options, Precision
from tercet.runtime.session.model import Model
from tercet.runtime.session.placement import PlacedRow
from tercet.tools.workshop.bench_models import bench_inputs, bench_model
from tercet.tools.workshop.convolution_cases import ConvolutionCase
from tercet.tools.workshop.light_models import light_inputs, light_model

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn import arbitration, step

pytestmark = pytest.mark.gpu

CASE = ConvolutionCase(Conv(pads=(1, 1, 1, 1)), (1, 64, 28, 28), (64, 64, 3, 3), True, True, True)
TIMES = re.compile(r"cuda kernels: ([\d.]+) us")
LOST = re.compile(r"cudnn: cuda kernels: ([\d.]+) us, cuDNN: ([\d.]+) us")


def ran(cache: Path, **options: Any) -> PlacedRow:
    """Run the case, check its result and return the row of its convolution."""
    chosen = Options(cache=cache, **options)
    with Model(CASE.graph(), open_backends("cudnn", chosen), chosen, evaluate) as model:
        (got,) = model.run(CASE.feeds()).values()
        row = model.placement()["conv"]
    want = CASE.expected()
    assert np.linalg.norm(got - want) <= 2e-6 * np.linalg.norm(want)
    return row


@pytest.mark.parametrize("way", ["cudnn", "cuda", "cudnn,cuda"])
@pytest.mark.parametrize("tune", [False, True])
def test_the_user_says_who_runs_it(way: str, tune: bool, tmp_path: Path) -> None:
    row = ran(tmp_path, tune=tune, algorithms={"Conv": way})
    assert row.backend == way.partition(",")[0]
    if way == "cuda":
        assert "algorithm 'cuda' is requested, which is not cuDNN's" in row.reason


def test_the_faster_one_runs_it(tmp_path: Path) -> None:
    row = ran(tmp_path, tune=True)
    if row.backend == "cudnn":
        assert TIMES.search(row.kernel), row.kernel
    else:
        lost = LOST.search(row.reason)
        assert lost, row.reason
        assert float(lost[1]) <= float(lost[2])


def test_both_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ran(tmp_path, tune=True)

    def refuse(*_: object) -> float:
        raise AssertionError("measured again")

    for module in (arbitration, step):
        monkeypatch.setattr(module, "microseconds", refuse)
    again = ran(tmp_path, tune=True)
    assert (again.backend, again.reason) == (first.backend, first.reason)


@pytest.mark.parametrize("limit", [0, 1 << 20, None])
def test_the_workspace_is_kept(limit: int | None, tmp_path: Path) -> None:
    chosen = Options(cache=tmp_path, workspace=limit, precision="float16")
    with Model(CASE.graph(), open_backends("cudnn", chosen), chosen, evaluate) as model:
        model.run(CASE.feeds())
        needed = model.memory().workspace.get("cuda:0", 0)
    assert limit is None or needed <= limit


def test_a_tuned_model_mixes_both_in_one_cuda_graph(tmp_path: Path) -> None:
    """Half of the convolutions are cuDNN's by the user's word, the others the cuda kernels'."""
    proto = light_model("squeezenet")
    with tercet.load(proto, "cudnn", cache=tmp_path) as model:
        want = model.run(light_inputs(proto))
        names = [row.nodes[0] for row in model.placement() if row.backend == "cudnn"]
    ways = {name: ("cudnn", "cuda")[i % 2] for i, name in enumerate(names)}
    with tercet.load(proto, "cudnn", cache=tmp_path, algorithms=ways) as model:
        got = model.run(light_inputs(proto))
        (plan,) = model.prepare().plans
        assert len(plan._runs) == 3, "one upload, one recording, one wait"
        assert {row.backend for row in model.placement() if row.nodes} >= {"cudnn", "cuda"}
        runs_on = {row.nodes[0]: row.backend for row in model.placement() if row.nodes}
        assert all(runs_on.get(name, way) == way for name, way in ways.items())
    for name, data in want.items():
        assert np.abs(got[name] - data).max() <= 1e-4 * np.abs(data).max()


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_branches_side_by_side_change_nothing(precision: Precision, tmp_path: Path) -> None:
    """Engines of several branches share a handle, and no memory."""
    proto = bench_model("googlenet")
    feeds = bench_inputs(proto, batch=2)
    results: list[dict[str, Any]] = []
    for streams in (1, 4):
        with tercet.load(
            proto, "cudnn", precision=precision, streams=streams, cache=tmp_path
        ) as model:
            results += [model.run(feeds) for _ in range(3)]
            (plan,) = model.prepare({name: data.shape for name, data in feeds.items()}).plans
            used = {row.stream for row in plan.rows if row.backend == "cudnn"}
            assert (len(used) > 1) == (streams > 1)
    for again in results[1:]:
        for name, data in results[0].items():
            np.testing.assert_array_equal(again[name], data)
