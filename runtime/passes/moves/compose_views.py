"""Reduces chains of Reshape, Transpose, Squeeze and Unsqueeze to their shortest form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from ...base.record import record
from ...ir.graph import Graph, Node, Value
from ...ir.infer import infer
from ...ir.op import Op
from ...ops.movement import Transpose
from ...ops.shape import RESHAPES, Reshape
from ..driver import Context
from ..editing import Builder, drop, to_sizes
from .cut_before_transposes import (
    cut_before_merges,
    cut_before_transposes,
    cut_columns,
    cut_merged_heads,
    slice_before_transposes,
)
from .factors import Axes, Factor, follow
from .joined_heads import split_joined, transpose_joined_heads, transpose_normalized
from .joined_parts import transpose_joined
from .transpose_images import order_of, to_channels_first, to_channels_last
from .transposed_parts import reduce_transposed, transpose_whole
from .transposed_sums import transpose_before_sums

#: An operator, with the shape that a Reshape gives.
Step = tuple[Op, tuple[int, ...] | None]
#: Maximum length of a chain.
_LENGTH = 8


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Replace a chain of views by at most one Transpose between at most two Reshapes.

    Exporters flatten leading axes before swapping two others and restore them afterwards, or
    transpose twice with a Reshape in between. All of these permute the elements of their source;
    the permutation, in factors of the source's axes, is one Transpose. One that only brings an axis
    to be cut to the front is not needed. Parts that are all joined along another axis are such a
    permutation, too.
    """
    yield from split_joined(graph)
    yield from transpose_normalized(graph)
    yield from transpose_joined_heads(graph)
    yield from transpose_joined(graph)
    yield from transpose_before_sums(graph)
    yield from reduce_transposed(graph)
    yield from transpose_whole(graph)
    yield from cut_columns(graph)
    yield from cut_merged_heads(graph)
    yield from cut_before_merges(graph)
    yield from cut_before_transposes(graph)
    yield from slice_before_transposes(graph)
    yield from _compose(graph, lambda node: True)


def run_bound(graph: Graph, context: Context) -> Iterator[str]:
    """As `run`, for known sizes; the free transposes from images to rows are left alone."""
    return _compose(graph, lambda node: not _transposes_image(node))


def _transposes_image(node: Node) -> bool:
    order = order_of(node)
    rank = len(order or ())
    return rank > 3 and order in (to_channels_first(rank), to_channels_last(rank))


def _compose(graph: Graph, passes: Callable[[Node], bool]) -> Iterator[str]:
    refined = False
    for node in reversed(list(graph.nodes)):
        if node not in graph or not isinstance(node.op, (Transpose, *RESHAPES)):
            continue
        chain = _chain(node, passes)
        parts = (chain[first:] for first in range(len(chain) - 1))
        found = [form for part in parts if (form := _shortest(graph, part)) is not None]
        if found:
            best = min(found, key=lambda form: (-form.saved, len(form.steps)))
            before = node.output.type
            text, value = best.apply(graph)
            refined |= value.type != before
            yield text
    if refined:
        infer(graph)


def views_to(last: Node) -> list[Node]:
    """Return the nodes up to `last` that only reorder elements."""
    return _chain(last, lambda node: True)


def rewritten(
    graph: Graph, chain: Sequence[Node], suits: Callable[[Sequence[Op]], bool]
) -> Value | None:
    """Replace the result of a chain of views by that of its shortest form, if this suits.

    Args:
        graph: the graph.
        chain: the nodes; each does to the result of the one before what it does to its input.
        suits: whether to take a form of these operators.
    """
    axes = follow(chain)
    steps = None if axes is None else _steps(*axes)
    if steps is None or not suits([op for op, _ in steps]):
        return None
    return _Form(chain, steps, 0).apply(graph)[1]


def _chain(last: Node, passes: Callable[[Node], bool]) -> list[Node]:
    """Return the nodes up to `last` that only reorder elements, and may be passed."""
    chain = [last]
    while passes(chain[0]) and len(chain) < _LENGTH:
        source = chain[0].inputs[0]
        node = None if source is None else source.producer
        if node is None or not isinstance(node.op, (Transpose, *RESHAPES)) or not passes(node):
            break
        chain.insert(0, node)
    return chain


@record
class _Form:
    """The shortest form of a chain.

    Attributes:
        chain: the nodes that it replaces.
        steps: its nodes; a Reshape has a shape.
        saved: by how many nodes the graph shrinks.
    """

    chain: Sequence[Node]
    steps: Sequence[Step]
    saved: int

    def apply(self, graph: Graph) -> tuple[str, Value]:
        """Replace the chain; return a sentence about it, and its result."""
        last, value = self.chain[-1], self.chain[0].inputs[0]
        assert value is not None
        transposes = [isinstance(op, Transpose) for op, _ in self.steps]
        for i, (op, shape) in enumerate(self.steps):
            stands_for_all = transposes[i] or (not any(transposes) and i == 0)
            origin = tuple(self.chain) if stands_for_all else ()
            add = Builder(graph, last, last.name, origin)
            sizes = () if shape is None else (add.integers(shape, f"{last.name}.shape"),)
            value = add(op, value, *sizes)
        graph.redirect(last.output, value)
        drop(graph, last)
        kinds = " and ".join(type(op).__name__ for op, _ in self.steps) or "nothing"
        return f"{len(self.chain)} nodes up to '{last.name}' do what {kinds} does", value


def _shortest(graph: Graph, chain: Sequence[Node]) -> _Form | None:
    """Return the form of a chain that saves nodes, if there is one."""
    axes = follow(chain)
    steps = None if axes is None else _steps(*axes)
    if steps is None:
        return None
    saved = _spared(graph, chain) - len(steps)
    return _Form(chain, steps, saved) if saved > 0 else None


def _spared(graph: Graph, chain: Sequence[Node]) -> int:
    """Return how many nodes of a chain have no other readers."""
    spared = 1
    for node in reversed(chain[:-1]):
        if graph.sole_consumer(node.output) is None:
            break
        spared += 1
    return spared


# ── the shortest form ────────────────────────────────────────────────────────────────────────────


def _steps(given: Axes, order: list[Factor], wanted: Axes) -> list[Step] | None:
    """Return a Reshape, a Transpose and a Reshape, as needed.

    Axes that are separate in only one of source and result may be permuted together, if a Reshape
    before merges them or a Reshape after splits them. None if a Reshape would need more than one
    unknown size.
    """
    ends = ((given, wanted), (wanted,), (given,))
    forms = [form for each in ends if (form := _through(given, order, wanted, each)) is not None]
    best = min(forms, key=partial(_cost, given), default=None)
    other = None if best is None or not any(_cost(given, best)[1:]) else _as_wanted(given, wanted)
    if best is None or other is None:
        return best
    shorter = len(other) < len(best) and len(given) == len(wanted)
    return other if shorter or len(other) == len(best) else best


def _cost(given: Axes, steps: Sequence[Step]) -> tuple[int, bool, int]:
    """Return the cost of a form, for comparisons.

    It is the number of steps, then whether a Transpose permutes axes that a Reshape after it
    splits, then the number of axes of size 1 that are permuted needlessly.
    """
    idle, shape = 0, _sizes(given) or ()
    for op, sizes in steps:
        shape = sizes or shape
        if isinstance(op, Transpose):
            order = op.order(len(shape)) if shape else ()
            idle += sum(shape[axis] == 1 and place != axis for place, axis in enumerate(order))
    return len(steps), len(steps) == 2 and isinstance(steps[0][0], Transpose), idle


def _as_wanted(given: Axes, wanted: Axes) -> list[Step] | None:
    """Return a Reshape to the axes of the result, in the order of the source, and a Transpose.

    Axes of size 1 stay where the result has them. None if an axis of the result consists of
    factors that are not adjacent in the source.
    """
    place = {factor: i for i, factor in enumerate(f for axis in given for f in axis if f.size != 1)}
    runs = [[place[factor] for factor in axis if factor.size != 1] for axis in wanted]
    if any(b - a != 1 for run in runs for a, b in pairwise(run)):
        return None
    kept = [i for i, run in enumerate(runs) if run]
    moved = dict(zip(kept, sorted(kept, key=lambda i: runs[i][0]), strict=True))
    before = [moved.get(i, i) for i in range(len(wanted))]
    perm = tuple(before.index(i) for i in range(len(wanted)))
    axes = [wanted[i] for i in before]
    sizes, transposed = _sizes(axes), perm != tuple(range(len(perm)))
    if sizes is None:
        return None
    steps: list[Step] = [] if sizes == _sizes(given) else [(to_sizes(sizes), sizes)]
    return [*steps, (Transpose(perm=perm), None)] if transposed else steps


def _through(
    given: Axes, order: list[Factor], wanted: Axes, ends: Sequence[Axes]
) -> list[Step] | None:
    """Return the steps whose Transpose has an axis wherever one of those `ends` begins."""
    place = {factor: i for i, factor in enumerate(f for axis in given for f in axis)}
    starts = {id(axis[0]) for axes in ends for axis in axes if axis}
    blocks: list[list[Factor]] = []
    for factor in order:
        joins = blocks and id(factor) not in starts
        if joins and place[blocks[-1][-1]] + 1 == place[factor]:
            blocks[-1].append(factor)
        else:
            blocks.append([factor])
    before = sorted(blocks, key=lambda block: place[block[0]])
    perm = tuple(before.index(block) for block in blocks)
    steps: list[Step] = []
    transposed = any(a > b for a, b in pairwise(perm))
    if transposed and before != given:
        steps.append(_reshape(before))
    if transposed:
        steps.append((Transpose(perm=perm), None))
    if (blocks if transposed else given) != wanted:
        steps.append(_reshape(wanted))
    if any(shape is None for op, shape in steps if isinstance(op, Reshape)):
        return None
    return steps


def _sizes(axes: Axes) -> tuple[int, ...] | None:
    """Return the sizes of axes for a Reshape, with -1 for an unknown one."""
    sizes: list[int] = []
    for axis in axes:
        size = 1
        for factor in axis:
            size = size * factor.size if size >= 0 and isinstance(factor.size, int) else -1
        sizes.append(size)
    return None if sizes.count(-1) > int(0 not in sizes) else tuple(sizes)


def _reshape(axes: Axes) -> Step:
    sizes = _sizes(axes)
    return to_sizes(sizes or ()), sizes
