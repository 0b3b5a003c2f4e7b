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
from tercet.runtime.base.cache import Cache
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, name_of
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import (
    Elu,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Mish,
    Relu,
    Sigmoid,
    Swish,
    Tanh,
)
from tercet.runtime.ops.movement import Concat
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model
from tercet.tools.workshop.convolution_cases import ConvolutionCase, convolved, random_cases
from tercet.tools.workshop.cudnn_sweep import sweep

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn import conv
from tercet.backends.cudnn.backend import CudnnBackend
from tercet.backends.cudnn.choice import Chooser, Division, EngineChoice, EngineTask, EngineTuner
from tercet.backends.cudnn.conv import divide
from tercet.backends.cudnn.library import NoPlan

pytestmark = pytest.mark.gpu

CASE = ConvolutionCase(
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


def error_of(case: ConvolutionCase, cache: Path, **options: Any) -> tuple[float, str]:
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


def test_random_convolutions_are_right_or_declined(cache: Path) -> None:
    """200 configurations, in float32 and float16, plain and channels last."""
    backend = open_backends("cudnn", Options(cache=cache))[0]
    assert isinstance(backend, CudnnBackend)
    findings = list(sweep(backend.device, backend.chooser, random_cases(200, seed=3), print))
    assert len(findings) == 800
    wrong = [f for f in findings if f.verdict == "wrong"]
    assert not wrong, "\n".join(map(str, wrong))
    assert all(f.reason for f in findings if not f.kernel)
    assert sum(bool(f.kernel) for f in findings) >= 792


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_random_models_are_right(precision: str, cache: Path) -> None:
    allowed = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[precision]
    wrong: list[str] = []
    for case in random_cases(20, seed=4):
        error, text = error_of(case, cache, precision=precision)
        if error > allowed:
            wrong.append(f"{case}: {error:.1e} by {text}")
    assert not wrong, "\n".join(wrong)


#: Greatest error of an element, by what it is and 0.01: some roundings to the dtype.
ALLOWED = {float32: 2e-5, float16: 1e-3, bfloat16: 8e-3}
ACTIVATIONS = (
    *(Relu(), LeakyRelu(alpha=0.1), Elu(), Sigmoid(), Tanh(), Gelu(), Gelu(approximate="tanh")),
    *(Swish(), HardSwish(), HardSigmoid(), Mish()),
)


def activated(dtype: DType) -> Graph:
    """Each activation behind a convolution that gives the channels in another order."""
    graph = Graph()
    x = graph.add_input("x", TensorType(dtype, (1, 64, 16, 16)))
    bias = graph.constant(np.zeros(64, dtype), "b")
    outputs: dict[str, Value] = {}
    for place, activation in enumerate(ACTIVATIONS):
        kernel = np.roll(np.eye(64), place, 0).reshape(64, 64, 1, 1).astype(dtype)
        y = graph.insert(Conv(), [x, graph.constant(kernel, f"w{place}"), bias]).output
        outputs[str(activation)] = graph.insert(activation, [y]).output
    graph.set_outputs(outputs)
    infer(graph)
    return graph


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=name_of)
@pytest.mark.parametrize("division", [0, 1, 2])
def test_activations_are_right_and_keep_nan(
    dtype: DType, division: int, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way they are divided, from -12 to 12, element by element."""

    def one_way(*arguments: Any) -> tuple[Division, ...]:
        return divide(*arguments)[division : division + 1] or divide(*arguments)[-1:]

    monkeypatch.setattr(conv, "divide", one_way)
    numbers = np.linspace(-12, 12, 64 * 256).reshape(1, 64, 16, 16).astype(dtype)
    numbers[0, 5, 5, 5] = np.nan  # which every channel of this pixel is a sum with
    with opened(activated(dtype), cache) as model:
        results = model.run({"x": numbers})
        kernels = [r.kernel for r in model.placement() if r.backend == "cudnn"]
    assert len(kernels) == len(ACTIVATIONS)
    wrong: list[str] = []
    for place, activation in enumerate(ACTIVATIONS):
        moved = np.roll(numbers.astype(np.float64), place, 1)
        moved[0, :, 5, 5] = np.nan
        found = evaluate(activation, [moved], 1)
        assert found is not None
        got, want = results[str(activation)].astype(np.float64), found[0]
        error = np.nanmax(np.abs(got - want) / (np.abs(want) + 1e-2))
        if (np.isnan(got) != np.isnan(want)).any() or error > ALLOWED[dtype]:
            wrong.append(f"{activation}: {error:.1e}, {kernels[place]}")
    assert not wrong, "\n".join(wrong)


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
        ConvolutionCase(
            Conv(group=32, pads=(1, 1, 1, 1)), (2, 32, 20, 20), (32, 1, 3, 3), True, True, True
        ),
        ConvolutionCase(
            ConvTranspose(strides=(2, 2)), (2, 16, 9, 9), (16, 24, 2, 2), True, True, True
        ),
        ConvolutionCase(ConvTranspose(strides=(3,)), (2, 6, 9), (6, 5, 4), True, False, True),
    ],
    ids=str,
)
def test_what_cudnn_does_not_fuse_a_kernel_does(case: ConvolutionCase, cache: Path) -> None:
    error, text = error_of(case, cache)
    assert error <= 2e-6
    assert ", then " in text
    assert "; " not in text, "one step"


@pytest.mark.parametrize(
    "case",
    [
        ConvolutionCase(Conv(), (2, 64, 4, 4), (1, 64, 4, 4), True, dtype=float16),
        ConvolutionCase(
            Conv(dilations=(3,), group=3, pads=(1, 3)), (1, 12, 1), (9, 4, 1), dtype=float16
        ),
        ConvolutionCase(
            Conv(group=2, pads=(3, 0, 0, 3)), (2, 32, 5, 5), (32, 16, 2, 2), dtype=float16
        ),
    ],
    ids=["one number a picture", "padding alone", "padding alone, in a corner"],
)
@pytest.mark.parametrize("tune", [False, True])
def test_what_was_wrong_once(case: ConvolutionCase, tune: bool, cache: Path) -> None:
    stays = ("lower_conv",)  # or one number a picture would be a product of matrices
    with opened(case.graph(), cache, tune=tune, conv="cudnn", skip=stays) as model:
        (got,) = model.run(case.feeds()).values()
        row = model.placement()["conv"]
    assert row.backend == "cudnn"
    assert "compiled in" not in row.kernel or not case.op.group > 1
    assert distance(got, case.expected()) < 2e-3


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_tf32_only_where_it_is_asked_for(precision: str, cache: Path) -> None:
    case = ConvolutionCase(Conv(), (1, 512, 20, 20), (64, 512, 3, 3), bias=True, relu=True)
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
    options = {"precision": precision, "tune": tune, "workspace": 0, "conv": "cudnn"}
    with opened(CASE.graph(), cache, **options) as model:
        model.run(CASE.feeds())
        assert model.memory().workspace_sum == {"cuda:0": 0}
        assert "workspace" not in model.placement()["conv"].kernel


def test_tuning_measures_once(tmp_path: Path) -> None:
    error, text = error_of(CASE, tmp_path, tune=True, conv="cudnn")
    assert error < 2e-6
    assert " us, best of " in text
    (file,) = (tmp_path / "cudnn").iterdir()
    records = Cache(file.parent)
    entry = json.loads(records.read(file.name) or b"{}")
    assert entry["microseconds"] > 0
    assert entry["among"] > 5
    records.write(file.name, json.dumps(entry | {"microseconds": 0.125}).encode())
    _, again = error_of(CASE, tmp_path, tune=True, conv="cudnn")
    assert "(0.1 us, best of " in again, "what the file says is not measured again"


def test_branches_write_into_what_joins_them(cache: Path) -> None:
    """Two convolutions give slices of one tensor, and a third one reads all of it."""
    rng = np.random.default_rng(5)

    def weights(*dims: int) -> Array:
        return (rng.standard_normal(dims) / 8).astype(np.float16)

    graph = Graph()
    x = graph.add_input("x", TensorType(float16, (2, 16, 9, 9)))
    w = [weights(24, 16, 3, 3), weights(40, 16, 1, 1), weights(8, 64, 1, 1)]
    parts: list[Value] = []
    for place, pads in enumerate(((1, 1, 1, 1), (0, 0, 0, 0))):
        y = graph.insert(Conv(pads=pads), [x, graph.constant(w[place], f"w{place}")]).output
        parts.append(graph.insert(Relu(), [y]).output)
    joined = graph.insert(Concat(axis=1), parts, name="join").output
    graph.set_outputs({"y": graph.insert(Conv(), [joined, graph.constant(w[2], "w2")]).output})
    infer(graph)
    data = rng.standard_normal((2, 16, 9, 9)).astype(np.float16)
    with opened(graph, cache) as model:
        (got,) = model(data)
        assert [r.backend for r in model.placement() if r.kind == "step"] == ["cudnn"] * 3
        assert model.placement()["join"].kind == "view"
    halves = [
        np.maximum(convolved(Conv(pads=pads), data, each), 0)
        for pads, each in (((1, 1, 1, 1), w[0]), ((0, 0, 0, 0), w[1]))
    ]
    assert distance(got, convolved(Conv(), np.concatenate(halves, 1), w[2])) < 2e-3


def test_what_cudnn_refuses_the_cuda_kernels_run(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(
        chooser: Chooser, task: EngineTask, judge: EngineTuner, *, tune: bool = False
    ) -> EngineChoice:
        raise NoPlan(f"{task.divisions[-1].operation}: 36 plans: 36 need more workspace")

    monkeypatch.setattr(Chooser, "choose", refuse)
    with opened(CASE.graph(), cache) as model:
        (got,) = model.run(CASE.feeds()).values()
        row = model.placement()["conv"]
        assert len(model.placement().copies) == 3, "x, z and y"
    assert distance(got, CASE.expected()) < 2e-6
    assert row.backend == "cuda"
    assert re.search(
        r"cudnn: cuDNN 9\.\S+ on NVIDIA .+ sm_\d+ has no engine: conv x 1x64x28x28 .*workspace",
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
    up = ConvolutionCase(ConvTranspose(strides=(2, 2)), (4, 64, 30, 30), (64, 64, 4, 4))
    for case in (CASE, up):
        with opened(case.graph(), cache) as model:
            first = model.run(case.feeds())
            for _ in range(5):
                again = model.run(case.feeds())
                assert all(np.array_equal(first[n], again[n]) for n in first)
