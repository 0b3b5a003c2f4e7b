"""Correlation of two images: sums over channels of one times the other, shifted in many ways.

Networks of optical flow and of stereo (PWC-Net, FlowNet) write one product and one sum for each
shift, and join these as channels: hundreds of small kernels, which are one here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.cuts import axis_of
from ....runtime.ops.elementwise import Mul
from ....runtime.ops.movement import Concat, Slice
from ....runtime.ops.reduce import ReduceMean, ReduceSum
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer
from ..codegen.chain_kernel import table_of
from ..codegen.moves import movement
from ..recipe.launch import each
from ..recipe.operands import Tensor, index_type
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from ..recipe.source import arithmetic

#: Minimum number of shifts.
MIN_SHIFTS = 4
#: Bytes that are read at a time, and elements of which words may consist.
WORD, VECTORS = 16, (8, 4, 2, 1)


@record
class Correlation(Whole):
    """Sums over channels of products of an image with parts of another, joined as channels.

    Attributes:
        nodes: all nodes.
        a: the image, [n, c, h, w].
        b: the other one, [n, c, *larger].
        parts: the Slices that take the parts of it, in order.
        y: the result, [n, parts, h, w].
        scale: of the sums.
    """

    nodes: frozenset[Node]
    a: Value
    b: Value
    parts: tuple[tuple[Node, ...], ...]
    y: Value
    scale: float

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats of the images and the result; see `Pattern`."""
        return dict.fromkeys((self.a, self.b, self.y), Format.CHANNELS_LAST)

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return correlation(self, y, operand(self.a), operand(self.b))


def correlation_at(graph: Graph, concat: Node, free: Set[Node]) -> Correlation | None:
    """Return the correlation that a Concat joins, if it does.

    Args:
        graph: the graph.
        concat: the node.
        free: nodes that may be taken.
    """
    sums = [value.producer for value in concat.operands]
    y = concat.output
    fits = y.tensor.rank == 4 and y.tensor.dtype in FLOATS and y.tensor.size
    if not isinstance(concat.op, Concat) or axis_of(concat) != 1 or not fits:
        return None
    kinds = {type(node.op) for node in sums if node is not None}
    if len(set(sums)) < max(MIN_SHIFTS, len(sums)) or kinds not in ({ReduceMean}, {ReduceSum}):
        return None
    products = [_product(graph, node, free) for node in sums if node is not None]
    nodes = {concat, *(node for node in sums if node is not None)}
    first = products[0]
    if first is None or not free >= nodes:
        return None
    found = (_of(graph, a, products, nodes, y, free) for a in first.distinct_reads)
    return next((each for each in found if each is not None), None)


def _product(graph: Graph, total: Node, free: Set[Node]) -> Node | None:
    """Return the product of which a node is the sum over channels."""
    x, *axes = total.operands
    node = x.producer
    known = axes and axes[0].data is not None and axes[0].data.reshape(-1).tolist() in ([1], [-3])
    keeps = getattr(total.op, "keepdims", 0) == 1
    if not known or not keeps or node is None or node not in free or not isinstance(node.op, Mul):
        return None
    alone = graph.sole_consumer(x) is total and graph.sole_consumer(total.output) is not None
    return node if alone and len(node.distinct_reads) == 2 else None


def _of(
    graph: Graph, a: Value, products: list[Node | None], taken: set[Node], y: Value, free: Set[Node]
) -> Correlation | None:
    """Return the correlation of an image with parts of another, if all products are these."""
    nodes, parts, sources = set(taken), list[tuple[Node, ...]](), set[Value]()
    n, _, h, w = y.tensor.dims
    channels = a.tensor.dims[1:2]
    if a.tensor.dims != (n, *channels, h, w) or a.tensor.dtype not in FLOATS:
        return None
    for product in products:
        others = [] if product is None else [v for v in product.operands if v is not a]
        if product is None or len(others) != 1 or others[0].tensor.dims != a.tensor.dims:
            return None
        slices = tuple(_slices(others[0], free))
        parts.append(slices)
        sources.add(slices[0].operands[0] if slices else others[0])
        nodes |= {product, *slices}
    if len(sources) > 1 or not all(parts):
        return None
    (b,) = sources
    cuts = (node.output for slices in parts for node in slices)
    inside = not any(graph.is_read_outside(value, nodes) for value in cuts)
    (total,) = {type(node.op) for node in taken if not isinstance(node.op, Concat)}
    scale = 1 / max(*channels, 1) if total is ReduceMean else 1.0
    return Correlation(frozenset(nodes), a, b, tuple(parts), y, scale) if inside else None


def _slices(value: Value, free: Set[Node]) -> Iterator[Node]:
    """Yield the Slices that take a part of an image, in order."""
    node = value.producer
    if node is not None and node in free and isinstance(node.op, Slice):
        yield from _slices(node.operands[0], free)
        yield node


def correlation(found: Correlation, y: Tensor, a: Tensor, b: Tensor) -> Answer:
    """Return the launch of a correlation, or why its nodes stay apart."""
    if not all(x.is_channels_last for x in (y, a, b)):
        return "images without channels last"
    places: list[int] = []
    for slices in found.parts:
        moved = movement(slices)
        walk = None if moved is None else moved.walk(b)
        own = zip(y.dims, () if walk is None else walk.strides, b.strides, strict=False)
        if walk is None or walk.table is not None or len(walk.strides) != y.rank:
            return "parts of an image that are no windows"
        if any(n > 1 and step != stride for n, step, stride in own):
            return "windows with steps"
        places.append(walk.origin)
    channels = a.dims[1]
    rows = a.row, b.row, *(place for place in places), channels
    size = max(a.dtype.itemsize, b.dtype.itemsize)
    vector = next(v for v in VECTORS if v * size <= WORD and all(n % v == 0 for n in rows))
    index = index_type(y.extent, a.extent, b.extent)
    if b.extent >= 2**31:
        return "places in tables have 32 bits"
    return each(
        "conv/correlation.cu",
        "correlation",
        y.size,
        {
            **{"a": a, "b": b, "places": table_of(np.array(places, np.int32)), "y": y},
            **{"count": y.size, "shifts": y.dims[1], "height": y.dims[2], "width": y.dims[3]},
            **{"channels": channels, "of_a": _steps(a), "of_b": _steps(b)},
            **{"pitch": y.row, "scale": found.scale},
        },
        types=(
            *(("Index", index), ("A", a.dtype), ("B", b.dtype), ("T", y.dtype)),
            ("S", arithmetic(y.dtype)),
        ),
        constants=(("VECTOR", vector),),
        pitched=(y, a, b),
    )


def _steps(x: Tensor) -> Mapping[str, int]:
    sample, _, row, pixel = x.strides
    return {"sample": sample, "row": row, "pixel": pixel}
