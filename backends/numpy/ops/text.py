"""Operators on strings, which are object arrays of `str`."""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof

import numpy as np

from ....runtime.base.guard import check_time, need
from ....runtime.ir.dtypes import bool_, float32, int64, string
from ....runtime.ir.types import Array
from ....runtime.ops import text as ops
from ....runtime.ops.ngrams import Grams, grams_of
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
    found = [text.split(op.delimiter or None, maximum) for text in x.flat]
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


def _encoded(grams: Grams, x: Array) -> Array:
    """Return the codes of items, -1 for those in no n-gram."""
    found = [grams.codes.get(item, -1) for item in x.reshape(-1).tolist()]
    return np.array(found, int64).reshape(x.shape)


def _followed(grams: Grams, states: Array, codes: Array) -> Array:
    """Return the next states for items, -1 if there is none."""
    keys = states * len(grams.codes) + codes
    places = np.minimum(np.searchsorted(grams.keys, keys), len(grams.keys) - 1)
    is_there = (states >= 0) & (codes >= 0) & (grams.keys[places] == keys)
    return np.where(is_there, grams.targets[places], -1)


@kernel(ops.TfIdfVectorizer)
def tf_idf_vectorizer(op: ops.TfIdfVectorizer, x: Array) -> Array:
    """Count n-grams with items up to `max_skip_count` apart; 1-grams count once."""
    grams = grams_of(op)
    codes = _encoded(grams, np.atleast_2d(x))
    length = codes.shape[1]
    counts = np.zeros((len(codes), len(op.ngram_indexes)), float32)
    for distance in range(1, min(op.max_skip_count + 2, max(2, length))):
        states = np.zeros(codes.shape, int64)
        for n in range(1, min(op.max_gram_length, len(op.ngram_counts)) + 1):
            first = (n - 1) * distance
            if first >= length or not len(grams.keys):
                break
            states = _followed(grams, states[:, : length - first], codes[:, first:])
            if n >= op.min_gram_length and (n > 1 or distance == 1):
                ends = np.where(states < 0, -1, grams.ends[states])
                rows = np.nonzero(ends >= 0)[0]
                np.add.at(counts, (rows, ends[ends >= 0]), 1)
    return _weighted(op, counts).reshape(*x.shape[:-1], -1)


def _weighted(op: ops.TfIdfVectorizer, counts: Array) -> Array:
    """Return weighted counts by output index, from counts by n-gram."""
    if op.mode == "IDF":
        np.minimum(counts, 1, out=counts)
    if op.mode != "TF" and op.weights:
        counts *= np.array(op.weights, float32)
    places = np.array(op.ngram_indexes)
    result = np.zeros((len(counts), places.max() + 1), float32)
    np.add.at(result.T, places, counts.T)
    return result
