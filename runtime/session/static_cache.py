"""A decoder whose caches stay where they are: each step writes its rows into them and no more.

The caches lie in the device's memory, with room for many more positions than there are; once that
is full, they move to where there is twice as much. A step of that many tokens is one plan, whatever
the length, which is data. So nothing is planned while tokens are made, nothing is copied but what
is new, and to rewind is to count less.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..errors import UnsupportedError, UsageError
from ..ir.grown import Grown
from ..ir.types import Array, TensorType, constant_type
from ..ops.quantize import DynamicQuantizeLinear
from ..plan.backend import Run, View
from ..plan.exchange import IOPlacement, exchange_of
from ..plan.host import HOST, array
from .bucket_program import BucketProgram
from .cache_layout import CachePair, DecoderLayout
from .decoding import Embed, PlainDecoder, first_positions
from .model import Model

#: Plans that are kept: that of a single token, and those of the last other numbers of tokens.
MAX_PLANS = 4
#: Positions that caches have room for at first, where more are allowed.
FIRST_ROOM = 2048


class StaticCacheDecoder(PlainDecoder):
    """See `Decoder`; the caches are buffers with room.

    Args:
        model: stays the caller's.
        layout: of the model.
        batch: number of sequences.
        capacity: maximum number of positions; as many as memory holds if None.
        embed: what the model is fed in place of ids, where it takes embeddings.

    Raises:
        UnsupportedError: a step of the model has no plan for all lengths; names the node.
        DeviceOutOfMemory: the device has no room for the caches.
    """

    def __init__(
        self,
        model: Model,
        layout: DecoderLayout,
        batch: int = 1,
        capacity: int | None = None,
        embed: Embed | None = None,
    ) -> None:
        if not layout.caches:
            raise UnsupportedError("the model has no caches")
        self._views: dict[str, View] = {}
        self._programs: OrderedDict[int, BucketProgram] = OrderedDict()
        self._moves: dict[BucketProgram, list[Run]] = {}
        super().__init__(model, layout, batch, capacity, embed)
        for each in layout.caches:
            self._first_length(each)  # which some have to be told
        self._device = model.backends[0].device
        self._stream = self._device.stream()
        together = any(isinstance(n.op, DynamicQuantizeLinear) for n in model.imported.walk())
        self._rounds = layout.step is None and layout.can_rewind and not together
        self._room = FIRST_ROOM if self.capacity is None else min(FIRST_ROOM, self.capacity)
        try:
            self._views = self._allocated(self._room, {})
            self.program(layout.step or 1)
        except BaseException:
            self.close()
            raise

    # ── memory ───────────────────────────────────────────────────────────────────────────────

    def _allocated(self, room: int, before: Mapping[str, Array]) -> dict[str, View]:
        """Return new caches with room for that many positions, and what was in them before."""
        views: dict[str, View] = {}
        try:
            for each in self.layout.caches:
                data = np.zeros(each.sizes(self.batch, _length_of(each, room)), each.dtype)
                if each.past in before:
                    data[tuple(map(slice, before[each.past].shape))] = before[each.past]
                views[each.past] = self._device.upload(data)
        except BaseException:
            _close(views)
            raise
        return views

    def _make_room(self, total: int) -> None:
        """Move the caches to where there is room for that many positions, if there is not."""
        if total <= self._room:
            return
        room = self._room
        while room < total:
            room *= 2
        room = room if self.capacity is None else min(room, self.capacity)
        views = self._allocated(room, {name: _fetched(view) for name, view in self._views.items()})
        self._free()
        self._room, self._views = room, views

    def _free(self) -> None:
        for program in self._programs.values():
            program.close()
        self._programs.clear()
        self._moves.clear()
        _close(self._views)
        self._views = {}

    # ── programs ─────────────────────────────────────────────────────────────────────────────

    def program(self, count: int) -> BucketProgram:
        """Return the program of a step of that many tokens, which stays the decoder's."""
        if count not in self._programs:
            while len(self._programs) >= MAX_PLANS:
                oldest = next(each for each in self._programs if each != 1)
                dropped = self._programs.pop(oldest)
                del self._moves[dropped]
                dropped.close()
            self._programs[count] = self._build(count)
        self._programs.move_to_end(count)
        return self._programs[count]

    def _build(self, count: int) -> BucketProgram:
        runs = self._room - count + 1
        short, long = (self._samples(count, before) for before in (0, 1))
        types = {
            name: TensorType(data.dtype, _grown(data.shape, long[name].shape, runs))
            for name, data in short.items()
        }
        if (branch := self.layout.inputs.get("use_cache")) is not None:
            types[branch.name] = constant_type(short[branch.name])
        for each in self.layout.caches:
            sizes = each.sizes(self.batch, _length_of(each, self._room))
            shape = tuple(
                Grown(0, 1, runs) if each.grows and axis == each.axis else size
                for axis, size in enumerate(sizes)
            )
            types[each.past] = TensorType(each.dtype, shape)
        presents = tuple(each.present for each in self.layout.caches)
        ends = IOPlacement(lent=self._views, kept=presents)
        program = self._model.bucket(self._wanted, types, self._room, ends)
        try:
            self._moves[program] = list(self._moved(program))
        except BaseException:
            program.close()
            raise
        return program

    def _samples(self, count: int, before: int) -> dict[str, Array]:
        """Return what is fed for that many new tokens after that many others."""
        ids, mask = (np.ones((self.batch, size), np.int64) for size in (count, before + count))
        return self._fed(ids, mask)

    def _fed(self, ids: Array, mask: Array) -> dict[str, Array]:
        fed = super()._fed(ids, mask)
        if (branch := self.layout.inputs.get("use_cache")) is not None:
            fed[branch.name] = np.ones_like(fed[branch.name])  # caches may be empty
        return fed

    def _moved(self, program: BucketProgram) -> Iterator[Run]:
        """Yield what brings to its place each cache that a program does not write there.

        Raises:
            UnsupportedError: the program is no single plan, or a cache changes its size.
        """
        if not program.is_plan:
            raise UnsupportedError("a step is no single plan")
        (plan,) = program.plans
        for each in self.layout.caches:
            here, there = self._views[each.past], plan.outputs.get(each.present)
            if there is None or there.type != here.type:
                raise UnsupportedError(f"'{each.present}' does not fit where '{each.past}' is")
            if (there.buffer, there.offset) != (here.buffer, here.offset):
                yield self._device.copier(here, there)

    # ── running ──────────────────────────────────────────────────────────────────────────────

    def _read(self, new: Array, seen: Array) -> Array:
        count = new.shape[1]
        logits = self._run(new, seen, self._rounded(count))
        if logits is None:  # scores of the last position alone, which was padding
            self._rounds = False
            logits = self._run(new, seen, count)
        assert logits is not None
        self._ids = np.concatenate([self._ids, new], 1)
        self._mask = np.concatenate([self._mask, seen], 1)
        return logits

    def _rounded(self, count: int) -> int:
        """Return how many tokens are read in place of that many: the next power of two.

        So few plans serve prompts of all lengths. What follows the last token is not seen by those
        before it, and is written over by the next step.
        """
        size = 1 << (count - 1).bit_length()
        total = self.length + size
        fits = self.capacity is None or total <= self.capacity
        return size if self._rounds and fits else count

    def _run(self, new: Array, seen: Array, size: int) -> Array | None:
        """Read tokens, and as many others after them as make `size`; None without their scores."""
        count = new.shape[1]
        behind = ((0, 0), (0, size - count))
        new, seen = np.pad(new, behind), np.pad(seen, behind, constant_values=1)
        whole = np.concatenate([self._mask, seen], 1)
        self._make_room(whole.shape[1])
        program = self.program(size)
        found = program.run({**self._fed(new, whole)}, self.length)
        self._do(self._moves[program])
        logits = found[self.layout.logits.name]
        assert isinstance(logits, np.ndarray)
        logits = logits[:, None] if logits.ndim == 2 else logits[:, -size:]
        if logits.shape[1] == size:
            return logits[:, :count]
        return logits if size == count else None

    def rewind(self, length: int) -> int:
        if not 0 <= length <= self.length:
            raise UsageError(f"length={length}: the caches hold {self.length} positions")
        if not self._views:  # nothing has been read yet
            return 0
        if length < self.length and not self.layout.can_rewind:
            length = 0
            self._do([self._device.copier(view, _zeros(view)) for view in self._views.values()])
        self._ids, self._mask = self._ids[:, :length], self._mask[:, :length]
        return length

    def _do(self, runs: Sequence[Run]) -> None:
        """Run copies, and wait for them."""
        for run in runs:
            run(self._stream)
        if runs:
            self._stream.synchronize()

    def caches(self) -> dict[str, Array]:
        found = {name: _fetched(view) for name, view in self._views.items()}
        for each in self.layout.caches:
            if each.grows:
                found[each.past] = first_positions(found[each.past], each.axis, self.length)
        return found

    def _hold(self, caches: Mapping[str, Array], length: int) -> None:
        self._make_room(length)
        views = self._allocated(self._room, caches)
        self._free()
        self._views = views

    def close(self) -> None:
        self._free()
        super().close()


def _length_of(each: CachePair, room: int) -> int:
    return room if each.grows else each.room or each.window or room


def _zeros(view: View) -> View:
    return HOST.upload(np.zeros(view.type.dims, view.type.dtype))


def _close(views: Mapping[str, View]) -> None:
    for view in views.values():
        view.buffer.close()


def _fetched(view: View) -> Array:
    """Return a copy on the host."""
    exchange = exchange_of(view.device)
    return array(view).copy() if exchange is None else exchange.fetch(view, exchange.stream(None))


def _grown(short: tuple[int, ...], long: tuple[int, ...], runs: int) -> tuple[int | Grown, ...]:
    """Return a shape whose sizes grow as they do from one length to the next."""
    sizes = zip(short, long, strict=True)
    return tuple(Grown(a, b - a, runs) if b > a else a for a, b in sizes)
