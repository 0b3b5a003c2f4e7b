"""Decision trees of ai.onnx.ml; forests are built once from lists of nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ....runtime.ir.dtypes import float32, float64
from ....runtime.ir.graph import Node
from ....runtime.ir.types import Array
from ....runtime.ops.forest import Ensemble, ensemble_of
from ....runtime.ops.ml_trees import TreeEnsemble, TreeEnsembleClassifier, TreeEnsembleRegressor
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine.chain import Chain
from ..engine.registry import builder
from ..engine.step import Bound, HostStep, Tape
from ..numerics.tree_ensemble import Trees
from .ml import both_classes, labels_of, rows_of, transformed


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


@builder(TreeEnsemble, TreeEnsembleRegressor)
def tree_ensemble(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Aggregate leaf weights."""
    op = chain.head.op
    assert isinstance(op, TreeEnsemble | TreeEnsembleRegressor)
    ensemble = ensemble_of(op)
    if isinstance(ensemble, str):
        return ensemble
    trees, base = Trees.of(ensemble.forest), ensemble.base

    def run(x: Array) -> tuple[Array, ...]:
        sums, _ = trees.aggregated(rows_of(x), ensemble.aggregate)
        return (_regressed(sums + base if base.size else sums, ensemble.transform),)

    return _step(chain, site, run)


def _regressed(sums: Array, transform: str) -> Array:
    """Return transformed sums; single targets support PROBIT only."""
    if sums.shape[1] == 1 and transform != "PROBIT":
        return sums
    return transformed(sums, transform)


@builder(TreeEnsembleClassifier)
def tree_ensemble_classifier(chain: Chain, site: BuildContext, options: Options) -> HostStep | str:
    """Add leaf weights and find the class with the largest sum."""
    op = chain.head.op
    assert isinstance(op, TreeEnsembleClassifier)
    ensemble = ensemble_of(op)
    if isinstance(ensemble, str):
        return ensemble
    trees, base = Trees.of(ensemble.forest), ensemble.base

    def run(x: Array) -> tuple[Array, ...]:
        sums, found = trees.aggregated(rows_of(x), "SUM")
        sums = sums + base if base.size else sums
        sums = sums.astype(ensemble.dtype).astype(float64)
        if ensemble.is_binary:
            places, scores = _of_one(sums, ensemble)
        else:
            known = sums if trees.always or base.size else np.where(found, sums, -np.inf)
            places = known.argmax(1)
            scores = transformed(sums, ensemble.transform)
        labels = labels_of(places, op.classlabels_int64s, op.classlabels_strings)
        return labels, scores.astype(float32)

    return _step(chain, site, run)


def _of_one(score: Array, ensemble: Ensemble) -> tuple[Array, Array]:
    """Return classes and scores if all weights belong to one of two classes.

    Weights that are all positive give a probability, others a margin.
    """
    limit = 0.5 if ensemble.is_probability else 0
    if ensemble.first is None:
        scores = both_classes(score, ensemble.transform, ensemble.is_probability)
    else:
        first = np.full_like(score, ensemble.first)
        scores = transformed(np.concatenate([first, score], 1), ensemble.transform)
    return (score[:, 0] > limit).astype(int), scores
