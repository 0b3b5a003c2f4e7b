"""What two products exchange that have a normalization of rows in between; see `measured`."""

from __future__ import annotations

from ....runtime.base.record import record
from ..recipe.operands import Operand, Packed, Scratch, Tensor


@record
class Measured:
    """What a product leaves of its results for one that normalizes them; see `measured_rows.cuh`.

    Attributes:
        rows: results times the factors of the normalization, none of which exceeds one.
        squares: sums of squares of parts of each row, in float32.
        factors: these factors.
        unit: what they are multiples of.
    """

    rows: Scratch
    squares: Scratch
    factors: Packed
    unit: float


@record
class Between:
    """What kernels exchange with a product in front, and with one behind them.

    Attributes:
        measured: the rows that they multiply, which the one in front has left; None if it has not.
        left: what they leave for the one behind; None if nothing.
    """

    measured: Measured | None = None
    left: Measured | None = None

    def rows_or(self, x: Tensor) -> Operand:
        """Return what is multiplied: these rows, or `x`."""
        return x if self.measured is None else self.measured.rows

    @property
    def args(self) -> dict[str, Operand | float | None]:
        """The arguments for it."""
        read = self.measured
        unit = 1.0 if read is None else read.unit
        return {"measured": read and read.squares, "unit": unit, **self.left_args}

    @property
    def left_args(self) -> dict[str, Operand | float | None]:
        """The arguments for what is left."""
        left = self.left
        return {
            **{"rows_left": left and left.rows, "factors_left": left and left.factors},
            "squares_left": left and left.squares,
        }

    @property
    def constants(self) -> tuple[tuple[str, bool], ...]:
        """The compile-time constants for it."""
        return ("DIVIDES", self.measured is not None), ("LEAVES", self.left is not None)

    @property
    def note(self) -> str:
        """A description for reports; empty if nothing is left."""
        return "" if self.left is None else ", measured"


#: Of a product that exchanges nothing.
ON_ITS_OWN = Between()
