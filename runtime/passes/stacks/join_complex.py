"""Computes sums of products of the same tensors and matrices, as of complex numbers, at once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.types import Array
from ...ops.elementwise import Add
from ...ops.gather import Gather
from ...ops.matmul import Einsum
from ...ops.movement import Concat
from ...ops.shape import RESHAPES
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import Builder, drop, first_input, rank_of, shape_of, size_of
from ..pointwise import is_elementwise
from ..products.product_terms import SUMS, Sum, growth, largest_sums, share_weights, sum_of, term_of
from .stacked_parts import Stack, place_in, stacked


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``a @ v - b @ w, b @ v + a @ w`` by ``[a, b] @ [[v, w], [-w, v]]``.

    Real and imaginary parts of complex products (spectral layers: FNO, AFNO), or the four parts of
    quaternions: each matrix is multiplied by several tensors. Where these are parts of one tensor,
    as of what a Fourier transform gives, nothing is moved, nor where a Concat joins the sums.
    A product of sums has the same terms, which one accumulator adds. It reads as many bytes of
    weights as the products did, of which several share a matrix; where these are kept apart, the
    model may need more memory for them, by `Options.fold_bytes` at most.
    """
    groups: dict[Hashable, list[Node]] = {}
    for node in reversed(largest_sums(graph)):
        found = sum_of(graph, node)
        if found is not None:
            groups.setdefault(found.key, []).append(node)
    for tops in reversed(groups.values()):
        sums = [found for top in reversed(tops) if (found := sum_of(graph, top)) is not None]
        if sums and len({each.key for each in sums}) == 1:
            text = _rewrite(graph, sums) if growth(sums) <= context.options.fold_bytes else ""
            if text:
                yield text


# ── what replaces them ───────────────────────────────────────────────────────────────────────────


def _rewrite(graph: Graph, sums: Sequence[Sum]) -> str:
    """Compute sums at once; return what was done, nothing if that is no gain."""
    conv = sums[0].terms[0].conv
    joint = _joint(graph, sums)
    if joint is not None and joint.axis is not None and conv is not None:
        joint = None  # a convolution has all results among its channels
    if joint is not None:
        sums = joint.sums
    tops = [each.top for each in sums]
    nodes = [term.node for each in sums for term in each.terms]
    of_x, of_w, result = sums[0].terms[0].letters
    xs = sorted((term.x for term in sums[0].terms), key=place_in)
    before = graph.in_order(tops)[0]
    add = Builder(graph, before, before.name, graph.in_order({*nodes, *tops}))
    summed = sums[0].terms[0].summed
    stack = stacked(graph, add, xs, {*nodes}, summed)
    if stack is None or (conv is not None and not (stack.merged and stack.axis == summed)):
        if stack is not None:
            drop(graph, stack.value.producer)
        if len(sums) == 1 or not share_weights(sums):
            return ""
        stack = Stack(add(Concat(axis=summed), *xs), summed, merged=True)
    sizes = shape_of(xs[0]) or ()
    if sum(not isinstance(size, int) for size in sizes[stack.axis :]) > 1:
        drop(graph, stack.value.producer)
        return ""
    x, row = stack.value, of_x[stack.axis] if stack.merged else ""
    if row and (row not in of_w or row in result):
        x, row = add.view(x, (*sizes[: stack.axis], len(xs), *sizes[stack.axis :])), ""
    of_x = of_x if row else f"{of_x[: stack.axis]}Z{of_x[stack.axis :]}"
    place, column = _place_of_sums(graph, sums, joint)
    result = result if column else f"{result[:place]}Y{result[place:]}"
    of_w, weights = _blocks([[one.signed(x) for x in xs] for one in sums], of_w, row, column)
    op = Einsum(equation=f"{of_x},{of_w}->{result}") if conv is None else conv
    y = add(op, x, graph.constant(weights, "weights"))
    y = _with_addends(add, y, sums, place, merged=bool(column))
    if joint is not None:
        graph.redirect(joint.node.output, y)
        drop(graph, joint.node)
    else:
        _cut(graph, add, tops, y, place, merged=bool(column))
    return f"{len(nodes)} products with '{xs[0].name}' became one"


def _place_of_sums(graph: Graph, sums: Sequence[Sum], joint: _Joint | None) -> tuple[int, str]:
    """Return the axis that tells sums apart, and the letter of their columns if it has these."""
    of_x, _, result = sums[0].terms[0].letters
    columns = next(i for i, y in enumerate(result) if y not in of_x)
    if joint is not None:
        return (columns, result[columns]) if joint.axis is None else (joint.axis, "")
    wished = _wished(graph, [each.top for each in sums])
    if len(sums) == 1 or sums[0].terms[0].conv is not None or wished in (None, columns):
        return columns, result[columns]
    return wished, ""


def _cut(
    graph: Graph, add: Builder, tops: Sequence[Node], y: Value, place: int, *, merged: bool
) -> None:
    """Replace the results of nodes by parts of one tensor, along an axis that each may lose."""
    if len(tops) == 1:
        parts: Sequence[Value] = [y]
    elif merged:
        parts = add.split(y, place, len(tops))
    else:
        numbers = [graph.constant(np.array(i), "place") for i in range(len(tops))]
        parts = [add(Gather(axis=place), y, number) for number in numbers]
    for top, part in zip(tops, parts, strict=True):
        graph.redirect(top.output, part)
        drop(graph, top)


def _wished(graph: Graph, tops: Sequence[Node]) -> int | None:
    """Return the axis in front of which the next products read several tensors as one."""
    found: set[int | None] = set()
    for top in tops:
        value = top.output
        while (node := graph.sole_consumer(value)) is not None and is_elementwise(node.op):
            if isinstance(node.op, SUMS):
                break
            value = node.output
        terms = [term_of(node, 1) for node in value.consumers]
        for term in terms:
            if term is None or term.x is not value:
                return None
            found.add(term.summed)
    return found.pop() if len(found) == 1 else None


def _blocks(
    blocks: Sequence[Sequence[Array]], letters: str, row: str, column: str
) -> tuple[str, Array]:
    """Return the constants of all sums as one, with the letters of its axes.

    Args:
        blocks: of each sum, those of each tensor.
        letters: of their axes.
        row: the letter of the axis along which blocks of tensors are adjacent; none: "Z" is theirs.
        column: likewise for those of sums: "Y".
    """
    joined = np.stack([np.stack(each) for each in blocks])
    order = [*letters]
    for block, each in (("Y", column), ("Z", row)):
        order.insert(order.index(each) if each else 0, block)
    before = "YZ" + letters
    joined = joined.transpose([before.index(x) for x in order])
    sizes: dict[str, int] = dict(zip(order, joined.shape, strict=True))
    kept = [x for x in order if not (x == "Y" and column) and not (x == "Z" and row)]
    factor = {column: sizes["Y"], row: sizes["Z"]}
    shape = [sizes[x] * factor.get(x, 1) for x in kept]
    return "".join(kept), joined.reshape(shape)


def _with_addends(
    add: Builder, y: Value, sums: Sequence[Sum], place: int, *, merged: bool
) -> Value:
    """Return the sums with the constants that they have.

    Args:
        add: where new nodes go.
        y: the sums.
        sums: which these are.
        place: the axis that tells them apart.
        merged: whether each has some places of it.
    """
    if all(each.addend is None for each in sums):
        return y
    rank, dtype = (rank_of(y) or 1) - (not merged), y.tensor.dtype
    zero = np.zeros((), dtype)
    found = [zero if each.addend is None else each.addend for each in sums]
    found = [each.reshape(*[1] * (rank - each.ndim), *each.shape) for each in found]
    if merged:
        width = size_of(y, place)
        width = width // len(sums) if isinstance(width, int) else 1
        found.append(np.zeros([width if i == place else 1 for i in range(rank)], dtype))
    found = np.broadcast_arrays(*found)[: len(sums)]
    joined = np.concatenate(found, place) if merged else np.stack(found, place)
    return add(Add(), y, add.constant(joined.astype(dtype), "addend"))


@record
class _Joint:
    """A Concat of all sums.

    Attributes:
        node: the Concat.
        sums: in its order.
        axis: the new axis along which they are stacked; None: their columns are adjacent.
    """

    node: Node
    sums: Sequence[Sum]
    axis: int | None


def _joint(graph: Graph, sums: Sequence[Sum]) -> _Joint | None:
    """Return the Concat of all sums, along their columns or a new axis."""
    of_x, _, result = sums[0].terms[0].letters
    columns = next(i for i, y in enumerate(result) if y not in of_x)
    found = {each.top.output: each for each in sums}
    reader = graph.sole_consumer(sums[0].top.output)
    is_stacked = reader is not None and isinstance(reader.op, RESHAPES)
    node = graph.sole_consumer(reader.output) if is_stacked and reader is not None else reader
    if (
        len(sums) == 1
        or node is None
        or not isinstance(node.op, Concat)
        or len(node.inputs) != len(sums)
    ):
        return None
    parts = [value.producer for value in node.operands] if is_stacked else []
    tops = [first_input(part) for part in parts] if is_stacked else node.operands
    if {*tops} != {*found} or any(graph.sole_consumer(top) is None for top in found):
        return None
    axis = normalize_axis(node.op.axis, len(result) + is_stacked)
    if is_stacked:
        for value, top in zip(node.operands, tops, strict=True):
            shape = shape_of(top) or ()
            if graph.sole_consumer(value) is None or shape_of(value) != (
                *shape[:axis],
                1,
                *shape[axis:],
            ):
                return None
    elif axis != columns:
        return None
    order = [found[top] for top in tops if top is not None]
    return _Joint(node, order, axis if is_stacked else None)
