"""Forests of decision trees: all rows go down all trees at once, one level per step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....runtime.base.guard import need
from ....runtime.ir.types import Array
from ....runtime.ops.forest import Forest

#: Leaves times targets of the rows that go down together.
BLOCK = 1 << 20

#: In the order of `forest.MODES`.
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
    """A forest whose leaves have a weight for every target.

    Attributes:
        forest: the trees.
        weights: [nodes, targets], what a leaf adds.
        counts: [nodes, targets], whether it adds anything.
    """

    forest: Forest
    weights: Array
    counts: Array

    @classmethod
    def of(cls, forest: Forest) -> Trees:
        """Spread the weights of a forest."""
        shape = len(forest.feature), forest.targets
        need(9 * shape[0] * shape[1], "the weights of the leaves")
        weights, counts = np.zeros(shape), np.zeros(shape, bool)
        places = np.repeat(np.arange(shape[0]), np.diff(forest.first)), forest.target
        weights[places], counts[places] = forest.weight, True
        return cls(forest, weights, counts)

    def leaves(self, rows: Array) -> Array:
        """Return the leaf of each row in each tree: [rows, trees]."""
        trees = self.forest
        places = np.broadcast_to(trees.roots, (len(rows), len(trees.roots)))
        line = np.arange(len(rows))[:, np.newaxis]
        modes = np.unique(trees.mode[~trees.is_leaf]).tolist()
        for _ in range(trees.depth):
            x, value = rows[line, trees.feature[places]], trees.value[places]
            taken = trees.missing[places] & np.isnan(x)
            for mode in modes:
                found = COMPARE[mode](x, value)
                taken |= found if len(modes) == 1 else found & (trees.mode[places] == mode)
            places = trees.children[taken.astype(int), places]
        return places

    def aggregated(self, rows: Array, how: str) -> tuple[Array, Array]:
        """Return sums (or averages, or extremes) [rows, targets], and whether there is any."""
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
