"""Recipes without a GPU: a device that only remembers what it would have to compile."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.step import KernelStep
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.operands import Packed
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import H200, Target
from tercet.runtime.control.bounded_outputs import bounded
from tercet.runtime.ir.dtypes import DType, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer, specialise
from tercet.runtime.ir.op import OPERATORS, Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.options import Options
from tercet.runtime.passes import STATIC_PASSES, optimise
from tercet.runtime.plan.host import HOST
from tercet.runtime.plan.layout import lay_out
from tercet.runtime.plan.partition import obstacle
from tercet.runtime.plan.rows import Layout
from tercet.runtime.plan.weights import WeightStore
from tercet.runtime.session.model import Model

#: Numbers that `normal` draws: a prime, so that neighbouring rows are different ones.
DRAWN = 262_139


@dataclass
class DryCompiler:
    """Remembers sources instead of compiling them."""

    target: Target = H200
    sources: dict[KernelSource, None] = field(default_factory=dict)

    def submit(self, source: KernelSource) -> Future[Any]:
        self.sources[source] = None
        return Future()


@dataclass(eq=False)
class DryDevice:
    """A GPU that cannot do anything."""

    name: str = "cuda:0"
    compiler: DryCompiler = field(default_factory=DryCompiler)


def apply(graph: Graph, op: Op, *inputs: Value | Array) -> Value:
    """Return the result of a new node; arrays are constants."""
    values = [v if isinstance(v, Value) else graph.constant(v) for v in inputs]
    return graph.insert(op, values).output


def single(
    operator: str,
    inputs: Sequence[Any],
    constant: tuple[int, ...] = (),
    outputs: int = 1,
    domain: str = "",
    **attributes: Any,
) -> Graph:
    """Return a graph of one node; inputs of these positions are constants."""
    graph = Graph(operator)
    values = [
        None
        if data is None
        else graph.constant(data, f"c{i}")
        if i in constant
        else graph.add_input(f"x{i}", TensorType(data.dtype, data.shape))
        for i, data in enumerate(inputs)
    ]
    node = graph.insert(OPERATORS[domain, operator](**attributes), values, outputs, name=operator)
    graph.set_outputs({value.name: value for value in node.outputs})
    infer(graph)
    return graph


def dry_backend(device: DryDevice | None = None) -> Any:
    """Return the cuda backend on a device that cannot do anything."""
    stand_in: Any = device or DryDevice()
    return CudaBackend(stand_in)


def planned(graph: Graph, device: DryDevice | None = None, **options: Any) -> Layout:
    """Lay out a graph of static shapes for the cuda backend alone, or a node within bounds."""
    device = device or DryDevice()
    if len(graph.nodes) == 1 and obstacle(graph.nodes[0]):
        graph = bounded(graph.nodes[0]) or graph
    layout, _ = lay_out(graph, [dry_backend(device)], Options(**options), stores(device))
    return layout


def planned_model(
    model: Model, device: DryDevice, sizes: Mapping[str, int] = MappingProxyType({})
) -> Layout:
    """Lay out a loaded model with its own shapes, symbolic dimensions of these sizes, or 1."""

    def size(dim: int | str | None) -> int:
        return dim if isinstance(dim, int) else sizes.get(dim or "", 1)

    types = {
        info.name: TensorType(info.dtype, tuple(map(size, info.shape)))
        for info in model.inputs
        if info.dtype is not None and info.shape is not None
    }
    graph = specialise(model.graph, types)
    optimise(graph, STATIC_PASSES, model.options, model._resources.evaluate, model.rewrites.copy())
    return planned(graph, device)


def stores(device: DryDevice) -> dict[Any, WeightStore]:
    return {device: WeightStore(device), HOST: WeightStore(HOST)}  # type: ignore[arg-type]


def launches(layout: Layout) -> list[Launch]:
    """Return every launch of a plan, in order; plans are kept, so what packs can be pickled."""
    found = [
        launch
        for row in layout.rows
        if isinstance(row.step, KernelStep)
        for launch in row.step.launches
    ]
    for operand in (operand for launch in found for operand in launch.operands):
        assert not isinstance(operand, Packed) or pickle.dumps(operand.pack)
    return found


def files_of(graph: Graph) -> list[str]:
    """Return the file of every launch of a graph's plan, in order."""
    return [launch.source.file for launch in launches(planned(graph))]


def entries_of(graph: Graph, device: DryDevice | None = None, **options: Any) -> list[str]:
    """Return the entry point of every launch of a graph's plan, in order; see `planned`."""
    return [launch.entry for launch in launches(planned(graph, device, **options))]


def compiled_files(backend: CudaBackend) -> set[str]:
    """Return the files of the kernels that a backend has compiled."""
    compiler: Any = backend.device.compiler
    return {source.file for source in compiler.sources}


def normal(
    *shape: int,
    dtype: DType = float32,
    scale: float = 1,
    draw: np.random.Generator | None = None,
) -> Array:
    """Return normal numbers; of many, `DRAWN` repeatedly.

    Args:
        shape: of the array.
        dtype: of the array.
        scale: the standard deviation.
        draw: draws them; if None, they are the same every time.
    """
    count = min(prod(shape), DRAWN)
    drawn = _same_numbers(sum(shape), count) if draw is None else _numbers(draw, count)
    if scale != 1:
        drawn = drawn * np.float32(scale)
    return np.resize(drawn.astype(dtype, copy=False), shape)


def _numbers(draw: np.random.Generator, count: int) -> Array:
    return draw.standard_normal(count).astype(np.float32)


@lru_cache(maxsize=64)
def _same_numbers(seed: int, count: int) -> Array:
    return _numbers(np.random.default_rng(seed), count)


class Net:
    """A graph and what it is fed: normal numbers, times a factor."""

    def __init__(self, scale: float = 0.5) -> None:
        self.graph, self.feeds, self.scale = Graph("net"), dict[str, Array](), scale

    def input(self, *dims: int, dtype: DType = float32) -> Value:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = normal(*dims, scale=self.scale).astype(dtype)
        return self.graph.add_input(name, TensorType(dtype, dims))

    def apply(self, op: Op, *inputs: Value | Array) -> Value:
        made = apply(self.graph, op, *inputs)
        infer(self.graph)
        return made

    def outputs(self, *values: Value) -> Graph:
        """Make these the results, named y0, y1, ..., and return the graph."""
        self.graph.set_outputs({f"y{i}": value for i, value in enumerate(values)})
        infer(self.graph)
        return self.graph
