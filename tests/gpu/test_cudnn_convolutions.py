"""Single convolutions on cuDNN: right in float32, or declined with a reason, in every variation."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet.backends import open_backends
from tercet.backends.numpy import evaluate
from tercet.runtime.dtypes import float32
from tercet.runtime.ir import Graph
from tercet.runtime.model import Model
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.options import Options
from tercet.runtime.types import Array, TensorType

from ..cudnn.convolutions import Case, random_cases

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn.choice import Choice, Chooser, Judge, Task
from tercet.backends.cudnn.vendor import NoPlan

pytestmark = pytest.mark.gpu

CASE = Case(
    Conv(pads=(1, 1, 1, 1)), (1, 64, 28, 28), (64, 64, 3, 3), bias=True, add=True, relu=True
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def opened(graph: Graph, cache: Path, **options: Any) -> Model:
    chosen = Options(cache=cache, **options)
    return Model(graph, open_backends("cudnn", chosen), chosen, evaluate)


def distance(got: Array, want: Array) -> float:
    if not np.isfinite(got).all():
        return np.inf
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30))


def error_of(case: Case, cache: Path, **options: Any) -> tuple[float, str]:
    """Return the distance to float64, and what ran."""
    with opened(case.graph(), cache, **options) as model:
        (got,) = model.run(case.feeds()).values()
        rows = [row for row in model.placement() if row.kind == "step"]
        assert all(row.backend == "cudnn" or row.reason for row in rows), "every decline is told"
        text = "; ".join(f"{row.backend}: {row.kernel}" for row in rows)
    want = case.expected()
    assert got.shape == want.shape
    assert got.dtype == np.float32
    return distance(got, want), text


def test_random_convolutions_are_right_in_float32(cache: Path) -> None:
    wrong: list[str] = []
    declined = 0
    for case in random_cases(200, seed=3):
        error, text = error_of(case, cache)
        declined += "cudnn: " not in text
        if error > 1e-5:
            wrong.append(f"{case}: {error:.1e} by {text}")
    assert not wrong, "\n".join(wrong)
    assert declined <= 10


@pytest.mark.parametrize("transposed", [False, True])
def test_kernels_are_not_mirrored(transposed: bool, cache: Path) -> None:
    """A single 1 off the centre moves the image: up and left, down and right when transposed."""
    op = ConvTranspose(pads=(1, 1, 1, 1)) if transposed else Conv(pads=(1, 1, 1, 1))
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (1, 1, 6, 7)))
    kernel = np.zeros((1, 1, 3, 3), np.float32)
    kernel[0, 0, 2, 2] = 1
    graph.set_outputs({"y": graph.insert(op, [x, graph.constant(kernel)]).output})
    image = np.arange(1, 43, dtype=np.float32).reshape(1, 1, 6, 7)
    want = np.zeros_like(image)
    if transposed:
        want[..., 1:, 1:] = image[..., :-1, :-1]
    else:
        want[..., :-1, :-1] = image[..., 1:, 1:]
    with opened(graph, cache) as model:
        np.testing.assert_array_equal(model(image)[0], want)
        assert "cudnn" in {row.backend for row in model.placement()}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_every_epilogue_is_one_fused_graph(bias: bool, add: bool, relu: bool, cache: Path) -> None:
    case = replace(CASE, bias=bias, add=add, relu=relu)
    error, text = error_of(case, cache)
    assert error <= 2e-6
    assert text.startswith("cudnn: conv")
    assert "then" not in text
    assert "; " not in text, "one step"


@pytest.mark.parametrize(
    "case",
    [
        Case(Conv(group=32, pads=(1, 1, 1, 1)), (2, 32, 20, 20), (32, 1, 3, 3), True, True, True),
        Case(ConvTranspose(strides=(2, 2)), (2, 16, 9, 9), (16, 24, 2, 2), True, True, True),
        Case(ConvTranspose(strides=(3,)), (2, 6, 9), (6, 5, 4), True, False, True),
    ],
    ids=str,
)
def test_what_cudnn_does_not_fuse_a_kernel_does(case: Case, cache: Path) -> None:
    error, text = error_of(case, cache)
    assert error <= 2e-6
    assert ", then " in text
    assert "; " not in text, "one step"


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_tf32_only_where_it_is_asked_for(precision: str, cache: Path) -> None:
    case = Case(Conv(), (1, 512, 20, 20), (64, 512, 3, 3), bias=True, relu=True)
    error, _ = error_of(case, cache, precision=precision)
    if precision == "float32":
        assert error < 5e-6
    else:
        assert 5e-5 < error < 2e-3


def test_tf32_runs_channels_last_with_visible_reformats(cache: Path) -> None:
    with opened(CASE.graph(), cache, precision="tf32") as model:
        (got,) = model.run(CASE.feeds()).values()
        kinds = [row.kind for row in model.placement()]
    assert distance(got, CASE.expected()) < 2e-3
    assert kinds.count("reformat") >= 1


@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize("tune", [False, True])
def test_no_workspace_is_enough(precision: str, tune: bool, cache: Path) -> None:
    options = {"precision": precision, "tune": tune, "workspace": 0}
    with opened(CASE.graph(), cache, **options) as model:
        model.run(CASE.feeds())
        assert model.memory().workspace_sum == {"cuda:0": 0}
        assert "workspace" not in model.placement()["conv"].kernel


def test_tuning_measures_once(tmp_path: Path) -> None:
    error, text = error_of(CASE, tmp_path, tune=True)
    assert error < 2e-6
    assert " us, best of " in text
    (file,) = (tmp_path / "cudnn").iterdir()
    entry = json.loads(file.read_text())
    assert entry["microseconds"] > 0
    assert entry["among"] > 5
    file.write_text(json.dumps(entry | {"microseconds": 0.125}))
    _, again = error_of(CASE, tmp_path, tune=True)
    assert "(0.1 us, best of " in again, "what the file says is not measured again"


def test_what_cudnn_refuses_the_cuda_kernels_run(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(chooser: Chooser, task: Task, judge: Judge, *, tune: bool = False) -> Choice:
        raise NoPlan(f"{task.convolution}: 36 plans: 36 want more workspace")

    monkeypatch.setattr(Chooser, "choose", refuse)
    with opened(CASE.graph(), cache) as model:
        (got,) = model.run(CASE.feeds()).values()
        row = model.placement()["conv"]
        assert len(model.placement().copies) == 3, "x, z and y"
    assert distance(got, CASE.expected()) < 2e-6
    assert row.backend == "cuda"
    assert re.search(
        r"cudnn: cuDNN 9\.\S+ on NVIDIA \S+ sm_\d+ has no engine: conv x 1x64x28x28 .*workspace",
        row.reason,
    )


def test_nan_and_infinity_stay_where_they_are(cache: Path) -> None:
    case = replace(CASE, add=False)
    x = case.feeds()["x"]
    x[0, 0, 5, 5], x[0, 0, 20, 20] = np.nan, np.inf
    with opened(case.graph(), cache) as model:
        (y,) = model(x)
    near = np.zeros((28, 28), bool)
    near[4:7, 4:7] = True
    assert np.isnan(y[0, :, near]).all(), "ReLU keeps NaN"
    infinite = np.zeros((28, 28), bool)
    infinite[19:22, 19:22] = True
    assert np.isfinite(y[0][:, ~(near | infinite)]).all()


def test_results_repeat_bit_for_bit(cache: Path) -> None:
    up = Case(ConvTranspose(strides=(2, 2)), (4, 64, 30, 30), (64, 64, 4, 4))
    for case in (CASE, up):
        with opened(case.graph(), cache) as model:
            first = model.run(case.feeds())
            for _ in range(5):
                again = model.run(case.feeds())
                assert all(np.array_equal(first[n], again[n]) for n in first)
