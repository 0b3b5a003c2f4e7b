"""Every operator of the cuda backend, against the numpy backend in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tercet
from tercet.backends import open_backends
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float16
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..kernels.dry import normal, single

pytestmark = pytest.mark.gpu

Inputs = Sequence[Any]


def run(
    backend: str,
    operator: str,
    inputs: Inputs,
    constant: tuple[int, ...] = (),
    outputs: int = 1,
    options: dict[str, Any] | None = None,
    **attributes: Any,
) -> list[Array]:
    """Run one node; inputs of the positions `constant` are part of the model."""
    graph = single(operator, inputs, constant, outputs, **attributes)
    chosen = Options(skip=("fold_constants",), **(options or {}))
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None and i not in constant}
    with Model(graph, open_backends(backend, chosen), chosen, evaluate) as model:
        return list(model.run(feeds).values())


def check(
    operator: str, inputs: Inputs, constant: tuple[int, ...] = (), outputs: int = 1, **how: Any
) -> None:
    """Compare float32 on the GPU with float64 on the host."""
    wide = [a.astype(np.float64) if a is not None and a.dtype == np.float32 else a for a in inputs]
    options = how.pop("options", None)
    got = run("cuda", operator, inputs, constant, outputs, options, **how)
    want = run("numpy", operator, wide, constant, outputs, **how)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        if a.dtype.kind == "f":
            # NaN and infinity at the same places, and the rest within rounding of float32.
            np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b))
            finite = np.isfinite(b)
            assert np.linalg.norm(a[finite] - b[finite]) <= 1e-5 * np.linalg.norm(b[finite])
        else:
            np.testing.assert_array_equal(a, b)


X = normal(2, 12, 9, 11)
POSITIVE = np.abs(X) + np.float32(0.1)
UNIT = np.tanh(X)
MASK = X > 0
INTS = np.arange(-12, 12).reshape(2, 3, 4)
ONES = np.maximum(np.abs(INTS), 1)


ANY_NUMBER = """Relu Sigmoid Tanh Erf Exp Abs Neg Floor Ceil Round Sign Sin Cos Tan Sinh Cosh Atan
Asinh Softplus Softsign Elu Celu Selu Gelu HardSigmoid HardSwish LeakyRelu Mish Shrink Swish
ThresholdedRelu IsNaN IsInf"""
UNARY = {
    **dict.fromkeys(ANY_NUMBER.split(), X),
    **dict.fromkeys(("Acos", "Asin", "Atanh"), UNIT),
    **dict.fromkeys(("Sqrt", "Log", "Reciprocal"), POSITIVE),
    "Acosh": POSITIVE + 1,
    "Not": MASK,
    "BitwiseNot": INTS,
}


@pytest.mark.parametrize("operator", UNARY)
def test_unary(operator: str) -> None:
    check(operator, [UNARY[operator]])


@pytest.mark.parametrize("operator", ["Abs", "Neg", "Sign"])
def test_unary_of_integers(operator: str) -> None:
    check(operator, [INTS])


SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, 3e38, -3e38], np.float32)


@pytest.mark.parametrize("operator", ["Relu", "LeakyRelu", "Sigmoid", "Tanh", "Abs", "Sqrt", "Exp"])
def test_special_numbers(operator: str) -> None:
    """NaN stays NaN, and infinities go where they belong (3e38 overflows in neither precision)."""
    x = SPECIAL if operator != "Exp" else SPECIAL[:6]
    check(operator, [x])


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_nan_wins(operator: str) -> None:
    x = np.array([np.nan, 1, np.nan, 2], np.float32)
    y = np.array([1, np.nan, np.nan, 3], np.float32)
    check(operator, [x, y])


@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu"])
@pytest.mark.parametrize("shape", [(2, 12, 9, 11), (12, 1, 1), (11,), (1, 12, 1, 11), (1,), ()])
def test_broadcasting(operator: str, shape: tuple[int, ...]) -> None:
    y = normal(*shape) if shape else np.float32(0.7).reshape(())
    x = POSITIVE if operator == "Pow" else X
    check(operator, [x, y])
    check(operator, [x, y], (1,))


@pytest.mark.parametrize("operator", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparisons(operator: str) -> None:
    check(operator, [X, np.round(X)[:, :1]])
    check(operator, [INTS, INTS[:1]])


@pytest.mark.parametrize("operator", ["And", "Or", "Xor"])
def test_logic(operator: str) -> None:
    check(operator, [MASK, MASK[:1]])


@pytest.mark.parametrize("operator", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_variadic(operator: str, count: int) -> None:
    check(operator, [normal(3, 1, 7) + i for i in range(count - 1)] + [normal(5, 1)])


def test_other_elementwise() -> None:
    check("Where", [MASK, X, normal(11)])
    check("Clip", [X, np.float32(-0.5), np.float32(0.25)])
    check("Clip", [X, None, np.float32(0.25)])
    check("Clip", [INTS, np.int64(-3), None])
    check("Cast", [X], to=np.dtype(np.int32))
    check("Cast", [X], to=float16)
    check("Cast", [INTS], to=np.dtype(np.float32))
    check("Mod", [INTS, ONES])
    check("Mod", [X, POSITIVE], fmod=1)
    check("Div", [INTS, ONES])
    check("BitShift", [INTS.astype(np.uint8), np.array([3], np.uint8)], direction="LEFT")


@pytest.mark.parametrize("n", [0, 1, 3, 31, 32, 33, 127, 1009, 1 << 20])
def test_any_number_of_elements(n: int) -> None:
    """The grid covers every size, also 0 and 1."""
    check("Add", [normal(n), np.array([2.5], np.float32)])
    check("Softmax", [normal(1, n)])
    check("Concat", [normal(n), normal(1), normal(n)], axis=0)


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("MaxPool", {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ("MaxPool", {"strides": (2, 3), "pads": (1, 0, 1, 1), "ceil_mode": 1}),
        ("MaxPool", {"dilations": (2, 1), "auto_pad": "SAME_LOWER"}),
        ("AveragePool", {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ("AveragePool", {"pads": (1, 1, 1, 1), "count_include_pad": 1, "ceil_mode": 1}),
        ("LpPool", {"p": 2}),
        ("LpPool", {"p": 3, "pads": (1, 1, 1, 1)}),
    ],
)
def test_pools(operator: str, attributes: dict[str, Any]) -> None:
    check(operator, [X], kernel_shape=(3, 3), **attributes)
    check(operator, [np.ascontiguousarray(X[:, :, 0])], kernel_shape=(3,))
    check(operator, [normal(1, 3, 5, 6, 7)], kernel_shape=(2, 3, 2))
    check(operator, [normal(4, 64, 70, 70)], kernel_shape=(2, 2))  # several channels a thread


@pytest.mark.parametrize("storage_order", [0, 1])
def test_max_pool_tells_positions(storage_order: int) -> None:
    check("MaxPool", [X], outputs=2, kernel_shape=(3, 2), storage_order=storage_order)


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("shape", [(2, 12, 9, 11), (1, 2048, 7, 7), (3, 5, 200)])
def test_global_pools(operator: str, shape: tuple[int, ...]) -> None:
    check(operator, [normal(*shape)])


@pytest.mark.parametrize("kind", ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare"])
@pytest.mark.parametrize("axes", [(2, 3), (1,), (0, 1, 2, 3), (-1,), (0,)])
def test_reductions(kind: str, axes: tuple[int, ...]) -> None:
    check(f"Reduce{kind}", [X / 9 + 1, np.array(axes)], (1,))
    check(f"Reduce{kind}", [X / 9 + 1, np.array(axes)], (1,), keepdims=0)


def test_a_long_sum_is_accurate() -> None:
    """A tree of partial sums, where a running sum would be off by 1e-3."""
    x = np.full((1, 1 << 24), np.float32(0.1))
    (got,) = run("cuda", "ReduceSum", [x, np.array([1])], (1,))
    assert abs(float(got[0, 0]) / (float(np.float32(0.1)) * (1 << 24)) - 1) < 1e-6


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(operator: str, axis: int) -> None:
    check(operator, [X * 20], axis=axis)
    check(operator, [normal(1, 1000)], axis=-1)


def test_normalizations() -> None:
    statistics = [normal(12), normal(12), normal(12), np.abs(normal(12)) + np.float32(0.5)]
    check("BatchNormalization", [X, *statistics], (1, 2, 3, 4))
    check("BatchNormalization", [normal(5, 12), *statistics], (1, 2, 3, 4))
    check("BatchNormalization", [X, *statistics])
    for size in (1, 2, 5, 13):
        check("LRN", [X], size=size, alpha=0.1)


def test_moving_elements() -> None:
    check("Concat", [X, normal(2, 5, 9, 11), normal(2, 1, 9, 11)], axis=1)
    check("Concat", [normal(2, 3, n) for n in range(1, 20)], axis=-1)
    for perm in [(0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 2, 3), (0, 3, 1, 2)]:
        check("Transpose", [X], perm=perm)
    check("Transpose", [normal(2, 4, 7, 5, 5)], perm=(0, 2, 1, 3, 4))
    check("Transpose", [normal(1000, 77)])
    check("Expand", [normal(3, 1), np.array([2, 3, 4])], (1,))
    cut = [np.array(v) for v in ([1, -1], [9, -12], [1, 3], [2, -1])]
    check("Slice", [X, *cut], (1, 2, 3, 4))
    check("Split", [X, np.array([4, 3, 5])], (1,), 3, axis=1, num_outputs=3)


@pytest.mark.parametrize("m", [1, 2, 7, 8, 9, 64, 129])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (300, 70), (301, 33), (4096, 10), (64, 1000)])
def test_gemm(m: int, k: int, n: int) -> None:
    a, b, c = normal(m, k), normal(k, n), normal(n)
    check("Gemm", [a, b, c], (1, 2))
    check("Gemm", [a, np.ascontiguousarray(b.T), c[:1]], (1, 2), transB=1, alpha=0.5, beta=2.0)
    check("MatMul", [a, b], (1,))
    check("MatMul", [a, b])


def test_matmul_of_stacks() -> None:
    check("MatMul", [normal(3, 5, 40), normal(40, 33)], (1,))
    check("MatMul", [normal(2, 3, 50, 64), normal(2, 3, 64, 50)])
    check("MatMul", [normal(2, 3, 50, 64), normal(1, 1, 64, 50)])
    check("MatMul", [normal(7), normal(7, 5)], (1,))
    check("MatMul", [normal(4, 7), normal(7)], (1,))


def test_an_input_read_twice() -> None:
    check("Mul", [X, X])


def test_weights_of_run_time() -> None:
    y = tercet.run_op("Conv", X, normal(4, 12, 3, 3), backend="cuda")
    want = tercet.run_op("Conv", X.astype(float), normal(4, 12, 3, 3).astype(float))
    assert np.linalg.norm(y - want) <= 1e-5 * np.linalg.norm(want)
