"""Operators that tf2onnx leaves as they are: tools/workshop/tensorflow_files.py made a sample.

Its results are TensorFlow's; edges are held against Python and numpy.
"""

from __future__ import annotations

import colorsys
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from onnx import helper

import tercet
from tercet.importers.onnx.contrib.catalogue import FOREIGN, TENSORFLOW
from tercet.runtime.ir.types import Array

from ..packages import needs_cuda
from .stored import arrays

MODEL = Path(__file__).parent / "tensorflow.onnx"


def in_its_domain() -> onnx.ModelProto:
    """Return the sample as tf2onnx writes it with --custom-ops."""
    model = onnx.load(MODEL)
    for node in model.graph.node:
        if not onnx.defs.has(node.op_type):
            node.domain = TENSORFLOW
    model.opset_import.append(helper.make_opsetid(TENSORFLOW, 1))
    return model


@pytest.mark.parametrize("options", [{}, {"stop_at": 0}], ids=["passes", "as it is"])
@pytest.mark.parametrize("domain", [TENSORFLOW, ""])
def test_samples(options: Any, domain: str) -> None:
    wanted = arrays(MODEL, "output/")
    there = {node.op_type for node in onnx.load(MODEL).graph.node}
    elsewhere = ("tensorflow_older", "tensorflow_xla")
    here = {name for name, module in FOREIGN.items() if module not in elsewhere}
    assert here - there == {"InTopK"}  # which is InTopKV2
    with tercet.load(in_its_domain() if domain else MODEL, **options) as loaded:
        found = loaded.run(arrays(MODEL, "input/"))
    for name, result in wanted.items():
        assert found[name].dtype == result.dtype, name
        np.testing.assert_allclose(found[name], result, 2e-6, 2e-7, err_msg=name)


@needs_cuda
def test_cuda_leaves_nothing() -> None:
    found = tercet.inspect(MODEL, placement="cuda", target="sm_90a").placement
    assert found
    assert all(row.backend == "plan" or row.backend.startswith("cuda") for row in found)


def computed(op: str, *inputs: Any, **attributes: Any) -> Array:
    """Return the result of one node; sizes of inputs are not declared, but their number is."""
    data = dict(zip("abc", map(np.asarray, inputs), strict=False))
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(x.dtype), [None] * x.ndim
        )
        for name, x in data.items()
    ]
    node = helper.make_node(op, list(data), ["out"], **attributes)
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="out")])
    with tercet.load(helper.make_model(graph, producer_name="tf2onnx")) as model:
        return model.run(data)["out"]


SMALL = np.array([0, 1e-30, -1e-9, 1e-5, -0.01, 0.3, -0.499, 0.5, 0.7, 20, -20, 60], np.float32)
ENDS = np.array([np.inf, -np.inf, np.nan, -1, -2, 1e38, 88.7, -100], np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("op", "true"), [("Expm1", np.expm1), ("Log1p", np.log1p)])
def test_no_digits_are_lost_near_zero(op: str, true: Any, dtype: Any) -> None:
    x = np.concatenate([SMALL, ENDS]).astype(dtype)
    with np.errstate(all="ignore"):
        wanted = true(x)
    np.testing.assert_allclose(computed(op, x), wanted, rtol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize("op", ["Xlogy", "Xlog1py", "Xdivy"])
def test_zero_times_anything_is_zero(op: str) -> None:
    y = np.array([0, -1, np.inf, np.nan, 3], np.float32)
    np.testing.assert_array_equal(computed(op, np.zeros(5, np.float32), y), np.zeros(5))


def test_a_gelu_of_jax_is_one() -> None:
    """x / 2 erfc(-x / sqrt(2)), as jax.nn.gelu(approximate=False) is."""
    nodes = [
        helper.make_node("Mul", ["x", "c"], ["s"]),
        helper.make_node("Erfc", ["s"], ["e"]),
        helper.make_node("Mul", ["x", "half"], ["h"]),
        helper.make_node("Mul", ["h", "e"], ["y"]),
    ]
    kinds = [helper.make_tensor_value_info(name, 1, [3, 4]) for name in "xy"]
    numbers = {"c": -(0.5**0.5), "half": 0.5}
    weights = [helper.make_tensor(name, 1, [], [value]) for name, value in numbers.items()]
    graph = helper.make_graph(nodes, "g", kinds[:1], kinds[1:], weights)
    with tercet.load(helper.make_model(graph)) as model:
        assert [type(node.op).__name__ for node in model.graph.nodes] == ["Gelu"]


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 3, 5), (4, 4)])
def test_diagonals(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    row = rng.standard_normal((*shape[:-2], min(shape[-2:]))).astype(np.float32)
    node = helper.make_node("MatrixSetDiag", ["x", "row"], ["y"])
    kinds = [helper.make_tensor_value_info(n, 1, v.shape) for n, v in (("x", x), ("row", row))]
    graph = helper.make_graph([node], "g", kinds, [onnx.ValueInfoProto(name="y")])
    with tercet.load(helper.make_model(graph)) as model:
        (found,) = model(x, row)
    wanted = x.copy()
    for matrix, numbers in zip(
        wanted.reshape(-1, *shape[-2:]), row.reshape(-1, row.shape[-1]), strict=True
    ):
        np.fill_diagonal(matrix, numbers)
    np.testing.assert_array_equal(found, wanted)


def test_a_diagonal_does_not_spread_infinities() -> None:
    x = np.array([[np.inf, np.nan], [np.nan, -np.inf]], np.float32)
    np.testing.assert_array_equal(computed("DiagPart", x), [np.inf, -np.inf])
    np.testing.assert_array_equal(computed("Diag", np.array([np.inf, 1], np.float32)).ravel()[1], 0)


def test_bounds_are_numpys() -> None:
    rows = np.sort(np.random.default_rng(0).integers(0, 5, (3, 8)), -1).astype(np.float32)
    values = np.arange(-1, 6, dtype=np.float32) * np.ones((3, 1), np.float32)
    sides: dict[str, Literal["left", "right"]] = {"LowerBound": "left", "UpperBound": "right"}
    for op, side in sides.items():
        wanted = [np.searchsorted(*pair, side) for pair in zip(rows, values, strict=True)]
        np.testing.assert_array_equal(computed(op, rows, values, out_type=7), wanted)
    edges = [-1.0, 0.0, 2.0]
    wanted = np.digitize(values, edges)
    np.testing.assert_array_equal(computed("Bucketize", values, boundaries=edges), wanted)


def test_ranks_with_ties_and_nan() -> None:
    """Ties are all within k; a row that is not finite has no ranks."""
    rows = np.array([[1, 1, 0], [3, 2, 1], [np.nan, 1, 2], [np.inf, 0, 1]], np.float32)
    found = computed("InTopKV2", rows, np.array([1, 2, 2, 0]), np.array(1))
    np.testing.assert_array_equal(found, [True, False, False, False])


@pytest.mark.parametrize("reverse", [0, 1])
def test_order_statistics_are_numpys(reverse: int) -> None:
    x = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    found = computed("NthElement", x, np.array(3, np.int32), reverse=reverse)
    np.testing.assert_array_equal(found, np.sort(x, -1)[:, 5 if reverse else 3])


def test_colours_are_pythons() -> None:
    rng = np.random.default_rng(0)
    grey = [[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [1, 0, 0], [1, 1, 0], [0, 1, 1], [1, 0, 1]]
    x = np.concatenate([np.array(grey), rng.uniform(size=(40, 3))]).astype(np.float32)
    hsv = computed("RGBToHSV", x)
    np.testing.assert_allclose(hsv, [colorsys.rgb_to_hsv(*each) for each in x], atol=1e-6)
    np.testing.assert_allclose(computed("HSVToRGB", hsv), x, atol=1e-6)


def test_inverses() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 3)).astype(np.float32)
    for adjoint, wanted in enumerate((np.linalg.inv(x), np.linalg.inv(x).swapaxes(1, 2))):
        np.testing.assert_allclose(computed("MatrixInverse", x, adjoint=adjoint), wanted, 1e-4)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_remainders_have_the_sign_of_the_first(dtype: Any) -> None:
    x, y = np.array([7, -7, 7, -7], dtype), np.array([3, 3, -3, -3], dtype)
    np.testing.assert_array_equal(computed("TruncateMod", x, y), np.fmod(x, y))


def test_the_outer_bins_take_what_is_outside() -> None:
    x = np.array([-9, 0, 0.24, 0.25, 0.99, 1, 9], np.float32)
    found = computed(
        "HistogramFixedWidth", x, np.array([0, 1], np.float32), np.array(4, np.int32), dtype=7
    )
    np.testing.assert_array_equal(found, np.histogram(np.clip(x, 0, 1), 4, (0, 1))[0])


# ── special functions ────────────────────────────────────────────────────────────────────────────

#: Of the dtype's rounding, times the number itself or 1.
EPS = 16
POINTS = np.concatenate(
    [
        np.linspace(-20.3, 60, 400),
        [1e-30, -1e-30, 0.5, 1, 2, 171, -170.5, 1e8, 1e30],
    ]
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logarithms_of_gamma(dtype: Any) -> None:
    x = POINTS.astype(dtype)
    wanted = [math.lgamma(each) for each in x.tolist()]
    eps = EPS * np.finfo(dtype).eps
    np.testing.assert_allclose(computed("Lgamma", x), wanted, eps, eps)
    ends = np.array([0, -1, -2, np.inf, -np.inf, np.nan], dtype)
    np.testing.assert_array_equal(computed("Lgamma", ends), [np.inf] * 5 + [np.nan])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_digammas_of_whole_and_half_numbers(dtype: Any) -> None:
    """By their sums, and at negative ones by one step up."""
    gamma, n = 0.57721566490153286, np.arange(1, 40)
    whole = np.cumsum(1 / n) - 1 / n - gamma
    half = np.cumsum(2 / (2 * n - 1)) - 2 / (2 * n - 1) - gamma - 2 * math.log(2)
    negative = half[0] + np.cumsum(1 / (n - 0.5))
    eps = EPS * np.finfo(dtype).eps
    for x, wanted in ((n, whole), (n - 0.5, half), (0.5 - n, negative)):
        np.testing.assert_allclose(computed("Digamma", x.astype(dtype)), wanted, eps, eps)
    ends = np.array([0, -3, -np.inf, np.nan, np.inf, -1e-30], dtype)
    wanted = [*[np.nan] * 4, np.inf, 1e30]
    np.testing.assert_allclose(computed("Digamma", ends), wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_quantiles_are_those_of_pythons_statistics(dtype: Any) -> None:
    p = np.concatenate([np.linspace(0, 1, 201)[1:-1], 10.0 ** -np.arange(3, 38)]).astype(dtype)
    wanted = [NormalDist().inv_cdf(each) for each in p.tolist()]
    eps = EPS * np.finfo(dtype).eps
    np.testing.assert_allclose(computed("Ndtri", p), wanted, eps, eps)
    ends = np.array([0, 1, -0.1, 1.1, np.nan], dtype)
    np.testing.assert_array_equal(computed("Ndtri", ends), [-np.inf, np.inf, *[np.nan] * 3])


def test_erfinv_inverts() -> None:
    y = np.concatenate([np.linspace(-1, 1, 301)[1:-1], [1e-30, 1 - 1e-6]])
    found = computed("Erfinv", y)
    np.testing.assert_allclose([math.erf(each) for each in found.tolist()], y, 1e-15, 0)
    narrow = computed("Erfinv", y.astype(np.float32))
    wanted = computed("Erfinv", y.astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(narrow, wanted, 2e-7)
    ends = computed("Erfinv", np.array([1, -1, 1.5, np.nan], np.float32))
    np.testing.assert_array_equal(ends, [np.inf, -np.inf, np.nan, np.nan])


# ── matrices ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", [(1, 1), (2, 3, 5, 5), (40, 40)])
def test_factors_are_numpys(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    x = x @ x.swapaxes(-1, -2) + np.eye(shape[-1])
    wanted = np.linalg.cholesky(x)
    np.testing.assert_allclose(computed_of(x, "Cholesky"), wanted, 1e-10, 1e-12)
    triangle = np.tril(x, -1) + np.diag(np.full(shape[-1], 2.0))
    found = computed_of(np.triu(x) + triangle, "MatrixTriangularSolve", x, adjoint=1)
    kept = np.tril(np.triu(x) + triangle).swapaxes(-1, -2)
    np.testing.assert_allclose(kept @ found, x, 1e-9, 1e-9)


def computed_of(x: Array, op: str, *others: Array, **attributes: Any) -> Array:
    """As `computed`, of inputs with declared sizes."""
    data = dict(zip("abc", (x, *others), strict=False))
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in data.items()
    ]
    node = helper.make_node(op, list(data), ["out"], **attributes)
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="out")])
    with tercet.load(helper.make_model(graph)) as model:
        return model.run(data)["out"]


def test_factors_of_many_columns_are_refused() -> None:
    with pytest.raises(tercet.UnsupportedError, match="factors of 1 to 128 columns"):
        computed_of(np.eye(129, dtype=np.float32), "Cholesky")
    with pytest.raises(tercet.UnsupportedError, match="has no known size"):
        computed("Cholesky", np.eye(3, dtype=np.float32))


# ── complex numbers ──────────────────────────────────────────────────────────────────────────────


def of_complex(text: str) -> tercet.Model:
    graph = onnx.parser.parse_graph("g (float[2, 6] x, float[2, 6] y) => (y0) {" + text + "}")
    return tercet.load(helper.make_model(graph, producer_name="tf2onnx"))


MOVES = [
    ("t = Transpose <perm = [1, 0]> (c)", lambda c: c.T),
    ("t = Transpose (c)", lambda c: c.T),
    ("a = Constant <value_ints = [-1]> () t = Unsqueeze (c, a)", lambda c: c[..., None]),
    (
        "a = Constant <value_ints = [0]> () u = Unsqueeze (c, a) t = Squeeze (u, a)",
        lambda c: c,
    ),
    ("a = Constant <value_ints = [3, -1]> () t = Reshape (c, a)", lambda c: c.reshape(3, 4)),
    ("t = Concat <axis = -1> (c, c)", lambda c: np.concatenate([c, c], -1)),
    (
        "a = Constant <value_ints = [-1]> () b = Constant <value_ints = [4]> () "
        "t = Slice (c, a, b, a)",
        lambda c: c[..., -1:4],
    ),
    ("d = Neg (c) t = Sub (d, c)", lambda c: -c - c),
    ("d = Conj (c) t = Div (c, d)", lambda c: c / c.conj()),
    ("d = Identity (c) t = Add (c, d)", lambda c: c + c),
]


@pytest.mark.parametrize(("text", "move"), MOVES, ids=[text for text, _ in MOVES])
def test_complex_numbers_are_numpys(text: str, move: Any) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 2, 6)).astype(np.float32)
    for part in ("Real", "Imag"):
        with of_complex(f"c = Complex (x, y) {text} y0 = {part} (t)") as model:
            (found,) = model(x, y)
        wanted = move(x + 1j * y)
        np.testing.assert_allclose(found, getattr(wanted, part.lower()), 1e-6, 1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "c = Complex (x, y) y0 = Exp (c)",
        "c = Complex (x, y) y0 = Identity (c)",
        "c = Complex (x, y) b = Constant <value = bool {1}> () y0 = If (b) <then_branch = g () => "
        "(z) { z = Real (c) }, else_branch = h () => (w) { w = Neg (x) }>",
    ],
)
def test_complex_numbers_go_nowhere_else(text: str) -> None:
    with pytest.raises(tercet.UnsupportedError, match=r"'\w+' is of complex numbers.*tf\.math"):
        of_complex(text)


def test_constants_are_complex_numbers_beside_such() -> None:
    numbers = np.array([1 + 2j, -3j, 0.5, 2, 1j, 1], np.complex64)
    weight = onnx.numpy_helper.from_array(numbers, "w")
    nodes = [
        helper.make_node("Complex", ["x", "x"], ["c"]),
        helper.make_node("Mul", ["w", "c"], ["d"]),
        helper.make_node("Angle", ["d"], ["y"]),
    ]
    kinds = [helper.make_tensor_value_info(name, 1, [2, 6]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", kinds[:1], kinds[1:], [weight])
    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    with tercet.load(helper.make_model(graph, producer_name="tf2onnx")) as model:
        (found,) = model(x)
    np.testing.assert_allclose(found, np.angle(numbers * (x + 1j * x)), 1e-6, 1e-6)


def test_an_operator_of_anyone_else_comes_first() -> None:
    with pytest.raises(tercet.UnsupportedError, match="tf2onnx left it as it was"):
        computed("Dawsn", np.ones((2, 2), np.float32))
    with pytest.raises(tercet.ModelError, match=r"expected 6 \(int32\) or 7 \(int64\)"):
        computed("LowerBound", np.ones((1, 2), np.float32), np.ones((1, 2), np.float32), out_type=1)


def test_bincount() -> None:
    numbers = np.array([[0, 2, 2, 7], [1, 1, 1, 0]])
    none, size = np.zeros(0, np.float32), np.array(3)
    found = computed("DenseBincount", numbers, size, none)
    np.testing.assert_array_equal(found, [[1, 0, 2], [1, 3, 0]])
    assert found.dtype == np.float32
    found = computed("DenseBincount", numbers, size, none, binary_output=1)
    np.testing.assert_array_equal(found, [[1, 0, 1], [1, 1, 0]])
    found = computed("DenseBincount", numbers, size, np.array([[3, 4, 5, 6.0], [0, 1, 2, 3]]))
    np.testing.assert_array_equal(found, [[3, 0, 9], [3, 3, 0]])
    np.testing.assert_array_equal(computed("DenseBincount", numbers[0], size, none), [1, 0, 2])
    weights = np.array([3, 4, 5, 6])
    for name in ("DenseBincount", "Bincount"):
        found = computed(name, numbers[0].astype(np.int32), size.astype(np.int32), weights)
        np.testing.assert_array_equal(found, [3, 0, 9])


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (5, 3), (3, 5), (2, 4, 3)])
@pytest.mark.parametrize("full", [0, 1])
def test_qr(shape: tuple[int, ...], full: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    x[..., 0] = 0 if shape == (3, 3) else x[..., 0]
    node = helper.make_node("Qr", ["x"], ["q", "r"], full_matrices=full)
    infos = [helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, shape)]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=each) for each in "qr"])
    with tercet.load(helper.make_model(graph, producer_name="tf2onnx")) as model:
        found = model.run({"x": x})
    q, r = np.linalg.qr(x, "complete" if full else "reduced")
    np.testing.assert_allclose(found["q"], q, 1e-12, 1e-12)
    np.testing.assert_allclose(found["r"], r, 1e-12, 1e-12)
