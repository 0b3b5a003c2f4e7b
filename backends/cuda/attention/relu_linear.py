"""ReLU linear attention: its detection in the graph, and its kernel.

Cai et al., "EfficientViT: Multi-Scale Linear Attention for High-Resolution Dense Prediction", 2023:
y = relu(q) (relu(k)' v) / (relu(q) sum(relu(k)) + epsilon), the divisor by a column of ones in v.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from math import gcd, prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.op import Op
from ....runtime.ops.cuts import part_of
from ....runtime.ops.elementwise import Add, Cast, Div, Relu
from ....runtime.ops.matmul import MatMul
from ....runtime.ops.movement import Pad, Transpose
from ....runtime.ops.shape import Reshape
from ....runtime.plan.format import Format
from ....runtime.plan.partition import results_of
from ..algorithms.registry import Answer, need_dtypes
from ..gemm.atoms import HALVES
from ..recipe.launch import Launch
from ..recipe.operands import Tensor
from ..recipe.pattern import Grouping, OperandOf, Whole
from ..recipe.setting import Setting, Stored

#: Supported head sizes.
SIZES = (8, 16, 32, 64)
#: Maximum number of blocks along the second grid axis.
MAX_IMAGES = 65535


@record
class ReluLinear(Whole):
    """Nodes that compute ReLU linear attention.

    Attributes:
        nodes: all its nodes.
        x: the input, [images, heads * 3 * size, *spatial].
        y: the result, [images, heads * size, *spatial].
        heads, size: number and size of heads.
        epsilon: added to the divisor.
    """

    nodes: frozenset[Node]
    x: Value
    y: Value
    heads: int
    size: int
    epsilon: float

    regrouped = Grouping.ALONE

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats of the input and the result; see `Pattern`."""
        images = (v for v in (self.x, self.y) if v.tensor.rank == 4)
        return dict.fromkeys(images, Format.CHANNELS_LAST)

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return relu_linear(self, y, operand(self.x))


@record
class _Part:
    """Channels of each head of an image, [images, heads, size, pixels] or transposed.

    Attributes:
        x: the image.
        nodes: the nodes that extract the part.
        begin, size: range of channels within a head.
        transposed: whether pixels come before channels.
        rectified: whether there is a relu.
    """

    x: Value
    nodes: frozenset[Node]
    begin: int
    size: int
    transposed: bool = False
    rectified: bool = False


def relu_linear_at(graph: Graph, division: Node, free: Set[Node]) -> ReluLinear | None:
    """Return the ReLU linear attention that ends with this division, if there is one.

    Heads may be [pixels, channels] or [channels, pixels] matrices, and there may be casts on the
    way: stored values are rounded, sums are not.
    """
    if not isinstance(division.op, Div) or division not in free:
        return None
    above, divisor = division.inputs
    sums = _sum_of(divisor)
    if above is None or sums is None or above.tensor.rank != 4:
        return None
    addition, below, epsilon = sums
    first, last = part_of(above), part_of(below)
    if first is None or first.places.start:
        return None
    product, axis, size = first.source, first.axis, first.places.stop
    if last != (product, axis, range(size, size + 1)) or product.tensor.dims[axis] != size + 1:
        return None
    inner = _product(product, transposed=axis == 3)
    if inner is None:
        return None
    q, k, v, nodes = inner
    cuts = {value.producer for value in (above, below) if value.producer is not None}
    ending = _ending(graph, division, transposed=axis == 3)
    if ending is None or not q.x is k.x is v.x:
        return None
    y, behind = ending
    heads, places = q.x.tensor.dims[1] // (3 * size), [(p.begin, p.size) for p in (q, k, v)]
    if places != [(0, size), (size, size), (2 * size, size)]:
        return None
    if (y.tensor.dims[:2], y.tensor.dims[2:]) != (
        (q.x.tensor.dims[0], heads * size),
        q.x.tensor.dims[2:],
    ):
        return None
    found = frozenset({division, addition, *cuts, *behind}) | nodes
    if not found <= free or not _is_closed(graph, found, y):
        return None
    return ReluLinear(found, q.x, y, heads, size, epsilon)


def _is_closed(graph: Graph, nodes: frozenset[Node], y: Value) -> bool:
    """Whether only these nodes read their values, except for the result."""
    return not set(results_of(graph, nodes)) - {y}


def _sum_of(value: Value | None) -> tuple[Node, Value, float] | None:
    """Return the node that adds a number to a value, the value and the number."""
    node = None if value is None else value.producer
    if node is None or not isinstance(node.op, Add):
        return None
    numbers = [v for v in node.distinct_reads if v.data is not None and v.data.size == 1]
    others = [v for v in node.distinct_reads if v.data is None]
    if len(numbers) != 1 or len(others) != 1 or numbers[0].data is None:
        return None
    return node, others[0], float(numbers[0].data.reshape(()))


def _product(
    value: Value, *, transposed: bool
) -> tuple[_Part, _Part, _Part, frozenset[Node]] | None:
    """Return q, k, v and the nodes of q (k' v), or of (v k') q with channels first."""
    outer, casts = _through(value)
    if outer is None or not isinstance(outer.op, MatMul):
        return None
    left, right = outer.operands if transposed else reversed(outer.operands)
    inner, more = _through(right)
    q = _part(left)
    if inner is None or not isinstance(inner.op, MatMul) or q is None:
        return None
    of_k, of_v = inner.operands if transposed else reversed(inner.operands)
    k, padded = _part(of_k), _padded(of_v, axis=3 if transposed else 2)
    if k is None or padded is None:
        return None
    v, pads = padded
    # The inner product is channels by channels, summed over pixels.
    fits = q.transposed == v.transposed == transposed and k.transposed != transposed
    if not fits or not (q.rectified and k.rectified) or v.rectified:
        return None
    nodes = casts | more | pads | q.nodes | k.nodes | v.nodes | {outer, inner}
    return q, k, v, nodes


def _through(value: Value) -> tuple[Node | None, frozenset[Node]]:
    """Return a value before casts, and these casts."""
    casts: set[Node] = set()
    node = value.producer
    while node is not None and isinstance(node.op, Cast) and node.inputs[0] is not None:
        casts.add(node)
        node = node.inputs[0].producer
    return node, frozenset(casts)


def _padded(value: Value, axis: int) -> tuple[_Part, frozenset[Node]] | None:
    """Return the part to which a channel of ones is appended, and the nodes that append it."""
    node, casts = _through(value)
    if node is None or not isinstance(node.op, Pad) or node.op.mode != "constant":
        return None
    data, pads, one, axes = (*node.inputs, None, None)[:4]
    if data is None or pads is None or pads.data is None or one is None or one.data is None:
        return None
    ends = [0] * 8
    given = () if axes is None or axes.data is None else axes.data.reshape(-1).tolist()
    given = range(4) if axes is None else given
    numbers = pads.data.tolist()
    for i, where in enumerate(given):
        ends[where % 4], ends[4 + where % 4] = numbers[i], numbers[len(numbers) // 2 + i]
    if float(one.data.reshape(())) != 1 or ends != [int(i == 4 + axis) for i in range(8)]:
        return None
    part = _part(data)
    return None if part is None else (part, casts | {node})


def _part(value: Value) -> _Part | None:
    """Return a value as channels of an image's heads."""
    node = value.producer
    if node is None or value.tensor.rank != 4 or not node.inputs or node.inputs[0] is None:
        return None
    source, op = node.inputs[0], node.op
    if isinstance(op, Reshape):
        return _image(source, value, node)
    inner, part = _part(source), part_of(value)
    if inner is None:
        return None
    nodes = inner.nodes | {node}
    if isinstance(op, Cast):
        return replace(inner, nodes=nodes)
    if isinstance(op, Relu):
        return replace(inner, nodes=nodes, rectified=True)
    if isinstance(op, Transpose) and op.order(4) == (0, 1, 3, 2):
        return replace(inner, nodes=nodes, transposed=not inner.transposed)
    if part is None or part.axis != (3 if inner.transposed else 2):
        return None
    begin = inner.begin + part.places.start
    return replace(inner, nodes=nodes, begin=begin, size=len(part.places))


def _image(x: Value, value: Value, node: Node) -> _Part | None:
    """Return all channels of an image whose heads have a separate axis."""
    images, heads, size, pixels = value.tensor.dims
    if len(x.tensor.dims) < 3 or (images, heads * size) != x.tensor.dims[:2]:
        return None
    return _Part(x, frozenset({node}), 0, size) if pixels == prod(x.tensor.dims[2:]) else None


def _ending(graph: Graph, node: Node, *, transposed: bool) -> tuple[Value, frozenset[Node]] | None:
    """Return the image that heads are merged to, and the nodes that do so."""
    value, nodes = node.output, set[Node]()
    wanted: list[type[Op]] = [Transpose, Reshape] if transposed else [Reshape]
    while wanted:
        behind = graph.sole_consumer(value)
        if behind is None or not isinstance(behind.op, (wanted[0], Cast)):
            return None
        if isinstance(behind.op, Transpose) and behind.op.order(4) != (0, 1, 3, 2):
            return None
        if not isinstance(behind.op, Cast):
            wanted.pop(0)
        nodes.add(behind)
        value = behind.output
    behind = graph.sole_consumer(value)
    if behind is not None and isinstance(behind.op, Cast):
        nodes.add(behind)
        value = behind.output
    return value, frozenset(nodes)


def relu_linear(found: ReluLinear, y: Tensor, x: Tensor) -> Answer:
    """Return the launch of ReLU linear attention."""
    refused = need_dtypes(HALVES | {float32}, x, y)
    if refused:
        return refused
    size, images = found.size, x.dims[0]
    if size not in SIZES:
        return f"heads of {size}"
    if images > MAX_IMAGES or max(x.extent, y.extent) >= 2**31:
        return f"{images} images of {x.size} elements"
    words = gcd(16 // x.dtype.itemsize, size, x.strides[-1])
    return Launch(
        "attention/relu_linear.cu",
        "relu_linear",
        grid=(found.heads, images, 1),
        block=256,
        args={
            **{"x": x, "y": y, "pixels": prod(x.dims[2:]), "epsilon": found.epsilon},
            **{"of_x": _places(x), "of_y": _places(y)},
        },
        types=(("T", x.dtype), ("R", y.dtype)),
        constants=(("SIZE", size), ("VECTOR", words if x.is_channels_last else 1)),
        note=f"{found.heads} heads of {size}",
        pitched=(x, y),
    )


def _places(image: Tensor) -> dict[str, int]:
    first, channel, *_, pixel = image.strides
    return {"image": first, "channel": channel, "pixel": pixel}
