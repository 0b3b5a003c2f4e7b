"""Decoders step by step: what has been read is kept in caches, and every step adds to them.

`Decoder` is what generation needs of a model; `open_decoder.open_decoder` says who implements it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from ..base.closable import Closable
from ..errors import InputError, ModelError, UsageError
from ..ir.types import Array
from ..plan.exchange import exchange_of
from .cache_layout import CachePair, DecoderLayout, Padding, Role
from .io_types import TensorInfo
from .model import Model

#: Makes what a model takes in place of ids [batch, n]: [batch, n, width].
Embed = Callable[[Array], Array]


class Decoder(Closable):
    """A decoder with its caches.

    Attributes:
        layout: what the model takes and gives.
        batch: number of sequences.
        capacity: greatest number of positions; None where only memory bounds it.
    """

    layout: DecoderLayout
    batch: int
    capacity: int | None

    @property
    @abstractmethod
    def length(self) -> int:
        """Number of positions that the caches hold, those of padding among them."""

    @abstractmethod
    def step(self, ids: Array, mask: Array | None = None) -> Array:
        """Read the next tokens of every sequence, and keep them.

        Args:
            ids: int64 [batch, n], n of 1 or more.
            mask: int64 [batch, n], 1 for tokens and 0 for padding, which is on the side that
                `padding` says and only in the first step; all 1 where None.

        Returns:
            Scores of the token that follows each position, [batch, n, vocabulary] in the model's
            dtype; [batch, 1, vocabulary] of a model that gives them for the last position alone.

        Raises:
            InputError: ids or mask of another shape, or more positions than `capacity`; the decoder
                is as it was before.
        """

    @abstractmethod
    def rewind(self, length: int) -> int:
        """Forget all positions but the first ones.

        Args:
            length: number of positions to keep, padding included; at most `length`.

        Returns:
            The number that is kept: `length`, or 0 where the caches have lost what lies before
            (sliding windows, states of convolutions), so that all is to be read again.
        """

    @abstractmethod
    def caches(self) -> dict[str, Array]:
        """Return copies on the host of what the caches hold, by the inputs that they go into."""

    @abstractmethod
    def restore(self, ids: Array, caches: Mapping[str, Array]) -> None:
        """Hold what a decoder of the same model held.

        Args:
            ids: int64 [batch, length], what it had read, without padding.
            caches: what its `caches` gave.

        Raises:
            InputError: ids or caches do not fit the model, or are more than the capacity; the
                decoder is as it was before.
        """

    def reset(self) -> None:
        """Forget everything."""
        self.rewind(0)

    @property
    def padding(self) -> Padding | None:
        """The side on which shorter sequences are filled up; None: all are equally long."""
        return self.layout.padding


class PlainDecoder(Decoder):
    """Caches as arrays that `Model.run` gives in one step and takes in the next.

    On a device they stay there. A model without caches reads all tokens again in every step.
    """

    def __init__(
        self,
        model: Model,
        layout: DecoderLayout,
        batch: int = 1,
        capacity: int | None = None,
        embed: Embed | None = None,
    ) -> None:
        self._model, self.layout, self.batch, self._embed = model, layout, batch, embed
        room = layout.room
        if room is not None and capacity is not None and capacity > room:
            raise InputError(
                f"capacity={capacity}: the model's caches have room for {room} positions"
            )
        self.capacity = room if capacity is None else capacity
        _check_batch(layout, batch)
        self._wanted = (layout.logits.name, *(each.present for each in layout.caches))
        self._ids = np.zeros((batch, 0), np.int64)
        self._mask = np.zeros((batch, 0), np.int64)
        self._caches: dict[str, Any] = {}
        self._given: dict[str, Any] = {}
        self.rewind(0)

    @property
    def length(self) -> int:
        return self._mask.shape[1]

    def give(self, values: Mapping[str, Array]) -> None:
        """Hold inputs that are the same in every step, by name: what an encoder gave."""
        self._given = self._placed(values)

    def _placed(self, values: Mapping[str, Array]) -> dict[str, Any]:
        """Return arrays as ones in the memory of the model's device."""
        device = self._model.backends[0].device
        exchange = exchange_of(device)
        if exchange is None:
            return dict(values)
        stream = exchange.stream(None)
        return {name: exchange.handle(device.upload(x), stream) for name, x in values.items()}

    def step(self, ids: Array, mask: Array | None = None) -> Array:
        new, seen = self.check(ids, mask)
        size = self.layout.step
        if size is None or size == new.shape[1]:
            return self._read(new, seen)
        starts = range(0, new.shape[1], size)
        parts = [self._read(new[:, i : i + size], seen[:, i : i + size]) for i in starts]
        return np.concatenate(parts, 1)

    def _read(self, new: Array, seen: Array) -> Array:
        """Run the model on new ids, of as many positions as it takes."""
        whole = np.concatenate([self._mask, seen], 1)
        all_ids = np.concatenate([self._ids, new], 1)
        fed = new if self.layout.caches else all_ids
        feeds = {**self._fed(fed, whole), **self._given, **self._caches}
        results = self._model.run(feeds, self._wanted, to="device")
        self._caches = {each.past: results[each.present] for each in self.layout.caches}
        self._ids, self._mask = all_ids, whole
        logits = on_host(results[self.layout.logits.name])
        return logits[:, None] if logits.ndim == 2 else logits[:, -new.shape[1] :]

    def feeds(self, ids: Array) -> dict[str, Array]:
        """Return what the model would be fed with the next tokens [batch, n], on the host."""
        new, seen = self.check(ids, None)
        fed = new if self.layout.caches else np.concatenate([self._ids, new], 1)
        held = {**{name: on_host(each) for name, each in self._given.items()}, **self.caches()}
        return {**self._fed(fed, np.concatenate([self._mask, seen], 1)), **held}

    def caches(self) -> dict[str, Array]:
        return {name: on_host(each).copy() for name, each in self._caches.items()}

    def restore(self, ids: Array, caches: Mapping[str, Array]) -> None:
        length = ids.shape[-1]
        if ids.shape != (self.batch, length) or ids.dtype.kind != "i":
            raise InputError(f"ids {ids.dtype}{list(ids.shape)}: expected int64 [{self.batch}, n]")
        if self.capacity is not None and length > self.capacity:
            raise InputError(f"{length} positions; the caches have room for {self.capacity}")
        for each in self.layout.caches:
            wanted = each.sizes(self.batch, length) if each.grows else self._empty(each).shape
            found = caches.get(each.past)
            if found is None or found.shape != wanted or found.dtype != each.dtype:
                has = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
                raise InputError(
                    f"'{each.past}': {has}; the model's cache of {length} positions is "
                    f"{each.dtype}{list(wanted)}: it is that of another model"
                )
        self._hold({each.past: caches[each.past] for each in self.layout.caches}, length)
        self._ids, self._mask = ids.astype(np.int64), np.ones((self.batch, length), np.int64)

    def _hold(self, caches: Mapping[str, Array], length: int) -> None:
        """Take caches of that many positions, which fit."""
        self._caches = self._placed(caches)

    def rewind(self, length: int) -> int:
        if not 0 <= length <= self.length:
            raise UsageError(f"length={length}: the caches hold {self.length} positions")
        if length and length < self.length and not self.layout.can_rewind:
            length = 0
        if length == 0:
            self._caches = {each.past: self._empty(each) for each in self.layout.caches}
        elif length < self.length:
            for each in self.layout.caches:
                if each.grows:
                    self._caches[each.past] = first_positions(
                        self._caches[each.past], each.axis, length
                    )
        self._ids, self._mask = self._ids[:, :length], self._mask[:, :length]
        return length

    def close(self) -> None:
        self._caches, self._given = {}, {}
        self._ids, self._mask = self._ids[:, :0], self._mask[:, :0]

    # ── what is fed ──────────────────────────────────────────────────────────────────────────

    def check(self, ids: Array, mask: Array | None) -> tuple[Array, Array]:
        """Return the next ids and their mask as int64 [batch, n]; InputError if they do not fit."""
        ids = np.asarray(ids)
        if ids.ndim != 2 or ids.shape[0] != self.batch or ids.shape[1] < 1 or ids.dtype.kind != "i":
            raise InputError(
                f"ids {ids.dtype}{list(ids.shape)}: expected int64 [{self.batch}, n], n >= 1"
            )
        seen = np.ones_like(ids) if mask is None else np.asarray(mask)
        if seen.shape != ids.shape:
            raise InputError(f"mask {list(seen.shape)}: expected {list(ids.shape)}, as ids have it")
        if not seen.all():
            if self.padding is None:
                raise InputError(
                    "the model takes no attention_mask: give sequences of equal lengths"
                )
            if self.length:
                raise InputError("padding belongs to the first step")
            if not self.layout.can_pad:
                raise InputError(
                    "the mask has a fixed length, by which the model cannot tell prompts that are "
                    "padded: give sequences of equal lengths"
                )
            if not seen.all(1).any():
                raise InputError("every sequence is padded; leave out what is padding in all")
        total = self.length + ids.shape[1]
        if self.capacity is not None and total > self.capacity:
            raise InputError(
                f"{total} positions; the caches have room for {self.capacity}"
                + (f", of which {self.length} are taken" if self.length else "")
            )
        size = self.layout.step
        if size is not None and ids.shape[1] % size:
            raise InputError(f"{ids.shape[1]} tokens; the model reads {size} at a time")
        return ids.astype(np.int64), seen.astype(np.int64)

    def _empty(self, each: CachePair) -> Array:
        """Return a cache of nothing."""
        return np.zeros(each.sizes(self.batch, self._first_length(each)), each.dtype)

    def _first_length(self, each: CachePair) -> int:
        """Return the length of a cache that nothing was written into: 0, or that of a buffer."""
        if each.grows or each.axis is None:
            return 0
        length = each.room or each.window or self.capacity
        if not length:
            raise InputError(
                f"'{each.past}' is a buffer of any size: give the greatest number of positions "
                "(capacity)"
            )
        return length

    def _fed(self, ids: Array, mask: Array) -> dict[str, Array]:
        """Return what the model is fed besides caches.

        Args:
            ids: those that are new, or all of a model without caches.
            mask: of all positions, [batch, total].
        """
        count, total = ids.shape[1], mask.shape[1]
        before = total - count
        positions = np.maximum(mask.cumsum(1) - 1, 0)
        if self.layout.padding == "right":  # what is padding is written over
            valid: Array = mask.sum(1, keepdims=True)
            mask = np.less(np.arange(int(valid.max())), valid).astype(np.int64)
        values: dict[Role, Array] = {
            "ids": ids,
            "mask": mask,
            "positions": positions[:, before:],
            "cache_positions": np.arange(before, total),
            "past_length": np.array(before),
            "total_length": np.array(mask.shape[1]),
            "last_key": mask.sum(1) - 1,
            "use_cache": np.array(before > 0),
            "logits_to_keep": np.array(count),
            "token_types": np.zeros_like(ids),
        }
        if self._embed is not None and "embeddings" in self.layout.inputs:
            values["embeddings"] = self._embed(ids)
        return {
            info.name: fitted(values[role], info, self._model.source.file)
            for role, info in self.layout.inputs.items()
            if role in values
        }


def on_host(array: Any) -> Array:
    """Return an array that `Model.run` gave as one of the host."""
    return cast("Array", array if isinstance(array, np.ndarray) else array.numpy())


def first_positions(cache: Any, axis: int | None, length: int) -> Array:
    """Return the first positions of a cache."""
    array = on_host(cache)
    return np.ascontiguousarray(
        np.moveaxis(np.moveaxis(array, axis or 0, 0)[:length], 0, axis or 0)
    )


def fitted(value: Array, info: TensorInfo, file: str | None) -> Array:
    """Return a value in the dtype and shape that an input declares."""
    shape = info.shape
    value = value.astype(info.dtype or value.dtype, copy=False)
    if shape is None or len(shape) == value.ndim:
        size = shape[-1] if shape else None
        if value.ndim != 2 or not isinstance(size, int) or size <= value.shape[1]:
            return value
        return np.pad(value, ((0, 0), (0, size - value.shape[1])))  # a mask of the greatest length
    if value.ndim == 2 and len(shape) == 3 and isinstance(shape[0], int):
        return np.repeat(value[None], shape[0], 0)  # positions in time, height and width
    if value.size == 1:
        return value.reshape((1,) * len(shape))
    if value.ndim == 1 and len(shape) == 2:
        return value[None]
    raise ModelError(
        f"{info}: a decoder's is of rank {value.ndim}", file=file, where=f"input '{info.name}'"
    )


def _check_batch(layout: DecoderLayout, batch: int) -> None:
    """Raise InputError where the file wants another number of sequences."""
    infos = layout.inputs.get("ids") or layout.inputs.get("embeddings")
    sizes = [each.shape[0] for each in layout.caches]
    if infos is not None and infos.shape:
        sizes.append(infos.shape[0])
    for size in sizes:
        if isinstance(size, int) and size != batch:
            raise InputError(f"batch={batch}: the model takes {size} at a time")
