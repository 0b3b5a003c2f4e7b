"""Write chains of Reshape, Transpose, Squeeze and Unsqueeze in their shortest form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..ir.graph import Graph, Node, Value
from ..ir.infer import infer
from ..ir.op import Op
from ..ops.movement import Transpose
from ..ops.shape import Flatten, Reshape, Squeeze, Unsqueeze
from .driver import Context
from .editing import Builder, drop
from .factors import Axes, Factor, follow

_RESHAPES = (Reshape, Flatten, Squeeze, Unsqueeze)
#: Longest chain that is followed.
_LENGTH = 8


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
    axes = follow(chain)
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


# ── the shortest form ────────────────────────────────────────────────────────────────────────────


def _steps(
    given: Axes, order: list[Factor], wanted: Axes
) -> list[tuple[Op, tuple[int, ...] | None]] | None:
    """Return a Reshape, a Transpose and a Reshape, each where it is needed.

    None where a Reshape would need more than one size that is not a number.
    """
    place = {factor: i for i, factor in enumerate(f for axis in given for f in axis)}
    starts = {id(axis[0]) for axes in (given, wanted) for axis in axes if axis}
    blocks: list[list[Factor]] = []
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


def _sizes(axes: Axes) -> tuple[int, ...] | None:
    """Return the sizes of axes for a Reshape, -1 for one that is not known."""
    sizes: list[int] = []
    for axis in axes:
        size = 1
        for factor in axis:
            size = size * factor.size if size > 0 and isinstance(factor.size, int) else -1
        sizes.append(size)
    return None if sizes.count(-1) > 1 else tuple(sizes)
