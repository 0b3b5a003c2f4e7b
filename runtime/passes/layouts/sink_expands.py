"""Moves Expands behind views, Transposes and products, to where elements are only broadcast."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, takewhile
from math import prod

import numpy as np

from ...ir.chains import chain_behind
from ...ir.graph import Graph, Node, Value
from ...ops.conv import ConvOp
from ...ops.matmul import MatMul
from ...ops.movement import Expand, Transpose
from ..attention.scores import axis_groups
from ..driver import Context
from ..editing import Builder, dims_of, stand_in, to_sizes
from ..pointwise import broadcasts, by_place, inputs_with
from ..tidying.remove_identity import broadcast

#: Maximum number of nodes between an Expand and what multiplies or broadcasts its elements.
_DEPTH = 6

Sizes = tuple[int, ...]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Compute views, Transposes and products of elements before an Expand repeats them.

    Two matrices that all heads share (Mamba2) are multiplied once. Where a view merges a repeated
    axis with another one (a bias for all samples: WavLM), an elementwise node behind it comes
    before it. Only on the way to such nodes: elsewhere the Expand stays where it is.
    """
    left = [node for node in graph.nodes if isinstance(node.op, Expand)]
    while left:
        node = left.pop()
        if node in graph:
            yield from broadcast(graph, node, left)
        if node in graph:
            yield from _sunk(graph, node, left)


def _sunk(graph: Graph, node: Node, left: list[Node]) -> Iterator[str]:
    """Move an Expand behind those of its readers that lead to where it disappears.

    Args:
        graph: the graph.
        node: the Expand.
        left: gets the Expands that are inserted, and this one if another pass over it pays.
    """
    small, whole = dims_of(node.operands[0]), dims_of(node.output)
    if small is None or whole is None or len(small) != len(whole) or 0 in whole:
        return
    for reader in graph.in_order(node.output.consumers):
        if not _leads(reader, node.output, _DEPTH):
            continue
        moved = None
        if isinstance(reader.op, MatMul):
            moved = _multiplied(graph, node, reader)
        elif isinstance(reader.op, Transpose) or reader.op.view:
            moved = _viewed(graph, node, reader)
        if moved is not None:
            left += [moved] if isinstance(moved.op, Expand) else []
            yield f"{reader.kind} '{reader.name}' comes before the repetition by '{node.name}'"
        elif reader.op.view and _merges(graph, node, reader):
            left.append(node)
            yield f"what reads '{reader.name}' broadcasts what '{node.name}' repeats"


def _leads(node: Node, value: Value, depth: int) -> bool:
    """Whether a value comes to a product, or to an elementwise node of several tensors."""
    if isinstance(node.op, MatMul):
        return node.operands[0] is not node.operands[1]
    if broadcasts(node) and len(by_place(node)) > 1:
        return True
    passes = isinstance(node.op, Transpose) or node.op.view or broadcasts(node)
    readers = node.output.consumers if passes and depth else ()
    return any(_leads(reader, node.output, depth - 1) for reader in readers)


def _multiplied(graph: Graph, node: Node, product: Node) -> Node | None:
    """Let a product read what an Expand repeats, and expand its result if need be."""
    source, repeated = node.operands[0], node.output
    place = product.operands.index(repeated)
    summed = -1 if place == 0 else max(-2, -len(repeated.tensor.dims))
    if source.tensor.dims[summed] != repeated.tensor.dims[summed]:
        return None
    operands = [source if value is repeated else value for value in product.operands]
    a, b = (dims_of(value) for value in operands)
    out = dims_of(product.output)
    if a is None or b is None or out is None or min(len(a), len(b)) < 2:
        return None
    if (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1]) == out:
        graph.set_inputs(product, operands)
        return product
    made = Builder(graph, product, f"{product.name}.small", (product,))(product.op, *operands)
    return _expanded(graph, product, made)


def _expanded(graph: Graph, node: Node, value: Value) -> Node:
    """Replace a node by an Expand of this value to its shape."""
    sizes = Builder(graph, node).integers(node.output.tensor.dims, "sizes")
    return stand_in(graph, [node], node, Expand(), [value, sizes])


def _viewed(graph: Graph, node: Node, view: Node) -> Node | None:
    """Move an Expand behind a Transpose, or a view that leaves repeated axes to themselves."""
    source, out = node.operands[0], dims_of(view.output)
    small, whole = source.tensor.dims, node.output.tensor.dims
    add = Builder(graph, view, f"{view.name}.small", (view,))
    if isinstance(view.op, Transpose):
        return _expanded(graph, view, add(view.op, source))
    if out is None:
        return None
    sizes = list(out)
    for inner, outer in axis_groups(whole, out):
        repeated = [i for i in inner if small[i] != whole[i]]
        if not repeated:
            continue
        kept = [i for i in outer if out[i] != 1]
        if len(kept) != 1 or prod(whole[i] for i in inner) != whole[repeated[0]]:
            return None
        sizes[kept[0]] = 1
    if prod(sizes) != prod(small):
        return None
    return _expanded(graph, view, add.shaped(source, sizes, "sizes"))


def _merges(graph: Graph, node: Node, view: Node) -> bool:
    """Move elementwise readers of a view of an Expand to before the view, where they broadcast.

    But for those of images: convolutions ask for formats that a view of more axes does not have.
    """
    whole, out = node.output.tensor.dims, dims_of(view.output)
    moved = False
    for reader in graph.in_order(view.output.consumers):
        read = by_place(reader)
        if out is None or not broadcasts(reader) or dims_of(reader.output) != out:
            continue
        others = [value for value in read if value is not view.output]
        shapes = {value: _split(dims_of(value), whole, out) for value in others}
        if None in shapes.values() or view.output not in read:
            continue
        if any(map(_is_image, (*others, reader.output))):
            continue
        known = [shape for shape in shapes.values() if shape is not None]
        if whole in known:
            continue  # a chain reads what is repeated beside a tensor in whatever order that has
        if np.broadcast_shapes(node.operands[0].tensor.dims, *known) != whole:
            continue
        add = Builder(graph, reader, f"{reader.name}.whole", (reader,))
        known = {v: add.shaped(v, shapes[v] or (), "sizes") for v in others}
        value = add(reader.op, *inputs_with(reader, {**known, view.output: node.output}))
        nodes, sizes = [reader, *_followers(graph, reader)], add.integers(out, "sizes")
        for before, each in pairwise(nodes):
            inputs = inputs_with(each, {before.output: value})
            value = add(each.op, *inputs, name=f"{each.name}.whole")
        stand_in(graph, nodes, nodes[-1], to_sizes(out), [value, sizes])
        moved = True
    return moved


def _is_image(value: Value) -> bool:
    """Whether a convolution computes or reads a value, and so decides its format."""
    nodes = (value.producer, *value.consumers)
    return any(node is not None and isinstance(node.op, ConvOp) for node in nodes)


def _followers(graph: Graph, node: Node) -> Iterator[Node]:
    """Return the elementwise nodes behind a node that read nothing else, each the only reader."""
    readers = chain_behind(graph, node.output)
    return takewhile(lambda each: broadcasts(each) and len(each.distinct_reads) == 1, readers)


def _split(shape: Sizes | None, whole: Sizes, out: Sizes) -> Sizes | None:
    """Return the shape in which a tensor that is broadcast to `out` is to `whole`, of as many."""
    if shape is None:
        return None
    full, found = (1,) * (len(out) - len(shape)) + shape, [1] * len(whole)
    for inner, outer in axis_groups(whole, out):
        if all(full[i] == out[i] for i in outer):
            for i in inner:
                found[i] = whole[i]
        elif any(full[i] != 1 for i in outer):
            return None
    return tuple(found)
