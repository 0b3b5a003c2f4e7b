"""Forests of all sizes and orders of nodes, for one row and for many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, helper

from tercet.backends.numpy.numerics import tree_ensemble
from tercet.backends.numpy.numerics.tree_ensemble import Trees
from tercet.runtime.ops.forest import MODES, Ensemble, ensemble_of
from tercet.runtime.ops.ml_trees import TreeEnsembleRegressor

from .nodes import ML, assert_same, by_onnxruntime, model_of, run

Array = np.ndarray[Any, Any]

FEATURES = 5


def forest(trees: int, inner: int, modes: tuple[str, ...], seed: int = 0) -> dict[str, Any]:
    """Return the attributes of trees of random shapes, whose nodes are in random order."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, int, int, float, str, int, int, int]] = []
    leaves: list[tuple[int, int, float]] = []
    for tree in range(trees):
        names = rng.permutation(2 * inner + 1)
        ends, children = [0], dict[int, tuple[int, int]]()
        for step in range(inner):
            at = ends.pop(int(rng.integers(len(ends))))
            children[at] = 2 * step + 1, 2 * step + 2
            ends += children[at]
        for at in [0, *(1 + rng.permutation(2 * inner)).tolist()]:  # onnxruntime has roots first
            true, false = children.get(at, (at, at))
            mode = str(rng.choice(modes)) if at in children else "LEAF"
            value = float(rng.integers(-8, 8)) / 4
            feature, misses = int(rng.integers(FEATURES)), int(rng.integers(2))
            ids = [int(names[each]) for each in (at, true, false)]
            rows.append((tree, ids[0], feature, value, mode, ids[1], ids[2], misses))
            if at not in children:
                leaves.append((tree, ids[0], float(rng.integers(-64, 64)) / 8))
    columns = [list(column) for column in zip(*rows, strict=True)]
    names = "treeids nodeids featureids values modes truenodeids falsenodeids"
    keys = [f"nodes_{name}" for name in names.split()] + ["nodes_missing_value_tracks_true"]
    ends = [list(column) for column in zip(*leaves, strict=True)]
    found = dict(zip(keys, columns, strict=True))
    found |= dict(zip(("target_treeids", "target_nodeids", "target_weights"), ends, strict=True))
    return found | {"target_ids": [0] * len(leaves), "n_targets": 1}


def regressor(attributes: dict[str, Any]) -> NodeProto:
    return helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain=ML, **attributes)


def features(rows: int) -> Array:
    rng = np.random.default_rng(rows)
    x = (rng.integers(-8, 8, (rows, FEATURES)) / 4).astype(np.float32)  # many are a node's value
    x[rng.random(x.shape) < 0.1] = np.nan
    x[rng.random(x.shape) < 0.05] = np.inf
    return x


def trees_of(attributes: dict[str, Any]) -> Trees:
    found = ensemble_of(TreeEnsembleRegressor(**attributes))
    assert isinstance(found, Ensemble)
    return Trees.of(found.forest)


@pytest.mark.parametrize("modes", [MODES[:1], MODES[1:4], MODES], ids=["one", "three", "all"])
@pytest.mark.parametrize(("trees", "inner"), [(1, 0), (1, 3), (7, 40), (40, 90)])
@pytest.mark.parametrize("rows", [1, 2, 60])
def test_forests_are_those_of_onnxruntime(
    rows: int, trees: int, inner: int, modes: tuple[str, ...]
) -> None:
    nodes = [regressor(forest(trees, inner, modes))]
    for first in range(5 if rows == 1 else 1):
        x = features(rows + first)[first:]
        model = model_of(nodes, {"x": x}, "y")
        for got, want in zip(run(model, {"x": x}), by_onnxruntime(model, {"x": x}), strict=True):
            assert_same(got, want)


@pytest.mark.parametrize("modes", [MODES[:1], MODES[:5]], ids=["one", "five"])
def test_true_children_are_behind_false_ones(
    modes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the node behind a comparison is a sum, for one row of all nodes at once."""
    trees = trees_of(forest(40, 90, modes))
    assert trees.below is not None
    inner = ~trees.forest.is_leaf
    np.testing.assert_array_equal(trees.forest.children[0], trees.below)
    np.testing.assert_array_equal(trees.forest.children[1], trees.below + inner)
    x = features(50)
    want = trees.leaves(x)
    np.testing.assert_array_equal(np.concatenate([trees.leaves(row[None]) for row in x]), want)
    monkeypatch.setattr(tree_ensemble, "FEW", 1 << 30)
    np.testing.assert_array_equal(trees.leaves(x), want)


def test_values_that_are_no_float32_are_compared_as_they_are() -> None:
    given = forest(3, 20, MODES[:1])
    assert trees_of(given).short is not None
    given["nodes_values"] = [value + 1e-12 for value in given["nodes_values"]]
    trees = trees_of(given)
    assert trees.short is None
    x = np.nan_to_num(features(20))
    np.testing.assert_array_equal(trees.leaves(x), trees.leaves(x.astype(np.float64)))
