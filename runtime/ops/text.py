"""Operators on strings."""

from __future__ import annotations

from itertools import pairwise

from ..errors import ShapeError
from ..ir.dtypes import bool_, float32, int64, string
from ..ir.op import Op, op
from ..ir.prepared import prepared
from ..ir.types import TensorType
from .shapes import MAX_SIZE, broadcast, need_choice, need_rank


def _need_strings(x: TensorType, name: str) -> None:
    if x.dtype != string:
        raise ShapeError(f"{name} is {x}; expected strings")


@op
class StringConcat(Op):
    """`x` with `y` after it, broadcast to each other."""

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        _need_strings(x, "x")
        _need_strings(y, "y")
        return TensorType(string, broadcast(x.shape, y.shape))


@op
class StringSplit(Op):
    """Parts between delimiters along a new last axis, padded with "", and their number.

    Attributes:
        delimiter: any white space if None or empty.
        maxsplit: maximum number of splits, from the left; no limit if None.
    """

    outputs = (2, 2)
    delimiter: str | None = None
    maxsplit: int | None = None

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        _need_strings(x, "x")
        parts = None if x.shape is None else (*x.shape, None)
        return TensorType(string, parts), TensorType(int64, x.shape)


@op
class StringNormalizer(Op):
    """[c] or [1, c] strings without stop words, in lower or upper case.

    Attributes:
        case_change_action: ``LOWER``, ``UPPER`` or ``NONE``.
        locale: of the case conversion; None for the default.
    """

    case_change_action: str = "NONE"
    is_case_sensitive: int = 0
    locale: str | None = None
    stopwords: tuple[str, ...] | None = None

    def infer(self, x: TensorType) -> TensorType:
        need_choice(self.case_change_action, "case_change_action", "LOWER", "UPPER", "NONE")
        _need_strings(x, "x")
        need_rank(x, (1, 2), "x")
        if x.shape is None:
            return x.with_shape(None)
        if len(x.shape) == 2 and x.shape[0] not in (1, None) and isinstance(x.shape[0], int):
            raise ShapeError(f"x is {x}; expected [c] or [1, c]")
        kept = (None,) if self.stopwords else x.shape[-1:]
        return x.with_shape((*(1,) * (len(x.shape) - 1), *kept))


@op
class RegexFullMatch(Op):
    """Whether the whole string matches `pattern`, in RE2 syntax."""

    pattern: str | None = None

    def infer(self, x: TensorType) -> TensorType:
        _need_strings(x, "x")
        return x.with_dtype(bool_)


@op
class TfIdfVectorizer(Op):
    """How often each n-gram of a pool occurs in [c] or in every row of [n, c], optionally weighted.

    Attributes:
        mode: ``TF`` counts, ``IDF`` 1 and 0, ``TFIDF`` counts, the last two weighted.
        ngram_counts: where the 1-grams, 2-grams, ... start in the pool.
        ngram_indexes: the output index of each n-gram.
        max_skip_count: maximum number of skipped items between two items of an n-gram.
    """

    mode: str
    min_gram_length: int
    max_gram_length: int
    max_skip_count: int
    ngram_counts: tuple[int, ...]
    ngram_indexes: tuple[int, ...]
    pool_int64s: tuple[int, ...] | None = None
    pool_strings: tuple[str, ...] | None = None
    weights: tuple[float, ...] | None = None

    def infer(self, x: TensorType) -> TensorType:
        need_choice(self.mode, "mode", "TF", "IDF", "TFIDF")
        need_rank(x, (1, 2), "x")
        columns = _columns(self)
        return TensorType(float32, None if x.shape is None else (*x.shape[:-1], columns))


@prepared
def _columns(op: TfIdfVectorizer) -> int:
    """Return the number of outputs of a row; once for all inferences of large pools.

    Raises:
        ShapeError: no n-gram of the pool can have these indices or lengths.
    """
    last = max(op.ngram_indexes, default=MAX_SIZE)
    if not 0 <= min(op.ngram_indexes, default=0) <= last < MAX_SIZE:
        raise ShapeError("ngram_indexes is empty, or has impossible elements")
    if not 1 <= op.min_gram_length <= op.max_gram_length:
        raise ShapeError(
            f"min_gram_length={op.min_gram_length}, max_gram_length={op.max_gram_length}; "
            f"the first is 1 or more, the second not less"
        )
    if op.max_skip_count < 0:
        raise ShapeError(f"max_skip_count={op.max_skip_count}; it must be 0 or more")
    size = len(op.pool_strings or op.pool_int64s or ())
    if any(a > b for a, b in pairwise((0, *op.ngram_counts, size))):
        raise ShapeError(
            f"ngram_counts={op.ngram_counts} do not rise from 0 to {size}, the pool's length"
        )
    return last + 1
