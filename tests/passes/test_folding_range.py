"""Folding never makes infinities, NaN or zeros of weights that are none, in any dtype.

The oracle is the same graph without any pass, and float64: what is folded has no number that is not
finite where the plain graph has one, and is as exact as it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph, Node, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, Dim, TensorType
from tercet.runtime.ops import elementwise as ew
from tercet.runtime.ops.attention import Attention
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.norm import BatchNormalization, Softmax
from tercet.runtime.passes.linear import as_linear
from tercet.runtime.passes.rounding import Unfit, check, narrowed, product

from ..randomness import restarting
from .graphs import apply, kinds, optimised

RNG = restarting(11)
#: Constants by their logarithm: a layer and what follows it.
Chain = Callable[["Net", Value], Value]


class Net:
    """Makes a graph whose constants are of one dtype."""

    def __init__(
        self, dtype: DType, shape: tuple[Dim, ...], rng: np.random.Generator = RNG
    ) -> None:
        self.graph, self.dtype, self.rng = Graph(), dtype, rng
        self.x = self.graph.add_input("x", TensorType(dtype, shape))

    def __call__(self, op: Any, *inputs: Value | Array | None) -> Value:
        maximum = 6e4 if self.dtype == float16 else 3e38
        cast: list[Value | Array | None] = [
            np.asarray(v.clip(-maximum, maximum), self.dtype) if isinstance(v, np.ndarray) else v
            for v in inputs
        ]
        return apply(self.graph, op, *cast)

    def some(self, scale: float, *shape: int) -> Array:
        """Return numbers near `scale`, of both signs."""
        signs = self.rng.choice([-1.0, 1.0], shape)
        return np.asarray(signs * self.rng.uniform(0.5, 1.5, shape) * scale)

    def ends(self, y: Value) -> Graph:
        self.graph.set_outputs({"y": y})
        infer(self.graph)
        return self.graph


def compute(graph: Graph, x: Array, *, exact: bool = False) -> Array:
    """Run a graph node by node, in its own dtypes or all in float64."""

    def of(data: Array | None) -> Array | None:
        return data if data is None or not exact else data.astype(float64)

    known: dict[Value, Array | None] = {graph.inputs[0]: of(x)}
    for node in graph.nodes:
        inputs = [None if v is None else known.get(v, of(v.data)) for v in node.inputs]
        found = evaluate(node.op, inputs, len(node.outputs))
        assert found is not None, node
        known.update(zip(node.outputs, found, strict=True))
    result = known[graph.outputs["y"]]
    assert result is not None
    return result.astype(float64)


def assert_no_worse(graph: Graph, after: Graph, x: Array, factor: float = 4.0) -> None:
    dtype = graph.inputs[0].tensor.dtype
    eps = float(np.finfo(dtype).eps) if dtype != bfloat16 else 2.0**-7
    exact, plain, got = compute(graph, x, exact=True), compute(graph, x), compute(after, x)
    usable = np.isfinite(plain) & np.isfinite(exact)
    assert np.isfinite(got[usable]).all()
    if not usable.any():
        return
    scale = np.abs(exact[np.isfinite(exact)]).max()
    if scale == 0:
        return
    errors = [np.linalg.norm((y[usable] - exact[usable]) / scale) for y in (plain, got)]
    assert errors[1] <= factor * errors[0] + 8 * eps * np.sqrt(np.count_nonzero(usable))


# ── what the passes meet ─────────────────────────────────────────────────────────────────────────


def conv(net: Net, x: Value, scale: float) -> Value:
    return net(Conv(), x, net.some(scale, 3, 3, 1, 1), net.some(scale, 3))


def transposed(net: Net, x: Value, scale: float) -> Value:
    return net(ConvTranspose(), x, net.some(scale, 3, 3, 1, 1))


def gemm(net: Net, x: Value, scale: float) -> Value:
    return net(Gemm(transB=1, alpha=0.5), x, net.some(scale, 3, 3), net.some(scale, 3))


def norm(net: Net, x: Value, scale: float) -> Value:
    rest = (net.some(1, 3), net.some(1, 3), np.ones(3))
    return net(BatchNormalization(), x, net.some(scale, 3), *rest)


def narrow_norm(net: Net, x: Value, scale: float) -> Value:
    """Scale by one over a deviation."""
    rest = (np.ones(3), net.some(1, 3), net.some(1, 3), np.full(3, scale**-2.0).clip(0, 6e4))
    return net(BatchNormalization(epsilon=1e-12), x, *rest)


def times(net: Net, x: Value, scale: float) -> Value:
    return net(ew.Mul(), x, net.some(scale, 1))


def over(net: Net, x: Value, scale: float) -> Value:
    return net(ew.Div(), x, net.some(1 / scale, 1))


def plus(net: Net, x: Value, scale: float) -> Value:
    return net(ew.Add(), x, net.some(scale, 1))


def minus(net: Net, x: Value, scale: float) -> Value:
    return net(ew.Sub(), net.some(scale, 1), x)


LAYERS = {"conv": conv, "transposed": transposed, "gemm": gemm, "norm": norm}
BEHIND = {"times": times, "over": over, "plus": plus, "norm": norm, "deviation": narrow_norm}
SECOND = {"conv": conv, "gemm": gemm}
#: By dtype: great and small constants whose product the dtype does not have.
EXTREMES = {
    float16: [(300, 300), (1e-4, 1e-4), (1e-3, 1e-5), (200, 1e-4), (6e4, 2), (3, 0.5)],
    bfloat16: [(1e20, 1e20)],
    float32: [(1e20, 1e20), (1e-30, 1e-30), (1e-20, 1e-19), (1e-20, 1e20), (1e30, 1e8), (3, 0.5)],
}
CASES = [
    (dtype, pair, layer, behind)
    for dtype, pairs in EXTREMES.items()
    for pair in pairs
    for layer in LAYERS
    for behind in (*BEHIND, "layer")
]


def _titles(case: tuple[DType, tuple[float, float], str, str]) -> str:
    dtype, (a, b), layer, behind = case
    return f"{dtype.name}-{layer}-{behind}-{a:g}-{b:g}"


@pytest.mark.parametrize("case", CASES, ids=_titles)
def test_extremes(case: tuple[DType, tuple[float, float], str, str]) -> None:
    dtype, (first, second), layer, behind = case
    shape = (4, 3) if layer == "gemm" else (2, 3, 4, 4)
    net = Net(dtype, shape)
    h = LAYERS[layer](net, net.x, first)
    then = BEHIND.get(behind) or (gemm if layer == "gemm" else conv)
    graph = net.ends(then(net, h, second))
    after, _ = optimised(graph)
    for size in (1.0, 1 / first, 1 / (first * second) if first * second < 1e30 else 0.0):
        x = net.some(min(size, float(np.finfo(float32).max)), *shape)
        with np.errstate(over="ignore"):
            x = np.clip(x, -3e4, 3e4).astype(dtype)
        assert_no_worse(graph, after, x)


def test_ordinary_constants_are_folded_as_ever() -> None:
    for dtype in (float16, float32):
        for behind in BEHIND.values():
            net = Net(dtype, (2, 3, 4, 4))
            after, log = optimised(net.ends(behind(net, conv(net, net.x, 0.1), 0.5)))
            assert kinds(after) == ["Conv"]
            assert not log.refused


def test_the_reason_is_recorded() -> None:
    net = Net(float16, (2, 3, 4, 4))
    after, log = optimised(net.ends(times(net, conv(net, net.x, 300), 300)))
    assert kinds(after) == ["Conv", "Mul"]
    (one,) = log.refused
    assert one.name == "fold_affine"
    assert "Conv" in one.text
    assert "float16" in one.text


@pytest.mark.parametrize("behind", ["times", "norm"])
@pytest.mark.parametrize(("bias", "left"), [(0.1, ["MatMul", "Add"]), (300.0, None)])
def test_products_of_rows_do_not_overflow_before_their_bias(
    behind: str, bias: float, left: list[str] | None
) -> None:
    """70000 - 30000 fits into float16, 70000 does not."""
    net = Net(float16, (2, 3))
    product = net(MatMul(), net.x, np.full((3, 3), 1.0))
    total = net(ew.Add(), product, np.full(3, -bias))
    hundred = np.full(3, 100.0)
    if behind == "times":
        y = net(ew.Mul(), total, hundred)
    else:
        zeros, ones = np.zeros(3), np.ones(3)
        y = net(BatchNormalization(epsilon=0.0), total, hundred, zeros, zeros, ones)
    graph = net.ends(y)
    after, _ = optimised(graph)
    assert_no_worse(graph, after, np.full((2, 3), bias * 7 / 9, float16))
    assert left is None or kinds(after) == left


def test_a_dead_channel_does_not_keep_a_layer_from_folding() -> None:
    """Weight decay leaves channels of denormal numbers; they are as coarse as they were."""
    net = Net(float32, (2, 3, 4, 4))
    weight = net.some(0.1, 3, 3, 1, 1)
    weight[1] = 3e-42
    y = net(Conv(), net.x, weight)
    after, log = optimised(net.ends(norm(net, y, 1.0)))
    assert kinds(after) == ["Conv"]
    assert not log.refused


@pytest.mark.parametrize("case", range(60))
def test_chains(case: int) -> None:
    """Random chains of layers and affine steps with constants of random exponents."""
    rng = np.random.default_rng(case)
    dtype = (float16, bfloat16, float32)[case % 3]
    reach = {float16: 4.0, bfloat16: 18.0, float32: 18.0}[dtype]
    flat = bool(rng.integers(2))
    shape = (4, 3) if flat else (2, 3, 4, 4)
    steps: Sequence[Callable[[Net, Value, float], Value]] = [
        *([gemm] if flat else [conv, transposed]),
        *(norm, narrow_norm, times, over, plus, minus),
    ]
    net = Net(dtype, shape, rng)
    value, total = net.x, 0.0
    for _ in range(int(rng.integers(2, 6))):
        exponent = float(rng.uniform(-reach, reach))
        if abs(total + exponent) > reach:
            exponent = -exponent
        total += exponent
        value = steps[int(rng.integers(len(steps)))](net, value, 10.0**exponent)
    graph = net.ends(value)
    for size in (1e-3, 1.0, 1e3):
        assert_no_worse(graph, optimised(graph)[0], net.some(size, *shape).astype(dtype))


@pytest.mark.parametrize(("q_scale", "k_scale", "fuses"), [(0.5, 0.5, True), (1e-30, 1e-30, False)])
def test_the_scale_of_an_attention(q_scale: float, k_scale: float, fuses: bool) -> None:
    net = Net(float32, (1, 2, 5, 4))
    q, k = (net(ew.Mul(), net.x, np.array(scale)) for scale in (q_scale, k_scale))
    scores = net(MatMul(), q, net(Transpose(perm=(0, 1, 3, 2)), k))
    graph = net.ends(net(MatMul(), net(Softmax(), scores), net.x))
    after, _ = optimised(graph)
    assert any(isinstance(node.op, Attention) for node in after.nodes) == fuses
    assert_no_worse(graph, after, net.some(1, 1, 2, 5, 4).astype(float32))


@pytest.mark.parametrize("beta", [1e5, 1e-9, 0.5])
def test_a_factor_that_half_has_no_number_for(beta: float) -> None:
    net = Net(float16, (4, 3))
    y = net(Gemm(beta=beta), net.x, np.zeros((3, 3)), net.x)
    graph = net.ends(y)
    x = net.some(1e-2, 4, 3).astype(float16)
    assert_no_worse(graph, optimised(graph, finite=True)[0], x)


def test_channels_in_front() -> None:
    """Every layer gives its weights by output channel, whatever groups and transposition do."""
    net = Net(float32, (2, 4, 5, 5))
    layers = [
        (net(Conv(group=2), net.x, net.some(1, 6, 2, 3, 3)), 6),
        (net(ConvTranspose(group=2), net.x, net.some(1, 4, 3, 2, 2)), 6),
    ]
    for value, channels in layers:
        node: Node | None = value.producer
        linear = as_linear(node)
        assert linear is not None
        factors = np.arange(1.0, channels + 1)
        scale = linear.scaled(factors).all
        rows, scaled = (linear.by_channel(w) for w in (linear.weight, scale))
        np.testing.assert_allclose(scaled, rows * factors[:, None], rtol=1e-12)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(700, 500), (3, 200_000), (200_000, 3), (0, 4), (4, 0)])
def test_weights_are_rounded_as_a_whole(axis: int, shape: tuple[int, int]) -> None:
    """What is computed a few rows at a time is what is computed at once."""
    weight = RNG.standard_normal(shape, np.float32)
    weight[:, :1] = weight[-1:] = 0.0
    scale = RNG.uniform(0.5, 2.0, (shape[0], 1) if axis == 0 else (shape[1],))
    exact = weight.astype(np.float64) * scale
    made = narrowed(product(weight, scale), float16, weight, axis=axis)
    np.testing.assert_array_equal(made, exact.astype(float16))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("number", "problem"), [(1e6, "beyond"), (1e-6, "lose digits")])
@pytest.mark.parametrize("place", [0, 299])
def test_the_last_channel_is_judged_like_the_first(
    axis: int, number: float, problem: str, place: int
) -> None:
    weight = RNG.uniform(0.5, 1.0, (300, 300)).astype(np.float32)
    scale = np.ones((300, 1) if axis == 0 else 300)
    scale[place] = number
    exact = weight * scale
    with pytest.raises(Unfit, match=problem) as at_once:
        check(exact if axis == 0 else exact.T, float16)
    with pytest.raises(Unfit) as in_parts:
        narrowed(product(weight, scale), float16, axis=axis)
    assert str(in_parts.value) == str(at_once.value)
    with pytest.raises(Unfit):
        narrowed(product(weight, scale), float32, axis=axis, also=(float16,))
