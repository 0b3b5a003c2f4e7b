"""Tokenization and hashing of strings; see `runtime.ops.contrib_text`."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import int32, string, uint32
from ....runtime.ir.types import Array
from ....runtime.ops.contrib_text import MurmurHash3, Tokenizer
from ..engine.registry import kernel
from ..regex.matcher import Automaton, compile_pattern

#: Characters with a meaning in expressions.
_SPECIAL = frozenset("\\.^$*+?()[]{}|")
_START, _END = "\x02", "\x03"


@kernel(Tokenizer)
def tokenizer(op: Tokenizer, x: Array) -> Array:
    """Return the tokens of every text."""
    rows = [_tokens(op, text) for text in x.flat]
    maximum = max(map(len, rows), default=0)
    if not maximum:
        return np.empty((*x.shape, 0), string)
    marks = 2 if op.mark else 0
    result = np.full((x.size, maximum + marks), op.pad_value, string)
    for line, row in zip(result, rows, strict=True):
        full = [_START, *row, _END] if op.mark else row
        line[: len(full)] = full
    return result.reshape(*x.shape, maximum + marks)


def _tokens(op: Tokenizer, text: str) -> list[str]:
    if op.by_character:
        return list(text)
    if op.tokenexp:
        return _matches(compile_pattern(op.tokenexp), text, op.mincharnum)
    row = [text]
    for separator in op.separators or ():
        if separator and not _SPECIAL.intersection(separator):
            parts = [part for whole in row for part in whole.split(separator)]
            row = [part for part in parts if len(part) >= op.mincharnum]
            continue
        pattern = compile_pattern(separator)
        row = [part for whole in row for part in _parts(pattern, whole, op.mincharnum)]
    return row


def _matches(pattern: Automaton, text: str, minimum: int) -> list[str]:
    """Return the matches from left to right; of those with the same start, the longest."""
    least = max(minimum, 1)
    return [found for found in pattern.found(text) if len(found) >= least]


def _parts(pattern: Automaton, text: str, minimum: int) -> list[str]:
    """Return the text between matches; an empty match takes the next character along."""
    found: list[str] = []
    begin = 0
    for first, end in pattern.spans(text):
        if first - begin >= minimum:
            found.append(text[begin:first])
        begin = max(end, first + 1)
    if len(text) - begin >= minimum:
        found.append(text[begin:])
    return found


@kernel(MurmurHash3)
def murmur_hash3(op: MurmurHash3, x: Array) -> Array:
    """Return the hashes: of strings in UTF-8, of numbers as stored in memory."""
    if x.dtype == string:
        hashes = np.array([_hash_of_text(text, op.seed) for text in x.flat], uint32)
    else:
        words = np.ascontiguousarray(x).reshape(-1, 1).view(x.dtype.newbyteorder("<")).view("<u4")
        hashes = _hashes(words, np.empty((x.size, 0), np.uint8), op.seed)
    return hashes.view(uint32 if op.positive else int32).reshape(x.shape)


def _hash_of_text(text: str, seed: int) -> np.uint32:
    data = text.encode()
    whole = len(data) & ~3
    words = np.frombuffer(data[:whole], "<u4")[np.newaxis]
    rest = np.frombuffer(data[whole:], np.uint8)[np.newaxis]
    return _hashes(words, rest, seed)[0]


def _hashes(words: Array, rest: Array, seed: int) -> Array:
    """Return the MurmurHash3 (x86, 32 bits) of rows of words followed by up to three bytes."""
    state = np.full(len(words), seed & 0xFFFFFFFF, uint32)
    for word in words.T:
        state = _rotated(state ^ _scrambled(word.astype(uint32)), 13) * uint32.type(5)
        state += uint32.type(0xE6546B64)
    if rest.shape[1]:
        tail = sum((byte.astype(uint32) << uint32.type(8 * i)) for i, byte in enumerate(rest.T))
        state ^= _scrambled(np.asarray(tail, uint32))
    state ^= uint32.type(4 * words.shape[1] + rest.shape[1])
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        state ^= state >> uint32.type(shift)
        state *= uint32.type(factor)
    return state


def _scrambled(word: Array) -> Array:
    return _rotated(word * uint32.type(0xCC9E2D51), 15) * uint32.type(0x1B873593)


def _rotated(word: Array, by: int) -> Array:
    return (word << uint32.type(by)) | (word >> uint32.type(32 - by))
