"""Scores of tokens, as a decoder's steps compute them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import InputError
from ..ir.types import Array


class Greedy(NamedTuple):
    """The most likely token of each sequence.

    Attributes:
        tokens: int64 [batch]; the first of equal scores.
        scores: [batch], the score of each token; NaN where a sequence has a NaN score.
    """

    tokens: Array
    scores: Array

    @classmethod
    def of(cls, scores: Array) -> Greedy:
        """Return the argmax of scores [batch, vocabulary]."""
        if scores.dtype == np.float16:
            scores = scores.astype(np.float32)  # comparing float16 is slow in numpy
        tokens = scores.argmax(1)
        return cls(tokens, scores[np.arange(len(scores)), tokens])


def scores_of(logits: Array, count: int) -> Array:
    """Return the scores of the last `count` positions, [batch, n, vocabulary].

    Args:
        logits: [batch, n, vocabulary], or [batch, vocabulary] for the last position.
        count: number of positions; fewer are returned if there are fewer.
    """
    return logits[:, None] if logits.ndim == 2 else logits[:, -count:]


def scores_at(scores: Array, rows: Array, count: int) -> Array:
    """Return the scores [batch, vocabulary] after one of `count` positions of each sequence.

    Args:
        scores: [batch, count, vocabulary], or [batch, 1, vocabulary] of the last position.
        rows: int64 [batch], the positions.
        count: number of positions.

    Raises:
        InputError: only the last position has scores, and another position is requested.
    """
    if scores.shape[1] == count:
        return scores[np.arange(len(rows)), rows]
    if (rows < count - 1).any():
        raise InputError(
            "the model gives scores of the last position only, which is padding for shorter "
            "prompts; give prompts of equal lengths, or one at a time"
        )
    return scores[:, -1]
