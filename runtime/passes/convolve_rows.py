"""Makes layers of rows of pixels convolutions where channels are cut out of the image they give.

So their channels can be padded, and the parts are read where they are; see `pad_channels`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.dtypes import FLOATS
from ..ir.graph import Graph, Node, Value
from ..ops.conv import Conv
from ..ops.elementwise import Add
from ..ops.matmul import MatMul
from ..ops.movement import Slice, Split, Transpose
from .channels import parts_of
from .driver import Context
from .editing import Builder, drop, dtype_of, rank_of, shape_of
from .pad_channels import word_of

_TO_IMAGE, _CUTS = (0, 3, 1, 2), Slice | Split


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace ``transpose(rows @ weights + bias)`` by a convolution of ``transpose(rows)``.

    Only parts of the image are read, of which some are no whole words (FocalNet's gates behind its
    queries).
    """
    for node in list(graph.nodes):
        layer = _layer(graph, node)
        if layer is None or not _is_cut_apart(graph, node.output, context):
            continue
        product, bias = layer
        rows, weights = product.operands
        assert weights.data is not None
        add = Builder(graph, node, product.name, (product, node))
        filters = graph.constant(weights.data.T[:, :, None, None], f"{weights.name}.filters")
        image = add(Transpose(perm=_TO_IMAGE), rows)
        graph.redirect(node.output, add(Conv(), image, filters, *([] if bias is None else [bias])))
        name = product.name
        drop(graph, node)
        yield f"MatMul '{name}' convolves an image of which parts are read"


def _layer(graph: Graph, node: Node) -> tuple[Node, Value | None] | None:
    """Return the product whose rows a node transposes to an image, and its bias."""
    if not isinstance(node.op, Transpose) or rank_of(node.inputs[0]) != len(_TO_IMAGE):
        return None
    maker, bias = node.operands[0].producer, None
    if node.op.perm != _TO_IMAGE or dtype_of(node.output) not in FLOATS:
        return None
    if graph.sole_consumer(node.operands[0]) is not node:
        return None
    if maker is not None and isinstance(maker.op, Add):
        bias = next((v for v in maker.operands if v.data is not None and v.data.ndim == 1), None)
        value = next((v for v in maker.operands if v is not bias), None)
        if bias is None or value is None or graph.sole_consumer(value) is not maker:
            return None
        maker = value.producer
    if maker is None or not isinstance(maker.op, MatMul):
        return None
    rows, weights = maker.operands
    if rows.is_constant or rank_of(rows) != len(_TO_IMAGE) or weights.data is None:
        return None
    if weights.data.ndim != 2:
        return None
    fits = bias is None or shape_of(bias) == weights.data.shape[1:]
    return (maker, bias) if fits else None


def _is_cut_apart(graph: Graph, image: Value, context: Context) -> bool:
    """Whether only parts of an image are read, some of which are no whole words."""
    if graph.is_output(image) or not all(isinstance(node.op, _CUTS) for node in image.consumers):
        return False
    word = word_of(image, context)
    parts = [part for node in image.consumers for part in parts_of(node) or ()]
    return any(part.start % word or part.end % word for part in parts)
