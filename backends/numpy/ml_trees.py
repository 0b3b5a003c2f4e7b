"""Forests of decision trees: all rows go down all trees at once, a level a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...runtime.backend import Site
from ...runtime.dtypes import float32, float64
from ...runtime.ir import Node
from ...runtime.ops.ml import TreeEnsemble, TreeEnsembleClassifier, TreeEnsembleRegressor
from ...runtime.options import Options
from ...runtime.types import Array
from .chain import Chain
from .ml import both_classes, labels_of, rows_of, transformed
from .registry import builder
from .step import Bound, HostStep, Tape

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
class _Growing:
    """The nodes of a forest while it is built; a leaf is its own child."""

    feature: list[int]
    value: list[float]
    mode: list[int]
    missing: list[bool]
    true: list[int]
    false: list[int]

    @classmethod
    def empty(cls) -> _Growing:
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
class _Forest:
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
        cls, nodes: _Growing, roots: Sequence[int], weights: Weights, targets: int
    ) -> _Forest | str:
        """Return the forest, or what is wrong with it."""
        children = np.array([nodes.false, nodes.true]).reshape(2, -1)
        depth, reached = _levels(children, np.array(roots, int))
        if depth >= len(nodes.feature):
            return "a tree whose branches meet in a circle"
        if reached < len(nodes.feature):
            return "nodes that no root leads to"
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


# ── building ─────────────────────────────────────────────────────────────────────────────────────


def _parallel(
    op: TreeEnsembleClassifier | TreeEnsembleRegressor,
    leaves: Iterable[tuple[int, int, int, float]],
    targets: int,
) -> _Forest | str:
    """Build a forest from parallel lists.

    Args:
        op: the operator.
        leaves: tree, node, target and weight.
        targets: number of targets.
    """
    names = list(zip(op.nodes_treeids or (), op.nodes_nodeids or (), strict=True))
    tensor = op.nodes_values_as_tensor
    values = op.nodes_values or () if tensor is None else tensor.array.ravel().tolist()
    missing = op.nodes_missing_value_tracks_true or (0,) * len(names)
    modes = op.nodes_modes or ()
    nodes = _Growing.empty()
    for feature, value, mode, nan in zip(
        op.nodes_featureids or (), values, modes, missing, strict=True
    ):
        if mode not in (*MODES, "LEAF"):
            return f"nodes_modes with '{mode}'"
        nodes.add(feature, value, 0 if mode == "LEAF" else MODES.index(mode), bool(nan))
    index = {name: at for at, name in enumerate(names)}
    inner = [at for at, mode in enumerate(modes) if mode != "LEAF"]
    sides = ((nodes.true, op.nodes_truenodeids or ()), (nodes.false, op.nodes_falsenodeids or ()))
    for side, ids in sides:
        for at in inner:
            child = index.get((names[at][0], ids[at]))
            if child is None:
                return f"node {ids[at]} of tree {names[at][0]} is missing"
            side[at] = child
    children = {side[at] for side, _ in sides for at in inner}
    weights: Weights = defaultdict(list)
    for tree, node, target, weight in leaves:
        if (tree, node) not in index:
            return f"node {node} of tree {tree} is missing"
        weights[index[tree, node]].append((target, weight))
    roots = [at for at in range(len(names)) if at not in children]
    if len(roots) != len(set(op.nodes_treeids or ())):
        return "trees that do not have one root each"
    return _Forest.of(nodes, roots, weights, targets)


def _ensemble(op: TreeEnsemble) -> _Forest | str:
    """Build a forest from inner nodes and leaves; a member test is a chain of equalities."""
    nodes, weights = _Growing.empty(), Weights()
    sets = iter(_sets(op))
    missing = op.nodes_missing_value_tracks_true or (0,) * len(op.nodes_featureids)
    chains: list[list[int]] = []
    for feature, value, mode, nan in zip(
        op.nodes_featureids,
        op.nodes_splits.array.tolist(),
        op.nodes_modes.array.tolist(),
        missing,
        strict=True,
    ):
        if mode < MEMBER:
            chains.append([nodes.add(feature, value, mode, bool(nan))])
            continue
        members = next(sets, None)
        if members is None:
            return "fewer sets in membership_values than nodes that test for a member"
        chains.append([nodes.add(feature, v, EQUAL, bool(nan)) for v in members])
    leaves = [nodes.add(0, 0.0, 0, False) for _ in op.leaf_targetids]
    parts = zip(leaves, op.leaf_targetids, op.leaf_weights.array.tolist(), strict=True)
    weights.update({leaf: [(target, weight)] for leaf, target, weight in parts})
    ends = zip(
        op.nodes_trueleafs,
        op.nodes_truenodeids,
        op.nodes_falseleafs,
        op.nodes_falsenodeids,
        strict=True,
    )
    for chain, (true_leaf, true, false_leaf, false) in zip(chains, ends, strict=True):
        yes = leaves[true] if true_leaf else chains[true][0]
        no = leaves[false] if false_leaf else chains[false][0]
        for at, after in zip(chain, [*chain[1:], no], strict=True):
            nodes.true[at], nodes.false[at] = yes, after
    roots = [chains[root][0] for root in op.tree_roots]
    return _Forest.of(nodes, roots, weights, op.n_targets or 1)


def _sets(op: TreeEnsemble) -> list[list[float]]:
    """Return the sets of `membership_values`, each ended by NaN; an empty one holds just that."""
    if op.membership_values is None:
        return []
    values = op.membership_values.array.ravel()
    parts = np.split(values, np.flatnonzero(np.isnan(values)) + 1)[:-1]
    return [part[:-1].tolist() or part.tolist() for part in parts]


def _step(chain: Chain, site: Site, run: Callable[[Array], tuple[Array, ...]]) -> HostStep:
    """Return the step that applies `run` to the features."""
    return HostStep(chain.title, site, partial(_record, chain.head, run))


def _record(node: Node, run: Callable[[Array], tuple[Array, ...]], bound: Bound) -> list[Tape]:
    (features,) = node.inputs
    assert features is not None
    x, targets = bound[features], [bound.get(value) for value in node.outputs]

    def play() -> None:
        for target, result in zip(targets, run(x), strict=False):
            if target is not None:
                np.copyto(target, result, casting="same_kind")

    return [[play]]


# ── operators ────────────────────────────────────────────────────────────────────────────────────


def _base(op: TreeEnsembleClassifier | TreeEnsembleRegressor) -> Array:
    tensor = op.base_values_as_tensor
    return np.array(op.base_values or (), float64) if tensor is None else tensor.array.ravel()


@builder(TreeEnsemble)
def tree_ensemble(chain: Chain, site: Site, options: Options) -> HostStep | str:
    """Aggregate the leaves' weights."""
    op = chain.head.op
    assert isinstance(op, TreeEnsemble)
    forest = _ensemble(op)
    if isinstance(forest, str):
        return forest
    how = ("AVERAGE", "SUM", "MIN", "MAX")[op.aggregate_function]
    transform = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[op.post_transform]

    def run(x: Array) -> tuple[Array, ...]:
        sums, _ = forest.aggregated(x, how)
        return (_regressed(sums, transform),)

    return _step(chain, site, run)


def _regressed(sums: Array, transform: str) -> Array:
    """Return sums after a `post_transform`; a single target knows PROBIT alone."""
    if sums.shape[1] == 1 and transform != "PROBIT":
        return sums
    return transformed(sums, transform)


@builder(TreeEnsembleRegressor)
def tree_ensemble_regressor(chain: Chain, site: Site, options: Options) -> HostStep | str:
    """Aggregate the leaves' weights."""
    op = chain.head.op
    assert isinstance(op, TreeEnsembleRegressor)
    tensor = op.target_weights_as_tensor
    weights = op.target_weights or () if tensor is None else tensor.array.ravel().tolist()
    names = (op.target_treeids or (), op.target_nodeids or (), op.target_ids or ())
    forest = _parallel(op, zip(*names, weights, strict=True), op.n_targets or 1)
    if isinstance(forest, str):
        return forest
    base = _base(op)

    def run(x: Array) -> tuple[Array, ...]:
        sums, _ = forest.aggregated(rows_of(x), op.aggregate_function)
        return (_regressed(sums + base if base.size else sums, op.post_transform),)

    return _step(chain, site, run)


@builder(TreeEnsembleClassifier)
def tree_ensemble_classifier(chain: Chain, site: Site, options: Options) -> HostStep | str:
    """Add the leaves' weights, and find the class that has most."""
    op = chain.head.op
    assert isinstance(op, TreeEnsembleClassifier)
    tensor = op.class_weights_as_tensor
    weights = op.class_weights or () if tensor is None else tensor.array.ravel().tolist()
    names = (op.class_treeids or (), op.class_nodeids or (), op.class_ids or ())
    classes = len(op.classlabels_int64s or op.classlabels_strings or ())
    forest = _parallel(op, zip(*names, weights, strict=True), classes)
    if isinstance(forest, str):
        return forest
    base = _base(op)
    single = len(set(op.class_ids or ())) == 1 and classes <= 2
    positive = all(weight >= 0 for weight in weights)

    def run(x: Array) -> tuple[Array, ...]:
        sums, found = forest.aggregated(rows_of(x), "SUM")
        if single:
            places, scores = _of_one(sums[:, set(op.class_ids or ()).pop()], base, positive, op)
        else:
            sums = sums + base if base.size else sums
            places = np.where(found | bool(base.size), sums, -np.inf).argmax(1)
            scores = transformed(sums, op.post_transform)
        labels = labels_of(places, op.classlabels_int64s, op.classlabels_strings)
        return labels, scores.astype(float32)

    return _step(chain, site, run)


def _of_one(
    sums: Array, base: Array, positive: bool, op: TreeEnsembleClassifier
) -> tuple[Array, Array]:
    """Return classes and scores where all weights belong to one of two classes.

    Weights that are all positive make a probability, others a margin.
    """
    score = (sums + (base[-1] if base.size else 0))[:, np.newaxis]
    scores = both_classes(score, op.post_transform, positive)
    return (scores[:, -1] > scores[:, 0]).astype(int), scores
