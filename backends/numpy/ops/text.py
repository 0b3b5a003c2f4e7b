"""Operators on strings, which are object arrays of `str`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from sys import getsizeof

import numpy as np

from ....runtime.base.guard import check_time, need
from ....runtime.base.record import record
from ....runtime.ir.dtypes import bool_, float32, int64, string
from ....runtime.ir.prepared import prepared
from ....runtime.ir.types import Array
from ....runtime.ops import text as ops
from ....runtime.ops.ngrams import Grams
from ..engine.registry import kernel
from ..regex.matcher import compile_pattern

#: Strings processed between two checks of the deadline.
BLOCK = 1 << 18


@kernel(ops.StringConcat)
def string_concat(op: ops.StringConcat, x: Array, y: Array, *, out: Array) -> None:
    """Append the strings of `y` to those of `x`."""
    sizes = (sum(map(getsizeof, data.flat)) * out.size // data.size for data in (x, y) if data.size)
    need(sum(sizes), "the texts of StringConcat")
    out = np.atleast_1d(out)
    first, second = np.broadcast_to(x, out.shape), np.broadcast_to(y, out.shape)
    rows = max(1, BLOCK * len(out) // max(1, out.size))
    for at in range(0, len(out), rows):
        check_time()
        block = slice(at, at + rows)
        np.add(first[block], second[block], out=out[block])


@kernel(ops.StringSplit)
def string_split(op: ops.StringSplit, x: Array) -> tuple[Array, Array]:
    """Return the parts of every string, padded with "", and their number."""
    maximum = -1 if op.maxsplit is None else op.maxsplit
    if op.delimiter:
        found = [text.split(op.delimiter, maximum) for text in x.flat]
    else:  # white space after the last part is removed, which Python keeps with a maximum
        found = [text.strip().split(None, maximum) for text in x.flat]
    counts = np.array([len(parts) for parts in found], int64)
    need(x.size * int(counts.max(initial=0)) * string.itemsize, "the parts of StringSplit")
    parts = np.full((x.size, counts.max(initial=0)), "", string)
    for row, each in zip(parts, found, strict=True):
        row[: len(each)] = each
    return parts.reshape(*x.shape, parts.shape[1]), counts.reshape(x.shape)


_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


@kernel(ops.StringNormalizer)
def string_normalizer(op: ops.StringNormalizer, x: Array) -> Array:
    """Drop stop words and change case, by Unicode's rules in every locale."""
    fold = str if op.is_case_sensitive else str.lower
    stopwords = set(map(fold, op.stopwords or ()))
    change = _CASES[op.case_change_action]
    kept = [change(text) for text in x.flat if fold(text) not in stopwords]
    if not kept and stopwords:
        kept = [""]
    return np.array(kept, string).reshape(*x.shape[:-1], len(kept))


@kernel(ops.RegexFullMatch)
def regex_full_match(op: ops.RegexFullMatch, x: Array) -> Array:
    """Return which strings match as a whole."""
    pattern = compile_pattern(op.pattern or "")
    return np.array([pattern.matches(text) for text in x.flat], bool_).reshape(x.shape)


# ── n-grams ──────────────────────────────────────────────────────────────────────────────────────


_grams = prepared(Grams)


@record
class _Counters:
    """What occurrences of n-grams are counted in.

    Attributes:
        roots: the state to which each code leads first.
        ends: the counter of the n-gram that ends in each state. Where there is none, and last in
            both, is -1: the index -1 finds that.
        count: how many there are for a row.
        weights: of the counters; None if all are 1.
        outputs: those to which counters are added; None if they are the counters themselves.
    """

    roots: Array
    ends: Array
    count: int
    weights: Array | None
    outputs: Array | None


@prepared
def _counters(op: ops.TfIdfVectorizer) -> _Counters:
    """Return counters by output, or by n-gram if several have one output."""
    grams, outputs = _grams(op), np.array(op.ngram_indexes, int64)
    roots = np.full(len(grams.codes) + 1, -1, int64)
    is_first = grams.keys < len(grams.codes)
    roots[grams.keys[is_first]] = grams.targets[is_first]
    is_shared = len(np.unique(outputs)) < len(outputs)
    own = np.arange(len(outputs)) if is_shared else outputs
    ends = np.where(grams.ends < 0, -1, own[grams.ends])
    count, weights = int(own.max()) + 1, None
    if op.mode != "TF" and op.weights:
        weights = np.zeros(count, float32)
        weights[own] = op.weights
    return _Counters(roots, np.append(ends, -1), count, weights, outputs if is_shared else None)


@prepared
def _codes_of_integers(op: ops.TfIdfVectorizer) -> tuple[int, Array] | None:
    """Return the lowest integer of the pool and the codes from there on; None if they are too far.

    The last code, -1, is that of all others.
    """
    if op.pool_int64s is None or not len(op.pool_int64s):
        return None
    low, high = min(op.pool_int64s), max(op.pool_int64s)
    if high - low >= BLOCK:
        return None
    codes = np.full(high - low + 2, -1, np.int32)
    known = _grams(op).codes
    codes[np.array([*known], int64) - low] = [*known.values()]
    return low, codes


def _encoded(op: ops.TfIdfVectorizer, x: Array) -> Array:
    """Return the codes of items, -1 for those in no n-gram."""
    table = _codes_of_integers(op) if x.dtype.kind == "i" else None
    if table is not None:
        low, codes = table
        places = (x.astype(int64) - low).view(np.uint64)  # those below are larger than all
        return codes[np.minimum(places, len(codes) - 1)]
    found = map(_grams(op).codes.get, x.reshape(-1).tolist(), repeat(-1))
    return np.fromiter(found, int64, x.size).reshape(x.shape)


@prepared
def _transitions(op: ops.TfIdfVectorizer) -> Array | None:
    """Return the next state by state and code; None if there are too many.

    Where there is none, and last along both axes, is -1: the index -1 finds that.
    """
    grams = _grams(op)
    states, codes = len(grams.ends), len(grams.codes)
    if (states + 1) * (codes + 1) > BLOCK:
        return None
    found = np.full((states + 1, codes + 1), -1, int64)
    found[np.divmod(grams.keys, codes)] = grams.targets
    return found


def _followed(op: ops.TfIdfVectorizer, states: Array, codes: Array) -> Array:
    """Return the next states for items, -1 if there is none."""
    table, grams = _transitions(op), _grams(op)
    if table is not None:
        return table[states, codes]
    found = np.full(codes.shape, -1, int64)
    some = np.nonzero((states >= 0) & (codes >= 0))
    keys = states[some] * len(grams.codes) + codes[some]
    places = np.minimum(np.searchsorted(grams.keys, keys), len(grams.keys) - 1)
    found[some] = np.where(grams.keys[places] == keys, grams.targets[places], -1)
    return found


@kernel(ops.TfIdfVectorizer)
def tf_idf_vectorizer(op: ops.TfIdfVectorizer, x: Array) -> Array:
    """Count n-grams with items up to `max_skip_count` apart; 1-grams count once."""
    grams, counters = _grams(op), _counters(op)
    codes = _encoded(op, np.atleast_2d(x))
    length = codes.shape[1]
    counts = np.zeros((len(codes), counters.count), float32)
    rows = np.arange(len(codes))[:, np.newaxis] * counters.count
    for distance in range(1, min(op.max_skip_count + 2, max(2, length))):
        states = codes
        for n in range(1, min(op.max_gram_length, len(op.ngram_counts)) + 1):
            first = (n - 1) * distance
            if first >= length or not len(grams.keys):
                break
            if n == 1:
                states = counters.roots[codes]
            else:
                states = _followed(op, states[:, : length - first], codes[:, first:])
            if n >= op.min_gram_length and (n > 1 or distance == 1):
                ends = counters.ends[states]
                # Of another dtype, even a number, elements take a hundred times as long.
                np.add.at(counts.reshape(-1), (rows + ends)[ends >= 0], float32.type(1))
    return _weighted(op, counters, counts).reshape(*x.shape[:-1], -1)


def _weighted(op: ops.TfIdfVectorizer, counters: _Counters, counts: Array) -> Array:
    """Return weighted counts by output index."""
    if op.mode == "IDF":
        np.minimum(counts, 1, out=counts)
    if counters.weights is not None:
        counts *= counters.weights
    if counters.outputs is None:
        return counts
    result = np.zeros((len(counts), int(counters.outputs.max()) + 1), float32)
    np.add.at(result.T, counters.outputs, counts.T)
    return result
