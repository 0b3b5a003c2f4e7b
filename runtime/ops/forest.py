"""Decision forests as arrays: one form of the three tree operators, for all backends.

`ensemble_of` reads an operator's lists once; later code does not depend on the operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.record import record
from ..ir.dtypes import DType, float32
from ..ir.types import Array
from .ml import TRANSFORMS
from .ml_trees import NodeLists, TreeEnsemble, TreeEnsembleClassifier, TreeEnsembleRegressor

#: How a node compares x with its value; only TreeEnsemble has the seventh, set membership.
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
EQUAL, MEMBER = 4, 6
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Trees as arrays over all nodes.

    Attributes:
        feature: column of the input that each node compares: int32.
        value: the value it is compared with: float64.
        mode: the comparison, as an index of `MODES`: int8.
        missing: whether NaN takes the true branch.
        children: [2, nodes], the false and the true child: int32; a leaf is its own child.
        roots: one node per tree.
        depth: number of steps after which every row has reached a leaf.
        targets: number of targets.
        first: [nodes + 1], where each node's weights start in `target` and `weight`.
        target: target of each leaf weight, ascending per leaf: int32.
        weight: leaf weights: float64.
    """

    feature: Array
    value: Array
    mode: Array
    missing: Array
    children: Array
    roots: Array
    depth: int
    targets: int
    first: Array
    target: Array
    weight: Array

    @property
    def is_leaf(self) -> Array:
        """Whether each node is a leaf."""
        return self.children[0] == np.arange(len(self.feature))


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """A forest and the aggregation of its leaf weights.

    Attributes:
        forest: the trees.
        aggregate: one of `AGGREGATES`, over all trees.
        base: added to the result: empty, one number, or one per target; float64.
        transform: the `post_transform`.
        is_binary: whether the one target is the second of two classes.
        is_probability: whether its score is a probability rather than a margin.
        first: the score of the first of two classes, if it does not follow from that of the second.
        dtype: of the weights in the file. Sums of float32 weights are rounded to float32 before
            classes are chosen, so that ten times 0.1 is a probability of 1, and a tie is a tie.
    """

    forest: Forest
    aggregate: str
    base: Array
    transform: str
    is_binary: bool = False
    is_probability: bool = False
    first: float | None = None
    dtype: DType = float32


def ensemble_of(op: NodeLists | TreeEnsemble) -> Ensemble | str:
    """Return the ensemble of an operator, or the reason why it is invalid."""
    if isinstance(op, TreeEnsemble):
        forest = _newest(op)
        if isinstance(forest, str):
            return forest
        aggregate, transform = AGGREGATES[op.aggregate_function], TRANSFORMS[op.post_transform]
        return Ensemble(forest, aggregate, np.zeros(0), transform)
    return _classifier(op) if isinstance(op, TreeEnsembleClassifier) else _regressor(op)


# ── parallel lists ───────────────────────────────────────────────────────────────────────────────


def _regressor(op: NodeLists) -> Ensemble | str:
    assert isinstance(op, TreeEnsembleRegressor)
    tensor = op.target_weights_as_tensor
    weights = _floats(op.target_weights if tensor is None else tensor.array)
    parts = _ints(op.target_treeids), _ints(op.target_nodeids), _ints(op.target_ids)
    targets = op.n_targets or 1
    if targets == 1 and len({len(part) for part in (*parts, weights)}) == 1:
        # skl2onnx repeats a leaf's weight for every class: it counts once.
        first = np.unique(np.stack(parts[:2]), axis=1, return_index=True)[1]
        parts, weights = (parts[0][first], parts[1][first], parts[2][first]), weights[first]
    forest = _parallel(op, *parts, weights, targets)
    if isinstance(forest, str):
        return forest
    return _based(Ensemble(forest, op.aggregate_function, _base(op), op.post_transform))


def _based(ensemble: Ensemble) -> Ensemble | str:
    """Return the ensemble, or an error if its base values fit no target."""
    count, targets = ensemble.base.size, ensemble.forest.targets
    return ensemble if count in (0, 1, targets) else f"{count} base_values for {targets} targets"


def _classifier(op: TreeEnsembleClassifier) -> Ensemble | str:
    tensor = op.class_weights_as_tensor
    weights = _floats(op.class_weights if tensor is None else tensor.array)
    classes = len(op.classlabels_int64s or op.classlabels_strings or ())
    ids = _ints(op.class_ids)
    is_binary = classes == 2 and len(np.unique(ids)) == 1
    targets = np.zeros_like(ids) if is_binary and 0 <= ids[0] < classes else ids
    parts = _ints(op.class_treeids), _ints(op.class_nodeids), targets
    forest = _parallel(op, *parts, weights, 1 if is_binary else classes)
    if isinstance(forest, str):
        return forest
    base = _base(op)
    is_probability = is_binary and bool((weights >= 0).all())
    first = None
    if is_binary and ids[0] == 1:  # class 0 has no weights; one base value for two classes has none
        first, base = (float(base[0]) if base.size == classes else 0.0), base[1:]
    base = base[-1:] if is_binary else base
    dtype = float32 if tensor is None else tensor.array.dtype
    return _based(
        Ensemble(forest, "SUM", base, op.post_transform, is_binary, is_probability, first, dtype)
    )


def _base(op: NodeLists) -> Array:
    tensor = op.base_values_as_tensor
    return _floats(op.base_values if tensor is None else tensor.array)


def _floats(values: Sequence[float] | Array | None) -> Array:
    return np.array(() if values is None else values, np.float64).ravel()


def _ints(values: Sequence[int] | None) -> Array:
    return np.array(() if values is None else values, np.int64)


@record
class _NodeIndex:
    """Finds nodes by (tree id, node id)."""

    trees: Array
    nodes: Array
    keys: Array
    order: Array

    @classmethod
    def of(cls, trees: Array, nodes: Array) -> _NodeIndex:
        distinct = np.unique(trees), np.unique(nodes)
        keys = np.searchsorted(distinct[0], trees) * len(distinct[1])
        keys += np.searchsorted(distinct[1], nodes)
        order = np.argsort(keys, kind="stable")
        return cls(*distinct, keys[order], order)

    @property
    def are_unique(self) -> bool:
        """Whether no two nodes have the same id."""
        return bool((self.keys[1:] != self.keys[:-1]).all())

    def find(self, trees: Array, nodes: Array) -> Array | str:
        """Return the indices of nodes in the lists, or which one is missing."""
        places = np.searchsorted(self.trees, trees), np.searchsorted(self.nodes, nodes)
        at = [np.minimum(p, len(d) - 1) for p, d in zip(places, self._distinct, strict=True)]
        found = (self.trees[at[0]] == trees) & (self.nodes[at[1]] == nodes)
        keys = at[0] * len(self.nodes) + at[1]
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        found &= self.keys[place] == keys
        if not found.all():
            lost = int(np.argmin(found))
            return f"node {nodes[lost]} of tree {trees[lost]} is missing"
        return self.order[place]

    @property
    def _distinct(self) -> tuple[Array, Array]:
        return self.trees, self.nodes


def _parallel(
    op: NodeLists,
    leaf_trees: Array,
    leaf_nodes: Array,
    leaf_targets: Array,
    weights: Array,
    targets: int,
) -> Forest | str:
    """Build a forest from parallel lists of nodes and leaf weights."""
    trees, ids = _ints(op.nodes_treeids), _ints(op.nodes_nodeids)
    tensor = op.nodes_values_as_tensor
    values = _floats(op.nodes_values if tensor is None else tensor.array)
    features, modes = _ints(op.nodes_featureids), np.array(op.nodes_modes or (), str)
    true, false = _ints(op.nodes_truenodeids), _ints(op.nodes_falsenodeids)
    lists = (trees, ids, values, features, modes, true, false)
    if len({len(given) for given in lists}) > 1 or not len(trees):
        return "nodes_* of different lengths, or none"
    names = _NodeIndex.of(trees, ids)
    if not names.are_unique:
        return "two nodes of one name"
    known = {name: number for number, name in enumerate((*MODES, "LEAF"))}
    distinct, which = np.unique(modes, return_inverse=True)
    unknown = [name for name in distinct.tolist() if name not in known]
    if unknown:
        return f"nodes_modes with '{unknown[0]}'"
    mode = np.array([known[name] for name in distinct.tolist()], np.int8)[which]
    inner = mode < len(MODES)
    children = np.tile(np.arange(len(trees)), (2, 1))
    for side, given in zip(children, (false, true), strict=True):
        found = names.find(trees[inner], given[inner])
        if isinstance(found, str):
            return found
        side[inner] = found
    leaves = names.find(leaf_trees, leaf_nodes)
    if isinstance(leaves, str):
        return leaves
    is_root = np.ones(len(trees), bool)
    is_root[children[:, inner]] = False
    roots = np.flatnonzero(is_root)
    if len(roots) != len(names.trees):
        return "trees that do not have one root each"
    missing = _ints(op.nodes_missing_value_tracks_true or (0,) * len(trees)) != 0
    features[~inner] = mode[~inner] = 0
    nodes = features, values, mode, missing, children
    return _made(nodes, roots, (leaves, leaf_targets, weights), targets)


# ── inner nodes and leaves ───────────────────────────────────────────────────────────────────────


def _newest(op: TreeEnsemble) -> Forest | str:
    """Build a forest from a TreeEnsemble; a membership test becomes a chain of equalities."""
    modes = op.nodes_modes.array.ravel().astype(np.int64)
    if not ((modes >= 0) & (modes <= MEMBER)).all():
        return f"nodes_modes with {modes[(modes < 0) | (modes > MEMBER)][0]}"
    sets = list(_sets(op))
    tests = np.flatnonzero(modes == MEMBER)
    if len(sets) < len(tests):
        return "fewer sets in membership_values than nodes that test for a member"
    lengths = np.ones(len(modes), np.int64)
    lengths[tests] = [len(members) for members in sets[: len(tests)]]
    heads = np.cumsum(lengths) - lengths
    inner, leaves = int(lengths.sum()), len(op.leaf_targetids)
    count = inner + leaves
    source = np.repeat(np.arange(len(modes)), lengths)
    value = op.nodes_splits.array.ravel().astype(np.float64)[source]
    for test, members in zip(tests, sets, strict=False):
        value[heads[test] : heads[test] + len(members)] = members
    flags = op.nodes_missing_value_tracks_true or (0,) * len(modes)
    children = np.tile(np.arange(count), (2, 1))
    sides = (
        (op.nodes_falseleafs, op.nodes_falsenodeids),
        (op.nodes_trueleafs, op.nodes_truenodeids),
    )
    for side, (is_leaf, ids) in zip(children, sides, strict=True):
        ends = _ends(_ints(is_leaf) != 0, _ints(ids), heads, inner, leaves)
        if ends is None:
            return "a branch or a root that leads nowhere"
        side[:inner] = ends[source]
    chained = np.arange(inner) != (heads + lengths - 1)[source]
    children[0, :inner][chained] = np.flatnonzero(chained) + 1
    given = _ints(op.tree_roots)
    roots = _ends(np.zeros(len(given), bool), given, heads, inner, leaves)
    if roots is None or not len(roots):
        return "a branch or a root that leads nowhere"
    nodes = (
        _padded(_ints(op.nodes_featureids)[source], leaves),
        _padded(value, leaves),
        _padded(np.where(modes == MEMBER, EQUAL, modes)[source], leaves),
        _padded((_ints(flags) != 0)[source], leaves),
        children,
    )
    weights = op.leaf_weights.array.ravel().astype(np.float64)
    parts = np.arange(inner, count), _ints(op.leaf_targetids), weights
    return _made(nodes, roots, parts, op.n_targets or 1)


def _ends(is_leaf: Array, ids: Array, heads: Array, inner: int, leaves: int) -> Array | None:
    """Return the nodes denoted by ids of leaves and inner nodes, or None."""
    if not ((ids >= 0) & (ids < np.where(is_leaf, leaves, len(heads)))).all():
        return None
    found = inner + ids
    found[~is_leaf] = heads[ids[~is_leaf]]
    return found


def _padded(nodes: Array, leaves: int) -> Array:
    return np.concatenate([nodes, np.zeros(leaves, nodes.dtype)])


def _sets(op: TreeEnsemble) -> Iterator[list[float]]:
    """Yield the sets of `membership_values`, each terminated by NaN; an empty set is just that."""
    if op.membership_values is not None:
        values = op.membership_values.array.ravel()
        for part in np.split(values, np.flatnonzero(np.isnan(values)) + 1)[:-1]:
            yield part[:-1].tolist() or part.tolist()


# ── forests ──────────────────────────────────────────────────────────────────────────────────────


def _made(
    nodes: tuple[Array, Array, Array, Array, Array],
    roots: Array,
    parts: tuple[Array, Array, Array],
    targets: int,
) -> Forest | str:
    """Return the forest, or the reason why it is invalid.

    Args:
        nodes: feature, value, mode, missing and children.
        roots: one per tree.
        parts: leaf, target and weight, in parallel.
        targets: how many there are.
    """
    feature, value, mode, missing, children = nodes
    depth, reached = _levels(children, roots)
    if depth >= len(feature):
        return "a tree with a cycle"
    if reached < len(feature):
        return "nodes that no root leads to"
    leaf, target, weight = parts
    outside = (target < 0) | (target >= targets)
    if outside.any():
        return f"a leaf of target {target[outside][0]}, of {targets}"
    keys, which = np.unique(leaf * targets + target, return_inverse=True)
    sums = np.zeros(len(keys))
    np.add.at(sums, which, weight)
    return Forest(
        feature.astype(np.int32),
        value,
        mode.astype(np.int8),
        missing,
        children.astype(np.int32),
        roots.astype(np.int32),
        depth,
        targets,
        np.searchsorted(keys, np.arange(len(feature) + 1) * targets),
        (keys % targets).astype(np.int32),
        sums,
    )


def _levels(children: Array, roots: Array) -> tuple[int, int]:
    """Return the number of levels below the roots and below other nodes.

    A cycle gives more levels than nodes.
    """
    level, depth = np.unique(roots), -1
    reached = np.zeros(children.shape[1], bool)
    while level.size and depth < len(reached):
        reached[level] = True
        below = children[:, level]
        level, depth = np.unique(below[below != level]), depth + 1
    return depth, int(reached.sum())


def in_breadth(forest: Forest) -> tuple[Array, Array] | None:
    """Return nodes in breadth-first order by tree, siblings adjacent, and where each tree starts.

    The true child follows its false sibling; None if a node has two parents, so that there is no
    such order.
    """
    level, tree = forest.roots, np.arange(len(forest.roots))
    nodes: list[Any] = []
    trees: list[Any] = []
    left = len(forest.feature)
    is_leaf = forest.is_leaf
    while level.size:
        left -= len(level)
        if left < 0:
            return None
        nodes.append(level)
        trees.append(tree)
        inner = ~is_leaf[level]
        level, tree = forest.children[:, level[inner]].T.ravel(), np.repeat(tree[inner], 2)
    whole, owner = np.concatenate(nodes), np.concatenate(trees)
    order = np.argsort(owner, kind="stable")
    return whole[order], np.searchsorted(owner[order], np.arange(len(forest.roots)))
