"""Classification losses, computed in float32 or wider."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import float32, float64, int64
from ....runtime.ir.types import Array
from ....runtime.ops.loss import NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss
from ..engine.registry import kernel


def _loss(
    op: NegativeLogLikelihoodLoss | SoftmaxCrossEntropyLoss,
    logarithms: Array,
    target: Array,
    weight: Array | None,
) -> Array:
    """Return the loss of log-probabilities [n, classes, *d] against classes [n, *d]."""
    classes = logarithms.shape[1]
    ignored = np.zeros(target.shape, bool)
    if op.ignore_index is not None:
        ignored = target == op.ignore_index
    places = np.where(ignored, 0, target).astype(int64)
    if places.size and not 0 <= places.min() <= places.max() < classes:
        raise IndexError(f"classes run from {places.min()} to {places.max()}, of {classes}")
    picked = np.take_along_axis(logarithms, places[:, np.newaxis], 1)[:, 0]
    weights = np.ones(classes) if weight is None else weight.astype(float64)
    shares = np.where(ignored, 0, weights[places])
    losses = np.where(ignored, 0, -picked * shares)
    if op.reduction == "none":
        return losses
    return losses.sum() / shares.sum() if op.reduction == "mean" else losses.sum()


@kernel(NegativeLogLikelihoodLoss)
def negative_log_likelihood_loss(
    op: NegativeLogLikelihoodLoss, x: Array, target: Array, weight: Array | None = None
) -> Array:
    """Return the weighted negative logarithms of the targets' probabilities."""
    wide = x.astype(float64 if x.dtype == float64 else float32)
    return np.asarray(_loss(op, wide, target, weight)).astype(x.dtype)


@kernel(SoftmaxCrossEntropyLoss)
def softmax_cross_entropy_loss(
    op: SoftmaxCrossEntropyLoss, scores: Array, labels: Array, weights: Array | None = None
) -> tuple[Array, Array]:
    """Return the loss, and the log-probabilities."""
    wide = scores.astype(float64 if scores.dtype == float64 else float32)
    shifted = wide - wide.max(1, keepdims=True, initial=-np.inf)
    logarithms = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    loss = np.asarray(_loss(op, logarithms, labels, weights))
    return loss.astype(scores.dtype), logarithms.astype(scores.dtype)
