"""Moves a Reshape after a matrix product before it, if it only regroups rows or matrices."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ...ir.chains import chain_behind
from ...ir.graph import Graph, Node, Value
from ...ir.op import with_attributes
from ...ir.types import Array, Shape
from ...ops.conv import Conv, convolves_pixels
from ...ops.cuts import axis_of
from ...ops.elementwise import Add, Div, Mul
from ...ops.matmul import Gemm, MatMul
from ...ops.norm import Softmax
from ...ops.shape import RESHAPES, Flatten, Reshape
from ..driver import Context, Reason
from ..editing import Builder, drop, rank_of, shape_of
from ..fusion import Found, Fusion, Outcome, Replacement, fuse
from ..pattern import Apply
from ..rounding import may_round_before

_VIEWS = (Reshape, Flatten)


def _is_layer(node: Node) -> bool:
    """Whether a node multiplies rows by a constant matrix, and adds at most a constant row."""
    weight = node.inputs[1]
    if weight is None or weight.data is None or weight.data.ndim != 2:
        return False
    op = node.op
    if not isinstance(op, Gemm):
        return True
    row = _row(node)
    is_row = row is None or (
        row.data is not None
        and row.data.shape == (_width(node),)
        and may_round_before(row.data, row.data.dtype)
    )
    return (op.alpha, op.beta, op.transA) == (1, 1, 0) and is_row


def _row(node: Node) -> Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


def _width(node: Node) -> int:
    weight = node.inputs[1]
    if weight is None or weight.data is None:
        raise TypeError(f"'{node.name}' has no constant weight")
    return weight.data.shape[0 if getattr(node.op, "transB", 0) else 1]


def _build(found: Found) -> Outcome:
    node, wanted, read = found.match.made("rows"), shape_of(found.top.output), found["x"]
    shape = shape_of(read)
    if wanted is None or shape is None or len(wanted) <= len(shape) or 0 in (*wanted, *shape):
        return None
    if wanted[-1] != _width(node):
        return None
    before = (*wanted[:-1], shape[-1])
    add = found.builder(f"{node.name}.rows", (node,))
    x = _shaped(found, node, add, read, before)
    if not isinstance(x, Value):
        return x
    weight, row = node.inputs[1], _row(node)
    if weight is not None and weight.data is not None and getattr(node.op, "transB", 0):
        transposed: Array = np.ascontiguousarray(weight.data.T)
        weight = found.graph.constant(transposed, weight.name)
    if row is None:
        return Replacement(MatMul(), (x, weight), named=node)
    product = add(MatMul(), x, weight, name=node.name)
    return Replacement(Add(), (product, row))


def _is_pointwise(node: Node) -> bool:
    """Whether a node convolves single pixels with constant filters."""
    return convolves_pixels(node) and node.operands[1].data is not None


def _build_image(found: Found) -> Outcome:
    """Return the convolution of the image that pixels in one axis are behind it."""
    node, wanted, read = found.match.made("pixels"), shape_of(found.top.output), found["x"]
    shape, weight = shape_of(read), node.inputs[1]
    if wanted is None or shape is None or weight is None or weight.data is None:
        return None
    channels = weight.data.shape[0]
    if len(shape) != 3 or len(wanted) != 4 or wanted[:2] != (shape[0], channels):
        return None  # windows that an image is cut into are no image
    before = (*wanted[:1], shape[1], *wanted[2:])
    add = found.builder(f"{node.name}.image", (node,))
    x = _shaped(found, node, add, read, before)
    if not isinstance(x, Value):
        return x
    filters = weight.data.reshape(*weight.data.shape[:2], *(1 for _ in wanted[2:]))
    op = Conv(group=getattr(node.op, "group", 1))
    return Replacement(op, (x, found.graph.constant(filters, weight.name), *node.inputs[2:]))


def _shaped(found: Found, node: Node, add: Builder, read: Value, dims: Shape) -> Value | Outcome:
    """Return what a product reads in another shape, or why there is none."""
    if sum(not isinstance(size, int) for size in dims) > 1:
        return found.refuse(Reason.SHAPE, f"more than one size of {found.top.output.type} varies")
    x = _source(read, dims)
    if shape_of(x) == dims:
        return x
    return add.shaped(x, dims, f"{node.name}.sizes")


def _source(value: Value, wanted: Shape) -> Value:
    """Return the value that another one is a view of, so that consecutive views become one."""
    while (node := value.producer) is not None and isinstance(node.op, _VIEWS):
        if shape_of(value) == wanted or node.inputs[0] is None or rank_of(node.inputs[0]) is None:
            break
        value = node.inputs[0]
    return value


# ── products of many matrices ────────────────────────────────────────────────────────────────────


def _split_batches(graph: Graph) -> Iterator[str]:
    """Give products with one batch axis the batch axes that their result is reshaped to.

    The last come first: operands that get more axes may be results of products, too.
    """
    for node in reversed(list(graph.nodes)):
        if node not in graph or not isinstance(node.op, MatMul):
            continue
        a, b = (value for value in node.inputs if value is not None)
        left, right = _static(a), _static(b)
        if left is None or right is None or a.data is not None or b.data is not None:
            continue
        (count, rows, inner), (other, _, columns) = left, right
        split = _split_behind(graph, node, count, rows, columns)
        if split is None or count != other or not count * rows * inner * columns:
            continue
        last, outer, between = split
        add = Builder(graph, node, node.name, (node,))
        parts = (
            _reshaped(add, a, (*outer, rows, inner)),
            _reshaped(add, b, (*outer, inner, columns)),
        )
        product = add(MatMul(), *parts)
        for each in between:
            after = Builder(graph, each, each.name, (each,))
            op = with_attributes(each.op, axis=-1) if isinstance(each.op, Softmax) else each.op
            product = after(op, *(v if v and v.data is not None else product for v in each.inputs))
            add = Builder(graph, last)
        graph.redirect(last.output, _reshaped(add, product, shape_of(last.output) or ()))
        drop(graph, last)
        yield f"MatMul '{node.name}' has the batch axes {outer} of its {count} matrices"


def _equal_axes(graph: Graph) -> Iterator[str]:
    """Give both operands of a product the same batch axes, where one lacks leading ones of size 1.

    PyTorch's optimizer takes views of a single sample away from one of them.
    """
    for node in list(graph.nodes):
        if not isinstance(node.op, MatMul):
            continue
        shapes = [shape_of(value) or () for value in node.operands]
        short, long = sorted(shapes, key=len)
        ones = len(long) - len(short)
        known = all(isinstance(size, int) for size in (*short, *long))
        if not known or not ones or len(short) < 3 or long[:-2] != (1,) * ones + short[:-2]:
            continue
        place = shapes.index(short)
        value, add = node.operands[place], Builder(graph, node, node.name, (node,))
        if value.data is None:
            wide = _reshaped(add, value, (1,) * ones + short)
            graph.set_inputs(node, [wide if i == place else v for i, v in enumerate(node.inputs)])
            yield f"both operands of MatMul '{node.name}' have {len(long) - 2} batch axes"


def _static(value: Value) -> tuple[int, int, int] | None:
    """Return number, rows and columns of the matrices in a tensor of three axes."""
    sizes = tuple(size for size in shape_of(value) or () if isinstance(size, int))
    if len(sizes) != 3 or rank_of(value) != 3:
        return None
    return sizes[0], sizes[1], sizes[2]


def _split_behind(
    graph: Graph, node: Node, count: int, rows: int, columns: int
) -> tuple[Node, tuple[int, ...], list[Node]] | None:
    """Return the view after a product that splits its batch axis into several, and these.

    Axes of size 1 may follow those of the matrices. Scales and a Softmax of rows may precede the
    view; they are returned, too.
    """
    last, between = node, list[Node]()
    for reader in chain_behind(graph, node.output):
        weighs = isinstance(reader.op, Softmax) and axis_of(reader) == 2
        if last in (node, *between) and (weighs or _scales(reader)):
            between.append(reader)
            last = reader
            continue
        if not isinstance(reader.op, RESHAPES) or reader.inputs[0] is not last.output:
            return None
        shape, last = shape_of(reader.output) or (), reader
        sizes = tuple(size for size in shape if isinstance(size, int))
        if len(sizes) < len(shape):
            continue
        while len(sizes) > 3 and sizes[-2:] != (rows, columns) and sizes[-1] == 1:
            sizes = sizes[:-1]
        if len(sizes) > 3 and sizes[-2:] == (rows, columns):
            return (last, sizes[:-2], between) if prod(sizes[:-2]) == count else None
    return None


def _scales(node: Node) -> bool:
    """Whether a node multiplies or divides by one number."""
    known = [value for value in node.operands if value.data is not None]
    return isinstance(node.op, Mul | Div) and [
        v.data.size for v in known if v.data is not None
    ] == [1]


def _reshaped(add: Builder, value: Value, wanted: Shape) -> Value:
    """Return a value in another shape, reusing the source of a view that has this shape."""
    while (node := value.producer) is not None and isinstance(node.op, RESHAPES):
        if shape_of(value) == wanted or node.inputs[0] is None:
            break
        value = node.inputs[0]
    if shape_of(value) == wanted:
        return value
    sizes = (size for size in wanted if isinstance(size, int))
    return add.shaped(value, sizes, f"{add.before.name}.sizes")


def _fusions(*, transposed: bool) -> tuple[Fusion, ...]:
    def fits(node: Node) -> bool:
        return _is_layer(node) and (transposed or not getattr(node.op, "transB", 0))

    rows = Apply((Gemm, MatMul), "x", name="rows", where=fits)
    text = "the Reshape after '{anchor}' now precedes {new}"
    return (Fusion(rows, _build, Apply(Reshape, "rows"), 1, text=text),)


#: Attention of images convolves their pixels in one axis (guided diffusion).
_PIXELS = Fusion(
    Apply(Conv, "x", name="pixels", where=_is_pointwise),
    _build_image,
    Apply(Reshape, "pixels"),
    1,
    text="the Reshape after '{anchor}' now precedes {new}",
)
FUSIONS = (*_fusions(transposed=True), _PIXELS)
#: The fusions that do not change weights.
BOUND = _fusions(transposed=False)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Give products of rows the axes that their result is reshaped to.

    ``reshape(flatten(x) @ w + b, [..., n])`` becomes ``x @ w + b`` without a view. Activations or
    sums that follow then read the product itself, and layers of all exporters look alike. Weights
    are constant; a Gemm becomes MatMul and Add. So it is with convolutions of single pixels, which
    then add what is added to their image. Products with one batch axis, as tf2onnx writes
    Einsum, get the batch axes of the Reshape after them, and both operands as many.
    """
    yield from fuse(graph, context, FUSIONS)
    yield from _split_batches(graph)
    yield from _equal_axes(graph)


def run_bound(graph: Graph, context: Context) -> Iterator[str]:
    """As `run`, for known sizes and without creating weights."""
    yield from fuse(graph, context, BOUND)
    yield from _split_batches(graph)
    yield from _equal_axes(graph)
