"""Write chains of Reshape, Transpose, Squeeze and Unsqueeze in their shortest form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..infer import infer
from ..ir import Graph, Node, Value
from ..op import Op
from ..ops.movement import Transpose
from ..ops.shape import Flatten, Reshape, Squeeze, Unsqueeze
from ..types import Dim, Shape
from .driver import Context
from .editing import Builder, drop, shape_of

_RESHAPES = (Reshape, Flatten, Squeeze, Unsqueeze)
#: Longest chain that is followed.
_LENGTH = 8


@dataclass(eq=False, slots=True)
class _Factor:
    """A factor of a tensor's axis; every axis is a product of some, the slowest one first."""

    size: Dim


#: The axes of a tensor, each as factors of its source's axes.
_Axes = list[list[_Factor]]


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Put at most one Transpose, between at most two Reshapes, in place of a longer chain.

    Exporters flatten leading axes before they swap two others and restore them afterwards, or
    transpose twice with a Reshape in between. All of these order the elements of their source; the
    order, written in factors of the source's axes, is one Transpose.
    """
    refined = False
    for node in reversed(list(graph.nodes)):
        if node not in graph or not isinstance(node.op, (Transpose, *_RESHAPES)):
            continue
        chain = _chain(node)
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


def _chain(last: Node) -> list[Node]:
    """Return the nodes that do nothing but order elements, up to `last`."""
    chain = [last]
    while len(chain) < _LENGTH:
        source = chain[0].inputs[0]
        node = None if source is None else source.producer
        if node is None or not isinstance(node.op, (Transpose, *_RESHAPES)):
            break
        chain.insert(0, node)
    return chain


@dataclass(frozen=True, slots=True)
class _Form:
    """The shortest form of a chain.

    Attributes:
        chain: the nodes that it takes the place of.
        steps: what it consists of; a Reshape has a shape.
        saved: by how many nodes the graph gets smaller.
    """

    chain: Sequence[Node]
    steps: Sequence[tuple[Op, tuple[int, ...] | None]]
    saved: int

    def apply(self, graph: Graph) -> tuple[str, Value]:
        """Put it in the place of the chain; return a sentence about it, and its result."""
        last, value = self.chain[-1], self.chain[0].inputs[0]
        assert value is not None
        turns = [isinstance(op, Transpose) for op, _ in self.steps]
        for i, (op, shape) in enumerate(self.steps):
            stands_for_all = turns[i] or (not any(turns) and i == 0)
            origin = tuple(self.chain) if stands_for_all else ()
            add = Builder(graph, last, last.name, origin)
            sizes = () if shape is None else (add.integers(shape, f"{last.name}.shape"),)
            value = add(op, value, *sizes)
        graph.redirect(last.output, value)
        drop(graph, last)
        kinds = " and ".join(type(op).__name__ for op, _ in self.steps) or "nothing"
        return f"{len(self.chain)} nodes up to '{last.name}' do what {kinds} does", value


def _shortest(graph: Graph, chain: Sequence[Node]) -> _Form | None:
    """Return the form of a chain that leaves fewer nodes, if there is one."""
    if not any(isinstance(node.op, Transpose) for node in chain):
        return None
    axes = _follow(chain)
    steps = None if axes is None else _steps(*axes)
    if steps is None:
        return None
    saved = _spared(graph, chain) - len(steps)
    return _Form(chain, steps, saved) if saved > 0 else None


def _spared(graph: Graph, chain: Sequence[Node]) -> int:
    """Return how many nodes of a chain nobody else needs."""
    spared = 1
    for node in reversed(chain[:-1]):
        if graph.sole_consumer(node.output) is None:
            break
        spared += 1
    return spared


# ── following ────────────────────────────────────────────────────────────────────────────────────


def _follow(chain: Sequence[Node]) -> tuple[_Axes, list[_Factor], _Axes] | None:
    """Return the source's axes, the factors in their final order, and the result's axes.

    None where a size that matters is not known.
    """
    shape = shape_of(chain[0].inputs[0])
    if shape is None or None in shape or 0 in shape:
        return None
    given: _Axes = [[_Factor(dim)] for dim in shape]
    axes: _Axes = [list(axis) for axis in given]
    for node in chain:
        if isinstance(node.op, Transpose):
            axes = [axes[axis] for axis in node.op.order(len(axes))]
            continue
        wanted = shape_of(node.output)
        flat = [factor for axis in axes for factor in axis]
        regrouped = None if wanted is None else _regroup(flat, wanted, (given, axes))
        if regrouped is None:
            return None
        axes = regrouped
    return given, [factor for axis in axes for factor in axis], axes


def _regroup(flat: list[_Factor], shape: Shape, holders: tuple[_Axes, ...]) -> _Axes | None:
    """Return the factors as axes of these sizes, cut where one is split over several axes.

    Args:
        flat: all factors in order; changed where one is cut.
        shape: the sizes; one that is no known product of factors takes what is left.
        holders: axes elsewhere in which a factor that is cut is replaced by its parts.
    """
    if 0 in shape:
        return None
    front: _Axes = []
    behind: _Axes = []
    for dim in shape:
        axis = _take(flat, dim, holders, last=False)
        if axis is None:
            break
        front.append(axis)
    rest = shape[len(front) :]
    for dim in reversed(rest[1:]):
        axis = _take(flat, dim, holders, last=True)
        if axis is None:
            return None
        behind.insert(0, axis)
    if rest:
        front.append(flat[:])
        flat.clear()
    elif front and all(factor.size == 1 for factor in flat):
        front[-1] += flat
        flat.clear()
    return None if flat else [*front, *behind]


def _take(
    flat: list[_Factor], dim: Dim, holders: tuple[_Axes, ...], *, last: bool
) -> list[_Factor] | None:
    """Take the factors of an axis of this size off one end of `flat`; None if they are not there.

    An axis of size 1 takes a factor of size 1 if the next one is, and none otherwise.
    """
    at = -1 if last else 0
    if dim == 1:
        return [flat.pop(at)] if flat and flat[at].size == 1 else []
    ones = [factor for factor in _run_of_ones(flat, last)]
    body = flat[: len(flat) - len(ones)] if last else flat[len(ones) :]
    if not body:
        return None
    taken: list[_Factor] = []
    if isinstance(dim, str) or dim is None:
        if dim is None or body[at].size != dim:
            return None
        taken = [body.pop(at)]
    else:
        left = dim
        while left > 1:
            size = body[at].size if body else None
            if not isinstance(size, int):
                return None
            if left % size:
                if size % left:
                    return None
                _cut(body, at, left, holders, last=last)
                size = left
            taken.insert(len(taken) if not last else 0, body.pop(at))
            left //= size
    flat[:] = body
    return [*taken, *ones] if last else [*ones, *taken]


def _run_of_ones(flat: list[_Factor], last: bool) -> list[_Factor]:
    ones: list[_Factor] = []
    for factor in reversed(flat) if last else flat:
        if factor.size != 1:
            break
        ones.insert(0 if last else len(ones), factor)
    return ones


def _cut(
    body: list[_Factor], at: int, size: int, holders: tuple[_Axes, ...], *, last: bool
) -> None:
    """Cut a factor in two, of which the one at the end of `body` has this size."""
    whole = body[at]
    assert isinstance(whole.size, int)
    other = whole.size // size
    parts = [_Factor(other), _Factor(size)] if last else [_Factor(size), _Factor(other)]
    body[at : len(body) if last else at + 1] = parts
    for axes in holders:
        for axis in axes:
            if whole in axis:
                place = axis.index(whole)
                axis[place : place + 1] = parts


# ── the shortest form ────────────────────────────────────────────────────────────────────────────


def _steps(
    given: _Axes, order: list[_Factor], wanted: _Axes
) -> list[tuple[Op, tuple[int, ...] | None]] | None:
    """Return a Reshape, a Transpose and a Reshape, each where it is needed.

    None where a Reshape would need more than one size that is not a number.
    """
    place = {factor: i for i, factor in enumerate(f for axis in given for f in axis)}
    starts = {id(axis[0]) for axes in (given, wanted) for axis in axes if axis}
    blocks: list[list[_Factor]] = []
    for factor in order:
        joins = blocks and id(factor) not in starts
        if joins and place[blocks[-1][-1]] + 1 == place[factor]:
            blocks[-1].append(factor)
        else:
            blocks.append([factor])
    before = sorted(blocks, key=lambda block: place[block[0]])
    perm = tuple(before.index(block) for block in blocks)
    steps: list[tuple[Op, tuple[int, ...] | None]] = []
    turned = any(a > b for a, b in pairwise(perm))
    if turned and before != given:
        steps.append((Reshape(), _sizes(before)))
    if turned:
        steps.append((Transpose(perm=perm), None))
    if (blocks if turned else given) != wanted:
        steps.append((Reshape(), _sizes(wanted)))
    if any(shape is None for op, shape in steps if isinstance(op, Reshape)):
        return None
    return steps


def _sizes(axes: _Axes) -> tuple[int, ...] | None:
    """Return the sizes of axes for a Reshape, -1 for one that is not known."""
    sizes: list[int] = []
    for axis in axes:
        size = 1
        for factor in axis:
            size = size * factor.size if size > 0 and isinstance(factor.size, int) else -1
        sizes.append(size)
    return None if sizes.count(-1) > 1 else tuple(sizes)
