"""The n-grams of TfIdfVectorizer as a trie, for all backends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..ir.dtypes import int64
from .text import TfIdfVectorizer


class Grams:
    """The n-grams of a pool as a trie: state 0 is the root, and items lead to other states.

    Raises:
        ShapeError: their number differs from that of `ngram_indexes`.

    Attributes:
        codes: the code of every item that occurs.
        keys: ``state * len(codes) + code`` of all transitions, sorted.
        targets: the states that they lead to.
        ends: for every state the index of the n-gram that ends there, or -1.
    """

    def __init__(self, op: TfIdfVectorizer) -> None:
        pool: Sequence[Any] = op.pool_strings or op.pool_int64s or ()
        self.codes: dict[Any, int] = {item: i for i, item in enumerate(dict.fromkeys(pool))}
        steps: dict[int, int] = {}
        ends = [-1]
        number = 0
        bounds = [*op.ngram_counts, len(pool)]
        for n, (first, last) in enumerate(pairwise(bounds), start=1):
            for at in range(first, last - n + 1, n):
                state = 0
                for item in pool[at : at + n]:
                    key = state * len(self.codes) + self.codes[item]
                    state = steps.setdefault(key, len(ends))
                    ends += [-1] * (state == len(ends))
                ends[state] = number
                number += 1
        if number != len(op.ngram_indexes):
            raise ShapeError(f"{number} n-grams in the pool, {len(op.ngram_indexes)} ngram_indexes")
        order = sorted(steps)
        self.keys = np.array(order, int64)
        self.targets = np.array([steps[key] for key in order], int64)
        self.ends = np.array(ends, int64)


grams_of = lru_cache(8)(Grams)
