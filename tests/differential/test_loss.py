"""Losses with weights, ignored targets and every reduction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .generate import INT32, INT64, Array, Dice
from .oracles import Make, agree
from .sample import Sample, smooth


def loss(op: str, dice: Dice) -> Sample:
    opset = dice.opset(op)
    dtype = dice.floating(op, opset)
    batch, classes, *image = (dice.randint(1, 4) for _ in range(dice.randint(2, 4)))
    scores = dice.array(dtype, (batch, classes, *image))
    target = dice.array(dice.some(INT32, INT64), (batch, *image), 0, classes - 1)
    attributes: dict[str, Any] = dice.given(reduction=("none", "sum", "mean"))
    if dice.chance(0.4):
        attributes["ignore_index"] = ignored = dice.randint(-1, classes - 1)
        if ignored < 0:
            target = np.where(dice.array(bool, target.shape), target, ignored).astype(target.dtype)
    weight = dice.array(dtype, (classes,), 0.1, 2) if dice.chance(0.5) else None
    outputs = 2 if op == "SoftmaxCrossEntropyLoss" and dice.chance(0.5) else 1

    def want(scores: Array, target: Array, weight: Array | None = None) -> Any:
        logs = scores
        if op == "SoftmaxCrossEntropyLoss":
            logs = scores - scores.max(1, keepdims=True)
            logs = logs - np.log(np.exp(logs).sum(1, keepdims=True))
        counted = target != attributes.get("ignore_index", np.inf)
        safe = np.where(counted, target, 0)
        shares = counted * (1.0 if weight is None else weight[safe])
        losses = -np.take_along_axis(logs, safe[:, None], 1)[:, 0] * shares
        how = attributes.get("reduction", "mean")
        found = losses if how == "none" else losses.sum() / (shares.sum() if how == "mean" else 1)
        return (found, logs) if outputs == 2 else found

    bound = smooth(scores.size)
    return Sample(op, (scores, target, weight), attributes, opset, outputs=outputs, bound=bound,
                  want=want)  # fmt: skip


MAKERS: dict[str, Make] = dict.fromkeys(
    ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), loss
)


@pytest.mark.parametrize("op", MAKERS)
def test_agrees(op: str) -> None:
    agree(op, MAKERS[op])
