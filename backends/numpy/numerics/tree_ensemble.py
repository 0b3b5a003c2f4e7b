"""Forests of decision trees: all rows go down all trees at once, a level a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ....runtime.base.guard import need
from ....runtime.ir.types import Array

#: Leaves times targets of the rows that go down together.
BLOCK = 1 << 20

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
COMPARE: tuple[Callable[..., Array], ...] = (
    np.less_equal,
    np.less,
    np.greater_equal,
    np.greater,
    np.equal,
    np.not_equal,
)
EQUAL, MEMBER = 4, 6

#: Of a leaf: targets and weights.
Weights = dict[int, list[tuple[int, float]]]


@dataclass(slots=True)
class Growing:
    """The nodes of a forest while it is built; a leaf is its own child."""

    feature: list[int]
    value: list[float]
    mode: list[int]
    missing: list[bool]
    true: list[int]
    false: list[int]

    @classmethod
    def empty(cls) -> Growing:
        return cls([], [], [], [], [], [])

    def add(self, feature: int, value: float, mode: int, missing: bool) -> int:
        """Add a node that is a leaf until it gets children."""
        at = len(self.feature)
        self.feature.append(feature)
        self.value.append(value)
        self.mode.append(mode)
        self.missing.append(missing)
        self.true.append(at)
        self.false.append(at)
        return at


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees as arrays over all nodes.

    Attributes:
        feature: which column a node looks at.
        value: what it compares with.
        mode: how, as an index of `COMPARE`.
        missing: whether NaN goes to the true side.
        children: [2, nodes], the false and the true one; a leaf is its own child.
        roots: one node per tree.
        depth: steps after which every row has arrived.
        weights: [nodes, targets], what a leaf adds.
        counts: [nodes, targets], whether it adds anything.
    """

    feature: Array
    value: Array
    mode: Array
    missing: Array
    children: Array
    roots: Array
    depth: int
    weights: Array
    counts: Array

    @classmethod
    def of(
        cls, nodes: Growing, roots: Sequence[int], weights: Weights, targets: int
    ) -> Forest | str:
        """Return the forest, or what is wrong with it."""
        children = np.array([nodes.false, nodes.true]).reshape(2, -1)
        depth, reached = _levels(children, np.array(roots, int))
        if depth >= len(nodes.feature):
            return "a tree whose branches meet in a circle"
        if reached < len(nodes.feature):
            return "nodes that no root leads to"
        need(2 * len(nodes.feature) * targets * 8, "the weights of the leaves")
        dense = np.zeros((2, len(nodes.feature), targets))
        for leaf, parts in weights.items():
            for target, weight in parts:
                if not 0 <= target < targets:
                    return f"a leaf of target {target}, of {targets}"
                dense[:, leaf, target] += weight, 1
        return cls(
            np.array(nodes.feature),
            np.array(nodes.value),
            np.array(nodes.mode),
            np.array(nodes.missing),
            children,
            np.array(roots, int),
            depth,
            dense[0],
            dense[1] > 0,
        )

    def leaves(self, rows: Array) -> Array:
        """Return the leaf of each row in each tree: [rows, trees]."""
        places = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
        line = np.arange(len(rows))[:, np.newaxis]
        modes = sorted(set(self.mode.tolist()))
        for _ in range(self.depth):
            x, value = rows[line, self.feature[places]], self.value[places]
            taken = self.missing[places] & np.isnan(x)
            for mode in modes:
                found = COMPARE[mode](x, value)
                taken |= found if len(modes) == 1 else found & (self.mode[places] == mode)
            places = self.children[taken.astype(int), places]
        return places

    def aggregated(self, rows: Array, how: str) -> tuple[Array, Array]:
        """Return sums (or averages, or extremes) [rows, targets], and whether there is any."""
        sums = np.zeros((len(rows), self.weights.shape[1]))
        found = np.zeros(sums.shape, bool)
        step = max(1, BLOCK // max(1, len(self.roots) * sums.shape[1]))
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
            sums /= max(1, len(self.roots))
        return np.where(found, sums, 0), found


def _levels(children: Array, roots: Array) -> tuple[int, int]:
    """Return the number of levels below the roots, and of the nodes that they lead to.

    Where branches meet in a circle there are more levels than nodes.
    """
    level, depth = np.unique(roots), -1
    reached = np.zeros(children.shape[1], bool)
    while level.size and depth < len(reached):
        reached[level] = True
        below = children[:, level]
        level, depth = np.unique(below[below != level]), depth + 1
    return depth, int(reached.sum())
