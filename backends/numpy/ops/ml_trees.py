"""Decision trees of `ai.onnx.ml`: forests built from lists of nodes, once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np

from ....runtime.ir.dtypes import float32, float64
from ....runtime.ir.graph import Node
from ....runtime.ir.types import Array
from ....runtime.ops.ml_trees import (
    NodeLists,
    TreeEnsemble,
    TreeEnsembleClassifier,
    TreeEnsembleRegressor,
)
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine.chain import Chain
from ..engine.registry import builder
from ..engine.step import Bound, HostStep, Tape
from ..numerics.tree_ensemble import EQUAL, MEMBER, MODES, Forest, Growing, Weights
from .ml import both_classes, labels_of, rows_of, transformed

# ── building ─────────────────────────────────────────────────────────────────────────────────────


def _parallel(
    op: NodeLists,
    leaves: Iterable[tuple[int, int, int, float]],
    targets: int,
) -> Forest | str:
    """Build a forest from parallel lists.

    Args:
        op: the operator.
        leaves: tree, node, target and weight.
        targets: number of targets.
    """
    names = list(zip(op.nodes_treeids or (), op.nodes_nodeids or (), strict=False))
    tensor = op.nodes_values_as_tensor
    values = op.nodes_values or () if tensor is None else tensor.array.ravel().tolist()
    missing = op.nodes_missing_value_tracks_true or (0,) * len(names)
    modes, features = op.nodes_modes or (), op.nodes_featureids or ()
    index = {name: at for at, name in enumerate(names)}
    lists = (values, missing, modes, op.nodes_truenodeids or (), op.nodes_falsenodeids or ())
    if any(len(given) != len(index) for given in (names, features, *lists)):
        return "nodes_* of different lengths, or two nodes of one name"
    nodes = Growing.empty()
    for feature, value, mode, nan in zip(features, values, modes, missing, strict=True):
        if mode not in (*MODES, "LEAF"):
            return f"nodes_modes with '{mode}'"
        nodes.add(feature, value, 0 if mode == "LEAF" else MODES.index(mode), bool(nan))
    lost = _link(op, nodes, index)
    if lost is not None:
        return lost
    weights: Weights = defaultdict(list)
    for tree, node, target, weight in leaves:
        if (tree, node) not in index:
            return f"node {node} of tree {tree} is missing"
        weights[index[tree, node]].append((target, weight))
    inner = [at for at, mode in enumerate(modes) if mode != "LEAF"]
    children = {side[at] for side in (nodes.true, nodes.false) for at in inner}
    roots = [at for at in range(len(names)) if at not in children]
    if len(roots) != len(set(op.nodes_treeids or ())):
        return "trees that do not have one root each"
    return Forest.of(nodes, roots, weights, targets)


def _link(
    op: NodeLists,
    nodes: Growing,
    index: Mapping[tuple[int, int], int],
) -> str | None:
    """Give every inner node its children; return what is missing, if anything is."""
    sides = ((nodes.true, op.nodes_truenodeids or ()), (nodes.false, op.nodes_falsenodeids or ()))
    for side, ids in sides:
        for ((tree, _), at), child, mode in zip(
            index.items(), ids, op.nodes_modes or (), strict=True
        ):
            if mode == "LEAF":
                continue
            if (tree, child) not in index:
                return f"node {child} of tree {tree} is missing"
            side[at] = index[tree, child]
    return None


def _ensemble(op: TreeEnsemble) -> Forest | str:
    """Build a forest from inner nodes and leaves; a member test is a chain of equalities."""
    nodes = Growing.empty()
    sets = iter(_sets(op))
    missing = op.nodes_missing_value_tracks_true or (0,) * len(op.nodes_featureids)
    chains: list[list[int]] = []
    for feature, value, mode, nan in zip(
        op.nodes_featureids,
        op.nodes_splits.array.ravel().tolist(),
        op.nodes_modes.array.ravel().tolist(),
        missing,
        strict=True,
    ):
        if not 0 <= mode <= MEMBER:
            return f"nodes_modes with {mode}"
        if mode < MEMBER:
            chains.append([nodes.add(feature, value, mode, bool(nan))])
            continue
        members = next(sets, None)
        if members is None:
            return "fewer sets in membership_values than nodes that test for a member"
        chains.append([nodes.add(feature, v, EQUAL, bool(nan)) for v in members])
    leaves = [nodes.add(0, 0.0, 0, False) for _ in op.leaf_targetids]
    if not _is_linked(op, len(chains), len(leaves)):
        return "a branch or a root that leads nowhere"
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
    parts = zip(leaves, op.leaf_targetids, op.leaf_weights.array.ravel().tolist(), strict=True)
    weights: Weights = {leaf: [(target, weight)] for leaf, target, weight in parts}
    roots = [chains[root][0] for root in op.tree_roots]
    return Forest.of(nodes, roots, weights, op.n_targets or 1)


def _is_linked(op: TreeEnsemble, inner: int, leaves: int) -> bool:
    """Whether every branch and every root leads to a node or a leaf that is there."""
    branches = (
        (op.nodes_trueleafs, op.nodes_truenodeids),
        (op.nodes_falseleafs, op.nodes_falsenodeids),
        ((0,) * len(op.tree_roots), op.tree_roots),
    )
    return all(
        0 <= at < (leaves if is_leaf else inner)
        for flags, ids in branches
        for is_leaf, at in zip(flags, ids, strict=True)
    )


def _sets(op: TreeEnsemble) -> list[list[float]]:
    """Return the sets of `membership_values`, each ended by NaN; an empty one holds just that."""
    if op.membership_values is None:
        return []
    values = op.membership_values.array.ravel()
    parts = np.split(values, np.flatnonzero(np.isnan(values)) + 1)[:-1]
    return [part[:-1].tolist() or part.tolist() for part in parts]


def _step(chain: Chain, site: BuildContext, run: Callable[[Array], tuple[Array, ...]]) -> HostStep:
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


def _base(op: NodeLists) -> Array:
    tensor = op.base_values_as_tensor
    return np.array(op.base_values or (), float64) if tensor is None else tensor.array.ravel()


@builder(TreeEnsemble)
def tree_ensemble(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
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
def tree_ensemble_regressor(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
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
def tree_ensemble_classifier(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
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
