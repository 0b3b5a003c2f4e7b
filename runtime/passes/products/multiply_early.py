"""Multiplies parts of a layer's input by their weights before they are repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from math import prod

import numpy as np

from ...base.record import record
from ...ir.dtypes import FLOATS, float16
from ...ir.graph import Graph, Node, Value
from ...ir.op import Op
from ...ir.types import Array, Shape
from ...ops.conv import Conv, convolves_pixels
from ...ops.cuts import is_along_last
from ...ops.elementwise import Add, Mul, Sub
from ...ops.gather import Gather
from ...ops.matmul import Gemm, MatMul
from ...ops.movement import Concat, Expand, Split
from ...ops.shape import Reshape, Squeeze, Unsqueeze
from ..driver import Context, Reason
from ..editing import Builder, drop, dtype_of, first_input, shape_of, size_of, static_size
from ..fusion import refusal
from ..moves.transpose_images import order_of, to_channels_first
from ..norms.fold_batchnorm import folded
from ..pattern import pairs
from ..rounding import Unfit, check, rounded_bias

#: How often rows are repeated at least.
_REPEATED = 2
#: How long results may be, in columns that are repeated: what is added to them is read once more.
_LONGER = 2
#: By which factor weights of columns may be smaller than those of differences to these: about as
#: much as errors of results grow.
_SMALLER = 4


@record
class _Layer:
    """A product of joined columns by a constant matrix.

    Attributes:
        product: the MatMul, Gemm or Conv.
        concat: the node that joins the columns.
        weights: [columns, width].
        bias: [width] or None.
        top: the last node, which may add the bias.
        image: the node between them, where the product is a convolution of single pixels.
    """

    product: Node
    concat: Node
    weights: Array
    bias: Array | None
    top: Node
    image: Node | None = None

    @property
    def shape(self) -> Shape:
        """The shape of the product of rows."""
        if self.image is None:
            return shape_of(self.top.output) or ()
        return (*(shape_of(self.concat.output) or ())[:-1], self.weights.shape[1])


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
    def is_viewed(self) -> bool:
        """Whether views come before what repeats it."""
        return bool(self.moves) and not isinstance(self.moves[0].op, Expand | Gather)

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
    product (see `merge_products`). Constant columns are part of the bias. Of differences to what is
    joined, too (``[x, y - x]``: EdgeConv), each term has its own weights, also if a convolution of
    single pixels multiplies them. Not in float16, which may lack a term of a sum that it has.
    """
    chosen = set[Value]()
    for node in list(graph.nodes):
        try:
            layer = _layer(graph, node) if node in graph else None
            parts = [] if layer is None else _parts(graph, layer, chosen)
            bias = np.zeros(0) if layer is None else _bias(layer, parts)
        except Unfit as error:
            context.refused.append(refusal(graph, {node}, Reason.NUMBERS, str(error)))
            continue
        if layer is None:
            continue
        early = [part for part in parts if part.source is not None or part.is_row]
        is_constant = all(part.is_row for part in parts)
        fills = _fills(parts, layer.shape)
        if early and len(parts) > 1 and not is_constant and fills and _is_worth(layer, early):
            _rewrite(graph, layer, parts, bias)
            chosen |= {part.source for part in early if part.source is not None and part.is_chosen}
            yield f"{len(early)} parts of the input of '{node.name}' are multiplied early"


def _bias(layer: _Layer, parts: Sequence[_Part]) -> Array:
    """Return the bias with what constant columns add to it.

    Raises:
        Unfit: a number is beyond its type.
    """
    bias = np.zeros(layer.weights.shape[1]) if layer.bias is None else layer.bias.astype(np.float64)
    for part in parts:
        if part.source is None and part.is_row and part.value.data is not None:
            row = part.value.data.reshape(-1, part.weights.shape[0])[0]
            bias = bias + row.astype(np.float64) @ part.weights.astype(np.float64)
    return rounded_bias(bias, layer.weights.dtype)


def _is_worth(layer: _Layer, early: Sequence[_Part]) -> bool:
    """Whether results are not much longer than the columns that no longer have to be stored."""
    repeated = sum(len(part.weights) for part in early if part.source is not None)
    return not repeated or layer.weights.shape[1] <= _LONGER * repeated


def _layer(graph: Graph, node: Node) -> _Layer | None:
    """Return the layer that a product of a Concat belongs to."""
    if isinstance(node.op, Conv):
        return _image_layer(graph, node)
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


def _image_layer(graph: Graph, node: Node) -> _Layer | None:
    """Return the layer that a convolution of single pixels belongs to, whose image is transposed.

    A BatchNormalization behind it has its part of the weights and the bias.

    Raises:
        Unfit: numbers of these are beyond their type.
    """
    x, w, *c = node.operands
    image, bias = x.producer, c[0].data if c else None
    concat = image.operands[0].producer if image is not None else None
    rank, reader = len(shape_of(x) or ()), graph.sole_consumer(node.output)
    if image is None or concat is None or w.data is None or any(each.data is None for each in c):
        return None
    if order_of(image) != to_channels_first(rank) or graph.sole_consumer(x) is not node:
        return None
    if not isinstance(concat.op, Concat) or concat.op.axis not in (-1, rank - 1):
        return None
    group = node.op.group if isinstance(node.op, Conv) else 0
    if group != 1 or not convolves_pixels(node) or dtype_of(x) not in FLOATS - {float16}:
        return None
    weights, top = w.data.reshape(w.data.shape[:2]).T, node
    affine = None if reader is None else folded(reader)
    if reader is not None and affine is not None and affine[0].shape == weights.shape[1:]:
        scale, shift = affine
        exact = weights.astype(np.float64) * scale
        moved = shift if bias is None else bias.astype(np.float64) * scale + shift
        dtype = weights.dtype
        check(exact.T, dtype, weights.T)
        weights, bias, top = exact.astype(dtype), rounded_bias(moved, dtype), reader
    return _Layer(node, concat, weights, bias, top, image)


def _parts(graph: Graph, layer: _Layer, chosen: Set[Value]) -> list[_Part]:
    """Return the parts of the columns; none if one of them may have other rows.

    Sums would broadcast 1 to what a symbol stands for, which a Concat refuses.

    Args:
        graph: the graph.
        layer: reads the columns.
        chosen: what is multiplied before indices choose among its rows.
    """
    columns: list[tuple[Value, Array]] = []
    begin = 0
    shapes = [shape_of(value) or () for value in layer.concat.operands]
    rows = [set(sizes) for sizes in zip(*(shape[:-1] for shape in shapes), strict=False)]
    if any(1 in sizes and len(sizes) > 1 for sizes in rows):
        return []
    for value, shape in zip(layer.concat.operands, shapes, strict=True):
        count = shape[-1] if shape and 0 not in shape else None
        if not isinstance(count, int):
            return []
        columns.append((value, layer.weights[begin : begin + count]))
        begin += count
    found: list[_Part] = []
    for value, own, reader in _without_differences(graph, layer.concat, columns):
        is_source = value in chosen
        source, moves = (value, ()) if is_source else _repeated(graph, value, reader)
        found.append(_Part(value, own, source, moves))
    return _with_one_source(found)


def _with_one_source(parts: Sequence[_Part]) -> list[_Part]:
    """Return parts; those whose sources are views of one tensor's rows are of this one."""
    found: list[_Part] = []
    for part in parts:
        source, moves = part.source, part.moves
        while source is not None and (node := source.producer) is not None:
            if isinstance(node.op, Expand | Gather) or not _keeps_rows(node):
                break
            source, moves = node.operands[0], (node, *moves)
        found.append(replace(part, source=source, moves=moves))
    shared = Counter(part.source for part in found)
    return [new if shared[new.source] > 1 else old for new, old in zip(found, parts, strict=True)]


def _without_differences(
    graph: Graph, concat: Node, columns: Sequence[tuple[Value, Array]]
) -> list[tuple[Value, Array, Node]]:
    """Return columns, their weights and who reads them, with differences as their terms.

    Only differences to other columns: these have digits that a difference lacks in any case, and so
    do results, unless the weights of these columns are much smaller than those of the difference.
    """
    found = [(value, own, concat) for value, own in columns]
    for place, (value, own, _) in enumerate(found):
        node = value.producer
        if node is None or not isinstance(node.op, Sub) or graph.sole_consumer(value) is not concat:
            continue
        for sign, term, other in ((1, *node.operands), (-1, *reversed(node.operands))):
            alike = [i for i, (x, _, _) in enumerate(found) if _whole(x) is _whole(other)]
            beside = [i for i in alike if _outweighs(columns[i][1], own)]
            if beside and shape_of(term) == shape_of(value):
                at, weights, reader = found[beside[0]]
                sums = weights.astype(np.float64) - sign * own.astype(np.float64)
                check(sums.T, own.dtype)
                found[beside[0]] = at, sums.astype(own.dtype), reader
                found[place] = term, own if sign > 0 else -own, node
                break
    return found


def _outweighs(weights: Array, others: Array) -> bool:
    """Whether weights have the shape of others, and no much smaller norm."""
    if weights.shape != others.shape:
        return False
    own, other = (np.linalg.norm(each.astype(np.float64)) for each in (weights, others))
    return bool(other <= _SMALLER * own)


def _whole(value: Value) -> Value:
    """Return what an Expand repeats, or else the value itself."""
    node = value.producer
    return node.operands[0] if node is not None and isinstance(node.op, Expand) else value


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


def _rewrite(graph: Graph, layer: _Layer, parts: Sequence[_Part], bias: Array) -> None:
    top = layer.top
    add = Builder(graph, top, layer.product.name, (layer.product,))
    rest = [part for part in parts if part.source is None and not part.is_row]
    terms: list[Value] = []
    if rest:
        x = rest[0].value
        if len(rest) > 1:
            x = add(Concat(axis=-1), *(part.value for part in rest))
        terms.append(_multiplied(add, x, np.concatenate([part.weights for part in rest])))
    chosen: list[Value] = []
    for part, y in _products(add, [part for part in parts if part.source is not None]):
        y = _repeat(add, y, part.moves[:-1] if part.is_broadcast else part.moves)
        is_chosen = y.producer is not None and isinstance(y.producer.op, Gather)
        (chosen if is_chosen else terms).append(y)
    if chosen:  # one sum, which reads all these rows where they are
        terms.append(_sum(add, chosen))
    if bias.any():
        terms[0] = add(Add(), terms[0], add.constant(bias, f"{top.name}.bias"))
    total = _sum(add, terms)
    whole = layer.shape
    if shape_of(total) != whole and len(_known(whole)) == len(whole):
        total = add(Expand(), total, add.integers(_known(whole), "shape"))
    if layer.image is not None:
        total = add(layer.image.op, total)
    assert total.producer is not None
    made = total.producer
    graph.replace(top, [total])
    for node in (layer.product, layer.image, layer.concat):
        if node is not None:
            drop(graph, node)
    graph.rename(made, top.name)


def _products(add: Builder, parts: Sequence[_Part]) -> Iterator[tuple[_Part, Value]]:
    """Yield parts and the products of their sources.

    Several of one source, of which some are views, are one product; others are left to
    `merge_products`, which finds more readers of the source.
    """
    for source in dict.fromkeys(part.source for part in parts if part.source is not None):
        own = [part for part in parts if part.source is source]
        if len(own) == 1 or not any(part.is_viewed for part in own):
            yield from ((part, _multiplied(add, source, part.weights)) for part in own)
            continue
        y = _multiplied(add, source, np.concatenate([part.weights for part in own], 1))
        cut = add.node(Split(axis=-1, num_outputs=len(own)), y, outputs=len(own))
        yield from zip(own, cut.outputs, strict=True)


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
            y = add.shaped(y, shape)
        elif isinstance(node.op, Expand):
            times = [*_repeats(node)[:-1], 1]
            y = add(Expand(), y, add.integers([n or 1 for n in times], "shape"))
        else:
            y = add(node.op, y, *node.inputs[1:])
    return y


def _known(shape: Shape) -> list[int]:
    """Return the sizes of a shape that are known."""
    return [size for size in shape if isinstance(size, int)]
