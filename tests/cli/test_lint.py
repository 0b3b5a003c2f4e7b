"""`tercet inspect --lint`: patterns that cost time or memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ml_dtypes import bfloat16
from onnx import parser

import tercet
from tercet.tools.inspect.inspection import inspect

from .conftest import Tercet

HEADER = '<ir_version: 10, opset_import: ["": 21]>\n'
#: For each rule a model that has the pattern, what is said of it, and a similar one without it.
GRAPHS = {
    "unread input": (
        "(float[4] x, float[9] idle) => (float[4] y) { y = Relu(x) }",
        "nothing reads 1 input",
        "(float[4] x, float[9] idle) => (float[4] y, float[9] idle) { y = Relu(x) }",
    ),
    "float64": (
        "(double[8,8] x, double[8,8] w) => (double[8,8] y) { y = MatMul(x, w) }",
        "1 product of 512 multiply-accumulates",
        "(double[8,8] x, double[8,8] w) => (double[8,8] y) { y = Add(x, w) }",
    ),
    "casts": (
        """(float[200,200] x) => (float[200,200] y) {
            a = Exp(x) b = Cast<to=10>(a) c = Sin(b) d = Cast<to=1>(c) y = Cos(d)
        }""",
        "2 Casts between float types write 240 kB in float16 and float32",
        """(float[200,200] x) => (float16[200,200] y) {
            a = Exp(x) b = Sin(a) c = Cos(b) y = Cast<to=10>(c)
        }""",
    ),
    "data-dependent shape": (
        """(float[4] x) => (int64[1,n] y) {
            i = NonZero(x) j = Neg(i) y = Abs(j)
        }""",
        "NonZero: sizes of 3 of 3 nodes depend on the data",
        "(float[4] x) => (float[4] y) { j = Neg(x) y = Abs(j) }",
    ),
    "setting as input": (
        """(float[4] x, int64 rate) => (float[4] y) {
            k = Constant<value = int64 {16000}>() c = Equal(rate, k)
            y = If(c) <then_branch = a () => (float[4] p) { p = Exp(x) },
                       else_branch = b () => (float[4] q) { q = Sin(x) }>
        }""",
        "rate of one element chooses the branch of 1 If",
        """(float[4] x, float[4] z) => (float[4] y) {
            k = Constant<value = float {0.0}>() s = ReduceSum<keepdims = 0>(z) c = Greater(s, k)
            y = If(c) <then_branch = a () => (float[4] p) { p = Exp(x) },
                       else_branch = b () => (float[4] q) { q = Sin(x) }>
        }""",
    ),
    "not fused": (
        """(float[4,8] x) => (float[4,8] y, float[4,8] e) {
            s = Constant<value = float {1.4142135}>() o = Constant<value = float {1.0}>()
            h = Constant<value = float {0.5}>()
            d = Div(x, s) e = Erf(d) a = Add(e, o) m = Mul(x, a) y = Mul(m, h)
        }""",
        "fuse_activation, 1 place",
        """(float[4,8] x) => (float[4,8] y) {
            s = Constant<value = float {1.4142135}>() o = Constant<value = float {1.0}>()
            h = Constant<value = float {0.5}>()
            d = Div(x, s) e = Erf(d) a = Add(e, o) m = Mul(x, a) y = Mul(m, h)
        }""",
    ),
}


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f"{HEADER}g {text}")


def found(source: onnx.ModelProto, **options: Any) -> dict[str, str]:
    """Return what is said, by rule."""
    findings = inspect(source, lint=True, **options).findings
    assert findings is not None
    assert all(each.nodes and each.advice for each in findings)
    return {each.rule: each.text for each in findings}


@pytest.mark.parametrize("rule", GRAPHS)
def test_a_pattern_is_found_where_it_is(rule: str) -> None:
    having, said, lacking = GRAPHS[rule]
    assert said in found(model(having))[rule]
    assert rule not in found(model(lacking))


@pytest.mark.parametrize("is_equal", [True, False])
@pytest.mark.parametrize(("kind", "dtype"), [("float", np.float32), ("bfloat16", bfloat16)])
def test_equal_weights(kind: str, dtype: type, is_equal: bool) -> None:
    sides = f"({kind}[2,512] x) => ({kind}[2,512] y)"
    proto = model(f"{sides} {{ a = MatMul(x, v) y = MatMul(a, w) }}")
    first = np.random.default_rng(0).standard_normal((512, 512)).astype(dtype)
    second = first.copy()
    second[1, 2] += dtype(not is_equal)  # not among the elements of the sample
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(data, name) for name, data in (("v", first), ("w", second))
    )
    nbytes = "1.05 MB" if kind == "float" else "524 kB"
    said = {"repeated weights": f"{nbytes} of weights are copies of others"}
    assert found(proto) == (said if is_equal else {})


def test_constants_that_are_computed_in_every_run() -> None:
    proto = model(
        "(float[1024,1024] x) => (float[1024,1024] y) { c = MatMul(a, b) d = Sin(c) y = Add(x, d) }"
    )
    for name, shape in (("a", (1024, 1)), ("b", (1, 1024))):
        data = np.linspace(-1, 1, 1024, dtype=np.float32).reshape(shape)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
    assert found(proto) == {}
    assert "every run computes 8.39 MB from" in found(proto, fold_bytes=1 << 16)["constants"]


def test_steps_of_a_gpu() -> None:
    """Moves by their share of the bytes; small steps by the data sheet."""
    pytest.importorskip("cuda.bindings")
    moved = model(
        "(float[64,512,512] x) => (float[512,64,512] y) { y = Transpose<perm=[1,0,2]>(x) }"
    )
    on_gpu = {"placement": "cuda", "target": "sm_90a"}
    assert "1 step only move" in found(moved, **on_gpu)["moves"]
    chain = " ".join(f"v{i + 1} = Softmax<axis={i % 2}>(v{i})" for i in range(24))
    small = model(f"(float[2,8] v0) => (float[2,8] v24) {{ {chain} }}")
    assert found(small, **on_gpu) == {
        "small steps": "24 of 24 steps take less time than their launch"
    }
    large = model(f"(float[4096,4096] v0) => (float[4096,4096] v24) {{ {chain} }}")
    assert found(large, **on_gpu) == {}
    mixed = model(
        """(float[4,8] x) => (float[4,8] y, string[4,8] s) {
            y = Softmax(x) s = Cast<to=8>(x)
        }"""
    )
    assert "Cast: " in found(mixed, **on_gpu, fallback="numpy")["on the host"]


def test_the_command_line(tercet: Tercet, folder: Path) -> None:
    onnx.save(model(GRAPHS["float64"][0]), folder / "double.onnx")
    done = tercet("inspect", "double.onnx", "--lint")
    assert done.code == 0
    assert "float64: 1 product of 512" in done.out
    assert "1 slow pattern" in done.out
    (each,) = tercet("inspect", "double.onnx", "--lint", "--json").json["findings"]
    assert each.keys() == {"rule", "nodes", "text", "advice"}
    assert each["nodes"] == ["y"]
    assert "no slow patterns found" in tercet("inspect", "classifier.onnx", "--lint").out


def test_it_is_only_done_on_request() -> None:
    assert tercet.inspect(model(GRAPHS["float64"][0])).findings is None
