"""The bodies of text search operators: a decoder alone, or with the encoder that it attends to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import ShapeError
from ..ir.graph import Graph
from ..ir.types import Array, HostValue, TensorType
from ..ops.contrib_search import FIRST_INPUTS, T5, Search

#: Runs one of a node's bodies on its inputs.
Run = Callable[[Graph, Sequence[HostValue]], list[HostValue]]


class Decoder:
    """A decoder with its states: one row per text, or per beam of a text."""

    def __init__(self, op: Search, run: Run, texts: Array, mask: Array | None) -> None:
        self._op = op
        self._run = run
        self._mask = (texts != op.pad_token_id).astype(np.int32) if mask is None else mask
        self._states: list[HostValue] = []

    def read(self, words: Array) -> Array:
        """Return the float32 logits after the last of these tokens [rows, count]."""
        first = not self._states
        body = self._op.init_decoder if first and self._op.init_decoder else self._op.decoder
        if first:
            places = np.maximum(np.cumsum(self._mask, 1) - 1, 0) * (self._mask != 0)
            self._states = [
                _nothing(body, FIRST_INPUTS + i, (2, len(words)))
                for i in range(len(body.outputs) - 1)
            ]
        else:
            ones = np.ones((len(words), words.shape[1]), np.int32)
            self._mask = np.concatenate([self._mask, ones], 1)
            places = self._mask.sum(1, keepdims=True) - 1
        inputs = (words.astype(np.int32), places.astype(np.int32), self._mask.astype(np.int32))
        logits, *self._states = self._run(body, (*inputs, *self._states))
        return _last_logits(self._op, body, logits)

    def choose(self, rows: Array) -> None:
        """Continue with the states of these rows, each replacing another beam of its text."""
        self._states = [x[:, rows] if isinstance(x, np.ndarray) else x for x in self._states]


class EncodedDecoder:
    """The decoder of a model with an encoder, and what the encoder computed of each text.

    Keys and values, its own and the encoder's, are [rows, heads, length, size].

    Args:
        op: the search.
        run: runs its bodies.
        sources: what the encoder reads: texts, int32 [batch, length], or features [batch, ...].
        mask: int32 [batch, length], 1 for tokens; None for all but padding on the left, as in
            onnxruntime: the last token of a text may be the padding token.
        start: int32 [batch, n]: the first tokens of the decoder.
        beams: rows of each text.
    """

    def __init__(
        self, op: Search, run: Run, sources: Array, mask: Array | None, start: Array, beams: int
    ) -> None:
        assert op.encoder is not None
        self._op, self._run = op, run
        masks: list[Array] = []
        if op.model_type == T5:
            seen = np.maximum.accumulate(sources != op.pad_token_id, 1)
            masks.append(seen.astype(np.int32) if mask is None else mask)
        given = (sources, *masks, start)[: len(op.encoder.inputs)]
        found = [_repeated(each, beams) for each in run(op.encoder, given)]
        count = op.states
        self._cross, others = found[-count:], found[:-count]
        self._logits, hidden = others[:2] if others else (None, None)
        self._states = others[2:]
        places = range(1, len(op.decoder.inputs) - 2 * count)
        self._extras: list[HostValue] = [
            hidden if op.is_states(place) else _repeated(masks[0], beams) for place in places
        ]

    def read(self, words: Array) -> Array:
        """Return the float32 logits after the last of these tokens [rows, 1]."""
        body, logits = self._op.decoder, self._logits
        self._logits = None
        if logits is None:
            first = 1 + len(self._extras)
            states = self._states or [
                _nothing(body, first + i, (len(words),)) for i in range(self._op.states)
            ]
            given = (words.astype(np.int32), *self._extras, *states, *self._cross)
            logits, *self._states = self._run(body, given)
        return _last_logits(self._op, body, logits)

    def choose(self, rows: Array) -> None:
        """Continue with the states of these rows, each replacing another beam of its text."""
        self._states = [x[rows] if isinstance(x, np.ndarray) else x for x in self._states]


def _repeated(value: HostValue, beams: int) -> HostValue:
    return np.repeat(value, beams, 0) if isinstance(value, np.ndarray) else value


def _last_logits(op: Search, body: Graph, logits: HostValue) -> Array:
    """Return the float32 logits of the last position, [rows, words]."""
    if not isinstance(logits, np.ndarray) or logits.ndim != 3:
        raise ShapeError(f"body '{body.name}' gives no logits of [rows, length, words]")
    size = op.vocab_size if op.vocab_size > 0 else logits.shape[-1]
    return logits[:, -1, :size].astype(np.float32)


def _nothing(body: Graph, place: int, first: tuple[int, ...]) -> Array:
    """Return the empty state that an input takes, whose first sizes are these."""
    formal = body.inputs[place]
    type_ = formal.declared if isinstance(formal.declared, TensorType) else formal.type
    axes = len(first) + 3
    if not isinstance(type_, TensorType) or type_.shape is None or len(type_.shape) != axes:
        raise ShapeError(f"body '{body.name}': '{formal.name}' is {type_}; expected {axes} axes")
    *_, heads, _, size = type_.shape
    if not isinstance(heads, int) or not isinstance(size, int):
        raise ShapeError(f"body '{body.name}': '{formal.name}' {type_} has unknown sizes")
    return np.zeros((*first, heads, 0, size), type_.dtype)
