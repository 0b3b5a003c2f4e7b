"""Einsums as terms of letters, and those of many operands as several of two."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import prod
from string import ascii_letters

from ..ir.dtypes import FLOATS
from ..ir.graph import Graph, Node, Value
from ..ir.types import Dim, TensorType
from ..ops.matmul import Einsum, einsum_terms
from .editing import Builder

#: Multiplications that take as long as storing one element, roughly.
PER_ELEMENT = 64


@dataclass(frozen=True, slots=True)
class Contraction:
    """An Einsum of floats whose operands have one axis for each letter of their terms.

    Attributes:
        operands: the tensors.
        terms: the letters of each one's axes, all different; an ellipsis has become letters, and
            those of the axes that one ellipsis lacks are the first of another's.
        result: the letters of the result.
        sizes: by letter; none is 0, and none broadcasts.
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
    return Contraction(operands, terms, result.replace(".", dots), sizes)


def split(graph: Graph, node: Node, whole: Contraction) -> list[Node]:
    """Replace an Einsum of more than two operands by Einsums of two, and return these in order.

    The pair comes first whose product takes the least time: its multiplications, and storing its
    result. An empty list if sizes are unknown or a letter of one operand alone is summed.
    """
    terms, operands, result = list(whole.terms), list(whole.operands), whole.result
    sizes = {letter: size for letter, size in whole.sizes.items() if isinstance(size, int)}
    everything = "".join(terms) + result
    if len(sizes) < len(whole.sizes) or any(everything.count(x) == 1 for x in sizes):
        return []
    made: list[Node] = []
    add = Builder(graph, node, origin=(node,))
    while len(terms) > 1:
        best: tuple[float, int, int, str] | None = None
        for i, k in combinations(range(len(terms)), 2):
            others = "".join(term for at, term in enumerate(terms) if at not in (i, k))
            union = dict.fromkeys(terms[i] + terms[k])
            kept = "".join(x for x in union if x in result or x in others)
            summed = prod(sizes[x] for x in union if x not in kept)
            stored = prod(sizes[x] for x in kept)
            cost = stored * (1 + summed / PER_ELEMENT)
            if best is None or cost < best[0]:
                best = (cost, i, k, kept)
        assert best is not None
        _, i, k, kept = best
        kept = kept if len(terms) > 2 else result
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
