"""Decoders step by step: what has been read is kept in caches, and every step adds to them.

Generation works on a `Decoder`; `open_decoder.open_decoder` returns the one for a model. A
`CachedDecoder` has three parts: `StepInputs` computes what a step is fed, the `Tokens` that have
been read are its history, and a `CacheStore` runs the steps and keeps the caches, either as arrays
passed from run to run (`passed_caches`) or in buffers (`static_cache`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np

from ..base.closable import Closable
from ..errors import InputError, UsageError
from ..ir.types import Array
from .cache_layout import DecoderLayout, Padding
from .step_inputs import StepInputs, Tokens


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
        """Number of positions in the caches, those of padding included."""

    @abstractmethod
    def step(self, ids: Array, mask: Array | None = None) -> Array:
        """Read the next tokens of every sequence, and keep them.

        Args:
            ids: int64 [batch, n], n of 1 or more.
            mask: int64 [batch, n], 1 for tokens and 0 for padding, which is on the side that
                `padding` says and only in the first step; all 1 if None.

        Returns:
            Scores of the token that follows each position, [batch, n, vocabulary] in the model's
            dtype; [batch, 1, vocabulary] if the model returns only those of the last position.

        Raises:
            InputError: ids or mask of another shape, or more positions than `capacity`; the decoder
                is unchanged.
        """

    def read(self, ids: Array, mask: Array | None = None, rows: Array | None = None) -> Array:
        """As `step`, but return the scores after one position of each sequence.

        Others are not computed, as far as the model allows it.

        Args:
            ids: int64 [batch, n].
            mask: int64 [batch, n]; see `step`.
            rows: int64 [batch], a position among the n for each sequence; the last if None.

        Returns:
            [batch, vocabulary] in the model's dtype.

        Raises:
            InputError: as for `step`; or the model returns the scores of the last position alone,
                and another one is requested.
        """
        scores = self.step(ids, mask)
        return scores_at(scores, self._rows(ids, rows), np.shape(ids)[-1])

    def _rows(self, ids: Array, rows: Array | None) -> Array:
        return np.full(self.batch, np.shape(ids)[-1] - 1) if rows is None else rows

    @abstractmethod
    def rewind(self, length: int) -> int:
        """Forget all positions but the first ones.

        Args:
            length: number of positions to keep, padding included; at most `length`.

        Returns:
            The number that is kept: `length`, or 0 if the caches no longer have what came before
            (sliding windows, states of convolutions), so that everything must be read again.
        """

    @abstractmethod
    def caches(self) -> dict[str, Array]:
        """Return copies of the caches on the host, by the names of the inputs."""

    @abstractmethod
    def restore(self, ids: Array, caches: Mapping[str, Array]) -> None:
        """Continue where another decoder of the same model was.

        Args:
            ids: int64 [batch, length], what it had read, without padding.
            caches: what its `caches` returned.

        Raises:
            InputError: ids or caches do not fit the model, or exceed the capacity; the decoder is
                unchanged.
        """

    def reset(self) -> None:
        """Forget everything."""
        self.rewind(0)

    @property
    def padding(self) -> Padding | None:
        """The side on which shorter sequences are padded; None if all must be equally long."""
        return self.layout.padding


class CacheStore(Protocol):
    """Keeps the caches of a decoder, and runs its steps on them."""

    def run(self, read: Tokens, new: Tokens) -> Array:
        """Read new tokens, and add them to the caches.

        Args:
            read: the tokens that the caches hold.
            new: the next ones, as many as the model takes at a time.

        Returns:
            Scores, as `Decoder.step` returns them. After an error the caches still hold `read`.
        """
        ...

    def run_rows(self, read: Tokens, new: Tokens, rows: Array) -> Array:
        """Do the same; return the scores [batch, vocabulary] after one of the new positions each.

        Raises:
            InputError: see `Decoder.read`.
        """
        ...

    def truncate(self, length: int) -> None:
        """Keep only the first positions: any number of them if the layout `can_rewind`, else 0."""
        ...

    def contents(self, length: int) -> dict[str, Array]:
        """Return copies of the caches on the host, which hold this number of positions."""
        ...

    def load(self, caches: Mapping[str, Array], length: int) -> None:
        """Replace the caches by others that fit, which hold this number of positions."""
        ...

    def close(self) -> None:
        """Free the caches; doing so twice does no harm."""
        ...


S = TypeVar("S", bound=CacheStore)


class CachedDecoder(Decoder, Generic[S]):
    """A decoder whose caches are in a `CacheStore`, which is closed with it.

    Attributes:
        inputs: what a step is fed besides caches.
        store: the caches.
    """

    def __init__(self, inputs: StepInputs, store: S) -> None:
        self.layout, self.batch, self.capacity = inputs.layout, inputs.batch, inputs.capacity
        self.inputs, self.store = inputs, store
        self._read = Tokens.dummy(inputs.batch, 0)

    @property
    def length(self) -> int:
        return self._read.length

    def step(self, ids: Array, mask: Array | None = None) -> Array:
        new = self.inputs.check(ids, mask, self.length)
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
        new = self.inputs.check(ids, mask, self.length)
        scores = self.store.run_rows(self._read, new, self._rows(ids, rows))
        self._read = self._read.then(new)
        return scores

    def feeds(self, ids: Array) -> dict[str, Array]:
        """Return the inputs of a step with the next tokens [batch, n], caches included."""
        new = self.inputs.check(ids, None, self.length)
        return {**self.inputs.feeds(self._read, new), **self.store.contents(self.length)}

    def rewind(self, length: int) -> int:
        if not 0 <= length <= self.length:
            raise UsageError(f"length={length}: the caches hold {self.length} positions")
        if length < self.length:
            length = length if self.layout.can_rewind else 0
            self.store.truncate(length)
            self._read = self._read[:length]
        return length

    def caches(self) -> dict[str, Array]:
        names = {each.past for each in self.layout.caches}
        found = self.store.contents(self.length)
        return {name: array for name, array in found.items() if name in names}

    def restore(self, ids: Array, caches: Mapping[str, Array]) -> None:
        read = self.inputs.check_caches(ids, caches)
        self.store.load({each.past: caches[each.past] for each in self.layout.caches}, read.length)
        self._read = read

    def close(self) -> None:
        self.store.close()
        self._read = self._read[:0]


def on_host(array: Any) -> Array:
    """Return an array that `Model.run` returned as one of the host."""
    return cast("Array", array if isinstance(array, np.ndarray) else array.numpy())


def first_positions(cache: Array, axis: int | None, length: int) -> Array:
    """Return the first positions of a cache, contiguous."""
    part = np.moveaxis(cache, axis or 0, 0)[:length]
    return np.ascontiguousarray(np.moveaxis(part, 0, axis or 0))


def scores_of(logits: Array, count: int) -> Array:
    """Return the scores of the last `count` positions, [batch, n, vocabulary], of a model's output.

    Args:
        logits: [batch, n, vocabulary], or [batch, vocabulary] for the last position.
        count: as many are returned if there are as many.
    """
    return logits[:, None] if logits.ndim == 2 else logits[:, -count:]


def scores_at(scores: Array, rows: Array, count: int) -> Array:
    """Return the scores [batch, vocabulary] after one of `count` positions of each sequence.

    Args:
        scores: [batch, count, vocabulary], or [batch, 1, vocabulary] of the last position.
        rows: int64 [batch], the positions.
        count: number of positions.

    Raises:
        InputError: there are scores of the last position alone, and another one is requested.
    """
    if scores.shape[1] == count:
        return scores[np.arange(len(rows)), rows]
    if (rows < count - 1).any():
        raise InputError(
            "the model gives scores of the last position alone, which of shorter prompts is "
            "padding; give prompts of equal lengths, or one at a time"
        )
    return scores[:, -1]
