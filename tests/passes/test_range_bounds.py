"""No element is outside of the range that is proved for it, whatever the range of the input is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from tercet.runtime.ir import dtypes
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ops import elementwise as ew
from tercet.runtime.ops import reduce
from tercet.runtime.ops.conv import Col2Im
from tercet.runtime.ops.gather import ScatterND
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.movement import Pad
from tercet.runtime.ops.norm import LRN, Softmax
from tercet.runtime.ops.pool import AveragePool, MaxPool
from tercet.runtime.ops.recurrent import GRU, LSTM
from tercet.runtime.ops.resize import Resize
from tercet.runtime.ops.shape import Reshape, Trilu
from tercet.runtime.passes.half.range_rules import ranges_of
from tercet.runtime.passes.half.ranges import Ranges, ValueRange

from .graphs import apply, make, normal, run

SHAPE = (1, 2, 4, 4)
ENDS = (-300.0, -3.0, -0.5, 0.0, 0.25, 1.0, 5.0, 90.0)
Build = Callable[[Graph, Value], Value]


def number(x: float) -> np.ndarray:
    return np.array(x, np.float32)


def cast(*types: np.dtype) -> Build:
    def build(g: Graph, x: Value) -> Value:
        for dtype in (*types, dtypes.float32):
            x = apply(g, ew.Cast(to=dtype), x)
        return x

    return build


def weighted(g: Graph, x: Value) -> Value:
    """Shares of some of a row, whose sum is less than 1."""
    some = apply(g, ew.Where(), np.array([True, False, True, False]), apply(g, Softmax(), x), NONE)
    return apply(g, MatMul(), some, x)


def recurrent(op: GRU | LSTM, place: int, weight: float) -> Build:
    """From states that are the input itself."""

    def build(g: Graph, x: Value) -> Value:
        rows = apply(g, Reshape(), x, np.array([8, 1, 4]))
        states = [apply(g, reduce.ReduceMax(), rows, np.array([0]))] * (op.gates - 2)
        w = g.constant(np.full((1, op.gates * 4, 4), weight, np.float32))
        made = g.insert(op, [rows, w, w, None, None, *states[:2]], op.outputs[1] or 1)
        return made.outputs[place]

    return build


def folded(g: Graph, x: Value) -> Value:
    blocks = apply(g, Reshape(), x, np.array([1, 8, 4]))
    return apply(g, Col2Im(), blocks, np.array([3, 3]), np.array([2, 2]))


NONE = number(0)
LAST = np.array([-1])
AROUND = np.array([0, 0, 1, 1, 0, 0, 1, 1])
BUILDS: dict[str, Build] = {
    "floor": lambda g, x: apply(g, ew.Floor(), x),
    "ceil": lambda g, x: apply(g, ew.Ceil(), x),
    "round": lambda g, x: apply(g, ew.Round(), x),
    "mod": lambda g, x: apply(g, ew.Mod(fmod=1), x, number(0.7)),
    "atan": lambda g, x: apply(g, ew.Atan(), x),
    "softplus": lambda g, x: apply(g, ew.Softplus(), x),
    "threshold": lambda g, x: apply(g, ew.ThresholdedRelu(alpha=0.3), x),
    "threshold below 0": lambda g, x: apply(g, ew.ThresholdedRelu(alpha=-2.0), x),
    "leaky": lambda g, x: apply(g, ew.LeakyRelu(alpha=-2.0), x),
    "slopes": lambda g, x: apply(g, ew.PRelu(), x, np.array([-1, 3], np.float32)[:, None, None]),
    "inverse": lambda g, x: apply(g, ew.Pow(), x, number(-1)),
    "inverse square": lambda g, x: apply(g, ew.Pow(), x, number(-2)),
    "cube": lambda g, x: apply(g, ew.Pow(), x, number(3)),
    "computed limits": lambda g, x: apply(
        g, ew.Clip(), x, apply(g, reduce.ReduceMax(keepdims=0), x), number(4)
    ),
    "limits in the wrong order": lambda g, x: apply(g, ew.Clip(), x, number(1), number(-1)),
    "bytes": cast(dtypes.uint8),
    "bits": cast(dtypes.bool_),
    "bytes of bytes": cast(dtypes.int8, dtypes.uint8),
    "integers": cast(dtypes.int32, dtypes.int64),
    "triangle": lambda g, x: apply(g, Trilu(), x),
    "padded": lambda g, x: apply(g, Pad(), x, AROUND + 1),
    "padded by a number": lambda g, x: apply(g, Pad(), x, AROUND + 1, number(-9)),
    "averages": lambda g, x: apply(
        g, AveragePool(kernel_shape=(2, 2), pads=(1, 1, 1, 1), count_include_pad=1), x
    ),
    "maxima": lambda g, x: apply(g, MaxPool(kernel_shape=(2, 2), pads=(1, 1, 1, 1)), x),
    "normalized": lambda g, x: apply(g, LRN(size=3, alpha=0.5, bias=0.1), x),
    "amplified": lambda g, x: apply(g, LRN(size=3, alpha=0.5, beta=-0.5), x),
    "log of a sum": lambda g, x: apply(g, reduce.ReduceLogSum(), x, LAST),
    "norm": lambda g, x: apply(g, reduce.ReduceL2(), x, LAST),
    "sum": lambda g, x: apply(g, reduce.ReduceSum(), x, LAST),
    "updates": lambda g, x: apply(
        g, ScatterND(reduction="add"), NONE.reshape(1), np.zeros((32, 1), np.int64), flat(g, x)
    ),
    "resized": lambda g, x: apply(
        g, Resize(mode="linear"), x, None, np.array([1, 1, 1.5, 2], np.float32)
    ),
    "weighted": weighted,
    "states": recurrent(GRU(hidden_size=4), 0, 0.1),
    "states of cells": recurrent(LSTM(hidden_size=4), 1, 9),
    "cells": recurrent(LSTM(hidden_size=4), 2, 9),
    "cells that fall": recurrent(LSTM(hidden_size=4), 2, -9),
    "folded": folded,
    "layer of no negative weights": lambda g, x: apply(
        g, Gemm(alpha=0.5), flat_rows(g, x), np.abs(normal(4, 3)), np.array([2, 5, 3], np.float32)
    ),
}


def flat_rows(g: Graph, x: Value) -> Value:
    return apply(g, Reshape(), x, np.array([-1, 4]))


def flat(g: Graph, x: Value) -> Value:
    return apply(g, Reshape(), x, np.array([-1]))


@pytest.mark.parametrize("name", BUILDS)
def test_no_element_is_outside(name: str) -> None:
    graph = make(BUILDS[name], SHAPE)
    for low, high in product(ENDS, ENDS):
        if low > high:
            continue
        x = np.linspace(low, high, 32, dtype=np.float32).reshape(SHAPE)
        ranges = Ranges()
        ranges[graph.inputs[0]] = ValueRange(max(-low, high), low, high)
        found = ranges_of(graph, ranges)[graph.outputs["y"]]
        with np.errstate(all="ignore"):
            y = run(graph, x, np.float32)
        y = y[~np.isnan(y)]
        doubt = 1e-4 * (1 + np.abs(y).max(initial=0))
        assert found.low <= found.high
        assert ((y >= found.low - doubt) & (y <= found.high + doubt)).all(), (low, high, found, y)
