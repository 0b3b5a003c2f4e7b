"""Decoders of encoder-decoder models, such as T5, Marian and Whisper.

Cross-attention keys and values are computed once: by the encoder itself, or by the first step of
the decoder, which is then a separate file (``decoder_model.onnx``) or a branch of the same one
(``use_cache_branch``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np

from ..base.record import record
from ..errors import DeviceOutOfMemory, LimitError, ModelError, UsageError
from ..ir.types import Array, Shape
from .bans import NO_BANS, TokenBans
from .cache_layout import DecoderLayout
from .cache_names import by_core, core_of
from .decoding import Decoder, on_host
from .model import Model
from .opened_caches import Open, Opened, opened
from .passed_caches import PassedCaches
from .sampling import GREEDY, SamplingSettings
from .static_cache import StaticCaches
from .step_inputs import StepInputs, Tokens, fitted
from .token_scores import Greedy

#: Maximum number of sizes of encoder outputs whose caches and plans are kept.
MAX_SIZES = 4


@record
class Encoded:
    """The outputs of an encoder.

    Attributes:
        states: float [batch, length, width].
        mask: int64 [batch, n], 1 for tokens and 0 for padding, as fed to the encoder; None if no
            position of `states` is padding.
        others: further outputs by name: cross-attention keys and values, if the encoder computes
            them.
    """

    states: Array
    mask: Array
    others: Mapping[str, Array] = field(default_factory=dict[str, Array])

    def repeated(self, rows: Iterable[int]) -> Encoded:
        """Return these rows of the batch; rows may be repeated."""
        at = list(rows)
        others = {name: each[at] for name, each in self.others.items()}
        return Encoded(self.states[at], self.mask[at], others)


@record
class FirstStep:
    """The model of the first step, if it is another one, or another branch of the same.

    Attributes:
        model: remains the caller's.
        inputs: of the model.
        results: its output for each input of later steps that it computes, by name.
    """

    model: Model
    inputs: StepInputs
    results: Mapping[str, str]

    @classmethod
    def of(cls, model: Model, later: StepInputs) -> FirstStep:
        """Return the first step of a decoder.

        Args:
            model: remains the caller's.
            later: of the model of the later steps.

        Raises:
            ModelError: it lacks an output that later steps need; names both.
        """
        layout = DecoderLayout.of(model.imported, file=model.source.file, encoded=True)
        names = [each.past for each in later.layout.caches]
        names += [each.name for each in later.layout.cross]
        inputs = StepInputs.of(model, layout, later.batch)
        return cls(model, inputs, _results(names, model))

    def run(self, given: Mapping[str, Array], length: int, new: Tokens) -> dict[str, Array]:
        """Return the scores, and inputs of later steps, by name of the output and the input.

        Args:
            given: what it takes of the encoder.
            length: of the encoder's states.
            new: the first tokens.
        """
        layout = self.inputs.layout
        caches = {each.past: self.inputs.empty(each) for each in layout.caches}
        for each in layout.cross:  # for the branch that is not taken
            sizes = _sizes(each.shape or (), self.inputs.batch, length)
            caches[each.name] = np.broadcast_to(np.zeros((), each.dtype), sizes)
        feeds = self.inputs.feeds(new[:0], new)
        names = self.results.values()
        found = self.model.run({**feeds, **given, **caches}, [layout.logits.name, *names])
        held = {name: on_host(found[result]) for name, result in self.results.items()}
        return {layout.logits.name: on_host(found[layout.logits.name]), **held}


class EncodedDecoder(Decoder):
    """The decoder of an encoder-decoder.

    Args:
        model: decodes all tokens, or all but the first step if there is a model for that; remains
            the caller's.
        inputs: of the model.
        first: runs the first step; None if `model` does.
        open_: opens the later steps; see `opened`.
    """

    def __init__(
        self,
        model: Model,
        inputs: StepInputs,
        first: FirstStep | None = None,
        open_: Open = opened,
    ) -> None:
        self._model, self._inputs, self._first, self._open = model, inputs, first, open_
        self.layout, self.batch, self.capacity = inputs.layout, inputs.batch, inputs.capacity
        self._encoded: Encoded | None = None
        self._steps: Opened | None = None
        self._kept: OrderedDict[Hashable, Opened] = OrderedDict()

    @property
    def _cross(self) -> list[str]:
        return [each.name for each in self.layout.cross]

    @property
    def store(self) -> PassedCaches | StaticCaches | None:
        """The caches of the later steps; None before their sizes are known."""
        return None if self._steps is None else self._steps.store

    @property
    def length(self) -> int:
        return 0 if self._steps is None else self._steps.length

    def begin(self, encoded: Encoded) -> None:
        """Reset, and decode for these encoder outputs.

        Raises:
            ModelError: they lack keys and values, and no first step computes them.
        """
        self.rewind(0)
        self._encoded = encoded
        if self._first is None:
            self._give({**self._fed(self.layout, encoded), **self._of_encoder(encoded)})

    def _give(self, values: Mapping[str, Array]) -> Opened:
        """Return the later steps, with inputs that are the same in all of them.

        Those of the last few sizes are kept, and with them their plans.
        """
        sizes = frozenset((name, data.dtype, data.shape) for name, data in values.items())
        self._steps = None
        if sizes in self._kept:
            self._kept[sizes].store.give(values)
        else:
            self._kept[sizes] = self._opened(values)
        self._kept.move_to_end(sizes)
        self._steps = self._kept[sizes]
        return self._steps

    def _opened(self, values: Mapping[str, Array]) -> Opened:
        """Open the later steps for other sizes; those of all others make room where it is short."""
        self._close_kept(MAX_SIZES - 1)
        try:
            return self._open(self._model, self._inputs, values)
        except (DeviceOutOfMemory, LimitError):
            if not self._kept:
                raise
        self._close_kept(0)
        return self._open(self._model, self._inputs, values)

    def _close_kept(self, most: int) -> None:
        """Close the later steps of the sizes that were used least recently."""
        while len(self._kept) > most:
            self._kept.popitem(last=False)[1].close()

    def _begun(self) -> Opened:
        if self._steps is None or self._encoded is None:
            raise UsageError("call begin with the encoder's outputs first")
        return self._steps

    def step(self, ids: Array, mask: Array | None = None) -> Array:
        if self._first is None or self.length:
            return self._begun().step(ids, mask)
        return self._first_step(self._first, ids, mask)

    def read(self, ids: Array, mask: Array | None = None, rows: Array | None = None) -> Array:
        if self._first is None or self.length:
            return self._begun().read(ids, mask, rows)
        return super().read(ids, mask, rows)

    def greedy(self, ids: Array, mask: Array | None = None, rows: Array | None = None) -> Greedy:
        if self._first is None or self.length:
            return self._begun().greedy(ids, mask, rows)
        return super().greedy(ids, mask, rows)

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
        if not self.length:
            raise UsageError("read the decoder's first tokens before following")
        steps = self._begun()
        return steps.follow(
            tokens, limit, sampling=sampling, drawn=drawn, ahead=ahead, bans=bans, least=least
        )

    def _first_step(self, first: FirstStep, ids: Array, mask: Array | None) -> Array:
        """Run the first step, and give its keys and values to the later ones."""
        encoded = self._encoded
        if encoded is None:
            raise UsageError("call begin with the encoder's outputs first")
        new = self._inputs.check(ids, mask, 0)
        layout = first.inputs.layout
        held = first.run(self._fed(layout, encoded), encoded.states.shape[1], new)
        scores = held.pop(layout.logits.name)
        cross = {name: held.pop(name) for name in self._cross}
        steps = self._give({**self._fed(self.layout, encoded), **cross})
        steps.restore(new.ids, held)
        return scores

    def _fed(self, layout: DecoderLayout, encoded: Encoded) -> dict[str, Array]:
        """Return the encoder outputs that a model takes, except keys and values."""
        values = {"encoder_states": encoded.states, "encoder_mask": encoded.mask}
        return {
            info.name: fitted(values[role], info, self._model.source.file)
            for role, info in layout.inputs.items()
            if role in values
        }

    def _of_encoder(self, encoded: Encoded) -> dict[str, Array]:
        """Return the encoder's cross-attention keys and values."""
        known = by_core(encoded.others)
        found: dict[str, Array] = {}
        for name in self._cross:
            same = known.get(core_of(name), [])
            if len(same) != 1:
                raise ModelError(
                    "nothing computes it: the encoder has no output of this name, and there is no "
                    f"model of the first step (outputs: {', '.join(encoded.others)})",
                    where=f"input '{name}'",
                )
            found[name] = encoded.others[same[0]]
        return found

    def rewind(self, length: int) -> int:
        return 0 if self._steps is None else self._steps.rewind(length)

    def caches(self) -> dict[str, Array]:
        return {} if self._steps is None else self._steps.caches()

    def restore(self, ids: Array, caches: Mapping[str, Array]) -> None:
        raise UsageError("the caches of an encoder-decoder depend on its encoder's input")

    def close(self) -> None:
        self._encoded = self._steps = None
        self._close_kept(0)


def _sizes(shape: Shape, batch: int, length: int) -> tuple[int, ...]:
    """Return the shape of keys or values with this number of positions."""
    return tuple(
        batch if i == 0 else size if isinstance(size, int) else length
        for i, size in enumerate(shape)
    )


def _results(names: Iterable[str], model: Model) -> dict[str, str]:
    """Return the output of the first step for each cache of later steps."""
    known = by_core(each.name for each in model.outputs)
    found: dict[str, str] = {}
    for name in names:
        same = known.get(core_of(name), [])
        if len(same) != 1:
            raise ModelError(
                f"it has no output for the cache '{name}' of later steps "
                f"(outputs: {', '.join(each.name for each in model.outputs)})",
                file=model.source.file,
            )
        found[name] = same[0]
    return found
