"""The inputs of a decoder's step besides its caches: token ids, masks, positions, lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..base.arguments import unfit
from ..base.record import record
from ..errors import InputError, ModelError
from ..ir.types import Array
from .cache_layout import CachePair, DecoderLayout, Role
from .io_types import TensorInfo
from .model import Model

#: Computes the embeddings [batch, n, width] of ids [batch, n], for models that take no ids.
Embed = Callable[[Array], Array]


@record
class Tokens:
    """Tokens of a batch: the same number of positions of every sequence.

    Attributes:
        ids: int64 [batch, n].
        mask: int64 [batch, n], 1 for tokens and 0 for padding.
    """

    ids: Array
    mask: Array

    @classmethod
    def dummy(cls, batch: int, length: int) -> Tokens:
        """Return tokens whose ids do not matter, without padding."""
        return cls(np.ones((batch, length), np.int64), np.ones((batch, length), np.int64))

    @property
    def length(self) -> int:
        """Number of positions, padding included."""
        return self.ids.shape[1]

    def __getitem__(self, positions: slice) -> Tokens:
        return Tokens(self.ids[:, positions], self.mask[:, positions])

    def then(self, new: Tokens) -> Tokens:
        """Return these tokens followed by others."""
        return Tokens(
            np.concatenate([self.ids, new.ids], 1), np.concatenate([self.mask, new.mask], 1)
        )

    def extended(self, length: int) -> Tokens:
        """Return `length` positions: these tokens, followed by tokens of id 0."""
        if length == self.length:
            return self
        shape = len(self.ids), length - self.length
        ids, mask = np.zeros(shape, self.ids.dtype), np.ones(shape, self.mask.dtype)
        return self.then(Tokens(ids, mask))


@record
class StepInputs:
    """Checks the tokens of a step and computes the inputs of the model from them.

    Attributes:
        layout: of the model.
        batch: number of sequences.
        capacity: maximum number of positions; None if only memory limits it.
        embed: for models that take embeddings instead of ids.
        file: the model's, for errors.
    """

    layout: DecoderLayout
    batch: int
    capacity: int | None
    embed: Embed | None = None
    file: str | None = None

    @classmethod
    def of(
        cls,
        model: Model,
        layout: DecoderLayout,
        batch: int = 1,
        capacity: int | None = None,
        embed: Embed | None = None,
    ) -> StepInputs:
        """Return the inputs of a model; the file limits `batch` and `capacity`.

        Raises:
            InputError: the model takes another batch size, or its caches have less room.
        """
        room = layout.room
        if room is not None and capacity is not None and capacity > room:
            reason = f"the model's caches have room for {room} positions"
            raise unfit(InputError, "capacity", reason, capacity)
        _check_batch(layout, batch)
        model.trust_sizes()
        return cls(layout, batch, room if capacity is None else capacity, embed, model.source.file)

    # ── checks ───────────────────────────────────────────────────────────────────────────────

    def check(self, ids: Array, mask: Array | None, read: int) -> Tokens:
        """Return the tokens of a step, as int64.

        Args:
            ids: integers [batch, n], n of 1 or more.
            mask: integers [batch, n]; all 1 if None.
            read: number of positions that have been read before.

        Raises:
            InputError: they do not fit the model or its caches.
        """
        ids = np.asarray(ids)
        if ids.ndim != 2 or ids.shape[0] != self.batch or ids.shape[1] < 1 or ids.dtype.kind != "i":
            raise InputError(
                f"ids {ids.dtype}{list(ids.shape)}: expected int64 [{self.batch}, n], n >= 1"
            )
        seen = np.ones_like(ids) if mask is None else np.asarray(mask)
        if seen.shape != ids.shape:
            raise InputError(f"mask {list(seen.shape)}: expected {list(ids.shape)}, as for ids")
        if not seen.all():
            self._check_padding(seen, read)
        total = read + ids.shape[1]
        if self.capacity is not None and total > self.capacity:
            raise InputError(
                f"{total} positions; the caches have room for {self.capacity}"
                + (f", of which {read} are taken" if read else "")
            )
        size = self.layout.step
        if size is not None and ids.shape[1] % size:
            raise InputError(f"{ids.shape[1]} tokens; the model reads {size} at a time")
        return Tokens(ids.astype(np.int64), seen.astype(np.int64))

    def _check_padding(self, mask: Array, read: int) -> None:
        if self.layout.padding is None:
            raise InputError("the model takes no attention_mask: give sequences of equal lengths")
        if read:
            raise InputError("only the first step may have padding")
        if self.layout.counter:
            raise InputError(
                "the model counts positions, padding included (node "
                f"'{self.layout.counter}' adds them) and takes no position_ids: give sequences of "
                "equal lengths, or one at a time"
            )
        if self.layout.unmasked:
            raise InputError(
                f"'{self.layout.unmasked}' is a state of all that was read, padding included: give "
                "sequences of equal lengths, or one at a time"
            )
        if self.layout.padding == "right" and self.layout.step is not None:
            raise InputError(
                "padding would be behind a prompt, which the model reads in steps of "
                f"{self.layout.step}: give sequences of equal lengths, or one at a time"
            )
        if not self.layout.can_pad:
            raise InputError(
                "the mask has a fixed length, so the model cannot recognize padded prompts: give "
                "sequences of equal lengths"
            )
        if not mask.all(1).any():
            raise InputError("every sequence is padded; omit positions that are padding in all")

    def check_caches(self, ids: Array, caches: Mapping[str, Array]) -> Tokens:
        """Return the tokens [batch, length] that caches hold, as int64.

        Raises:
            InputError: ids or caches do not fit the model, or exceed the capacity.
        """
        length = ids.shape[-1]
        if ids.shape != (self.batch, length) or ids.dtype.kind != "i":
            raise InputError(f"ids {ids.dtype}{list(ids.shape)}: expected int64 [{self.batch}, n]")
        if self.capacity is not None and length > self.capacity:
            raise InputError(f"{length} positions; the caches have room for {self.capacity}")
        for each in self.layout.caches:
            expected = each.sizes(self.batch, length if each.grows else self.first_length(each))
            found = caches.get(each.past)
            if found is None or found.shape != expected or found.dtype != each.dtype:
                has = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
                raise InputError(
                    f"'{each.past}': {has}; the model's cache of {length} positions is "
                    f"{each.dtype}{list(expected)}; was it saved by another model?"
                )
        return Tokens(ids.astype(np.int64), np.ones((self.batch, length), np.int64))

    # ── caches before the first step ─────────────────────────────────────────────────────────

    def empty(self, cache: CachePair) -> Array:
        """Return the content of a cache before the first step."""
        return np.zeros(cache.sizes(self.batch, self.first_length(cache)), cache.dtype)

    def first_length(self, cache: CachePair) -> int:
        """Return the length of a cache before the first step: 0, or the size of a buffer.

        Raises:
            InputError: the size of the buffer must be given.
        """
        if cache.grows or cache.axis is None:
            return 0
        length = cache.room or cache.window or self.capacity
        if not length:
            raise InputError(
                f"'{cache.past}' is a buffer of unspecified size: give "
                "capacity, the maximum number of positions"
            )
        return length

    # ── feeds ────────────────────────────────────────────────────────────────────────────────

    def feeds(self, read: Tokens, new: Tokens, *, cached: bool | None = None) -> dict[str, Array]:
        """Return the inputs of a step by name, without caches.

        Args:
            read: the tokens read so far.
            new: those of this step; a model without caches is fed all of them.
            cached: whether a model with a branch for each case takes the one with caches; if None,
                only if `read` is not empty.
        """
        whole = read.then(new)
        ids, mask = (new if self.layout.caches else whole).ids, whole.mask
        count, total = ids.shape[1], whole.length
        before = total - count
        positions = np.maximum(mask.cumsum(1) - 1, 0)
        if self.layout.padding == "right":  # rows of padding are overwritten by the next step
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
            "use_cache": np.array(before > 0 if cached is None else cached),
            "logits_to_keep": np.array(count),
            "token_types": np.zeros_like(ids),
        }
        if self.embed is not None and "embeddings" in self.layout.inputs:
            values["embeddings"] = self.embed(ids)
        return {
            info.name: fitted(values[role], info, self.file)
            for role, info in self.layout.inputs.items()
            if role in values
        }


def fitted(value: Array, info: TensorInfo, file: str | None) -> Array:
    """Return a value in the dtype and shape that an input declares.

    Raises:
        ModelError: the input has another rank.
    """
    shape = info.shape
    value = value.astype(info.dtype or value.dtype, copy=False)
    if shape is None or len(shape) == value.ndim:
        size = shape[-1] if shape else None
        if value.ndim != 2 or not isinstance(size, int) or size <= value.shape[1]:
            return value
        return np.pad(value, ((0, 0), (0, size - value.shape[1])))  # a mask of fixed length
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
    """Raise InputError if the file declares another number of sequences."""
    infos = layout.inputs.get("ids") or layout.inputs.get("embeddings")
    sizes = [each.shape[0] for each in layout.caches]
    if infos is not None and infos.shape:
        sizes.append(infos.shape[0])
    for size in sizes:
        if isinstance(size, int) and size != batch:
            raise unfit(InputError, "batch", f"the model takes {size} at a time", batch)
