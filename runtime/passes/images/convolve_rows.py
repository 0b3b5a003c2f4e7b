"""Makes layers of rows of pixels convolutions where that is what their images are read for.

Channels that are cut out of an image can be padded, and the parts are read where they are; see
`pad_channels`. Layers around a depthwise convolution are one kernel with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...base.record import record
from ...ir.dtypes import FLOATS
from ...ir.graph import Graph, Node, Value
from ...ir.types import Dim
from ...ops.conv import Conv, convolves_pixels
from ...ops.elementwise import Add
from ...ops.matmul import MatMul
from ...ops.movement import Slice, Split, Transpose
from ...ops.shape import Reshape
from ..driver import Context
from ..editing import Builder, drop, dtype_of, rank_of, shape_of, static_dims
from ..pointwise import is_activation
from .channels import channels_of, parts_of
from .pad_channels import WORD, word_of

_TO_IMAGE, _TO_ROWS, _CUTS = (0, 3, 1, 2), (0, 2, 3, 1), Slice | Split


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``transpose(rows @ weights + bias)`` by a convolution of ``transpose(rows)``.

    Only parts of the image are read, of which some are no whole words (FocalNet's gates behind its
    queries). In half precision also where a depthwise convolution alone reads the image, and the
    other way round: the layer of rows that reads its result (the feed-forward layers of PVTv2 and
    SegFormer, an inverted residual between views). Views between rows and pixels move with it. A
    convolution of single pixels that alone reads the image (heads of SegFormer) becomes one with
    the layer in `merge_linear`, which is why that runs again.
    """
    for node in list(graph.nodes):
        if node not in graph:
            continue
        layer = _layer_before(graph, node)
        if layer and _is_cut_apart(graph, node.output, context):
            name = _to_image(graph, node, layer)
            yield f"MatMul '{name}' convolves an image of which parts are read"
        elif layer and _is_mixed(graph, node.output, layer):
            yield f"MatMul '{_to_image(graph, node, layer)}' convolves what a convolution mixes"
        elif layer and _is_filtered(graph, node.output, context):
            yield f"MatMul '{_to_image(graph, node, layer)}' convolves what a depthwise layer reads"
        elif (found := _layer_behind(graph, node)) and _is_half(found[1], context):
            yield f"MatMul '{_of_image(graph, *found)}' convolves what a depthwise layer gives"


@record
class _Layer:
    """A product of rows by constant weights.

    Attributes:
        product: the MatMul.
        bias: one for each column.
        last: the product, or the Add of its bias.
    """

    product: Node
    bias: Value | None
    last: Node

    def convolved(self, graph: Graph, add: Builder, image: Value) -> Value:
        """Return the convolution of an image of the rows."""
        weights = self.product.operands[1]
        assert weights.data is not None
        filters = graph.constant(weights.data.T[:, :, None, None], f"{weights.name}.filters")
        return add(Conv(), image, filters, *([] if self.bias is None else [self.bias]))


def _to_image(graph: Graph, node: Node, layer: _Layer) -> str:
    """Transpose rows before their layer instead of its result; return the layer's name."""
    rows, name = layer.product.operands[0], layer.product.name
    add = Builder(graph, node, name, (layer.product, node))
    if rank_of(rows) != len(_TO_IMAGE):
        rows = add.shaped(rows, (*_dims(node.operands[0])[:-1], _dims(rows)[-1]))
    image = add(Transpose(perm=_TO_IMAGE), rows)
    graph.redirect(node.output, layer.convolved(graph, add, image))
    drop(graph, node)
    return name


def _of_image(graph: Graph, layer: _Layer, image: Value) -> str:
    """Transpose a layer's result to rows instead of what it reads; return the layer's name."""
    last, name = layer.last, layer.product.name
    add = Builder(graph, last, name, (layer.product, last))
    rows = add(Transpose(perm=_TO_ROWS), layer.convolved(graph, add, image))
    if rank_of(last.output) != len(_TO_ROWS):
        rows = add.shaped(rows, _dims(last.output))
    graph.redirect(last.output, rows)
    drop(graph, last)
    return name


def _layer_before(graph: Graph, node: Node) -> _Layer | None:
    """Return the layer whose rows a node transposes to an image."""
    if not isinstance(node.op, Transpose) or node.op.perm != _TO_IMAGE:
        return None
    rows = node.operands[0]
    maker = rows.producer
    if graph.sole_consumer(rows) is not node or maker is None:
        return None
    if isinstance(maker.op, Reshape):
        if not _are_pixels(maker.output, maker.operands[0]):
            return None
        maker = graph.made_for_one(maker.operands[0])
    bias = None
    if maker is not None and isinstance(maker.op, Add):
        bias = _bias_of(maker)
        value = next((v for v in maker.operands if v is not bias), None)
        last, maker = maker, None if bias is None or value is None else graph.made_for_one(value)
        return _layer(maker, bias, last)
    return _layer(maker, None, maker)


def _layer_behind(graph: Graph, product: Node) -> tuple[_Layer, Value] | None:
    """Return the layer that a MatMul is and the image of a depthwise convolution that it reads."""
    if not isinstance(product.op, MatMul) or _layer(product, None, product) is None:
        return None
    maker = graph.made_for_one(product.operands[0])
    if maker is not None and isinstance(maker.op, Reshape):
        if not _are_pixels(maker.operands[0], maker.output):
            return None
        maker = graph.made_for_one(maker.operands[0])
    if maker is None or not isinstance(maker.op, Transpose) or maker.op.perm != _TO_ROWS:
        return None
    image = maker.operands[0]
    made = graph.made_for_one(image)
    while made is not None and is_activation(made):
        made = graph.made_for_one(made.operands[0])
    if made is None or not _is_depthwise(made):
        return None
    after = graph.sole_consumer(product.output)
    bias = None if after is None or not isinstance(after.op, Add) else _bias_of(after)
    layer = _layer(product, bias, product if bias is None or after is None else after)
    return None if layer is None else (layer, image)


def _layer(product: Node | None, bias: Value | None, last: Node | None) -> _Layer | None:
    """Return a layer if its weights are a constant matrix, and its bias has an element a column.

    Convolutions need pixels and channels, products neither.
    """
    if product is None or last is None or not isinstance(product.op, MatMul):
        return None
    rows, weights = product.operands
    if rows.is_constant or weights.data is None or weights.data.ndim != 2:
        return None
    if 0 in weights.data.shape or 0 in _dims(rows):
        return None
    if dtype_of(product.output) not in FLOATS or rank_of(rows) not in (3, len(_TO_IMAGE)):
        return None
    fits = bias is None or shape_of(bias) == weights.data.shape[1:]
    return _Layer(product, bias, last) if fits else None


def _bias_of(node: Node) -> Value | None:
    """Return the operand of an Add that is a constant of one axis."""
    return next((v for v in node.operands if v.data is not None and v.data.ndim == 1), None)


def _dims(value: Value) -> tuple[Dim, ...]:
    return shape_of(value) or ()


def _are_pixels(pixels: Value, rows: Value) -> bool:
    """Whether pixels by row and column, channels last, are samples of rows in another shape."""
    of_pixels, of_rows = _dims(pixels), _dims(rows)
    if len(of_pixels) != len(_TO_IMAGE) or len(of_rows) != 3:
        return False
    (samples, *sides, channels), (first, count, columns) = of_pixels, of_rows
    known = static_dims((*sides, channels))
    return known is not None and (samples, count, channels) == (first, prod(known[:-1]), columns)


def _is_mixed(graph: Graph, image: Value, layer: _Layer) -> bool:
    """Whether a convolution of single pixels alone reads an image, and may be one with its layer.

    Their common weights may have no more elements than both; see `merge_linear`.
    """
    node, weights = graph.sole_consumer(image), layer.product.operands[1]
    if node is None or not isinstance(node.op, Conv) or node.op.group != 1:
        return False
    filters, own = node.operands[1].data, weights.data
    if own is None or filters is None or not convolves_pixels(node):
        return False
    return len(own) * len(filters) <= own.size + filters.size


def _is_filtered(graph: Graph, image: Value, context: Context) -> bool:
    """Whether a depthwise convolution alone reads an image, in 16 bits."""
    node = graph.sole_consumer(image)
    return node is not None and _is_depthwise(node) and _is_half(image, context)


def _is_half(image: Value, context: Context) -> bool:
    """Whether kernels read an image in half precision, of the file or of the plan."""
    return word_of(image, context) == WORD // 2


def _is_depthwise(node: Node) -> bool:
    """Whether a node is a convolution by one constant filter for each channel."""
    if not isinstance(node.op, Conv) or node.op.group == 1:
        return False
    filters = node.operands[1].data
    group = node.op.group
    return filters is not None and group == len(filters) == channels_of(node.operands[0])


def _is_cut_apart(graph: Graph, image: Value, context: Context) -> bool:
    """Whether only parts of an image are read, some of which are no whole words."""
    if graph.is_output(image) or not all(isinstance(node.op, _CUTS) for node in image.consumers):
        return False
    word = word_of(image, context)
    parts = [part for node in image.consumers for part in parts_of(node) or ()]
    return any(part.start % word or part.end % word for part in parts)
