"""Attention whose mask is read where its elements are: once for many samples, rows or keys.

Such are masks that a Tile repeats for all samples (Swin's windows), and sums of a number for each
row of keys and one for each column (decomposed relative positions: ViTDet, SAM, MViT).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import pairwise
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.attention import Attention
from ....runtime.ops.elementwise import Add
from ....runtime.ops.movement import Expand, Tile
from ..algorithms.registry import Answer, Setting, Stored
from ..codegen.moves import MOVING, coordinates_through, linear
from ..recipe.operands import Ints, Tensor, merge
from ..recipe.pattern import OperandOf, Whole
from .flash import flash
from .heads import AttentionTask, by_head
from .mask_terms import MaskTerm, MaskTerms

#: Inputs of an Attention up to the mask.
INPUTS = 4


@record
class MaskedAttention(Whole):
    """An Attention and the nodes that make its mask of smaller tensors.

    Attributes:
        attention: the Attention.
        before: the nodes.
        values: the tensors of which one is repeated for samples, or two are added.
        places: the strides in these (see `MaskTerm`), unless there is only one.
        samples, inner: see `MaskTerms`.
    """

    attention: Node
    before: tuple[Node, ...]
    values: tuple[Value, ...]
    places: tuple[tuple[Ints, Ints], ...] = ()
    samples: int = 0
    inner: Ints = (0, 0)

    reads_rows = True

    @property
    def nodes(self) -> frozenset[Node]:
        """All nodes."""
        return frozenset({self.attention, *self.before})

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        op = self.attention.op
        assert isinstance(op, Attention)
        if stored.halves:
            return "rows in halves, whose mask is not repeated"
        counts = op.q_num_heads, op.kv_num_heads, op.kv_num_heads
        read = (operand(value) for value in self.attention.operands[:3])
        q, k, v = (by_head(x, count) for x, count in zip(read, counts, strict=True))
        masks = [operand(value) for value in self.values]
        terms = None
        if self.places:
            found = (MaskTerm(x, *at) for x, at in zip(masks, self.places, strict=True))
            terms = MaskTerms(tuple(found), self.samples, self.inner)
        task = AttentionTask(op, q, k, v, by_head(y, counts[0]), masks[0], terms=terms)
        return flash(task, setting.target)


def masked_attention_at(graph: Graph, node: Node, free: Set[Node]) -> MaskedAttention | None:
    """Return the attention that a node is, if its mask can be read where its elements are.

    Args:
        graph: the graph.
        node: an Attention.
        free: nodes that may be taken.
    """
    if len(node.inputs) != INPUTS or node.inputs[3] is None:
        return None
    if any(x.consumers or graph.is_output(x) for x in node.outputs[1:]):
        return None
    mask, op, (q, k) = node.inputs[3], node.op, node.operands[:2]
    assert isinstance(op, Attention)
    queries, keys = by_head(Tensor(q), op.q_num_heads), by_head(Tensor(k), op.kv_num_heads)
    scores = (*queries.dims[:3], keys.dims[2])
    before = list(_makers(graph, mask, free))
    top = before[0].operands[0] if before else mask
    add = _maker(graph, top, free)
    if add is None or not isinstance(add.op, Add):
        return _repeated(node, before, scores)
    found = (_source(graph, value, (add, *before), free, scores) for value in add.operands)
    read = [each for each in found if each is not None]
    return _summed(node, (add, *before), read, scores) if len(read) == 2 else None


def _repeated(node: Node, before: Sequence[Node], scores: Ints) -> MaskedAttention | None:
    """Return an attention whose mask nodes repeat for all samples, heads or rows."""
    if not any(isinstance(each.op, (Expand, Tile)) for each in before):
        return None
    mask = before[0].operands[0]
    axes = _layout(mask, before, scores)
    if axes is None or mask.tensor.rank != len(scores):
        return None
    sizes = zip(mask.tensor.dims, Tensor(mask).strides, strict=True)
    wanted = [[each] if each[0] > 1 else [] for each in sizes]
    if [[each for each in axis if each[1]] for axis in axes] != wanted:
        return None
    # Samples have those of the mask in turn; heads and rows share one, or have their own.
    whole = all(axis == own or not own for axis, own in zip(axes[1:3], wanted[1:3], strict=True))
    if not whole or axes[3] != wanted[3] or (wanted[0] and axes[0][-1:] != wanted[0]):
        return None
    return MaskedAttention(node, tuple(before), (mask,))


#: Sizes and strides of the factors of an axis, outermost first.
Axis = list[tuple[int, int]]


@record
class _Term:
    """What a mask is a term of: the tensor, the nodes between both, and where its elements are."""

    value: Value
    nodes: tuple[Node, ...]
    axes: list[Axis]


def _source(
    graph: Graph, value: Value, behind: tuple[Node, ...], free: Set[Node], scores: Ints
) -> _Term | None:
    """Return the tensor farthest away of which nodes make a value, if it is read in place."""
    nodes = list(_makers(graph, value, free))
    for i in range(len(nodes) + 1):
        source = nodes[i].operands[0] if nodes[i:] else value
        axes = _layout(source, (*nodes[i:], *behind), scores)
        if axes is not None:
            return _Term(source, tuple(nodes[i:]), axes)
    return None


def _summed(
    node: Node, behind: tuple[Node, ...], read: Sequence[_Term], scores: Ints
) -> MaskedAttention | None:
    """Return an attention whose mask is a sum, if rows or columns of keys share its terms."""
    factors = (_joined(axes) for axes in zip(*(each.axes for each in read), strict=True))
    joined = [each for each in factors if each is not None]
    if len(joined) < len(scores):
        return None
    (samples, of_samples), (heads, of_heads), (rows, of_rows), (keys, of_keys) = joined
    if len(heads) > 1 or len(samples) > 2 or len(rows) > 2 or len(keys) != 2:
        return None
    repeats = len(samples) == 2
    if repeats and any(steps[0] for steps in of_samples):
        return None
    inner = (0 if len(rows) < 2 else rows[1], keys[1])
    found = (
        ((batch[-1], head[0], row[0], key[0]), (row[1] if inner[0] else 0, key[1]))
        for batch, head, row, key in zip(of_samples, of_heads, of_rows, of_keys, strict=True)
    )
    terms = [(each.value, at) for each, at in zip(read, found, strict=True)]
    terms.sort(key=lambda term: term[1][1][1])  # the one that neighbours share comes first
    values, places = zip(*terms, strict=True)
    nodes = (*read[0].nodes, *read[1].nodes, *behind)
    return MaskedAttention(node, nodes, values, places, samples[1] if repeats else 0, inner)


def _maker(graph: Graph, value: Value, free: Set[Node]) -> Node | None:
    """Return the free node that makes a value for a single reader."""
    node = graph.made_for_one(value)
    return node if node in free else None


def _makers(graph: Graph, value: Value, free: Set[Node]) -> Iterator[Node]:
    """Return the nodes that move elements by constants up to a value, in order."""
    found: list[Node] = []
    while (node := _maker(graph, value, free)) is not None and type(node.op) in MOVING:
        if any(x is not None and x.data is None for x in node.inputs[1:]):
            break
        found.append(node)
        value = node.operands[0]
    return reversed(found)


def _layout(x: Value, nodes: Sequence[Node], scores: Ints) -> list[Axis] | None:
    """Return where the elements of a mask are: sizes and strides of the factors of its axes.

    Args:
        x: the tensor that has them.
        nodes: these make the mask of it.
        scores: numbers of samples, heads, rows and keys. Axes of size 1 have no factors.
    """
    state = coordinates_through(x, nodes)
    if state is None or len(state.axes) > len(scores):
        return None
    steps = [0] * len(state.sizes)
    for at, stride in zip(state.at, Tensor(x).strides, strict=True):
        linear_steps = linear(at)
        if linear_steps is None or at.flat[0]:
            return None
        steps = [s + stride * step for s, step in zip(steps, linear_steps, strict=True)]
    left, axes = iter(steps), list[Axis]()
    for sizes, size in zip(state.axes, scores[len(scores) - len(state.axes) :], strict=True):
        axis = [(n, next(left)) for n in sizes]
        if prod(sizes) not in (1, size):
            return None
        axes.append([each for each in axis if each[0] > 1])
    return [[] for _ in range(len(scores) - len(axes))] + axes


def _joined(axes: Sequence[Axis]) -> tuple[Ints, tuple[Ints, ...]] | None:
    """Return the fewest factors of an axis with which all tensors have strides, and these."""
    bounds = {1}
    for axis in axes:
        bounds |= {prod(n for n, _ in axis[i:]) for i in range(len(axis))}
    ends = sorted(bounds)
    if any(end % begin for begin, end in pairwise(ends)):
        return None
    sizes = [end // begin for begin, end in pairwise(ends)]
    moves = [_split(axis, ends) for axis in axes]
    return merge(sizes[::-1], moves) if sizes else ((1,), ((0,),) * len(axes))


def _split(axis: Axis, ends: Sequence[int]) -> Ints:
    """Return the strides of the factors that lie between these sizes of all inner ones."""
    found: list[int] = []
    for begin in ends[:-1]:
        inner, own = 1, 0
        for size, step in reversed(axis):
            if inner <= begin < inner * size:
                own = step * (begin // inner)
            inner *= size
        found.append(own)
    return tuple(found[::-1])
