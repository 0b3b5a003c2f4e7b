"""Two products with a normalization of rows in between: graphs for tests of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tercet.runtime.ir.dtypes import DType, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Add, Gelu
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization

from .dry import normal
from .samples import on_numpy


@dataclass(frozen=True)
class Case:
    """A product, a normalization of its rows of this many terms, and a product behind it.

    Attributes:
        rows: the axes of the rows.
        columns: of the product behind.
        terms: of a row.
        inner: terms of the product in front.
        centred: LayerNormalization, else RMSNormalization.
        shifted: whether it has a shift.
        gemm: Gemms with transposed weights and a factor, else MatMuls.
        ends: whether the rows as they are are a result as well.
        offset: of the rows' elements.
        size: of the scale.
        exponents: of two, of the scale's elements, at most; None for random elements.
        bias: whether biases are added.
        is_read: whether something else reads the normalized rows.
        leads: whether a normalization is in front of the first product.
        follows: whether a third product reads the result.
    """

    rows: tuple[int, ...]
    columns: int = 128
    terms: int = 768
    inner: int = 128
    centred: bool = True
    shifted: bool = True
    gemm: bool = False
    ends: bool = True
    offset: float = 0.0
    size: float = 1.0
    exponents: float | None = None
    bias: bool = True
    is_read: bool = False
    leads: bool = False
    follows: bool = False


def graph_of(case: Case, dtype: DType, stored: DType) -> tuple[Graph, dict[str, Array]]:
    """Return the graph, with constants rounded to `stored`, and its inputs."""
    graph, k, n = Graph(), case.terms, case.columns
    feeds = {
        "x": normal(*case.rows, case.inner),
        "z": normal(*case.rows, k) + np.float32(case.offset),
    }
    feeds = {name: data.astype(stored).astype(dtype) for name, data in feeds.items()}
    x, z = (graph.add_input(name, TensorType(dtype, d.shape)) for name, d in feeds.items())

    def constant(data: Array) -> Value:
        return graph.constant(data.astype(stored).astype(dtype))

    def product(value: Value, terms: int, columns: int) -> Value:
        w = normal(columns, terms) if case.gemm else normal(terms, columns)
        op = Gemm(alpha=0.5, transB=1) if case.gemm else MatMul()
        value = graph.insert(op, [value, constant(w / np.sqrt(terms))]).output
        if case.bias:
            value = graph.insert(Add(), [value, constant(normal(columns))]).output
        return value

    if case.leads:
        x = graph.insert(LayerNormalization(), [x, constant(np.ones(case.inner))]).output
    rows = graph.insert(Add(), [product(x, case.inner, k), z]).output
    if case.exponents is None:
        factors = 1 + normal(k) / 4
    else:
        factors = np.exp2(case.exponents * np.sin(np.arange(k)))
    scale, shift = constant(case.size * factors), constant(normal(k) / 2)
    kind = LayerNormalization if case.centred else RMSNormalization
    norm = graph.insert(kind(), [rows, scale, *([shift] if case.shifted else [])]).output
    value = graph.insert(Gelu(), [product(norm, k, n)]).output
    if case.follows:
        value = product(value, n, 64)
    ends = {"rows": rows} if case.ends else {}
    graph.set_outputs({"y": value, **ends, **({"norm": norm} if case.is_read else {})})
    infer(graph)
    return graph, feeds


def exact_of(case: Case, stored: DType, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the results in float64, of constants rounded to `stored` and these inputs."""
    graph, _ = graph_of(case, float64, stored)
    return on_numpy(graph, feeds)
