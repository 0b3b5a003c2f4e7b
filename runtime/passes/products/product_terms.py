"""Sums of products with constants, for a pass that computes several of them at once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from string import ascii_letters

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.op import Op
from ...ir.types import Array
from ...ops.conv import Conv, ConvTranspose
from ...ops.elementwise import Add, Neg, Sub
from ...ops.matmul import Einsum, Gemm, MatMul
from ..editing import rank_of, shape_of
from .einsum_terms import contraction

#: Operators of sums.
SUMS = Add | Sub | Neg


@record
class Term:
    """A product of a tensor with a constant.

    Attributes:
        node: the product.
        sign: 1 or -1.
        x: the tensor.
        weight: the constant.
        letters: of the axes of both and of the result, as an Einsum has them.
        addend: what the node adds.
        conv: the operator, if it is a convolution: then letters are those of samples, channels and
            other axes.
    """

    node: Node
    sign: int
    x: Value
    weight: Array
    letters: tuple[str, str, str]
    addend: Array | None = None
    conv: Op | None = None

    @property
    def summed(self) -> int:
        """The last axis of the tensor along which it sums."""
        of_x, of_w, result = self.letters
        return max(i for i, x in enumerate(of_x) if x in of_w and x not in result)

    @property
    def form(self) -> Hashable:
        """What products have in common that one may compute: also the sizes of the tensors."""
        return self.letters, self.conv, self.weight.shape, shape_of(self.x)

    @property
    def signed(self) -> Array:
        """The constant, negated if the product is subtracted."""
        return self.weight if self.sign > 0 else -self.weight


@record
class Sum:
    """A sum of products and constants.

    Attributes:
        top: the node that computes it.
        terms: the products.
        addend: the sum of the constants; None without any.
    """

    top: Node
    terms: tuple[Term, ...]
    addend: Array | None

    @property
    def key(self) -> Hashable:
        """What sums that are computed at once have in common."""
        return self.terms[0].form, frozenset(term.x for term in self.terms)

    def signed(self, x: Value) -> Array:
        """Return the constant with which it multiplies a tensor."""
        (term,) = (term for term in self.terms if term.x is x)
        return term.signed


def sum_of(graph: Graph, top: Node) -> Sum | None:
    """Return the products and constants that a node adds, each product of another tensor."""
    if not isinstance(top.op, Add | Sub):
        return None
    terms: list[Term] = []
    constants: list[Array] = []
    if not collect(graph, top.output, 1, terms, constants, top) or len(terms) < 2:
        return None
    shape, addend = shape_of(top.output), _total(constants)
    if len({term.form for term in terms}) > 1 or len({term.x for term in terms}) < len(terms):
        return None
    if None in (shape_of(terms[0].x) or (None,)):
        return None  # sizes that may differ
    if shape is None or len(shape) != len(terms[0].letters[2]):
        return None
    if addend is not None and addend.ndim > len(shape):
        return None
    return Sum(top, tuple(terms), addend)


def _total(constants: Sequence[Array]) -> Array | None:
    """Return the sum of constants; None without any."""
    total = None
    for each in constants:
        total = each if total is None else total + each
    return total


def collect(
    graph: Graph,
    value: Value,
    sign: int,
    terms: list[Term],
    constants: list[Array],
    top: Node | None = None,
) -> bool:
    """Collect what a value is the sum of; return whether that is products and constants."""
    left = [(value, sign)]
    while left:
        value, sign = left.pop()
        node = value.producer
        if value.data is not None:
            constants.append(sign * value.data)
            continue
        if node is None or (node is not top and graph.sole_consumer(value) is None):
            return False
        if isinstance(node.op, SUMS):
            left += [*zip(node.operands, _signs(node, sign), strict=True)][::-1]
            continue
        term = term_of(node, sign)
        if term is None:
            return False
        terms.append(term)
        if term.addend is not None:
            constants.append(sign * term.addend)
    return True


def _signs(node: Node, sign: int) -> tuple[int, ...]:
    """Return the signs with which a node adds its operands, if its result has one."""
    if isinstance(node.op, Neg):
        return (-sign,)
    return sign, -sign if isinstance(node.op, Sub) else sign


@record
class _Able:
    """What a value adds, which one sum may have among its products.

    Attributes:
        form: what its products have in common; None of constants.
        xs: the tensors that they multiply, each once; of a sum, those of one operand, extended.
        top: the sum that computes it; None of a product.
    """

    form: Hashable
    xs: set[Value]
    top: Node | None = None


def largest_sums(graph: Graph) -> list[Node]:
    """Return the sums of like products of several tensors, in order, but not parts of larger ones.

    A sum is looked at once, when those that it adds are known: its size does not matter.
    """
    able: dict[Value, _Able] = {}
    tops: dict[Node, None] = {}
    for node in graph.nodes:
        if isinstance(node.op, SUMS):
            found = _added(node, able)
            if found is None:
                continue
            if len(found.xs) > 1 and not isinstance(node.op, Neg):
                for value in node.operands:
                    if value in able and (part := able[value].top) is not None:
                        tops.pop(part, None)
                tops[node] = None
                found = replace(found, top=node)
        else:
            term = term_of(node, 1)
            if term is None:
                continue
            found = _Able(term.form, {term.x})
        if graph.sole_consumer(node.output) is not None:
            able[node.output] = found
    return list(tops)


def _added(node: Node, able: Mapping[Value, _Able]) -> _Able | None:
    """Return what a node adds, if that may be one sum."""
    computed = [value for value in node.operands if value.data is None]
    parts = [able[value] for value in computed if value in able]
    if not parts or len(parts) < len(computed) or len({part.form for part in parts}) > 1:
        return None
    if any(shape_of(value) != shape_of(node.output) for value in computed):
        return None
    most, *others = sorted(parts, key=lambda part: len(part.xs), reverse=True)
    for part in others:
        if not most.xs.isdisjoint(part.xs):
            return None
        most.xs.update(part.xs)
    return replace(most, top=None if len(parts) > 1 else most.top)


def term_of(node: Node, sign: int) -> Term | None:
    """Return the product with a constant that a node computes, which sums something."""
    if isinstance(node.op, Conv | ConvTranspose):
        return _convolution(node, node.op, sign)
    found = _letters_of(node)
    if found is None:
        return None
    (a, b), (of_a, of_b, result) = node.operands[:2], found
    if a.data is not None:
        a, b, of_a, of_b = b, a, of_b, of_a
    if b.data is None or a.data is not None or not {*of_a} & {*of_b} - {*result}:
        return None
    if {*result} <= {*of_a}:
        return None  # no columns
    weight, addend = b.data, None
    if isinstance(node.op, Gemm):
        addend = node.operands[2].data if len(node.operands) > 2 else None
    names = dict(zip(dict.fromkeys(of_a + of_b), ascii_letters, strict=False))
    of_a, of_b, result = ("".join(names[x] for x in each) for each in (of_a, of_b, result))
    return Term(node, sign, a, weight, (of_a, of_b, result), addend)


def _convolution(node: Node, op: Conv | ConvTranspose, sign: int) -> Term | None:
    weight, *biases = (value.data for value in node.operands[1:])
    if weight is None or op.group != 1 or any(bias is None for bias in biases):
        return None
    axes = weight.ndim - 2
    more, of_w = "abcdefgh"[:axes], "oi" if isinstance(op, Conv) else "io"
    bias = biases[0].reshape(-1, *[1] * axes) if biases and biases[0] is not None else None
    letters = f"ni{more}", of_w + more.upper()[:axes], f"no{more}"
    return Term(node, sign, node.operands[0], weight, letters, bias, op)


def _letters_of(node: Node) -> tuple[str, str, str] | None:
    """Return the letters of the axes of both factors of a product, and of its result."""
    if isinstance(node.op, Einsum):
        found = contraction(node)
        if found is None or len(found.terms) != 2:
            return None
        return *found.terms, found.result
    if isinstance(node.op, Gemm):
        op, (x, w) = node.op, node.operands[:2]
        biases = node.operands[2:]
        plain = op.alpha == 1 and (not biases or (op.beta == 1 and biases[0].data is not None))
        if not plain or rank_of(x) != 2 or rank_of(w) != 2:
            return None
        return "ki" if op.transA else "ik", "ok" if op.transB else "ko", "io"
    if not isinstance(node.op, MatMul):
        return None
    left, right = (rank_of(value) or 0 for value in node.operands)
    if min(left, right) < 2:
        return None
    most = max(left, right) - 2
    shapes = [(shape_of(value) or ())[:-2] for value in node.operands]
    if min(left, right) > 2 and shapes[0] != shapes[1]:
        return None
    stack = "abcdefgh"[:most]
    return stack * (left > 2) + "rs", stack * (right > 2) + "st", stack + "rt"


def share_weights(sums: Sequence[Sum]) -> bool:
    """Whether all constants occur at least twice, with either sign, and have one dtype."""
    weights = [term.weight for each in sums for term in each.terms]
    if len({weight.dtype for weight in weights}) > 1:
        return False
    kinds = {(weight.shape, weight.tobytes()) for weight in weights}
    return 2 * len(kinds) <= len(weights)


def growth(sums: Sequence[Sum]) -> int:
    """Return how many bytes more than now all constants are where none is shared."""
    weights = [term.weight for each in sums for term in each.terms]
    kept = {id(weight): weight.nbytes for weight in weights}
    return sum(weight.nbytes for weight in weights) - sum(kept.values())
