"""Einsums as terms of letters, and those of many operands as several of two."""

from __future__ import annotations

from itertools import combinations
from math import prod
from string import ascii_letters

from ...base.record import record
from ...ir.dtypes import FLOATS
from ...ir.graph import Graph, Node, Value
from ...ir.types import Dim, TensorType
from ...ops.matmul import Einsum, einsum_terms
from ..editing import Builder

#: Multiplications that take as long as storing one element, roughly.
PER_ELEMENT = 64
#: Maximum number of terms all of whose orders are compared.
MAX_ORDERED = 5


@record
class Contraction:
    """An Einsum of floats whose operands have one axis for each letter of their terms.

    Attributes:
        operands: the tensors.
        terms: the letters of each one's axes, all different; an ellipsis has become letters, and
            those of the axes that one ellipsis lacks are the first of another's.
        result: the letters of the result.
        sizes: by letter; none is 0. None that is summed can broadcast, and no other does unless it
            is unknown.
    """

    operands: tuple[Value, ...]
    terms: tuple[str, ...]
    result: str
    sizes: dict[str, Dim]

    @property
    def equation(self) -> str:
        """The terms and the result, as Einsum spells them."""
        return f"{','.join(self.terms)}->{self.result}"

    @property
    def outer(self) -> bool:
        """Whether nothing is summed: the elements of the operands are multiplied."""
        return {*"".join(self.terms)} == set(self.result)


def contraction(node: Node) -> Contraction | None:
    """Return what an Einsum computes, if it has this form."""
    if not isinstance(node.op, Einsum):
        return None
    terms, result = einsum_terms(node.op.equation)
    operands = tuple(value for value in node.inputs if value is not None)
    types = [value.type for value in operands]
    ranks = [
        len(x.shape)
        for x in types
        if isinstance(x, TensorType) and x.dtype in FLOATS and x.shape is not None
    ]
    if len(terms) != len(ranks):
        return None
    dotted = [n - len(term) + 1 for n, term in zip(ranks, terms, strict=True) if "." in term]
    free = [letter for letter in ascii_letters if letter not in node.op.equation]
    dots = "".join(free[: max(dotted, default=0)])
    # An ellipsis of fewer axes covers the last ones; the operand is the same along the others.
    terms = tuple(
        term.replace(".", dots[len(dots) - (n - len(term) + 1) :]) if "." in term else term
        for n, term in zip(ranks, terms, strict=True)
    )
    sizes: dict[str, Dim] = {}
    for term, value in zip(terms, operands, strict=True):
        shape = value.tensor.shape or ()
        if len(set(term)) != len(term) or len(term) != len(shape):
            return None
        for letter, size in zip(term, shape, strict=True):
            if sizes.setdefault(letter, size) != size or size == 0:  # 1 would broadcast
                return None
    result = result.replace(".", dots)
    summed = [x for x, size in sizes.items() if size is None and x not in result]
    if any("".join(terms).count(x) > 1 for x in summed):  # one of them may be 1
        return None
    return Contraction(operands, terms, result, sizes)


def split(graph: Graph, node: Node, whole: Contraction) -> list[Node]:
    """Replace an Einsum of more than two operands by Einsums of two, and return these in order.

    In the order that takes the least time: multiplications, and storing results. An empty list if
    sizes are unknown or a letter of one operand alone is summed.
    """
    terms, operands, result = list(whole.terms), list(whole.operands), whole.result
    sizes = {letter: size for letter, size in whole.sizes.items() if isinstance(size, int)}
    everything = "".join(terms) + result
    if len(sizes) < len(whole.sizes) or any(everything.count(x) == 1 for x in sizes):
        return []
    made: list[Node] = []
    add = Builder(graph, node, origin=(node,))
    for i, k, kept in _order(tuple(terms), result, sizes)[1]:
        op = Einsum(equation=f"{terms[i]},{terms[k]}->{kept}")
        new = add.node(op, operands[i], operands[k], name=f"{node.name}.{kept}")
        made.append(new)
        for at in (k, i):
            del terms[at], operands[at]
        terms.append(kept)
        operands.append(new.output)
    graph.replace(node, [made[-1].output])
    graph.rename(made[-1], node.name)
    return made


def _order(
    terms: tuple[str, ...], result: str, sizes: dict[str, int]
) -> tuple[float, tuple[tuple[int, int, str], ...]]:
    """Return the cost of the cheapest products of pairs, each pair and the letters of its result.

    Of more than MAX_ORDERED terms, the cheapest pair comes first.
    """
    if len(terms) == 2:
        return _product(terms, 0, 1, result, sizes)[0], ((0, 1, result),)
    pairs = list(combinations(range(len(terms)), 2))
    if len(terms) > MAX_ORDERED:
        pairs = [min(pairs, key=lambda pair: _product(terms, *pair, result, sizes)[0])]
    found: list[tuple[float, tuple[tuple[int, int, str], ...]]] = []
    for i, k in pairs:
        cost, kept = _product(terms, i, k, result, sizes)
        left = (*terms[:i], *terms[i + 1 : k], *terms[k + 1 :], kept)
        rest, steps = _order(left, result, sizes)
        found.append((cost + rest, ((i, k, kept), *steps)))
    return min(found, key=lambda each: each[0])


def _product(
    terms: tuple[str, ...], i: int, k: int, result: str, sizes: dict[str, int]
) -> tuple[float, str]:
    """Return the cost of the product of two terms, and the letters of its result."""
    others = result + "".join(term for at, term in enumerate(terms) if at not in (i, k))
    union = dict.fromkeys(terms[i] + terms[k])
    kept = "".join(x for x in union if x in others)
    if set(kept) <= set(result):
        kept = "".join(x for x in result if x in kept)
    summed = prod(sizes[x] for x in union if x not in kept)
    return prod(sizes[x] for x in kept) * (1 + summed / PER_ELEMENT), kept
