"""Multiplies parts of a layer's input by their weights before they are repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from math import prod

import numpy as np

from ..base.record import record
from ..ir.dtypes import FLOATS, float16
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.types import Array, Shape
from ..ops.cuts import is_along_last
from ..ops.elementwise import Add, Mul
from ..ops.gather import Gather
from ..ops.matmul import Gemm, MatMul
from ..ops.movement import Concat, Expand
from ..ops.shape import Reshape, Squeeze, Unsqueeze
from .driver import Context
from .editing import Builder, drop, dtype_of, first_input, shape_of, size_of, static_size
from .pattern import pairs
from .rounding import rounded_bias

#: How often rows are repeated at least.
_REPEATED = 2
#: How long results may be, in columns that are repeated: what is added to them is read once more.
_LONGER = 2


@record
class _Layer:
    """A product of joined columns by a constant matrix.

    Attributes:
        product: the MatMul or Gemm.
        concat: the node that joins the columns.
        weights: [columns, width].
        bias: [width] or None.
        top: the last node, which may add the bias.
    """

    product: Node
    concat: Node
    weights: Array
    bias: Array | None
    top: Node


@record
class _Part:
    """Columns of a layer's input.

    Attributes:
        value: the columns.
        weights: their rows of the weights.
        source: what is repeated; None if nothing is.
        moves: the nodes from the source to the columns, in order.
    """

    value: Value
    weights: Array
    source: Value | None = None
    moves: tuple[Node, ...] = ()

    @property
    def is_broadcast(self) -> bool:
        """Whether the sum of all parts repeats it, rather than an Expand."""
        return bool(self.moves) and isinstance(self.moves[-1].op, Expand)

    @property
    def is_chosen(self) -> bool:
        """Whether indices choose its rows."""
        return bool(self.moves) and isinstance(self.moves[-1].op, Gather)

    @property
    def shape(self) -> Shape:
        """The shape of what it adds to the product, but for the width."""
        return shape_of(self.moves[-1].operands[0] if self.is_broadcast else self.value) or ()

    @property
    def is_row(self) -> bool:
        """Whether all its rows are the same constant."""
        data = self.value.data
        return data is not None and bool((data == data[(0,) * (data.ndim - 1)]).all())


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a product of joined columns by a sum of products if some columns are repeated.

    What all edges of a node, or all pairs with it, have in common (message passing, trilinear
    attention) is multiplied once for the node, before an Expand, or a Gather of more rows than
    there are. Then what each node has beside the sum of its edges is multiplied with it, in one
    product (see `merge_products`). Constant columns are part of the bias. Not in float16, which may
    lack a term of a sum that it has.
    """
    chosen = set[Value]()
    for node in list(graph.nodes):
        layer = _layer(graph, node) if node in graph else None
        if layer is None:
            continue
        parts = _parts(graph, layer, chosen)
        early = [part for part in parts if part.source is not None or part.is_row]
        is_constant = all(part.is_row for part in parts)
        fills = _fills(parts, shape_of(layer.top.output) or ())
        if early and len(parts) > 1 and not is_constant and fills and _is_worth(layer, early):
            _rewrite(graph, layer, parts)
            chosen |= {part.source for part in early if part.source is not None and part.is_chosen}
            yield f"{len(early)} parts of the input of '{node.name}' are multiplied early"


def _is_worth(layer: _Layer, early: Sequence[_Part]) -> bool:
    """Whether results are not much longer than the columns that no longer have to be stored."""
    repeated = sum(len(part.weights) for part in early if part.source is not None)
    return not repeated or layer.weights.shape[1] <= _LONGER * repeated


def _layer(graph: Graph, node: Node) -> _Layer | None:
    """Return the layer that a product of a Concat belongs to."""
    if not isinstance(node.op, MatMul | Gemm) or node.operands[0].producer is None:
        return None
    x, w, *c = node.operands
    concat, shape, data = x.producer, shape_of(x), w.data
    if concat is None or not isinstance(concat.op, Concat) or data is None or data.ndim != 2:
        return None
    rank, addend = len(shape or ()), c[0] if c else None
    dtypes = FLOATS - {float16}
    if rank < 2 or dtype_of(x) not in dtypes or not is_along_last(concat):
        return None
    if isinstance(node.op, Gemm):
        if node.op.transA or (node.op.alpha, node.op.beta) != (1, 1):
            return None
        data = data.T if node.op.transB else data
    if addend is not None:
        bias = addend.data if addend.data is not None and addend.data.ndim == 1 else None
        known = bias is not None and bias.shape == data.shape[1:]
        return _Layer(node, concat, data, bias, node) if known else None
    reader = graph.sole_consumer(node.output)
    if reader is not None and isinstance(reader.op, Add):
        for value, other in pairs(reader):
            fits = other.data is not None and other.data.shape == data.shape[1:]
            if value is node.output and fits:
                return _Layer(node, concat, data, other.data, reader)
    return _Layer(node, concat, data, None, node)


def _parts(graph: Graph, layer: _Layer, chosen: Set[Value]) -> list[_Part]:
    """Return the parts of the columns; none if one of them may have other rows.

    Sums would broadcast 1 to what a symbol stands for, which a Concat refuses.

    Args:
        graph: the graph.
        layer: reads the columns.
        chosen: what is multiplied before indices choose among its rows.
    """
    found: list[_Part] = []
    begin = 0
    shapes = [shape_of(value) or () for value in layer.concat.operands]
    rows = [set(sizes) for sizes in zip(*(shape[:-1] for shape in shapes), strict=False)]
    if any(1 in sizes and len(sizes) > 1 for sizes in rows):
        return []
    for value, shape in zip(layer.concat.operands, shapes, strict=True):
        columns = shape[-1] if shape and 0 not in shape else None
        if not isinstance(columns, int):
            return []
        own = layer.weights[begin : begin + columns]
        is_source = value in chosen
        source, moves = (value, ()) if is_source else _repeated(graph, value, layer.concat)
        found.append(_Part(value, own, source, moves))
        begin += columns
    return found


def _fills(parts: Sequence[_Part], whole: Shape) -> bool:
    """Whether the sum of all parts has this shape, or one that is known."""
    terms = [part for part in parts if not part.is_row]
    if len(_known(whole)) == len(whole) or not all(part.is_broadcast for part in terms):
        return True
    shapes = [part.shape for part in terms]
    longest = [[s[-i] for s in shapes if len(s) >= i] for i in range(2, len(whole) + 1)]
    return all(whole[-i] is not None and whole[-i] in sizes for i, sizes in enumerate(longest, 2))


def _repeated(graph: Graph, value: Value, reader: Node) -> tuple[Value | None, tuple[Node, ...]]:
    """Return rows that an Expand repeats, and the nodes from there on."""
    moves: list[Node] = []
    source, kept, times = None, 0, 1
    at = value
    while (node := at.producer) is not None and _keeps_rows(node):
        if graph.sole_consumer(at) is not reader and not isinstance(node.op, Expand | Gather):
            break
        if moves and isinstance(node.op, Expand) and None in _repeats(node):
            break  # the sum repeats only what no view follows
        moves.insert(0, node)
        reader, at = node, node.operands[0]
        if isinstance(node.op, Expand | Gather):
            times *= _times(node)
            if times >= _REPEATED and not at.is_constant:
                source, kept = at, len(moves)
    return source, tuple(moves[len(moves) - kept :])


def _times(node: Node) -> float:
    """Return how often an Expand or Gather repeats each row, on average; 1 if nothing says it."""
    if isinstance(node.op, Expand):
        return prod(_REPEATED if n is None else n for n in _repeats(node))
    before, after = (static_size(shape_of(value)) for value in (first_input(node), node.output))
    return after / before if before and after else 1


def _repeats(expand: Node) -> list[int | None]:
    """Return how often an Expand repeats along each axis; None where a symbol says it."""
    before, after = (shape_of(value) or () for value in (expand.operands[0], expand.output))
    given = (*(1,) * (len(after) - len(before)), *before)
    times = [1 if a == b and a is not None else b for a, b in zip(given, after, strict=True)]
    return [n if isinstance(n, int) else None for n in times]


def _keeps_rows(node: Node) -> bool:
    """Whether a node repeats or views rows of the same length."""
    before, after = (shape_of(value) for value in (first_input(node), node.output))
    if not before or not after or before[-1] != after[-1] or not isinstance(after[-1], int):
        return False
    rank = len(before)
    match node.op:
        case Expand():
            return True
        case Gather():
            return not is_along_last(node)
        case Reshape():
            return sum(not isinstance(size, int) for size in after) < 2  # one may be -1
        case Unsqueeze() | Squeeze():
            axes = None if len(node.operands) < 2 else node.operands[1].data
            longer = len(after) if isinstance(node.op, Unsqueeze) else rank
            return axes is not None and longer - 1 not in {
                a % longer for a in axes.reshape(-1).tolist()
            }
        case _:
            return False


def _rewrite(graph: Graph, layer: _Layer, parts: Sequence[_Part]) -> None:
    top = layer.top
    add = Builder(graph, top, layer.product.name, (layer.product,))
    rest = [part for part in parts if part.source is None and not part.is_row]
    bias = np.zeros(layer.weights.shape[1]) if layer.bias is None else layer.bias.astype(np.float64)
    for part in parts:
        if part.source is None and part.is_row and part.value.data is not None:
            row = part.value.data.reshape(-1, part.weights.shape[0])[0]
            bias = bias + row.astype(np.float64) @ part.weights.astype(np.float64)
    terms: list[Value] = []
    if rest:
        x = rest[0].value
        if len(rest) > 1:
            x = add(Concat(axis=-1), *(part.value for part in rest))
        terms.append(_multiplied(add, x, np.concatenate([part.weights for part in rest])))
    chosen: list[Value] = []
    for part in parts:
        if part.source is not None:
            y = _multiplied(add, part.source, part.weights)
            y = _repeat(add, y, part.moves[:-1] if part.is_broadcast else part.moves)
            is_chosen = y.producer is not None and isinstance(y.producer.op, Gather)
            (chosen if is_chosen else terms).append(y)
    if chosen:  # one sum, which reads all these rows where they are
        terms.append(_sum(add, chosen))
    if bias.any():
        vector = add.constant(rounded_bias(bias, layer.weights.dtype), f"{top.name}.bias")
        terms[0] = add(Add(), terms[0], vector)
    total = _sum(add, terms)
    whole = shape_of(top.output) or ()
    if shape_of(total) != whole and len(_known(whole)) == len(whole):
        total = add(Expand(), total, add.integers(_known(whole), "shape"))
    assert total.producer is not None
    made = total.producer
    graph.replace(top, [total])
    for node in (layer.product, layer.concat):
        drop(graph, node)
    graph.rename(made, top.name)


def _sum(add: Builder, terms: Sequence[Value]) -> Value:
    total = terms[0]
    for term in terms[1:]:
        total = add(Add(), total, term)
    return total


def _multiplied(add: Builder, x: Value, weights: Array) -> Value:
    """Return x @ weights; of a single column, each element times the row."""
    op: Op = Mul() if len(weights) == 1 else MatMul()
    data = weights[0] if len(weights) == 1 else weights
    return add(op, x, add.constant(np.ascontiguousarray(data), "weights"))


def _repeat(add: Builder, y: Value, moves: Sequence[Node]) -> Value:
    """Return rows of another length repeated and viewed by nodes."""
    width = size_of(y, -1)
    for node in moves:
        shape = (*(shape_of(node.output) or ())[:-1], width)
        if isinstance(node.op, Reshape):
            y = add.shaped(y, [size if isinstance(size, int) else -1 for size in shape])
        elif isinstance(node.op, Expand):
            times = [*_repeats(node)[:-1], 1]
            y = add(Expand(), y, add.integers([n or 1 for n in times], "shape"))
        else:
            y = add(node.op, y, *node.inputs[1:])
    return y


def _known(shape: Shape) -> list[int]:
    """Return the sizes of a shape that are known."""
    return [size for size in shape if isinstance(size, int)]
