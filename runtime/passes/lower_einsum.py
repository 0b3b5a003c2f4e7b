"""Rewrites Einsum of two tensors as a matrix product, for which backends have fast kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from ..ir.dtypes import FLOATS
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.types import Array, Dim, TensorType
from ..ops.elementwise import Add
from ..ops.matmul import Einsum, MatMul, einsum_terms
from ..ops.movement import Transpose
from ..ops.shape import Reshape
from .driver import Context
from .editing import Builder
from .pattern import pairs


@dataclass(frozen=True, slots=True)
class _EinsumProduct:
    """An Einsum as a product a @ b.

    Attributes:
        a, b: the operands.
        of_a, of_b: the letters of their axes.
        stack: batch letters: of both operands and the result.
        rows: letters of a and the result only.
        columns: letters of b and the result only.
        summed: letters of both operands only.
        result: the letters of the result.
        sizes: by letter.
    """

    a: Value
    b: Value
    of_a: str
    of_b: str
    stack: str
    rows: str
    columns: str
    summed: str
    result: str
    sizes: dict[str, Dim]

    def known(self, letters: str) -> list[int] | None:
        """Return the sizes of letters if all of them are known."""
        found = [size for letter in letters if isinstance(size := self.sizes[letter], int)]
        return found if len(found) == len(letters) else None


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace Einsum by MatMul with the necessary Transposes and Reshapes.

    Every letter denotes one axis of an operand and one of the other or the result. Batched products
    have one axis each of columns and summed terms; products with a matrix may have several.
    """
    for node in list(graph.nodes):
        if node not in graph or not isinstance(node.op, Einsum):
            continue
        found = _read(node, node.op)
        if found is None:
            continue
        new = _rewrite(graph, node, found)
        yield f"MatMul '{new.name}' computes Einsum '{node.name}' ({node.op.equation})"


def _read(node: Node, op: Einsum) -> _EinsumProduct | None:
    terms, result = einsum_terms(op.equation)
    if len(terms) != 2 or len(node.inputs) != 2:
        return None
    a, b = node.inputs
    types = [value.type for value in node.inputs if value is not None]
    if a is None or b is None or "." in op.equation.split("->")[0]:
        return None
    sizes: dict[str, Dim] = {}
    for term, type_ in zip(terms, types, strict=True):
        if not isinstance(type_, TensorType) or type_.dtype not in FLOATS or type_.shape is None:
            return None
        if len(set(term)) != len(term) or len(term) != len(type_.shape):
            return None
        for letter, size in zip(term, type_.shape, strict=True):
            if sizes.setdefault(letter, size) != size or size == 0:  # 1 would broadcast
                return None
    left, right = terms
    found = _parts(a, b, left, right, result, sizes)
    is_swapped = found is None or result.endswith(found.columns + found.rows) or a.is_constant
    return _parts(b, a, right, left, result, sizes) if is_swapped else found


def _parts(
    a: Value, b: Value, left: str, right: str, result: str, sizes: dict[str, Dim]
) -> _EinsumProduct | None:
    """Return the product if every letter has a role in it."""
    stack = "".join(x for x in result if x in left and x in right)
    rows = "".join(x for x in result if x in left and x not in right)
    columns = "".join(x for x in result if x in right and x not in left)
    summed = "".join(x for x in left if x in right and x not in result)
    if set(left) != {*stack, *rows, *summed} or set(right) != {*stack, *columns, *summed}:
        return None
    if not rows or not columns or not summed:
        return None
    found = _EinsumProduct(a, b, left, right, stack, rows, columns, summed, result, sizes)
    if not stack:
        together = [x for x in (columns, summed) if len(x) > 1]
        return found if all(found.known(x) is not None for x in together) else None
    if (len(columns), len(summed)) != (1, 1) or len(rows) == 1:
        return found if len(columns) == len(rows) == len(summed) == 1 else None
    unknown = sum(not isinstance(sizes[letter], int) for letter in rows)
    return found if unknown < 2 and found.known(columns + summed) is not None else None


def _bias(
    graph: Graph, node: Node, p: _EinsumProduct, columns: list[int]
) -> tuple[Node, Array] | None:
    """Return the flat addend after a product that adds a constant per column."""
    reader = graph.sole_consumer(node.output)
    if reader is None or not isinstance(reader.op, Add) or p.result != p.rows + p.columns:
        return None
    for value, other in pairs(reader):
        if value is node.output and other.data is not None and other.data.shape == (*columns,):
            return reader, other.data.reshape(-1)
    return None


def _rewrite(graph: Graph, node: Node, p: _EinsumProduct) -> Node:
    plain = Builder(graph, node)

    def add(op: Op, *inputs: Value) -> Value:
        return plain(op, *inputs, name=f"{node.name}.{type(op).__name__}")

    def ordered(x: Value, letters: str, wanted: str) -> Value:
        if letters == wanted:
            return x
        perm = tuple(map(letters.index, wanted))
        if x.data is not None:
            return graph.constant(np.ascontiguousarray(x.data.transpose(perm)), x.name)
        return add(Transpose(perm=perm), x)

    def shaped(x: Value, *sizes: int) -> Value:
        if x.data is not None:
            copied = (n or size for n, size in zip(sizes, x.data.shape, strict=False))
            return graph.constant(x.data.reshape(tuple(copied)), x.name)
        return add(Reshape(), x, plain.integers(sizes, f"{node.name}.sizes"))

    a = ordered(p.a, p.of_a, p.stack + p.rows + p.summed)
    b = ordered(p.b, p.of_b, p.stack + p.summed + p.columns)
    terms, columns = p.known(p.summed), p.known(p.columns)
    merged = bool(p.stack) and len(p.rows) > 1 and terms is not None and columns is not None
    if merged and terms is not None:  # rows of one matrix of the stack
        a = shaped(a, *(0 for _ in p.stack), -1, *terms)
    elif len(p.summed) > 1 and terms is not None:
        a = shaped(a, *(0 for _ in p.rows), prod(terms))
    if len(p.summed + p.columns) > 2:
        b = shaped(b, prod(terms) if terms and len(terms) > 1 else 0, -1)
    top = node
    made = Builder(graph, node, origin=(node,)).node(MatMul(), a, b)
    product = made.output
    if len(p.columns) > 1 and columns is not None:
        bias = _bias(graph, node, p, columns)
        if bias is not None:
            top, flat = bias
            product = add(Add(), product, graph.constant(flat, f"{top.name}.bias"))
        product = shaped(product, *(0 for _ in p.rows), *columns)
    if merged and columns is not None:
        sizes = (size if isinstance(size := p.sizes[x], int) else -1 for x in p.rows)
        product = shaped(product, *(0 for _ in p.stack), *sizes, *columns)
    product = ordered(product, p.stack + p.rows + p.columns, p.result)
    graph.replace(top, [product])
    if top is not node:
        graph.remove(node)
    graph.rename(made, node.name)
    return made
