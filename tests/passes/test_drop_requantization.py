"""Integers that are quantized again as they were stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32, int8, int16, uint8
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.movement import Concat, Transpose
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.ops.quantize import DequantizeLinear, QuantizeLinear
from tercet.runtime.ops.shape import Reshape

from .graphs import apply, kinds, optimised

MOVERS: dict[str, list[tuple[Op, Any]]] = {
    "nothing": [],
    "a shape": [(Reshape(), [3, -1])],
    "a transposition": [(Transpose(perm=(0, 2, 1)), None)],
    "several": [(Reshape(), [2, 6]), (Transpose(), None), (Gather(), [4, 0])],
}


def graph_of(
    *steps: tuple[Op, Any],
    scales: tuple[float, float] = (0.5, 0.5),
    zeros: tuple[int | None, int | None] = (3, 3),
    dtypes: tuple[DType, DType] = (uint8, uint8),
    real: DType = float32,
) -> Graph:
    """Return a graph that dequantizes its input, does these steps and quantizes again."""
    graph = Graph()
    x = graph.add_input("x", TensorType(dtypes[0], (2, 3, 2)))

    def numbers(which: int) -> list[np.ndarray | None]:
        zero = zeros[which]
        return [
            np.array(scales[which], real),
            None if zero is None else np.array(zero, dtypes[which]),
        ]

    y: Value = apply(graph, DequantizeLinear(), x, *numbers(0))
    for op, given in steps:
        y = apply(graph, op, y, *([] if given is None else [np.array(given, np.int64)]))
    output = None if zeros[1] is not None else dtypes[1]
    graph.set_outputs({"y": apply(graph, QuantizeLinear(output_dtype=output), y, *numbers(1))})
    infer(graph)
    return graph


def result(graph: Graph) -> np.ndarray:
    """Run a graph on all integers of its dtype, twelve at a time."""
    dtype = graph.inputs[0].tensor.dtype
    numbers = np.arange(256, dtype=np.int64).astype(dtype)
    found = []
    for start in range(0, 252, 12):
        found.append(result_for(graph, numbers[start : start + 12].reshape(2, 3, 2)))
    return np.stack(found)


def result_for(graph: Graph, *inputs: np.ndarray) -> np.ndarray:
    """Run a graph on some inputs."""
    known: dict[Any, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        given = [None if v is None else known.get(v, v.data) for v in node.inputs]
        made = evaluate(node.op, given, 1)
        assert made is not None
        known[node.output] = made[0]
    return known[graph.outputs["y"]]


@pytest.mark.parametrize("dtype", [uint8, int8], ids=str)
@pytest.mark.parametrize("name", MOVERS)
def test_integers_are_moved(name: str, dtype: DType) -> None:
    graph = graph_of(*MOVERS[name], (Reshape(), [-1]), dtypes=(dtype, dtype), scales=(0.37, 0.37))
    after, log = optimised(graph)
    assert log.counts["drop_requantization"] == 1
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(kinds(after))
    np.testing.assert_array_equal(result(after), result(graph))


KEPT: dict[str, Graph] = {
    "other scales": graph_of(scales=(0.5, 0.25)),
    "other zero points": graph_of(zeros=(3, 4)),
    "another dtype": graph_of(zeros=(0, 0), dtypes=(uint8, int8)),
    "16 bits": graph_of(dtypes=(int16, int16)),
    "float16": graph_of(real=float16),
    "a computation": graph_of((Relu(), None)),
    "a scale of 0": graph_of(scales=(0.0, 0.0)),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_stays(name: str) -> None:
    after, log = optimised(KEPT[name])
    assert "drop_requantization" not in log.counts
    assert kinds(after)[-1] == "QuantizeLinear"


def test_a_zero_point_that_is_left_out_is_zero() -> None:
    _, log = optimised(graph_of((Reshape(), [12]), zeros=(0, None)))
    assert log.counts["drop_requantization"] == 1


def test_what_a_concat_joins_is_quantized_part_by_part() -> None:
    graph = Graph()
    x, y = (graph.add_input(name, TensorType(uint8, (2, 3, 2))) for name in "xy")
    numbers = [(np.array(scale, float32), np.array(3, uint8)) for scale in (0.5, 0.3)]
    parts = [
        apply(graph, DequantizeLinear(), part, *own)
        for part, own in zip((x, y), numbers, strict=True)
    ]
    joined = apply(graph, Concat(axis=1), *parts)
    graph.set_outputs({"y": apply(graph, QuantizeLinear(), joined, *numbers[0])})
    infer(graph)
    after, log = optimised(graph)
    assert log.counts["drop_requantization"] == 2
    assert sorted(kinds(after)) == ["Concat", "DequantizeLinear", "QuantizeLinear"]
    given = np.random.default_rng(3).integers(0, 256, (2, 2, 3, 2)).astype(uint8)
    np.testing.assert_array_equal(result_for(after, *given), result_for(graph, *given))


@pytest.mark.parametrize(
    ("scale", "integers", "count"), [(0.3, True, 1), (0.3, False, 0), (-0.3, True, 0)]
)
def test_the_greatest_of_a_window_is_one_of_integers(
    scale: float, integers: bool, count: int
) -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(int8, (2, 3, 7)))
    numbers = np.array(scale, float32), np.array(-5, int8)
    y = apply(graph, DequantizeLinear(), x, *numbers)
    y = apply(graph, MaxPool(kernel_shape=(3,), strides=(2,), pads=(1, 1)), y)
    graph.set_outputs({"y": apply(graph, QuantizeLinear(), y, *numbers)})
    infer(graph)
    after, log = optimised(graph, integers=integers)
    assert log.counts.get("drop_requantization", 0) == count
    given = np.random.default_rng(4).integers(-128, 128, (2, 3, 7)).astype(int8)
    np.testing.assert_array_equal(result_for(after, given), result_for(graph, given))
