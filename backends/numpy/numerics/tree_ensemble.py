"""Decision forests: all rows traverse all trees in parallel, one level per step.

For few rows and nodes all nodes are compared before that, as a call takes longer than its work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ....runtime.base.guard import need
from ....runtime.ir.types import Array
from ....runtime.ops.forest import Forest, in_breadth

#: Maximum leaves times targets of the rows processed together.
BLOCK = 1 << 16
#: Maximum nodes times rows for which all nodes are compared at once, in a few calls, and how many
#: are compared for a single row in the time that the calls for a level take.
FEW, PER_LEVEL = 1 << 12, 5000

#: Comparisons in the order of `forest.MODES`.
COMPARE: tuple[Callable[..., Array], ...] = (
    np.less_equal,
    np.less,
    np.greater_equal,
    np.greater,
    np.equal,
    np.not_equal,
)


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """A forest with dense leaf weights for every target.

    Attributes:
        forest: the trees.
        weights: [nodes, targets], weights of leaves.
        counts: [nodes, targets], whether a leaf has a weight.
        modes: the comparisons in use, as indices of `COMPARE`.
        may_miss: whether NaN takes another branch than comparison would.
        always: whether every row gets a weight for every target.
        roots, feature: those of the forest, as numpy indexes.
        children: [2 * nodes], the false and the true child of each node, likewise.
        below: the false child of each node, which the true one follows, while leaves are below
            themselves and take no true branch; None if they do or nodes have no such order.
        short: the values in float32, if all are numbers of that.
    """

    forest: Forest
    weights: Array
    counts: Array
    modes: tuple[int, ...]
    may_miss: bool
    always: bool
    roots: Array
    feature: Array
    children: Array
    below: Array | None
    short: Array | None

    @classmethod
    def of(cls, forest: Forest) -> Trees:
        """Make the weights of a forest dense."""
        ordered = _in_order(forest)
        forest = ordered or forest
        shape = len(forest.feature), forest.targets
        need(9 * shape[0] * shape[1], "the weights of the leaves")
        weights, counts = np.zeros(shape), np.zeros(shape, bool)
        places = np.repeat(np.arange(shape[0]), np.diff(forest.first)), forest.target
        weights[places], counts[places] = forest.weight, True
        modes = tuple(np.unique(forest.mode[~forest.is_leaf]).tolist())
        return cls(
            forest,
            weights,
            counts,
            modes,
            bool(forest.missing.any()),
            _reaches_all(forest, counts),
            forest.roots.astype(np.intp),
            forest.feature.astype(np.intp),
            forest.children.T.astype(np.intp).ravel(),
            None if ordered is None else forest.children[0].astype(np.intp),
            _in_float32(forest.value),
        )

    def leaves(self, rows: Array) -> Array:
        """Return the leaf reached by each row in each tree: [rows, trees]."""
        trees, elements = self.forest, rows.reshape(-1)
        may_miss = self.may_miss and bool(np.isnan(elements).any())
        count, nodes = len(rows), len(self.feature)
        is_one = count == 1 and self.below is not None
        if count * nodes <= FEW or (is_one and nodes <= PER_LEVEL * trees.depth):
            taken = self._branches(rows.take(self.feature, 1), None, may_miss)
            if self.below is None:
                after = np.where(taken, self.children[1::2], self.children[::2])
            else:
                after = self.below + taken
            if count == 1:
                after, places = after[0], self.roots
                for _ in range(trees.depth):
                    places = after.take(places)
                return places[np.newaxis]
            line = np.arange(0, count * nodes, nodes)[:, np.newaxis]
            after += line
            places = self.roots + line
            for _ in range(trees.depth):
                places = after.take(places)
            return places - line
        places = np.tile(self.roots, (count, 1))
        line = np.arange(count)[:, np.newaxis] * rows.shape[1]
        for _ in range(trees.depth):
            at = self.feature.take(places)
            at += line
            taken = self._branches(elements.take(at), places, may_miss)
            if self.below is None:
                places += places
                places += taken
                places = self.children.take(places)
            else:
                places = self.below.take(places)
                places += taken
        return places

    def _branches(self, x: Array, places: Array | None, may_miss: bool) -> Array:
        """Return whether each element takes the true branch.

        Args:
            x: the elements.
            places: the node of each; None for all nodes in order.
            may_miss: whether some are NaN, for which some nodes have a branch.
        """
        trees = self.forest

        def of_nodes(data: Array) -> Array:
            return data if places is None else data.take(places)

        is_short = self.short is not None and x.dtype == np.float32
        value = of_nodes(self.short if self.short is not None and is_short else trees.value)
        first, *others = self.modes or (0,)
        taken = COMPARE[first](x, value)
        for mode in others:
            np.copyto(taken, COMPARE[mode](x, value), where=of_nodes(trees.mode) == mode)
        if may_miss:
            taken |= of_nodes(trees.missing) & np.isnan(x)
        return taken

    def aggregated(self, rows: Array, how: str) -> tuple[Array, Array]:
        """Return sums (or averages, minima, maxima) [rows, targets], and whether there are any."""
        trees, targets = len(self.forest.roots), self.forest.targets
        step = max(1, BLOCK // max(1, trees * targets))
        if self.always and how == "SUM" and len(rows) <= step:
            sums = np.add.reduce(self.weights.take(self.leaves(rows), 0), 1)
            return sums, np.ones(sums.shape, bool)
        sums = np.zeros((len(rows), targets))
        found = np.full(sums.shape, self.always)
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            leaves = self.leaves(rows[part])
            weights = self.weights.take(leaves, 0)
            if how in ("SUM", "AVERAGE") and self.always:
                sums[part] = weights.sum(1)
                continue
            counts = self.counts.take(leaves, 0)
            found[part] = counts.any(1)
            if how in ("SUM", "AVERAGE"):
                sums[part] = weights.sum(1)
            else:
                reduce, limit = (np.min, np.inf) if how == "MIN" else (np.max, -np.inf)
                sums[part] = reduce(np.where(counts, weights, limit), 1, initial=limit)
        if how == "AVERAGE":
            sums /= max(1, trees)
        return sums if self.always else np.where(found, sums, 0), found


def _reaches_all(forest: Forest, counts: Array) -> bool:
    """Whether each target has a tree all of whose leaves have a weight for it."""
    if not len(forest.roots) or (found := in_breadth(forest)) is None:
        return False
    nodes, starts = found
    weighted = counts[nodes] | ~forest.is_leaf[nodes][:, np.newaxis]
    return bool(np.logical_and.reduceat(weighted, starts, axis=0).any(0).all())


def _in_float32(values: Array) -> Array | None:
    """Return numbers in float32, unless one of them is none of that; NaN stays NaN."""
    with np.errstate(over="ignore"):
        short = values.astype(np.float32)
    return short if np.array_equal(short, values, equal_nan=True) else None


def _in_order(forest: Forest) -> Forest | None:
    """Return the forest with the true child of each node behind the false one.

    The value of leaves is NaN, so that no comparison holds there. None if one with NaN would, or
    if a node has two parents.
    """
    is_leaf = forest.is_leaf
    found = in_breadth(forest)
    if found is None or (COMPARE[forest.mode.max(initial=0)] is np.not_equal):
        return None
    nodes, _ = found
    place = np.empty_like(nodes)
    place[nodes] = np.arange(len(nodes))
    count = np.diff(forest.first)[nodes]
    first = np.concatenate([[0], np.cumsum(count)])
    at = np.repeat(forest.first[nodes] - first[:-1], count) + np.arange(first[-1])
    return replace(
        forest,
        feature=forest.feature[nodes],
        value=np.where(is_leaf, np.nan, forest.value)[nodes],
        mode=forest.mode[nodes],
        missing=(forest.missing & ~is_leaf)[nodes],
        children=place[forest.children[:, nodes]].astype(np.int32),
        roots=place[forest.roots].astype(np.int32),
        first=first,
        target=forest.target[at],
        weight=forest.weight[at],
    )
