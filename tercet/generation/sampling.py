"""Which token comes next: probabilities from logits, and draws that a seed decides.

The order is that of transformers: repetition penalty, temperature, top-k, top-p, min-p. All is
computed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..runtime.ir.types import Array


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen.

    Attributes:
        temperature: logits are divided by it; 0 takes the most likely token.
        top_k: number of tokens to choose among, and as many as are equal to the last of them; 0 for
            all.
        top_p: the fewest most likely tokens whose probabilities sum to at least this.
        min_p: tokens at least this share as likely as the most likely one.
        repetition_penalty: logits of tokens that were there are divided by it where they are
            positive, and multiplied where they are negative.
        seed: of the draws; sequence i draws from ``numpy.random.default_rng([seed, i])``.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def generators(self, count: int) -> list[np.random.Generator]:
        """Return what each of that many sequences draws from."""
        return [np.random.default_rng([self.seed, row]) for row in range(count)]

    def choose(self, logits: Array, seen: Sequence[int], draws: np.random.Generator) -> int:
        """Return the next token of one sequence.

        Args:
            logits: [vocabulary], finite or -inf.
            seen: the tokens of the prompt and those after it.
            draws: advances by one number, unless `temperature` is 0.
        """
        if self.temperature == 0:
            return int(self.scores(logits, seen).argmax())
        tokens, probabilities = self.likely(logits, seen)
        total = np.cumsum(probabilities, out=probabilities)
        place = int(total.searchsorted(draws.random() * total[-1], "right"))
        return int(tokens[min(place, len(tokens) - 1)])

    def scores(self, logits: Array, seen: Sequence[int]) -> Array:
        """Return logits [vocabulary] as float64 with the repetition penalty."""
        scores = logits.astype(np.float64)
        if self.repetition_penalty != 1 and len(seen):
            known = np.unique(np.asarray(seen, np.int64))
            there = scores[known]
            penalty = self.repetition_penalty
            scores[known] = np.where(there < 0, there * penalty, there / penalty)
        return scores

    def likely(self, logits: Array, seen: Sequence[int] = ()) -> tuple[Array, Array]:
        """Return the tokens that may be drawn, in ascending order, and their probabilities.

        `temperature` is not 0.

        Returns:
            int64 [n] and float64 [n], whose sum is 1.
        """
        scores = self.scores(logits, seen)
        scores /= self.temperature
        tokens = np.arange(scores.size)
        if 0 < self.top_k < scores.size:
            tokens = np.flatnonzero(scores >= _kth_greatest(scores, self.top_k))
            scores = scores[tokens]
        scores -= scores.max()
        weights = np.exp(scores, out=scores)
        if self.top_p < 1:
            kept = _nucleus(weights, self.top_p)
            tokens, weights = tokens[kept], weights[kept]
        least = self.min_p * weights.max()
        if weights.min() < least or not weights.all():
            kept = np.flatnonzero((weights > 0) & (weights >= least))
            tokens, weights = tokens[kept], weights[kept]
        weights /= weights.sum()
        return tokens, weights

    def probabilities(self, logits: Array, seen: Sequence[int] = ()) -> Array:
        """Return the probability of every token, float64 [vocabulary]; `temperature` is not 0."""
        tokens, probabilities = self.likely(logits, seen)
        found = np.zeros(logits.size)
        found[tokens] = probabilities
        return found


def _nucleus(weights: Array, share: float) -> Array:
    """Return the ascending places of the greatest weights that have a share of their sum together.

    Those are the fewest; among equal ones the first. Only as many are sorted as it takes.
    """
    enough, count = share * weights.sum(), 64
    while True:
        if count < weights.size:
            places = np.flatnonzero(weights >= _kth_greatest(weights, count))
        else:
            places = np.arange(weights.size)
        places = places[np.argsort(-weights[places], kind="stable")]
        mass = weights[places].cumsum()
        if len(places) == weights.size or mass[-1] >= enough:
            return np.sort(places[: 1 + int(mass[:-1].searchsorted(enough))])
        count *= 8


def _kth_greatest(values: Array, k: int) -> float:
    """Return the k-th greatest of [n] values, 0 < k <= n.

    The k-th greatest of the maxima of blocks is a lower bound, which leaves few to choose among.
    """
    width = values.size // (4 * k)
    if width >= 8:
        whole = values.size // width * width
        maxima = values[:whole].reshape(-1, width).max(1)
        values = values[values >= np.partition(maxima, -k)[-k]]
    return np.partition(values, -k)[-k]
