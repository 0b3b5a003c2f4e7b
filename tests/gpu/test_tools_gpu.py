"""The tools on a GPU: profiles add up, planted faults are found, reports are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends import open_backends
from tercet.backends.numpy import NumpyBackend
from tercet.runtime.options import Options
from tercet.tools.bench.bench import Schedule, bench
from tercet.tools.bisect.bisection import bisect
from tercet.tools.bisect.precision import keep_float32
from tercet.tools.compare.compare import compare
from tercet.tools.compare.layers import compare_layers
from tercet.tools.inspect.capability import capabilities_of
from tercet.tools.profile.profiling import Profile, profile
from tercet.tools.report.report import report
from tercet.tools.runners.replay import BackendPlayer
from tercet.tools.workshop.bench_models import bench_inputs, bench_model
from tercet.tools.workshop.light_models import light_inputs, light_model

from ..faults.faulty import (
    FaultyBackend,
    Planted,
    exchanged_rows,
    half_precision,
    last_element,
    not_a_number,
    one_percent,
    tail_is_zero,
)
from ..faults.networks import NETWORKS, inputs_of, network

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

BACKENDS = ("cuda", "cudnn")
BATCH = 32
LARGE = ("resnet50_v15", "vgg16", "googlenet")


# ── profile ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LARGE)
def test_rows_make_up_the_run(name: str, backend: str) -> None:
    """Rows, feeding and fetching within 5 % of the same model, uninstrumented, on one stream.

    Branches that run concurrently are timed one by one: their sum would exceed the run. Other
    processes of the host delay single launches, so the best of three profiles counts.
    """
    model = bench_model(name)
    feeds = bench_inputs(model, batch=BATCH)
    profiles: list[Profile] = []
    while len(profiles) < 3 and not (profiles and abs(profiles[-1].covered - 1) <= 0.05):
        found = profile(model, backend, feeds, repeat=7, peaks=False, streams=1)
        print(f"\n{name} on {backend}, batch {BATCH}: {found.covered:.3f}, {found.overhead:+.3f}")
        profiles.append(found)
    found = profiles[-1]
    assert found.covered == pytest.approx(1, abs=0.05)
    assert found.phases["upload"] > 0 < found.phases["download"]
    assert found.phases["compute"] > 0


# ── planted faults ───────────────────────────────────────────────────────────────────────────────


PLANTED = (
    Planted("classifier", "conv1", one_percent),
    Planted("classifier", "conv2", last_element),
    Planted("classifier", "depthwise", half_precision),
    Planted("classifier", "pool", exchanged_rows),
    Planted("classifier", "dense", tail_is_zero),
    Planted("transformer", "norm", last_element),
    Planted("transformer", "narrow", not_a_number),
    Planted("digits", "conv2", one_percent),
    Planted("digits", "fc", half_precision),
    Planted("squeezenet", "n7", last_element),
)


def faulty(planted: Planted, backend: str) -> BackendPlayer:
    """A backend of the GPU that is wrong at one node; what it does not run goes to numpy."""
    (inner, *_) = open_backends(backend, Options())
    wrong = FaultyBackend({planted.node}, planted.damage, inner)
    return BackendPlayer("faulty", (wrong, NumpyBackend()), Options())


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_layers_find_the_node(planted: Planted) -> None:
    pair = ["numpy", faulty(planted, "cuda")]
    found = compare_layers(network(planted.network), pair, inputs_of(planted.network))
    wrong = [layer for layer in found.layers if layer.verdict == "wrong"]
    assert len(wrong) == 1, found
    assert planted.node in wrong[0].nodes
    assert found.first is wrong[0]


@pytest.mark.parametrize("planted", PLANTED[:4], ids=str)
def test_bisect_finds_the_node(planted: Planted) -> None:
    pair = ["numpy", faulty(planted, "cuda")]
    found = bisect(network(planted.network), pair, inputs_of(planted.network), reduce=False)
    assert found.fault == "nodes", found
    assert planted.node in found.nodes


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_no_alarm(name: str, backend: str) -> None:
    pair, feeds = ["numpy", backend], inputs_of(name)
    layers = compare_layers(network(name), pair, feeds, fallback="numpy")
    assert layers.ok, f"{layers}"
    halved = bisect(network(name), pair, feeds, fallback="numpy", reduce=False)
    assert halved.ok, f"{halved}"


# ── the others ───────────────────────────────────────────────────────────────────────────────────


def test_compare_measures_its_bounds() -> None:
    model = light_model("squeezenet")
    found = compare(model, ["numpy", "cuda", "cudnn"], light_inputs(model), repeat=3)
    assert found.ok, found
    for result in found.results:
        assert result.error is not None
        assert result.error < 1e-5
    for precision in ("tf32", "float16"):
        rough = compare(
            model, ["numpy", "cuda"], light_inputs(model), repeat=0, precision=precision
        )
        assert rough.ok, rough


@pytest.mark.parametrize("name", ["resnet50", "shufflenet"])
def test_capabilities_are_those_of_a_run(name: str) -> None:
    model = light_model(name)
    with tercet.load(model, "cuda") as loaded:
        said = {row.operator: row.backend for row in capabilities_of(loaded) if row.ok}
        loaded.run(light_inputs(model))
        ran = {
            node.kind: row.backend
            for row in loaded.placement()
            for node in loaded.imported.nodes
            if node.name in row.nodes
        }
    assert {kind: said[kind] for kind in ran} == ran


def test_which_nodes_must_stay_float32() -> None:
    model, feeds = network("digits"), inputs_of("digits")
    half = keep_float32(model, 1e9, "float16", "cuda", feeds, fallback="numpy")
    assert half.keep == ()
    found = keep_float32(
        model, half.error_half / 4, "float16", "cuda", feeds, fallback="numpy", timeout=60
    )
    assert found.ok
    assert found.keep


def test_a_time_limit_ends_a_run_on_the_device() -> None:
    model = light_model("squeezenet")
    found = compare(
        model, ["cuda", "cudnn"], light_inputs(model), repeat=10**9, rtol=1e-3, timeout=5
    )
    assert found.stopped.startswith("stopped after 5 s")
    assert all(result.steady.samples for result in found.results)


def test_a_report_of_everything(tmp_path: Path) -> None:
    model = light_model("squeezenet")
    feeds = light_inputs(model)
    schedule = Schedule(
        precisions=("float32", "tf32"), concurrency=(1, 2), pipeline=True, duration=0.3
    )
    benched = bench(model, ["cuda", "cudnn"], feeds, schedule=schedule)
    assert len(benched.cases) == 2 * 2 * (2 + 1)
    assert all(case.error is not None for case in benched.cases)
    assert "GPU" in benched.environment
    parts: list[Any] = [
        benched.to_dict(),
        compare(model, ["numpy", "cuda", "cudnn"], feeds, repeat=3, rtol=1e-4).to_dict(),
        compare_layers(model, ["numpy", "cuda", "cudnn"], feeds).to_dict(),
        profile(model, "cuda", feeds, repeat=5).to_dict(),
    ]
    found = report(parts, "on a GPU")
    assert found.sections == ("compare", "layers", "profile", "bench")
    assert found.figures >= 7
    found.write(tmp_path / "report.html")
