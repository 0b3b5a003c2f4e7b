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
        """Return what each of so many sequences draws from."""
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
        total = self.probabilities(logits, seen).cumsum()
        place = int(total.searchsorted(draws.random() * total[-1], "right"))
        return min(place, int(total.searchsorted(total[-1])))

    def scores(self, logits: Array, seen: Sequence[int]) -> Array:
        """Return logits [vocabulary] as float64 with the repetition penalty."""
        scores = logits.astype(np.float64)
        if self.repetition_penalty != 1 and len(seen):
            known = np.unique(np.asarray(seen, np.int64))
            there = scores[known]
            penalty = self.repetition_penalty
            scores[known] = np.where(there < 0, there * penalty, there / penalty)
        return scores

    def probabilities(self, logits: Array, seen: Sequence[int] = ()) -> Array:
        """Return the probability of every token, float64 [vocabulary]; `temperature` is not 0."""
        scores = self.scores(logits, seen) / self.temperature
        if 0 < self.top_k < scores.size:
            least = np.partition(scores, -self.top_k)[-self.top_k]
            scores[scores < least] = -np.inf
        found = np.exp(scores - scores.max())
        if self.top_p < 1:
            order = np.argsort(-found, kind="stable")
            mass = found[order].cumsum()
            before = np.concatenate([[0.0], mass[:-1]]) / mass[-1]
            found[order[1:][before[1:] >= self.top_p]] = 0
        found[found < self.min_p * found.max()] = 0
        return found / found.sum()
