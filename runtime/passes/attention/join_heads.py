"""Lets Attention read its heads as linear layers produce them: adjacent, one row per position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.op import with_attributes
from ...ir.types import Array, Dim, Shape
from ...ops.attention import Attention, RotaryEmbedding
from ...ops.conv import Conv
from ...ops.cuts import is_along_last
from ...ops.elementwise import Add, Div, Mul
from ...ops.matmul import MatMul
from ...ops.movement import Split, Transpose
from ...ops.norm import LayerNormalization, RMSNormalization
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of, size_of
from ..moves.joined_heads import join_rows
from ..pattern import without_addend
from .add_to_rows import add_to_rows
from .columns import HeadColumns, heads_of
from .head_steps import HeadStep, is_of_columns, length_of, of_columns, step_behind

_HEADS_BEHIND = (0, 2, 1, 3)
#: The permutation of [b, h, t, d] to the order of an image: channels before pixels.
_PIXELS_BEHIND = (0, 1, 3, 2)


@record
class _Rows:
    """The rows that the heads [b, h, t, d] of an operand come from.

    Attributes:
        heads: how heads are columns of rows.
        steps: the nodes after them, in order: a RotaryEmbedding, norms of each head, a division of
            each head by its length, products with constants that all rows share.
    """

    heads: HeadColumns
    steps: tuple[Node, ...] = ()

    @property
    def source(self) -> Value:
        """The rows, whose last axis is w."""
        return self.heads.source

    @property
    def number(self) -> int:
        """Number of heads."""
        return self.heads.columns.shape[0]

    @property
    def is_part(self) -> bool:
        """Whether they are one of several equal parts of the rows, or all of them."""
        size = self.heads.columns.size
        first = self.heads.first
        return first is not None and first % size == 0 and self.heads.width % size == 0


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Drop Reshape and Transpose before the operands of an Attention, and after it.

    Heads extracted from one product become parts of its last axis, in any order of columns: if they
    are not adjacent, and nothing else reads the product, its columns are permuted.
    Channels of an image are columns of its pixels. Nothing changes if only some operands have this
    form, or if the result does not return to rows or an image.
    """
    yield from add_to_rows(graph)
    yield from _join(graph, _is_movable)
    yield from join_rows(graph)


def run_bound(graph: Graph, context: Context) -> Iterator[str]:
    """As `run`, for known sizes and without creating weights."""
    return _join(graph, None)


def _join(
    graph: Graph, may_move: Callable[[Graph, _Rows, list[_Rows], Node], bool] | None
) -> Iterator[str]:
    for node in list(graph.nodes):
        if node not in graph or not _is_plain(graph, node):
            continue
        step = step_behind(graph, node.outputs[0])
        behind = _behind(graph, node if step is None else step.node)
        if behind is not None:
            _straighten(graph, node)
        shared = size_of(node.inputs[0], 1) != 1
        found = [_rows_of(graph, value, shared=shared) for value in node.inputs[:3]]
        rows = [one for one in found if one is not None]
        others = [one for one in rows if not one.is_part]
        if len(rows) < 2 or behind is None or (step is not None and _is_image(behind)):
            continue
        if others and (not may_move or not all(may_move(graph, o, rows, node) for o in others)):
            continue
        if len(rows) == 2:
            at = found.index(None)
            transposed = _transposed(graph, node, at)
            rows[at:at] = [] if transposed is None else [transposed]
        if len(rows) < 3 or rows[1].number != rows[2].number:
            continue
        new = _rewrite(graph, node, rows, behind, step)
        yield f"{new.kind} '{new.name}' reads its heads from rows and writes them to rows"


def _straighten(graph: Graph, attention: Node) -> None:
    """Drop views of operands that change nothing; a single head is a view of a layer of rows."""
    for value in attention.distinct_reads[:3]:
        reader, node = value, value.producer
        while node is not None and (isinstance(node.op, Reshape) or _is_step(graph, node)):
            source, shape = node.operands[0], shape_of(node.output)
            if isinstance(node.op, Reshape):
                if shape is None or None in shape or shape_of(source) != shape:
                    break
                graph.redirect(reader, source)
                drop(graph, node)
            reader, node = source, source.producer
        _layer_before_view(graph, reader)


def _layer_before_view(graph: Graph, head: Value) -> None:
    """Compute a single head [b, 1, t, d] of rows [b, t, w], as queries are, not of a view of them.

    Then one product computes both.
    """
    shape, node = shape_of(head) or (), head.producer
    product, bias = without_addend(graph, head)
    layer = product.producer
    view = layer.operands[0].producer if layer and isinstance(layer.op, MatMul) else None
    if node is None or layer is None or view is None or not isinstance(view.op, Reshape):
        return
    known = len(shape) == 4 and shape[1] == 1 and all(isinstance(n, int) for n in shape[1:])
    rows, before = shape_of(view.operands[0]) or (), shape_of(view.output) or ()
    if not known or len(rows) != 3 or before != (rows[0], 1, *rows[1:]):
        return
    if rank_of(layer.operands[1]) != 2 or (bias is not None and bias.ndim != 1):
        return
    add = Builder(graph, node, layer.name, (layer,))
    value = add(MatMul(), view.operands[0], layer.operands[1])
    if node is not layer:
        addend = next(v for v in node.operands if v is not product)
        value = Builder(graph, node, node.name, (node,))(Add(), value, addend)
    graph.redirect(head, add.view(value, shape))
    drop(graph, node)


def _transposed(graph: Graph, node: Node, at: int) -> _Rows | None:
    """Return rows made of the only operand whose heads are none, such as values that are repeated.

    They are copied, which the other operands and the result are not any more.
    """
    value = node.operands[at]
    shape = shape_of(value)
    if shape is None or len(shape) != 4:
        return None
    batch, heads, places, size = shape
    width = _whole(heads, size)
    if width is None:
        return None
    add = Builder(graph, node, f"{value.name}.transposed")
    rows = add.view(add(Transpose(perm=_HEADS_BEHIND), value), (batch, places, width))
    back = add(Transpose(perm=_HEADS_BEHIND), add.view(rows, (batch, places, heads, size)))
    graph.set_inputs(node, (*node.inputs[:at], back, *node.inputs[at + 1 :]))
    return _rows_of(graph, back)


def _is_plain(graph: Graph, node: Node) -> bool:
    """Whether a 4-D Attention has no cache, and no outputs besides the first and the scores."""
    if not isinstance(node.op, Attention) or any(node.inputs[4:]):
        return False
    if any(map(graph.is_read, node.outputs[1:3])):
        return False
    return rank_of(node.inputs[0]) == 4


def _rows_of(graph: Graph, value: Value | None, *, shared: bool = False) -> _Rows | None:
    node = None if value is None else value.producer
    if value is None:
        return None
    if node is not None and _is_step(graph, node):
        rows = _rows_of(graph, node.inputs[0], shared=shared)
        kinds = [type(step.op) for step in rows.steps] if rows else []
        if rows is None or (type(node.op) is RotaryEmbedding and RotaryEmbedding in kinds):
            return None
        return replace(rows, steps=(*rows.steps, node))
    heads = heads_of(value, shared=shared)
    return None if heads is None else _Rows(heads)


def _is_step(graph: Graph, node: Node) -> bool:
    """Whether a node rotates heads, or normalizes each of them with constants."""
    if isinstance(node.op, RotaryEmbedding):
        return not node.op.num_heads
    if isinstance(node.op, Div):
        return bool(length_of(graph, node))
    if isinstance(node.op, Mul):
        return _factor_of(node) is not None
    if not isinstance(node.op, (LayerNormalization, RMSNormalization)):
        return False
    others = all(v is None or v.data is not None for v in node.inputs[1:])
    alone = len(node.outputs) == 1 and graph.sole_consumer(node.output) is not None
    return alone and others and is_along_last(node)


def _factor_of(product: Node) -> Value | None:
    """Return the constant that multiplies heads alike in all rows (Swin v2); None if none does."""
    shape, (x, by) = shape_of(product.output), product.operands
    if x.data is not None or shape is None or len(shape) != 4 or shape_of(x) != shape:
        return None
    return by if is_of_columns(by, shape) else None


def _is_movable(graph: Graph, one: _Rows, all_: list[_Rows], attention: Node) -> bool:
    """Whether the rows come from a layer whose columns nothing else reads in order."""
    steps = [step for each in all_ for step in each.steps]
    inside = {attention, *steps}
    quotients = [step for step in steps if isinstance(step.op, Div)]
    inside |= {node for step in quotients for node in length_of(graph, step)}
    inside |= {node for each in all_ for node in each.heads.nodes}
    inside |= {node for each in all_ for node in _images_of(each.heads)}
    between = [one.source, *(value for node in one.heads.nodes for value in node.outputs)]
    if any(graph.is_read_outside(value, inside) for value in between):
        return False
    if one.heads.is_image:
        return _conv_of(one.source) is not None
    return _layer_of(graph, one.source) is not None


def _images_of(heads: HeadColumns) -> list[Node]:
    """Return the nodes that make an image of heads that have been channels of one, in their order.

    A depthwise convolution of the values reads it (YOLO 10, 11).
    """
    if not heads.is_image or heads.nodes[-1].op != Transpose(perm=_PIXELS_BEHIND):
        return []

    def is_image(node: Node) -> bool:
        shape = shape_of(node.outputs[0]) if isinstance(node.op, Reshape) else None
        if not shape or len(shape) < 3 or shape[:2] != (heads.counts[0], heads.columns.size):
            return False
        return _whole(*shape[2:]) == heads.counts[1]

    return [node for node in heads.nodes[-1].operands[0].consumers if is_image(node)]


def _conv_of(image: Value) -> tuple[Node, Array, Array | None] | None:
    """Return the Conv that computes an image, its weight and its bias, if these are constants."""
    node = image.producer
    if node is None or not isinstance(node.op, Conv) or node.op.group != 1:
        return None
    weight, bias = (*node.inputs, None)[1:3]
    if weight is None or weight.data is None or (bias is not None and bias.data is None):
        return None
    return node, weight.data, None if bias is None else bias.data


def _layer_of(graph: Graph, value: Value) -> tuple[Value, Array, Array | None] | None:
    """Return x, weight [k, w] and bias [w] of the layer that computes some rows."""
    product, bias = without_addend(graph, value)
    node = product.producer
    if node is None or not isinstance(node.op, MatMul) or node.inputs[0] is None:
        return None
    weight = None if node.inputs[1] is None else node.inputs[1].data
    if weight is None or weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[1:]):
        return None
    return node.inputs[0], weight, bias


def _behind(graph: Graph, node: Node) -> tuple[Node, Node] | None:
    """Return the Transpose and Reshape that turn the result into rows or an image.

    Both are the Transpose if the heads of a row keep an axis of their own.
    """
    transpose = graph.sole_consumer(node.output)
    if transpose is None or not isinstance(transpose.op, Transpose):
        return None
    join, heads = graph.sole_consumer(transpose.output), shape_of(node.output)
    if not heads or None in heads[1::2]:
        return None
    order = _order(transpose, heads)
    if join is None or not isinstance(join.op, Reshape):
        return (transpose, transpose) if transpose.op.order(4) == _HEADS_BEHIND else None
    result = shape_of(join.output)
    if not result:
        return None
    width = _whole(heads[1], heads[3])
    if None in result or width is None:
        return None
    known = all(isinstance(size, int) for size in result)
    if order == _PIXELS_BEHIND:
        fits = len(result) in (3, 4) and known and result[:2] == (heads[0], width)
    else:
        fits = order == _HEADS_BEHIND and result[-1] == width
        fits = fits and (known or result[:-1] == (heads[0], heads[2]))
    return (transpose, join) if fits else None


def _is_image(behind: tuple[Node, Node]) -> bool:
    """Whether the nodes behind a result turn it into an image."""
    transpose, join = behind
    shape = shape_of(transpose.inputs[0])
    return (
        transpose is not join and shape is not None and _order(transpose, shape) == _PIXELS_BEHIND
    )


def _order(transpose: Node, shape: Shape) -> tuple[int, ...] | None:
    """Return the order of four axes that a Transpose makes, wherever axes of size 1 go."""
    assert isinstance(transpose.op, Transpose)

    def of_others(order: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(axis for axis in order if shape[axis] != 1)

    made, known = of_others(transpose.op.order(4)), (_HEADS_BEHIND, _PIXELS_BEHIND)
    return next((order for order in known if of_others(order) == made), None)


def _rewrite(
    graph: Graph,
    node: Node,
    rows: list[_Rows],
    behind: tuple[Node, Node],
    step: HeadStep | None,
) -> Node:
    transpose, join = behind
    op = with_attributes(node.op, q_num_heads=rows[0].number, kv_num_heads=rows[1].number)
    values: dict[int, Value] = {}
    ways = [(one.source, one.heads.is_image) for one in rows]  # a square may be read as both
    for way in dict.fromkeys(ways):
        places = [i for i, each in enumerate(ways) if each == way]
        same = [rows[i] for i in places]
        moved = [] if all(one.is_part for one in same) else same
        images = [image for one in moved for image in _images_of(one.heads)]
        parts = _parts(graph, same, graph.in_order((node, *images))[0])
        values |= zip(places, parts, strict=True)
        for one, value in zip(moved, parts, strict=False):
            _transpose_images(graph, one.heads, value)
    inputs = [_stepped(graph, one, values[i], node) for i, one in enumerate(rows)]
    old = [value for value in node.inputs[:3] if value is not None]
    add = Builder(graph, node, node.name, tuple(dict.fromkeys((node, transpose, join))))
    new = add.node(op, *inputs, *node.inputs[3:], outputs=len(node.outputs))
    for before, after in zip(node.outputs[1:], new.outputs[1:], strict=True):
        graph.redirect(before, after)
    shape = shape_of(join.output) or (None,) * 4
    if step is not None:
        behind_step = Builder(graph, transpose, step.node.name, (*add.origin, step.node))
        y = step.of_rows(behind_step, new.outputs[0])
        graph.replace(join, (_in_shape(behind_step, y, shape),))
    elif _is_image(behind):
        batch, channels, *sides = shape
        pixels = _in_shape(add, new.outputs[0], (batch, *sides, channels))
        back = Transpose(perm=(0, len(shape) - 1, *range(1, len(shape) - 1)))
        graph.replace(join, (add(back, pixels),))
    else:
        graph.replace(join, (_in_shape(add, new.outputs[0], shape),))
    if transpose is not join:
        graph.remove(transpose)
    if step is not None:
        graph.remove(step.node)
    graph.remove(node)
    graph.rename(new, node.name)
    for value in old:
        drop(graph, value.producer)
    return new


def _transpose_images(graph: Graph, heads: HeadColumns, rows: Value) -> None:
    """Make the images of heads from their rows."""
    for node in _images_of(heads):
        shape = shape_of(node.output)
        assert shape is not None
        batch, channels, *sides = shape
        add = Builder(graph, node, node.name, (node,))
        pixels = add.view(rows, (batch, *sides, channels))
        back = Transpose(perm=(0, len(sides) + 1, *range(1, len(sides) + 1)))
        graph.replace(node, (add(back, pixels),))


def _in_shape(add: Builder, value: Value, shape: Shape) -> Value:
    """Return a value reshaped to known sizes, except for its first two axes."""
    return value if shape_of(value) == shape else add.view(value, shape)


def _stepped(graph: Graph, rows: _Rows, value: Value, before: Node) -> Value:
    """Return rows of heads rotated and normalized as the heads were."""
    heads = rows.heads
    for step in rows.steps:
        add = Builder(graph, before, step.name, (step,))
        if isinstance(step.op, RotaryEmbedding):
            value = add(with_attributes(step.op, num_heads=rows.number), value, *step.inputs[1:])
            continue
        if isinstance(step.op, Mul):
            value = add(Mul(), value, of_columns(add, step.operands[1], heads.columns.shape))
            continue
        value = _in_shape(add, value, (*heads.counts, *heads.columns.shape))
        if isinstance(step.op, Div):
            length, *limits = length_of(graph, step)
            by = add(length.op, value, add.integers((-1,), "axis"))
            for limit in limits:
                by = add(limit.op, by, *limit.inputs[1:])
            value = add(step.op, value, by)
        else:
            value = add(with_attributes(step.op, axis=-1), value, *step.inputs[1:])
        value = _in_shape(add, value, (*heads.counts, heads.columns.size))
    return value


def _whole(*dims: Dim) -> int | None:
    """Return the product of dimensions if all are known."""
    total = 1
    for dim in dims:
        if not isinstance(dim, int):
            return None
        total *= dim
    return total


def _parts(graph: Graph, rows: list[_Rows], before: Node) -> list[Value]:
    """Return the parts of a source that are these heads; one Split yields all of them."""
    source, heads = rows[0].source, rows[0].heads
    name = source.producer.name if source.producer else source.name
    add = Builder(graph, before, f"{name}.parts")
    if all(one.is_part for one in rows):
        shape = (*heads.counts, heads.width)
        of_rows = Builder(graph, before, f"{name}.rows")
        whole = _in_shape(of_rows, _to_rows(of_rows, source) if heads.is_image else source, shape)
        return [_part(add, whole, one.heads) for one in rows]
    columns = np.concatenate([one.heads.columns.reshape(-1) for one in rows])
    if heads.is_image:
        value = _with_channels(graph, source, columns, before)
    else:
        value = _with_columns(graph, source, columns, before)
    value = _in_shape(Builder(graph, before, name), value, (*heads.counts, columns.size))
    if len(rows) == 1:
        return [value]
    return list(add.split(value, -1, (one.heads.columns.size for one in rows)))


def _part(add: Builder, whole: Value, heads: HeadColumns) -> Value:
    """Return one of the equal parts of a value; one Split yields all of them."""
    size, first = heads.columns.size, heads.first or 0
    if size == heads.width:
        return whole
    op = Split(axis=-1, num_outputs=heads.width // size)
    cuts = (reader for reader in whole.consumers if reader.op == op and len(reader.inputs) == 1)
    split = next(cuts, None) or add.node(op, whole, outputs=heads.width // size)
    return split.outputs[first // size]


def _with_columns(graph: Graph, source: Value, columns: Array, before: Node) -> Value:
    """Return a layer's result with its columns permuted."""
    layer, made = _layer_of(graph, source), source.producer
    assert layer is not None
    assert made is not None
    x, weight, bias = layer
    add = Builder(graph, before, made.name, (made,))
    value = add(MatMul(), x, add.constant(weight[:, columns], f"{made.name}.columns"))
    if bias is None:
        return value
    return add(Add(), value, add.constant(bias[columns], f"{made.name}.bias"))


def _with_channels(graph: Graph, image: Value, channels: Array, before: Node) -> Value:
    """Return the channels of an image as rows, with the channels of its Conv permuted."""
    found = _conv_of(image)
    assert found is not None
    node, weight, bias = found
    add = Builder(graph, before, node.name, (node,))
    constants = [add.constant(weight[channels], f"{node.name}.channels")]
    if bias is not None:
        constants.append(add.constant(bias[channels], f"{node.name}.bias"))
    return _to_rows(add, add(node.op, node.inputs[0], *constants))


def _to_rows(add: Builder, image: Value) -> Value:
    """Return an image with its channels behind its pixels."""
    rank = len(shape_of(image) or ())
    return add(Transpose(perm=(0, *range(2, rank), 1)), image)
