"""float32 on tensor cores, against float64: odd sizes, odd numbers, long sums, what follows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.gemm.atoms import Atom
from tercet.backends.cuda.gemm.tile import Config, CtaTile
from tercet.backends.cuda.recipe.targets import Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..kernels.dry import normal
from ..kernels.test_split import TILES, force, title
from .test_cuda_convolutions import random_case
from .test_cuda_operators import run

pytestmark = pytest.mark.gpu

WAYS = {
    "conv": "tensor_cores,depthwise,grouped",
    "algorithms": {"MatMul": "tensor_cores", "Gemm": "tensor_cores"},
}
#: Relative L2 distances that nothing here may exceed, by precision.
BOUNDS = {"float32": 1e-6, "tf32": 1e-3}


def check_split(
    operator: str,
    inputs: list[Array],
    constant: tuple[int, ...] = (),
    precision: str = "float32",
    **attributes: Any,
) -> None:
    options = {**WAYS, "precision": precision}
    (got,) = run("cuda", operator, inputs, constant, options=options, **attributes)
    (again,) = run("cuda", operator, inputs, constant, options=options, **attributes)
    wide = [a.astype(np.float64) for a in inputs]
    (want,) = run("numpy", operator, wide, constant, **attributes)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.view(np.uint32), again.view(np.uint32))
    assert np.linalg.norm(got - want) <= BOUNDS[precision] * np.linalg.norm(want)


@pytest.mark.parametrize("seed", range(80))
def test_random_convolutions(seed: int) -> None:
    inputs, attributes = random_case(seed)
    check_split("Conv", inputs, (1, 2), "tf32" if seed % 5 == 4 else "float32", **attributes)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((1, 3, 224, 224), (64, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
        ((1, 512, 7, 7), (512, 512, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((1, 2048, 7, 7), (512, 2048, 1, 1), {}),
        ((16, 64, 56, 56), (256, 64, 1, 1), {}),
        ((8, 256, 28, 28), (512, 256, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((5, 100, 13, 13), (300, 100, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((1, 272, 14, 14), (272, 68, 1, 1), {"group": 4}),
        ((1, 96, 54, 54), (256, 48, 5, 5), {"group": 2, "pads": (2, 2, 2, 2)}),
        ((2, 13, 9, 9), (7, 13, 3, 3), {"dilations": (2, 3), "pads": (3, 0, 1, 4)}),
        ((2, 24, 100), (16, 24, 9), {"pads": (4, 4)}),
    ],
)
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_real_layers(
    x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any], precision: str
) -> None:
    check_split("Conv", [normal(*x), normal(*w), normal(w[0])], (1, 2), precision, **attributes)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(("atom", "target", "tile"), TILES, ids=title)
def test_every_tile(
    atom: Atom, target: Target, tile: CtaTile, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiles for Ampere run here as well."""
    force(monkeypatch, atom, Config(tile, splits))
    inputs = [normal(3, 40, 15, 14), normal(210, 40, 3, 3), normal(210)]
    check_split("Conv", inputs, (1, 2), pads=(1, 1, 1, 1))


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(9, 1000, 2048), (33, 77, 30), (32, 200, 25088), (197, 777, 768), (65, 8, 31)],
)
def test_linear(m: int, n: int, k: int) -> None:
    inputs = [normal(m, k), normal(k, n), normal(n)]
    check_split("Gemm", inputs, (1, 2))
    check_split("Gemm", [inputs[0], normal(n, k), inputs[2]], (1, 2), transB=1, alpha=0.5)


@pytest.mark.parametrize(
    ("a", "b"),
    [((1000, 700), (700, 1100)), ((3, 500, 260), (3, 260, 300)), ((2, 640, 514), (2, 514, 640))],
)
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_products_of_run_time(a: tuple[int, ...], b: tuple[int, ...], precision: str) -> None:
    check_split("MatMul", [normal(*a), normal(*b)], (), precision)


def test_a_constant_stack() -> None:
    check_split("MatMul", [normal(24, 300, 256), normal(24, 256, 320)], (1,))


@pytest.mark.parametrize("spread", [2, 6, 20])
def test_columns_of_other_magnitudes_in_both_operands(spread: int) -> None:
    """Weights that make up for activations of other magnitudes, in float16 or not."""
    scales = np.exp2(np.random.default_rng(0).integers(-spread, spread + 1, 512)).astype(np.float32)
    check_split("Gemm", [normal(700, 512) * scales, normal(512, 512) / scales[:, None]], (1,))


def test_a_long_sum_of_equal_signs() -> None:
    """What tensor cores cut off would add up here."""
    inputs = [np.abs(normal(16, 25088)), np.abs(normal(25088, 64))]
    check_split("Gemm", inputs, (1,))


def odd_image() -> Array:
    x = normal(2, 16, 12, 12)
    x[0, 3, 2, 2], x[0, 5, 8, 8], x[1, 0, 1, 9] = np.inf, -np.inf, np.nan
    x[1, 7, 9, 1], x[1, 8, 9, 2] = 1.0, np.inf
    return x


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_infinities_and_nans(precision: str) -> None:
    """Also where the weights are numbers without a low part."""
    x, w = odd_image(), np.sign(normal(24, 16, 3, 3)) * np.float32(0.5)
    w[8:] = normal(16, 16, 3, 3)
    options = {**WAYS, "precision": precision}
    (got,) = run("cuda", "Conv", [x, w], (1,), options=options)
    with np.errstate(invalid="ignore"):
        (want,) = run("numpy", "Conv", [x.astype(np.float64), w.astype(np.float64)], (1,))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    infinite = np.isinf(want)
    np.testing.assert_array_equal(got[infinite], want[infinite].astype(np.float32))
    finite = np.isfinite(want)
    error = np.linalg.norm(got[finite] - want[finite])
    assert error <= BOUNDS[precision] * np.linalg.norm(want[finite])


@pytest.mark.parametrize("scale", [1e37, 1e-30])
def test_great_and_small_numbers(scale: float) -> None:
    x, w = normal(2, 16, 9, 9) * np.float32(scale), normal(8, 16, 3, 3) * np.float32(0.05)
    check_split("Conv", [x, w], (1,))


def test_the_smallest_numbers_have_the_high_part_alone() -> None:
    x, w = normal(2, 16, 9, 9) * np.float32(1e-37), normal(8, 16, 3, 3) * np.float32(0.05)
    (got,) = run("cuda", "Conv", [x, w], (1,), options=WAYS)
    (want,) = run("numpy", "Conv", [x.astype(np.float64), w.astype(np.float64)], (1,))
    assert np.linalg.norm(got - want) <= BOUNDS["tf32"] * np.linalg.norm(want)


def test_the_greatest_number_and_denormal_ones() -> None:
    greatest = np.finfo(np.float32).max * np.float32(1 - 2**-21)
    w = np.zeros((8, 8, 1, 1), np.float32)
    w[range(8), range(8)] = 1
    x = np.full((1, 8, 3, 3), greatest)
    (got,) = run("cuda", "Conv", [x, w], (1,), options=WAYS)
    np.testing.assert_allclose(got, x, rtol=2**-21)
    (got,) = run("cuda", "Conv", [np.full_like(x, 3e-39), w], (1,), options=WAYS)
    assert np.abs(got - 3e-39).max() <= 1e-41 or not got.any()


@pytest.mark.parametrize("images", [1, 40])
def test_what_follows(images: int) -> None:
    """relu(conv(x) + bias + z), with and without sums that are split."""
    x, w, b = normal(images, 64, 14, 14), normal(130, 64, 3, 3), normal(130)
    z = normal(images, 130, 14, 14)
    graph = Graph()
    inputs = [
        graph.add_input(name, TensorType(a.dtype, a.shape)) for name, a in (("x", x), ("z", z))
    ]
    conv = graph.insert(Conv(pads=(1, 1, 1, 1)), [inputs[0], graph.constant(w), graph.constant(b)])
    node = graph.insert(Relu(), [graph.insert(Add(), [conv.output, inputs[1]]).output])
    graph.set_outputs({"y": node.output})
    infer(graph)
    options = Options(conv="tensor_cores")
    with Model(graph, open_backends("cuda", options), options, evaluate) as model:
        got = model.run({"x": x, "z": z})["y"]
        kernels = " ".join(row.kernel for row in model.prepare().rows)
    assert "3xf16" in kernels or "3xtf32" in kernels
    wide = [a.astype(np.float64) for a in (x, w, b)]
    (want,) = run("numpy", "Conv", wide, (1, 2), pads=(1, 1, 1, 1))
    want = np.maximum(want + z, 0)
    assert np.linalg.norm(got - want) <= BOUNDS["float32"] * np.linalg.norm(want)
