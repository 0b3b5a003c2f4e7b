"""Control flow as conditional nodes of one CUDA graph."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tercet
from tercet.runtime.control import loop_step
from tercet.runtime.session.model import Model

from ..control.flows import FLOWS, Feeds, Flow, random_flow

pytestmark = pytest.mark.gpu


def hosted(model: Model) -> list[str]:
    """Return why the host decides on control flow, as far as it does."""
    return [row.reason for row in model.placement() if row.backend == "host"]


def same(model: Model, reference: Model, feeds: Feeds) -> None:
    want = reference.run(feeds)
    for name, data in model.run(feeds).items():
        assert (data.dtype, data.shape) == (want[name].dtype, want[name].shape)
        np.testing.assert_allclose(data, want[name], rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("flow", FLOWS, ids=str)
@pytest.mark.parametrize(("streams", "unrolled"), [(1, 0), (4, 0), (4, 1024)])
def test_one_graph_that_the_gpu_decides_on(
    flow: Flow, streams: int, unrolled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_step, "UNROLLED", unrolled)
    with (
        tercet.load(flow.model, "cuda", streams=streams) as model,
        tercet.load(flow.model) as reference,
    ):
        for feeds in (*flow.feeds, *flow.feeds[::-1]):
            same(model, reference, feeds)
        assert hosted(model) == []
        assert model.prepare().is_plan
        kernels = [row.kernel for row in model.placement()]
        assert any("node of the graph" in kernel or "unrolled" in kernel for kernel in kernels)


@pytest.mark.parametrize("seed", range(8))
def test_control_flow_at_random(seed: int) -> None:
    source, several = random_flow(seed)
    with tercet.load(source, "cuda") as model, tercet.load(source) as reference:
        for feeds in several:
            same(model, reference, feeds)
        assert hosted(model) == []


@pytest.mark.parametrize("flow", FLOWS, ids=str)
def test_bits_do_not_depend_on_where_conditions_are_decided(flow: Flow) -> None:
    with (
        tercet.load(flow.model, "cuda") as model,
        tercet.load(flow.model, "cuda", control="host") as host,
        tercet.load(flow.model, "cuda", check_each=True) as each,
    ):
        wanted = [host.run(feeds) for feeds in flow.feeds]
        assert len(hosted(host)) + len(hosted(each)) > 0
        for _ in range(100):
            for feeds, want in zip(flow.feeds, wanted, strict=True):
                for name, data in model.run(feeds).items():
                    np.testing.assert_array_equal(data, want[name])
        for feeds, want in zip(flow.feeds, wanted, strict=True):
            for name, data in each.run(feeds).items():
                np.testing.assert_array_equal(data, want[name])


def test_arrays_of_the_device_stay_there() -> None:
    flow = FLOWS[0]
    with tercet.load(flow.model, "cuda") as model, tercet.load(flow.model) as reference:
        for feeds in flow.feeds:
            there = {name: tercet.to_device(data) for name, data in feeds.items()}
            want = reference.run(feeds)
            for name, found in model.run(there, to="device").items():
                np.testing.assert_allclose(found.numpy(), want[name], rtol=2e-5, atol=1e-6)
        with model.bind(outputs=None) as bound:
            found = bound.run(flow.feeds[0])
            want = reference.run(flow.feeds[0])
            np.testing.assert_allclose(found["y"].numpy(), want["y"], rtol=2e-5, atol=1e-6)
        assert hosted(model) == []


def test_the_thread_that_runs_records() -> None:
    flow = FLOWS[0]
    with (
        ThreadPoolExecutor(1) as pool,
        tercet.load(flow.model, "cuda") as model,
        tercet.load(flow.model) as reference,
    ):
        for feeds in flow.feeds:
            want = reference.run(feeds)
            for name, data in pool.submit(model.run, feeds).result().items():
                np.testing.assert_allclose(data, want[name], rtol=2e-5, atol=1e-6)


def test_batches_in_a_pipeline() -> None:
    flow = FLOWS[1]
    batches = list(flow.feeds) * 3
    with tercet.load(flow.model, "cuda") as model, tercet.load(flow.model) as reference:
        for found, feeds in zip(model.map(batches), batches, strict=True):
            for name, data in reference.run(feeds).items():
                np.testing.assert_allclose(found[name], data, rtol=2e-5, atol=1e-6)
