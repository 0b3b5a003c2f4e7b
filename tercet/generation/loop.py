"""The generation loop: prefill the prompt, then feed back each chosen token."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from ..runtime.errors import ModelError
from ..runtime.ir.types import Array
from ..runtime.session.bans import without
from ..runtime.session.decoding import Decoder
from ..runtime.session.sampling import NOT_FINITE, SamplingSettings
from ..runtime.session.token_scores import Greedy
from .bans import Bans
from .prompts import Prompts
from .result import Continuation, Generation, Reason
from .text_stream import TextStream


@dataclass(slots=True)
class BatchRow:
    """One sequence of the batch.

    Attributes:
        prompt: index of the prompt that it continues.
        seen: prompt tokens followed by new tokens.
        stream: decodes its tokens to text; None if ids are requested.
        new: the new tokens so far.
        reason: why it ended; None while it is running.
    """

    prompt: int
    seen: list[int]
    stream: TextStream | None = None
    new: list[int] = field(default_factory=list[int])
    reason: Reason | None = None

    def add(self, token: int, ends: frozenset[int], most: int, last: int | None = None) -> str:
        """Append a token, or `last` in the place of the last one; return the text that it adds."""
        if last is not None and len(self.new) + 1 == most:
            token = last
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
        """End the sequence, and return the text held back so far."""
        self.reason = reason
        rest = "" if self.stream is None else self.stream.end()
        if self.stream is not None and self.stream.is_stopped:
            self.reason = "stop"
        return rest


@dataclass(slots=True)
class Progress:
    """The result so far.

    Attributes:
        prompts: tokens of each prompt.
        rows: the sequences.
        reused: prompt tokens that the caches already held.
        first_token: seconds to the first token.
        seconds: seconds to the last one; 0 before there is any.
    """

    prompts: Prompts
    rows: Sequence[BatchRow]
    reused: int
    first_token: float = 0.0
    seconds: float = 0.0

    def tick(self, seconds: float) -> None:
        """Record the elapsed time."""
        self.first_token, self.seconds = self.first_token or seconds, seconds

    @property
    def generation(self) -> Generation:
        """The result as a `Generation`."""
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
class GenerationLoop:
    """Generates tokens for a batch.

    Attributes:
        decoder: has read nothing, or a prefix of the only prompt.
        rows: one per sequence.
        sampling: how tokens are chosen.
        ends: end-of-text tokens.
        most: maximum number of new tokens.
        pad: token that fills shorter prompts and ended sequences.
        chunk: prompt tokens per prefill step; None for all at once.
        bans: tokens forbidden as the next one.
        last: the token that a sequence of maximum length ends with, if any.
        kept: called with every token that the decoder has read, if there is one sequence.
    """

    decoder: Decoder
    rows: Sequence[BatchRow]
    sampling: SamplingSettings
    ends: frozenset[int]
    most: int
    pad: int
    chunk: int | None
    bans: Bans
    last: int | None
    kept: Callable[[Sequence[int]], None]

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the text that each step adds, for all sequences that are still running."""
        with closing(self._tokens()) as steps:
            for tokens in steps:
                yield [
                    "" if row.reason else row.add(token, self.ends, self.most, self.last)
                    for row, token in zip(self.rows, tokens, strict=True)
                ]
                if all(row.reason for row in self.rows):
                    return
                capacity = self.decoder.capacity
                if capacity is not None and self.decoder.length >= capacity:
                    yield ["" if row.reason else row.finish("capacity") for row in self.rows]
                    return

    def _tokens(self) -> Generator[list[int]]:
        """Yield the next token of every sequence; arbitrary tokens for ended ones."""
        found = self._read_prompts()
        if isinstance(found, Greedy):
            for row, score in zip(self.rows, found.scores, strict=True):
                _check(row, is_finite=bool(np.isfinite(score)))
            tokens, vocabulary = found.tokens, 0
        else:
            draws = self.sampling.each_draw(len(self.rows))
            tokens, vocabulary = self._chosen(found, next(draws)), found.shape[-1]
        yield tokens.tolist()
        bans = self.bans.following(self.ends)
        least = [self.bans.length(len(row.seen) - len(row.new)) for row in self.rows]
        following = self.decoder.follow(
            tokens, self.most - 1, sampling=self.sampling, drawn=1, bans=bans, least=least
        )
        with closing(following):
            for each in following:
                self._keep(tokens.tolist())
                tokens = each
                for row, token in zip(self.rows, tokens.tolist(), strict=True):
                    if token == NOT_FINITE and not row.reason:
                        self._check_bans(row, vocabulary)
                    _check(row, is_finite=token != NOT_FINITE)
                yield tokens.tolist()

    def _keep(self, tokens: Sequence[int]) -> None:
        """Tell who keeps them that tokens have been read, if they are of one sequence."""
        if len(self.rows) == 1:
            self.kept(tokens)

    def _chosen(self, found: Array | Greedy, draws: Array) -> Array:
        """Return the next token of every sequence, int64 [batch]; `pad` for ended ones."""
        assert not isinstance(found, Greedy)
        rows = zip(self.rows, found, draws.tolist(), strict=True)
        tokens = [
            self.pad if row.reason else self._choose(row, scores, draw)
            for row, scores, draw in rows
        ]
        return np.array(tokens, np.int64)

    def _choose(self, row: BatchRow, scores: Array, draw: float) -> int:
        if scores.dtype == np.float16:
            scores = scores.astype(np.float32)  # comparing float16 is slow in numpy
        if banned := self._check_bans(row, scores.size):
            scores = without(scores, banned)
        _check(row, is_finite=bool(np.isfinite(scores.max())))
        return self.sampling.choose(scores, row.seen, draw)

    def _check_bans(self, row: BatchRow, vocabulary: int) -> list[int]:
        """Return the tokens that may not be the next one; raises ModelError if these are all."""
        found = set(self.bans.tokens(row.seen, len(row.new), self.ends))
        banned = [token for token in found if token < vocabulary]
        if banned and len(banned) == vocabulary:
            raise ModelError(
                f"the settings of the folder suppress every token after {len(row.seen)} tokens "
                "(suppress_tokens, bad_words_ids, no_repeat_ngram_size, min_length)",
                file=self.bans.file,
            )
        return banned

    def _read(
        self, ids: Array, mask: Array | None = None, rows: Array | None = None
    ) -> Array | Greedy:
        """Feed tokens; return the logits [batch, vocabulary], or their argmax if that suffices."""
        is_greedy = self.sampling.is_greedy and self.bans.is_empty
        read = self.decoder.greedy if is_greedy else self.decoder.read
        found = read(ids, mask, rows)
        self._keep(ids[0].tolist())
        return found

    def _read_prompts(self) -> Array | Greedy:
        """Return the logits after each prompt.

        Later chunks are full for every sequence; shorter prompts are padded in the first chunk.
        There is at least one such chunk if the model returns only the logits of the last position,
        which must not be padding.
        """
        start = self.decoder.length
        rows = [row.seen[start:] for row in self.rows]
        shortest, longest = min(map(len, rows)), max(map(len, rows))
        chunk = self.chunk or longest
        is_behind = self.decoder.padding == "right" and shortest < longest
        if is_behind and self.decoder.layout.gives_last and shortest > 1:
            chunk = min(chunk, shortest - 1)
        parts = (shortest - 1) // chunk
        firsts = [row[: len(row) - parts * chunk] for row in rows]
        ids, mask, last = self._filled(firsts)
        rows_of = None if parts else last
        found = self._read(ids, mask if shortest < longest else None, rows_of)
        for number in range(parts, 0, -1):
            end = None if number == 1 else (1 - number) * chunk
            part = [row[-number * chunk : end] for row in rows]
            found = self._read(np.array(part, np.int64))
        return found

    def _filled(self, rows: Sequence[Sequence[int]]) -> tuple[Array, Array, Array]:
        """Return ids and mask, both [batch, n], and the index of the last token of each row."""
        size = max(map(len, rows))
        ids = np.full((len(rows), size), self.pad, np.int64)
        mask = np.zeros((len(rows), size), np.int64)
        is_left = self.decoder.padding != "right"
        for row, tokens in enumerate(rows):
            place = slice(size - len(tokens), size) if is_left else slice(len(tokens))
            ids[row, place], mask[row, place] = tokens, 1
        last = np.array([size if is_left else len(tokens) for tokens in rows]) - 1
        return ids, mask, last


def _check(row: BatchRow, *, is_finite: bool) -> None:
    """Raise ModelError if the largest of a sequence's logits is not finite."""
    if not row.reason and not is_finite:
        raise ModelError(
            f"the logits of token {len(row.new)} behind a prompt of "
            f"{len(row.seen) - len(row.new)} have NaN or no finite element; "
            "tercet compare --layers finds the node"
        )
