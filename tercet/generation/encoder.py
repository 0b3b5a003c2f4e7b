"""The encoder of an encoder-decoder, for token ids, audio features or images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..runtime.errors import InputError, ModelError, UsageError
from ..runtime.ir.dtypes import FLOATS
from ..runtime.ir.types import Array
from ..runtime.session.decoding import on_host
from ..runtime.session.encoded_decoder import Encoded
from ..runtime.session.io_types import TensorInfo
from ..runtime.session.model import Model
from ..runtime.session.padded_lengths import rounded
from .folder import ModelFolder

#: Shorter texts are padded to this length where texts are padded.
LEAST = 16
_STATES = ("last_hidden_state", "encoder_hidden_states", "hidden_states")


class Load(Protocol):
    """Loads the model of a file; see `tercet.load`."""

    def __call__(self, source: str, /, *, whole_caches: bool = False) -> Model: ...


class Encoder:
    """Runs the encoder and returns the states that the decoder attends to.

    Args:
        folder: a folder that has an encoder.
        pad: token that fills shorter prompts.
        load: loads its model.

    Attributes:
        model: the loaded encoder.
        features: its audio or image input; None if it takes token ids.
        rounds: whether texts are padded to powers of two; see `length_of`.

    Raises:
        ModelError: it has unknown inputs or no output of hidden states; the message names them.
    """

    def __init__(self, folder: ModelFolder, pad: int, load: Load) -> None:
        self._file = str(folder.encoder)
        self._pad = pad
        self._most = None if folder.source is None else folder.source.size
        self.rounds = False
        self.model = load(self._file)
        try:
            self._inputs = {each.name: each for each in self.model.inputs}
            self.features: TensorInfo | None = self._features()
            self._states = self._output()
        except BaseException:
            self.model.close()
            raise

    def _features(self) -> TensorInfo | None:
        known = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
        others = [each for name, each in self._inputs.items() if name not in known]
        is_one = len(others) == 1 and others[0].dtype in FLOATS and others[0].shape is not None
        if "input_ids" in self._inputs and not others:
            return None
        if "input_ids" not in self._inputs and is_one:
            return others[0]
        unknown = others[-1].name if others else "input_ids"
        raise ModelError(
            "an encoder takes input_ids, or one input of features "
            f"(inputs: {', '.join(map(str, self._inputs.values()))})",
            file=self._file,
            where=f"input '{unknown}'",
        )

    def _output(self) -> str:
        """Return the name of the output with the hidden states."""
        names = [each.name for each in self.model.outputs]
        floats = [
            e.name for e in self.model.outputs if e.dtype in FLOATS and len(e.shape or ()) == 3
        ]
        found = next((name for name in _STATES if name in names), None) or next(iter(floats), None)
        if found is None:
            raise ModelError(
                f"it has no output of states, float[batch,length,width] "
                f"(outputs: {', '.join(map(str, self.model.outputs))})",
                file=self._file,
            )
        return found

    def read_ids(self, prompts: Sequence[Sequence[int]]) -> Encoded:
        """Encode prompts, padded on the right; raises UsageError if the encoder takes features.

        Raises:
            InputError: prompts of different lengths, for an encoder without an attention mask.
        """
        if self.features is not None:
            raise UsageError(
                f"{self._file}: it takes {self.features}, and no text; use generate_features "
                "(--input-features, or --audio for speech)"
            )
        ids = np.full((len(prompts), self.length_of(max(map(len, prompts)))), self._pad, np.int64)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)], mask[row, : len(prompt)] = prompt, 1
        if "attention_mask" not in self._inputs and not mask.all():
            raise InputError(
                f"{self._file} takes no attention_mask: give prompts of equal lengths, or one at a "
                "time"
            )
        return self._run({"input_ids": ids}, mask)

    def length_of(self, count: int) -> int:
        """Return the number of positions that texts of so many tokens are padded to."""
        if not self.rounds or "attention_mask" not in self._inputs:
            return count
        size = rounded(count, LEAST)
        return size if self._most is None else max(count, min(size, self._most))

    def read_features(self, features: Any) -> Encoded:
        """Encode audio features or images.

        Args:
            features: as the model's preprocessor returns them, [batch, ...]; without a batch axis,
                one sample.

        Raises:
            UsageError: the encoder takes text.
            InputError: the shape does not fit.
        """
        info = self.features
        if info is None:
            raise UsageError(f"{self._file}: it takes input_ids; give a text, or token ids")
        array = np.asarray(features)
        rank = len(info.shape or ())
        if array.dtype.kind not in "fiu":
            raise InputError(f"features of {array.dtype}: expected numbers, as {info}")
        if array.ndim == rank - 1:
            array = array[None]
        if array.ndim != rank or not array.size:
            raise InputError(f"features {list(array.shape)}: expected {info}")
        array = array.astype(info.dtype or array.dtype)
        return self._run({info.name: array}, np.ones(array.shape[:2], np.int64))

    def _run(self, feeds: dict[str, Array], mask: Array) -> Encoded:
        values = {
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(mask),
            "position_ids": np.broadcast_to(np.arange(mask.shape[1]), mask.shape),
        }
        for name, each in values.items():
            if name in self._inputs:
                feeds[name] = each.astype(self._inputs[name].dtype or each.dtype)
        found = {name: on_host(each) for name, each in self.model.run(feeds).items()}
        states = found.pop(self._states)
        if "attention_mask" not in self._inputs:
            mask = np.ones(states.shape[:2], np.int64)
        return Encoded(states, mask, found)
