"""Static KV caches: each step writes its new rows into buffers, and nothing else moves.

The caches are buffers in device memory with room for more positions; when full, they are copied to
buffers of twice the size. A step of n tokens has one plan for every length, as the length is data.
So nothing is planned while tokens are generated, only new rows are written, and rewinding only
reduces a count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ..base.warned import warn
from ..errors import (
    DeviceOutOfMemory,
    LimitError,
    ModelError,
    PerformanceWarning,
    UnsupportedError,
)
from ..ir.infer import specialise
from ..ir.types import Array, TensorType, constant_type
from ..passes.bucketing import Bucket
from ..passes.editing import shape_of
from ..plan.backend import Run, View
from ..plan.device_control import decisions_of
from ..plan.exchange import IOPlacement
from ..plan.host import HOST
from .bucket_program import BucketProgram
from .cache_layout import CachePair
from .cache_store import first_positions
from .cache_views import close_all, fetched, zeros_like
from .chained_steps import ChainedSteps
from .model import Model
from .narrow_caches import NarrowCaches
from .padded_lengths import are_alike, limits_of, rounded
from .sampling import Following
from .sampling_graph import SamplingGraph
from .select_rows import RowsOf
from .step_inputs import StepInputs, Tokens
from .step_state import CHOSEN, Feedback
from .step_types import length_of, types_of
from .token_scores import Greedy, scores_at, scores_of

#: Maximum number of plans: that for a single token, and the last used for other token counts.
MAX_PLANS = 4
#: Maximum number of plans of chained steps; they differ in how tokens are chosen.
MAX_CHAINED = 2
#: Number of positions that caches initially have room for, if the capacity allows.
FIRST_ROOM = 2048


class _Step(NamedTuple):
    """The number of tokens, and whether scores are computed for one position per sequence only."""

    tokens: int
    selects: bool


class StaticCaches:
    """A `CacheStore` of buffers with room for more positions.

    Args:
        model: remains the caller's.
        inputs: of the model.
        room: number of positions that the caches have room for at first, if the capacity allows.
        given: inputs that are the same in every step, by name; see `give`.

    Attributes:
        chains: whether steps may be chained; see `chained`. On the host that gains nothing.

    Raises:
        UnsupportedError: a step of the model has no plan for all lengths; names the node.
        DeviceOutOfMemory: the device has no room for the caches.
    """

    def __init__(
        self,
        model: Model,
        inputs: StepInputs,
        room: int = FIRST_ROOM,
        given: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        layout = inputs.layout
        if not layout.caches:
            raise UnsupportedError("the model has no caches")
        for each in layout.caches:
            inputs.first_length(each)  # raises if the size of a buffer is missing
        self._model, self._inputs, self._layout = model, inputs, layout
        self._results = (layout.logits.name, *(each.present for each in layout.caches))
        self._views: dict[str, View] = {}
        self._given: dict[str, View] = {}
        self._programs: OrderedDict[_Step, BucketProgram] = OrderedDict()
        self._moves: dict[BucketProgram, list[Run]] = {}
        self._device = model.backends[0].device
        self.chains = self._device is not HOST
        self._chained: OrderedDict[tuple[SamplingGraph, int], ChainedSteps] = OrderedDict()
        self._rows = RowsOf(layout.logits.name, greedy=self._device is not HOST)
        self._stream = self._device.stream()
        limits = limits_of(model.imported)
        self._rounds = layout.step is None and layout.can_rewind and limits is not None
        self._limits = limits or ()
        capacity = inputs.capacity
        self._room = room if capacity is None else min(room, capacity)
        self._spare = 0
        self._singly = False
        self._narrow = NarrowCaches.of(layout, model.options)
        try:
            for name, data in given.items():
                self._given[name] = self._device.upload(data.copy())
            self._selects = self._returns_all(layout.step or min(2, self._room))
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """Allocate the caches, in 16 bits if steps compute in these, and make a step's program."""
        try:
            self._begin_once()
        except UnsupportedError:
            if self._narrow is None:
                raise
            self._narrow = None  # something reads or writes float32
            self._begin_once()
        if self._narrow is not None:
            self._narrow = replace(self._narrow, decided=True)

    def _begin_once(self) -> None:
        """Allocate the caches, and make the program of a step."""
        try:
            self._views = self._allocated(self._room, {})
            self.program(self._layout.step or 1)
        except BaseException:
            self._empty()
            raise

    # ── memory ───────────────────────────────────────────────────────────────────────────────

    def _allocated(self, room: int, before: Mapping[str, Array]) -> dict[str, View]:
        """Return new caches with room for `room` positions, starting with the contents `before`."""
        views: dict[str, View] = {}
        try:
            for each in self._layout.caches:
                views[each.past] = self._device.upload(self._filled(each, room, before))
        except BaseException:
            close_all(views)
            raise
        return views

    def _filled(self, each: CachePair, room: int, before: Mapping[str, Array]) -> Array:
        """Return the contents of a cache with room for `room` positions; see `_allocated`."""
        dtype = each.dtype if self._narrow is None else self._narrow.half
        data = np.zeros(each.sizes(self._inputs.batch, length_of(each, room)), dtype)
        if each.past in before:
            with np.errstate(over="ignore"):
                data[tuple(map(slice, before[each.past].shape))] = before[each.past]
        return data

    def give(self, values: Mapping[str, Array]) -> None:
        """Replace the inputs that are the same in every step, by arrays of the same types."""
        self._fill(self._given, values)

    def _fill(self, views: Mapping[str, View], contents: Mapping[str, Array]) -> None:
        """Copy arrays to the device."""
        self._do([self._device.copier(views[name], HOST.upload(contents[name])) for name in views])

    def _make_room(self, total: int) -> None:
        """Enlarge the caches if they have no room for this number of positions."""
        room, total = self._room, total + self._spare
        if total <= room:
            return
        while room < total:
            room *= 2
        capacity = self._inputs.capacity
        room = room if capacity is None else min(room, capacity + self._spare)
        views = self._allocated(room, {name: fetched(view) for name, view in self._views.items()})
        self._empty()
        self._room, self._views = room, views

    # ── programs ─────────────────────────────────────────────────────────────────────────────

    def program(self, count: int) -> BucketProgram:
        """Return the program of a step of `count` tokens, as `Decoder.read` runs it.

        The store owns it.
        """
        return self._program(_Step(count, self._selects))

    def _program(self, step: _Step) -> BucketProgram:
        if step not in self._programs:
            while len(self._programs) >= MAX_PLANS:
                oldest = next(each for each in self._programs if each.tokens != 1)
                dropped = self._programs.pop(oldest)
                del self._moves[dropped]
                dropped.close()
            self._programs[step] = self._build(step)
        self._programs.move_to_end(step)
        return self._programs[step]

    def _program_behind(self, read: int, step: _Step) -> BucketProgram:
        """Return the program of a step after `read` positions, enlarging the caches if needed.

        A step may have axes longer than its caches, such as scores with an attention sink; these
        axes have the same bucket, so the caches get some spare room.
        """
        self._make_room(read + step.tokens)
        program = self._program(step)
        if program.most < read:
            self._spare = self._room - step.tokens - program.most
            self._make_room(read + step.tokens)
            program = self._program(step)
        return program

    def _build(self, step: _Step) -> BucketProgram:
        kept = tuple(each.present for each in self._layout.caches)
        if step.selects and self._rows.greedy:
            kept += (self._rows.output,)
        program = self._bucket(step, self._placed(kept=kept))
        try:
            self._moves[program] = list(self._moved(program))
        except BaseException:
            program.close()
            raise
        return program

    def _placed(
        self,
        state: Mapping[str, View] = MappingProxyType({}),
        stays: Sequence[str] = (),
        *,
        on_device: bool = False,
        kept: tuple[str, ...] = (),
    ) -> IOPlacement:
        """Return where a step's inputs are that are not fed: caches, a state, and what is given."""
        lent = {**self._views, **self._given, **state}
        return IOPlacement((), on_device, lent, kept, (*self._given, *stays))

    def _bucket(
        self, step: _Step, ends: IOPlacement, edit: Feedback | None = None
    ) -> BucketProgram:
        types = self._types(step.tokens)
        if step.selects:
            rows = np.zeros((self._inputs.batch, 1, 1), np.int64)
            type_ = constant_type(rows) if step.tokens == 1 else TensorType(rows.dtype, rows.shape)
            types[self._rows.rows] = type_
        rows_of = self._rows if step.selects else None
        edits = [each for each in (edit, self._narrow) if each is not None]

        def edited(bucket: Bucket) -> Bucket:
            for each in edits:
                bucket = each(bucket)
            return bucket

        return self._model.bucket(self._results, types, self._room, ends, rows_of, edited)

    # ── steps that feed themselves ───────────────────────────────────────────────────────────

    def chained(
        self, read: Tokens, first: Array, how: Following, depth: int
    ) -> ChainedSteps | None:
        if not self.chains:
            return None
        self._make_room(read.length + 1)
        decides = decisions_of(self._device) is not None
        chooses = SamplingGraph.of(how.sampling, how.bans, decides=decides)
        feedback = Feedback(self._layout, self._inputs.batch, self._room, chooses)
        key = chooses, depth
        if key not in self._chained:
            while len(self._chained) >= MAX_CHAINED:
                self._chained.popitem(last=False)[1].close()
            try:
                self._chained[key] = self._chain(feedback, depth)
            except (UnsupportedError, DeviceOutOfMemory, LimitError) as error:
                self.chains = False
                reason = f"the device waits for the host after every step: {error}"
                warn(reason, PerformanceWarning)
                return None
        self._chained.move_to_end(key)
        found = self._chained[key]
        if found.most < read.length + 1:
            return None
        found.begin(feedback.state(read, first, how))
        return found

    def _chain(self, feedback: Feedback, depth: int) -> ChainedSteps:
        state: dict[str, View] = {}
        program = None
        try:
            for name, type_ in feedback.types.items():
                if name == CHOSEN:  # kernels write it where the host reads it
                    pinned = self._device.staging(type_.nbytes)
                    state[name] = View(self._device, pinned, 0, type_)
                else:
                    state[name] = self._device.upload(np.zeros(type_.dims, type_.dtype))
            ends = self._placed(state, feedback.stays, on_device=True)
            program = self._bucket(_Step(1, self._selects), ends, feedback)
            return ChainedSteps(program, state, list(self._moved(program)), depth)
        except BaseException:
            close_all(state)
            if program is not None:
                program.close()
            raise

    def _close_chained(self) -> None:
        for each in self._chained.values():
            each.close()
        self._chained.clear()

    def _types(self, count: int) -> dict[str, TensorType]:
        """Return the types of the inputs of a step of `count` tokens."""
        found = types_of(self._inputs, count, self._room)
        return found | {name: view.type for name, view in self._given.items()}

    def _returns_all(self, count: int) -> bool:
        """Whether the model returns the scores of all positions of a step, as far as known."""
        graph, name = self._model.imported, self._layout.logits.name
        try:
            bound = specialise(graph.extract({name: graph.outputs[name]}), self._types(count))
        except (ModelError, UnsupportedError):
            return False
        shape = shape_of(bound.outputs[name])
        return shape is not None and len(shape) == 3 and shape[1] == count

    def _moved(self, program: BucketProgram) -> Iterator[Run]:
        """Yield a copy for each cache that a program does not write in place.

        Raises:
            UnsupportedError: the program is not a single plan, or a cache changes its size.
        """
        if not program.is_plan:
            raise UnsupportedError("a step is not a single plan")
        (plan,) = program.plans
        for each in self._layout.caches:
            here, there = self._views[each.past], plan.outputs.get(each.present)
            if there is None or there.type != here.type:
                raise UnsupportedError(f"'{each.present}' does not fit into '{each.past}'")
            if (there.buffer, there.offset) != (here.buffer, here.offset):
                yield self._device.copier(here, there)

    # ── running ──────────────────────────────────────────────────────────────────────────────

    def run(self, read: Tokens, new: Tokens) -> Array:
        if not self._are_single(read, new):
            return self._run_at_once(read, new)
        scores = list[Array]()
        for i in range(new.length):
            scores.append(self._run_at_once(read, new[i : i + 1]))
            read = read.then(new[i : i + 1])
        return np.concatenate(scores, 1)

    def _run_at_once(self, read: Tokens, new: Tokens) -> Array:
        size = self._rounded(read.length, new.length)
        program = self._program_behind(read.length, _Step(size, selects=False))
        found = self._run(program, read, new.extended(size))
        scores = scores_of(found[self._layout.logits.name], size)
        if scores.shape[1] == size:
            return scores[:, : new.length]
        if size > new.length:  # only those of the last position, which was padding
            self._rounds = False
            return self._run_at_once(read, new)
        return scores

    def run_rows(self, read: Tokens, new: Tokens, rows: Array) -> Array:
        if not self._selects or self._are_single(read, new, selects=True):
            return scores_at(self.run(read, new), rows, new.length)
        program, found = self._run_rows(read, new, rows)
        if not self._rows.greedy:
            return found[self._rows.output][:, 0]
        (plan,) = program.plans
        return fetched(plan.outputs[self._rows.output])[:, 0]

    def run_greedy(self, read: Tokens, new: Tokens, rows: Array) -> Greedy:
        is_all = not self._selects or self._are_single(read, new, selects=True)
        if is_all or not self._rows.greedy:
            return Greedy.of(self.run_rows(read, new, rows))
        _, found = self._run_rows(read, new, rows)
        return Greedy(found[self._rows.place].ravel(), found[self._rows.score].ravel())

    def _run_rows(
        self, read: Tokens, new: Tokens, rows: Array
    ) -> tuple[BucketProgram, Mapping[str, Array]]:
        extended = new.extended(self._rounded(read.length, new.length))
        program = self._program_behind(read.length, _Step(extended.length, selects=True))
        rows = rows[:, None, None]
        return program, self._run(program, read, extended, {self._rows.rows: rows})

    def _are_single(self, read: Tokens, new: Tokens, *, selects: bool = False) -> bool:
        """Whether tokens are read one by one, as a step of several has no plan for all lengths.

        Some models take several only if nothing was read before: masks have the size of a step.
        """
        if self._singly or new.length == 1:
            return self._singly and new.length > 1
        try:
            self._program_behind(
                read.length, _Step(self._rounded(read.length, new.length), selects)
            )
        except UnsupportedError as error:
            if self._layout.step is not None or not new.mask[:, -1].all():
                raise  # padding behind a prompt
            self._singly = True
            if self._device is not HOST:
                text = f"a prompt is read token by token: {error}"
                warn(text, PerformanceWarning)
        return self._singly

    def _rounded(self, read: int, count: int) -> int:
        """Return the number of tokens to read instead of `count`: the next power of two.

        So a few plans serve prompts of all lengths. Tokens do not attend to later ones, and the
        next step overwrites the rows of the additional ones.
        """
        size, capacity = rounded(count), self._inputs.capacity
        fits = capacity is None or read + size <= capacity
        is_same = are_alike(read + count, read + size, self._limits)
        return size if self._rounds and fits and is_same else count

    def _run(
        self,
        program: BucketProgram,
        read: Tokens,
        new: Tokens,
        rows: Mapping[str, Array] = MappingProxyType({}),
    ) -> Mapping[str, Array]:
        """Read new tokens; return the results that are copied to the host, by name."""
        feeds = {**self._inputs.feeds(read, new, cached=True), **rows}
        results = program.run(feeds, read.length)
        self._do(self._moves[program])
        return {name: x for name, x in results.items() if isinstance(x, np.ndarray)}

    def truncate(self, length: int) -> None:
        if not self._layout.can_rewind:
            self._do([self._device.copier(view, zeros_like(view)) for view in self._views.values()])

    def _do(self, runs: Sequence[Run]) -> None:
        """Run copies, and wait for them."""
        for run in runs:
            run(self._stream)
        if runs:
            self._stream.synchronize()

    def contents(self, length: int) -> dict[str, Array]:
        found = {name: fetched(view) for name, view in {**self._given, **self._views}.items()}
        for each in self._layout.caches:
            found[each.past] = found[each.past].astype(each.dtype, copy=False)
            if each.grows:
                found[each.past] = first_positions(found[each.past], each.axis, length)
        return found

    def load(self, caches: Mapping[str, Array], length: int) -> None:
        self._make_room(length)
        caches_of = {each.past: each for each in self._layout.caches}
        self._fill(
            self._views,
            {name: self._filled(each, self._room, caches) for name, each in caches_of.items()},
        )

    def close(self) -> None:
        """Free the caches, the programs that are bound to them, and what is given."""
        self._empty()
        close_all(self._given)
        self._given = {}

    def _empty(self) -> None:
        """Free the caches, and the programs that are bound to them."""
        self._close_chained()
        for program in self._programs.values():
            program.close()
        self._programs.clear()
        self._moves.clear()
        close_all(self._views)
        self._views = {}
