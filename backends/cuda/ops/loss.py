"""Classification losses."""

from __future__ import annotations

from math import prod

from ....runtime.ir.dtypes import FLOATS, int32, int64
from ....runtime.ops.loss import NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss
from ....runtime.ops.norm import LogSoftmax
from ..algorithms.registry import Answer, Setting, kernel, need_dtypes
from ..norm.softmax import softmax_of
from ..recipe.launch import Launch, launches_of
from ..recipe.operands import Scratch, Tensor, ceil_div
from ..recipe.source import arithmetic

WARPS = 8
THREADS = 256


def _loss(
    op: NegativeLogLikelihoodLoss | SoftmaxCrossEntropyLoss,
    y: Tensor,
    x: Tensor,
    logarithms: Tensor | Scratch,
    target: Tensor,
    weight: Tensor | None,
) -> Launch:
    """Return the launch that computes losses from log-probabilities of the layout of `x`."""
    alone = op.reduction == "none"
    ignored = 0 if op.ignore_index is None else op.ignore_index
    return Launch(
        "norm/loss.cu",
        "losses" if alone else "total_loss",
        grid=(ceil_div(target.size, THREADS) if alone else 1, 1, 1),
        block=THREADS,
        args={
            **{"x": logarithms, "targets": target, "weights": weight, "y": y},
            **{"count": target.size, "classes": x.dims[1], "inner": prod(x.dims[2:])},
            "ignored": ignored,
        },
        types=(("T", x.dtype), ("I", target.dtype), ("A", arithmetic(x.dtype))),
        constants=(
            *(("WARPS", WARPS), ("MEAN", op.reduction == "mean")),
            ("IGNORES", op.ignore_index is not None),
        ),
        note=op.reduction,
    )


@kernel(NegativeLogLikelihoodLoss)
def negative_log_likelihood_loss(
    op: NegativeLogLikelihoodLoss,
    y: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
) -> Answer:
    """Take the negative logarithms of the targets' probabilities."""
    refused = need_dtypes(FLOATS, x) or need_dtypes((int32, int64), target)
    return refused or _loss(op, y, x, x, target, weight)


@kernel(SoftmaxCrossEntropyLoss, outputs=2)
def softmax_cross_entropy_loss(
    op: SoftmaxCrossEntropyLoss,
    y: Tensor | None,
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    more: tuple[Tensor | None, ...] = (),
    setting: Setting,
) -> Answer:
    """Take the logarithms of the probabilities, then the loss."""
    refused = need_dtypes(FLOATS, scores) or need_dtypes((int32, int64), labels)
    if refused:
        return refused
    given = more[0] if more else None
    place = given or Scratch(0)
    taken = 0 if given else ceil_div(scores.size * scores.dtype.itemsize, 256) * 256
    first = softmax_of(LogSoftmax(axis=1), place, scores, setting.target, taken)
    if isinstance(first, str):
        return first
    launches = launches_of(first)
    if y is not None:
        launches += (_loss(op, y, scores, place, labels, weights),)
    return launches
