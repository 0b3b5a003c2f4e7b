"""Composes moves of rows, and lets row-wise operators work on rows in their current order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter

import numpy as np

from ...ir.graph import Graph, Node, Value
from ...ir.op import Op, with_attributes
from ...ir.types import Array
from ...ops.cuts import is_along_last
from ...ops.elementwise import Add
from ...ops.matmul import MatMul
from ...ops.norm import LayerNormalization, RMSNormalization
from ...ops.shape import RESHAPES
from ..driver import Context
from ..editing import Builder, drop, shape_of
from ..pointwise import by_place, is_elementwise
from .cut_before_transposes import cut_for_products
from .keep_pixels import keep_pixels
from .row_forms import known_sizes, slice_places, stack_rows
from .row_moves import Move, Rows, as_shape, move_to, moved, moves_rows, reshaped

_position = attrgetter("position")
_NORMS = (LayerNormalization, RMSNormalization)
#: Elementwise operators that depend on the last axis, or on positions.


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Compose each chain of row moves to one Gather, and reduce their number.

    Windows of images (Swin) are rolled by Slices and Concats, cut by a Transpose, and reassembled
    after an Attention. Each such chain is one permutation of rows. A residual is added before the
    rows are moved back, also to what norms make of them (SwinV2); norms, products with constant
    matrices and elementwise nodes accept rows in any order; so a move meets the next one, and both
    are composed. Neighbours joined to one row
    (patch merging) are a move, too.
    """
    yield from keep_pixels(graph)
    yield from stack_rows(graph)
    moves = _Moves(graph, context)
    yield from moves.compose()
    yield from moves.pass_by()
    yield from moves.join_residuals()
    yield from moves.sink()
    yield from cut_for_products(graph)
    yield from slice_places(graph)


@dataclass(slots=True)
class _Moves:
    """The moves of a graph, by result."""

    graph: Graph
    context: Context
    known: dict[Value, Move] = field(default_factory=dict[Value, Move])

    def __post_init__(self) -> None:
        seen: set[Node] = set()
        for node in reversed(list(self.graph.nodes)):
            if node in seen or isinstance(node.op, RESHAPES) or not moves_rows(node):
                continue
            move = move_to(self.graph, node, self.context.places)
            if move is not None:
                move = reshaped(self.graph, move)
                seen |= move.nodes
                self.known[move.top] = move
        self.known = dict(reversed(self.known.items()))

    def compose(self) -> Iterator[str]:
        """Rewrite every move with several copies as one Gather."""
        for top in list(self.known):
            move = self.known[top]  # with earlier moves already rewritten
            if move.copies > 1:
                new = self._write(move, move.source, move.index)
                yield f"{move.copies} copies up to '{move.last.name}' became one: '{new.name}'"

    def pass_by(self) -> Iterator[str]:
        """Let the moves that are the only readers of another one read its source."""
        by_root = self._by_root()
        for top in list(self.known):
            move = self.known.get(top)
            if move is None:
                continue
            takers = self._takers(_RowRegion.of_views(move.top), by_root)
            before = [move.index, *(taker.index for taker in takers)]
            after = [move.index[taker.index] for taker in takers]
            if not takers or sum(map(_is_copied, after)) >= sum(map(_is_copied, before)):
                continue
            for taker, index in zip(takers, after, strict=True):
                self._write(taker, move.source, index)
            del self.known[top]
            by_root = self._by_root()
            yield f"{len(takers)} moves read '{move.source.name}' instead of '{top.name}'"

    def _write(self, move: Move, source: Value, index: Array) -> Value:
        """Replace a move's result by gathered rows of a source; return them."""
        last = move.last
        add = Builder(self.graph, last, last.name, self.graph.in_order(move.nodes))
        top = moved(add, source, index, known_sizes(move.top))
        self._redirect(move.top, top)
        del self.known[move.top]
        self._note(Move(source, top, index, _between(top, source)))
        drop(self.graph, last)
        return top

    def _note(self, move: Move) -> Move:
        """Return a new move, which is known from now on unless it consists of views alone."""
        if not all(isinstance(node.op, RESHAPES) for node in move.nodes):
            self.known[move.top] = move
        return move

    def _redirect(self, old: Value, new: Value) -> None:
        """Redirect all readers of a value, known moves included."""
        self.graph.redirect(old, new)
        for top, move in self.known.items():
            if move.source is old:
                self.known[top] = replace(move, source=new)

    # ── residuals ────────────────────────────────────────────────────────────────────────────

    def join_residuals(self) -> Iterator[str]:
        """Add the residual before rows are moved back.

        ``back(f(there(norm(x)))) + x`` is ``back(f(norm(y)) + y)`` with ``y = there(x)``.
        """
        for node in list(self.graph.nodes):
            read = [v for v in node.distinct_reads if v.data is None]
            # x + x has one operand.
            if node not in self.graph or not isinstance(node.op, Add) or len(read) != 2:
                continue
            for value, other in (read, read[::-1]):
                back, behind = self._back_of(value, node)
                there = None if back is None else self._from(other, back, value)
                if back is not None and there is not None:
                    yield self._join(node, self._past(back, behind), there, other)
                    break

    def _back_of(self, value: Value, reader: Node) -> tuple[Move | None, list[Node]]:
        """Return the move from which row-wise nodes alone compute an operand, and these nodes."""
        behind: list[Node] = []
        while self.graph.sole_consumer(value) is reader:
            if value in self.known:
                return self.known[value], behind[::-1]
            node = value.producer
            data = [] if node is None else [v for v in node.distinct_reads if v.data is None]
            if node is None or len(data) != 1 or not _takes_rows(node, dict.fromkeys(data)):
                break
            behind.append(node)
            reader, value = node, data[0]
        return None, []

    def _from(self, origin: Value, back: Move, end: Value) -> Move | None:
        """Return the move of the other operand, possibly normalized, that another move undoes."""
        if shape_of(origin) != shape_of(end) or not back.keeps_all:
            return None
        for move in self.known.values():
            is_later = move.last.position > back.last.position
            if move is back or len(move.index) != len(back.index) or is_later:
                continue  # a swap of two axes undoes itself, but is done once
            norm = self._norm_of(move)
            source = move.source if norm is None else norm.inputs[0]
            if source is None or _root(source) is not _root(origin):
                continue
            if (move.index[back.index] == np.arange(len(back.index))).all():
                return move
        return None

    def _past(self, back: Move, behind: Sequence[Node]) -> Move:
        """Move rows after the nodes behind a move instead; return the new move."""
        if not behind:
            return back
        graph, last = self.graph, behind[-1]
        image, made = self._in_order(back, behind)
        add = Builder(graph, last, back.last.name, graph.in_order(back.nodes))
        source = image[last.output]
        top = moved(add, source, back.index, known_sizes(last.output))
        self._redirect(last.output, top)
        del self.known[back.top]
        self._replace((*behind, back.last), made)
        return self._note(Move(source, top, back.index, _between(top, source)))

    def _norm_of(self, move: Move) -> Node | None:
        """Return the norm of the last axis read only by a move."""
        node = move.source.producer
        if node is None or not _is_norm(node) or self.graph.is_output(move.source):
            return None
        return node if all(reader in move.nodes for reader in move.source.consumers) else None

    def _join(self, node: Node, back: Move, there: Move, origin: Value) -> str:
        norm, last, shape = self._norm_of(there), there.last, known_sizes(there.top)
        first = Builder(self.graph, last, f"{last.name}.rows", self.graph.in_order(there.nodes))
        rows = moved(first, origin, there.index, shape)
        del self.known[there.top]
        self._note(Move(origin, rows, there.index, _between(rows, origin)))
        if norm is not None:
            again = Builder(self.graph, last, norm.name, (norm,))
            result = again(
                _of_rows(norm.op),
                rows,
                *(v and _row(self.graph, v, norm.op) for v in norm.inputs[1:]),
            )
            self._redirect(there.top, result)
        else:
            self._redirect(there.top, rows)
        drop(self.graph, last)
        before = Builder(self.graph, node, node.name, (node,))
        total = before(Add(), back.source, as_shape(before, rows, known_sizes(back.source)))
        behind = Builder(self.graph, node, back.last.name, self.graph.in_order(back.nodes))
        top = moved(behind, total, back.index, known_sizes(node.output))
        self._redirect(node.output, top)
        self.known.pop(back.top, None)
        self._note(Move(total, top, back.index, _between(top, total)))
        name = node.name
        drop(self.graph, node)
        return f"Add '{name}' takes its residual in the order of rows of '{rows.name}'"

    # ── regions ──────────────────────────────────────────────────────────────────────────────

    def sink(self) -> Iterator[str]:
        """Sink moves through row-wise nodes to where other moves absorb them."""
        by_root = self._by_root()
        for top in list(self.known):
            move = self.known.get(top)
            region = None if move is None else _RowRegion.behind(self.graph, move)
            if move is None or region is None:
                continue
            takers = self._takers(region, by_root)
            if takers and _saves(takers):
                yield self._rewrite(move, region, takers)
                by_root = self._by_root()

    def _by_root(self) -> dict[Value, list[tuple[int, Move]]]:
        """Return the moves by the root of their source, with their positions."""
        found: dict[Value, list[tuple[int, Move]]] = {}
        for place, move in enumerate(self.known.values()):
            found.setdefault(_root(move.source), []).append((place, move))
        return found

    def _takers(
        self, region: _RowRegion, by_root: Mapping[Value, Sequence[tuple[int, Move]]]
    ) -> list[Move]:
        """Return the moves that read a region; none if it has other readers."""
        readers = {id(n) for value in region.values for n in value.consumers} - region.ids
        found = [each for root in region.roots for each in by_root.get(root, ())]
        takers = [move for _, move in sorted(found, key=itemgetter(0))]
        taken = {id(node) for move in takers for node in move.nodes}
        is_result = any(self.graph.is_output(value) for value in region.values)
        return [] if is_result or readers - taken else takers

    def _rewrite(self, move: Move, region: _RowRegion, takers: Sequence[Move]) -> str:
        image, made = self._in_order(move, region.nodes)
        for taker in takers:
            self._write(taker, image[taker.source], move.index[taker.index])
        del self.known[move.top]
        text = f"{len(made)} nodes after '{move.last.name}' now process rows in the order of"
        self._replace((*region.nodes, move.last), made)
        return f"{text} '{move.source.name}'"

    def _in_order(
        self, move: Move, nodes: Sequence[Node]
    ) -> tuple[dict[Value, Value], dict[Node, Node]]:
        """Apply nodes behind a move to its source: return the new values, and the new nodes."""
        graph, rows = self.graph, Rows.of(move.source)
        assert rows is not None
        head = Builder(graph, move.last, f"{move.last.name}.rows", graph.in_order(move.nodes))
        image = {move.top: as_shape(head, move.source, (rows.count, rows.width))}
        made: dict[Node, Node] = {}
        for node in nodes:
            data = [v for v in node.inputs if v in image]
            if isinstance(node.op, RESHAPES):
                image[node.output] = image[data[0]]
                continue
            inputs = [v and (image.get(v) or _row(graph, v, node.op)) for v in node.inputs]
            new = Builder(graph, node, node.name, (node,)).node(_of_rows(node.op), *inputs)
            image[node.output], made[node] = new.output, new
        return image, made

    def _replace(self, nodes: Sequence[Node], made: Mapping[Node, Node]) -> None:
        """Remove nodes, and give their names to those that were made in their place."""
        for node in reversed(nodes):
            drop(self.graph, node)
        for node, new in made.items():
            self.graph.rename(new, node.name)


def _saves(takers: Sequence[Move]) -> bool:
    """Whether moves that absorb another one cost no more than before.

    Consecutive rows need no move to be extracted.
    """
    return len(takers) <= 1 + sum(_is_copied(taker.index) for taker in takers)


def _is_copied(index: Array) -> bool:
    """Whether rows must be copied, as they are not consecutive ones."""
    return not (np.diff(index) == 1).all()


def _between(top: Value, source: Value) -> frozenset[Node]:
    """Return the nodes of a chain from a source to its end."""
    nodes: list[Node] = []
    value = top
    while value is not source:
        node = value.producer
        if node is None or node.inputs[0] is None:
            raise ValueError(f"'{top.name}' does not come from '{source.name}'")
        nodes.append(node)
        value = node.inputs[0]
    return frozenset(nodes)


def _root(value: Value) -> Value:
    """Return the value that another one is a reshape of, with the same rows."""
    while (node := value.producer) is not None and isinstance(node.op, RESHAPES):
        source = node.inputs[0]
        if source is None or Rows.of(source) != Rows.of(value) or Rows.of(value) is None:
            break
        value = source
    return value


# ── what takes rows in any order ─────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _RowRegion:
    """The values that depend only on the rows of one move, row by row.

    Attributes:
        values: the move's result, and what nodes compute from it.
        nodes: in topological order.
    """

    values: list[Value]
    nodes: list[Node]

    @property
    def ids(self) -> set[int]:
        """The nodes, for comparisons."""
        return {id(node) for node in self.nodes}

    @property
    def roots(self) -> set[Value]:
        """The values that are not views."""
        return {_root(value) for value in self.values}

    @classmethod
    def of_views(cls, top: Value) -> _RowRegion:
        """Return a move's result, and its views of the same rows."""
        values, nodes = [top], list[Node]()
        for value in values:
            views = [each for each in value.consumers if isinstance(each.op, RESHAPES)]
            nodes += (same := [view for view in views if Rows.of(view.output) == Rows.of(top)])
            values += (view.output for view in same)
        return cls(values, nodes)

    @classmethod
    def behind(cls, graph: Graph, move: Move) -> _RowRegion | None:
        """Return what follows a move, if it keeps each row of its source exactly once."""
        if not move.keeps_all:
            return None
        values, nodes = {move.top: None}, list[Node]()
        todo = list(move.top.consumers)
        while todo:
            todo.sort(key=_position, reverse=True)
            node = todo.pop()
            if node in nodes or not _takes_rows(node, values):
                continue
            nodes.append(node)
            values[node.output] = None
            todo += node.output.consumers
        return cls(list(values), list(graph.in_order(nodes)))


def _takes_rows(node: Node, inside: dict[Value, None]) -> bool:
    """Whether each row of a node's result depends on one row inside the region."""
    op, out = node.op, Rows.of(node.output)
    read = by_place(node) or node.distinct_reads
    data = [value for value in read if value.data is None]
    if len(node.outputs) != 1 or out is None or any(value not in inside for value in data):
        return False
    rows = {Rows.of(value) for value in data}
    if isinstance(op, RESHAPES):
        return rows == {out}
    if isinstance(op, MatMul):
        weight = node.inputs[1]
        return weight is not None and weight.data is not None and weight.data.ndim == 2
    if _is_norm(node):
        return True
    if not is_elementwise(op):
        return False
    if any(shape_of(v) != shape_of(node.output) for v in data):
        return False
    return all(_is_row(v.data, out.width) for v in read if v.data is not None)


def _is_norm(node: Node) -> bool:
    """Whether a node normalizes all rows equally, by constants, and has no other outputs in use."""
    shape = shape_of(node.inputs[0] if node.inputs else None)
    if not isinstance(node.op, _NORMS) or len(node.outputs) != 1 or not shape:
        return False
    if not is_along_last(node) or not isinstance(width := shape[-1], int):
        return False
    given = [value for value in node.inputs[1:] if value is not None]
    return all(v.data is not None and _is_row(v.data, width) for v in given)


def _is_row(data: Array, width: int) -> bool:
    """Whether a constant is a number, or has one element per element of a row."""
    return data.size == 1 or (data.size == width and data.shape[-1] == width)


def _row(graph: Graph, value: Value, op: Op) -> Value:
    """Return a constant that all rows have in common with at most one axis."""
    if value.data is None or value.data.ndim < 2 or isinstance(op, MatMul):
        return value
    return graph.constant(value.data.reshape(-1), value.name)


def _of_rows(op: Op) -> Op:
    """Return an operator for 2-D tensors."""
    return with_attributes(op, axis=-1) if isinstance(op, _NORMS) else op
