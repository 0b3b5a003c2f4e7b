"""Computes equal branches of small layers, which one Concat joins, all at once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import prod

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.op import with_attributes
from ...ir.types import Array
from ...ops.cuts import is_along_last
from ...ops.elementwise import Add, Mul
from ...ops.gather import Gather
from ...ops.matmul import Gemm, MatMul
from ...ops.movement import Concat, Split, Transpose
from ...ops.norm import LayerNormalization, RMSNormalization, Softmax
from ...ops.shape import RESHAPES
from ...ops.shapes import normalize_axis
from ..driver import Context
from ..editing import Builder, drop, rank_of, shape_of
from ..pointwise import is_by_place, is_elementwise
from ..rounding import may_round_before
from .stack_products import joined, stacked

#: Minimum number of branches, and maximum number of elements of a tensor of each: of larger ones,
#: kernels take longer than launches.
_COUNT, _SMALL = 3, 1 << 18
#: Maximum number of nodes between the Concat and the first ones of a branch.
_LENGTH = 24

Branches = tuple[Node, ...]
Values = tuple[Value, ...]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace branches that differ only in their weights by one with an axis for all.

    Layers per variable (Temporal Fusion Transformer), experts that are all computed, heads that are
    written one by one: each of the branches' nodes is one of a stack of matrices, and what they cut
    out of one tensor is its own stack. One size of each tensor may vary, such as the batch's. If
    only some of the branches next to each other are equal (frequency bands of a few widths), these
    are joined first.
    """
    alike = _Alike(graph)
    for node in list(graph.nodes):
        if node in graph and isinstance(node.op, Concat) and len(node.inputs) >= _COUNT:
            values = tuple(node.operands)
            found = _Stack(graph, node, values)
            if found.fits():
                yield found.rewrite()
                continue
            for some in alike.runs(values):
                found = _Stack(graph, node, some)
                if len(some) >= _COUNT and found.fits():
                    yield found.rewrite()


class _Alike:
    """Tells values that are computed alike, by nodes with the same operators, sizes and sources.

    Args:
        graph: the graph, as it is when values are first compared; later ones are like no others.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._classes: dict[Value, int] = {}

    def runs(self, values: Values) -> Iterator[Values]:
        """Yield values next to each other that are computed alike."""
        if not self._classes:
            self._number()
        for _, run in groupby(values, lambda value: self._classes.get(value, value)):
            yield tuple(run)

    def _number(self) -> None:
        numbers: dict[Hashable, int] = {}
        for node in self._graph.nodes:
            read = tuple(
                value and (self._classes.get(value), value.data is None, shape_of(value))
                for value in node.inputs
            )
            for place, value in enumerate(node.outputs):
                which = 0 if isinstance(node.op, Split) else place  # a part like any other
                key = (node.op, read, which, shape_of(value))
                self._classes[value] = numbers.setdefault(key, len(numbers))


@dataclass(slots=True)
class _Stack:
    """Branches that a Concat joins.

    Attributes:
        graph: the graph.
        node: the Concat.
        values: its inputs, or some of them, next to each other.
        before: the first node that reads results of the branches.
        branches: the nodes of all branches that are stacked, by that of the first one.
        made: the stacks of values, by those of all branches.
    """

    graph: Graph
    node: Node
    values: Values
    before: Node = field(init=False)
    branches: dict[Node, Branches] = field(default_factory=dict[Node, Branches])
    made: dict[Values, Value] = field(default_factory=dict[Values, Value])

    def fits(self) -> bool:
        """Find the nodes; return whether layers are among them, and they may be stacked."""
        shapes = {shape_of(value) for value in self.values}
        if self._place < 0 or len(shapes) != 1 or not self._follow(self.values, _LENGTH):
            return False
        if not any(isinstance(node.op, MatMul | Gemm) for node in self.branches):
            return False
        nodes = self.graph.in_order(node for each in self.branches.values() for node in each)
        inside, behind = set(nodes), set[Node]()
        for node in nodes:
            behind.update(reader for value in node.outputs for reader in value.consumers)
        self.before, *_ = self.graph.in_order(behind - inside | {self.node})
        # No branch may depend on another one, and what all read must be there in time.
        given = list(self._given())
        makers = {value.producer for value in given if value.producer is not None}
        in_time = self.graph.in_order(makers | {self.before})[-1] is self.before
        return in_time and not makers & (inside | {self.before}) and all(map(_is_known, given))

    @property
    def _place(self) -> int:
        """Where the values begin among what the Concat joins; -1 if it reads others by now."""
        count, given = len(self.values), self.node.operands
        places = (i for i in range(len(given)) if given[i : i + count] == self.values)
        return next(places, -1)

    def _given(self) -> Iterator[Value]:
        """Yield the values that branches read, except constants and results of their own nodes."""
        for nodes in self.branches.values():
            for values in zip(*(node.inputs for node in nodes), strict=True):
                known = tuple(value for value in values if value is not None and value.data is None)
                if known and self._nodes_of(known) is None:
                    yield from known

    def _nodes_of(self, values: Values) -> Branches | None:
        """Return the nodes of the branches that compute values, if they are stacked."""
        first = values[0].producer
        nodes = None if first is None else self.branches.get(first)
        return nodes if nodes == tuple(value.producer for value in values) else None

    def _follow(self, values: Values, left: int) -> bool:
        """Add the nodes that compute values of all branches; return whether there are any."""
        makers = tuple(value.producer for value in values)
        nodes = tuple(node for node in makers if node is not None)
        first = nodes[0] if nodes else None
        if first is None or len(set(nodes)) < len(values) or not left or not _is_small(values):
            return False
        if first in self.branches:
            return self.branches[first] == nodes
        alike = all(_is_alike(first, node) for node in nodes)
        places = {node.outputs.index(value) for node, value in zip(nodes, values, strict=True)}
        if not alike or len(places) > 1 or not _is_stackable(first, nodes):
            return False
        self.branches[first] = nodes
        for i, value in enumerate(first.inputs):
            if value is not None and value.data is None:
                read = (node.inputs[i] for node in nodes)
                self._follow(tuple(each for each in read if each is not None), left - 1)
        return True

    def rewrite(self) -> str:
        """Replace the branches; return a sentence about it."""
        count, name, place = len(self.values), self.node.name, self._place
        stack = self._stacked(self.values)
        nodes = self.graph.in_order(node for each in self.branches.values() for node in each)
        inside = set(nodes)
        for values, whole in self.made.items():
            for number, value in enumerate(values):
                if self._is_read_elsewhere(value, inside):
                    cut = Builder(self.graph, self.before, value.name)
                    part = cut(Gather(axis=0), whole, cut.constant(np.array(number)))
                    part.type = value.type
                    self.graph.redirect(value, part)
        add = Builder(self.graph, self.node, name, (self.node,))
        axis = normalize_axis(getattr(self.node.op, "axis", 0), (rank_of(stack) or 1) - 1)
        whole = list(shape_of(self.values[0]) or ())
        whole[axis] = count * size if isinstance(size := whole[axis], int) else size
        result = add.shaped(joined(add, stack, axis), whole, "joined")
        read = self.node.operands
        if count < len(read):
            self.graph.set_inputs(self.node, (*read[:place], result, *read[place + count :]))
        else:
            result.type = self.node.output.type
            self.graph.redirect(self.node.output, result)
        drop(self.graph, self.node)
        for node in reversed(nodes):
            drop(self.graph, node)
        return f"{count} branches that Concat '{name}' joins are computed at once"

    def _is_read_elsewhere(self, value: Value, inside: set[Node]) -> bool:
        """Whether others than nodes of the branches read a value, or the Concat once more."""
        times = {node: count for node, count in value.consumers.items() if node not in inside}
        joined = times.pop(self.node, 0)
        is_joined_again = joined > self.values.count(value)
        return bool(times) or is_joined_again or self.graph.is_output(value)

    # ── one node of all branches ─────────────────────────────────────────────────────────────────

    def _stacked(self, values: Values) -> Value:
        """Return [count, ...] for values [...] of all branches."""
        if values in self.made:
            return self.made[values]
        nodes = self._nodes_of(values)
        if nodes is None:
            add = Builder(self.graph, self.before, values[0].name)
            return stacked(add, values, rank_of(values[0]) or 0)
        for place, result in enumerate(self._computed(nodes)):
            self.made[tuple(node.outputs[place] for node in nodes)] = result
        return self.made[values]

    def _computed(self, nodes: Branches) -> Sequence[Value]:
        """Return the stacked results of a node of all branches."""
        first, shape = nodes[0], shape_of(nodes[0].outputs[0]) or ()
        add, count = Builder(self.graph, self.before, first.name, nodes), len(nodes)
        op, inputs = first.op, list(zip(*(node.inputs for node in nodes), strict=True))
        if isinstance(op, MatMul | Gemm):
            return [self._product(add, nodes)]
        if isinstance(op, RESHAPES):
            x = self._stacked(tuple(node.operands[0] for node in nodes))
            return [add.shaped(x, (count, *shape), "shape")]
        if isinstance(op, LayerNormalization | RMSNormalization):
            return [self._normalized(add, nodes)]
        if isinstance(op, Split):
            axis = normalize_axis(op.axis, len(shape)) - len(shape)
            x = self._stacked(tuple(node.operands[0] for node in nodes))
            op = with_attributes(op, axis=axis)
            return add.node(op, x, *first.inputs[1:], outputs=len(first.outputs)).outputs
        if isinstance(op, Softmax):
            op = with_attributes(op, axis=normalize_axis(op.axis, len(shape)) - len(shape))
        return [add(op, *(self._operand(add, each, len(shape)) for each in inputs))]

    def _operand(self, add: Builder, values: Sequence[Value | None], rank: int) -> Value | None:
        """Return an operand of an elementwise node of this rank; the same for all as it is."""
        known = tuple(value for value in values if value is not None)
        if not known:
            return None
        data = [value.data for value in known]
        if len(set(known)) == 1 or _is_equal(data):
            return known[0]
        shape = shape_of(known[0]) or ()
        ones = (1,) * (rank - len(shape))
        if data[0] is not None:
            stack = np.stack([each for each in data if each is not None])
            return add.constant(stack.reshape(len(known), *ones, *data[0].shape))
        value = self._stacked(known)
        return add.shaped(value, (len(known), *ones, *shape), "wide") if ones else value

    def _product(self, add: Builder, nodes: Branches) -> Value:
        """Return the products of rows by their branches' matrices, with what a Gemm adds."""
        first, count = nodes[0], len(nodes)
        shape = shape_of(first.output) or ()
        rows = tuple(node.operands[0] for node in nodes)
        across = getattr(first.op, "transB", 0)
        matrices = [node.operands[1].data for node in nodes]
        weights = [m.T if across else m for m in matrices if m is not None]
        k, n = weights[0].shape
        if len(set(rows)) == 1:
            columns = add.constant(np.concatenate(weights, 1))
            wide = add(MatMul(), rows[0], columns)
            cut = add.shaped(wide, (*shape[:-1], count, n), "branches")
            rank = len(shape)
            value = add(Transpose(perm=(rank - 1, *range(rank - 1), rank)), cut)
        else:
            x = add.shaped(self._stacked(rows), (count, None, k), "rows")
            # Outer products need no tensor cores.
            value = add(Mul() if k == 1 else MatMul(), x, add.constant(np.stack(weights)))
            value = add.shaped(value, (count, *shape), "results")
        addends = [node.inputs[2] for node in nodes if len(node.inputs) > 2]
        if not addends or addends[0] is None:
            return value
        return add(Add(), value, self._operand(add, addends, len(shape)))

    def _normalized(self, add: Builder, nodes: Branches) -> Value:
        """Return rows normalized the same way, with their branches' scales and shifts."""
        first, rank = nodes[0], rank_of(nodes[0].output) or 0
        x = self._stacked(tuple(node.operands[0] for node in nodes))
        scale, *shift = (
            self._operand(add, values, rank)
            for values in list(zip(*(node.inputs for node in nodes), strict=True))[1:]
        )
        ones = first.operands[1].data
        assert ones is not None
        op = with_attributes(first.op, axis=-1)
        value = add(op, x, add.constant(np.ones_like(ones)))
        value = add(Mul(), value, scale)
        return add(Add(), value, shift[0]) if shift and shift[0] is not None else value


def _is_known(value: Value) -> bool:
    """Whether all sizes are known but at most one, which has a name."""
    shape = shape_of(value)
    if shape is None or None in shape:
        return False
    return sum(not isinstance(size, int) for size in shape) <= 1


def _is_small(values: Sequence[Value]) -> bool:
    """Whether all have the same few elements; a size that varies counts as one."""
    first, *others = (shape_of(value) for value in values)
    if first is None or not _is_known(values[0]) or any(shape != first for shape in others):
        return False
    return 0 < prod(size for size in first if isinstance(size, int)) <= _SMALL


def _is_alike(one: Node, other: Node) -> bool:
    """Whether nodes do the same with operands of equal shapes."""
    if one.op != other.op or len(one.inputs) != len(other.inputs):
        return False
    for a, b in zip(one.inputs, other.inputs, strict=True):
        if (a is None) != (b is None) or shape_of(a) != shape_of(b):
            return False
        if a is not None and b is not None and (a.data is None) != (b.data is None):
            return False
    return True


def _is_equal(data: Sequence[Array | None]) -> bool:
    first = data[0]
    return first is not None and all(d is not None and np.array_equal(first, d) for d in data)


def _is_addable(value: Value | None) -> bool:
    """Whether what a Gemm adds can be added to its product by another node."""
    if value is None:
        return True
    return value.data is not None and may_round_before(value.data, value.data.dtype)


def _is_stackable(first: Node, nodes: Branches) -> bool:
    """Whether nodes of all branches can be one with another axis in front."""
    op = first.op
    read = list(zip(*(node.inputs for node in nodes), strict=True))
    data = [[None if value is None else value.data for value in values] for values in read]
    constant = [each[0] is not None for each in data]
    if isinstance(op, MatMul | Gemm):
        weight = data[1][0]
        plain = isinstance(op, MatMul) or (op.alpha, op.beta, op.transA) == (1, 1, 0)
        added = len(read) < 3 or all(_is_addable(value) for value in read[2])
        known = weight is not None and weight.ndim == 2 and weight.size > 0 and not constant[0]
        return plain and added and known
    if is_elementwise(op):
        varying = [
            len(set(each)) > 1 and not _is_equal(of) for each, of in zip(read, data, strict=True)
        ]
        alike = all(is_by_place(op, i) for i, varies in enumerate(varying) if varies)
        return len(first.outputs) == 1 and any(varying) and not all(constant) and alike
    if constant[0] or len(set(read[0])) == 1:
        return False
    if isinstance(op, LayerNormalization | RMSNormalization):
        others = all(
            each[0] is None or known for each, known in zip(read[1:], constant[1:], strict=True)
        )
        return is_along_last(first) and len(first.outputs) == 1 and others
    if isinstance(op, Split):
        return all(map(_is_equal, data[1:]))
    return isinstance(op, (*RESHAPES, Softmax))
