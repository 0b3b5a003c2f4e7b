"""Operands of products that are read where they are: their nodes, and where elements lie."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.conv import Conv
from ....runtime.ops.elementwise import (
    Abs,
    Add,
    Cast,
    Div,
    Exp,
    Max,
    Mul,
    Relu,
    Sigmoid,
    Softplus,
    Sqrt,
)
from ....runtime.ops.movement import Slice, Transpose
from ....runtime.ops.norm import BatchNormalization, Softmax
from ....runtime.ops.shape import RESHAPES
from ....runtime.plan.format import Format
from ..codegen.elementwise import in_chains
from ..codegen.moves import MAX_NODES, Movement, movement, moves
from ..recipe.operands import Ints, Tensor, merge
from .atoms import HALVES

#: Bytes of a word.
WORD = 16
#: Operators whose results are not negative, those whose results are not if no operand is, and how
#: many nodes of these are looked at.
_NON_NEGATIVE = Abs | Exp | Relu | Sigmoid | Softmax | Softplus | Sqrt
_KEEPING = Add | Cast | Div | Max | Mul | Transpose
_LOOKED_AT = 12
#: Sizes and strides of the factors of an axis, outermost first.
Factors = list[tuple[int, int]]


@record
class Factor:
    """A factor of a product, and the nodes through which it is read.

    Attributes:
        x: the tensor that is read.
        nodes: in order; only the next one reads the result of each.
        movement: what they do, but for the Cast; None if nothing is moved.
        format: the format of the tensor.
    """

    x: Value
    nodes: tuple[Node, ...] = ()
    movement: Movement | None = None
    format: Format = Format.CONTIGUOUS

    @property
    def is_strided(self) -> bool:
        """Whether its rows are equally far apart, and its columns, too."""
        return self.strides is not None

    @property
    def strides(self) -> tuple[int, int] | None:
        """The strides of rows and columns; None if they have several."""
        found = self.axes(Tensor(self.x, self.format), 2)
        row, column = (None, None) if found is None else map(single_stride, found[0][-2:])
        return None if row is None or column is None else (row, column)

    def axes(self, x: Tensor, rank: int) -> tuple[list[Factors], int] | None:
        """Return the factors of each of the last `rank` axes, and the place of the first element.

        None if only a table has the places, as where views cut rows anew that are parts of others.

        Args:
            x: the tensor that is read, in its layout.
            rank: the number of axes; missing ones have no factors.
        """
        if self.movement is None:
            found = [[(size, stride)] for size, stride in zip(x.dims, x.strides, strict=True)]
            return [[]] * (rank - len(found)) + found, 0
        walk = self.movement.walk(x)
        if walk.table is not None:
            return None
        strides, axes = iter(walk.strides), list[Factors]()
        for sizes in self.movement.factors:
            axes.append([(size, next(strides)) for size in sizes])
        return [[]] * (rank - len(axes)) + axes, walk.origin


def factor_of(graph: Graph, product: Node, value: Value, free: Set[Node]) -> Factor:
    """Return a factor through as many nodes as possible that move it by strides, and one Cast.

    What only a table describes is left to one kernel that moves it all, if that is worth it, and
    parts of rows are slices.
    """
    chain: list[Node] = []
    reader, read = product, value
    while len(chain) < MAX_NODES:
        maker = read.producer
        if maker is None or maker not in free or graph.sole_consumer(read) is not reader:
            break
        widened = any(isinstance(node.op, Cast) for node in chain)
        if not moves(maker) and (widened or not _widens(maker)):
            break
        chain.insert(0, maker)
        reader, read = maker, maker.operands[0]
    for begin in range(len(chain)):
        nodes = tuple(chain[begin:])
        of_image = _is_image(graph, nodes[0].operands[0], nodes[0])
        if all(isinstance(node.op, RESHAPES) for node in nodes) and not of_image:
            break
        if nodes[1:] and _is_part_of_rows(nodes[0]) and not _is_divided(nodes):
            continue
        moving = [node for node in nodes if not isinstance(node.op, Cast)]
        found = movement(moving) if moving else None
        if moving and found is None:
            continue
        factor = Factor(nodes[0].operands[0], nodes, found)
        image = replace(factor, format=Format.CHANNELS_LAST)
        if of_image and image.strides is not None and 1 in image.strides:
            return image
        if found is None or factor.is_strided:
            return factor
        if found.is_worth and len(moving) == len(nodes):
            break
    return Factor(value)


def _is_image(graph: Graph, value: Value, reader: Node) -> bool:
    """Whether a tensor has channels last, and only this node and convolutions read it.

    That is how convolutions of 16-bit floats store images, and how rows of pixels are images; views
    may join axes of their pixels.
    """
    others = value.consumers.keys() - {reader}
    if graph.is_output(value) or not all(isinstance(node.op, Conv) for node in others):
        return False
    node, dims = value.producer, value.tensor.dims
    for _ in range(MAX_NODES):
        if node is None or len(dims) < 3 or node.output.tensor.dims[:2] != dims[:2]:
            return False
        if isinstance(node.op, Conv) or _is_of_rows(node):
            return node.output.tensor.dtype in HALVES
        if not in_chains(node) and not isinstance(node.op, RESHAPES):
            return False
        node = node.operands[0].producer
    return False


def _is_of_rows(node: Node) -> bool:
    """Whether a node makes an image of rows of pixels, which are that with channels last."""
    rank = len(node.output.tensor.dims)
    return isinstance(node.op, Transpose) and node.op.order(rank) == (
        0,
        rank - 1,
        *range(1, rank - 1),
    )


def becomes_image(graph: Graph, value: Value) -> bool:
    """Whether convolutions of 16-bit floats read a tensor, or what is computed of it and of images.

    All that do are elementwise or normalize channels, and take an image with channels last.
    """
    if value.tensor.dtype not in HALVES or len(value.tensor.dims) < 3:
        return False
    for _ in range(MAX_NODES):
        readers = list(value.consumers)
        if graph.is_output(value) or not all(map(_takes_image, readers)):
            return False
        if any(isinstance(r.op, Conv) or _meets_image(r, value) for r in readers):
            return True
        if len(readers) != 1:
            return False
        value = readers[0].output
    return False


def _takes_image(node: Node) -> bool:
    return in_chains(node) or isinstance(node.op, Conv | BatchNormalization)


def _meets_image(node: Node, value: Value) -> bool:
    """Whether a node combines a tensor with what a convolution computes."""
    others = (x for x in node.operands if x is not value and x.producer is not None)
    return any(isinstance(x.producer.op, Conv) for x in others if x.producer is not None)


def _is_part_of_rows(node: Node) -> bool:
    """Whether a node cuts words out of rows, which is a slice of the larger tensor in memory."""
    if not isinstance(node.op, Slice) or (part := movement([node])) is None:
        return False
    x, y = part.x.tensor, part.y.tensor
    elements = WORD // x.dtype.itemsize
    walk = part.walk(Tensor(part.x))
    sizes = x.dims[-1], y.dims[-1], walk.origin
    return (
        x.dims[:-1] == y.dims[:-1] and walk.table is None and not any(n % elements for n in sizes)
    )


def _is_divided(nodes: Sequence[Node]) -> bool:
    """Whether a part of rows becomes several rows each, not a slice of the larger tensor."""
    part, *views = (node.output.tensor.dims for node in nodes)
    return views[-1][-1] != part[-1] and all(isinstance(node.op, RESHAPES) for node in nodes[1:])


def _widens(node: Node) -> bool:
    """Whether a node makes float32 of a computed tensor of 16-bit floats."""
    if not isinstance(node.op, Cast) or node.output.tensor.dtype != float32:
        return False
    return node.operands[0].tensor.dtype in HALVES and not node.operands[0].is_constant


def single_stride(factors: Factors) -> int | None:
    """Return the stride of an axis, 0 for one element; None if it has several."""
    sizes, (strides,) = merge([size for size, _ in factors], [tuple(s for _, s in factors)])
    if len(sizes) > 1:
        return None
    return sum(strides) if prod(sizes) > 1 else 0


def common_factors(size: int, of_axis: Sequence[Factors]) -> list[tuple[int, Ints]] | None:
    """Return factors of a batch axis with the strides of all tensors; None if there are none."""
    left = [[(n, s) for n, s in factors if n > 1] or [(size, 0)] for factors in of_axis]
    found: list[tuple[int, Ints]] = []
    while size > 1:
        inner = min(factors[-1][0] for factors in left)
        if any(factors[-1][0] % inner for factors in left):
            return None
        found.insert(0, (inner, tuple(factors[-1][1] for factors in left)))
        for factors in left:
            count, stride = factors.pop()
            if count > inner:
                factors.append((count // inner, stride * inner))
        size //= inner
    return found


def is_never_negative(value: Value) -> bool:
    """Whether no element of a tensor is negative; rounding adds at most half a digit to its sums.

    Such as features of linear attention, whose products and sums cancel nothing.
    """
    todo = [value]
    for each in todo:
        node = each.producer
        if each.data is not None:
            if not bool((each.data >= 0).all()):
                return False
        elif node is None or len(todo) > _LOOKED_AT:
            return False
        elif isinstance(node.op, (Slice, *RESHAPES)):
            todo.append(node.operands[0])
        elif isinstance(node.op, _KEEPING):
            todo += node.distinct_reads
        elif not isinstance(node.op, _NON_NEGATIVE):
            return False
    return True
