"""What the passes prove about the numbers of tensors, and which constants half precision keeps."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.ir.dtypes import DType, bfloat16, float16
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops import elementwise as ew
from tercet.runtime.ops import reduce as red
from tercet.runtime.ops.gather import OneHot
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.norm import LayerNormalization, Softmax
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.ops.signal import DFT
from tercet.runtime.passes.half.half_forms import fits
from tercet.runtime.passes.half.range_rules import ranges_of
from tercet.runtime.passes.half.ranges import of_constant

from .graphs import Build, apply, make, normal
from .graphs import run as run_in
from .test_half_range import folded, full, resized

ROOT = np.sqrt(2)
CONSTANTS = {
    "ordinary": (normal(100), True),
    "overflow": (full(7e4, 1), False),
    "infinity": (full(-np.inf, 3), True),
    "vanishes": (full(1e-12, 1), False),
    "loses digits": (normal(100) * np.float32(1e-7), False),
    "a few vanish": (np.append(normal(100), np.float32(1e-12)), True),
    "next to 1": (full(0.99999, 1), False),
    "whole": (np.arange(2048, dtype=np.float32), True),
    "whole, too many digits": (np.arange(4096, dtype=np.float32), False),
    "empty": (full(0, 0), True),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name: str) -> None:
    data, expected = CONSTANTS[name]
    assert fits(data, float16, of_constant(data)) == expected


@pytest.mark.parametrize("half", [float16, bfloat16], ids=str)
def test_constants_of_any_size_are_judged_by_their_error(half: DType) -> None:
    numbers = np.random.default_rng(3).standard_normal(300)
    for exponent in np.arange(-34, 22, 0.25):
        data = (numbers * 2.0**exponent).astype(np.float32)
        with np.errstate(all="ignore"):
            narrow = data.astype(half).astype(np.float64)
            lost = np.linalg.norm(narrow - data) / np.linalg.norm(data.astype(np.float64))
        expected = bool(np.isfinite(narrow).all()) and lost <= 2.0**-7
        assert fits(data, half, of_constant(data)) == expected, exponent


def test_a_divisor_must_not_become_zero() -> None:
    data = np.append(normal(100), np.float32(1e-12))
    assert not fits(data, float16, of_constant(data), divides=True)


def features(g: Graph, x: Value) -> Value:
    """Features of a Performer: x less half of its square and its maximum, exponentiated."""
    square = apply(g, ew.Div(), apply(g, red.ReduceSumSquare(), x, np.array([-1])), full(2.0))
    below = apply(g, ew.Sub(), apply(g, ew.Sub(), x, square), apply(g, red.ReduceMax(), x))
    return apply(g, ew.Exp(), below)


def transformed(g: Graph, x: Value, op: DFT, length: int | None = None) -> Value:
    """Transform columns of pairs of numbers."""
    pairs = apply(g, Reshape(), x, np.array([-1, 8, 4, 2]))
    sizes = [None if length is None else np.array(length), np.array(1)]
    return apply(g, op, pairs, *sizes)


BOUNDS: dict[str, tuple[Build, float, float]] = {
    "sigmoid": (lambda g, x: apply(g, ew.Sigmoid(), x), 0, 1),
    "exp below": (
        lambda g, x: apply(g, ew.Exp(), apply(g, ew.Sub(), x, apply(g, red.ReduceMax(), x))),
        0,
        1,
    ),
    "exp below of another row": (
        lambda g, x: apply(g, ew.Sub(), x, apply(g, red.ReduceMax(keepdims=0), x, np.array([-1]))),
        -np.inf,
        np.inf,
    ),
    "random features": (lambda g, x: features(g, x), 0, 1),
    "one hot": (
        lambda g, x: apply(
            g, OneHot(), apply(g, red.ArgMax(), x), np.array(8), np.array([-1, 3], np.float32)
        ),
        -1,
        3,
    ),
    "divided": (lambda g, x: apply(g, ew.Div(), apply(g, ew.Abs(), x), full(2.0)), 0, np.inf),
    "clip": (lambda g, x: apply(g, ew.Clip(), x, full(-3.0), full(6.0)), -3, 6),
    "abs": (lambda g, x: apply(g, ew.Add(), apply(g, ew.Abs(), x), full(2.0)), 2, np.inf),
    "quotient": (
        lambda g, x: apply(
            g, ew.Div(), apply(g, ew.Tanh(), x), apply(g, ew.Add(), apply(g, ew.Abs(), x), full(2))
        ),
        -0.5,
        0.5,
    ),
    "product": (
        lambda g, x: apply(g, ew.Mul(), apply(g, ew.Tanh(), x), full(-8.0)),
        -8,
        8,
    ),
    "resized": (lambda g, x: resized(g, apply(g, ew.Sigmoid(), x), mode="linear"), 0, 1),
    "resized beyond": (
        lambda g, x: resized(g, apply(g, ew.Tanh(), x), mode="cubic"),
        -np.inf,
        np.inf,
    ),
    "folded": (lambda g, x: folded(g, apply(g, ew.Tanh(), x)), -4, 4),
    "weighted": (
        lambda g, x: apply(g, MatMul(), apply(g, Softmax(), x), apply(g, ew.Tanh(), x)),
        -1,
        1,
    ),
    "weighted along another axis": (
        lambda g, x: apply(
            g,
            MatMul(),
            apply(g, Transpose(perm=(1, 0)), apply(g, Softmax(axis=0), x)),
            apply(g, ew.Tanh(), x),
        ),
        -1,
        1,
    ),
    "transposed weights": (
        lambda g, x: apply(
            g,
            MatMul(),
            apply(g, Transpose(perm=(1, 0)), apply(g, Softmax(axis=1), x)),
            apply(g, ew.Tanh(), x),
        ),
        -8,
        8,
    ),
    "a transposed number": (
        lambda g, x: apply(
            g, Transpose(), apply(g, red.ReduceMean(keepdims=0), apply(g, ew.Tanh(), x))
        ),
        -1,
        1,
    ),
    "spectrum": (lambda g, x: transformed(g, apply(g, ew.Tanh(), x), DFT()), -8 * ROOT, 8 * ROOT),
    "padded spectrum": (
        lambda g, x: transformed(g, apply(g, ew.Tanh(), x), DFT(), 20),
        -20 * ROOT,
        20 * ROOT,
    ),
    "signal": (
        lambda g, x: transformed(g, apply(g, ew.Tanh(), x), DFT(inverse=1)),
        -ROOT,
        ROOT,
    ),
    "layer": (
        lambda g, x: apply(g, LayerNormalization(), x, full(1, 8)),
        -np.inf,
        np.inf,
    ),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_what_is_proved(name: str) -> None:
    build, low, high = BOUNDS[name]
    graph = make(build, (8, 8))
    found = ranges_of(graph)[graph.outputs["y"]]
    assert (found.low, found.high) == (low, high)
    y = run_in(graph, normal(8, 8) * np.float32(5), np.float64)
    assert low - 1e-9 <= y.min() <= y.max() <= high + 1e-9


@pytest.mark.parametrize("inverse", [0, 1])
def test_sizes_of_spectra(inverse: int) -> None:
    """Those of noise, by which half precision judges layers behind long convolutions (S4)."""
    graph = make(lambda g, x: apply(g, DFT(inverse=inverse), x, None, np.array(1)), (3, 512, 2))
    y = run_in(graph, normal(3, 512, 2), np.float64)
    expected = ranges_of(graph)[graph.outputs["y"]].size / ranges_of(graph)[graph.inputs[0]].size
    assert 0.8 < np.sqrt((y**2).mean()) / expected < 1.25
