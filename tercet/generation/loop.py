"""The loop: a prompt is read, then every token that is chosen is read in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..runtime.errors import ModelError
from ..runtime.ir.types import Array
from ..runtime.session.decoding import Decoder
from .bans import Bans
from .prompts import Prompts
from .result import Continuation, Generation, Reason
from .sampling import Sampling
from .text_stream import TextStream


@dataclass(slots=True)
class Row:
    """One sequence of the batch.

    Attributes:
        prompt: number of the prompt that it continues.
        seen: tokens of the prompt, and the new ones.
        draws: what its tokens are drawn from.
        stream: makes text of its tokens; None where ids are requested.
        new: the tokens so far.
        reason: why it ended; None while it has not.
    """

    prompt: int
    seen: list[int]
    draws: np.random.Generator
    stream: TextStream | None = None
    new: list[int] = field(default_factory=list[int])
    reason: Reason | None = None

    def add(self, token: int, ends: frozenset[int], most: int) -> str:
        """Take a token; return the text that it adds."""
        self.new.append(token)
        self.seen.append(token)
        if token in ends:
            self.reason = "end"
            return "" if self.stream is None else self.stream.end()
        piece = "" if self.stream is None else self.stream.add(token)
        if self.stream is not None and self.stream.is_stopped:
            self.reason = "stop"
        elif len(self.new) >= most:
            return piece + self.finish("length")
        return piece

    def finish(self, reason: Reason) -> str:
        """End it, and return the text that was held back."""
        self.reason = reason
        rest = "" if self.stream is None else self.stream.end()
        if self.stream is not None and self.stream.is_stopped:
            self.reason = "stop"
        return rest


@dataclass(slots=True)
class Progress:
    """What there is so far.

    Attributes:
        prompts: what is continued.
        rows: the sequences.
        reused: tokens of the prompt that the caches had already.
        first_token: seconds to the first token.
        seconds: to the last one; 0 before there is any.
    """

    prompts: Prompts
    rows: Sequence[Row]
    reused: int
    first_token: float = 0.0
    seconds: float = 0.0

    def tick(self, seconds: float) -> None:
        """Note that so much time has passed."""
        self.first_token, self.seconds = self.first_token or seconds, seconds

    @property
    def generation(self) -> Generation:
        """What was generated so far."""
        found = (
            Continuation(
                row.prompt,
                tuple(row.new),
                None if row.stream is None else row.stream.text,
                row.reason or "length",
            )
            for row in self.rows
        )
        prompts = tuple(map(tuple, self.prompts.ids))
        return Generation(tuple(found), prompts, self.reused, self.first_token, self.seconds)


@dataclass(frozen=True, slots=True)
class Loop:
    """Generates tokens for a batch.

    Attributes:
        decoder: has read nothing, or the beginning of the only prompt.
        rows: one for each of its sequences.
        sampling: how tokens are chosen.
        ends: tokens that end a sequence.
        most: maximum number of new tokens.
        pad: token that fills up what is shorter or has ended.
        chunk: number of tokens of a prompt that are read at a time; None for all at once.
        bans: tokens that may not come next.
        kept: told of every token that the decoder has read, where there is one sequence.
    """

    decoder: Decoder
    rows: Sequence[Row]
    sampling: Sampling
    ends: frozenset[int]
    most: int
    pad: int
    chunk: int | None
    bans: Bans
    kept: Callable[[Sequence[int]], None]

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the text that each new token adds, for all sequences that had not ended."""
        logits = self._read_prompts()
        while True:
            yield [
                self._extended(row, scores) for row, scores in zip(self.rows, logits, strict=True)
            ]
            if all(row.reason for row in self.rows):
                return
            capacity = self.decoder.capacity
            if capacity is not None and self.decoder.length >= capacity:
                yield ["" if row.reason else row.finish("capacity") for row in self.rows]
                return
            last = [self.pad if row.reason else row.new[-1] for row in self.rows]
            logits = self._read(np.array(last, np.int64)[:, None])

    def _extended(self, row: Row, scores: Array) -> str:
        if row.reason:
            return ""
        if scores.dtype == np.float16:
            scores = scores.astype(np.float32)  # numpy compares halves slowly
        if not np.isfinite(scores.max()):
            raise ModelError(
                f"the logits of token {len(row.new)} behind a prompt of "
                f"{len(row.seen) - len(row.new)} have NaN or no finite element; "
                "tercet compare --layers finds the node"
            )
        banned = self.bans.tokens(row.seen, len(row.new), tuple(self.ends))
        if banned:
            scores = scores.astype(np.float64)
            scores[[token for token in banned if token < scores.size]] = -np.inf
        token = self.sampling.choose(scores, row.seen, row.draws)
        return row.add(token, self.ends, self.most)

    def _read(self, ids: Array, mask: Array | None = None, rows: Array | None = None) -> Array:
        logits = self.decoder.read(ids, mask, rows)
        if len(self.rows) == 1:
            self.kept(ids[0].tolist())
        return logits

    def _read_prompts(self) -> Array:
        """Return the logits [batch, vocabulary] after each prompt.

        The last parts are full for every sequence; what is shorter is filled up in the first one.
        """
        start = self.decoder.length
        rows = [row.seen[start:] for row in self.rows]
        shortest, longest = min(map(len, rows)), max(map(len, rows))
        chunk = self.chunk or longest
        parts = (shortest - 1) // chunk
        firsts = [row[: len(row) - parts * chunk] for row in rows]
        ids, mask, last = self._filled(firsts)
        logits = self._read(ids, mask if shortest < longest else None, last)
        for number in range(parts, 0, -1):
            end = None if number == 1 else (1 - number) * chunk
            part = [row[-number * chunk : end] for row in rows]
            logits = self._read(np.array(part, np.int64))
        return logits

    def _filled(self, rows: Sequence[Sequence[int]]) -> tuple[Array, Array, Array]:
        """Return ids and mask [batch, n], and the place of the last token of each."""
        size = max(map(len, rows))
        ids = np.full((len(rows), size), self.pad, np.int64)
        mask = np.zeros((len(rows), size), np.int64)
        is_left = self.decoder.padding != "right"
        for row, tokens in enumerate(rows):
            place = slice(size - len(tokens), size) if is_left else slice(len(tokens))
            ids[row, place], mask[row, place] = tokens, 1
        last = np.array([size if is_left else len(tokens) for tokens in rows]) - 1
        return ids, mask, last
