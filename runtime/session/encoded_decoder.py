"""Decoders of encoder-decoder models, such as T5, Marian and Whisper.

Cross-attention keys and values are computed once: by the encoder itself, or by the first step of
the decoder, which is then a separate file (``decoder_model.onnx``) or a branch of the same one
(``use_cache_branch``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import field

import numpy as np

from ..base.record import record
from ..errors import ModelError, UsageError
from ..ir.types import Array, Shape
from .cache_layout import DecoderLayout
from .cache_names import by_core, core_of
from .decoding import Decoder, on_host
from .model import Model
from .passed_caches import PassedDecoder, passed_decoder
from .sampling import GREEDY, SamplingSettings
from .step_inputs import fitted


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


class EncodedDecoder(Decoder):
    """The decoder of an encoder-decoder.

    Args:
        steps: decodes all tokens, or all but the first step if there is a model for that; closed
            with this one.
        model: the model of the first step; None if `steps` runs that as well.
        layout: of `model`.

    Raises:
        ModelError: `model` lacks an output that `steps` needs; names both.
    """

    def __init__(
        self, steps: PassedDecoder, model: Model | None = None, layout: DecoderLayout | None = None
    ) -> None:
        self._steps, self._model = steps, model
        self.layout, self.batch, self.capacity = steps.layout, steps.batch, steps.capacity
        self._encoded: Encoded | None = None
        self._first = None
        self._results: dict[str, str] = {}
        if model is not None and layout is not None:
            self._first = passed_decoder(model, layout, steps.batch)
            names = [*(each.past for each in self.layout.caches), *self._cross]
            self._results = _results(names, model)

    @property
    def _cross(self) -> list[str]:
        return [each.name for each in self.layout.cross]

    @property
    def length(self) -> int:
        return self._steps.length

    def begin(self, encoded: Encoded) -> None:
        """Reset, and decode for these encoder outputs.

        Raises:
            ModelError: they lack keys and values, and no first step computes them.
        """
        self._steps.rewind(0)
        self._encoded = encoded
        given = self._fed(self.layout, encoded)
        if self._first is None:
            given |= self._of_encoder(encoded)
            self._steps.store.give(given)

    def step(self, ids: Array, mask: Array | None = None) -> Array:
        if self._encoded is None:
            raise UsageError("call begin with the encoder's outputs first")
        if self._first is None or self.length:
            return self._steps.step(ids, mask)
        return self._first_step(self._first, self._encoded, ids, mask)

    def follow(
        self,
        tokens: Array,
        limit: int | None = None,
        *,
        sampling: SamplingSettings = GREEDY,
        drawn: int = 0,
        ahead: int = 1,
    ) -> Generator[Array]:
        if not self.length:
            raise UsageError("read the decoder's first tokens before following")
        return self._steps.follow(tokens, limit, sampling=sampling, drawn=drawn, ahead=ahead)

    def _first_step(
        self, first: PassedDecoder, encoded: Encoded, ids: Array, mask: Array | None
    ) -> Array:
        """Run the first step, and give its keys and values to the later ones."""
        assert self._model is not None
        given = self._fed(first.layout, encoded)
        for each in first.layout.cross:  # for the branch that is not taken
            sizes = _sizes(each.shape or (), self.batch, encoded.states.shape[1])
            given[each.name] = np.broadcast_to(np.zeros((), each.dtype), sizes)
        first.store.give(given)
        self._steps.inputs.check(ids, mask, self.length)
        feeds = first.feeds(ids)
        names = list(self._results.values())
        found = self._model.run(feeds, [first.layout.logits.name, *names])
        held = {name: on_host(found[result]) for name, result in self._results.items()}
        cross = {name: held.pop(name) for name in self._cross}
        self._steps.store.give({**self._fed(self.layout, encoded), **cross})
        self._steps.restore(np.asarray(ids), held)
        return on_host(found[first.layout.logits.name])

    def _fed(self, layout: DecoderLayout, encoded: Encoded) -> dict[str, Array]:
        """Return the encoder outputs that a model takes, except keys and values."""
        file = None if self._model is None else self._model.source.file
        values = {"encoder_states": encoded.states, "encoder_mask": encoded.mask}
        return {
            info.name: fitted(values[role], info, file)
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
        return self._steps.rewind(length)

    def caches(self) -> dict[str, Array]:
        return self._steps.caches()

    def restore(self, ids: Array, caches: Mapping[str, Array]) -> None:
        raise UsageError("the caches of an encoder-decoder depend on its encoder's input")

    def close(self) -> None:
        self._encoded = None
        self._steps.close()
        if self._first is not None:
            self._first.close()


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
