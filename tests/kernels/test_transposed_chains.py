"""Chains of elementwise nodes that read through a Transpose are one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.runtime.ir.dtypes import float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Equal, Mul, Neg, Relu, Sub, Where
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Slice, Transpose
from tercet.runtime.ops.reduce import ReduceMax
from tercet.runtime.ops.shape import Reshape, Squeeze

from .dry import entries_of, normal
from .emulator import needs_compiler
from .samples import Sample, compare

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend


def transposed(graph: Graph, x: Value, *perm: int) -> Value:
    return graph.insert(Transpose(perm=perm), [x]).output


def cast(graph: Graph, x: Value) -> Value:
    """Heads of half precision, as float32."""
    return graph.insert(Cast(to=float32), [transposed(graph, x, 0, 2, 1, 3)]).output


def added(graph: Graph, x: Value) -> Value:
    """A sum with the same elements in order, and a constant of some axes."""
    some = graph.constant(normal(3, 1, 1, 8).astype(float16))
    y = graph.insert(Add(), [transposed(graph, x, 0, 2, 1, 3, 4), x]).output
    return graph.insert(Mul(), [some, graph.insert(Relu(), [y]).output]).output


def square(graph: Graph, x: Value) -> Value:
    """As many elements as before, which must not take their place."""
    y = graph.insert(Neg(), [x]).output
    return graph.insert(Relu(), [transposed(graph, y, 1, 0, 2)]).output


def both(graph: Graph, x: Value) -> Value:
    """Two operands, each in its own order."""
    one, other = transposed(graph, x, 1, 0, 2), transposed(graph, x, 1, 0, 2)
    return graph.insert(Add(), [graph.insert(Neg(), [one]).output, other]).output


def columns(graph: Graph, x: Value) -> Value:
    """Adjacent elements are far apart."""
    return graph.insert(Relu(), [transposed(graph, x, 1, 2, 0)]).output


def behind_a_product(graph: Graph, x: Value) -> Value:
    """The sum belongs to the product."""
    product = graph.insert(MatMul(), [x, graph.constant(normal(8, 8).astype(float16))]).output
    return graph.insert(Add(), [product, transposed(graph, x, 1, 0, 2)]).output


def shared(graph: Graph, x: Value) -> Value:
    """Two nodes of a chain read the same transposed tensor."""
    y = transposed(graph, x, 1, 0, 2)
    return graph.insert(Mul(), [y, graph.insert(Relu(), [y]).output]).output


def stored(graph: Graph, x: Value) -> Value:
    """Rows with a factor each, and a constant of some axes, are stored beside each other."""
    factors = graph.insert(ReduceMax(), [x, graph.constant(np.array([3]))]).output
    y = graph.insert(Mul(), [x, factors]).output
    y = graph.insert(Add(), [y, graph.constant(normal(3, 1, 8).astype(float16))]).output
    rows = graph.constant(np.array([2, 4, 24]))
    return graph.insert(Reshape(), [transposed(graph, y, 0, 2, 1, 3), rows]).output


def rotated(graph: Graph, x: Value) -> Value:
    """A constant with as many axes is in C order, whatever order the other operand is read in."""
    y = graph.insert(Mul(), [x, graph.constant(normal(1, 10, 4).astype(float16))]).output
    return transposed(graph, y, 2, 0, 1)


def corners(graph: Graph, x: Value) -> Value:
    """Boxes with their centres and sizes as corners, as `choose_parts` chooses among them."""
    cuts = [
        graph.insert(Slice(), [x, *(graph.constant(np.array([n])) for n in (i, i + 1, 2))]).output
        for i in range(4)
    ]
    low, high = (
        [graph.insert(op, pair).output for pair in zip(cuts[:2], cuts[2:], strict=True)]
        for op in (Sub(), Add())
    )
    places = graph.constant(np.arange(4).reshape(1, 1, 4))
    y, *others = *high[::-1], *low[::-1]
    for place, value in zip((2, 1, 0), others, strict=True):
        here = graph.insert(Equal(), [places, graph.constant(np.array(place))]).output
        y = graph.insert(Where(), [here, value, y]).output
    return graph.insert(Relu(), [y]).output


def gates(graph: Graph, x: Value) -> Value:
    """Images with a weight per channel each, which are parts of one tensor."""
    sums = list[Value]()
    for i, image in enumerate((normal(2, 8, 16, 8), normal(2, 8, 16, 8))):
        ends = (graph.constant(np.array([n])) for n in (i, i + 1, 1))
        part = graph.insert(Slice(), [x, *ends]).output
        gate = graph.insert(Squeeze(), [part, graph.constant(np.array([1]))]).output
        last = graph.constant(image.astype(np.float16))
        image_of = graph.insert(Relu(), [graph.insert(Neg(), [last]).output]).output
        sums.append(graph.insert(Mul(), [image_of, gate]).output)
    return graph.insert(Add(), sums).output


#: How a graph goes on, the shape of its input, and its kernels.
CHAINS: dict[str, tuple[Callable[[Graph, Value], Value], tuple[int, ...], list[str]]] = {
    "cast": (cast, (2, 5, 3, 16), ["elementwise"]),
    "added": (added, (2, 3, 3, 5, 8), ["elementwise"]),
    "square": (square, (4, 4, 8), ["elementwise"] * 2),
    "both": (both, (4, 3, 8), ["elementwise"]),
    "few columns": (columns, (4, 3, 8), ["elementwise"]),
    "columns": (columns, (128, 3, 512), ["transpose", "elementwise"]),
    "shared": (shared, (4, 3, 8), ["elementwise"]),
    "stored": (stored, (2, 3, 4, 8), ["reduce_chain", "elementwise"]),
    "rotated": (rotated, (2, 10, 4), ["elementwise"]),
    "gates": (gates, (2, 2, 8, 1, 1), ["moved"]),
    "corners": (corners, (3, 7, 4), ["moved"]),
    "product": (behind_a_product, (8, 8, 8), ["copy_strided", "mma"]),
}


def graph_of(name: str) -> Graph:
    """Return the graph of a chain."""
    how, shape, _ = CHAINS[name]
    graph = Graph(name)
    x = graph.add_input("x", TensorType(float16, shape))
    graph.set_outputs({"y": how(graph, x)})
    infer(graph)
    return graph


@pytest.mark.parametrize("name", CHAINS)
def test_kernels(name: str) -> None:
    assert entries_of(graph_of(name)) == CHAINS[name][2]


@needs_compiler
@pytest.mark.parametrize("name", CHAINS)
def test_results(name: str, emulated: CudaBackend) -> None:
    feeds = {"x": normal(*CHAINS[name][1]).astype(np.float16)}
    compare(Sample(graph_of(name), feeds), emulated)
