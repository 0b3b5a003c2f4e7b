"""Whole models on cuDNN with the cuda kernels: results, placement, capture, memory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tercet
from tercet.runtime.ir.types import Array
from tercet.tools.workshop.light_models import light_inputs, light_model

pytestmark = pytest.mark.gpu

MODELS = ("squeezenet", "resnet50", "vgg19")


def logits(name: str, backend: str, **options: Any) -> tuple[Array, tercet.Model]:
    proto = light_model(name)
    model = tercet.load(proto, backend, **options)
    (found,) = model.run(light_inputs(proto)).values()
    return found, model


@pytest.fixture(scope="module")
def expected() -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name in MODELS:
        found[name], model = logits(name, "numpy")
        model.close()
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tune", [False, True])
def test_models_equal_numpy(
    name: str, tune: bool, expected: dict[str, Array], tmp_path: Path
) -> None:
    got, model = logits(name, "cudnn", tune=tune, cache=tmp_path)
    want = expected[name]
    with model:
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
        assert np.array_equal(got.argmax(1), want.argmax(1))


def test_resnet50_runs_its_convolutions_fused_on_cudnn() -> None:
    """Two convolutions whose results are added are one."""
    _, model = logits("resnet50", "cudnn")
    with model:
        rows = [row for row in model.placement() if row.backend == "cudnn"]
        operators = [row.operators for row in rows]
        assert operators.count("Conv + Add + Relu") == 15
        assert operators.count("Conv + Relu") == 34
        assert operators.count("Conv") == 3
        assert all("bias" in row.kernel and "then" not in row.kernel for row in rows)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_goes_through_the_host_in_between(name: str) -> None:
    _, model = logits(name, "cudnn")
    with model:
        placement = model.placement()
        steps = [i for i, row in enumerate(placement) if row.kind == "step"]
        assert {row.backend for row in placement if row.kind == "step"} == {"cudnn", "cuda"}
        assert not [row for row in placement.rows[steps[0] : steps[-1]] if row.kind == "copy"]
        assert [row.kernel for row in placement.copies] == ["cpu to cuda:0", "cuda:0 to cpu"]


def test_a_run_replays_one_cuda_graph() -> None:
    proto = light_model("squeezenet")
    with tercet.load(proto, "cudnn") as model:
        want = model.run(light_inputs(proto))
        (plan,) = model.prepare().plans
        assert len(plan._runs) == 3, "one upload, one recording, one wait"
        with tercet.load(proto, "cudnn", check_each=True) as single:
            got = single.run(light_inputs(proto))
    for name, data in want.items():
        np.testing.assert_array_equal(got[name], data)


@pytest.mark.parametrize("tune", [False, True])
def test_tf32_changes_formats_and_stays_near(
    tune: bool, expected: dict[str, Array], tmp_path: Path
) -> None:
    got, model = logits("resnet50", "cudnn", precision="tf32", tune=tune, cache=tmp_path)
    want = expected["resnet50"]
    with model:
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert 1e-5 < error < 1e-2
        reformats = [row for row in model.placement() if row.kind == "reformat"]
        assert len(reformats) <= 4, "the formats of neighbours agree"


@pytest.mark.alone
def test_close_returns_every_byte() -> None:
    import cuda.bindings.driver as driver

    def free() -> int:
        _, available, _ = driver.cuMemGetInfo()
        return available

    _, model = logits("resnet50", "cudnn")  # what a process keeps is there after the first model
    model.close()
    before = free()
    _, model = logits("resnet50", "cudnn")
    assert before - free() > 100 << 20
    model.close()
    del model
    assert before - free() <= 2 << 20


def test_any_thread_may_run_step_by_step() -> None:
    """A thread that has never met CUDA runs what another one has built."""
    proto = light_model("squeezenet")
    feeds = light_inputs(proto)
    found: list[Array] = []
    with tercet.load(proto, "cudnn", check_each=True) as model:
        (want,) = model.run(feeds).values()
        thread = threading.Thread(target=lambda: found.extend(model.run(feeds).values()))
        thread.start()
        thread.join()
    assert len(found) == 1
    np.testing.assert_array_equal(found[0], want)


def test_two_models_at_once() -> None:
    """One handle serves them all, one at a time."""
    proto = light_model("squeezenet")
    feeds = light_inputs(proto)
    with tercet.load(proto, "cudnn") as model:
        (want,) = model.run(feeds).values()
    wrong: list[str] = []

    def work() -> None:
        with tercet.load(proto, "cudnn") as model:
            for _ in range(5):
                (got,) = model.run(feeds).values()
                if not np.array_equal(got, want):
                    wrong.append("differs")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
