"""Rows divided by their length or mean: found in every spelling, one kernel, and its results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Clip, Div, Max, Mul
from tercet.runtime.ops.reduce import ReduceL2, ReduceMean, ReduceSum

from .cubins import all_compile
from .dry import apply, launches, planned
from .emulator import needs_compiler
from .samples import Sample, compare

ROWS = np.random.default_rng(0).standard_normal((2, 3, 5, 40)).astype(np.float32)
Step = Callable[[Graph, Value], Value]


def number(of: float) -> Array:
    return np.array(of, np.float32)


def unit(
    graph: Graph, x: Value, floor: float = 1e-12, op: Op | None = None, axis: int = -1
) -> Value:
    length = apply(graph, ReduceL2(keepdims=1), x, np.array([axis]))
    return apply(graph, Div(), x, apply(graph, op or Clip(), length, number(floor)))


def between(graph: Graph, x: Value, limit: Array) -> Value:
    """Return rows by a number, which is a constant of the graph that is there once."""
    length, once = apply(graph, ReduceL2(), x, np.array([-1])), graph.constant(limit)
    return apply(graph, Div(), x, apply(graph, Clip(), length, once, once))


def by_mean(graph: Graph, x: Value, *, first: bool = False) -> Value:
    """What channels are beside their mean, as in ConvNeXt V2."""
    mean = apply(graph, ReduceMean(), x, np.array([-1]))
    addends = (number(0.1), mean) if first else (mean, number(0.1))
    return apply(graph, Div(), x, apply(graph, Add(), *addends))


def by_sum(graph: Graph, x: Value, floor: float = 0.0) -> Value:
    """Weights that add up to one again."""
    total = apply(graph, ReduceSum(), x, np.array([-1]))
    return apply(graph, Div(), x, apply(graph, Add(), total, number(floor)) if floor else total)


def narrow_by_sum(graph: Graph, x: Value) -> Value:
    return apply(graph, Cast(to=float16), by_sum(graph, apply(graph, Cast(to=float32), x)))


def measured(graph: Graph, x: Value, op: Op, factor: Op, number_of: float) -> Value:
    """Rows by a multiple of their length."""
    length = apply(graph, ReduceL2(), x, np.array([-1]))
    limit = apply(graph, op, apply(graph, factor, length, number(number_of)), number(0.1))
    return apply(graph, Div(), x, limit)


def narrow(graph: Graph, x: Value) -> Value:
    """What is left of it in a half precision network."""
    wide = apply(graph, Cast(to=float32), x)
    return apply(graph, Cast(to=float16), unit(graph, wide))


SPELLINGS: dict[str, Step] = {
    "Clip": unit,
    "Max": lambda g, x: unit(g, x, op=Max()),
    "another floor": lambda g, x: unit(g, x, floor=4.0),
    "its length": lambda g, x: apply(g, Div(), x, apply(g, ReduceL2(), x, np.array([-1]))),
    "scaled": lambda g, x: apply(g, Mul(), unit(g, x), number(10)),
    "halves": narrow,
    "by the mean": by_mean,
    "a sum": lambda g, x: measured(g, x, Add(), Mul(), 40**-0.5),
    "of a part": lambda g, x: measured(g, x, Clip(), Div(), 40**0.5),
    "by the sum, not mean": by_sum,
    "by the sum and a mean floor": lambda g, x: by_sum(g, x, 0.5),
    "halves by the mean times a number": narrow_by_sum,
    "by the mean, commuted": lambda g, x: by_mean(g, x, first=True),
}
OTHERS: dict[str, Step] = {
    "another axis": lambda g, x: unit(g, x, axis=1),
    "between two equal numbers": lambda g, x: between(g, x, number(0.5)),
    "a floor of more axes": lambda g, x: apply(
        g,
        Div(),
        x,
        apply(g, Max(), apply(g, ReduceL2(), x, np.array([-1])), np.full((1,) * 5, 4, np.float32)),
    ),
    "the sum of another axis": lambda g, x: apply(
        g, Div(), x, apply(g, ReduceSum(), x, np.array([1]))
    ),
    "no floor": lambda g, x: unit(g, x, floor=0.0),
    "of something else": lambda g, x: apply(
        g,
        Div(),
        x,
        apply(g, Clip(), apply(g, ReduceL2(), apply(g, Mul(), x, x), np.array([-1])), number(1)),
    ),
}


def sample(build: Step, data: Array) -> Sample:
    graph = Graph("unit")
    x = graph.add_input("x", TensorType(data.dtype, data.shape))
    graph.set_outputs({"y": build(graph, x)})
    infer(graph)
    return Sample(graph, {"x": data})


def rows_of(name: str) -> Array:
    rows = np.abs(ROWS) if "mean" in name else ROWS
    return rows.astype(float16) if "halves" in name else rows


@pytest.mark.parametrize("name", SPELLINGS)
def test_one_kernel(name: str) -> None:
    found = launches(planned(sample(SPELLINGS[name], rows_of(name)).graph))
    assert [launch.entry for launch in found] == ["normalize_rows"]


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_alone(name: str) -> None:
    found = launches(planned(sample(OTHERS[name], ROWS).graph))
    assert "normalize_rows" not in [launch.entry for launch in found]


def test_constants_of_channels_are_a_kernel_of_their_own() -> None:
    def build(graph: Graph, x: Value) -> Value:
        return apply(graph, Mul(), unit(graph, x), ROWS[:1, :, :1, :1])

    found = launches(planned(sample(build, ROWS).graph))
    assert [launch.entry for launch in found] == ["normalize_rows", "elementwise"]


@needs_compiler
@pytest.mark.parametrize("name", SPELLINGS)
def test_results(name: str, emulated: CudaBackend) -> None:
    compare(sample(SPELLINGS[name], rows_of(name)), emulated)


@needs_compiler
def test_a_floor_of_more_axes_adds_them(emulated: CudaBackend) -> None:
    compare(sample(OTHERS["a floor of more axes"], ROWS), emulated)


@needs_compiler
def test_what_is_0_or_no_number(emulated: CudaBackend) -> None:
    data = ROWS.copy()
    data[0, 0, 0] = 0
    data[0, 0, 1] = 1e-15
    data[0, 0, 2, 3] = np.nan
    compare(sample(unit, data), emulated)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    found = (sample(SPELLINGS[name], rows_of(name)).graph for name in ("Clip", "halves"))
    sources = (launch.source for graph in found for launch in launches(planned(graph)))
    all_compile(sources, target, cache)
