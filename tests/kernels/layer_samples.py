"""Layers of rows with few elements: graphs for tests of kernels."""

from __future__ import annotations

from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Gelu, Sin
from tercet.runtime.ops.matmul import MatMul

from .dry import normal
from .samples import Sample


def layer(n: int, k: int, end: str, dtype: DType, rows: tuple[int, ...]) -> Sample:
    """Return a layer with a bias, and what is behind it.

    Args:
        n, k: columns and terms.
        end: "gelu", "residual", "cast" to float16 or else float32, "sine" of such a Cast, or
            nothing.
        dtype: of all that is read.
        rows: the axes of the rows.
    """
    graph = Graph(f"{n}x{k} {dtype.name} {end}")
    feeds = {"x": normal(*rows, k).astype(dtype)}
    value = graph.add_input("x", TensorType(dtype, (*rows, k)))
    weights = graph.constant(normal(k, n).astype(dtype))
    value = graph.insert(MatMul(), [value, weights]).output
    value = graph.insert(Add(), [value, graph.constant(normal(n, 2)[:, 1].astype(dtype))]).output
    if end == "gelu":
        value = graph.insert(Gelu(), [value]).output
    if end == "residual":
        feeds["z"] = normal(*rows, n).astype(dtype)
        other = graph.add_input("z", TensorType(dtype, (*rows, n)))
        value = graph.insert(Add(), [value, other]).output
    if end in ("cast", "sine"):
        other_type = float16 if dtype == float32 else float32
        value = graph.insert(Cast(to=other_type), [value]).output
    if end == "sine":
        value = graph.insert(Sin(), [value]).output
    graph.set_outputs({"y": value})
    infer(graph)
    return Sample(graph, feeds)
