"""Text search operators: the host selects tokens, programs run the decoder.

They follow onnxruntime, which defines them: tokens are banned before scores are compared, in the
order of `_Words.scores`; a finished beam goes into the list of its text's hypotheses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..base.guard import check_time
from ..errors import ShapeError
from ..ir.types import Array, HostValue
from ..ops.contrib_search import (
    WHISPER,
    BeamSearch,
    GreedySearch,
    Sampling,
    Search,
    WhisperBeamSearch,
)
from .search_bodies import Decoder, EncodedDecoder, Run

#: The score of banned tokens, and of beams that have not started.
LOWEST, ABSENT = np.finfo(np.float32).min, np.float32(-1e9)


def run_search(op: Search, run: Run, values: Sequence[HostValue]) -> list[HostValue]:
    """Run a search operator.

    Raises:
        ShapeError: the values contradict each other.
    """
    given = dict(zip(_NAMES[type(op)], values, strict=False))
    match op:
        case BeamSearch():
            return _beams(op, run, given)
        case Sampling() | GreedySearch():
            return _line(op, run, given)
        case _:
            raise ShapeError(f"{type(op).__name__} is a search that no backend runs")


_LINE = (
    *("input_ids", "max_length", "min_length", "repetition_penalty", "vocab_mask"),
    *("prefix_vocab_mask", "attention_mask"),
)
_BEAMS = (
    *("input_ids", "max_length", "min_length", "num_beams", "num_return_sequences"),
    *("length_penalty", "repetition_penalty", "vocab_mask", "prefix_vocab_mask"),
    *("attention_mask", "decoder_input_ids", "logits_processor"),
)
_NAMES: dict[type[Search], tuple[str, ...]] = {
    GreedySearch: _LINE,
    Sampling: (*_LINE, "presence_mask", "seed"),
    BeamSearch: _BEAMS,
    WhisperBeamSearch: (*_BEAMS, "cross_qk_layer_head", "extra_decoding_ids", "temperature"),
}
_Given = dict[str, HostValue]


def _array(given: _Given, name: str) -> Array | None:
    found = given.get(name)
    return found if isinstance(found, np.ndarray) else None


def _number(given: _Given, name: str, default: float) -> float:
    found = _array(given, name)
    return default if found is None else float(found.reshape(-1)[0])


# ── words ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Words:
    """Which tokens may come next, and their penalties.

    Attributes:
        op: the search.
        penalty: of tokens that a text already contains.
        min_length: minimum length of texts.
        mask: allowed tokens, if restricted.
        prefix: tokens allowed as the first one of each text.
        temperature: divides all scores at last.
    """

    op: Search
    penalty: float
    min_length: float
    mask: Array | None
    prefix: Array | None
    temperature: float = 1.0

    @classmethod
    def of(cls, op: Search, given: _Given) -> _Words:
        temperature = _number(given, "temperature", 1.0)
        if not temperature > 0:
            raise ShapeError(f"temperature {temperature:g}: expected a positive number")
        return cls(
            op,
            _number(given, "repetition_penalty", 1.0),
            _number(given, "min_length", 0),
            _array(given, "vocab_mask"),
            _array(given, "prefix_vocab_mask"),
            temperature,
        )

    def scores(self, texts: Array, scores: Array, is_first: bool) -> Array:
        """Return the scores [rows, vocabulary] of tokens after texts [rows, length]."""
        scores = scores.copy()
        for row, text in zip(scores, texts, strict=True):
            if self.penalty != 1:
                seen = np.unique(text)
                factor = np.float32(self.penalty)
                row[seen] = np.where(row[seen] < 0, row[seen] * factor, row[seen] / factor)
            row[self._repeated(text)] = LOWEST
        if self.mask is not None:
            scores[:, self.mask.reshape(-1) == 0] = LOWEST
        if self.prefix is not None and is_first:
            rows = np.repeat(self.prefix, len(scores) // len(self.prefix), 0)
            scores[rows == 0] = LOWEST
        if texts.shape[1] < self.min_length:
            scores[:, self.op.eos_token_id] = LOWEST
        with np.errstate(over="ignore"):
            return scores if self.temperature == 1 else scores / np.float32(self.temperature)

    def _repeated(self, text: Array) -> Array:
        """Return the tokens that would complete an n-gram that a text already contains."""
        size = self.op.no_repeat_ngram_size
        if size < 1 or len(text) < size:
            return np.zeros(0, int)
        grams = np.lib.stride_tricks.sliding_window_view(text, size)
        ending = text[len(text) - size + 1 :]
        return grams[(grams[:, :-1] == ending).all(1), -1]


# ── one word after the other ─────────────────────────────────────────────────────────────────────


def _line(op: GreedySearch | Sampling, run: Run, given: _Given) -> list[HostValue]:
    """Return texts extended token by token, and the last logits if tokens are sampled."""
    texts, limit = _prompt(given)
    words, decoder = _Words.of(op, given), Decoder(op, run, texts, _array(given, "attention_mask"))
    draw = np.random.default_rng(_seed(given))
    has_ended = np.zeros(len(texts), bool)
    found = np.full((len(texts), limit), op.pad_token_id, np.int32)
    found[:, : texts.shape[1]] = texts
    fresh, last = texts, np.zeros((len(texts), 0), np.float32)
    for length in range(texts.shape[1], limit):
        check_time()
        scores = words.scores(found[:, :length], decoder.read(fresh), fresh is texts)
        if isinstance(op, Sampling):
            scores = last = _filtered(op, scores, _array(given, "presence_mask"))
            chosen = _drawn(scores, draw)
        else:
            chosen = scores.argmax(1)
        has_ended |= chosen == op.eos_token_id
        chosen = np.where(has_ended, op.pad_token_id, chosen).astype(np.int32)
        found[:, length] = chosen
        fresh = chosen[:, np.newaxis]
        if has_ended.all():
            break
    return [found, last]


def _prompt(given: _Given) -> tuple[Array, int]:
    texts, limit = _array(given, "input_ids"), int(_number(given, "max_length", 0))
    if texts is None or texts.ndim != 2 or not 0 < texts.shape[1] < limit:
        shape = None if texts is None else list(texts.shape)
        raise ShapeError(f"input_ids of {shape}, max_length {limit}; a prompt has to be shorter")
    return texts, limit


def _start(op: Search, given: _Given) -> tuple[Array, int]:
    """Return the tokens that a decoder with an encoder starts with, and the maximum length."""
    limit = int(_number(given, "max_length", 0))
    batch, start = len(_sources(given)), _array(given, "decoder_input_ids")
    if start is None:
        start = np.full((batch, 1), op.decoder_start_token_id, np.int32)
    if start.ndim != 2 or len(start) != batch or not 0 < start.shape[1] < limit:
        shape = list(start.shape)
        raise ShapeError(f"first tokens {shape} of {batch} texts, max_length {limit}: too many")
    return start.astype(np.int32), limit


def _sources(given: _Given) -> Array:
    found = _array(given, "input_ids")
    if found is None or not found.ndim:
        raise ShapeError(f"input_ids is {found}; an encoder reads texts [batch, ...]")
    return found


def _seed(given: _Given) -> int | None:
    found = _array(given, "seed")
    return None if found is None else int(found.reshape(-1)[0]) & 0xFFFFFFFF


def _filtered(op: Sampling, scores: Array, presence: Array | None) -> Array:
    """Return scores with unlikely tokens replaced by the filter value."""
    with np.errstate(over="ignore"):
        scores = scores / np.float32(op.temperature)
    if presence is not None:
        scores = scores - np.float32(op.presence_penalty) * presence
    if op.top_p <= 0 or op.top_p >= 1:
        return scores
    order = np.argsort(scores, 1, kind="stable")  # the unlikely ones first
    chances = np.cumsum(_softmax(np.take_along_axis(scores, order, 1)), 1)
    is_out = chances <= np.float32(1 - op.top_p)
    is_out[:, scores.shape[1] - max(1, op.min_tokens_to_keep) :] = False
    out = np.zeros_like(is_out)
    np.put_along_axis(out, order, is_out, 1)
    return np.where(out, np.float32(op.filter_value), scores)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _drawn(scores: Array, draw: np.random.Generator) -> Array:
    chances = np.cumsum(_softmax(scores.astype(np.float64)), 1)
    limits = draw.random(len(scores)) * chances[:, -1]
    return (chances <= limits[:, np.newaxis]).sum(1)


# ── beams ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Hypotheses:
    """The best finished beams of one text: scores and tokens."""

    limit: int
    penalty: float
    early: bool
    found: list[tuple[float, Array]] = field(default_factory=list[tuple[float, Array]])
    is_done: bool = False

    def add(self, text: Array, total: float) -> None:
        """Add a finished beam."""
        self.found.append((total / len(text) ** self.penalty, text))
        self.found.sort(key=lambda one: -one[0])
        del self.found[self.limit :]

    def look(self, best: float, length: int) -> None:
        """Determine whether any running beam can still become better."""
        if len(self.found) == self.limit:
            worst = self.found[-1][0]
            self.is_done = self.is_done or self.early or worst >= best / length**self.penalty


def _beams(op: BeamSearch, run: Run, given: _Given) -> list[HostValue]:
    """Return the best texts, their scores, and the scores of all tokens in all steps."""
    prompt, limit = _prompt(given) if op.encoder is None else _start(op, given)
    beams = int(_number(given, "num_beams", 1))
    kept = int(_number(given, "num_return_sequences", 1))
    if not 1 <= kept <= beams:
        raise ShapeError(f"num_return_sequences={kept} of num_beams={beams}")
    if _array(given, "decoder_input_ids") is not None and op.model_type != WHISPER:
        raise ShapeError("decoder_input_ids are for models of speech")
    if _number(given, "logits_processor", 0):
        raise ShapeError("logits_processor 1, which is about time stamps, is not supported")
    batch = len(prompt)
    texts = np.repeat(prompt, beams, 0)
    mask = _array(given, "attention_mask")
    if op.encoder is None:
        mask = None if mask is None else np.repeat(mask, beams, 0)
        decoder: Decoder | EncodedDecoder = Decoder(op, run, texts, mask)
    else:
        decoder = EncodedDecoder(op, run, _sources(given), mask, prompt, beams)
    words, penalty = _Words.of(op, given), _number(given, "length_penalty", 1.0)
    ends = [_Hypotheses(beams, penalty, bool(op.early_stopping)) for _ in range(batch)]
    totals = np.tile(np.array([0, *[ABSENT] * (beams - 1)], np.float32), batch)
    fresh = texts
    steps: list[Array] = []
    while texts.shape[1] < limit:
        check_time()
        logits = decoder.read(fresh)
        scores = words.scores(texts, _log_softmax(logits), fresh is texts)
        scores = scores + totals[:, np.newaxis]
        going = np.array([not each.is_done for each in ends])[:, np.newaxis, np.newaxis]
        steps.append(scores.reshape(batch, beams, -1) * going)
        rows, chosen, totals = _followed(op, scores, texts, ends, beams)
        texts = np.concatenate([texts[rows], chosen[:, np.newaxis]], 1)
        if all(each.is_done for each in ends):
            break
        decoder.choose(rows)
        fresh = chosen[:, np.newaxis]
    found = np.full((batch, kept, limit), op.pad_token_id, np.int32)
    marks = np.zeros((batch, kept), np.float32)
    for at, each in enumerate(ends):
        if not each.is_done:
            for beam in range(at * beams, (at + 1) * beams):
                each.add(texts[beam], float(totals[beam]))
        for place, (score, text) in enumerate(each.found[:kept]):
            found[at, place, : len(text)] = text
            marks[at, place] = score
    every = np.zeros((limit - prompt.shape[1], *steps[0].shape), np.float32)
    every[: len(steps)] = steps
    asked = _array(given, "length_penalty")
    kind = marks.dtype if asked is None else asked.dtype
    return [found, marks.astype(kind), every.astype(kind)]


def _log_softmax(logits: Array) -> Array:
    apart = logits - logits.max(1, keepdims=True)
    return apart - np.log(np.exp(apart).sum(1, keepdims=True))


def _followed(
    op: BeamSearch, scores: Array, texts: Array, ends: list[_Hypotheses], beams: int
) -> tuple[Array, Array, Array]:
    """Return the rows to continue, their next tokens, and their total scores."""
    words = scores.shape[1]
    rows, chosen = np.zeros(len(scores), int), np.full(len(scores), op.pad_token_id, np.int32)
    totals = np.zeros(len(scores), np.float32)
    for at, each in enumerate(ends):
        if each.is_done:
            continue
        flat = scores[at * beams : (at + 1) * beams].reshape(-1)
        best = np.argsort(-flat, kind="stable")[: 2 * beams]
        place = at * beams
        for rank, one in enumerate(best):
            row, word = at * beams + int(one) // words, int(one) % words
            if word == op.eos_token_id:
                if rank < beams:
                    each.add(texts[row], float(flat[one]))
                continue
            rows[place], chosen[place], totals[place] = row, word, flat[one]
            place += 1
            if place == (at + 1) * beams:
                break
        each.look(float(flat[best[0]]), texts.shape[1])
    return rows, chosen, totals
