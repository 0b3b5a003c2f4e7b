"""Graphs to rewrite, and what they compute before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from onnx import ModelProto

import tercet
from tercet.backends import open_backends
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Dim, TensorType
from tercet.runtime.ir.verify import verify
from tercet.runtime.ops.norm import BatchNormalization
from tercet.runtime.options import Options, Precision
from tercet.runtime.passes import SYMBOLIC_PASSES, Rewrites, optimise
from tercet.runtime.passes.driver import Context, Pass
from tercet.runtime.session.model import Model

from ..kept import keep
from ..randomness import restarting

RNG = restarting(7)
Build = Callable[[Graph, Value], Value]


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def apply(graph: Graph, op, *inputs: Value | np.ndarray | None, outputs: int = 1) -> Value:
    values = [graph.constant(v) if isinstance(v, np.ndarray) else v for v in inputs]
    return graph.insert(op, values, outputs).output


def batchnorm(graph: Graph, x: Value, channels: int, **attributes: Any) -> Value:
    scale, shift, mean = normal(channels), normal(channels), normal(channels)
    var = np.abs(normal(channels)) + 0.1
    return apply(graph, BatchNormalization(**attributes), x, scale, shift, mean, var)


def make(build: Build, shape: tuple[Dim, ...]) -> Graph:
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, shape))
    graph.set_outputs({"y": build(graph, x)})
    infer(graph)
    return graph


def optimised(
    graph: Graph, passes: tuple[Pass, ...] = SYMBOLIC_PASSES, /, **options: Any
) -> tuple[Graph, Rewrites]:
    """Return a copy of a graph behind some passes, and what these did."""
    keep(graph)
    copy, log = graph.clone(), Rewrites()
    optimise(copy, passes, Options(**options), evaluate, log)
    verify(copy)
    infer(copy)
    return copy, log


def passed(
    graph: Graph, run: Callable[[Graph, Context], Iterator[str]], precision: Precision
) -> tuple[Graph, list[str]]:
    """Return a copy of a graph behind one pass, and what this said."""
    keep(graph)
    copy = graph.clone()
    said = list(run(copy, Context(Options(precision=precision), evaluate)))
    verify(copy)
    infer(copy)
    return copy, said


def optimised_file(proto: ModelProto) -> tuple[list[str], Rewrites]:
    """Return the kinds of a file's nodes behind the passes, and what these did."""
    with tercet.load(proto) as loaded:
        graph, log = optimised(loaded.imported)
    return [node.kind for node in graph.nodes], log


def run(graph: Graph, x: np.ndarray, dtype: type) -> np.ndarray:
    """Run a graph node by node in `dtype`."""
    known: dict[Value, np.ndarray] = {graph.inputs[0]: x.astype(dtype)}

    def elements(value: Value | None) -> np.ndarray | None:
        if value is None:
            return None
        if value in known:
            return known[value]
        assert value.data is not None
        return value.data.astype(dtype) if value.data.dtype == np.float32 else value.data

    for node in graph.nodes:
        results = evaluate(node.op, [elements(v) for v in node.inputs], len(node.outputs))
        assert results is not None, node
        known.update(zip(node.outputs, results, strict=True))
    result = elements(graph.outputs["y"])
    assert result is not None
    return result


def results(graph: Graph) -> list[np.ndarray]:
    """Return what a graph computes of equal numbers, as it is."""
    raw = Options(stop_at=0)
    feeds = {v.name: np.ones(v.tensor.dims, np.float32) / 3 for v in graph.inputs}
    with Model(graph.clone(), open_backends("numpy", raw), raw, evaluate) as model:
        return list(model.run(feeds).values())


def kinds(graph: Graph) -> list[str]:
    return [node.kind for node in graph.nodes]


def assert_same(before: Graph, after: Graph, *shape: int, rel: float = 2e-6) -> None:
    x = normal(*(shape or before.inputs[0].tensor.dims))
    exact = run(before, x, np.float64)
    got = run(after, x, np.float32)
    assert got.dtype == np.float32
    assert got.shape == exact.shape
    assert np.linalg.norm(got - exact) <= rel * np.linalg.norm(exact)
