"""Decision forests: all rows traverse all trees in parallel, one level per step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....runtime.base.guard import need
from ....runtime.ir.types import Array
from ....runtime.ops.forest import Forest

#: Maximum leaves times targets of the rows processed together.
BLOCK = 1 << 20

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
    """

    forest: Forest
    weights: Array
    counts: Array
    modes: tuple[int, ...]
    may_miss: bool

    @classmethod
    def of(cls, forest: Forest) -> Trees:
        """Make the weights of a forest dense."""
        shape = len(forest.feature), forest.targets
        need(9 * shape[0] * shape[1], "the weights of the leaves")
        weights, counts = np.zeros(shape), np.zeros(shape, bool)
        places = np.repeat(np.arange(shape[0]), np.diff(forest.first)), forest.target
        weights[places], counts[places] = forest.weight, True
        modes = tuple(np.unique(forest.mode[~forest.is_leaf]).tolist())
        return cls(forest, weights, counts, modes, bool(forest.missing.any()))

    def leaves(self, rows: Array) -> Array:
        """Return the leaf reached by each row in each tree: [rows, trees]."""
        trees, count = self.forest, len(self.forest.feature)
        children, elements = trees.children.reshape(-1), rows.reshape(-1)
        places = np.tile(trees.roots, (len(rows), 1))
        line = np.arange(len(rows))[:, np.newaxis] * rows.shape[1]
        for _ in range(trees.depth):
            x = elements.take(line + trees.feature.take(places))
            value = trees.value.take(places)
            first, *others = self.modes or (0,)
            taken = COMPARE[first](x, value)
            for mode in others:
                np.copyto(taken, COMPARE[mode](x, value), where=trees.mode.take(places) == mode)
            if self.may_miss:
                taken |= trees.missing.take(places) & np.isnan(x)
            places = children.take(places + count * taken)
        return places

    def aggregated(self, rows: Array, how: str) -> tuple[Array, Array]:
        """Return sums (or averages, minima, maxima) [rows, targets], and whether there are any."""
        trees, targets = len(self.forest.roots), self.forest.targets
        sums = np.zeros((len(rows), targets))
        found = np.zeros(sums.shape, bool)
        step = max(1, BLOCK // max(1, trees * targets))
        for first in range(0, len(rows), step):
            part = slice(first, first + step)
            leaves = self.leaves(rows[part])
            weights, counts = self.weights[leaves], self.counts[leaves]
            found[part] = counts.any(1)
            if how in ("SUM", "AVERAGE"):
                sums[part] = weights.sum(1)
            else:
                reduce, limit = (np.min, np.inf) if how == "MIN" else (np.max, -np.inf)
                sums[part] = reduce(np.where(counts, weights, limit), 1, initial=limit)
        if how == "AVERAGE":
            sums /= max(1, trees)
        return np.where(found, sums, 0), found
