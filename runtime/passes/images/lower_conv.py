"""Rewrites convolutions: of whole images and by computed filters as products; over fewer axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ...ir.chains import chain_behind
from ...ir.graph import Graph, Node, Value
from ...ir.types import Shape
from ...ops.conv import Conv, convolves_pixels
from ...ops.elementwise import Add, Clip, Mul, Unary
from ...ops.matmul import Gemm, MatMul
from ...ops.movement import Slice, Split, Transpose
from ...ops.norm import LayerNormalization, RMSNormalization
from ...ops.shape import Reshape
from ...ops.window import Window, window
from ..driver import Context
from ..editing import Builder, drop, is_static, shape_of
from ..linear import as_linear
from ..moves.transpose_images import IMAGES, to_channels_first, to_channels_last
from ..pointwise import by_place

#: Operators of rows, which are in C order.
_OF_ROWS = MatMul | Gemm | LayerNormalization | RMSNormalization
#: Images have at most three spatial axes on most devices: one that is joined, and two others.
_MIN_RANK, _MAX_OTHERS = 6, 2
#: The size in a Reshape that follows from the others.
_INFERRED = -1


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace each Conv that gives one pixel and reads every element once by Gemm.

    Squeeze-and-excite blocks and the heads of many networks are such layers. Activations after them
    work on the rows as well, so that only views remain around the whole.

    A Conv of single pixels by filters that are computed (CondConv, where each image may have its
    own, as a group) is a product of these, which no algorithm for constant filters computes.

    A Conv over more than three axes (JAX) is one over fewer of them, if its windows have one
    element along the others: these are joined.

    A Conv of single places of a line that mixes rows of tokens (gMLP) is a product whose left
    matrix is constant, as rows are never stored with channels last.
    """
    for node in list(graph.nodes):
        if node in graph and _is_whole(node):
            yield _lower(graph, node)
        elif node in graph and _has_computed_filters(node):
            yield _multiply_pixels(graph, node)
        elif node in graph and (axes := _plain_axes(node)):
            yield _join(graph, node, axes)
        elif node in graph and _mixes_rows(graph, node):
            yield _multiply_rows(graph, node)


def _mixes_rows(graph: Graph, node: Node) -> bool:
    """Whether channels of a Conv of single places are rows that layers make and read."""
    op, linear = node.op, as_linear(node)
    if not isinstance(op, Conv) or linear is None or op.group != 1 or not convolves_pixels(node):
        return False
    shape = shape_of(node.inputs[0]) or ()
    if len(shape) != 3 or not isinstance(shape[2], int):
        return False
    made = node.operands[0].producer
    while made is not None and (by_place(made) or isinstance(made.op, Slice | Split)):
        made = made.operands[0].producer
    reader = graph.sole_consumer(node.output)
    while reader is not None and by_place(reader):
        reader = graph.sole_consumer(reader.output)
    return made is not None and isinstance(made.op, _OF_ROWS) and _reads_rows(reader)


def _reads_rows(node: Node | None) -> bool:
    """Whether a layer or a normalization reads the rows of its first operand."""
    return node is not None and isinstance(node.op, _OF_ROWS) and node.operands[0].data is None


def _multiply_rows(graph: Graph, node: Node) -> str:
    x, weight, *bias = node.operands
    assert weight.data is not None
    add, name = Builder(graph, node, node.name, (node,)), node.name
    matrix = add.constant(weight.data.reshape(weight.data.shape[:2]), f"{weight.name}.matrix")
    y = add(MatMul(), matrix, x)
    for addend in bias:
        y = add(Add(), y, add.shaped(addend, (-1, 1)))
    graph.replace(node, (y,))
    return f"Conv '{name}' of rows is a product"


def run_bound(graph: Graph, context: Context) -> Iterator[str]:
    """Replace each Conv that multiplies single numbers by Mul and Add, which are elementwise.

    So are convolutions of single pixels of one channel (residual branches at the input of a network
    of volumes), and depthwise ones. Their types are chosen before, as those of layers.
    """
    for node in list(graph.nodes):
        if node in graph and _scales(node):
            yield _scale(graph, node)


def _scales(node: Node) -> bool:
    """Whether each result of a Conv is the product of one element and a constant, and a bias."""
    op, linear = node.op, as_linear(node)
    if not isinstance(op, Conv) or linear is None or not is_static(node.output):
        return False
    outputs, terms, *window = linear.weight.shape
    if op.may_pad or terms != 1 or {*window, *(op.strides or ())} != {1} or not linear.weight.size:
        return False
    return op.group in (1, outputs) and node.output.tensor.dtype.kind == "f"


def _scale(graph: Graph, node: Node) -> str:
    x, weight, *bias = node.operands
    assert weight.data is not None
    ones = (1,) * (len(weight.data.shape) - 2)
    add, name = Builder(graph, node, node.name, (node,)), node.name
    y = add(Mul(), x, add.constant(weight.data.reshape(-1, *ones), weight.name))
    for addend in bias:
        y = add(Add(), y, add.shaped(addend, (-1, *ones)))
    graph.replace(node, (y,))
    return f"Conv '{name}' multiplies single numbers"


def _is_whole(node: Node) -> bool:
    """Whether a node is a Conv of constant filters, each as large as the image."""
    op, linear = node.op, as_linear(node)
    if not isinstance(op, Conv) or linear is None or op.group != 1 or not linear.weight.size:
        return False
    image = shape_of(node.inputs[0])
    return not op.may_pad and image is not None and image[1:] == linear.weight.shape[1:]


def _has_computed_filters(node: Node) -> bool:
    """Whether a node is a Conv of single pixels, of known size, by filters that are computed.

    Several groups are those of one image.
    """
    op, (x, w) = node.op, (*node.inputs, None, None)[:2]
    image, filters = shape_of(x), shape_of(w)
    if not isinstance(op, Conv) or w is None or w.data is not None or not image or not filters:
        return False
    sizes = [size for size in (*image[1:], *filters) if isinstance(size, int) and size]
    if len(sizes) < len(image) + len(filters) - 1 or len(image) not in IMAGES:
        return False
    if op.may_pad or any(size != 1 for size in (*filters[2:], *(op.strides or ()))):
        return False
    return op.group == 1 or image[0] == 1


def _multiply_pixels(graph: Graph, node: Node) -> str:
    """Replace it by a product of rows, which are pixels of an image with channels last."""
    x, w, b = (*node.inputs, None)[:3]
    image, filters, result = shape_of(x) or (), shape_of(w) or (), shape_of(node.output) or ()
    groups = getattr(node.op, "group", 1)
    count, channels, *sides = (n for n in (*filters[:2], *image[2:]) if isinstance(n, int))
    add = Builder(graph, node, f"{node.name}.pixels", (node,))

    def shaped(value: Value | None, *sizes: int) -> Value:
        return add.shaped(value, sizes, "sizes")

    first, last = to_channels_first(len(image)), to_channels_last(len(image))
    stack = () if groups == 1 else (groups,)
    x = x if groups == 1 else shaped(x, groups, channels, *sides)
    rows = shaped(add(Transpose(perm=last), x), *stack, -1, channels)
    transpose = Transpose(perm=(*range(len(stack)), len(stack) + 1, len(stack)))
    y = add(MatMul(), rows, add(transpose, shaped(w, *stack, count // groups, channels)))
    if b is not None:
        y = add(Add(), y, shaped(b, *stack, 1, count // groups))
    y = add(Transpose(perm=first), shaped(y, -1, *sides, count // groups))
    if groups > 1:
        y = shaped(y, 1, count, *(n for n in result[2:] if isinstance(n, int)))
    name = node.name
    graph.replace(node, [y])
    return f"Conv '{name}' of pixels by computed filters is a product"


def _plain_axes(node: Node) -> tuple[int, ...]:
    """Return the spatial axes of a Conv over more than three that have windows of one element.

    There are none if that leaves more than two others, or one of unknown size, or if the sizes of
    several are unknown: a Reshape can infer one.
    """
    x, w = (*node.inputs, None, None)[:2]
    image, filters = shape_of(x), shape_of(w)
    if not isinstance(node.op, Conv) or not image or not filters or len(image) < _MIN_RANK:
        return ()
    sizes, kernel = _sizes(image[2:]), _integers(filters[2:])
    inferred = [k for size, k in zip(sizes, kernel, strict=False) if size == _INFERRED]
    if not kernel or inferred not in ([], [1]):
        return ()
    view = _window(node, sizes, kernel)
    ends = zip(view.kernel, view.strides, view.pads_begin, view.pads_end, strict=True)
    plain = tuple(axis for axis, each in enumerate(ends) if each == (1, 1, 0, 0))
    known = all(size != _INFERRED or axis in plain for axis, size in enumerate(sizes))
    return plain if known and len(sizes) - len(plain) <= _MAX_OTHERS else ()


def _window(node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> Window:
    """Return the window of a Conv; an axis of unknown size counts only if it has one element."""
    return window(node.op, tuple(1 if size == _INFERRED else size for size in sizes), kernel)


def _sizes(sizes: Shape) -> tuple[int, ...]:
    """Return sizes as a Reshape may have them, where one at most is unknown."""
    return tuple(size if isinstance(size, int) else _INFERRED for size in sizes)


def _integers(sizes: Shape) -> tuple[int, ...]:
    """Return sizes that are all known; none if one is not."""
    known = tuple(size for size in sizes if isinstance(size, int))
    return known if len(known) == len(sizes) else ()


def _join(graph: Graph, node: Node, plain: tuple[int, ...]) -> str:
    """Replace a Conv by one with a single axis in the place of some, in front of the others."""
    x, w, *bias = node.inputs
    sizes, kernel = (_sizes((shape_of(value) or ())[2:]) for value in (x, w))
    view = _window(node, sizes, kernel)
    others = tuple(axis for axis in range(len(sizes)) if axis not in plain)
    order = (0, 1, *(2 + axis for axis in (*plain, *others)))
    add = Builder(graph, node, f"{node.name}.joined", (node,))

    def shaped(value: Value | None, *ends: int) -> Value:
        return add(Reshape(), value, add.integers((0, 0, *ends), "sizes"))

    def transposed(value: Value | None, perm: tuple[int, ...]) -> Value | None:
        return value if perm == tuple(range(len(perm))) else add(Transpose(perm=perm), value)

    def kept(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[axis] for axis in others)

    joined = [sizes[axis] for axis in plain]
    rows = _INFERRED if _INFERRED in joined else prod(joined)
    image = shaped(transposed(x, order), rows, *kept(sizes))
    op = Conv(
        group=getattr(node.op, "group", 1),
        strides=(1, *kept(view.strides)),
        dilations=(1, *kept(view.dilations)),
        pads=(0, *kept(view.pads_begin), 0, *kept(view.pads_end)),
    )
    y = add(op, image, shaped(transposed(w, order), 1, *kept(kernel)), *bias, name=node.name)
    y = shaped(y, *joined, *kept(view.output))
    name, back = node.name, tuple(order.index(axis) for axis in range(len(order)))
    graph.replace(node, [transposed(y, back) or y])
    return f"Conv '{name}' is one over {len(others) + 1} axes"


def _lower(graph: Graph, node: Node) -> str:
    linear = as_linear(node)
    assert linear is not None
    channels = len(linear.weight)
    add = Builder(graph, node, f"{node.name}.rows", (node,))
    rows = _rows(add, node.inputs[0], prod(linear.weight.shape[1:]))
    weight = graph.constant(linear.weight.reshape(channels, -1), f"{node.name}.matrix")
    last, value = node, add(Gemm(transB=1), rows, weight, *node.inputs[2:], name=node.name)
    nodes = [node]
    for follower in chain_behind(graph, node.output):
        if not isinstance(follower.op, (Unary, Clip)) or follower.inputs[0] is not last.output:
            break
        behind = Builder(graph, follower, follower.name, (follower,))
        value, last = behind(follower.op, value, *follower.inputs[1:]), follower
        nodes.append(last)
    add = Builder(graph, last, f"{last.name}.image", (last,))
    sizes = add.integers((-1, channels, *(1 for _ in linear.weight.shape[2:])), "sizes")
    graph.redirect(last.output, add(Reshape(), value, sizes))
    for old in reversed(nodes):
        drop(graph, old)
    return f"Conv '{node.name}' of whole images is a Gemm"


def _rows(add: Builder, image: Value | None, size: int) -> Value:
    """Return an image as one row, or the row from which the image was reshaped."""
    source = None if image is None else image.producer
    if source is not None and isinstance(source.op, Reshape) and source.inputs[0] is not None:
        before = shape_of(source.inputs[0])
        if before is not None and len(before) == 2 and before[1] == size:
            return source.inputs[0]
    return add(Reshape(), image, add.integers((-1, size), "sizes"))
