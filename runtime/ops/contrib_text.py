"""Text operators of the domain com.microsoft that converters of text pipelines write.

ONNX does not have them; they are declared in `docs/ContribOperators.md` of onnxruntime.
"""

from __future__ import annotations

from typing import ClassVar

from ..errors import ShapeError
from ..ir.dtypes import float32, float64, int32, int64, string, uint32, uint64
from ..ir.op import Op, op
from ..ir.types import TensorType
from .shapes import need_rank

DOMAIN = "com.microsoft"


@op
class Tokenizer(Op):
    r"""Tokens of [c] or [n, c] strings along a new last axis, padded with `pad_value`.

    Attributes:
        mark: whether the tokens of a string are enclosed in "\x02" and "\x03".
        mincharnum: minimum length of a token in characters; shorter ones are dropped.
        pad_value: fills rows with fewer tokens than others.
        separators: RE2 patterns, applied in turn; an empty one splits between all characters.
        tokenexp: an RE2 pattern that tokens match, instead of separators; "." also matches line
            breaks.
    """

    domain: ClassVar[str] = DOMAIN
    mark: int
    mincharnum: int
    pad_value: str
    separators: tuple[str, ...] | None = None
    tokenexp: str | None = None

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype != string:
            raise ShapeError(f"x is {x}; expected strings")
        need_rank(x, (1, 2), "x")
        if self.mincharnum < 1:
            raise ShapeError(f"mincharnum={self.mincharnum}; expected 1 or more")
        if self.mincharnum > 1 and self.by_character:
            raise ShapeError(f"mincharnum={self.mincharnum}; characters as tokens have one each")
        if bool(self.separators) == bool(self.tokenexp):
            raise ShapeError("one of separators and tokenexp is needed")
        return x.with_shape(None if x.shape is None else (*x.shape, None))

    @property
    def by_character(self) -> bool:
        """Whether every character is a token."""
        return self.separators == ("",) or self.tokenexp == "."


@op
class MurmurHash3(Op):
    """The 32-bit MurmurHash3 of every element's bytes, as uint32, or int32 unless `positive`."""

    domain: ClassVar[str] = DOMAIN
    positive: int = 1
    seed: int = 0

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype not in (int32, uint32, int64, uint64, float32, float64, string):
            raise ShapeError(f"x is {x}; expected strings or numbers of 32 or 64 bits")
        return x.with_dtype(uint32 if self.positive else int32).without_value()
