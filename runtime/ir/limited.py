"""Sizes of what is cut from a table: as many elements as a symbol says, or all there are."""

from __future__ import annotations


class Limited(str):
    """The lesser of a symbolic size and a number, such as the rows of a table of positions.

    It is a symbol, equal to those with the same text. A tensor of the symbolic size broadcasts with
    one of the limited size only if the two are equal, unless the limit is 1.

    Attributes:
        size: the symbol.
        most: the number.
    """

    size: str
    most: int

    def __new__(cls, size: str, most: int) -> Limited:
        made = super().__new__(cls, f"min({size}, {most})")
        made.size, made.most = size, most
        return made

    def __reduce__(self) -> tuple[type[Limited], tuple[str, int]]:
        return Limited, (self.size, self.most)
