"""What a launch can be: CUDA's grids, and the 32 bits in which many kernels count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

from ....runtime.errors import UnsupportedError

P = ParamSpec("P")
R = TypeVar("R")

#: Blocks along x, y and z that a launch may have at most.
MAX_BLOCKS = (2**31 - 1, 2**16 - 1, 2**16 - 1)
#: Elements along an axis for which the host makes tables.
MAX_TABLE = 1 << 26
_LOWEST, _GREATEST = -(2**31), 2**31 - 1


class TooLarge(UnsupportedError):
    """A size for which a recipe makes no launch; the message is the reason."""


def check_grid(entry: str, grid: tuple[int, int, int]) -> None:
    """Refuse a grid that CUDA does not launch."""
    if any(blocks > maximum for blocks, maximum in zip(grid, MAX_BLOCKS, strict=True)):
        shown = " x ".join(map(str, grid))
        raise TooLarge(f"{entry} would need a grid of {shown} blocks, more than CUDA launches")


def check_ints(values: Iterable[float]) -> None:
    """Refuse what does not fit into 32 bits, which C would cut off without a word."""
    for value in values:
        if not _LOWEST <= value <= _GREATEST:
            raise TooLarge(f"a size of {value}; the kernel counts in 32 bits")


def as_reason(make: Callable[P, R]) -> Callable[P, R | str]:
    """Return what says why instead of failing, where a size is too large for a recipe."""

    @wraps(make)
    def said(*args: P.args, **kwargs: P.kwargs) -> R | str:
        try:
            return make(*args, **kwargs)
        except TooLarge as error:
            return str(error)
        except OverflowError as error:  # numpy's word for an argument that does not fit
            return f"a size is too large for the kernel: {error}"

    return said
