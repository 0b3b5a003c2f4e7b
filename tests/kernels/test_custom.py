"""Custom operators with CUDA source of the user's own; the sample is that of the documentation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from examples import binary
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.recipe.operands import Tensor
from tercet.backends.cuda.recipe.targets import H200, Target
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.importers.onnx import load as import_model
from tercet.runtime.ir.custom import with_custom
from tercet.runtime.ir.op import OPERATORS
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from .dry import DryDevice, normal, planned_model
from .emulator import needs_compiler

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/custom_kernels.md").read_text(encoding="utf-8")
KEY = ("my.domain", "Swish")


def documented() -> Mapping[tuple[str, str], tercet.CustomOperator]:
    """Return what the page's file calls OPERATORS."""
    (text,) = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(text, "swish.py", "exec"), names)
    return names["OPERATORS"]


def model_of(text: str) -> ModelProto:
    return parse_model(f'<ir_version: 10, opset_import: ["" : 21, "my.domain" : 1]>\n{text}')


def swish_model(dtype: str = "float") -> ModelProto:
    body = "r = Neg (x)  s = my.domain.Swish <beta = 2.0> (r)  y = Relu (s)"
    return model_of(f"g ({dtype}[n] x) => (y) {{ {body} }}")


def opened(proto: ModelProto, operators: Any, *backends: Any) -> Model:
    graph = import_model(proto, operators=with_custom(OPERATORS, operators)).graph
    return Model(graph, backends, Options(), evaluate)


def kernel(source: str, **changes: Any) -> Any:
    """Return a launch of a kernel `f` of x and y."""

    def launch(x: Any, y: Any) -> tercet.CudaKernel:
        given: dict[str, Any] = {"grid": 1, "block": 32, "args": {"x": x, "y": y}}
        return tercet.CudaKernel(source, "f", **{**given, **changes})

    return launch


def with_kernel(launch: Any) -> Mapping[tuple[str, str], tercet.CustomOperator]:
    """Return an operator f(x) = x with this form on cuda."""
    own = tercet.CustomOperator(lambda x: x, lambda x: x, kernels={"cuda": launch})
    return {("my.domain", "F"): own}


COPY = 'extern "C" __global__ void f(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }'
F = model_of("g (float[32] x) => (y) { y = my.domain.F (x) }")


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("count", [0, 1, 255, 1000])
def test_it_runs_between_other_kernels(count: int, dtype: type, emulated: CudaBackend) -> None:
    x = np.random.default_rng(count).standard_normal(count).astype(dtype)
    proto = swish_model("float" if dtype is np.float32 else "float16")
    with opened(proto, documented(), emulated) as model:
        steps = [row.backend for row in model.placement({"x": (8,)}).rows if row.kind == "step"]
        assert steps == ["cuda"] * 3
        (y,) = model(x)
    wide = -x.astype(np.float64)
    expected = np.maximum(wide / (1 + np.exp(-2 * wide)), 0)
    np.testing.assert_allclose(y, expected, rtol=4 * float(np.finfo(dtype).eps), atol=1e-6)


@needs_compiler
@pytest.mark.slow
def test_several_launches_and_outputs(emulated: CudaBackend) -> None:
    """An output that is not read is a null pointer."""
    source = dedent("""
    extern "C" __global__ void half_of(const float* x, float* low, float* high, int half)
    {
        float* to = blockIdx.x == 0 ? low : high;
        int i = threadIdx.x;
        if (to != nullptr && i < half) to[i] = x[blockIdx.x * half + i];
    }
    extern "C" __global__ void negate(float* low, int half)
    {
        if (low != nullptr && threadIdx.x < half) low[threadIdx.x] = -low[threadIdx.x];
    }""")

    def reference(x: Any) -> Any:
        low, high = np.split(x, 2)
        return -low, high

    def infer(x: Any) -> Any:
        half = x.with_shape((x.dims[0] // 2,))
        return half, half

    def launch(x: Any, low: Any, high: Any) -> Any:
        half = x.dims[0] // 2
        parts = {"x": x, "low": low, "high": high, "half": half}
        first = tercet.CudaKernel(source, "half_of", grid=2, block=32, args=parts)
        second = {"low": low, "half": half}
        return [first, tercet.CudaKernel(source, "negate", grid=1, block=32, args=second)]

    own = {("my.domain", "Cut"): tercet.CustomOperator(reference, infer, kernels={"cuda": launch})}
    x = np.arange(12, dtype=np.float32)
    for names in (("a", "b"), ("b",), ("a",)):
        text = f"g (float[12] x) => ({', '.join(names)}) {{ a, b = my.domain.Cut (x) }}"
        with opened(model_of(text), own, emulated) as model:
            found = model.run({"x": x})
        expected = dict(zip("ab", reference(x), strict=True))
        for name in names:
            np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_it_compiles(dtype: str, arch: str, cache: Path) -> None:
    device = DryDevice()
    with opened(swish_model(dtype), documented(), NumpyBackend()) as model:
        planned_model(model, device)
    (source,) = [one for one in device.compiler.sources if str(one.file) == "my.domain.Swish.cu"]
    target = H200 if arch == "sm_90a" else Target(arch, 108, 166912)
    assert Compiler(target, cache).code(source)


def test_a_mistake_names_its_line() -> None:
    launch = kernel(COPY.replace("{", "\n{").replace("x[threadIdx.x]", "expg(x[0])"))
    device = DryDevice()
    with opened(F, with_kernel(launch), NumpyBackend()) as model:
        planned_model(model, device)
    (source,) = device.compiler.sources
    with pytest.raises(tercet.KernelError, match=r"^my\.domain\.F\.cu:2: error: .*expg") as caught:
        Compiler(H200).code(source)
    assert (caught.value.line, caught.value.exit_code) == (2, 2)


def test_the_page_shows_what_a_mistake_in_its_own_file_gives() -> None:
    operators = documented()
    launch = operators[KEY].kernels["cuda"]

    def mistaken(x: Any, y: Any, **attributes: Any) -> tercet.CudaKernel:
        right = launch(x, y, **attributes)
        return replace(right, source=right.source.replace("expf", "expg"))

    wrong = {KEY: replace(operators[KEY], kernels={"cuda": mistaken})}
    device = DryDevice()
    with opened(swish_model(), wrong, NumpyBackend()) as model:
        planned_model(model, device)
    (source,) = [one for one in device.compiler.sources if str(one.file) == "my.domain.Swish.cu"]
    with pytest.raises(tercet.KernelError) as caught:
        Compiler(H200).code(source)
    assert f"`{str(caught.value).splitlines()[0]}`" in DOC


def test_a_brace_that_is_not_closed_is_named() -> None:
    device = DryDevice()
    with opened(F, with_kernel(kernel(COPY.replace("}", ""))), NumpyBackend()) as model:
        planned_model(model, device)
    (source,) = device.compiler.sources
    said = r'(?s)^my\.domain\.F\.cu: .*expected a "}".*[^\s\0]$'
    with pytest.raises(tercet.KernelError, match=said):
        Compiler(H200).code(source)


def test_a_dtype_may_be_a_name_and_a_constant_an_integer() -> None:
    with opened(F, with_kernel(kernel(COPY)), NumpyBackend()) as model:
        x, y = (Tensor(value) for value in (*model.graph.inputs, *model.graph.outputs.values()))
    launch = kernel(COPY, types={"T": "float32"}, constants={"N": 3, "on": True})(x, y).launch("f")
    text = launch.source.text()
    assert "using T = float;" in text
    assert "N = 3;" in text
    assert launch.types == (("T", np.dtype(np.float32)),)


def test_equal_names_are_not_equal_sources() -> None:
    with opened(F, with_kernel(kernel(COPY)), NumpyBackend()) as model:
        x, y = (Tensor(value) for value in (*model.graph.inputs, *model.graph.outputs.values()))
    launches = (kernel(text)(x, y) for text in (COPY, COPY + "\n"))
    first, second = (launch.launch("a b.cu").source for launch in launches)
    assert str(first.file) == str(second.file) == "a_b.cu"
    assert first != second
    assert first.text() != second.text()


def raising(x: Any, y: Any) -> Any:
    raise KeyError("grid")


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (kernel(COPY, args={}), r"my\.domain\.F\.cu: f .*'x'.*'y'"),
        (kernel(COPY, args={"x": None, "y": None, "z": 1}), r"my\.domain\.F\.cu: f .*'z'"),
        (kernel(COPY.replace("f(", "g(")), r'my\.domain\.F\.cu: no extern "C" kernel \'f\''),
        (kernel(COPY.replace("float* x", "double* x")), r"my\.domain\.F\.cu: f: parameter 'x'"),
        (kernel(COPY, grid=1.5), r"my\.domain\.F\.cu: f: grid=1\.5: expected a whole number >= 0"),
        (kernel(COPY, grid=(1, 2)), r"grid=\(1, 2\): expected blocks along x, or along x, y and z"),
        (kernel(COPY, grid=(1, -2, 1)), r"grid\[1\]=-2: expected a whole number >= 0"),
        (kernel(COPY, block=0), r"block=0: expected a whole number >= 1"),
        (kernel(COPY, block=2048), r"block=2048: expected a whole number >= 1, at most 1024"),
        (kernel(COPY, block=(32, 1, 1)), r"block=\(32, 1, 1\): expected a whole number >= 1"),
        (kernel(COPY, shared=-1), r"shared=-1: expected a whole number >= 0"),
        (kernel(COPY, types={"T": "floaty"}), r"types\['T'\]='floaty': expected a dtype"),
        (kernel(COPY, types={"T": object}), r"types\['T'\]=.*: expected a dtype"),
        (kernel(COPY, constants={"N": "3"}), r"constants\['N'\]='3': expected a number"),
        (raising, r"my\.domain::F: the operator's cuda function raised KeyError: 'grid'"),
        (lambda x, y: 1, r"my\.domain::F: .* gave int; expected a tercet\.CudaKernel"),
    ],
)
def test_what_does_not_fit_is_said_when_it_is_planned(launch: Any, said: str) -> None:
    with (
        opened(F, with_kernel(launch), NumpyBackend()) as model,
        pytest.raises(tercet.KernelError, match=said) as caught,
    ):
        planned_model(model, DryDevice())
    assert caught.value.exit_code == 2


@needs_compiler
@pytest.mark.slow
def test_a_reason_is_shown_and_the_function_runs_instead(emulated: CudaBackend) -> None:
    own = with_kernel(lambda x, y: "not on Sundays")
    x = np.arange(32, dtype=np.float32)
    with opened(F, own, emulated, NumpyBackend()) as model:
        (row,) = [row for row in model.placement().rows if row.kind == "step"]
        np.testing.assert_array_equal(model(x)[0], x)
    assert (row.backend, "not on Sundays" in row.reason) == ("numpy", True)
    with (
        opened(F, own, emulated) as model,
        pytest.raises(tercet.UnsupportedError, match="not on Sundays"),
    ):
        model.placement()


def test_kernels_need_a_shape_rule() -> None:
    own = tercet.CustomOperator(lambda x: x, kernels={"cuda": kernel(COPY)})
    with pytest.raises(tercet.UsageError, match=r"operator 'my\.domain::F': kernels need infer"):
        tercet.load(F, operators={("my.domain", "F"): own})


def sums_of_signs(x: Array, w: Array) -> Array:
    """Return what a convolution of -1 and 1 in floats gives, times the filters' mean magnitudes."""
    signs = (np.where(data < 0, -1, 1).astype(np.float32) for data in (x, w))
    sums = tercet.run_op("Conv", *signs, pads=(w.shape[-1] // 2,) * 4)
    scale = np.abs(w).mean((1, 2, 3), dtype=np.float64).astype(np.float32)
    return scale[:, None, None] * np.asarray(sums)


BINARY = [(3, 5, 3), (32, 4, 1), (40, 7, 3), (64, 8, 5)]


@pytest.mark.parametrize(("channels", "filters", "window"), BINARY)
def test_signs_are_convolved_exactly(channels: int, filters: int, window: int) -> None:
    """Where channels are a multiple of 32, weights take a 32nd of the bytes."""
    w, x = normal(filters, channels, window, window), normal(1, channels, 9, 9)
    proto = binary.binary_model(w, 9)
    packed = numpy_helper.to_array(proto.graph.initializer[0])
    assert packed.nbytes == w.nbytes // channels * -(-channels // 32)
    with tercet.load(proto, operators=binary.OPERATORS) as model:
        np.testing.assert_array_equal(model(x)[0], sums_of_signs(x, w))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(("channels", "filters", "window"), BINARY)
def test_their_kernels(channels: int, filters: int, window: int, emulated: CudaBackend) -> None:
    w, x = normal(filters, channels, window, window), normal(1, channels, 9, 9)
    with opened(binary.binary_model(w, 9), binary.OPERATORS, emulated) as model:
        np.testing.assert_array_equal(model(x)[0], sums_of_signs(x, w))


@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "filters", "window"), BINARY)
def test_their_kernels_on_the_gpu(channels: int, filters: int, window: int) -> None:
    w, x = normal(filters, channels, window, window), normal(1, channels, 9, 9)
    with tercet.load(binary.binary_model(w, 9), "cuda", operators=binary.OPERATORS) as model:
        np.testing.assert_array_equal(model(x)[0], sums_of_signs(x, w))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "cudnn"])
def test_it_runs_on_the_gpu(backend: str) -> None:
    x = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    with tercet.load(swish_model(), backend, operators=documented()) as model:
        rows = model.placement({"x": x.shape}).rows
        assert {row.backend for row in rows if row.nodes} == {"cuda"}
        (y,) = model(x)
    (expected,) = tercet.load(swish_model(), operators=documented())(x)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-7)
