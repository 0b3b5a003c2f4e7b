"""Tokens that may not come next, as nodes of a graph: `TokenBans` in ONNX operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir.dtypes import bool_, float32, float64
from ..ir.graph import Value
from ..ops.elementwise import (
    And,
    Cast,
    Equal,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Max,
    Min,
    Or,
    Sub,
    Where,
)
from ..ops.gather import GatherElements, ScatterElements
from ..ops.movement import Concat, Expand, Slice
from .bans import TokenBans
from .node_writer import NodeWriter

#: Stands for a token that is not there.
_NONE = -1
#: Sequences have no greater tokens.
_GREATEST = np.iinfo(np.int64).max


def banned(
    add: NodeWriter,
    bans: TokenBans,
    logits: Value,
    tokens: Value,
    last: Value,
    least: Value | None,
) -> Value:
    """Add the nodes that forbid tokens; return the logits, -inf for these.

    Args:
        add: inserts nodes.
        bans: the tokens.
        logits: [batch, vocabulary].
        tokens: int64 [batch, n], those of each sequence from its first on, up to its `last`; read
            only if the bans' `reads_history`.
        last: int64 [batch, 1], the index of the last token of each sequence.
        least: int64 [batch, 1], the minimum length of each sequence; None if there are no `ends`.
    """
    if logits.tensor.dtype not in (float32, float64):
        logits = add(Cast(to=float32), logits)
    writer, vocabulary = _BanWriter(add, logits, tokens, last), logits.tensor.dims[-1]
    words = [word for word in bans.words if word[-1] < vocabulary and max(word) <= _GREATEST]
    longer = [word for word in words if len(word) > 1]
    always = [token for token in bans.always if token < vocabulary]
    writer.ban([*always, *(word[0] for word in words if len(word) == 1)], None)
    if least is not None:
        is_short = add(Less(), last, add(Sub(), least, add.constant([1])))
        writer.ban([token for token in bans.ends if token < vocabulary], is_short)
    if longer:
        writer.ban([word[-1] for word in longer], writer.ends_with([word[:-1] for word in longer]))
    if bans.repeated:
        writer.ban_repeated(bans.repeated)
    return writer.apply()


class _BanWriter:
    """Collects indices of tokens, and whether each is forbidden, and applies them at once.

    Args:
        add, logits, tokens, last: see `banned`.
    """

    def __init__(self, add: NodeWriter, logits: Value, tokens: Value, last: Value) -> None:
        self._add, self._logits, self._tokens, self._last = add, logits, tokens, last
        self._batch, self._vocabulary = logits.tensor.dims
        self._found: list[tuple[Value, Value]] = []

    def ban(self, tokens: Sequence[int], condition: Value | None) -> None:
        """Forbid some tokens under a condition, bool [batch, 1] or one for each token.

        None is for always.
        """
        if not tokens:
            return
        if condition is None:
            condition = self._add.constant([[True]], bool_)
        indices = np.broadcast_to(tokens, (self._batch, len(tokens)))
        self._ban(self._add.constant(indices), condition)

    def ends_with(self, starts: Sequence[Sequence[int]]) -> Value:
        """Return which sequences end with which tokens, bool [batch, starts]."""
        add, longest = self._add, max(map(len, starts))
        found = None
        for back in range(longest):
            wanted = [start[-1 - back] if back < len(start) else _NONE for start in starts]
            is_equal = add(Equal(), self._before(back), add.constant([wanted]))
            is_any = np.array([back >= len(start) for start in starts])[None]
            if is_any.any():
                is_equal = add(Or(), is_equal, add.constant(is_any, bool_))
            found = is_equal if found is None else add(And(), found, is_equal)
        assert found is not None
        return found

    def ban_repeated(self, size: int) -> None:
        """Forbid tokens that would complete an n-gram of this size which has already occurred."""
        add, start = self._add, size - 1
        count = self._tokens.tensor.dims[1] - start
        if count <= 0:
            return
        ends = add.constant(np.arange(start, start + count)[None])
        found = add(LessOrEqual(), ends, self._last)
        for place in range(start):
            window = self._from(place, count)
            found = add(And(), found, add(Equal(), window, self._before(start - 1 - place)))
        tokens = self._from(start, count)
        most = add.constant([[self._vocabulary - 1]])
        found = add(And(), found, add(LessOrEqual(), tokens, most))
        self._ban(add(Min(), tokens, most), found)

    def apply(self) -> Value:
        """Return the logits, -inf for what is forbidden."""
        add = self._add
        if not self._found:
            return self._logits
        indices, values = (
            parts[0] if len(parts) == 1 else add(Concat(axis=1), *parts)
            for parts in zip(*self._found, strict=True)
        )
        return add(ScatterElements(axis=1, reduction="min"), self._logits, indices, values)

    def _ban(self, indices: Value, condition: Value) -> None:
        add, dtype = self._add, self._logits.tensor.dtype
        if condition.tensor.dims != indices.tensor.dims:
            condition = add(Expand(), condition, add.constant(indices.tensor.dims))
        least, most = (add.constant(each, dtype) for each in (-np.inf, np.inf))
        self._found.append((indices, add(Where(), condition, least, most)))

    def _before(self, back: int) -> Value:
        """Return the token so many places before the last one, int64 [batch, 1]."""
        add, none = self._add, self._add.constant([[_NONE]])
        place = add(Sub(), self._last, add.constant([[back]]))
        zero = add.constant([[0]])
        token = add(GatherElements(axis=1), self._tokens, add(Max(), place, zero))
        return add(Where(), add(GreaterOrEqual(), place, zero), token, none)

    def _from(self, start: int, count: int) -> Value:
        """Return `count` tokens from an index on, int64 [batch, count]."""
        ends = [self._add.constant([each]) for each in (start, start + count, 1)]
        return self._add(Slice(), self._tokens, *ends)
