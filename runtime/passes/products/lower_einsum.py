"""Rewrites Einsum as matrix products and multiplications, for which backends have fast kernels."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from string import ascii_letters

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.op import Op
from ...ir.types import Array, Dim
from ...ops.elementwise import Add, Mul
from ...ops.matmul import Einsum, MatMul
from ...ops.movement import Transpose
from ...ops.shape import Reshape, Squeeze, Unsqueeze
from ..driver import Context
from ..editing import Builder, stand_in
from ..pattern import pairs
from .einsum_terms import Contraction, contraction, split


@record
class _EinsumProduct:
    """An Einsum as a product a @ b.

    Attributes:
        a, b: the operands.
        of_a, of_b: the letters of their axes.
        stack: batch letters: of both operands and the result; or, if `is_shared`, the first letters
            of b and the result.
        rows: letters of a and the result only.
        columns: letters of b and the result only.
        summed: letters of both operands only.
        result: the letters of the result.
        sizes: by letter.
        is_shared: whether a is one matrix for the whole stack.
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
    is_shared: bool = False

    @property
    def order_of_a(self) -> str:
        """The letters of a as the product reads it."""
        return ("" if self.is_shared else self.stack) + self.rows + self.summed

    @property
    def order_of_b(self) -> str:
        """The letters of b as the product reads it."""
        return self.stack + self.summed + self.columns

    @property
    def transposes(self) -> bool:
        """Whether a computed tensor is transposed."""
        operands = ((self.a, self.of_a, self.order_of_a), (self.b, self.of_b, self.order_of_b))
        transposed = any(not x.is_constant and own != order for x, own, order in operands)
        return transposed or self.result != self.stack + self.rows + self.columns

    def known(self, letters: str) -> list[int] | None:
        """Return the sizes of letters if all of them are known."""
        found = [size for letter in letters if isinstance(size := self.sizes[letter], int)]
        return found if len(found) == len(letters) else None

    @property
    def is_flat(self) -> bool:
        """Whether several columns or terms of a stack, all of known sizes, are one axis each."""
        several = len(self.columns) > 1 or len(self.summed) > 1
        several = several or (self.is_shared and len(self.rows) > 1)
        return bool(self.stack) and several and self.known("".join(self.sizes)) is not None


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace Einsum by MatMul, Mul or Transpose, with the necessary Transposes and Reshapes.

    Every letter denotes one axis of an operand and one of the other or the result. Of more than two
    operands, those that are cheapest to combine come first. Batched products of symbolic sizes have
    one axis each of columns and summed terms; products with a matrix may have several.
    """
    waiting = [node for node in graph.nodes if isinstance(node.op, Einsum)]
    while waiting:
        node = waiting.pop(0)
        whole = contraction(node) if node in graph else None
        if whole is None:
            continue
        if len(whole.terms) > 2:
            parts = split(graph, node, whole)
            if parts:
                waiting[:0] = parts
                yield f"Einsum '{node.name}' combines two of its operands at a time"
            continue
        if len(whole.terms) == 1:
            if whole.outer:
                perm = tuple(map(whole.terms[0].index, whole.result))
                new = stand_in(graph, [node], node, Transpose(perm=perm), whole.operands)
                yield f"Transpose '{new.name}' computes Einsum '{new.name}' ({whole.equation})"
            continue
        found = _read(whole)
        if found is None and not whole.outer and (new := _with_units(graph, node, whole)):
            waiting.insert(0, new)
            yield f"Einsum '{node.name}' multiplies matrices of single rows or columns"
        elif found is not None:
            new = _rewrite(graph, node, found)
            yield f"MatMul '{new.name}' computes Einsum '{node.name}' ({whole.equation})"
        elif whole.outer:
            new = _multiply(graph, node, whole)
            yield f"Mul '{new.name}' computes Einsum '{node.name}' ({whole.equation})"


def _read(whole: Contraction) -> _EinsumProduct | None:
    (a, b), (left, right), result = whole.operands, whole.terms, whole.result
    found = _parts(a, b, left, right, result, whole.sizes)
    is_swapped = found is None or result.endswith(found.columns + found.rows) or a.is_constant
    found = _parts(b, a, right, left, result, whole.sizes) if is_swapped else found
    if found is None or not found.transposes:
        return found
    both = ((a, b, left, right), (b, a, right, left))
    shared = (_shared(*each, result, whole.sizes) for each in both)
    return next((other for other in shared if other is not None), found)


def _shared(
    a: Value, b: Value, left: str, right: str, result: str, sizes: dict[str, Dim]
) -> _EinsumProduct | None:
    """Return the product of one matrix and each of a stack if no computed tensor is transposed.

    Such as a projection along a sequence, bld,lk->bkd.
    """
    inner = [x for x in right if x in left]
    if not inner or any(x in result for x in inner):
        return None
    stack, _, columns = right.partition("".join(inner))
    rows = "".join(x for x in result if x in left)
    if {*left} != {*rows, *inner} or not (stack and rows and columns):
        return None
    summed = "".join(inner)
    found = _EinsumProduct(
        *(a, b, left, right, stack, rows, columns, summed, result, sizes), is_shared=True
    )
    singles = len(rows) == len(columns) == len(summed) == 1
    return None if found.transposes or not (singles or found.is_flat) else found


def _with_units(graph: Graph, node: Node, whole: Contraction) -> Node | None:
    """Replace an Einsum of vectors by one of matrices, whose results are squeezed; return it.

    None if that is not a product, either.
    """
    forms = [(each, found) for each in _filled(whole) if (found := _read(each)) is not None]
    if not forms:
        return None
    filled, _ = next((form for form in forms if not form[1].transposes), forms[0])
    units = {*filled.sizes} - {*whole.sizes}
    add = Builder(graph, node, origin=(node,))

    def axes(term: str, name: str) -> Value:
        return add.integers([i for i, x in enumerate(term) if x in units], f"{node.name}.{name}")

    operands = [
        x
        if units.isdisjoint(term)
        else add(Unsqueeze(), x, axes(term, "axes"), name=f"{node.name}.Unsqueeze")
        for x, term in zip(whole.operands, filled.terms, strict=True)
    ]
    made = add.node(Einsum(equation=filled.equation), *operands, name=f"{node.name}.matrices")
    unit_axes = axes(filled.result, "units")
    squeezed = add(Squeeze(), made.output, unit_axes, name=f"{node.name}.Squeeze")
    graph.replace(node, [squeezed])
    return made


def _filled(whole: Contraction) -> Iterator[Contraction]:
    """Yield an Einsum of vectors as ones of matrices: units behind all axes, and behind the stack.

    Which of them is a product of tensors as they are depends on the order of the other axes.
    """
    free = iter(letter for letter in ascii_letters if letter not in whole.sizes)
    (left, right), result = whole.terms, whole.result
    units = [
        "" if any(x in result and x not in other for x in own) else next(free)
        for own, other in ((left, right), (right, left))
    ]
    sizes = whole.sizes | dict.fromkeys("".join(units), 1)
    for place in (len(whole.sizes), sum(x in left and x in right for x in result)):
        terms = _inserted(left, units[0], place), _inserted(right, units[1], place)
        filled = _inserted(result, "".join(units), place)
        yield Contraction(whole.operands, terms, filled, sizes)


def _inserted(letters: str, units: str, place: int) -> str:
    return letters[:place] + units + letters[place:]


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
    if len(columns) == len(rows) == len(summed) == 1 or found.is_flat:
        return found
    if len(columns) > 1 or len(summed) > 1:
        return None
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


@record
class _Writer:
    """Adds nodes before an Einsum; what is constant is changed at once."""

    graph: Graph
    node: Node

    def add(self, op: Op, *inputs: Value) -> Value:
        name = f"{self.node.name}.{type(op).__name__}"
        return Builder(self.graph, self.node)(op, *inputs, name=name)

    def ordered(self, x: Value, letters: str, wanted: str) -> Value:
        if letters == wanted:
            return x
        perm = tuple(map(letters.index, wanted))
        if x.data is not None:
            return self.graph.constant(np.ascontiguousarray(x.data.transpose(perm)), x.name)
        return self.add(Transpose(perm=perm), x)

    def shaped(self, x: Value, *sizes: int) -> Value:
        if x.data is not None:
            copied = (n or size for n, size in zip(sizes, x.data.shape, strict=False))
            return self.graph.constant(x.data.reshape(tuple(copied)), x.name)
        integers = Builder(self.graph, self.node).integers(sizes, f"{self.node.name}.sizes")
        return self.add(Reshape(), x, integers)


def _multiply(graph: Graph, node: Node, whole: Contraction) -> Node:
    """Replace an Einsum that sums nothing by a Mul of its operands, axes in the result's order."""
    write, factors = _Writer(graph, node), list[Value]()
    for x, term in zip(whole.operands, whole.terms, strict=True):
        wanted = "".join(letter for letter in whole.result if letter in term)
        x = write.ordered(x, term, wanted)
        first = whole.result.index(wanted[0]) if wanted else len(whole.result)
        axes = [i for i, y in enumerate(whole.result) if i > first and y not in term]
        if axes:
            integers = Builder(graph, node).integers((i - first for i in axes), f"{node.name}.axes")
            x = write.add(Unsqueeze(), x, integers)
        factors.append(x)
    made = Builder(graph, node, origin=(node,)).node(Mul(), *factors)
    graph.replace(node, [made.output])
    graph.rename(made, node.name)
    return made


def _rewrite(graph: Graph, node: Node, p: _EinsumProduct) -> Node:
    write = _Writer(graph, node)
    a = write.ordered(p.a, p.of_a, p.order_of_a)
    b = write.ordered(p.b, p.of_b, p.order_of_b)
    top, (made, product) = node, _flat(write, p, a, b) if p.is_flat else _matrices(write, p, a, b)
    columns = p.known(p.columns)
    if not p.is_flat and len(p.columns) > 1 and columns is not None:
        bias = _bias(graph, node, p, columns)
        if bias is not None:
            top, flat_bias = bias
            product = write.add(Add(), product, graph.constant(flat_bias, f"{top.name}.bias"))
        product = write.shaped(product, *(0 for _ in p.rows), *columns)
    if not p.is_flat and _is_merged(p) and columns is not None:
        sizes = (size if isinstance(size := p.sizes[x], int) else -1 for x in p.rows)
        product = write.shaped(product, *(0 for _ in p.stack), *sizes, *columns)
    product = write.ordered(product, p.stack + p.rows + p.columns, p.result)
    graph.replace(top, [product])
    if top is not node:
        graph.remove(node)
    graph.rename(made, node.name)
    return made


def _is_merged(p: _EinsumProduct) -> bool:
    """Whether several rows of a stack become those of one matrix."""
    known = p.known(p.summed) is not None and p.known(p.columns) is not None
    return bool(p.stack) and len(p.rows) > 1 and known


def _flat(write: _Writer, p: _EinsumProduct, a: Value, b: Value) -> tuple[Node, Value]:
    """Return a product of known sizes with one axis each of rows, terms and columns."""
    stack, rows = p.known(p.stack) or [], p.known(p.rows) or []
    terms, columns = p.known(p.summed) or [], p.known(p.columns) or []
    a = write.shaped(a, *(() if p.is_shared else stack), prod(rows), prod(terms))
    b = write.shaped(b, *stack, prod(terms), prod(columns))
    made = Builder(write.graph, write.node, origin=(write.node,)).node(MatMul(), a, b)
    return made, write.shaped(made.output, *stack, *rows, *columns)


def _matrices(write: _Writer, p: _EinsumProduct, a: Value, b: Value) -> tuple[Node, Value]:
    """Return a product of matrices whose batch axes, or rows, may have unknown sizes."""
    terms = p.known(p.summed)
    if _is_merged(p) and terms is not None:  # rows of one matrix of the stack
        a = write.shaped(a, *(0 for _ in p.stack), -1, *terms)
    elif len(p.summed) > 1 and terms is not None:
        a = write.shaped(a, *(0 for _ in p.rows), prod(terms))
    if len(p.summed + p.columns) > 2:
        b = write.shaped(b, prod(terms) if terms and len(terms) > 1 else 0, -1)
    made = Builder(write.graph, write.node, origin=(write.node,)).node(MatMul(), a, b)
    return made, made.output
