"""Options that only some backends use: left to those that do, and refused where there are none."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tercet
from tercet import backends
from tercet.api import load_to_plan
from tercet.backends.numpy import NumpyBackend
from tercet.backends.options import PARTIAL, TF32
from tercet.runtime.errors import UsageError
from tercet.runtime.options import Options
from tercet.tools.bench import bench_series
from tercet.tools.verdict.error_bounds import Judge

ROOT = Path(__file__).parents[2]
#: A value of each option that some backends do not use.
PARTIAL_VALUES: dict[str, Any] = {
    "device": 1,
    "tune": True,
    "ranges": {"batch": (1, 2, 4)},
    "conv": "fft",
    "algorithms": {"Conv": "fft"},
    "backend_options": {"openvino": {"min_nodes": 2}},
}
#: What passes, planning and running do with a graph of any backend.
OF_ALL = {
    *("precision", "keep_float32", "stop_at", "skip", "fold_bytes", "fold_total", "finite"),
    *("keep_quantized", "integers", "widen", "max_plans", "check_each", "control", "cache"),
}
#: These hold where there is nothing to limit.
LIMITS = {"max_bytes", "max_device_bytes", "workspace", "streams"}
#: What a backend opens behind it.
BEHIND = {"cudnn": "cuda", "tensorrt": "cuda", "openvino": "numpy"}
OWN = ("numpy", "cuda", "cudnn", "tensorrt", "openvino")
#: Which backends use an option that their sources do not read by its name.
KNOWN = {
    "conv": {"cuda", "cudnn", "tensorrt"},
    "algorithms": {"cuda", "cudnn", "tensorrt"},
    "backend_options": {"openvino"},
}
MODEL = onnx.parser.parse_model(
    """<ir_version: 10, opset_import: ["": 21]>
    g (float[1,16,8,8] x, float[16,16,3,3] w) => (float[1,16,6,6] y) { [c] y = Conv (x, w) }"""
)


def uses(backend: str, option: str) -> bool:
    """Whether the sources of a backend, or of that behind it, read an option."""
    if option in KNOWN:
        return backend in KNOWN[option]
    text = r'"tf32"' if option == TF32 else rf"options\.{option}\b"
    folders = (ROOT / "backends" / each for each in (backend, BEHIND.get(backend, backend)))
    files = (file for folder in folders for file in folder.rglob("*.py"))
    return any(re.search(text, file.read_text(encoding="utf-8")) for file in files)


def test_every_option_is_of_all_backends_or_has_some_that_use_it() -> None:
    names = {field.name for field in fields(Options)}
    assert names == OF_ALL | LIMITS | set(PARTIAL_VALUES)
    assert set(PARTIAL) < set(PARTIAL_VALUES)


@pytest.mark.parametrize("backend", OWN)
@pytest.mark.parametrize("option", PARTIAL_VALUES)
def test_an_option_is_refused_where_nothing_uses_it(backend: str, option: str) -> None:
    given = Options(**{option: PARTIAL_VALUES[option]})
    able = [each for each in OWN if uses(each, option)]
    kept = getattr(backends.usable(given, backend), option)
    if backend in able:
        backends.check_options(given, backend)
        assert kept == getattr(given, option)
        return
    assert kept == getattr(Options(), option)
    with pytest.raises(UsageError) as refused:
        backends.check_options(given, backend)
    said = str(refused.value)
    assert said.startswith(f"{option}=")
    assert f"backend '{backend}' does not use it; leave it out" in said
    assert said.endswith(f": {', '.join(able)}")
    for other in able:
        backends.check_options(given, backend, other)
        backends.check_options(given, [backend, other])


@pytest.mark.parametrize("backend", OWN)
def test_tf32_is_float32_where_there_is_none(backend: str) -> None:
    found = backends.settled(Options(precision="tf32"), backend).precision
    assert found == ("tf32" if uses(backend, TF32) else "float32")


def test_a_model_says_what_it_computes_in() -> None:
    with tercet.load(MODEL, precision="tf32") as model:
        assert model.precision == "float32"


@pytest.mark.parametrize("precisions", [("float32", "tf32"), ("tf32",)])
def test_what_is_float32_is_measured_once(precisions: tuple[str, ...]) -> None:
    schedule = {"duration": 0.01, "warm_up": 0.0, "accuracy": False}
    found = tercet.bench(MODEL, ["numpy"], precision=precisions, **schedule)
    assert [case.precision for case in found.cases] == ["float32"]


def test_what_is_float32_is_judged_as_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    def judge(*given: Any) -> Any:
        judged.append(given[-1])
        return Judge(*given)

    monkeypatch.setattr(bench_series, "Judge", judge)
    tercet.bench(MODEL, ["numpy"], precision="tf32", duration=0.01, warm_up=0)
    assert judged == ["float32"]


TOOLS: dict[str, Callable[..., object]] = {
    "load": lambda **o: tercet.load(MODEL, "numpy", **o).close(),
    "compare": lambda **o: tercet.compare(MODEL, ["numpy", "onnxruntime"], repeat=0, **o),
    "compare_layers": lambda **o: tercet.compare_layers(MODEL, ["numpy", "onnxruntime"], **o),
    "bisect": lambda **o: tercet.bisect(MODEL, ["numpy", "onnxruntime"], **o),
    "keep_float32": lambda **o: tercet.keep_float32(MODEL, 0.1, **o),
    "profile": lambda **o: tercet.profile(MODEL, "numpy", repeat=1, peaks=False, **o),
    "bench": lambda **o: tercet.bench(MODEL, ["numpy"], duration=0.01, warm_up=0, **o),
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("option", PARTIAL_VALUES)
def test_tools_refuse_them_alike(tool: str, option: str) -> None:
    with pytest.raises(UsageError, match=f"^{option}=.*'numpy' does not use it"):
        TOOLS[tool](**{option: PARTIAL_VALUES[option]})


@pytest.mark.parametrize("option", ["tune", "ranges"])
def test_one_of_several_runners_is_enough(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Options] = []

    class User(NumpyBackend):
        @property
        def name(self) -> str:
            return "user"

    def open_backends(options: Options) -> tuple[NumpyBackend, ...]:
        given.append(options)
        return (User(),)

    module = ModuleType("a_backend_of_a_user")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(backends, "_foreign", lambda: {"user": lambda: open_backends})
    open_backends.__module__ = module.__name__
    value = PARTIAL_VALUES[option]

    def compare() -> None:
        names = ["numpy", "user", "onnxruntime"]
        assert tercet.compare(MODEL, names, repeat=0, **{option: value}).ok

    with pytest.raises(UsageError, match="none of numpy, user uses it"):
        compare()
    vars(module)["USES"] = (option,)
    compare()
    assert [getattr(options, option) for options in given] == [value]


@pytest.mark.parametrize("options", [{}, {"precision": TF32}], ids=["float32", TF32])
def test_packages_are_not_searched_for_own_backends(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def search() -> None:
        raise AssertionError("searched all packages, which takes as long as planning")

    monkeypatch.setattr(backends, "_foreign", search)
    tercet.load(MODEL, **options).close()
    for name in OWN:
        load_to_plan(MODEL, name, **options).close()


def test_numpy_computes_the_convolutions_that_are_named_by_windows() -> None:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[1,128,56,56] x) => (float[1,128,54,54] y) { [c] y = Conv (x, w) }"""
    )
    w = rng.standard_normal((128, 128, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    x = rng.standard_normal((1, 128, 56, 56)).astype(np.float32)

    def result(**options: Any) -> bytes:
        with tercet.load(model, **options) as loaded:
            return loaded.run({"x": x})["y"].tobytes()

    windows = result(conv="direct")
    assert windows != result()  # Winograd's
    with pytest.raises(UsageError, match=r"'MatMul': 'naive'.*'numpy' does not use it"):
        result(algorithms={"MatMul": "naive"})
    for algorithms in ({"c": "direct"}, {"Conv": "naive"}, {"c": "fft,direct"}):
        assert result(algorithms=algorithms) == windows


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"conv": "gemm"}, "conv='gemm': Conv has no algorithm 'gemm'; did you mean 'gemm_1x1'?"),
        ({"algorithms": {"Relu": "direct"}}, "; only what runs it can be chosen: cudnn, cuda"),
        ({"algorithms": {"MatMul": "gemm,fft"}}, "MatMul has no algorithm 'fft' (algorithms: "),
        ({"algorithms": {"c": "direct,naive:4"}}, ""),
        ({"algorithms": {"r": "direct"}}, "{'r': 'direct'}: Relu has no algorithm 'direct'; only"),
        ({"algorithms": {"cc": "direct"}}, "the model has no node 'cc'; did you mean 'c'?"),
    ],
    ids=str,
)
def test_algorithms_are_for_operators_that_have_them(given: dict[str, Any], said: str) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[1,1,6,6] x, float[1,1,3,3] w) => (float[1,1,4,4] y) {
            [c] z = Conv (x, w)
            [r] y = Relu (z)
        }"""
    )
    with ExitStack() as stack:
        if said:
            stack.enter_context(pytest.raises(UsageError, match=re.escape(said)))
        tercet.load(model, **given).close()


def test_options_of_a_backend_are_shown_as_they_are_written() -> None:
    own = {"openvino": {"min_nodes": 2}}
    with pytest.raises(UsageError) as caught:
        tercet.load(MODEL, "numpy", backend_options=own)
    assert str(caught.value).startswith(f"backend_options={own}: backend 'numpy' does not use it")
