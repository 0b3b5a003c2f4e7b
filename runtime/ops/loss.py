"""Classification losses."""

from __future__ import annotations

from typing import ClassVar

from ..errors import ShapeError
from ..ir.op import Op, op
from ..ir.types import TensorType
from .shapes import dim, need_choice, need_vector, same_dtype, same_shape


def _loss(
    scores: TensorType, labels: TensorType, weights: TensorType | None, reduction: str
) -> TensorType:
    """Return the type of a loss of scores [n, classes, *d] against labels [n, *d]."""
    need_choice(reduction, "reduction", "none", "mean", "sum")
    same_dtype(scores, weights)
    shape = labels.shape
    if scores.shape is not None:
        if len(scores.shape) < 2:
            raise ShapeError(f"scores {scores} have no classes; 2 or more axes are needed")
        shape = same_shape(
            (scores.shape[0], *scores.shape[2:]), shape, "scores without classes and labels"
        )
    need_vector(weights, dim(scores, 1), "weights")
    return scores.with_shape(() if reduction != "none" else shape)


@op
class NegativeLogLikelihoodLoss(Op):
    """-input[n, target, *d] * weight[target], and its sum or weighted mean (ONNX 22).

    Positions whose target is `ignore_index` give 0 and have weight 0.
    """

    ignore_index: int | None = None
    reduction: str = "mean"

    def infer(
        self, input: TensorType, target: TensorType, weight: TensorType | None = None
    ) -> TensorType:
        return _loss(input, target, weight, self.reduction)


@op
class SoftmaxCrossEntropyLoss(Op):
    """NegativeLogLikelihoodLoss of LogSoftmax over axis 1, which is the second output (ONNX 13)."""

    outputs: ClassVar = (1, 2)
    ignore_index: int | None = None
    reduction: str = "mean"

    def infer(
        self, scores: TensorType, labels: TensorType, weights: TensorType | None = None
    ) -> tuple[TensorType, TensorType]:
        return _loss(scores, labels, weights, self.reduction), scores.without_value()
