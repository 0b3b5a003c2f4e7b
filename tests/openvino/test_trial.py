"""What is claimed is right on every number: NaN, infinities, overflow, integers of 64 bits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install 'tercet[openvino]'")

from tercet.backends.openvino.compiler import RegionCompiler
from tercet.backends.openvino.samples import EXTREME, samples
from tercet.backends.openvino.trial import TrialRunner, differs, signature
from tercet.importers import onnx as importer
from tercet.runtime.base.cache import Cache
from tercet.runtime.base.worker import Ended
from tercet.runtime.ir.types import TensorType

from .conftest import on_openvino, reasons

Floats = NDArray[np.float64]

#: Numbers of all kinds; their float64 formulas below are what is right.
X = np.array([*EXTREME, 3.25, -0.75], np.float32)
ROWS = np.array(
    [
        [1, np.nan, 2, 3],
        [1, -np.inf, 2, 3],
        [1, np.inf, 2, 3],
        [-np.inf] * 4,
        [1, 2, 1e38, 3],
        [0.5, 1, -2, 3],
    ],
    np.float32,
)
IMAGE = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
IMAGE[0, 0, 1, 1], IMAGE[0, 0, 4, :3], IMAGE[0, 0, 5, 5] = np.nan, -np.inf, np.inf


def dims(x: NDArray[Any]) -> str:
    return f"[{', '.join(map(str, x.shape))}]" if x.ndim else ""


def softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_softmax(x: Floats) -> Floats:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def pooled(x: Floats) -> Floats:
    return x.reshape(1, 1, 3, 2, 3, 2).max((3, 5))


def gelu(x: Floats) -> Floats:
    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


# Name, the node, its input, what is right. All of them are lost by the plugin as they are.
KEPT: Mapping[str, tuple[str, NDArray[np.float32], Callable[[Floats], Floats]]] = {
    "Relu": ("Relu(x)", X, lambda x: np.maximum(x, 0)),
    "Clip": ("Clip(x, zero, six)", X, lambda x: np.minimum(np.maximum(x, 0), 6)),
    "Exp": ("Exp(x)", X, np.exp),
    "HardSigmoid": ("HardSigmoid(x)", X, lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "Gelu": ("Gelu(x)", X, gelu),
    "Softmax": ("Softmax(x)", ROWS, softmax),
    "LogSoftmax": ("LogSoftmax(x)", ROWS[[0, 1, 2, 5]], log_softmax),
    "MaxPool": ("MaxPool <kernel_shape=[2, 2], strides=[2, 2]> (x)", IMAGE, pooled),
    "GlobalMaxPool": ("GlobalMaxPool(x)", IMAGE, lambda x: x.max((2, 3), keepdims=True)),
    "ReduceMax": ("ReduceMax(x)", ROWS[:2], lambda x: x.max(keepdims=True)),
    "ReduceMin": ("ReduceMin(x)", ROWS[:2], lambda x: x.min(keepdims=True)),
}


@pytest.mark.parametrize("name", KEPT)
def test_nan_and_infinities_come_through(
    opened: Callable[..., Any], parsed: Callable[[str], Any], name: str
) -> None:
    node, x, formula = KEPT[name]
    with np.errstate(all="ignore"):
        want = formula(x.astype(np.float64)).astype(np.float32)
    model = opened(
        parsed(
            f"g (float{dims(x)} x) => (float{dims(want)} y) "
            f"<float zero = {{0}}, float six = {{6}}> {{ y = {node} }}"
        )
    )
    assert on_openvino(model) == name
    assert not differs(np.asarray(model(x)[0]), want, elementwise=True)


# Name, inputs and results with their types, the node, inputs, what is right. None may be claimed.
BIG = np.array([5, 2**31, 2**33 + 7, -(2**40)], np.int64)
WRONG: Mapping[str, tuple[str, str, tuple[Any, ...], Any]] = {
    "int64 sums": ("int64[4] a, int64[4] b", "Add(a, b)", (BIG, BIG), BIG + BIG),
    "int64 moved": ("int64[4] a", "Neg(a)", (BIG,), -BIG),
    "int64 reshaped": ("int64[2, 2] a", "Transpose(a)", (BIG.reshape(2, 2),), BIG.reshape(2, 2).T),
    "uint8 wraps": (
        "uint8[3] a, uint8[3] b",
        "Add(a, b)",
        (np.array([200, 255, 1], np.uint8), np.array([100, 1, 1], np.uint8)),
        np.array([44, 0, 2], np.uint8),
    ),
    "float64": (
        "double[2] a, double[2] b",
        "Add(a, b)",
        (np.array([1, 1e300]), np.array([1e-12, 1e300])),
        np.array([1 + 1e-12, 2e300]),
    ),
    "maximum of NaN": (
        "float[2] a, float[2] b",
        "Max(a, b)",
        (np.array([np.nan, 1], np.float32), np.array([2, np.nan], np.float32)),
        np.array([np.nan, np.nan], np.float32),
    ),
    "half": (
        "float16[2] a, float16[2] b",
        "Mul(a, b)",
        (np.array([300, 2], np.float16), np.array([300, 3], np.float16)),
        np.array([np.inf, 6], np.float16),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_would_be_wrong_is_numpys(
    opened: Callable[..., Any], parsed: Callable[[str], Any], name: str
) -> None:
    inputs, node, arrays, want = WRONG[name]
    kind = {"float32": "float", "float64": "double"}.get(str(want.dtype), str(want.dtype))
    model = opened(parsed(f"g ({inputs}) => ({kind}{dims(want)} y) {{ y = {node} }}"))
    assert on_openvino(model) == ""
    assert "openvino: " in reasons(model)
    (y,) = model(*arrays)
    np.testing.assert_array_equal(y, want)


def test_int64_becomes_float_in_all_its_range(
    opened: Callable[..., Any], parsed: Callable[[str], Any]
) -> None:
    """Whoever runs it, and with neighbours."""
    model = opened(parsed("g (int64[4] a) => (float[4] y) { b = Cast <to=1> (a) y = Neg(b) }"))
    np.testing.assert_array_equal(model(BIG)[0], -BIG.astype(np.float32))


def test_indices_that_depend_on_the_data_are_numpys(
    opened: Callable[..., Any], parsed: Callable[[str], Any]
) -> None:
    """OpenVINO reads beyond the table, or gives zeros, where ONNX knows an error."""
    model = opened(parsed("g (float[3, 2] t, int64[2] i) => (float[2, 2] y) { y = Gather(t, i) }"))
    assert "its valid inputs depend on the data" in reasons(model)


def test_known_indices_are_openvinos(
    opened: Callable[..., Any], parsed: Callable[[str], Any]
) -> None:
    model = opened(
        parsed(
            "g (float[3, 2] t) => (float[2, 2] y) <int64[2] i = {2, -3}> "
            "{ u = Gather(t, i) y = Neg(u) }"
        )
    )
    assert "Gather" in on_openvino(model)
    t = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.testing.assert_array_equal(model(t)[0], -t[[2, 0]])


def test_finite_takes_the_vendors_own_operators(
    opened: Callable[..., Any], parsed: Callable[[str], Any], compiler: Any
) -> None:
    graph = importer.load(parsed("g (float[9] x) => (float[9] y) { y = Relu(x) }")).graph
    judge, (node,) = TrialRunner(compiler), graph.nodes
    assert judge.node(graph, node, False).spelled
    finite = judge.node(graph, node, True)
    assert not finite.spelled
    assert not finite.reason


def test_a_verdict_is_of_one_signature(parsed: Callable[[str], Any]) -> None:
    """Another attribute, dtype, shape or small constant is another trial; another name is not."""
    text = "g (float[4, 5] {x}) => (float[4, 5] y) <float k = {{{k}}}> {{ y = {node} }}"
    said = {
        signature(importer.load(parsed(text.format(x=x, k=k, node=node))).graph.nodes)
        for x, k, node in [
            ("x", 1, "Mul(x, k)"),
            ("z", 1, "Mul(z, k)"),
            ("x", 2, "Mul(x, k)"),
            ("x", 1, "Add(x, k)"),
            ("x", 1, "Softmax <axis=0> (x)"),
            ("x", 1, "Softmax <axis=1> (x)"),
        ]
    }
    assert len(said) == 5


class TestSamples:
    @pytest.mark.parametrize("dims", [(), (1,), (5,), (24, 24), (3, 400)])
    def test_every_pair_of_special_numbers_meets(self, dims: tuple[int, ...]) -> None:
        types = [TensorType(np.dtype(np.float32), dims)] * 2
        pairs = {
            (a, b)
            for first, second in samples(types, elementwise=True, finite=False)
            for a, b in zip(
                first.view(np.uint32).ravel().tolist(),
                second.view(np.uint32).ravel().tolist(),
                strict=True,
            )
        }
        special = np.array(EXTREME, np.float32).view(np.uint32).tolist()
        assert {(a, b) for a in special for b in special} <= pairs

    def test_finite_ones_are_finite(self) -> None:
        types = [TensorType(np.dtype(np.float32), (40,))]
        assert all(np.isfinite(x).all() for (x,) in samples(types, elementwise=True, finite=True))

    def test_integers_reach_the_ends_of_their_type(self) -> None:
        types = [TensorType(np.dtype(np.int64), (3,))]
        seen = np.concatenate([x for (x,) in samples(types, elementwise=False, finite=True)])
        assert seen.min() == np.iinfo(np.int64).min
        assert seen.max() == np.iinfo(np.int64).max


@pytest.mark.parametrize(
    ("got", "want", "is_equal"),
    [
        (np.nan, np.nan, True),
        (0.0, np.nan, False),
        (np.nan, 0.0, False),
        (np.inf, np.inf, True),
        (-np.inf, np.inf, False),
        (3e38, np.inf, False),
        (1.00001, 1.0, True),
        (1.002, 1.0, False),  # bfloat16
        (0.0, 1e-40, True),
    ],
)
def test_differs(got: float, want: float, is_equal: bool) -> None:
    a, b = (np.array([number, 1], np.float32) for number in (got, want))
    assert (differs(a, b, elementwise=True) == "") is is_equal


_HEAD = '<ir_version: 10, opset_import: ["": 20]>'
_WEIGHTS = ", ".join(str(each) for each in (127, -127, 126, 100) * 8)
WITHOUT_AVX512: Mapping[str, str] = {
    "normalization": (
        f"{_HEAD} g (float[3, 4] x) => (float[3, 4] y) "
        "<float[4] s = {1, 2, 3, 4}, float[4] b = {1, 1, 0, 0}> "
        "{ n = LayerNormalization(x, s, b) e = Neg(n) y = Add(e, x) }"
    ),
    "convolution of bytes": (
        f"{_HEAD} g (int8[1, 4, 1] x) => (int8[1, 8, 1] y) <float a = {{0.0625}}, "
        f"float b = {{0.0625}}, float c = {{0.5}}, int8 z = {{0}}, "
        f"int8[8, 4, 1] w = {{{_WEIGHTS}}}> {{ y = QLinearConv(x, a, z, w, b, z, c, z) }}"
    ),
}


class TestCrashes:
    def test_a_crash_is_a_verdict(
        self,
        parsed: Callable[[str], Any],
        compiler: Any,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        """Of the process in which a node is tried, while it compiles or while it runs."""
        graph = importer.load(parsed("g (float[9] x) => (float[9] y) { y = Neg(x) }")).graph
        for at in ("section", "run"):
            own = RegionCompiler(compiler.vendor, Cache(tmp_path / at))
            ask = own.worker.ask

            def crash(question: Any, at: str = at, ask: Any = ask) -> Any:
                if at in question:
                    raise Ended("its process died of SIGSEGV")
                return ask(question)

            monkeypatch.setattr(own.worker, "ask", crash)
            verdict = TrialRunner(own).node(graph, graph.nodes[0], True)
            assert verdict.reason.endswith("its process died of SIGSEGV")
            own.worker.close()

    def test_without_a_process_of_its_own(
        self,
        parsed: Callable[[str], Any],
        compiler: Any,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        graph = importer.load(parsed("g (float[7] x) => (float[7] y) { y = Neg(x) }")).graph
        own = RegionCompiler(compiler.vendor, Cache(tmp_path))
        monkeypatch.setattr(own.worker, "start", lambda: False)
        assert TrialRunner(own).node(graph, graph.nodes[0], True).reason == ""

    @pytest.mark.parametrize("name", WITHOUT_AVX512)
    def test_a_cpu_without_avx512(self, name: str, tmp_path: Path) -> None:
        """Some kernels crash there, others saturate: the process lives, and results are right."""
        (tmp_path / "m.onnxtxt").write_text(WITHOUT_AVX512[name])
        source = """
import sys
import numpy as np
import tercet

rng = np.random.default_rng(1)
ours, theirs = (tercet.load(sys.argv[1], backend=name) for name in ("openvino", "numpy"))
for _ in range(50):
    feeds = {
        v.name: rng.integers(-128, 128, v.shape).astype(v.dtype) for v in theirs.inputs
    }
    (got,), (want,) = ours.run(feeds).values(), theirs.run(feeds).values()
    assert np.allclose(got, want, 1e-5, 1e-5), (got, want)
print("right")
"""
        settings = {"ONEDNN_MAX_CPU_ISA": "AVX2", "TERCET_OPENVINO_MIN_NODES": "1"}
        command = [sys.executable, "-c", source, str(tmp_path / "m.onnxtxt")]
        environment = {**os.environ, **settings, "TERCET_CACHE": str(tmp_path / "cache")}
        found = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env=environment, check=False
        )
        assert found.stdout == "right\n", found.stderr
