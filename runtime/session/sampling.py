"""Token sampling: from logits to probabilities, and seeded draws.

The order is that of transformers: repetition penalty, temperature, top-k, top-p, min-p; all in
float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from ..base.record import record
from ..ir.types import Array
from .bans import NO_BANS, TokenBans

#: Takes the place of a token if the greatest logit of a sequence is not finite.
NOT_FINITE = -1
#: The greatest draw: small enough that a token is found however sums are rounded.
MAX_DRAW = 1 - 2.0**-52
#: Numbers that Philox generates per counter.
_BLOCK = 4
#: Draws computed at a time.
_AT_A_TIME = 64


@record
class SamplingSettings:
    """Sampling settings.

    Attributes:
        temperature: divides the logits; 0 for greedy decoding.
        top_k: sample from the k most likely tokens, ties with the last one included; 0 for all.
        top_p: sample from the smallest set of most likely tokens with at least this total
            probability.
        min_p: sample from tokens at least this many times as likely as the most likely one.
        repetition_penalty: divides positive logits of tokens that already occurred, and multiplies
            negative ones.
        seed: of the random numbers; see `draws`.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0 and self.repetition_penalty == 1

    def draws(self, sequences: int, first: int, count: int) -> Array:
        """Return random numbers, one per token.

        They are the doubles that numpy's Philox-4x64-10 generates for the key (seed, index of the
        sequence); each can be computed without those before it.

        Args:
            sequences: number of sequences.
            first: index of the first draw of each.
            count: number of draws of each.

        Returns:
            Float64 [sequences, count] in [0, 1 - 2⁻⁵²].
        """
        found = np.empty((sequences, count))
        block, skipped = divmod(first, _BLOCK)
        for row in range(sequences):
            key = np.array([self.seed, row], np.uint64)
            numbers = np.random.Generator(np.random.Philox(key=key, counter=block))
            found[row] = numbers.random(skipped + count)[skipped:]
        return np.minimum(found, MAX_DRAW, out=found)

    def each_draw(self, sequences: int, first: int = 0) -> Iterator[Array]:
        """Yield the draws of all sequences, one per step, float64 [sequences]."""
        if self.temperature == 0:
            yield from repeat(np.zeros(sequences))
        while True:
            yield from self.draws(sequences, first, _AT_A_TIME).T
            first += _AT_A_TIME

    def tokens(self, logits: Array, seen: Sequence[Sequence[int]], draws: Array) -> Array:
        """Choose the next token of each sequence.

        Args:
            logits: [batch, vocabulary].
            seen: the prompt tokens of each sequence, followed by its new ones.
            draws: [batch]; see `choose`.

        Returns:
            Int64 [batch]; `NOT_FINITE` where the greatest logit is not finite.
        """
        if logits.dtype == np.float16:
            logits = logits.astype(np.float32)  # comparing float16 is slow in numpy
        found = [
            self.choose(row, tokens, draw) if np.isfinite(row.max()) else NOT_FINITE
            for row, tokens, draw in zip(logits, seen, draws.tolist(), strict=True)
        ]
        return np.array(found, np.int64)

    def choose(self, logits: Array, seen: Sequence[int], draw: float = 0.0) -> int:
        """Choose the next token of one sequence.

        Args:
            logits: [vocabulary], finite or -inf.
            seen: prompt tokens followed by new tokens.
            draw: one of `draws`; not used if `temperature` is 0.
        """
        if self.temperature == 0:
            return int(self.scores(logits, seen).argmax())
        tokens, probabilities = self.likely(logits, seen)
        total = np.cumsum(probabilities, out=probabilities)
        return int(tokens[np.count_nonzero(total <= draw * total[-1])])

    def scores(self, logits: Array, seen: Sequence[int]) -> Array:
        """Return logits [vocabulary] as float64 with the repetition penalty applied."""
        scores = logits.astype(np.float64)
        if self.repetition_penalty != 1 and len(seen):
            known = np.unique(np.asarray(seen, np.int64))
            there = scores[known]
            penalty = self.repetition_penalty
            scores[known] = np.where(there < 0, there * penalty, there / penalty)
        return scores

    def likely(self, logits: Array, seen: Sequence[int] = ()) -> tuple[Array, Array]:
        """Return the candidate tokens, in ascending order, and their probabilities.

        `temperature` must not be 0.

        Returns:
            int64 [n], and float64 [n] with a sum of 1.
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
        """Return the probability of every token, float64 [vocabulary]; see `likely`."""
        tokens, probabilities = self.likely(logits, seen)
        found = np.zeros(logits.size)
        found[tokens] = probabilities
        return found


#: The most likely token is always taken.
GREEDY = SamplingSettings()


class Following(NamedTuple):
    """How a decoder generates tokens; see `Decoder.follow`.

    Attributes:
        sampling: how tokens are chosen.
        drawn: index of the first draw.
        limit: maximum number of steps; None for any.
        bans: tokens that may not come next.
        least: minimum length of each sequence, prompt included; empty if there is none.
    """

    sampling: SamplingSettings = GREEDY
    drawn: int = 0
    limit: int | None = None
    bans: TokenBans = NO_BANS
    least: tuple[int, ...] = ()

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.sampling.is_greedy and self.bans.is_empty

    def tokens(self, logits: Array, seen: Sequence[Sequence[int]], draws: Array) -> Array:
        """Choose the next token of each sequence; see `SamplingSettings.tokens`."""
        if not self.bans.is_empty:
            least = self.least or (0,) * len(seen)
            rows = zip(logits, seen, least, strict=True)
            logits = np.stack([self.bans.apply(*row) for row in rows])
        return self.sampling.tokens(logits, seen, draws)


def _nucleus(weights: Array, share: float) -> Array:
    """Return the ascending indices of the fewest, largest weights with this share of the sum.

    Of equal weights, the first is preferred. Only as many weights are sorted as needed.
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
            return np.sort(places[: 1 + np.count_nonzero(mass[:-1] < enough)])
        count *= 8


def _kth_greatest(values: Array, k: int) -> float:
    """Return the k-th largest of [n] values, 0 < k <= n.

    The k-th largest block maximum is a lower bound, which leaves few values to select from.
    """
    width = values.size // (4 * k)
    if width >= 8:
        whole = values.size // width * width
        maxima = values[:whole].reshape(-1, width).max(1)
        values = values[values >= np.partition(maxima, -k)[-k]]
    return np.partition(values, -k)[-k]
