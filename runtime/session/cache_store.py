"""What a `CachedDecoder` needs of whatever keeps its caches; see `decoding`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from ..ir.types import Array
from .sampling import Following
from .step_inputs import Tokens
from .token_scores import Greedy


class StepChain(Protocol):
    """Steps of one token that read each other's tokens; see `chained_steps.ChainedSteps`."""

    @property
    def depth(self) -> int:
        """Maximum number of launched steps whose tokens have not been taken."""
        ...

    @property
    def most(self) -> int:
        """Maximum number of positions after the last step."""
        ...

    def launch(self) -> None:
        """Launch a step."""
        ...

    def take(self) -> Array:
        """Wait for the oldest launched step, and return its tokens, int64 [batch]."""
        ...

    def drain(self) -> None:
        """Wait for all launched steps, and discard their tokens."""
        ...


class CacheStore(Protocol):
    """Keeps the caches of a decoder, and runs its steps on them."""

    def run(self, read: Tokens, new: Tokens) -> Array:
        """Read new tokens, and add them to the caches.

        Args:
            read: the tokens that the caches hold.
            new: the next tokens, as many as the model takes at a time.

        Returns:
            Scores, as `Decoder.step` returns them. After an error the caches still hold `read`.
        """
        ...

    def run_rows(self, read: Tokens, new: Tokens, rows: Array) -> Array:
        """As `run`, but return the scores [batch, vocabulary] after one new position per sequence.

        Raises:
            InputError: see `Decoder.read`.
        """
        ...

    def run_greedy(self, read: Tokens, new: Tokens, rows: Array) -> Greedy:
        """As `run_rows`, but return only the most likely token of each sequence, and its score."""
        ...

    def chained(self, read: Tokens, first: Array, how: Following, depth: int) -> StepChain | None:
        """Return chained steps with room for at least one; None if the store has none.

        Args:
            read: the tokens that the caches hold.
            first: int64 [batch], the tokens that the first step reads.
            how: how the next tokens are chosen.
            depth: maximum number of launched steps whose tokens have not been taken.
        """
        ...

    def truncate(self, length: int) -> None:
        """Keep only the first `length` positions; must be 0 unless the layout `can_rewind`."""
        ...

    def contents(self, length: int) -> dict[str, Array]:
        """Return copies of the caches on the host, which hold this number of positions."""
        ...

    def load(self, caches: Mapping[str, Array], length: int) -> None:
        """Replace the caches by others of fitting shapes, which hold this number of positions."""
        ...

    def close(self) -> None:
        """Free the caches; a second call does nothing."""
        ...


def first_positions(cache: Array, axis: int | None, length: int) -> Array:
    """Return the first positions of a cache, contiguous."""
    part = np.moveaxis(cache, axis or 0, 0)[:length]
    return np.ascontiguousarray(np.moveaxis(part, 0, axis or 0))
