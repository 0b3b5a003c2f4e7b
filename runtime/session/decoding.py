"""Decoders: models that read tokens step by step, with KV caches of keys and values.

Generation works on a `Decoder`; `open_decoder.open_decoder` returns the one for a model. A
`CachedDecoder` has three parts: `StepInputs` computes the inputs of a step, `Tokens` are those read
so far, and a `CacheStore` runs the steps and keeps the caches, either as arrays passed from run to
run (`passed_caches`) or in buffers (`static_cache`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from itertools import count
from typing import Any, Generic, TypeVar, cast

import numpy as np

from ..base.arguments import optional, whole
from ..base.closable import Closable
from ..errors import UsageError
from ..ir.types import Array
from .bans import NO_BANS, TokenBans
from .cache_layout import DecoderLayout, Padding
from .cache_store import CacheStore, StepChain
from .sampling import GREEDY, NOT_FINITE, Following, SamplingSettings
from .step_inputs import StepInputs, Tokens
from .token_scores import Greedy, scores_at


class Decoder(Closable):
    """A decoder with its caches.

    Attributes:
        layout: what the model takes and returns.
        batch: number of sequences.
        capacity: maximum number of positions; None if only memory limits it.
    """

    layout: DecoderLayout
    batch: int
    capacity: int | None

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of positions in the caches, padding included."""

    @abstractmethod
    def step(self, ids: Array, mask: Array | None = None) -> Array:
        """Read the next tokens of every sequence, and add them to the caches.

        Args:
            ids: int64 [batch, n], n of 1 or more.
            mask: int64 [batch, n], 1 for tokens and 0 for padding, which is on the side given by
                `padding` and only in the first step; all 1 if None.

        Returns:
            Scores of the token that follows each position, [batch, n, vocabulary] in the model's
            dtype; [batch, 1, vocabulary] if the model returns only those of the last position.

        Raises:
            InputError: ids or mask of another shape, or more positions than `capacity`; the decoder
                is unchanged.
        """

    def read(self, ids: Array, mask: Array | None = None, rows: Array | None = None) -> Array:
        """As `step`, but return the scores after one position of each sequence.

        Other scores are not computed, as far as the model allows.

        Args:
            ids: int64 [batch, n].
            mask: int64 [batch, n]; see `step`.
            rows: int64 [batch], a position among the n for each sequence; the last if None.

        Returns:
            [batch, vocabulary] in the model's dtype.

        Raises:
            InputError: as for `step`; or the model returns only the scores of the last position,
                and another position is requested.
        """
        scores = self.step(ids, mask)
        return scores_at(scores, self._rows(ids, rows), np.shape(ids)[-1])

    def greedy(self, ids: Array, mask: Array | None = None, rows: Array | None = None) -> Greedy:
        """As `read`, but return only the most likely token of each sequence, and its score.

        A device computes the argmax itself, so that no other score is copied to the host.
        """
        return Greedy.of(self.read(ids, mask, rows))

    @abstractmethod
    def follow(
        self,
        tokens: Array,
        limit: int | None = None,
        *,
        sampling: SamplingSettings = GREEDY,
        drawn: int = 0,
        ahead: int = 1,
        bans: TokenBans = NO_BANS,
        least: Sequence[int] = (),
    ) -> Generator[Array]:
        """Generate: read one token of every sequence, choose the next ones, read those, and so on.

        On a device, steps are launched before the host has seen the tokens of earlier ones;
        positions read beyond the last token taken are forgotten. Every other use of the decoder
        ends the iterator, and so does its ``close``.

        Args:
            tokens: int64 [batch], the tokens to read first.
            limit: maximum number of steps; limited only by the capacity if None.
            sampling: how tokens are chosen; the repetition penalty applies to tokens already
                read.
            drawn: index of the first random draw; see `SamplingSettings.draws`.
            ahead: maximum number of steps in flight after the one whose tokens are awaited.
            bans: tokens that may not come next.
            least: minimum length of each sequence, prompt included, before which the `ends` of
                `bans` are forbidden; none if empty.

        Yields:
            The next token of every sequence, int64 [batch], which is read if the iterator goes on;
            `NOT_FINITE` where the greatest score of a sequence is not finite.

        Raises:
            UsageError: `limit`, `drawn` or `ahead` is invalid.
            InputError: tokens of another shape, or the capacity is exceeded. Tokens yielded before
                have been read.
        """

    def _rows(self, ids: Array, rows: Array | None) -> Array:
        return np.full(self.batch, np.shape(ids)[-1] - 1) if rows is None else rows

    @abstractmethod
    def rewind(self, length: int) -> int:
        """Forget all positions after the first `length`.

        Args:
            length: number of positions to keep, padding included; at most `length`.

        Returns:
            The number of positions kept: `length`, or 0 if the caches no longer hold earlier ones
            (sliding windows, states of convolutions), so that all tokens must be read again.
        """

    @abstractmethod
    def caches(self) -> dict[str, Array]:
        """Return copies of the caches on the host, by the names of the inputs."""

    @abstractmethod
    def restore(self, ids: Array, caches: Mapping[str, Array]) -> None:
        """Continue from the state of another decoder of the same model.

        Args:
            ids: int64 [batch, length], the tokens that it had read, without padding.
            caches: the result of its `caches`.

        Raises:
            InputError: ids or caches do not fit the model, or exceed the capacity; the decoder is
                unchanged.
        """

    def reset(self) -> None:
        """Forget all positions."""
        self.rewind(0)

    @property
    def padding(self) -> Padding | None:
        """The side on which shorter sequences are padded; None if all must have equal length."""
        return self.layout.padding


S = TypeVar("S", bound=CacheStore)


class CachedDecoder(Decoder, Generic[S]):
    """A decoder whose caches are in a `CacheStore`, which is closed with it.

    Attributes:
        inputs: computes the inputs of a step besides caches.
        store: the caches.
    """

    def __init__(self, inputs: StepInputs, store: S) -> None:
        self.layout, self.batch, self.capacity = inputs.layout, inputs.batch, inputs.capacity
        self.inputs, self.store = inputs, store
        self._read = Tokens.dummy(inputs.batch, 0)
        self._followed: list[Array] = []  # tokens read after these by `follow`
        self._following: Generator[Array] | None = None

    @property
    def length(self) -> int:
        return self._read.length + len(self._followed)

    def _settle(self) -> None:
        """End the iterator of `follow`, if there is one."""
        following, self._following = self._following, None
        if following is not None:
            following.close()
        self._note()

    @property
    def _history(self) -> Tokens:
        """The tokens read so far."""
        self._note()
        return self._read

    def _note(self) -> None:
        """Add the tokens read by `follow` to the history."""
        if self._followed:
            ids = np.stack(self._followed, 1)
            self._read = self._read.then(Tokens(ids, np.ones_like(ids)))
            self._followed = []

    def follow(
        self,
        tokens: Array,
        limit: int | None = None,
        *,
        sampling: SamplingSettings = GREEDY,
        drawn: int = 0,
        ahead: int = 1,
        bans: TokenBans = NO_BANS,
        least: Sequence[int] = (),
    ) -> Generator[Array]:
        limit = optional(whole(0))("limit", limit)
        how = Following(sampling, whole(0)("drawn", drawn), limit, bans, tuple(least))
        depth = 1 + whole(0)("ahead", ahead)
        self._settle()
        self.inputs.check(np.asarray(tokens)[:, None], None, self.length)
        # Caches that drop earlier positions cannot undo a step.
        self._following = self._follow(tokens, how, depth if self.layout.can_rewind else 1)
        return self._following

    def _follow(self, tokens: Array, how: Following, depth: int) -> Generator[Array]:
        while how.limit is None or how.limit > 0:
            self._note()
            new = self.inputs.check(np.maximum(tokens, 0)[:, None], None, self.length)
            first = new.ids[:, 0]
            chain = self.store.chained(self._read, first, how, depth)
            if chain is None:
                yield from self._on_host(first, how)
                return
            most = chain.most if self.capacity is None else min(chain.most, self.capacity)
            most -= self.length
            if how.limit is not None:
                most = min(most, how.limit)
                how = how._replace(limit=how.limit - most)
            how = how._replace(drawn=how.drawn + most)
            with closing(self._chained(chain, first, most)) as steps:
                for tokens in steps:
                    yield tokens

    def _on_host(self, tokens: Array, how: Following) -> Generator[Array]:
        """Choose tokens on the host, one step at a time."""
        draws = how.sampling.each_draw(self.batch, how.drawn)
        rows = zip(self._read.ids, self._read.mask, strict=True)
        seen: list[list[int]] = [ids[mask == 1].tolist() for ids, mask in rows]
        last = np.zeros(self.batch, np.int64)
        for _ in count() if how.limit is None else range(how.limit):
            new = self.inputs.check(np.maximum(tokens, 0)[:, None], None, self.length)
            read = self._history
            for row, token in zip(seen, tokens.tolist(), strict=True):
                row.append(token)
            if how.is_greedy:
                found = self.store.run_greedy(read, new, last)
                tokens = np.where(np.isfinite(found.scores), found.tokens, NOT_FINITE)
            else:
                found = self.store.run_rows(read, new, last)
                tokens = how.tokens(found, seen, next(draws))
            self._followed.append(new.ids[:, 0])
            yield tokens

    def _chained(self, chain: StepChain, tokens: Array, most: int) -> Generator[Array]:
        """Run up to `most` steps, launching ahead as many as the chain's depth allows."""
        launched = 0
        try:
            for taken in range(most):
                while launched < min(most, taken + chain.depth):
                    chain.launch()
                    launched += 1
                found = chain.take()
                self._followed.append(tokens)
                tokens = found
                yield tokens
        finally:
            chain.drain()

    def _checked(self, ids: Array, mask: Array | None = None) -> Tokens:
        """End an iterator of `follow`, and return the tokens of a new step."""
        self._settle()
        return self.inputs.check(ids, mask, self.length)

    def step(self, ids: Array, mask: Array | None = None) -> Array:
        new = self._checked(ids, mask)
        size = self.layout.step or new.length
        parts = [self._step(new[i : i + size]) for i in range(0, new.length, size)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)

    def _step(self, new: Tokens) -> Array:
        scores = self.store.run(self._read, new)
        self._read = self._read.then(new)
        return scores

    def read(self, ids: Array, mask: Array | None = None, rows: Array | None = None) -> Array:
        if self.layout.step is not None:
            return super().read(ids, mask, rows)
        new = self._checked(ids, mask)
        scores = self.store.run_rows(self._read, new, self._rows(ids, rows))
        self._read = self._read.then(new)
        return scores

    def greedy(self, ids: Array, mask: Array | None = None, rows: Array | None = None) -> Greedy:
        if self.layout.step is not None:
            return super().greedy(ids, mask, rows)
        new = self._checked(ids, mask)
        found = self.store.run_greedy(self._read, new, self._rows(ids, rows))
        self._read = self._read.then(new)
        return found

    def feeds(self, ids: Array) -> dict[str, Array]:
        """Return the inputs of a step with the next tokens [batch, n], caches included."""
        new = self._checked(ids)
        return {**self.inputs.feeds(self._read, new), **self.store.contents(self.length)}

    def rewind(self, length: int) -> int:
        self._settle()
        if not 0 <= length <= self.length:
            raise UsageError(f"length={length}: the caches hold {self.length} positions")
        if length < self.length:
            length = length if self.layout.can_rewind else 0
            self.store.truncate(length)
            self._read = self._read[:length]
        return length

    def caches(self) -> dict[str, Array]:
        self._settle()
        names = {each.past for each in self.layout.caches}
        found = self.store.contents(self.length)
        return {name: array for name, array in found.items() if name in names}

    def restore(self, ids: Array, caches: Mapping[str, Array]) -> None:
        self._settle()
        read = self.inputs.check_caches(ids, caches)
        self.store.load({each.past: caches[each.past] for each in self.layout.caches}, read.length)
        self._read = read

    def close(self) -> None:
        self._settle()
        self.store.close()
        self._read = self._read[:0]


def on_host(array: Any) -> Array:
    """Return an array that `Model.run` returned, copied to the host if necessary."""
    return cast("Array", array if isinstance(array, np.ndarray) else array.numpy())
